from __future__ import annotations

import hashlib
import json
from itertools import product

import pytest

from qualab.model.audit import pack_ids
from qualab.model.names import ArmName, AuditPart
from tests.api.conftest import Service, check_problem
from tests.app.fakes import other_for, reply
from tests.said import english
from tests.web.made import scored


@pytest.fixture
def compared(working: Service) -> tuple[Service, str]:
    working.bench.candidate.answer = other_for(range(7, 10))
    return working, working.finished()


def test_items_are_filtered(compared: tuple[Service, str]) -> None:
    service, comparison_id = compared
    every = list(range(10))
    filters = {"": every, "flipped=false": every[:7], "task=other": [], "change=gain": [], "missing=true": []}
    lost = ("flipped=true", "change=loss", "different_text=true", "task=sums&min_length=2")
    filters |= dict.fromkeys(lost, every[7:])
    for query, expected in filters.items():
        found = service.client.get(f"/v1/comparisons/{comparison_id}/items?{query}")
        assert sorted(one["doc_id"] for one in found.json()["entries"]) == expected, query
    seen, url = [], f"/v1/comparisons/{comparison_id}/items?limit=4"
    while url:
        page = service.client.get(url)
        seen += [one["position"] for one in page.json()["entries"]]
        url = page.links.get("next", {}).get("url", "")
    assert seen == every


def test_a_filter_or_position_that_is_wrong_is_named(compared: tuple[Service, str]) -> None:
    service, comparison_id = compared
    url = f"/v1/comparisons/{comparison_id}/items"
    for query in ("limit=0", "change=worse", "min_length=-1", "max_length=99999999999", "flipped=maybe"):
        refused = service.client.get(f"{url}?{query}")
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, f"query.{query.partition('=')[0]}")
    for position, status in {"10": 404, "-1": 404, "9" * 30: 404, "x": 422, "1.5": 422}.items():
        assert service.client.get(f"{url}/{position}").status_code == status, position


def test_an_item_shows_both_answers_and_the_requests_as_they_were_sent(compared: tuple[Service, str]) -> None:
    service, comparison_id = compared
    (lost, *_) = service.client.get(f"/v1/comparisons/{comparison_id}/items?flipped=true").json()["entries"]
    item = service.client.get(f"/v1/comparisons/{comparison_id}/items/{lost['position']}").json()
    assert (item["doc_id"], item["target"]) == (lost["doc_id"], str(lost["doc_id"]))
    texts = {one["arm"]: one["reply"]["text"] for one in item["answers"]}
    assert texts == {"baseline": str(lost["doc_id"]), "candidate": "no"}
    assert {one["arm"]: one["value"] for one in item["scores"]} == {"baseline": 1.0, "candidate": 0.0}
    (request,) = item["requests"]
    assert request["body"].encode() in service.bench.baseline.bodies
    assert request["body"].encode() in service.bench.candidate.bodies
    assert request["sha256_begins"] == hashlib.sha256(request["body"].encode()).hexdigest()[:32]
    assert {one["request_hash"] for one in item["answers"]} == {request["sha256_begins"]}
    assert json.loads(request["body"])["seed"] == 1234
    assert {str(one["token_ids"]) for one in item["answers"]} == {"None"}


def test_an_answer_tells_its_token_ids_as_numbers(working: Service) -> None:
    ids = (246, 1_000_000)  # no UTF-8
    working.bench.candidate.answer = other_for(range(10), reply("no", token_ids=pack_ids(ids)))
    item = working.client.get(f"/v1/comparisons/{working.finished()}/items/3").json()
    assert {one["arm"]: one["token_ids"] for one in item["answers"]} == {"baseline": None, "candidate": [*ids]}


def test_an_item_shows_its_audited_tokens_and_items_are_found_by_foreign_ones(working: Service) -> None:
    comparison_id = working.finished()
    odd = {
        AuditPart.GREEDY: {0: (0.2, 2, "a"), 2: (7.25, 312, "b")},
        AuditPart.SAMPLED: {1: (3.0, 5, ""), 2: (49, 9, "c")},
    }
    for position in (2, 5, 7):
        for arm, part in product(ArmName, odd):
            own = odd[part] if (arm, position) == (ArmName.CANDIDATE, 5) else {}
            working.store.put_scored(comparison_id, [scored(part, arm, position, ("x", " y", "\ufffd"), own)])
    for arm, texts in zip(ArmName, (("x", " y", " z"), ("x", " y")), strict=True):  # the candidate ends too early
        working.store.put_scored(comparison_id, [scored(AuditPart.GREEDY, arm, 8, texts, {})])
    url = f"/v1/comparisons/{comparison_id}/items"
    for query, positions in {"foreign=true": [5, 8], "foreign=false": [2, 7], "foreign=true&flipped=true": []}.items():
        found = working.client.get(f"{url}?{query}").json()["entries"]
        assert [one["position"] for one in found] == positions, query
    item = working.client.get(f"{url}/5").json()
    audited = item["audited"]
    assert [(one["part"], one["arm"]) for one in audited] == [(part, arm) for part in odd for arm in ArmName]
    greedy, sampled = audited[1], audited[3]
    assert (greedy["text"], sampled["text"], greedy["status"], greedy["n_tokens"]) == (
        item["target"],
        "x y\ufffd",
        "ok",
        3,
    )
    first = {"text": "x", "rank": 2, "choice": "a", "is_foreign": False, "is_end": False}
    assert {name: value for name, value in greedy["tokens"][0].items() if name not in ("gap", "logprob")} == first
    assert [round(token["gap"], 4) for token in greedy["tokens"]] == [0.2, 0.0, 7.25]
    assert [round(token["logprob"], 4) for token in greedy["tokens"]] == [-0.3, -0.1, -7.35]
    assert [token["choice"] for token in sampled["tokens"]] == ["x", "", "c"]
    assert [[token["is_foreign"] for token in one["tokens"]] for one in (greedy, sampled)] == [[False, False, True]] * 2
    (_, early), nothing = (working.client.get(f"{url}/{position}").json()["audited"] for position in (8, 3))
    *_, end = early["tokens"]
    assert (len(early["tokens"]), early["n_tokens"], end["is_end"], end["is_foreign"]) == (3, 2, True, True)
    assert "(end)" in working.client.get(f"/comparisons/{comparison_id}/items/8").text
    assert nothing == []


def test_what_does_not_change_is_not_sent_twice(compared: tuple[Service, str]) -> None:
    service, comparison_id = compared
    base = f"/v1/comparisons/{comparison_id}"
    own = service.client.get(f"{base}/plan").json()["hash"]
    paths = ["", "/verdict", "/metrics", "/preflight", "/acceptance", "/plan", "/items", "/items/0", "/analyses"]
    for path in [*paths, f"/analyses/{own}"]:
        first = service.client.get(base + path)
        again = service.client.get(base + path, headers={"If-None-Match": f'"x", W/{first.headers["etag"]}'})
        assert (first.status_code, again.status_code, again.content) == (200, 304, b""), path


def test_what_is_not_there_yet_says_so(idle: Service) -> None:
    comparison_id = idle.create()
    for path in ("/metrics", "/acceptance", "/plan", "/items", "/items/0", "/analyses"):
        check_problem(idle.client.get(f"/v1/comparisons/{comparison_id}{path}"), 409, "not-yet")
    assert idle.client.get(f"/v1/comparisons/{comparison_id}/preflight").json()["engines"] == {}
    for path, body in {"analyses": {"margin": 0.1}, "signoffs": {"signed_by": "x"}}.items():
        check_problem(idle.client.post(f"/v1/comparisons/{comparison_id}/{path}", json=body), 409, "not-yet")


def test_metrics_and_acceptance_come_of_the_analysis(compared: tuple[Service, str]) -> None:
    service, comparison_id = compared
    metrics = service.client.get(f"/v1/comparisons/{comparison_id}/metrics").json()
    (row,) = metrics["metrics"]
    assert (row["evidence"]["losses"], row["evidence"]["gains"], row["n_items"]) == (3, 0, 10)
    assert metrics["reasons"]
    acceptance = service.client.get(f"/v1/comparisons/{comparison_id}/acceptance").json()
    assert acceptance["is_observed"] is True
    assert acceptance["tasks"][0]["accepted_tokens"] == 20
    preflight = service.client.get(f"/v1/comparisons/{comparison_id}/preflight").json()
    assert set(preflight["engines"]) == {"baseline", "candidate"}


def test_an_analysis_again_is_the_same_and_under_another_margin_marked(compared: tuple[Service, str]) -> None:
    service, comparison_id = compared
    url = f"/v1/comparisons/{comparison_id}"
    before = service.client.get(f"{url}/verdict").content
    again = service.client.post(f"{url}/analyses")
    assert again.status_code == 201, again.text
    assert (again.json()["is_as_stored"], again.json()["name"]["is_own_plan"]) == (True, True)
    assert service.client.get(again.headers["location"]).json() == again.json()["analysis"]
    made = service.client.post(f"{url}/analyses", json={"margin": 0.9})
    assert made.status_code == 201
    assert made.json()["name"]["is_own_plan"] is False
    assert made.json()["analysis"]["verdict"] == "INVALID"
    assert "made after the data (changed: margin 0.02 to 0.9)" in english(made.json()["analysis"]["reasons"])[0]
    assert service.client.get(f"{url}/verdict").content == before
    listed = service.client.get(f"{url}/analyses").json()["entries"]
    assert [one["is_own_plan"] for one in listed] == [True, False]
    entry = service.client.get("/v1/audit").json()["entries"][0]
    assert (entry["action"], entry["details"]["margin"]) == ("analysis.create", "0.9")


WRONG = {
    **{"margin": (True,), "objective": ("win",), "max_missing_share": (-1,), "power": (0.9,), "margn": (0.1,)},
    **{"margins": ({"nothing": 0.1}, {"sums": 7}), "score_bounds": ({"sums": [1, 0]}, {"nothing": [0, 1]})},
}


def test_a_rule_that_is_wrong_is_named(compared: tuple[Service, str]) -> None:
    service, comparison_id = compared
    for name, value in [(name, value) for name, values in WRONG.items() for value in values]:
        refused = service.client.post(f"/v1/comparisons/{comparison_id}/analyses", json={name: value})
        assert refused.status_code == 422, (name, value)
        assert [one["field"].partition(".")[0] for one in refused.json()["errors"]] == [name]

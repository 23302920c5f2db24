from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qualab.errors import ComparisonNotFound, StoreError
from qualab.model.names import AnswerStatus, ArmName, ComparisonStatus
from qualab.model.registry import Scope
from qualab.run.bank import add_bank
from qualab.service.api.state import Polls
from qualab.service.reading import Follower
from tests.api.conftest import EXPERIMENT, Make, Service, at_work, check_problem, make_bench, make_service
from tests.api.test_documents import AROUND, plan_of
from tests.app.fakes import echo_number, failure
from tests.store.samples import comparison, put


def test_a_comparison_runs_from_its_request_to_its_verdict(working: Service) -> None:
    sent = working.client.post("/v1/comparisons", json=EXPERIMENT | {"label": "nightly"})
    assert sent.status_code == 202
    comparison_id = sent.json()["id"]
    assert sent.headers["location"] == f"/v1/comparisons/{comparison_id}"
    verdict = working.done(comparison_id)
    assert (verdict["status"], verdict["verdict"], verdict["label"]) == ("finished", "INCONCLUSIVE", "nightly")
    read = working.client.get(sent.headers["location"]).json()
    assert read["created_by"] == "loopback"
    assert read["n_items"] == 10
    assert len(working.bench.baseline.bodies) == len(working.bench.candidate.bodies) == 10


def test_failed_requests_are_no_answers_in_the_list_and_in_progress(make: Make) -> None:
    bench = make_bench(n_items=40)
    bench.candidate.answer = lambda p, s: failure() if int(p[4:]) % 4 == 0 else echo_number(p, s)
    service = make(bench=bench)
    with at_work(service.context):
        comparison_id = service.create()
        assert service.done(comparison_id)["status"] == "stopped"
    unanswered = [status for status in AnswerStatus if not status.is_answer]
    came_back, lost = bench.store.n_answered(comparison_id), bench.store.n_answered(comparison_id, unanswered)
    assert lost[ArmName.BASELINE] == 0 < lost[ArmName.CANDIDATE]
    answered = {arm: came_back[arm] - lost[arm] for arm in ArmName}
    found = Follower(service.context, comparison_id).look()
    assert (found.answered, found.unanswered, found.n_requests) == (answered, lost, 40)
    page = service.client.get("/").text
    n_baseline, n_candidate = answered.values()
    assert f"baseline {n_baseline}, candidate {n_candidate}, of 40 each" in page
    assert f"{lost[ArmName.CANDIDATE]} without an answer" in page


def test_items_that_an_early_stop_left_unasked_are_not_shown_as_asked(working: Service) -> None:
    working.bench.harness.tasks.n_items = 400
    comparison_id = working.finished(looks=5, margin=0.1)
    asked = working.bench.store.looks(comparison_id)[-1].n_items
    read = working.client.get(f"/v1/comparisons/{comparison_id}").json()
    assert asked < 400
    assert (read["n_items"], read["n_items_asked"]) == (400, asked)
    assert f'<td class="number">{asked} of 400</td>' in working.client.get("/").text


def test_the_same_key_and_body_give_the_same_comparison(idle: Service) -> None:
    def send(body: dict[str, Any], key: str = "build-17") -> Any:
        return idle.client.post("/v1/comparisons", json=body, headers={"Idempotency-Key": key})

    first, again, other = send(EXPERIMENT), send(EXPERIMENT), send(EXPERIMENT | {"label": "other"})
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert check_problem(other, 422, "idempotency-key-reused")["errors"][0]["field"] == "Idempotency-Key"
    assert idle.store.counts() == {"queued": 1}
    for key in ("with space", "x" * 201, "\x7f"):
        refused = send(EXPERIMENT, key)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "Idempotency-Key")


def test_margins_that_the_items_cannot_prove_need_to_be_accepted(make: Make) -> None:
    service, body = make(), {**EXPERIMENT, "accept_underpowered": False}
    refused = service.client.post("/v1/comparisons", json=body)
    check_problem(refused, 422, "underpowered")
    allowed = {one["field"]: one["allowed"] for one in refused.json()["errors"]}
    assert "10 items cannot prove ±2 pp" in allowed["margin"]
    assert "true" in allowed["accept_underpowered"]
    assert service.store.counts() == {}
    assert service.client.post("/v1/comparisons", json=EXPERIMENT).status_code == 202
    assert make(bench=make_bench(n_items=3_000)).client.post("/v1/comparisons", json=body).status_code == 202


WRONG = {
    **{"status": ("nearly",), "verdict": ("FINE",), "limit": ("0", "201", "many"), "lable": ("x",), "sort": ("items",)},
    **{"since": ("yesterday", "2026-01-02T03:04:05"), "cursor": ("AAAA", "Y29tcGFyaXNvbnMsMSwxLDE9")},
}


def test_a_filter_that_is_wrong_is_named(idle: Service) -> None:
    for name, value in [(name, value) for name, values in WRONG.items() for value in values]:
        refused = idle.client.get(f"/v1/comparisons?{name}={value}")
        assert refused.status_code == 422, (name, value)
        (error,) = refused.json()["errors"]
        assert error["field"] == ("cursor" if name == "cursor" else f"query.{name}")
        assert error["allowed"]


def test_ids_that_nothing_has_are_not_found(working: Service) -> None:
    paths = ["", "/verdict", "/metrics", "/preflight", "/acceptance", "/plan", "/items", "/items/0", "/analyses"]
    paths += ["/speed", "/limits", "/advice"]
    beginning = working.finished()[:-1]
    for comparison_id in ("20260102-030405-00000000", "%00", "a b", "x" * 500, "..%2F..", beginning):
        for path in (*paths, "/events"):
            found = working.client.get(f"/v1/comparisons/{comparison_id}{path}")
            (error,) = check_problem(found, 404, found.json()["code"])["errors"]
            assert error["field"] == ("path" if "%2F" in comparison_id else "comparison_id"), (comparison_id, path)
    for path in ("cancel", "resume", "analyses", "verification"):
        assert working.client.post(f"/v1/comparisons/nothing/{path}").status_code == 404, path
    assert working.client.post("/v1/comparisons/nothing/signoffs", json={"signed_by": "x"}).status_code == 404
    assert working.client.delete("/v1/comparisons/nothing").status_code == 404


def test_what_waits_can_be_cancelled_and_taken_up_again_on_record(idle: Service) -> None:
    comparison_id = idle.create(label="nightly")
    read = idle.client.get(f"/v1/comparisons/{comparison_id}").json()
    assert (read["status"], read["verdict"], read["plan_hash"], read["created_by"]) == ("queued", None, "", "loopback")
    assert (read["has_ended"], read["experiment"]) == (False, EXPERIMENT | {"label": "nightly"})
    refused = check_problem(idle.client.delete(f"/v1/comparisons/{comparison_id}"), 409, "comparison-busy")
    assert refused["errors"][0]["field"] == "comparison_id"
    cancelled = idle.client.post(f"/v1/comparisons/{comparison_id}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert idle.client.post(f"/v1/comparisons/{comparison_id}/cancel").status_code == 200
    resumed = idle.client.post(f"/v1/comparisons/{comparison_id}/resume", json={"retry_failed": True})
    assert (resumed.status_code, resumed.json()["status"]) == (202, "queued")
    check_problem(idle.client.post(f"/v1/comparisons/{comparison_id}/resume"), 409, "wrong-state")
    entries = idle.client.get("/v1/audit").json()["entries"]
    assert [entry["action"] for entry in entries] == [f"comparison.{name}" for name in ("resume", "cancel", "create")]
    assert {(entry["who"], entry["subject"], entry["at"]) for entry in entries} == {
        ("loopback", comparison_id, "2026-01-02T03:04:05Z")
    }
    assert entries[-1]["details"]["label"] == "nightly"


def test_what_has_ended_is_not_cancelled_or_taken_up_but_deleted(working: Service) -> None:
    comparison_id = working.finished()
    for action in ("cancel", "resume"):
        check_problem(working.client.post(f"/v1/comparisons/{comparison_id}/{action}"), 409, "wrong-state")
    assert working.client.delete(f"/v1/comparisons/{comparison_id}").status_code == 204
    for path in ("", "/verdict", "/items", "/plan"):
        assert working.client.get(f"/v1/comparisons/{comparison_id}{path}").status_code == 404
    assert working.client.get("/v1/comparisons").json()["entries"] == []


@pytest.mark.parametrize(("method", "path"), [("POST", "/cancel"), ("POST", "/resume"), ("DELETE", "")])
def test_a_change_of_what_was_not_read_is_refused(idle: Service, method: str, path: str) -> None:
    comparison_id = idle.create()
    etag = idle.client.get(f"/v1/comparisons/{comparison_id}").headers["etag"]
    put(idle.bench.store, comparison_id, status=ComparisonStatus.CANCELLED)
    url = f"/v1/comparisons/{comparison_id}{path}"
    for stale in (etag, '"nonsense"', "nonsense", ""):
        refused = idle.client.request(method, url, headers={"If-Match": stale})
        assert check_problem(refused, 412, "version-conflict")["errors"][0]["field"] == "If-Match"
    fresh = idle.client.get(f"/v1/comparisons/{comparison_id}").headers["etag"]
    assert idle.client.request(method, url, headers={"If-Match": f'"other", {fresh}'}).status_code < 300


def test_what_changes_while_it_is_being_deleted_stays(idle: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison_id = idle.create()
    put(idle.bench.store, comparison_id, status=ComparisonStatus.CANCELLED)
    delete = idle.store.delete

    def late(*given: Any, **more: Any) -> None:
        put(idle.bench.store, comparison_id, status=ComparisonStatus.FAILED)
        delete(*given, **more)

    monkeypatch.setattr(idle.store, "delete", late)
    url = f"/v1/comparisons/{comparison_id}"
    seen = {"If-Match": idle.client.get(url).headers["etag"]}
    check_problem(idle.client.delete(url, headers=seen), 412, "version-conflict")
    assert idle.client.get(url).status_code == 200
    assert idle.client.delete(url, headers={"If-Match": "*"}).status_code == 204


def test_what_keeps_a_comparison_from_running_stands_in_its_verdict(working: Service) -> None:
    working.bench.candidate.drafts = False
    comparison_id = working.create()
    verdict = working.done(comparison_id)
    assert (verdict["status"], verdict["error"]["code"]) == ("failed", "pair-differs")
    assert "it has no drafter" in verdict["error"]["message"]
    preflight = working.client.get(f"/v1/comparisons/{comparison_id}/preflight").json()
    assert preflight["error"] == verdict["error"]


def test_a_plan_file_is_run_as_it_was_frozen(working: Service) -> None:
    computed = working.client.post("/v1/plans", json={"model": "m", "tasks": "sums", "max_attempts": 1})
    assert computed.status_code == 200, computed.text
    sent = working.client.post("/v1/comparisons", json=computed.json()["document"] | AROUND)
    assert sent.status_code == 202, sent.text
    comparison_id = sent.json()["id"]
    assert working.done(comparison_id)["plan_hash"] == computed.json()["plan_hash"]
    plan = working.client.get(f"/v1/comparisons/{comparison_id}/plan").json()
    assert plan["hash"] == computed.json()["plan_hash"]
    assert plan["plan"]["assumptions"]["discordance"] == {"sums/exact_match,none": 0.05}


def test_a_plan_that_would_not_be_what_is_run_is_refused(idle: Service) -> None:
    document = plan_of(idle) | AROUND

    def refused(body: dict[str, Any]) -> Any:
        answer = idle.client.post("/v1/comparisons", json=body)
        assert answer.status_code == 422
        return answer.json()

    edited = document | {"plan": document["plan"] | {"rule": document["plan"]["rule"] | {"margin": 0.5}}}
    assert refused(edited)["code"] == "plan-changed"
    assert refused(document | {"margin": 0.5})["errors"][0]["field"] == "margin"
    idle.bench.harness.tasks.config_hash = "another"
    idle.context.planner._tasks.clear()  # as after some minutes
    idle.context.planner._plans.clear()
    assert "tasks" in refused(document)["detail"]


def test_lists_come_in_the_order_that_is_asked_for_page_by_page(idle: Service) -> None:
    long = "밤" * 199 + "1"
    for label in ("b", "a", long):
        idle.create(label=label)

    def labels(path: str) -> list[str]:
        found = idle.client.get(path)
        link = found.links.get("next", {}).get("url", "")
        assert bool(link) == (found.json()["next_cursor"] is not None)
        return [one["label"] for one in found.json()["entries"]] + (labels(link) if link else [])

    assert labels("/v1/comparisons?limit=1") == [long, "a", "b"]
    assert labels("/v1/comparisons?sort=label&limit=1") == ["a", "b", long]
    assert labels("/v1/comparisons?sort=verdict&limit=2&status=queued") == [long, "a", "b"]
    cursor = idle.client.get("/v1/comparisons?sort=label&limit=1").json()["next_cursor"]
    assert idle.client.get(f"/v1/comparisons?sort=verdict&cursor={cursor}").status_code == 422


def test_a_sign_off_needs_an_admin_says_what_stands_in_the_way_and_keeps_its_comparison(working: Service) -> None:
    done = working.finished()
    url = f"/v1/comparisons/{done}/signoffs"
    admin, runner = working.token(Scope.ADMIN, name="lead"), working.token(Scope.RUN)
    assert working.client.post(url, json={"signed_by": "Kim"}, headers=runner).status_code == 403
    for body, field in (({}, "signed_by"), ({"signed_by": 1}, "signed_by"), ({"signed_by": "x", "by": "y"}, "by")):
        wrong = working.client.post(url, json=body, headers=admin)
        assert (wrong.status_code, [error["field"] for error in wrong.json()["errors"]]) == (422, [field])
    refused = working.client.post(url, json={"signed_by": "Kim"}, headers=admin)
    check_problem(refused, 409, "sign-off-refused")
    assert "no image is named" in refused.json()["detail"]
    signed = working.client.post(url, json={"signed_by": "Kim", "override": "a trial"}, headers=admin)
    assert signed.status_code == 201, signed.text
    assert working.client.get(url, headers=admin).json()["entries"] == [signed.json()]
    entry = working.client.get("/v1/audit", headers=admin).json()["entries"][0]
    assert (entry["who"], entry["action"], entry["details"]["as"]) == ("lead", "comparison.sign-off", "Kim")
    assert {"token", "request_id", "sha256"} <= entry["details"].keys()
    verification = working.client.post(f"/v1/comparisons/{done}/verification", headers=admin).json()
    assert verification["is_altered"] is False
    assert {check["name"] for check in verification["checks"]} >= {"plan", "seals", "answers", "scores", "analysis"}
    assert working.client.get(f"/v1/comparisons/{done}", headers=admin).json()["is_signed_off"] is True
    for method, path, body in (("DELETE", "", None), ("POST", "/resume", {"retry_failed": True})):
        kept = working.client.request(method, f"/v1/comparisons/{done}{path}", json=body, headers=admin)
        check_problem(kept, 409, "comparison-signed-off")


async def test_polls_share_the_read_that_begins_after_them() -> None:
    context, begins, may_end = make_service().context, asyncio.Event(), threading.Event()
    one, other = "c-1", "c-2"
    for name in (one, other):
        context.store.create(comparison(name), [])
    loop, reads, summaries = asyncio.get_running_loop(), [], context.store.summaries

    def slow(ids: Sequence[str]) -> Any:
        reads.append(sorted(ids))
        loop.call_soon_threadsafe(begins.set)
        assert may_end.wait(10.0)
        if len(reads) == 3:
            raise StoreError("away")
        return summaries(ids)

    polls = Polls(context)
    polls._store = cast(Any, SimpleNamespace(summaries=slow))
    first = asyncio.create_task(polls.summary(one))
    await begins.wait()
    later = [asyncio.create_task(polls.summary(name)) for name in (one, other, one, "none")]
    await asyncio.sleep(0.01)
    may_end.set()
    told = await asyncio.gather(first, *later, return_exceptions=True)
    assert reads == [[one], sorted([one, other, "none"])]
    assert [summary.id for summary in told[:4]] == [one, one, other, one]
    assert isinstance(told[4], ComparisonNotFound)
    with pytest.raises(StoreError):
        await polls.summary(one)
    assert (await polls.summary(one)).id == one


def test_a_request_names_a_banked_baseline_which_is_kept(working: Service) -> None:
    banked = working.finished(noise_floor_runs=1)
    add_bank(working.store, "nightly", banked, who="me", now=working.bench.clock.now())
    admin, before = working.token(Scope.ADMIN), len(working.bench.baseline.bodies)
    wrong = working.client.post("/v1/comparisons", json=EXPERIMENT | {"bank": "nightly", "seed": 5})
    assert "seed" in check_problem(wrong, 422, "invalid-value")["detail"]
    done = working.finished(bank="nightly", bank_sample=3)
    assert len(working.bench.baseline.bodies) - before == 3
    analysis = working.store.analysis(done)
    assert analysis is not None
    assert "from-bank" in {caveat.code for caveat in analysis.caveats}
    kept = working.client.delete(f"/v1/comparisons/{banked}", headers=admin)
    check_problem(kept, 409, "comparison-banked")

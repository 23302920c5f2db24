"""Banked baselines over the service: routes, scopes and the page."""

from __future__ import annotations

from typing import Any

import pytest

from qualab.model.registry import Scope
from tests.api.conftest import EXPERIMENT, Service, check_problem


def banked(service: Service, **changes: Any) -> str:
    comparison_id = service.finished(noise_floor={"runs": 1}, **changes)
    sent = service.client.post("/v1/baselines", json={"name": "nightly", "comparison_id": comparison_id})
    assert sent.status_code == 201, sent.text
    assert sent.headers["location"] == "/v1/baselines/nightly"
    return comparison_id


def test_a_baseline_is_banked_used_shown_and_dropped(working: Service) -> None:
    client, bench = working.client, working.bench
    assert client.get("/v1/baselines").json() == {"entries": [], "next_cursor": None}
    for language, text in (("en", "No baseline is banked"), ("ko", "아직 뱅크가 없습니다")):
        assert text in client.get(f"/baselines?lang={language}").text
    comparison_id = banked(working)
    shown = client.get("/v1/baselines/nightly").json()
    assert (shown["comparison_id"], shown["n_runs"], shown["noise"]["n_texts"]) == (comparison_id, 2, 10)
    assert client.get("/v1/baselines").json()["entries"] == [shown]
    page = client.get("/baselines?lang=en").text
    assert f'href="/comparisons/{comparison_id}"' in page
    assert "0 of 10" in page
    n_before = len(bench.baseline.bodies)
    again = working.finished(bank="nightly", bank_sample=4)
    assert len(bench.baseline.bodies) == n_before + 4
    caveats = client.get(f"/v1/comparisons/{again}/metrics").json()["caveats"]
    assert any("come from bank nightly" in one["text"] for one in caveats)
    check_problem(client.delete(f"/v1/comparisons/{comparison_id}"), 409, "comparison-banked")
    assert client.delete("/v1/baselines/nightly").status_code == 204
    assert client.delete(f"/v1/comparisons/{comparison_id}").status_code == 204
    for method in ("GET", "DELETE"):
        check_problem(client.request(method, "/v1/baselines/nightly"), 404, "bank-not-found")
    actions = [one["action"] for one in client.get("/v1/audit").json()["entries"]]
    assert actions[:4] == ["comparison.delete", "baseline.drop", "comparison.create", "baseline.add"]


def test_what_cannot_be_banked_or_used_is_one_problem(working: Service) -> None:
    client, bare = working.client, working.finished()
    comparison_id = banked(working)
    taken = working.finished(bank="nightly", bank_sample=4)
    cases: list[tuple[dict[str, Any], int, str, str]] = [
        ({"name": "nightly", "comparison_id": comparison_id}, 409, "wrong-state", "name"),
        ({"name": "a b", "comparison_id": comparison_id}, 422, "invalid-value", "name"),
        ({"name": "x", "comparison_id": bare}, 422, "invalid-value", "comparison_id"),
        ({"name": "x", "comparison_id": taken}, 422, "invalid-value", "comparison_id"),
        ({"name": "x", "comparison_id": comparison_id[:-2]}, 404, "comparison-not-found", "comparison_id"),
        ({"name": "x"}, 422, "invalid-value", "comparison_id"),
    ]
    for body, status, code, field in cases:
        problem = check_problem(client.post("/v1/baselines", json=body), status, code)
        assert [one["field"] for one in problem["errors"]] == [field], body
    wrong: list[dict[str, Any]] = [{"bank": "weekly"}, {"bank": "nightly", "seed": 7}, {"bank": "nightly", "limit": 5}]
    for changes in wrong:
        problem = check_problem(client.post("/v1/comparisons", json=EXPERIMENT | changes), 422, "invalid-value")
        assert [one["field"] for one in problem["errors"]] == ["bank"]


@pytest.mark.parametrize(("scope", "may_change"), [(Scope.READ, False), (Scope.RUN, True)])
def test_reading_and_banking_need_their_scopes(working: Service, scope: Scope, may_change: bool) -> None:
    banked(working)
    headers = working.token(scope)
    assert working.client.get("/v1/baselines", headers=headers).status_code == 200
    dropped = working.client.delete("/v1/baselines/nightly", headers=headers)
    assert dropped.status_code == (204 if may_change else 403)

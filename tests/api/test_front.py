from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from qualab.errors import StoreError, StoreFull
from qualab.service.api.server import JsonLines
from tests.api.conftest import EXPERIMENT, Make, Service, check_problem

JSON = {"Content-Type": "application/json"}


MALFORMED = (
    *(b"{", b"", b"[]", b"null", b'{"a": NaN}', b'{"a": "\xff"}', b'{"a":' * 5_000),
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b'{"tasks":' + b"[" * 900 + b"]" * 900 + b"}",
)


def test_what_is_no_json_object_is_refused(idle: Service) -> None:
    def post(content: bytes, headers: dict[str, str]) -> Any:
        return idle.client.post("/v1/comparisons", content=content, headers=headers)

    for content in MALFORMED:
        check_problem(post(content, JSON), 400, "malformed-body")
    for kind in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/yaml"}):
        check_problem(post(b"{}", kind), 415, "unsupported-media-type")
    check_problem(post(b"{}", {"Content-Type": "application/json; charset=utf-8"}), 422, "invalid-value")


def test_unknown_routes_and_methods_are_problems(idle: Service) -> None:
    check_problem(idle.client.get("/v1/nothing"), 404, "no-such-route")
    check_problem(idle.client.get("/v1/comparisons/"), 404, "no-such-route")
    refused = idle.client.put("/v1/comparisons", json={})
    check_problem(refused, 405, "method-not-allowed")
    assert refused.headers["allow"] == "GET, HEAD, POST"
    assert idle.client.put("/v1/comparisons/x/cancel").headers["allow"] == "POST"


def test_head_is_get_without_a_body(working: Service) -> None:
    done = working.finished()
    for path in ("/healthz", "/readyz", "/", "/v1/comparisons", f"/v1/comparisons/{done}/verdict", "/v1/nothing"):
        got, head = working.client.get(path), working.client.head(path)
        assert head.status_code == got.status_code, path
        assert head.content == b""
        assert head.headers["content-length"] == got.headers["content-length"]
    etag = working.client.head(f"/v1/comparisons/{done}").headers["etag"]
    assert working.client.head(f"/v1/comparisons/{done}", headers={"If-None-Match": etag}).status_code == 304
    assert working.client.head(f"/v1/comparisons/{done}/cancel").status_code == 405
    stream = working.client.head(f"/v1/comparisons/{done}/events")  # does not wait for its end
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert working.app.state.qualab.events.n_clients == 0


def test_a_body_that_is_too_large_is_refused_before_it_is_read(make: Make) -> None:
    service = make(max_body_bytes=1_000)
    check_problem(service.client.post("/v1/comparisons", json={"label": "x" * 1_000}), 413, "request-too-large")

    def chunks() -> Iterator[bytes]:
        for _ in range(10):
            yield b" " * 200

    streamed = service.client.post("/v1/comparisons", content=chunks(), headers=JSON)
    check_problem(streamed, 413, "request-too-large")
    assert service.client.post("/v1/comparisons", json=EXPERIMENT).status_code == 202


def test_a_request_keeps_its_id_which_leads_from_the_record_to_the_log(idle: Service) -> None:
    sent = idle.client.post("/v1/comparisons", json=EXPERIMENT, headers={"X-Request-Id": "build-17"})
    assert sent.headers["x-request-id"] == "build-17"
    assert idle.client.get("/v1/audit").json()["entries"][0]["details"]["request_id"] == "build-17"
    odd = idle.client.get("/healthz", headers={"X-Request-Id": "a b\tc"}).headers["x-request-id"]
    assert odd not in ("a b\tc", "")


def away(service: Service, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    for name in ("page", "summary", "summaries", "counts", "audit"):
        monkeypatch.setattr(service.store, name, fails)
    monkeypatch.setattr(service.bench.store, "submit", fails)


def test_a_database_that_is_away_is_asked_again_later(idle: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        away(idle, patched, StoreError("cannot open the database at postgresql://me@db/q: refused", hint="check --db"))
        for method, path in [("GET", "/v1/comparisons"), ("GET", "/v1/comparisons/x/verdict"), ("GET", "/v1/audit")]:
            answer = idle.client.request(method, path)
            found = check_problem(answer, 503, "store")
            assert int(answer.headers["retry-after"]) >= 1
            assert "postgresql" not in answer.text
            assert found["detail"] == "The database cannot be used now"
        check_problem(idle.client.post("/v1/comparisons", json=EXPERIMENT), 503, "store")
        assert idle.client.get("/readyz").json()["database"] == "away"
        assert "qualab_database_up 0.0" in idle.client.get("/metrics").text
    assert idle.client.get("/v1/comparisons").status_code == 200


def test_what_nobody_expected_gives_an_id_that_leads_to_the_log(
    idle: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away(idle, monkeypatch, StoreFull("no room is left"))
    check_problem(idle.client.get("/v1/comparisons"), 507, "store-full")
    away(idle, monkeypatch, RuntimeError("secret inner workings"))
    found = check_problem(idle.client.get("/v1/comparisons"), 500, "internal")
    assert "inner workings" not in str(found)
    assert found["request_id"] in caplog.text
    assert "secret inner workings" in caplog.text


def test_readiness_says_what_is_missing(make: Make) -> None:
    service = make()
    ready = {"status": "ready", "database": "ok", "schema": "ok", "workers": 1, "reasons": []}
    assert service.client.get("/readyz").json() == ready
    behind = make(schema=lambda: ("0006", "0007")).client.get("/readyz")
    assert (behind.status_code, behind.json()["schema"]) == (503, "other")
    assert "qualab db upgrade" in behind.json()["reasons"][0]
    assert int(behind.headers["retry-after"]) > 0
    service.bench.store.drop_worker("here:1:a")
    assert "no worker" in service.client.get("/readyz").json()["reasons"][0]


def test_metrics_count_requests_and_what_waits(idle: Service) -> None:
    for _ in range(3):
        idle.create()
    idle.client.get("/v1/comparisons/nothing")
    idle.client.get("/v1/never-heard-of/17")
    text = idle.client.get("/metrics").text
    for line in (
        'http_requests_total{method="POST",route="/v1/comparisons",status="202"} 3.0',
        'http_requests_total{method="GET",route="/v1/comparisons/{comparison_id}",status="404"} 1.0',
        'http_requests_total{method="GET",route="(none)",status="404"} 1.0',
        'http_request_seconds_count{route="/v1/comparisons"} 3.0',
        *('comparisons{status="queued"} 3.0', 'comparisons{status="finished"} 0.0'),
        *("queue_length 3.0", "workers 1.0", "database_up 1.0"),
    ):
        assert f"\nqualab_{line}\n" in text


def test_requests_are_logged_as_json_without_what_they_hold(idle: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "qualab.access")
    idle.client.get("/v1/comparisons?label=private", headers={"X-Request-Id": "r1", "Authorization": "Bearer hush"})
    (record,) = [one for one in caplog.records if one.name == "qualab.access"]
    said = orjson.loads(JsonLines().format(record))
    assert (said["request_id"], said["method"], said["path"], said["status"]) == ("r1", "GET", "/v1/comparisons", 401)
    assert said["duration_ms"] >= 0
    assert "private" not in str(said)
    assert "hush" not in str(said)

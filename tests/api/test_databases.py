"""The service on real databases: the same session on SQLite and PostgreSQL, and one that goes away and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.api.conftest import EXPERIMENT, Service, at_work, check_problem, make_bench, make_service
from tests.fresh_store import opened
from tests.store import postgresql


@contextmanager
def service_at(url: str) -> Iterator[Service]:
    bench = make_bench()
    with opened(url) as store:
        bench.store = store
        service = make_service(bench=bench)
        with service.client:
            yield service


@pytest.fixture
def stored(url: str) -> Iterator[Service]:
    with service_at(url) as service, at_work(service.context):
        yield service


def test_a_session_is_the_same_on_every_database(stored: Service) -> None:
    service = stored
    one = service.finished(label="a")
    two = service.create(label="b é 한")
    service.done(two)
    page = service.client.get("/v1/comparisons?limit=1").json()
    rest = service.client.get(f"/v1/comparisons?limit=5&cursor={page['next_cursor']}").json()
    assert {entry["id"] for entry in page["entries"] + rest["entries"]} == {one, two}
    items = service.client.get(f"/v1/comparisons/{one}/items?limit=4").json()
    assert [entry["position"] for entry in items["entries"]] == [0, 1, 2, 3]
    for path in ("/metrics", "/acceptance", "/plan", "/preflight", "/items/3", "/analyses"):
        assert service.client.get(f"/v1/comparisons/{one}{path}").status_code == 200, path
    made = service.client.post(f"/v1/comparisons/{one}/analyses", json={"margin": 0.5})
    assert made.status_code == 201, made.text
    assert service.client.get(made.headers["location"]).json()["verdict"] == "INVALID"
    assert 'qualab_comparisons{status="finished"} 2.0' in service.client.get("/metrics").text
    assert service.client.delete(f"/v1/comparisons/{two}").status_code == 204
    actions = [entry["action"] for entry in service.client.get("/v1/audit").json()["entries"]]
    assert actions == ["comparison.delete", "analysis.create", "comparison.create", "comparison.create"]


ODD: list[Any] = ["\x00", "?", "x" * 5_000, "'; --", "%", "\U0001f600", -1, 2**31, 2**63, 2**200, 1e308]


def test_no_value_is_an_error_of_the_database(stored: Service) -> None:
    service = stored
    comparison_id = service.finished()
    for odd in ODD:
        for name in ("label", "model", "status", "since", "cursor", "limit"):
            assert service.client.get("/v1/comparisons", params={name: odd}).status_code < 500, (name, odd)
        for name in ("task", "min_length", "max_length", "cursor", "limit"):
            path = f"/v1/comparisons/{comparison_id}/items"
            assert service.client.get(path, params={name: odd}).status_code < 500, (name, odd)
        for path in (f"/v1/comparisons/{comparison_id}/items/{odd}", f"/v1/comparisons/{comparison_id}/analyses/{odd}"):
            assert service.client.get(path.replace("\x00", "%00")).status_code < 500


def test_a_database_that_goes_away_and_comes_back(server: str, postgresql_url: str) -> None:
    with service_at(postgresql_url) as service:
        comparison_id = service.create()
        with postgresql.stopped(server):
            for _ in range(3):
                gone = service.client.get(f"/v1/comparisons/{comparison_id}")
                check_problem(gone, 503, "store-unavailable")
                assert gone.headers["retry-after"]
                assert server not in gone.text
            assert service.client.post("/v1/comparisons", json=EXPERIMENT).status_code == 503
            assert service.client.get("/readyz").status_code == 503
            assert service.client.get("/healthz").status_code == 200
        assert service.client.get(f"/v1/comparisons/{comparison_id}").json()["status"] == "queued"
        assert service.client.post("/v1/comparisons", json=EXPERIMENT).status_code == 202
        assert service.client.get("/readyz").status_code == 200

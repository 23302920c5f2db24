"""The service on fakes: no lm-eval, no network, a new SQLite store; and the same app on a real socket."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from qualab.model.registry import Heartbeat, Scope
from qualab.service.access import Actor, create_token
from qualab.service.api.app import create_app
from qualab.service.api.server import Server
from qualab.service.context import Context, context_of
from qualab.service.settings import ServiceSettings
from qualab.service.worker import Worker
from qualab.store import Store
from tests.app.fakes import Bench, FakeEndpoint, FakeHarness, FakeTasks
from tests.waiting import wait_for

OFF, ON = "http://127.0.0.1:8001/v1", "http://127.0.0.1:8002/v1"
EXPERIMENT = {"baseline": OFF, "candidate": ON, "model": "m", "tasks": "sums", "max_attempts": 1}
EXPERIMENT |= {"accept_underpowered": True}
BASE_URL = "http://127.0.0.1:8080"


@contextmanager
def at_work(context: Context) -> Iterator[Worker]:
    worker = Worker(context)
    worker.begin()
    try:
        yield worker
    finally:
        worker.close()


@dataclass
class Service:
    bench: Bench
    context: Context
    app: FastAPI
    client: TestClient

    @property
    def store(self) -> Store:
        return self.bench.store

    def token(self, scope: Scope = Scope.ADMIN, *, name: str = "ci", **changes: Any) -> dict[str, str]:
        by = Actor(who="me@here", at=self.bench.clock.now())
        _, text = create_token(self.store, name=name, scope=scope, lifetime=None, by=by, **changes)
        return {"Authorization": f"Bearer {text}"}

    def create(self, **changes: Any) -> str:
        sent = self.client.post("/v1/comparisons", json=EXPERIMENT | changes)
        assert sent.status_code == 202, sent.text
        return str(sent.json()["id"])

    def done(self, comparison_id: str) -> dict[str, Any]:
        def ended() -> Any:
            verdict = self.client.get(f"/v1/comparisons/{comparison_id}/verdict").json()
            return verdict["has_ended"] and verdict

        return dict(wait_for(ended, within_s=10.0))

    def finished(self, **changes: Any) -> str:
        comparison_id = self.create(**changes)
        assert self.done(comparison_id)["status"] == "finished"
        store, clock = self.bench.store, self.bench.services.clock
        wait_for(lambda: not store.runners([comparison_id], now=clock.now(), stale_after_s=30.0))  # its worker lets go
        return comparison_id


def make_bench(n_items: int = 10) -> Bench:
    return Bench(
        baseline=FakeEndpoint(OFF),
        candidate=FakeEndpoint(ON, drafts=True),
        harness=FakeHarness(FakeTasks(n_items=n_items)),
        heartbeat=Heartbeat(every_s=0.04, stale_after_s=30.0),
    )


def make_service(
    *, bench: Bench | None = None, client: str = "127.0.0.1", schema: Any = lambda: ("1", "1"), **settings: Any
) -> Service:
    """The client is not entered: `with service.client` runs the app's lifespan."""
    bench = bench or make_bench()
    own = ServiceSettings(**{"poll_s": 0.01, "queue_poll_s": 0.01, "rate": 0, **settings})
    # the endpoints are fakes: the list is asked, but nothing is looked up to be called
    context = replace(context_of(bench.services, own), services=bench.services)
    bench.store.see_worker(bench.runner, now=bench.clock.now())
    app = create_app(context, schema=schema)
    test_client = TestClient(app, base_url=BASE_URL, client=(client, 50_000))
    return Service(bench, context, app, test_client)


def check_problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert set(found) == {"type", "title", "status", "code", "detail", "hint", "errors", "request_id"}
    assert (found["status"], found["code"], found["type"]) == (status, code, f"urn:qualab:problem:{code}")
    assert found["detail"]
    assert found["hint"]
    assert bool(found["errors"]) is (400 <= status < 500)
    assert all(one["field"] and one["allowed"] for one in found["errors"])
    assert found["request_id"] == answer.headers["x-request-id"]
    return found


Make = Callable[..., Service]


@pytest.fixture
def make() -> Iterator[Make]:
    """Services whose apps run."""
    with ExitStack() as stack:

        def entered(**changes: Any) -> Service:
            service = make_service(**changes)
            stack.enter_context(service.client)
            return service

        yield entered


@pytest.fixture
def idle(make: Make) -> Service:
    return make()


@pytest.fixture
def working(idle: Service) -> Iterator[Service]:
    with at_work(idle.context):
        yield idle


@contextmanager
def on_a_socket(service: Service) -> Iterator[str]:
    addresses: queue.Queue[str] = queue.Queue()
    server = Server(service.app, started=addresses.put)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield addresses.get(timeout=10.0)
    finally:
        server.should_exit = True
        thread.join(15.0)
        assert not thread.is_alive()

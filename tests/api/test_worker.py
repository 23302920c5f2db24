"""What a worker does with comparisons, on fakes and a SQLite file: no process, no network."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from qualab.errors import PairDiffers, StoreError, StoreFull
from qualab.model.names import ArmName, ComparisonStatus
from qualab.service.worker import Worker, carry_out
from tests.api.conftest import Make, Service, at_work, make_bench
from tests.store.samples import put
from tests.waiting import wait_for

ME, OTHER = "here:1:a", "elsewhere:2:b"
QUEUED, RUNNING, FINISHED = ComparisonStatus.QUEUED, ComparisonStatus.RUNNING, ComparisonStatus.FINISHED


def status(service: Service, comparison_id: str) -> ComparisonStatus:
    return service.store.summary(comparison_id).status


@pytest.fixture
def slow(make: Make) -> Service:
    bench = make_bench()
    bench.baseline.delay_s = bench.candidate.delay_s = 0.05
    return make(bench=bench)


def take(service: Service, runner: str) -> str | None:
    return service.bench.store.take(runner=runner, now=service.bench.clock.now(), stale_after_s=30.0)


def test_what_is_asked_for_is_run_once_and_was_created_when_it_was_asked_for(idle: Service) -> None:
    comparison_id, asked_at = idle.create(), idle.bench.clock.now()
    idle.bench.clock.instant += timedelta(seconds=60)
    worker = Worker(idle.context)
    assert [worker.work(), worker.work()] == [True, False]
    summary = idle.store.summary(comparison_id)
    assert (summary.status, summary.created_at) == (FINISHED, asked_at)
    assert summary.started_at == asked_at + timedelta(seconds=60)
    assert len(idle.bench.baseline.bodies) == 10
    now = idle.bench.clock.now()
    assert idle.bench.store.runners([comparison_id], now=now, stale_after_s=30.0) == {}
    put(idle.bench.store, comparison_id, runner=ME, claimed_at=now, heartbeat_at=now)
    asyncio.run(carry_out(idle.context, comparison_id))
    assert (status(idle, comparison_id), len(idle.bench.baseline.bodies)) == (FINISHED, 10)


def test_what_is_not_this_workers_is_left_alone(idle: Service) -> None:
    for change in ({}, {"status": ComparisonStatus.CANCELLED, "runner": ME}, {"status": RUNNING, "runner": OTHER}):
        comparison_id, now = idle.create(), idle.bench.clock.now()
        put(idle.bench.store, comparison_id, **({"claimed_at": now, "heartbeat_at": now} if change else {}), **change)
        before = idle.store.summary(comparison_id)
        asyncio.run(carry_out(idle.context, comparison_id))
        assert idle.store.summary(comparison_id) == before
    asyncio.run(carry_out(idle.context, "nothing"))
    assert idle.bench.baseline.bodies == []


def test_a_run_that_is_cancelled_ends_soon_and_goes_on_where_it_was(slow: Service) -> None:
    comparison_id, store = slow.create(concurrency=1), slow.bench.store
    with at_work(slow.context):
        wait_for(lambda: len(slow.bench.candidate.bodies) >= 3)
        slow.client.post(f"/v1/comparisons/{comparison_id}/cancel")
        now = slow.bench.clock.now()
        wait_for(lambda: not store.runners([comparison_id], now=now, stale_after_s=30.0), within_s=3.0)
        assert status(slow, comparison_id) is ComparisonStatus.CANCELLED
        stored, asked = store.n_answered(comparison_id)[ArmName.CANDIDATE], len(slow.bench.candidate.bodies)
        assert 0 < stored < 10
        slow.client.post(f"/v1/comparisons/{comparison_id}/resume")
        slow.done(comparison_id)
    assert status(slow, comparison_id) is FINISHED
    assert len(slow.bench.candidate.bodies) - asked == 10 - stored


def test_a_worker_that_is_asked_to_end_gives_back_what_it_runs(slow: Service) -> None:
    comparison_id, store = slow.create(concurrency=1), slow.bench.store
    with at_work(slow.context):
        wait_for(lambda: len(slow.bench.candidate.bodies) >= 3)
        assert slow.context.workers() == 1
    assert (status(slow, comparison_id), slow.context.workers()) == (QUEUED, 0)
    stored, asked = store.n_answered(comparison_id)[ArmName.CANDIDATE], len(slow.bench.candidate.bodies)
    assert 0 < stored < 10
    Worker(slow.context).work()
    assert status(slow, comparison_id) is FINISHED
    assert len(slow.bench.candidate.bodies) == asked + 10 - stored


def test_a_worker_that_ends_as_it_takes_one_gives_it_back(idle: Service) -> None:
    comparison_id, worker = idle.create(), Worker(idle.context)
    worker.close()
    assert worker.work()
    assert (status(idle, comparison_id), idle.bench.baseline.bodies) == (QUEUED, [])


def test_a_worker_whose_comparison_was_taken_over_changes_nothing(slow: Service) -> None:
    comparison_id, worker = slow.create(concurrency=1), Worker(slow.context)
    thread = threading.Thread(target=worker.work)
    thread.start()
    wait_for(lambda: len(slow.bench.candidate.bodies) >= 3)
    late = slow.bench.clock.now() + timedelta(seconds=31)
    assert slow.bench.store.take(runner=OTHER, now=late, stale_after_s=30.0) == comparison_id
    taken = slow.store.summary(comparison_id)
    worker.check()
    thread.join(10.0)
    assert not thread.is_alive()
    assert slow.store.summary(comparison_id) == taken
    slow.bench.store.heartbeat(comparison_id, runner=OTHER, now=late)


def test_what_kept_it_from_running_is_stored(idle: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Exception] = [PairDiffers("the arms differ", hint="serve the same model"), RuntimeError("inside")]

    async def fails(*_: object, **__: object) -> None:
        raise raised.pop(0)

    monkeypatch.setattr("qualab.service.worker.start", fails)
    errors = []
    for _ in range(2):
        comparison_id = idle.create()
        Worker(idle.context).work()
        assert status(idle, comparison_id) is ComparisonStatus.FAILED
        errors.append(idle.client.get(f"/v1/comparisons/{comparison_id}/verdict").json()["error"])
    differs = {"code": "pair-differs", "message": "the arms differ", "hint": "serve the same model"}
    assert errors[0] == differs
    assert "inside" in errors[1]["message"]
    unreadable = idle.create()
    put(idle.bench.store, unreadable, request={"model": 5})
    Worker(idle.context).work()
    assert status(idle, unreadable) is ComparisonStatus.FAILED


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qualab.service.worker.FIRST_PAUSE_S", 0.0)


def failing(n_failures: int, job: Callable[..., Any], error: StoreError) -> Callable[..., Any]:
    left = [error] * n_failures

    def call(*given: Any, **more: Any) -> Any:
        if left:
            raise left.pop()
        return job(*given, **more)

    return call


@pytest.mark.parametrize("method", ["hold", "request", "create", "claim", "add_answers", "put_analysis"])
def test_a_database_that_goes_away_is_waited_for(idle: Service, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    store = idle.bench.store
    comparison_id = idle.create()
    monkeypatch.setattr(store, method, failing(3, getattr(store, method), StoreError("away")))
    Worker(idle.context).work()
    assert status(idle, comparison_id) is FINISHED
    assert store.n_answered(comparison_id) == {ArmName.BASELINE: 10, ArmName.CANDIDATE: 10}


def test_a_full_database_is_not_waited_for(idle: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle.bench.store, "add_answers", failing(9, lambda: 0, StoreFull("no room is left")))
    comparison_id = idle.create()
    Worker(idle.context).work()
    summary = idle.store.summary(comparison_id)
    assert (summary.status, summary.error["code"]) == (ComparisonStatus.FAILED, "store-full")


def test_a_worker_survives_a_database_that_is_away(idle: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    store = idle.bench.store
    with at_work(idle.context):
        for method in ("take", "see_worker", "hold"):
            monkeypatch.setattr(store, method, failing(3, getattr(store, method), StoreError("away")))
        assert idle.done(idle.create())["status"] == "finished"


@pytest.mark.parametrize("change", [{"exclusive": True}, {"speed": {"works": ["copy"]}}])
def test_who_measures_speed_has_its_hosts_alone(idle: Service, change: dict[str, Any]) -> None:
    first = idle.create(**change)
    idle.create(baseline="http://127.0.0.1:9001/v1", candidate="http://127.0.0.1:9002/v1")
    assert [take(idle, ME), take(idle, OTHER)] == [first, None]


def test_after_the_database_was_away_nobody_is_given_up_at_once(idle: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison_id, clock, worker = idle.create(), idle.bench.clock, Worker(idle.context)
    assert take(idle, OTHER) == comparison_id
    clock.instant += timedelta(seconds=60)
    worker._beat()
    assert not worker.work()
    elapsed_s = clock.monotonic_s() + 31.0
    monkeypatch.setattr(clock, "monotonic_s", lambda: elapsed_s)
    assert worker.work()
    assert status(idle, comparison_id) is FINISHED


def test_a_worker_sets_its_clock_before_it_sends_a_heartbeat(idle: Service) -> None:
    def set_clock() -> None:
        assert idle.context.workers() == 0
        idle.bench.clock.instant += timedelta(hours=1)

    idle.bench.store.drop_worker(ME)
    worker = Worker(idle.context, set_clock=set_clock)
    worker._beat()
    assert idle.context.workers() == 1

"""What a worker does with deliveries, on fakes: no process, no database."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from qualab.errors import PairDiffers, StoreError, StoreFull
from qualab.model.names import ArmName, ComparisonStatus
from qualab.model.ports import ComparisonFilter, Delivery
from qualab.model.registry import Pulse, SubmissionStatus
from qualab.service import context as hosts
from qualab.service.context import Context
from qualab.service.jobs import QueuedJobs
from qualab.service.worker import Worker, sweep
from tests.api.conftest import Service, make_bench, make_service
from tests.app.fakes import Bench
from tests.store.samples import make_answer, make_comparison, make_items

ME, OTHER = "here:1:a", "elsewhere:2:b"
QUEUED, DONE = SubmissionStatus.QUEUED, SubmissionStatus.DONE


@dataclass
class MemoryQueue:
    """Remembers what was put into it, and what of that somebody has."""

    put_in: list[Delivery] = field(default_factory=list)
    taken: list[Delivery] = field(default_factory=list)

    def put(self, delivery: Delivery, *, delay_s: float = 0.0) -> None:
        known = [replace(one, retry_failed=delivery.retry_failed, worker="") for one in (*self.put_in, *self.taken)]
        if delivery not in known:
            self.put_in.append(delivery)

    def held(self) -> list[Delivery]:
        return [*self.put_in, *self.taken]

    def drop(self, delivery: Delivery) -> None:
        self.taken.remove(delivery)

    def forget_ended(self) -> None:
        """Nothing is remembered of it."""

    def take(self, worker: str = ME) -> Delivery:
        delivery = replace(self.put_in.pop(0), worker=worker)
        self.taken.append(delivery)
        return delivery


@dataclass
class Shop:
    """A service with a queue, and a worker that a test drives."""

    service: Service
    queue: MemoryQueue
    context: Context
    worker: Worker

    @property
    def bench(self) -> Bench:
        return self.service.bench

    def status(self, comparison_id: str) -> SubmissionStatus:
        found = self.service.registry.submission(comparison_id)
        assert found is not None
        return found.status

    def error(self, comparison_id: str) -> dict[str, str]:
        found = self.service.registry.submission(comparison_id)
        assert found is not None
        return found.error

    def deliver(self, delivery: Delivery, worker: Worker | None = None) -> None:
        (worker or self.worker).deliver(delivery)
        self.queue.drop(delivery)

    def work(self) -> None:
        """Everything that waits now."""
        for _ in range(len(self.queue.put_in)):
            self.deliver(self.queue.take())

    @contextmanager
    def working(self, *, n_asked: int = 3) -> Iterator[threading.Thread]:
        """One delivery in a thread, once something was asked."""
        thread = threading.Thread(target=self.deliver, args=(self.queue.take(),))
        thread.start()
        ends_at = time.monotonic() + 10.0
        while len(self.bench.candidate.bodies) < n_asked and time.monotonic() < ends_at:
            time.sleep(0.005)
        yield thread
        thread.join(10.0)
        assert not thread.is_alive()


def make_shop(*, slow_s: float = 0.0, **settings: Any) -> Shop:
    bench = make_bench()
    bench.baseline.delay_s = bench.candidate.delay_s = slow_s
    bench.pulse = Pulse(every_s=0.02, stale_after_s=30.0)
    service = make_service(bench=bench, **settings)
    queue = MemoryQueue()
    jobs = QueuedJobs(service.registry, queue, bench.clock, bench.pulse)
    context = service.app.state.qualab.context
    object.__setattr__(context, "jobs", jobs)
    object.__setattr__(service.context, "jobs", jobs)
    return Shop(service, queue, service.context, Worker(service.context, queue, sweep_s=0.0, host_wait_s=0.0))


@pytest.fixture
def shop() -> Iterator[Shop]:
    made = make_shop()
    with made.service.client:
        yield made


@pytest.fixture
def slow_shop() -> Iterator[Shop]:
    made = make_shop(slow_s=0.05)
    with made.service.client:
        yield made
    made.worker.close()


def test_what_was_asked_for_is_run_once(shop: Shop) -> None:
    comparison_id = shop.service.create()
    delivery = shop.queue.take()
    shop.deliver(delivery)
    assert shop.status(comparison_id) is SubmissionStatus.DONE
    shop.worker.deliver(delivery)
    assert len(shop.bench.baseline.bodies) == 10
    assert shop.queue.put_in == []


def test_an_old_delivery_of_what_has_changed_since_is_nothing(shop: Shop) -> None:
    comparison_id = shop.service.create()
    old = shop.queue.take()
    shop.service.client.post(f"/v1/comparisons/{comparison_id}/cancel")
    shop.service.client.post(f"/v1/comparisons/{comparison_id}/resume")
    shop.deliver(old)
    assert (shop.status(comparison_id), shop.bench.baseline.bodies) == (SubmissionStatus.QUEUED, [])
    shop.work()
    assert shop.status(comparison_id) is SubmissionStatus.DONE


def test_a_worker_runs_one_at_a_time(slow_shop: Shop) -> None:
    shop = slow_shop
    first, second = shop.service.create(concurrency=1), shop.service.create(concurrency=1)
    with shop.working():
        shop.work()
        assert shop.status(second) is SubmissionStatus.QUEUED
        assert [(one.comparison_id, one.turn) for one in shop.queue.put_in] == [(second, 1)]
    shop.work()
    assert {shop.status(first), shop.status(second)} == {SubmissionStatus.DONE}


def test_the_queue_may_be_away_when_something_is_asked_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreError("away")

    with monkeypatch.context() as patched:
        patched.setattr(shop.queue, "put", away)
        comparison_id = shop.service.create()
    assert shop.queue.put_in == []
    assert sweep(shop.context, shop.queue, living=[ME]) == 1
    shop.work()
    assert shop.status(comparison_id) is SubmissionStatus.DONE


def test_a_run_that_is_cancelled_ends_soon_and_can_be_taken_up_again(slow_shop: Shop) -> None:
    shop = slow_shop
    comparison_id = shop.service.create(concurrency=1)
    shop.worker.begin()
    shop.worker.watch()
    with shop.working():
        shop.service.client.post(f"/v1/comparisons/{comparison_id}/cancel")
    assert shop.status(comparison_id) is SubmissionStatus.CANCELLED
    assert shop.bench.store.get(comparison_id).status is ComparisonStatus.INTERRUPTED
    stored = shop.bench.store.n_answered(comparison_id)[ArmName.CANDIDATE]
    asked = len(shop.bench.candidate.bodies)
    assert 0 < stored < 10
    assert shop.queue.put_in == []
    shop.service.client.post(f"/v1/comparisons/{comparison_id}/resume")
    shop.work()
    assert shop.status(comparison_id) is SubmissionStatus.DONE
    assert len(shop.bench.candidate.bodies) - asked == 10 - stored


def test_a_worker_that_is_asked_to_end_gives_back_what_it_runs(slow_shop: Shop) -> None:
    shop = slow_shop
    comparison_id = shop.service.create(concurrency=1)
    shop.worker.begin()
    with shop.working():
        shop.worker.close()
    assert shop.status(comparison_id) is SubmissionStatus.QUEUED
    assert shop.bench.store.get(comparison_id).status is ComparisonStatus.INTERRUPTED
    assert [one.comparison_id for one in shop.queue.put_in] == [comparison_id]
    shop.worker.leave()
    assert shop.context.jobs.workers() == 0
    asked = len(shop.bench.candidate.bodies)
    shop.work()
    assert len(shop.bench.candidate.bodies) == asked, "it takes nothing any more"
    other = Worker(shop.context, shop.queue, sweep_s=0.0, host_wait_s=0.0)
    sweep(shop.context, shop.queue, living=[])
    shop.deliver(shop.queue.take(), other)
    assert shop.status(comparison_id) is SubmissionStatus.DONE


def test_a_worker_whose_comparison_was_taken_over_changes_nothing(slow_shop: Shop) -> None:
    shop = slow_shop
    comparison_id = shop.service.create(concurrency=1)
    shop.worker.begin()
    shop.worker.watch()
    store, now = shop.bench.store, shop.bench.clock.now()
    shop.service.registry.see_worker(OTHER, now=now)
    with shop.working():
        shop.queue.taken.append(Delivery(comparison_id=comparison_id, version=3, worker=OTHER))
        shop.service.registry.set_submission(comparison_id, SubmissionStatus.QUEUED)
        taken = shop.service.registry.set_submission(comparison_id, SubmissionStatus.RUNNING)
        late = now + timedelta(seconds=31)
        store.claim(comparison_id, runner=OTHER, now=late, stale_after_s=30.0)
    assert shop.service.registry.submission(comparison_id) == taken
    assert store.get(comparison_id).status is ComparisonStatus.RUNNING
    store.heartbeat(comparison_id, runner=OTHER, now=late)
    assert shop.queue.put_in == []


def test_a_worker_waits_for_a_claim_to_grow_stale(shop: Shop) -> None:
    comparison_id = shop.service.create()
    shop.work()
    store, clock = shop.bench.store, shop.bench.clock
    store.set_status(comparison_id, ComparisonStatus.INTERRUPTED, now=clock.now())
    store.claim(comparison_id, runner=OTHER, now=clock.now(), stale_after_s=30.0)
    shop.service.registry.set_submission(comparison_id, SubmissionStatus.QUEUED)
    shop.context.jobs.enqueue(comparison_id)
    with shop.working(n_asked=0):
        time.sleep(0.1)
        assert store.get(comparison_id).status is ComparisonStatus.INTERRUPTED
        clock.instant += timedelta(seconds=31)
    assert shop.status(comparison_id) is SubmissionStatus.DONE


def test_what_kept_it_from_running_is_stored(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def differs(*_: object, **__: object) -> None:
        raise PairDiffers("the arms differ", hint="serve the same model")

    monkeypatch.setattr("qualab.service.worker.start", differs)
    comparison_id = shop.service.create()
    shop.work()
    assert shop.status(comparison_id) is SubmissionStatus.FAILED
    assert shop.error(comparison_id) == {
        "code": "pair-differs",
        "message": "the arms differ",
        "hint": "serve the same model",
    }


def test_a_bug_is_a_failure_and_not_tried_for_ever(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("qualab.service.worker.start", broken)
    comparison_id = shop.service.create()
    shop.work()
    assert shop.status(comparison_id) is SubmissionStatus.FAILED
    assert (shop.error(comparison_id)["code"], shop.queue.put_in) == ("error", [])


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qualab.service.worker.FIRST_PAUSE_S", 0.01)


@pytest.mark.usefixtures("no_pauses")
def test_a_database_that_goes_away_is_waited_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    add, failures = shop.bench.store.add_answers, [StoreError("away")] * 3

    def now_and_then(*arguments: Any) -> int:
        if failures and len(shop.bench.candidate.bodies) > 3:
            raise failures.pop()
        return int(add(*arguments))

    monkeypatch.setattr(shop.bench.store, "add_answers", now_and_then)
    comparison_id = shop.service.create(concurrency=1)
    shop.work()
    assert (failures, shop.status(comparison_id)) == ([], SubmissionStatus.DONE)
    assert shop.bench.store.n_answered(comparison_id) == {ArmName.BASELINE: 10, ArmName.CANDIDATE: 10}


@pytest.mark.usefixtures("no_pauses")
def test_a_full_database_is_not_waited_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise StoreFull("no room is left")

    monkeypatch.setattr(shop.bench.store, "add_answers", full)
    comparison_id = shop.service.create()
    shop.work()
    assert (shop.status(comparison_id), shop.error(comparison_id)["code"]) == (SubmissionStatus.FAILED, "store-full")


def lease(shop: Shop, comparison_id: str, host: str = "localhost", *, slots: int = 1, exclusive: bool = False) -> bool:
    return shop.service.registry.lease_hosts(
        comparison_id,
        {host: slots},
        runner=OTHER,
        limit=64,
        is_exclusive=exclusive,
        now=shop.bench.clock.now(),
        stale_after_s=30.0,
    )


@pytest.mark.parametrize(("slots", "exclusive", "concurrency"), [(1, True, 1), (63, False, 1), (49, False, 8)])
def test_what_needs_a_host_that_is_taken_is_put_off(shop: Shop, slots: int, exclusive: bool, concurrency: int) -> None:
    assert lease(shop, "other", slots=slots, exclusive=exclusive)
    comparison_id = shop.service.create(concurrency=concurrency)
    version = shop.queue.put_in[0].version
    shop.work()
    assert (shop.status(comparison_id), shop.bench.baseline.bodies) == (SubmissionStatus.QUEUED, [])
    assert shop.queue.put_in == [Delivery(comparison_id=comparison_id, version=version, turn=1)]
    shop.service.registry.release_hosts("other", runner=OTHER)
    shop.work()
    assert shop.status(comparison_id) is SubmissionStatus.DONE
    assert lease(shop, "other", slots=64), "everything was given back"


def test_what_changes_at_the_last_moment_keeps_no_host(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def take_hosts(*arguments: Any) -> bool:
        took = hosts.take_hosts(*arguments)
        shop.service.registry.set_submission(comparison_id, SubmissionStatus.CANCELLED)
        return took

    monkeypatch.setattr("qualab.service.worker.take_hosts", take_hosts)
    comparison_id = shop.service.create()
    shop.work()
    assert shop.status(comparison_id) is SubmissionStatus.CANCELLED
    assert lease(shop, "other", slots=64)


def test_comparisons_share_a_host_up_to_its_limit(shop: Shop) -> None:
    assert lease(shop, "other", slots=62)
    comparison_id = shop.service.create(concurrency=1)
    shop.work()
    assert shop.status(comparison_id) is SubmissionStatus.DONE


def test_who_measures_speed_shares_with_nobody(shop: Shop) -> None:
    assert lease(shop, "other")
    comparison_id = shop.service.create(exclusive=True)
    shop.work()
    assert shop.status(comparison_id) is SubmissionStatus.QUEUED
    later = shop.service.create()
    (first, second) = shop.queue.put_in
    assert (first.comparison_id, second.comparison_id) == (comparison_id, later)
    shop.work()
    assert shop.status(later) is SubmissionStatus.QUEUED, "later ones would keep it waiting for ever"
    shop.service.registry.release_hosts("other", runner=OTHER)
    shop.work()
    shop.work()
    assert {shop.status(comparison_id), shop.status(later)} == {SubmissionStatus.DONE}


def test_smaller_ones_that_keep_coming_do_not_keep_a_wide_one_waiting(shop: Shop) -> None:
    wide = shop.service.create(concurrency=16)
    shop.bench.clock.instant += timedelta(minutes=9)
    soon = shop.service.create(concurrency=1)
    shop.bench.clock.instant += timedelta(minutes=1)
    late = shop.service.create(concurrency=1)
    assert lease(shop, "other", slots=40)
    shop.work()
    assert [shop.status(one) for one in (wide, soon, late)] == [QUEUED, DONE, QUEUED]
    shop.work()
    assert [shop.status(one) for one in (wide, late)] == [QUEUED, QUEUED]
    shop.service.registry.release_hosts("other", runner=OTHER)
    shop.work()
    shop.work()
    assert [shop.status(one) for one in (wide, late)] == [DONE, DONE]


def test_what_those_before_leave_over_is_taken() -> None:
    shop = make_shop(allowed_endpoints=("127.0.0.1", "10.0.0.1"))
    with shop.service.client:
        waits_elsewhere = shop.service.create(concurrency=16, candidate="http://10.0.0.1:8002/v1")
        assert lease(shop, "other", "10.0.0.1", slots=64)
        shop.bench.clock.instant += timedelta(minutes=20)
        assert lease(shop, "other", "10.0.0.1", slots=64)
        wide, small = shop.service.create(concurrency=25), shop.service.create(concurrency=24)
        shop.work()
        assert [shop.status(one) for one in (waits_elsewhere, wide, small)] == [QUEUED, QUEUED, DONE]


def test_who_waits_for_a_host_and_loses_its_worker_holds_nobody_up_for_ever(shop: Shop) -> None:
    wide = shop.service.create(concurrency=16)
    shop.queue.take(OTHER)
    shop.bench.clock.instant += timedelta(minutes=20)
    late = shop.service.create(concurrency=24)
    shop.work()
    assert [shop.status(one) for one in (wide, late)] == [QUEUED, QUEUED]
    assert sweep(shop.context, shop.queue, living=[ME]) == 1
    shop.work()
    shop.work()
    assert [shop.status(one) for one in (wide, late)] == [DONE, DONE]


def test_what_cannot_run_any_more_reserves_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = shop.service.create(concurrency=32)
    shop.bench.clock.instant += timedelta(minutes=20)
    late = shop.service.create(concurrency=1)
    read = shop.context.read_document

    def refuse(document: dict[str, Any]) -> Any:
        if document["concurrency"] == 32:
            raise StoreFull("not any more")
        return read(document)

    object.__setattr__(shop.context, "read_document", refuse)
    shop.queue.put_in.reverse()
    shop.deliver(shop.queue.take())
    assert [shop.status(one) for one in (broken, late)] == [QUEUED, DONE]


def test_more_requests_at_once_than_a_host_may_get_are_refused(shop: Shop) -> None:
    sent = shop.service.client.post(
        "/v1/comparisons",
        json={
            "baseline": "http://127.0.0.1:8001/v1",
            "candidate": "http://127.0.0.1:8002/v1",
            "model": "m",
            "concurrency": 33,
        },
    )
    assert (sent.status_code, sent.json()["errors"][0]["field"]) == (422, "concurrency")


def test_exclusive_is_true_or_false(shop: Shop) -> None:
    sent = shop.service.client.post("/v1/comparisons", json={"exclusive": "yes"})
    assert (sent.status_code, sent.json()["errors"][0]["field"]) == (422, "exclusive")


def test_a_run_that_lost_its_hosts_ends_and_waits(slow_shop: Shop) -> None:
    shop = slow_shop
    comparison_id = shop.service.create(concurrency=1)
    shop.worker.begin()
    shop.worker.watch()
    with shop.working():
        shop.service.registry.release_hosts(comparison_id, runner=ME)
    assert shop.status(comparison_id) is SubmissionStatus.QUEUED
    assert [one.comparison_id for one in shop.queue.put_in] == [comparison_id]


def taken_by_another(shop: Shop, comparison_id: str, status: SubmissionStatus) -> None:
    """A delivery that another worker has; the submission stands as it left it."""
    shop.queue.put_in = [replace(one, retry_failed=True) for one in shop.queue.put_in]
    shop.queue.take(OTHER)
    if status is not SubmissionStatus.QUEUED:
        shop.service.registry.set_submission(comparison_id, status)


@pytest.mark.parametrize("status", [SubmissionStatus.QUEUED, SubmissionStatus.RUNNING])
def test_what_a_dead_worker_had_is_queued_again_once(shop: Shop, status: SubmissionStatus) -> None:
    comparison_id = shop.service.create()
    taken_by_another(shop, comparison_id, status)
    assert sweep(shop.context, shop.queue, living=[ME, OTHER]) == 0
    assert sweep(shop.context, shop.queue, living=[ME]) == 1
    assert sweep(shop.context, shop.queue, living=[ME]) == 0
    (again,) = shop.queue.put_in
    assert again.retry_failed, "what it was asked for stands in the delivery alone"
    shop.work()
    assert shop.status(comparison_id) is SubmissionStatus.DONE
    assert sweep(shop.context, shop.queue, living=[ME]) == 0
    assert shop.queue.held() == [], "nothing of it is left"


def test_what_waits_is_left_alone(shop: Shop) -> None:
    shop.service.create()
    held = shop.queue.held()
    assert sweep(shop.context, shop.queue, living=[]) == 0
    assert shop.queue.held() == held


def test_of_two_that_sweep_at_once_one_finds_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison_id = shop.service.create()
    taken_by_another(shop, comparison_id, SubmissionStatus.RUNNING)
    held = shop.queue.held
    found: list[int] = []

    def other_comes_first() -> list[Delivery]:
        monkeypatch.setattr(shop.queue, "held", held)
        found.append(sweep(shop.context, shop.queue, living=[ME]))
        return held()

    monkeypatch.setattr(shop.queue, "held", other_comes_first)
    assert (sweep(shop.context, shop.queue, living=[ME]), found) == (0, [1])
    assert len(shop.queue.put_in) == 1


def test_after_the_database_was_away_nobody_is_given_up_at_once(shop: Shop) -> None:
    registry, clock = shop.service.registry, shop.bench.clock
    registry.see_worker(OTHER, now=clock.now())
    clock.instant += timedelta(seconds=60)
    comparison_id = shop.service.create()
    taken_by_another(shop, comparison_id, SubmissionStatus.RUNNING)
    shop.worker.begin()
    shop.worker._sweep()
    assert shop.queue.put_in == []
    shop.worker._heard_since_s = -31.0
    shop.worker._sweep()
    assert [one.comparison_id for one in shop.queue.put_in] == [comparison_id]


def lose_worker(shop: Shop, comparison_id: str, *, answers: int = 0) -> None:
    """Another worker takes what waits, stores some answers, and is lost."""
    shop.queue.take(OTHER)
    shop.service.registry.set_submission(comparison_id, SubmissionStatus.RUNNING)
    store = shop.bench.store
    is_stored = comparison_id in [comparison.id for comparison in store.list(ComparisonFilter())]
    done = store.answered(comparison_id) if is_stored else set()
    for position in range(len(done), len(done) + answers):
        store.add_answers(comparison_id, [make_answer(position)])
    sweep(shop.context, shop.queue, living=[ME])


def test_what_kills_one_worker_after_another_ends(shop: Shop) -> None:
    comparison_id = shop.service.create()
    for _ in range(3):
        lose_worker(shop, comparison_id)
        assert shop.status(comparison_id) is SubmissionStatus.QUEUED
    lose_worker(shop, comparison_id)
    assert shop.status(comparison_id) is SubmissionStatus.FAILED
    verdict = shop.service.client.get(f"/v1/comparisons/{comparison_id}/verdict").json()
    assert (verdict["has_ended"], verdict["error"]["code"]) == (True, "workers-lost")
    assert OTHER in verdict["error"]["message"]
    assert f"/v1/comparisons/{comparison_id}/resume" in verdict["error"]["hint"]
    assert shop.queue.put_in == []
    sweep(shop.context, shop.queue, living=[ME])
    assert shop.queue.held() == [], "nothing of it is left"


def test_what_was_given_up_is_counted_anew_when_it_is_taken_up_by_hand(shop: Shop) -> None:
    comparison_id = shop.service.create()
    for _ in range(4):
        lose_worker(shop, comparison_id)
    assert shop.service.client.post(f"/v1/comparisons/{comparison_id}/resume").status_code == 202
    for _ in range(3):
        lose_worker(shop, comparison_id)
        assert shop.status(comparison_id) is SubmissionStatus.QUEUED
    shop.work()
    assert shop.status(comparison_id) is SubmissionStatus.DONE


def test_a_run_that_comes_further_is_taken_over_without_end(shop: Shop) -> None:
    comparison_id = shop.service.create()
    shop.bench.store.create(make_comparison(comparison_id), make_items(10))
    for _ in range(9):
        lose_worker(shop, comparison_id, answers=1)
        assert shop.status(comparison_id) is SubmissionStatus.QUEUED


def test_what_never_reached_the_queue_has_lost_no_worker(shop: Shop) -> None:
    comparison_id = shop.service.create()
    for _ in range(9):
        shop.queue.put_in.clear()
        assert sweep(shop.context, shop.queue, living=[ME]) == 1
    assert shop.status(comparison_id) is SubmissionStatus.QUEUED


@pytest.mark.parametrize(
    ("status", "halted"),
    [
        (SubmissionStatus.CANCELLED, (ComparisonStatus.INTERRUPTED, "")),
        (SubmissionStatus.FAILED, (ComparisonStatus.STOPPED, "workers were lost")),
    ],
)
def test_what_a_dead_worker_left_does_not_look_as_if_it_ran(
    shop: Shop, status: SubmissionStatus, halted: tuple[ComparisonStatus, str]
) -> None:
    comparison_id = shop.service.create()
    store, clock = shop.bench.store, shop.bench.clock
    store.create(make_comparison(comparison_id), make_items(3))
    store.claim(comparison_id, runner=OTHER, now=clock.now(), stale_after_s=30.0)
    store.set_status(comparison_id, ComparisonStatus.RUNNING, now=clock.now())
    shop.queue.take(OTHER)
    error = {"code": "workers-lost", "message": "workers were lost"} if halted[1] else {}
    shop.service.registry.set_submission(comparison_id, status, error=error)
    sweep(shop.context, shop.queue, living=[ME])
    assert store.get(comparison_id).status is ComparisonStatus.RUNNING, "its claim is not stale yet"
    clock.instant += timedelta(seconds=31)
    sweep(shop.context, shop.queue, living=[ME])
    found = store.get(comparison_id)
    assert (found.status, found.stop_reason, shop.queue.held()) == (*halted, [])


def test_what_the_queue_gave_and_never_came_is_queued_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison_id = shop.service.create()
    shop.queue.take(ME)
    shop.worker.begin()
    clock = shop.bench.clock
    for at_s in (0.0, 30.0):
        monkeypatch.setattr(clock, "monotonic_s", lambda at_s=at_s: at_s)
        shop.worker._sweep()
    assert shop.queue.put_in == [], "it may come yet"
    monkeypatch.setattr(clock, "monotonic_s", lambda: 31.0)
    shop.worker._sweep()
    assert [one.version for one in shop.queue.put_in] == [2]
    shop.work()
    assert shop.status(comparison_id) is DONE


def test_what_is_here_is_not_missed(slow_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = slow_shop
    comparison_id = shop.service.create(concurrency=1)
    shop.worker.begin()
    with shop.working():
        for at_s in (0.0, 31.0):
            monkeypatch.setattr(shop.bench.clock, "monotonic_s", lambda at_s=at_s: at_s)
            shop.worker._sweep()
        monkeypatch.undo()
    assert (shop.status(comparison_id), shop.queue.put_in) == (DONE, [])


def test_a_worker_sets_its_clock_before_it_says_that_it_lives(shop: Shop) -> None:
    def set_clock() -> None:
        assert shop.service.registry.workers(now=shop.bench.clock.now(), stale_after_s=30.0) == []
        shop.bench.clock.instant += timedelta(hours=1)

    worker = Worker(shop.context, shop.queue, sweep_s=0.0, host_wait_s=0.0, set_clock=set_clock)
    worker.begin()
    assert shop.service.registry.workers(now=shop.bench.clock.now(), stale_after_s=30.0) == [ME]

"""Real workers, a real PostgreSQL: one is killed, one is stopped and goes on, the database crashes in the middle."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qualab import bootstrap
from qualab.model.comparison import Analysis
from qualab.model.names import ArmName, ComparisonStatus
from qualab.run.run import start
from qualab.settings import load
from tests.fresh_store import fresh_store
from tests.jobs.conftest import Process, Servers, Site, bodies_of, pair_of_servers, site_at, wait_for
from tests.store import postgresql
from tests.store.conftest import url_of

pytestmark = pytest.mark.slow
FIRST, SECOND = "20260101-000000-aaaaaaaa", "20260101-000001-bbbbbbbb"
POISON = "20260101-000002-cccccccc"
LATE = "20260101-000003-dddddddd"
SLOW_S = 1.0
N_ITEMS = 120


@pytest.fixture
def site(restartable: str, tmp_path: Path) -> Iterator[Site]:
    with site_at(url_of(restartable, "jobs"), tmp_path) as site:
        yield site


def worker_of(site: Site, workers: list[Process], comparison_id: str, *, n_answered: int = 1) -> Process:
    def found() -> Process | None:
        if site.n_answered(comparison_id) < n_answered:
            return None
        pid = site.runner(comparison_id).split(":")[1:2]
        return next((one for one in workers if [str(one.pid)] == pid), None)

    return wait_for(found, or_say=lambda: "\n".join(one.said[-2000:] for one in workers))  # type: ignore[no-any-return]


def alone() -> Analysis:
    with pair_of_servers() as servers:
        settings = load(content=servers.experiment(), environment=False)
        services = bootstrap.services_of(settings, store=fresh_store())
        return asyncio.run(start(services, settings))


def check_asked(site: Site, servers: Servers, comparison_id: str, *, at_most_twice: int) -> int:
    """Each item has one answer in each arm; how many were asked more than once."""
    answered = site.store.answered(comparison_id)
    assert len(answered) == 2 * N_ITEMS
    bodies = bodies_of(site.store, comparison_id)
    assert len(bodies) == N_ITEMS
    again = 0
    for arm in ArmName:
        asked = servers.asked(arm, bodies)
        assert len(asked) == N_ITEMS
        again += sum(count - 1 for count in asked.values())
    assert again <= at_most_twice
    return again


def test_whatever_happens_to_workers_each_comparison_ends_with_its_verdict(site: Site, restartable: str) -> None:
    with pair_of_servers(SLOW_S) as one, pair_of_servers(SLOW_S) as other:
        site.submit(FIRST, one.experiment())
        site.submit(SECOND, other.experiment())
        workers = [site.start("worker") for _ in range(3)]
        expected = alone()
        killed = worker_of(site, workers, FIRST, n_answered=4)
        stopped = worker_of(site, workers, SECOND, n_answered=4)
        assert killed is not stopped
        (third,) = [worker for worker in workers if worker not in (killed, stopped)]

        stopped.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        wait_for(lambda: site.runner(SECOND).split(":")[1:2] == [str(third.pid)], or_say=lambda: third.said)
        print(f"SECOND: stopped {stopped.pid}, taken over by {third.pid} after {time.monotonic() - began:.1f} s")
        stopped.send_signal(signal.SIGCONT)
        wait_for(lambda: "taken over" in stopped.said, within_s=10.0, or_say=lambda: stopped.said)
        assert site.status(SECOND) is ComparisonStatus.RUNNING
        assert site.store.get(SECOND).status is ComparisonStatus.RUNNING
        assert str(third.pid) in site.runner(SECOND)

        killed.send_signal(signal.SIGKILL)
        began = time.monotonic()
        wait_for(lambda: site.runner(FIRST).split(":")[1:2] == [str(stopped.pid)], or_say=lambda: stopped.said)
        claimed_s, items = time.monotonic() - began, bodies_of(site.store, FIRST)
        n_asked = one.n_asked(items)
        wait_for(lambda: one.n_asked(items) > n_asked, or_say=lambda: stopped.said)
        asking_s = time.monotonic() - began
        print(f"FIRST: killed {killed.pid}, taken by {stopped.pid}: claimed {claimed_s:.1f} s, asking {asking_s:.1f} s")

        before = [site.n_answered(FIRST), site.n_answered(SECOND)]
        assert max(before) < N_ITEMS - 10, "the database crashes in the middle"
        postgresql.stop(restartable)
        postgresql.start(restartable)
        for servers in (one, other):
            servers.slow_down(0.0)
        for comparison_id in (FIRST, SECOND):
            wait_for(
                lambda: site.status(comparison_id) is ComparisonStatus.FINISHED,  # noqa: B023
                or_say=lambda: third.said[-3000:] + stopped.said[-3000:],
            )
        assert (stopped.poll(), third.poll()) == (None, None)
        for servers, comparison_id in ((one, FIRST), (other, SECOND)):
            found = site.store.analysis(comparison_id)
            assert found is not None
            assert (found.verdict, found.metrics) == (expected.verdict, expected.metrics)
            again = check_asked(site, servers, comparison_id, at_most_twice=16)
            print(f"{comparison_id}: {found.verdict.value}, {again} of {2 * N_ITEMS} requests asked twice")
            assert site.runner(comparison_id) == ""


def test_what_kills_its_workers_is_given_up(site: Site) -> None:
    with pair_of_servers(SLOW_S) as servers:
        site.submit(POISON, servers.experiment())
        living, killed = [site.start("worker") for _ in range(2)], list[str]()
        began = time.monotonic()

        def is_over() -> bool:
            pid = site.runner(POISON).split(":")[1:2]
            for worker in [one for one in living if [str(one.pid)] == pid]:
                worker.send_signal(signal.SIGKILL)
                worker.wait(30.0)
                killed.append(f"{worker.pid} at {time.monotonic() - began:.1f} s")
                living.remove(worker)
                living.append(site.start("worker"))
            return site.status(POISON) is ComparisonStatus.FAILED

        wait_for(is_over, or_say=lambda: "\n".join(one.said[-1000:] for one in living))
        print(f"POISON: killed {', '.join(killed)}; given up at {time.monotonic() - began:.1f} s")
        assert len(killed) == 4
        assert site.store.summary(POISON).error["code"] == "workers-lost"
        assert (site.takeovers(POISON), site.runner(POISON)) == (0, "")
        assert site.n_answered(POISON) == 0
        assert [worker.poll() for worker in living] == [None, None]


def test_a_worker_that_finds_no_database_at_its_start_waits(site: Site, restartable: str) -> None:
    postgresql.stop(restartable)
    worker = site.start("worker")
    wait_for(lambda: worker.said.count("trying again in") >= 2, or_say=lambda: worker.said)
    assert worker.poll() is None
    stopped = site.start("worker")
    wait_for(lambda: "trying again in" in stopped.said, or_say=lambda: stopped.said)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(30.0) == 0
    postgresql.start(restartable)
    wait_for(lambda: "qualab works as " in worker.said, or_say=lambda: worker.said)
    with pair_of_servers() as servers:
        site.submit(LATE, servers.experiment(limit=3))
        wait_for(lambda: site.status(LATE) is ComparisonStatus.FINISHED, or_say=lambda: worker.said)

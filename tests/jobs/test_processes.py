"""Real workers, a real PostgreSQL: one is killed, one is stopped and goes on, the database crashes in the middle."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from qualab import bootstrap
from qualab.model.comparison import Analysis
from qualab.model.names import ComparisonStatus
from qualab.run.run import start
from qualab.settings import load
from tests.fresh_store import fresh_store
from tests.jobs.conftest import Process, Site, pair_of_servers, site_at
from tests.store import postgresql
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
FIRST, SECOND = "20260101-000000-aaaaaaaa", "20260101-000001-bbbbbbbb"
POISON = "20260101-000002-cccccccc"
LATE = "20260101-000003-dddddddd"
SLOW_S = 1.0
N_ITEMS = 120


@pytest.fixture
def site(postgresql_url: str, tmp_path: Path) -> Iterator[Site]:
    with site_at(postgresql_url, tmp_path) as site:
        yield site


def worker_of(site: Site, workers: list[Process], comparison_id: str, *, n_answered: int) -> Process:
    def found() -> Process | None:
        has_begun = site.n_answered(comparison_id) >= n_answered
        return next((one for one in workers if has_begun and one.pid == site.pid(comparison_id)), None)

    return wait_for(found, or_say=lambda: "\n".join(one.said[-2000:] for one in workers))  # type: ignore[no-any-return]


def alone() -> Analysis:
    with pair_of_servers() as servers:
        settings = load(content=servers.experiment(), environment=False)
        services = bootstrap.services_of(settings, store=fresh_store())
        return asyncio.run(start(services, settings))


def test_whatever_happens_to_workers_each_comparison_ends_with_its_verdict(site: Site, server: str) -> None:
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
        wait_for(lambda: site.pid(SECOND) == third.pid, or_say=lambda: third.said)
        stopped.send_signal(signal.SIGCONT)
        wait_for(lambda: "taken over" in stopped.said, within_s=10.0, or_say=lambda: stopped.said)
        assert site.status(SECOND) is ComparisonStatus.RUNNING
        assert site.store.get(SECOND).status is ComparisonStatus.RUNNING
        assert site.pid(SECOND) == third.pid

        killed.send_signal(signal.SIGKILL)
        wait_for(lambda: site.pid(FIRST) == stopped.pid, or_say=lambda: stopped.said)
        items = site.bodies(FIRST)
        n_asked = one.n_asked(items)
        wait_for(lambda: one.n_asked(items) > n_asked, or_say=lambda: stopped.said)

        before = [site.n_answered(FIRST), site.n_answered(SECOND)]
        assert max(before) < N_ITEMS - 10, "the database crashes in the middle"
        with postgresql.stopped(server):
            pass
        for servers, comparison_id in ((one, FIRST), (other, SECOND)):
            servers.slow_down(0.0)
            site.wait_for(comparison_id, ComparisonStatus.FINISHED, third, stopped)
            found = site.store.analysis(comparison_id)
            assert found is not None
            assert (found.verdict, found.metrics) == (expected.verdict, expected.metrics)
            assert len(site.store.answered(comparison_id)) == 2 * N_ITEMS
            assert site.asked_again(servers, comparison_id, n_items=N_ITEMS) <= 16
            assert site.runner(comparison_id) == ""
        assert (stopped.poll(), third.poll()) == (None, None)


def test_what_kills_its_workers_is_given_up(site: Site) -> None:
    with pair_of_servers(SLOW_S) as servers:
        site.submit(POISON, servers.experiment())
        living, killed = [site.start("worker") for _ in range(2)], list[Process]()

        def is_over() -> bool:
            for worker in [one for one in living if one.pid == site.pid(POISON)]:
                worker.send_signal(signal.SIGKILL)
                worker.wait(30.0)
                killed.append(worker)
                living.remove(worker)
                living.append(site.start("worker"))
            return site.status(POISON) is ComparisonStatus.FAILED

        wait_for(is_over, or_say=lambda: "\n".join(one.said[-1000:] for one in living))
        assert len(killed) == 4
        assert site.store.summary(POISON).error["code"] == "workers-lost"
        assert (site.takeovers(POISON), site.runner(POISON)) == (0, "")
        assert site.n_answered(POISON) == 0
        assert [worker.poll() for worker in living] == [None, None]


def test_a_worker_that_finds_no_database_at_its_start_waits(site: Site, server: str) -> None:
    with postgresql.stopped(server):
        worker, ended = site.start("worker"), site.start("worker")
        wait_for(lambda: worker.said.count("trying again in") >= 2, or_say=lambda: worker.said)
        wait_for(lambda: "trying again in" in ended.said, or_say=lambda: ended.said)
        ended.send_signal(signal.SIGTERM)
        assert (ended.wait(30.0), worker.poll()) == (0, None)
    wait_for(lambda: "qualab works as " in worker.said, or_say=lambda: worker.said)
    with pair_of_servers() as servers:
        site.submit(LATE, servers.experiment(limit=3))
        site.wait_for(LATE, ComparisonStatus.FINISHED, worker)

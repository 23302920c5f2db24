"""`qualab serve` on SQLite: killed in the middle, it goes on where it was when it is started again."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest

from qualab.model.names import ArmName, ComparisonStatus
from qualab.service.reading import PHASES
from tests.jobs.conftest import Process, Servers, Site, pair_of_servers, site_at
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
N_ITEMS = 45
HANDED_OVER = "20260101-000000-dddddddd"


def address(serving: Process) -> str:
    def found() -> str:
        lines = [line for line in serving.said.splitlines() if line.startswith("qualab serves ")]
        return lines[0].split()[2] if lines else ""

    return str(wait_for(found, or_say=lambda: serving.said))


def create(url: str, servers: Servers) -> str:
    body = servers.experiment(limit=15, accept_underpowered=True)
    sent = httpx2.post(f"{url}/v1/comparisons", json=body, timeout=60.0)
    assert sent.status_code == 202, sent.text
    return str(sent.json()["id"])


def test_a_service_that_is_killed_goes_on_and_one_that_is_ended_gives_back(tmp_path: Path) -> None:
    with pair_of_servers(0.5) as servers, site_at(str(tmp_path / "qualab.db"), tmp_path) as site:
        serving = site.start("serve", "--port", "0")
        url = address(serving)
        killed = create(url, servers)
        wait_for(lambda: site.n_answered(killed) >= 4, or_say=lambda: serving.said)
        with httpx2.stream("GET", f"{url}/v1/comparisons/{killed}/events", timeout=20.0) as stream:
            first = next(text for text in stream.iter_text() if "event:" in text)
            assert PHASES[ComparisonStatus.RUNNING] in first
        serving.send_signal(signal.SIGKILL)
        serving.wait(30.0)
        assert site.n_answered(killed) < N_ITEMS

        serving = site.start("serve", "--port", "0")
        url = address(serving)
        servers.slow_down(0.0)
        site.wait_for(killed, ComparisonStatus.FINISHED, serving)
        verdict = httpx2.get(f"{url}/v1/comparisons/{killed}/verdict", timeout=20.0).json()
        assert (verdict["status"], verdict["verdict"]) == ("finished", "INCONCLUSIVE")
        assert site.asked_again(servers, killed, n_items=N_ITEMS) <= 2 * 4

        servers.slow_down(0.5)
        ended = create(url, servers)
        wait_for(lambda: site.n_answered(ended) >= 1, or_say=lambda: serving.said)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30.0) == 0
        assert (site.status(ended), site.runner(ended)) == (ComparisonStatus.QUEUED, "")
        assert site.n_answered(ended) < N_ITEMS


def n_living(site: Site) -> int:
    return len(site.store.workers(now=datetime.now(UTC), stale_after_s=60.0))


def test_two_workers_share_a_file_and_end_together(tmp_path: Path) -> None:
    ids = [f"20260101-00000{number}-aaaaaaaa" for number in range(4)]
    with pair_of_servers() as servers, site_at(str(tmp_path / "qualab.db"), tmp_path) as site:
        for number, comparison_id in enumerate(ids):
            site.submit(comparison_id, servers.experiment(limit=15, seed=number))
        workers = site.start("worker", "--concurrency", "2")
        wait_for(lambda: n_living(site) == 2, or_say=lambda: workers.said)
        for comparison_id in ids:
            site.wait_for(comparison_id, ComparisonStatus.FINISHED, workers)
            n_trials = len(ArmName)  # before the run, in each arm
            assert site.asked_again(servers, comparison_id, n_items=N_ITEMS) == n_trials
            assert site.store.get(comparison_id).duplicates == 0
            wait_for(lambda: site.runner(comparison_id) == "")  # noqa: B023
        assert "locked" not in workers.said
        workers.send_signal(signal.SIGTERM)
        assert (workers.wait(30.0), n_living(site)) == (0, 0)


def test_a_worker_that_is_asked_to_end_hands_over_at_once(tmp_path: Path) -> None:
    """In earnest, silence is borne for 30 s: here for longer than the test takes."""
    with pair_of_servers(0.5) as servers, site_at(str(tmp_path / "qualab.db"), tmp_path) as site:
        site.submit(HANDED_OVER, servers.experiment(limit=15, concurrency=1))
        workers = [site.start("worker", QUALAB_SERVE_STALE_AFTER_S="300") for _ in range(2)]
        wait_for(lambda: site.n_answered(HANDED_OVER) >= 3, or_say=lambda: "\n".join(one.said for one in workers))
        (ended,) = [one for one in workers if site.pid(HANDED_OVER) == one.pid]
        ended.send_signal(signal.SIGTERM)
        wait_for(lambda: site.pid(HANDED_OVER) not in (None, ended.pid), within_s=10.0)
        assert ended.wait(30.0) == 0
        assert (site.status(HANDED_OVER), site.takeovers(HANDED_OVER)) == (ComparisonStatus.RUNNING, 0)
        servers.slow_down(0.0)
        site.wait_for(HANDED_OVER, ComparisonStatus.FINISHED, *workers)
        n_trials = n_under_way = len(ArmName)
        assert site.asked_again(servers, HANDED_OVER, n_items=N_ITEMS) <= n_trials + n_under_way

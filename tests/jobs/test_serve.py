"""`qualab serve` on SQLite: killed in the middle, it goes on where it was when it is started again."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest

from qualab.model.names import ArmName, ComparisonStatus
from qualab.service.reading import PHASES
from tests.jobs.conftest import Process, Servers, Site, bodies_of, pair_of_servers, site_at, wait_for

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


def asked_again(site: Site, servers: Servers, comparison_id: str) -> int:
    """How many of both arms' requests came more than once; all came."""
    bodies = bodies_of(site.store, comparison_id)
    counts = [servers.asked(arm, bodies) for arm in ArmName]
    assert [len(count) for count in counts] == [N_ITEMS, N_ITEMS]
    return sum(count.total() for count in counts) - 2 * N_ITEMS


def first_event(url: str, comparison_id: str) -> str:
    with httpx2.stream("GET", f"{url}/v1/comparisons/{comparison_id}/events", timeout=20.0) as stream:
        return next(text for text in stream.iter_text() if "event:" in text)


@pytest.mark.slow
def test_a_service_that_is_killed_goes_on_and_one_that_is_ended_gives_back(tmp_path: Path) -> None:
    with pair_of_servers(0.5) as servers, site_at(str(tmp_path / "qualab.db"), tmp_path) as site:
        serving = site.start("serve", "--port", "0")
        url = address(serving)
        killed = create(url, servers)
        wait_for(lambda: site.n_answered(killed) >= 4, or_say=lambda: serving.said)
        assert PHASES[ComparisonStatus.RUNNING] in first_event(url, killed)
        serving.send_signal(signal.SIGKILL)
        serving.wait(30.0)
        assert site.n_answered(killed) < N_ITEMS

        serving = site.start("serve", "--port", "0")
        url = address(serving)
        servers.slow_down(0.0)
        wait_for(lambda: site.status(killed) is ComparisonStatus.FINISHED, or_say=lambda: serving.said)
        verdict = httpx2.get(f"{url}/v1/comparisons/{killed}/verdict", timeout=20.0).json()
        assert (verdict["status"], verdict["verdict"]) == ("finished", "INCONCLUSIVE")
        assert asked_again(site, servers, killed) <= 2 * 4

        servers.slow_down(0.5)
        ended = create(url, servers)
        wait_for(lambda: site.n_answered(ended) >= 1, or_say=lambda: serving.said)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30.0) == 0
        assert (site.status(ended), site.runner(ended)) == (ComparisonStatus.QUEUED, "")
        assert site.n_answered(ended) < N_ITEMS


def n_living(site: Site) -> int:
    return len(site.store.workers(now=datetime.now(UTC), stale_after_s=60.0))


@pytest.mark.slow
def test_two_workers_share_a_file_and_end_together(tmp_path: Path) -> None:
    ids = [f"20260101-00000{number}-aaaaaaaa" for number in range(4)]
    with pair_of_servers() as servers, site_at(str(tmp_path / "qualab.db"), tmp_path) as site:
        for number, comparison_id in enumerate(ids):
            site.submit(comparison_id, servers.experiment(limit=15, seed=number))
        workers = site.start("worker", "--concurrency", "2")
        wait_for(lambda: n_living(site) == 2, or_say=lambda: workers.said)
        for comparison_id in ids:
            wait_for(
                lambda: site.status(comparison_id) is ComparisonStatus.FINISHED,  # noqa: B023
                or_say=lambda: workers.said[-4000:],
            )
            assert asked_again(site, servers, comparison_id) == len(ArmName), "the trial before the run, in each arm"
            assert site.store.get(comparison_id).duplicates == 0
            wait_for(lambda: site.runner(comparison_id) == "")  # noqa: B023
        assert "locked" not in workers.said
        workers.send_signal(signal.SIGTERM)
        assert (workers.wait(30.0), n_living(site)) == (0, 0)


@pytest.mark.slow
def test_a_worker_that_is_asked_to_end_hands_over_at_once(tmp_path: Path) -> None:
    """In earnest, silence is borne for 30 s: here for longer than the test takes."""
    with pair_of_servers(0.5) as servers, site_at(str(tmp_path / "qualab.db"), tmp_path) as site:
        site.submit(HANDED_OVER, servers.experiment(limit=15, concurrency=1))
        workers = [site.start("worker", QUALAB_SERVE_STALE_AFTER_S="300") for _ in range(2)]
        wait_for(lambda: site.n_answered(HANDED_OVER) >= 3, or_say=lambda: "\n".join(one.said for one in workers))
        (ended,) = [one for one in workers if site.runner(HANDED_OVER).split(":")[1] == str(one.pid)]
        began = time.monotonic()
        ended.send_signal(signal.SIGTERM)
        wait_for(lambda: site.runner(HANDED_OVER).split(":")[1:2] not in ([], [str(ended.pid)]), within_s=10.0)
        print(f"SIGTERM to {ended.pid}: another has it after {time.monotonic() - began:.1f} s")
        assert ended.wait(30.0) == 0
        assert (site.status(HANDED_OVER), site.takeovers(HANDED_OVER)) == (ComparisonStatus.RUNNING, 0)
        servers.slow_down(0.0)
        wait_for(lambda: site.status(HANDED_OVER) is ComparisonStatus.FINISHED)
        assert asked_again(site, servers, HANDED_OVER) <= 2 * len(ArmName), "the trial, and what was under way"

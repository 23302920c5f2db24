"""`qualab serve` on SQLite: killed in the middle, it goes on where it was when it is started again."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from qualab.domain.names import ArmName, ComparisonStatus
from qualab.domain.submissions import SubmissionStatus
from tests.jobs.conftest import Process, Servers, Site, bodies_of, pair_of_servers, site_at, wait_for

pytestmark = pytest.mark.slow
N_ITEMS = 60


def address(serving: Process) -> str:
    def found() -> str:
        lines = [line for line in serving.said.splitlines() if line.startswith("qualab serves ")]
        return lines[0].split()[2] if lines else ""

    return str(wait_for(found, or_say=lambda: serving.said))


def asked(site: Site, servers: Servers, comparison_id: str) -> int:
    """How many of both arms' requests came more than once; all came."""
    bodies = bodies_of(site.store, comparison_id)
    counts = [servers.asked(arm, bodies) for arm in ArmName]
    assert [len(count) for count in counts] == [N_ITEMS, N_ITEMS]
    return sum(count.total() for count in counts) - 2 * N_ITEMS


def verdict(url: str, path: str) -> dict[str, Any]:
    return dict(httpx2.get(f"{url}{path}/verdict", timeout=20.0).json())


def test_a_service_that_is_killed_goes_on_and_one_that_is_ended_gives_back(tmp_path: Path) -> None:
    with pair_of_servers(0.5) as servers, site_at(str(tmp_path / "qualab.db"), tmp_path) as site:
        serving = site.start("serve", "--port", "0")
        url = address(serving)
        body = servers.experiment(limit=20, accept_underpowered=True)
        sent = httpx2.post(f"{url}/v1/comparisons", json=body, timeout=60.0)
        assert sent.status_code == 202, sent.text
        path, comparison_id = sent.headers["location"], sent.json()["id"]
        wait_for(lambda: site.n_answered(comparison_id) >= 4, or_say=lambda: serving.said)
        events = httpx2.get(f"{url}{path}").json()
        assert events["status"] == "running"
        serving.send(signal.SIGKILL)
        serving.wait()

        again = site.start("serve", "--port", "0")
        url = address(again)
        before = site.n_answered(comparison_id)
        wait_for(lambda: site.n_answered(comparison_id) > before, or_say=lambda: again.said)
        again.send(signal.SIGTERM)
        assert again.wait() == 0
        assert site.status(comparison_id) is SubmissionStatus.QUEUED
        assert site.store.get(comparison_id).status is ComparisonStatus.INTERRUPTED
        assert site.n_answered(comparison_id) < N_ITEMS

        servers.slow_down(0.0)
        worker = site.start("worker")
        wait_for(lambda: site.status(comparison_id) is SubmissionStatus.DONE, or_say=lambda: worker.said)
        found = site.store.get(comparison_id)
        assert (found.status, found.verdict is not None) == (ComparisonStatus.FINISHED, True)
        assert asked(site, servers, comparison_id) <= 2 * 2 * 4
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0

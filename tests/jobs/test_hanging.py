"""An answer on which a task's filter never comes to an end: it fails its own comparison, and stops nobody else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from qualab.model.names import ArmName, ComparisonStatus
from tests.harness.test_own_tasks import PLAIN, ROWS, own
from tests.harness.test_process import ENDLESS, HANGING
from tests.jobs.conftest import Process, Servers, Site, site_at
from tests.jobs.test_serve import address
from tests.scripted_server import Script, ScriptedServer
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
FAILING, FINE, CANCELLED = (f"20260101-00000{number}-eeeeeeee" for number in range(3))
HANGS = 3
ENDS_WITHIN_S = 3.0


@contextmanager
def hanging(tmp_path: Path, comparison_id: str, **settings: str) -> Iterator[tuple[Site, Servers, Process, str]]:
    """A service that was asked for such a comparison, with its address."""
    folder = tmp_path / "own"
    own(folder, f"{PLAIN.rstrip()}{HANGING}")
    fixed = {str(row["q"]): f"#### {row['a']}" for row in ROWS} | {str(ROWS[HANGS]["q"]): ENDLESS}
    off, on = ScriptedServer(Script(fixed=fixed)), ScriptedServer(Script(fixed=fixed, drafts=True))
    with off, on, site_at(str(tmp_path / "qualab.db"), tmp_path) as site:
        servers = Servers({ArmName.BASELINE: off, ArmName.CANDIDATE: on})
        serving = site.start("serve", "--port", "0", "--allow-path", str(folder), **settings)
        url = address(serving)
        mine = {"tasks": "mine", "limit": None, "include_path": [str(folder)], "accept_underpowered": True}
        site.submit(comparison_id, servers.experiment(**mine))
        yield site, servers, serving, url


def children_of(process: Process) -> list[Path]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # one that has ended meanwhile
            if int(path.read_text().rpartition(")")[2].split()[1]) == process.pid:
                found.append(path)
    return found


def test_its_comparison_fails_with_task_filter_and_item_and_the_worker_goes_on(tmp_path: Path) -> None:
    quick = {"QUALAB_SCORING_TIMEOUT": "2", "QUALAB_SERVE_BEAT_S": "0.2"}
    with hanging(tmp_path, FAILING, **quick) as (site, servers, serving, url):
        site.submit(FINE, servers.experiment(limit=3))
        site.wait_for(FAILING, ComparisonStatus.FAILED, serving)
        assert httpx2.get(f"{url}/v1/comparisons", timeout=20.0).status_code == 200
        verdict = httpx2.get(f"{url}/v1/comparisons/{FAILING}/verdict", timeout=20.0).json()
        assert verdict["error"]["code"] == "scoring-timed-out"
        for part in ("mine/3", "filter backtracking", "task mine", "2 s"):
            assert part in verdict["error"]["message"], verdict
        site.wait_for(FINE, ComparisonStatus.FINISHED, serving)
        assert site.takeovers(FAILING) == 0
        assert site.n_answered(FAILING) == len(ROWS)
        assert serving.poll() is None


def test_it_is_cancelled_at_any_moment(tmp_path: Path) -> None:
    with hanging(tmp_path, CANCELLED, QUALAB_SCORING_TIMEOUT="600") as (site, servers, serving, url):
        site.wait_for(CANCELLED, ComparisonStatus.ANSWERED, serving)
        time.sleep(1.0)
        assert site.status(CANCELLED) is ComparisonStatus.ANSWERED
        assert children_of(serving)
        assert httpx2.get(f"{url}/v1/comparisons", timeout=20.0).status_code == 200
        began = time.monotonic()
        assert httpx2.post(f"{url}/v1/comparisons/{CANCELLED}/cancel", timeout=20.0).status_code == 200
        wait_for(lambda: site.runner(CANCELLED) == "", or_say=lambda: serving.said)
        assert time.monotonic() - began < ENDS_WITHIN_S
        wait_for(lambda: not children_of(serving), within_s=10.0)
        site.submit(FINE, servers.experiment(limit=3))
        site.wait_for(FINE, ComparisonStatus.FINISHED, serving)

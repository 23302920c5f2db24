"""A run that was killed stands as interrupted as soon as nobody can be running it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from qualab.errors import ComparisonBusy
from qualab.model.names import ComparisonStatus
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import STALE_AFTER_S
from qualab.run import prune as standing
from qualab.run.run import resume
from tests.app.fakes import START, Bench

RUNNING, INTERRUPTED, FINISHED = ComparisonStatus.RUNNING, ComparisonStatus.INTERRUPTED, ComparisonStatus.FINISHED
SOON, LATE = START + timedelta(seconds=STALE_AFTER_S), START + timedelta(seconds=STALE_AFTER_S + 1)


async def left_running(bench: Bench, runner: str = "elsewhere:5:b") -> str:
    analysis = await bench.run()
    now = bench.clock.now()
    bench.store.set_status(analysis.comparison_id, RUNNING, now=now)
    bench.store.claim(analysis.comparison_id, runner=runner, now=now, stale_after_s=STALE_AFTER_S)
    return analysis.comparison_id


async def test_running_is_said_while_a_runner_gives_signs_of_life_and_interrupted_after() -> None:
    bench = Bench()
    id_ = await left_running(bench)
    for now, status in ((SOON, RUNNING), (LATE, INTERRUPTED)):
        assert standing.find(bench.store, id_[:-1], now=now).status is status
        assert [one.status for one in standing.find_all(bench.store, ComparisonFilter(), now=now)] == [status]
        assert (standing.runner_of(bench.store, id_, now=now) is None) is (status is INTERRUPTED)
    assert bench.store.get(id_).status is RUNNING
    bench.store.release(id_, runner="elsewhere:5:b")
    assert standing.find(bench.store, id_, now=START).status is INTERRUPTED


async def test_a_list_of_one_status_goes_by_how_comparisons_stand() -> None:
    bench = Bench()
    dead = await left_running(bench)
    bench.clock.instant = LATE
    ended = (await bench.run()).comparison_id
    alive = await left_running(bench)

    def listed(status: ComparisonStatus | None, limit: int = 50) -> list[str]:
        wanted = ComparisonFilter(status=status, limit=limit)
        return [one.id for one in standing.find_all(bench.store, wanted, now=LATE)]

    assert (listed(RUNNING), listed(INTERRUPTED), listed(FINISHED)) == ([alive], [dead], [ended])
    bench.store.set_status(ended, INTERRUPTED, now=LATE)
    assert listed(INTERRUPTED) == [ended, dead]
    assert listed(INTERRUPTED, limit=1) == [ended]
    assert listed(None) == [alive, ended, dead]


async def test_what_another_runs_is_refused_before_tasks_are_loaded_or_an_endpoint_is_asked() -> None:
    bench = Bench()
    id_ = await left_running(bench)
    n_loads, n_asked = len(bench.harness.seen), bench.candidate.generated
    with pytest.raises(ComparisonBusy, match="elsewhere:5:b"):
        await bench.resume(id_)
    assert (len(bench.harness.seen), bench.candidate.generated) == (n_loads, n_asked)
    bench.clock.instant = LATE
    await resume(replace(bench.services, runner="here:2:c"), id_)
    assert standing.find(bench.store, id_, now=LATE).status is FINISHED


async def test_an_endpoint_in_use_is_sent_nothing() -> None:
    bench = Bench()
    id_ = await left_running(bench)
    n_asked = bench.candidate.generated
    with pytest.raises(ComparisonBusy, match=f"{id_} is being run on the same endpoints by elsewhere:5:b"):
        await bench.run()
    assert (bench.candidate.generated, len(bench.store.list(ComparisonFilter()))) == (n_asked, 1)
    bench.clock.instant = LATE
    await bench.run()

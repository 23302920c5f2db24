"""Any two runs of the store, also of different comparisons, compared item by item."""

from __future__ import annotations

from typing import Any

import pytest

from qualab.errors import ComparisonNotFound, InvalidValue, PairDiffers, RunStopped
from qualab.imports.import_ import ImportRequest, compare_runs
from qualab.model.comparison import Analysis
from qualab.model.names import ArmName, Verdict
from qualab.model.plan import DecisionRule, FindingCode
from qualab.model.ports import ComparisonFilter
from qualab.run.compare import compare_again
from qualab.run.run import start
from qualab.run.sign import signoff_obstacles
from tests.app.fakes import Bench, FakeHarness, FakeTasks, QuietProgress, echo_number, experiment, failure, reply
from tests.said import english


def compared(bench: Bench, baseline: str, candidate: str, **request: Any) -> Analysis:
    wanted = ImportRequest(**request)
    return compare_runs(bench.store, lambda name: None, baseline, candidate, wanted, now=bench.clock.now())


async def run(bench: Bench, wrong: int, **changes: Any) -> str:
    """A run whose candidate gets the first items wrong."""
    bench.candidate.answer = lambda p, s: reply("?") if int(p[4:]) < wrong else echo_number(p, s)
    found = await start(bench.services, experiment(**changes), keys={}, progress=QuietProgress())
    return found.comparison_id


async def test_two_candidates_of_two_comparisons() -> None:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=200)))
    first, second = await run(bench, 2), await run(bench, 40)
    found = compared(bench, first, second)
    assert found.verdict is Verdict.REGRESSION
    assert found.metrics[0].evidence is not None
    assert (found.metrics[0].evidence.losses, found.metrics[0].evidence.gains) == (38, 0)
    comparison = bench.store.get(found.comparison_id)
    assert comparison.plan.imported.baseline == f"lm-eval 0, {first}/candidate"
    assert "made of two runs: what was run cannot be checked" in english(signoff_obstacles(found, comparison))
    assert any(caveat.startswith("Made of two runs of this store") for caveat in english(found.caveats))


async def test_the_arms_of_one_comparison_give_its_own_numbers() -> None:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=100)))
    one = await run(bench, 7)
    found = compared(bench, f"{one}/baseline", f"{one}/candidate")
    assert found.metrics == bench.store.analysis(one).metrics
    answers = [list(bench.store.answers(id_, arm=ArmName.CANDIDATE)) for id_ in (one, found.comparison_id)]
    assert sorted(a.reply.text for a in answers[0]) == sorted(a.reply.text for a in answers[1])


async def test_what_one_run_lacks_is_missing() -> None:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=100)))
    first = await run(bench, 0)
    bench.candidate.answer = lambda p, s: failure() if p == "say 3" else echo_number(p, s)
    second = (await start(bench.services, experiment(), keys={}, progress=QuietProgress())).comparison_id
    found = compared(bench, first, second)
    assert (found.metrics[0].n_items, found.metrics[0].n_missing_candidate) == (100, 1)


@pytest.mark.parametrize("is_first", [True, False])
async def test_what_a_run_that_stopped_early_never_asked_is_left_out(is_first: bool) -> None:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=500)))
    early, whole = await run(bench, 0, looks=5, rule=DecisionRule(margin=0.05)), await run(bench, 0)
    taken = bench.store.looks(early)
    assert taken[-1].n_items < 500
    found = compared(bench, *((early, whole) if is_first else (whole, early)))
    missing = found.suite.missing
    assert (missing.n_asked, missing.baseline_only, missing.candidate_only) == (taken[-1].n_items, 0, 0)
    assert (found.metrics[0].n_items, found.metrics[0].n_missing) == (taken[-1].n_items, 0)
    assert "Items that only one of the two runs asked are left out: they are not missing." in english(found.caveats)
    assert not any("unanswered" in caveat for caveat in english(found.caveats))
    assert compare_again(bench.services, found.comparison_id).is_as_stored


async def test_a_run_that_is_not_finished_has_nothing_to_compare() -> None:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=100)))
    whole = await run(bench, 0)
    bench.candidate.answer = lambda p, s: failure()
    with pytest.raises(RunStopped):
        await start(bench.services, experiment(), keys={}, progress=QuietProgress())
    (stopped,) = [one.id for one in bench.store.list(ComparisonFilter()) if one.id != whole]
    with pytest.raises(InvalidValue, match="is stopped: its answers are not scored yet"):
        compared(bench, whole, stopped)


async def test_runs_that_were_asked_otherwise_are_refused_unless_allowed() -> None:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=50)))
    first, second = await run(bench, 0), await run(bench, 0, system_instruction="Be brief.")
    with pytest.raises(PairDiffers, match="system instruction"):
        compared(bench, first, second)
    compared(bench, first, second, allowed=(FindingCode.SYSTEM_INSTRUCTION,))


async def test_what_names_no_run_is_refused() -> None:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=50)))
    one = await run(bench, 0)
    with pytest.raises(InvalidValue, match="names no run"):
        compared(bench, f"{one}/left", one)
    with pytest.raises(ComparisonNotFound):
        compared(bench, "none", one)

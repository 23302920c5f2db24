"""Stored scores judged again: the same bytes under the same plan, a mark under one made after the data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qualab.errors import InvalidValue, PlanChanged, RunStopped
from qualab.model.canonical import canonical_json
from qualab.model.comparison import Analysis
from qualab.model.names import ComparisonStatus, Verdict
from qualab.report.source import under_its_plan
from qualab.run.compare import compare_again, with_rule
from qualab.run.run import start
from tests.app.fakes import Bench, FakeHarness, FakeTasks, QuietProgress, echo_number, experiment, failure, reply
from tests.said import english


async def finished(n_items: int = 200) -> tuple[Bench, Analysis]:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=n_items)))
    bench.candidate.answer = lambda p, s: reply("wrong") if int(p[4:]) == 3 else echo_number(p, s)
    analysis = await start(bench.services, experiment(), keys={}, progress=QuietProgress())
    return bench, analysis


async def test_the_own_plan_gives_the_same_bytes_and_asks_nothing() -> None:
    bench, first = await finished()
    asked = len(bench.baseline.bodies)
    again = compare_again(bench.services, first.comparison_id)
    assert (again.is_own_plan, again.is_as_stored) == (True, True)
    assert canonical_json(again.analysis) == canonical_json(first)
    assert len(bench.baseline.bodies) == asked
    assert list(bench.store.plan_hashes(first.comparison_id)) == [first.plan_hash]


async def test_a_margin_after_the_data_is_marked_and_stored_beside_the_original() -> None:
    bench, first = await finished()
    assert first.verdict is Verdict.INCONCLUSIVE
    plan = bench.store.get(first.comparison_id).plan
    again = compare_again(bench.services, first.comparison_id, other=with_rule(plan, {"margin": 0.1}))
    assert again.analysis.verdict is Verdict.INVALID
    assert "plan was made after the data (changed: margin 0.02 to 0.1)" in english(again.analysis.reasons)[0]
    assert again.analysis.metrics[0].verdict is Verdict.EQUIVALENT
    assert again.analysis.input_hash == first.input_hash
    comparison = bench.store.get(first.comparison_id)
    assert (comparison.status, comparison.verdict) == (ComparisonStatus.FINISHED, Verdict.INCONCLUSIVE)
    assert bench.store.analysis(first.comparison_id) == first
    assert bench.store.analysis(first.comparison_id, plan_hash=again.analysis.plan_hash) == again.analysis


async def test_a_loss_inside_the_margin_passes_and_under_a_strict_plan_does_not() -> None:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=3_000)))
    bench.candidate.answer = lambda p, s: reply("no") if int(p[4:]) % 250 == 3 else echo_number(p, s)
    first = await start(bench.services, experiment(), keys={}, progress=QuietProgress())
    assert first.verdict is Verdict.EQUIVALENT
    assert (
        english(first.reasons)[0]
        == f"{first.metrics[0].id}: a loss of 0.40 pp (0.25 to 0.64) is real and inside the margin"
    )
    assert first.metrics[0].evidence is not None
    assert first.metrics[0].evidence.items_needed is None
    plan = bench.store.get(first.comparison_id).plan
    again = compare_again(bench.services, first.comparison_id, other=with_rule(plan, {"strict": True}))
    assert "(changed: strict False to True)" in english(again.analysis.reasons)[0]
    assert again.analysis.metrics[0].verdict is Verdict.REGRESSION
    assert under_its_plan(again.comparison, again.analysis).plan.rule.strict


async def test_a_rule_that_is_the_same_is_the_own_plan() -> None:
    bench, first = await finished(50)
    plan = bench.store.get(first.comparison_id).plan
    assert compare_again(bench.services, first.comparison_id, other=with_rule(plan, {"margin": 0.02})).is_own_plan


async def test_a_plan_of_other_items_cannot_judge() -> None:
    bench, first = await finished(50)
    plan = bench.store.get(first.comparison_id).plan
    other = replace(plan, tasks=(replace(plan.tasks[0], data_hash="other"),))
    with pytest.raises(PlanChanged, match="tasks differ"):
        compare_again(bench.services, first.comparison_id, other=other)


async def test_nothing_to_compare_before_the_run_is_finished() -> None:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=20)))
    bench.candidate.answer = lambda p, s: failure()
    progress = QuietProgress()
    with pytest.raises(RunStopped):
        await start(bench.services, experiment(), keys={}, progress=progress)
    assert progress.comparison is not None
    with pytest.raises(InvalidValue, match="no analysis yet"):
        compare_again(bench.services, progress.comparison.id)


@pytest.mark.parametrize(
    ("changes", "message"), [({"margin": 1.0}, "margin must"), ({"margins": {"sum": 0.1}}, "Did you mean sums")]
)
async def test_a_rule_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    bench, first = await finished(20)
    with pytest.raises(InvalidValue, match=message):
        with_rule(bench.store.get(first.comparison_id).plan, changes)

"""Stored answers and scores judged again: under another plan, with other tasks, run against run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from qualab.bootstrap import task_catalog
from qualab.errors import ComparisonNotFound, InvalidValue, PairDiffers, PlanChanged, RunStopped, WrongState
from qualab.imports.import_ import ImportRequest
from qualab.imports.import_ import compare_runs as compare_stored
from qualab.model.canonical import canonical_json
from qualab.model.comparison import Analysis
from qualab.model.items import Item, Reply
from qualab.model.names import ArmName, ComparisonStatus, Verdict
from qualab.model.plan import DecisionRule, FindingCode
from qualab.model.ports import ComparisonFilter
from qualab.report.source import under_its_plan
from qualab.run.sign import signoff_obstacles
from qualab.run.stored import Reanalysis, compare_again, rescore, with_rule
from tests.app.fakes import Bench, FakeTasks, failure, other_for, reply
from tests.said import english


async def run(bench: Bench, n_wrong: int = 0, **changes: Any) -> Analysis:
    """A run whose candidate gets the first items wrong."""
    bench.candidate.answer = other_for(range(n_wrong))
    return await bench.run(**changes)


def again_under(bench: Bench, before: Analysis, **rule: Any) -> Reanalysis:
    """What is stored of a run, judged under its own plan with another rule."""
    plan = bench.store.get(before.comparison_id).plan
    return compare_again(bench.services, before.comparison_id, other=with_rule(plan, rule))


async def stopped(bench: Bench) -> str:
    """A run that has no analysis, since its candidate fails."""
    bench.candidate.answer = lambda p, s: failure()
    with pytest.raises(RunStopped):
        await bench.run()
    (found,) = [one.id for one in bench.store.list(ComparisonFilter()) if one.status is ComparisonStatus.STOPPED]
    return found


async def test_the_own_plan_gives_the_same_bytes_and_asks_nothing() -> None:
    bench = Bench.of(200)
    before = await run(bench, 1)
    n_asked = len(bench.baseline.bodies)
    for again in (compare_again(bench.services, before.comparison_id), again_under(bench, before, margin=0.02)):
        assert (again.is_own_plan, again.is_as_stored) == (True, True)
        assert canonical_json(again.analysis) == canonical_json(before)
    assert len(bench.baseline.bodies) == n_asked
    assert list(bench.store.plan_hashes(before.comparison_id)) == [before.plan_hash]


async def test_a_margin_after_the_data_is_marked_and_stored_beside_the_original() -> None:
    bench = Bench.of(200)
    before = await run(bench, 1)
    again = again_under(bench, before, margin=0.1).analysis
    assert (again.verdict, again.metrics[0].verdict) == (Verdict.INVALID, Verdict.EQUIVALENT)
    assert "plan was made after the data (changed: margin 0.02 to 0.1)" in english(again.reasons)[0]
    assert again.input_hash == before.input_hash
    comparison = bench.store.get(before.comparison_id)
    assert (comparison.status, comparison.verdict) == (ComparisonStatus.FINISHED, Verdict.INCONCLUSIVE)
    assert bench.store.analysis(before.comparison_id) == before
    assert bench.store.analysis(before.comparison_id, plan_hash=again.plan_hash) == again
    obstacles = english(signoff_obstacles(again, comparison))
    assert obstacles[:2] == ("the verdict is INVALID", "the plan was made after the data")


async def test_a_loss_inside_the_margin_passes_and_under_a_strict_plan_does_not() -> None:
    bench = Bench.of(1_000, on=other_for(range(3, 1_000, 125)))
    before = await bench.run()
    assert before.verdict is Verdict.EQUIVALENT
    loss = f"{before.metrics[0].id}: a loss of 0.80 pp (0.45 to 1.41) is real and inside the margin"
    assert english(before.reasons)[0] == loss
    assert before.metrics[0].evidence.items_needed is None
    again = again_under(bench, before, strict=True)
    assert "(changed: strict False to True)" in english(again.analysis.reasons)[0]
    assert again.analysis.metrics[0].verdict is Verdict.REGRESSION
    assert under_its_plan(again.comparison, again.analysis).plan.rule.strict


async def test_what_cannot_judge_is_refused() -> None:
    bench = Bench.of(50)
    before = await run(bench)
    plan = bench.store.get(before.comparison_id).plan
    for changes in ({"tasks": (replace(plan.tasks[0], data_hash="other"),)}, {"pins": replace(plan.pins, image="x")}):
        with pytest.raises(PlanChanged, match=f"{next(iter(changes))} differ"):
            compare_again(bench.services, before.comparison_id, other=replace(plan, **changes))
    with pytest.raises(InvalidValue, match="Did you mean sums"):
        again_under(bench, before, margins={"sum": 0.1})
    with pytest.raises(WrongState, match="no analysis yet"):
        compare_again(bench.services, await stopped(bench))


@dataclass
class Lenient(FakeTasks):
    """A later version of the task: what ends with the number is right, too."""

    config_hash: str = "later"

    def score(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> list[dict[str, Any]]:
        texts = ((item.target, replies[0].text or "") for item, replies in answered)
        return [{"exact_match,none": float(text.endswith(target))} for target, text in texts]


@dataclass
class Unseeded(FakeTasks):
    """A scorer that draws at random: the second arm's first answers are wrong, whatever they say."""

    n_calls: int = 0

    def score(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> list[dict[str, Any]]:
        self.n_calls += 1
        scores = super().score(task, answered)
        return [{"exact_match,none": 0.0}] * 3 + scores[3:] if self.n_calls == 2 else scores


async def test_the_same_tasks_give_the_same_scores_and_others_show_what_changed_but_replace_nothing() -> None:
    bench = Bench.of(100, on=lambda p, s: reply(f"it is {p[4:]}" if int(p[4:]) < 20 else p[4:]))
    before = await bench.run()
    comparison_id, scores = before.comparison_id, list(bench.store.scores(before.comparison_id))
    same = rescore(bench.services, comparison_id, store=True)
    assert (same.scores, same.tasks_changed, same.is_stored, same.analysis) == ((), (), False, before)
    assert [(one.n_scores, one.n_changed) for one in same.metrics] == [(200, 0)]
    bench.harness.tasks = Lenient(n_items=100)
    shown = rescore(bench.services, comparison_id)
    (metric,) = shown.metrics
    assert (metric.n_scores, metric.n_changed) == (200, 20)
    assert (metric.verdict_before, metric.verdict_now) == (Verdict.REGRESSION, Verdict.INCONCLUSIVE)
    assert {(one.arm, one.before, one.now) for one in shown.scores} == {(ArmName.CANDIDATE, 0.0, 1.0)}
    assert sorted(one.item for one in shown.scores) == sorted(f"sums/{n}" for n in range(20))
    assert english(shown.tasks_changed) == ("sums: another configuration",)
    assert list(bench.store.plan_hashes(comparison_id)) == [before.plan_hash]
    kept = rescore(bench.services, comparison_id, store=True)
    assert (shown.is_stored, kept.is_stored) == (False, True)
    assert bench.store.analysis(comparison_id) == before
    assert list(bench.store.scores(comparison_id)) == scores
    beside = bench.store.analysis(comparison_id, plan_hash=kept.analysis.plan_hash)
    assert beside.verdict is Verdict.INVALID
    assert "scored again after the data with other tasks (sums: another configuration)" in english(beside.reasons)[0]
    bench.harness.tasks = replace(FakeTasks(n_items=100), harness_version="1")
    assert english(rescore(bench.services, comparison_id).tasks_changed) == ("lm-eval 0, now 1",)


async def test_the_same_text_with_another_score_is_the_scorers_and_put_right_by_scoring_again() -> None:
    bench = Bench.of(100, Unseeded)
    before = await bench.run()
    assert (before.verdict, before.pairs.same_text_other_score) == (Verdict.INVALID, 3)
    assert english(before.reasons)[0].startswith("3 items have the same answer and another score")
    again = rescore(bench.services, before.comparison_id).analysis
    assert (again.verdict, again.pairs.same_text_other_score) == (Verdict.INCONCLUSIVE, 0)


def compare_runs(bench: Bench, baseline: str, candidate: str, **wanted: Any) -> Analysis:
    request = ImportRequest(**wanted)
    return compare_stored(bench.store, task_catalog(), baseline, candidate, request, now=bench.clock.now())


async def test_two_candidates_of_two_comparisons() -> None:
    bench = Bench.of(200)
    one, other = (await run(bench, 2)).comparison_id, (await run(bench, 40)).comparison_id
    found = compare_runs(bench, one, other)
    assert found.verdict is Verdict.REGRESSION
    assert (found.metrics[0].evidence.losses, found.metrics[0].evidence.gains) == (38, 0)
    comparison = bench.store.get(found.comparison_id)
    assert comparison.plan.imported.baseline == f"lm-eval 0, {one}/candidate"
    assert "made of two runs: what was run cannot be checked" in english(signoff_obstacles(found, comparison))
    assert any(caveat.startswith("Made of two runs of this store") for caveat in english(found.caveats))


async def test_the_arms_of_one_comparison_give_its_own_numbers_and_what_one_run_lacks_is_missing() -> None:
    bench = Bench.of(100)
    own = await run(bench, 7)
    found = compare_runs(bench, f"{own.comparison_id}/baseline", f"{own.comparison_id}/candidate")
    assert found.metrics == own.metrics
    ids = (own.comparison_id, found.comparison_id)
    texts = [sorted(a.reply.text for a in bench.store.answers(one, arm=ArmName.CANDIDATE)) for one in ids]
    assert texts[0] == texts[1]
    bench.candidate.answer = other_for({3}, failure())
    found = compare_runs(bench, own.comparison_id, (await bench.run()).comparison_id)
    assert (found.metrics[0].n_items, found.metrics[0].n_missing_candidate) == (100, 1)


async def test_what_a_run_that_stopped_early_never_asked_is_left_out() -> None:
    bench = Bench.of(500)
    early = (await run(bench, looks=5, rule=DecisionRule(margin=0.05))).comparison_id
    whole = (await run(bench)).comparison_id
    n_looked = bench.store.looks(early)[-1].n_items
    assert n_looked < 500
    for baseline, candidate in ((early, whole), (whole, early)):
        found = compare_runs(bench, baseline, candidate)
        missing, caveats = found.suite.missing, english(found.caveats)
        assert (missing.n_asked, missing.baseline_only, missing.candidate_only) == (n_looked, 0, 0)
        assert (found.metrics[0].n_items, found.metrics[0].n_missing) == (n_looked, 0)
        assert "Items that only one of the two runs asked are left out: they are not missing." in caveats
        assert not any("unanswered" in caveat for caveat in caveats)
        assert compare_again(bench.services, found.comparison_id).is_as_stored


async def test_runs_that_cannot_be_compared_are_refused() -> None:
    bench = Bench.of(50)
    one, other = (await run(bench)).comparison_id, (await run(bench, system_instruction="Be brief.")).comparison_id
    with pytest.raises(PairDiffers, match="system instruction"):
        compare_runs(bench, one, other)
    compare_runs(bench, one, other, allowed=(FindingCode.SYSTEM_INSTRUCTION,))
    with pytest.raises(InvalidValue, match="is stopped: its answers are not scored yet"):
        compare_runs(bench, one, await stopped(bench))
    with pytest.raises(InvalidValue, match="names no run"):
        compare_runs(bench, f"{one}/left", one)
    with pytest.raises(ComparisonNotFound):
        compare_runs(bench, "none", one)

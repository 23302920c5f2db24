"""Stored answers scored again: what the installed tasks make of them, and that nothing stored is replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from qualab.model.items import Item, Reply
from qualab.model.names import ArmName, Verdict
from qualab.run.rescore import rescore
from qualab.run.run import start
from tests.app.fakes import Bench, FakeHarness, FakeTasks, QuietProgress, echo_number, experiment, reply
from tests.said import english


@dataclass
class Lenient(FakeTasks):
    """A later version of the task: what ends with the number is right, too."""

    config_hash: str = "later"

    def score(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> list[dict[str, Any]]:
        return [
            {"exact_match,none": float((replies[0].text or "").endswith(item.target))} for item, replies in answered
        ]


@dataclass
class Unseeded(FakeTasks):
    """A scorer that draws at random: the second arm's first answers are wrong, whatever they say."""

    n_calls: int = 0

    def score(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> list[dict[str, Any]]:
        self.n_calls += 1
        scores = super().score(task, answered)
        return [{"exact_match,none": 0.0}] * 3 + scores[3:] if self.n_calls == 2 else scores


async def finished() -> tuple[Bench, str]:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=100)))
    bench.candidate.answer = lambda p, s: reply(f"it is {p[4:]}") if int(p[4:]) < 20 else echo_number(p, s)
    found = await start(bench.services, experiment(), keys={}, progress=QuietProgress())
    assert found.metrics[0].verdict is Verdict.REGRESSION
    return bench, found.comparison_id


async def test_the_same_tasks_give_the_same_scores() -> None:
    bench, comparison_id = await finished()
    found = rescore(bench.services, comparison_id, store=True)
    assert found.scores == ()
    assert found.tasks_changed == ()
    assert [(one.n_scores, one.n_changed) for one in found.metrics] == [(200, 0)]
    assert found.analysis == bench.store.analysis(comparison_id)
    assert not found.is_stored


async def test_other_tasks_show_what_changed_by_metric_and_item() -> None:
    bench, comparison_id = await finished()
    bench.harness.tasks = Lenient(n_items=100)
    found = rescore(bench.services, comparison_id)
    (metric,) = found.metrics
    assert (metric.n_scores, metric.n_changed) == (200, 20)
    assert (metric.verdict_before, metric.verdict_now) == (Verdict.REGRESSION, Verdict.INCONCLUSIVE)
    assert {(one.arm, one.before, one.now) for one in found.scores} == {(ArmName.CANDIDATE, 0.0, 1.0)}
    assert sorted(one.item for one in found.scores) == sorted(f"sums/{n}" for n in range(20))
    assert english(found.tasks_changed) == ("sums: another configuration",)


async def test_the_same_text_with_another_score_is_the_scorer_s_and_mended_by_scoring_again() -> None:
    bench = Bench(harness=FakeHarness(Unseeded(n_items=100)))
    found = await start(bench.services, experiment(), keys={}, progress=QuietProgress())
    assert found.verdict is Verdict.INVALID
    assert found.pairs.same_text_other_score == 3
    assert english(found.reasons)[0].startswith("3 items have the same answer and another score")
    again = rescore(bench.services, found.comparison_id).analysis
    assert (again.verdict, again.pairs.same_text_other_score) == (Verdict.INCONCLUSIVE, 0)


async def test_nothing_stored_is_replaced() -> None:
    bench, comparison_id = await finished()
    before, scores = bench.store.analysis(comparison_id), list(bench.store.scores(comparison_id))
    bench.harness.tasks = Lenient(n_items=100)
    shown = rescore(bench.services, comparison_id)
    assert list(bench.store.plan_hashes(comparison_id)) == [before.plan_hash]
    kept = rescore(bench.services, comparison_id, store=True)
    assert (shown.is_stored, kept.is_stored) == (False, True)
    assert bench.store.analysis(comparison_id) == before
    assert list(bench.store.scores(comparison_id)) == scores
    beside = bench.store.analysis(comparison_id, plan_hash=kept.analysis.plan_hash)
    assert beside.verdict is Verdict.INVALID
    assert "scored again after the data with other tasks (sums: another configuration)" in english(beside.reasons)[0]


async def test_another_version_of_the_harness_is_named() -> None:
    bench, comparison_id = await finished()
    bench.harness.tasks = replace(FakeTasks(n_items=100), harness_version="1")
    assert english(rescore(bench.services, comparison_id).tasks_changed) == ("lm-eval 0, now 1",)

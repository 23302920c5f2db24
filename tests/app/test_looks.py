"""Runs with looks: when they stop, what they say, and that a killed one comes to the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from qualab.analysis.evidence import with_zero
from qualab.analysis.looks import LookData, level_of, take_look
from qualab.analysis.samples import Streams, layout_of, read_scores
from qualab.errors import PlanChanged, RunStopped, StoreFull
from qualab.model.comparison import Analysis, Evidence, Look, MetricLook
from qualab.model.items import Item, Reply
from qualab.model.names import ComparisonStatus, LookDecision, MetricKind, Objective, Verdict
from qualab.model.plan import DecisionRule, LookPlan, MetricSpec, TaskSpec
from qualab.planning.power import Missing, power_at_looks
from qualab.run.prepare import in_random_order, stage_ends
from qualab.run.stored import compare_again, with_rule
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar_sides
from qualab.stats.distributions import normal_sf
from qualab.stats.equivalence import equivalence
from qualab.stats.interval import tango
from qualab.stats.looks import spending_boundaries
from tests.app.fakes import (
    Answerer,
    Bench,
    FakeHarness,
    FakeTasks,
    QuietProgress,
    echo_number,
    failure,
    generation,
    metric_spec,
    other_for,
    reply,
    task_spec,
)
from tests.app.test_analysis_kinds import Column, zeros_and_ones
from tests.said import english
from tests.store.samples import make_plan


@dataclass
class TwoTasks(FakeTasks):
    """Sums and products, 3 to 1; with `extra`, a metric of the products that is no primary."""

    extra: bool = False

    @property
    def tasks(self) -> tuple[TaskSpec, ...]:
        return (task_spec("sums", self.n_items), task_spec("products", self.n_items // 3))

    @property
    def metrics(self) -> tuple[MetricSpec, ...]:
        more = [metric_spec("products", name="other", is_primary=False)] if self.extra else []
        return (metric_spec("sums"), metric_spec("products"), *more)

    def render(self) -> Iterator[Item]:
        yield from super().render()
        yield from (generation("products", number, asks=number + 10_000) for number in range(self.n_items // 3))

    def score(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> list[dict[str, Any]]:
        rows = super().score(task, answered)
        return [row | {"other,none": row["exact_match,none"]} for row in rows] if self.extra else rows


def wrong_at(share: float, *, salt: int = 0) -> Answerer:
    """A fixed share of the prompts, scattered."""

    def answer(prompt: str, seed: int) -> Reply:
        number = int(prompt[4:])
        is_wrong = (number * 2_654_435_761 + salt) % 2**32 < share * 2**32
        return reply("no") if is_wrong else echo_number(prompt, seed)

    return answer


def evidence_of(analysis: Analysis) -> Evidence:
    found = analysis.metrics[0].evidence
    assert found is not None
    return found


async def test_an_equal_pair_stops_early_and_says_what_it_saved() -> None:
    bench = Bench.of(2_000)
    analysis = await bench.run(looks=5)
    assert analysis.verdict is Verdict.EQUIVALENT
    taken = analysis.looks
    assert taken.stopped_early
    assert (taken.n_items, taken.n_items_planned) == (taken.looks[-1].n_items, 2_000)
    assert taken.n_items < 1_000
    assert taken.n_requests_saved == 2 * (2_000 - taken.n_items)
    assert len(bench.baseline.bodies) == len(bench.candidate.bodies) == taken.n_items
    assert analysis.metrics[0].n_items == taken.n_items
    assert analysis.metrics[0].n_missing == 0
    assert taken.looks[-1].decision is LookDecision.PROVEN
    assert "proven at look" in english(analysis.metrics[0].reason)
    assert bench.store.get(analysis.comparison_id).status is ComparisonStatus.FINISHED


async def test_a_broken_candidate_stops_for_harm() -> None:
    bench = Bench.of(2_000, on=wrong_at(0.15))
    analysis = await bench.run(looks=5)
    assert analysis.verdict is Verdict.REGRESSION
    assert (analysis.looks.n_items, analysis.looks.looks[0].decision) == (400, LookDecision.HARM)
    assert "harm" in english(analysis.reasons)[0]
    assert evidence_of(analysis).pvalue_adjusted < 0.05


async def test_a_run_that_reaches_its_end_is_judged_at_the_last_boundary_and_not_at_the_level_of_a_fixed_run() -> None:
    """Counts between the two levels: proven without looks, not with ten."""
    counts = PairedCounts(n_items=900, gains=5, losses=7)
    level = level_of(tuple(k / 10 for k in range(1, 11)), 0.05)
    fixed, last = (tango(counts, confidence_level=1 - 2 * one) for one in (0.05, level))
    rule = DecisionRule(margin=-(fixed.low + last.low) / 2)
    without, with_looks = [
        await Bench.of(900, off=other_for(range(800, 805)), on=other_for(range(805, 812))).run(looks=looks, rule=rule)
        for looks in (None, 10)
    ]
    assert (without.verdict, with_looks.verdict) == (Verdict.EQUIVALENT, Verdict.INCONCLUSIVE)
    assert without.looks is None
    taken = with_looks.looks
    assert (taken.stopped_early, len(taken.looks), taken.n_requests_saved) == (False, 10, 0)
    assert evidence_of(with_looks).equivalence_interval.low == pytest.approx(last.low)


async def test_intervals_and_p_values_are_those_of_the_boundaries() -> None:
    analysis = await Bench.of(2_000, on=wrong_at(0.006)).run(looks=5)
    taken = analysis.looks
    fractions = tuple(one.metrics[0].fraction for one in taken.looks)
    assert fractions == tuple(k / 5 for k in range(1, len(fractions) + 1))
    evidence = evidence_of(analysis)
    assert evidence.losses > 0
    counts = PairedCounts(n_items=evidence.n_items, gains=evidence.gains, losses=evidence.losses)
    for interval, alpha in ((evidence.interval, 0.025), (evidence.equivalence_interval, 0.05)):
        level = level_of(fractions, alpha)
        expected = tango(counts, confidence_level=1 - 2 * level)
        assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
        assert interval.confidence_level == pytest.approx(1 - 2 * alpha)
    last = taken.looks[-1].metrics[0]
    assert last.boundary == pytest.approx(float(spending_boundaries(fractions)[-1]))
    assert last.harm_boundary == pytest.approx(float(spending_boundaries(fractions, alpha=0.025)[-1]))
    adjusted = [one.metrics[0].pvalue_adjusted for one in taken.looks]
    assert evidence.pvalue_adjusted == adjusted[-1]
    assert evidence.pvalue_adjusted >= evidence.pvalue


def test_each_stage_holds_the_next_share_of_every_tasks_order() -> None:
    items = [*TwoTasks(n_items=90).render()]
    plain, staged = (in_random_order(items, seed=7, n_stages=n) for n in (1, 4))
    assert [item.task for item in plain] == ["sums"] * 90 + ["products"] * 30
    ends = stage_ends(staged, n_stages=4)
    stages = [staged[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    counts = [dict(Counter(item.task for item in stage)) for stage in stages]
    assert counts == [{"sums": 22, "products": 7}, {"sums": 23, "products": 8}] * 2
    for task in ("sums", "products"):
        assert [i.doc_id for i in staged if i.task == task] == [i.doc_id for i in plain if i.task == task]
    assert [item.position for item in staged] == list(range(120))


async def test_harm_to_one_metric_stops_the_run_and_leaves_the_other_open() -> None:
    analysis = await Bench.of(3_000, TwoTasks, on=other_for(range(10_000, 11_000))).run(looks=10)
    assert analysis.verdict is Verdict.REGRESSION
    rows = {row.task: row for row in analysis.metrics}
    assert (rows["products"].verdict, rows["sums"].verdict) == (Verdict.REGRESSION, Verdict.INCONCLUSIVE)


async def test_metrics_that_are_not_primary_come_with_a_caveat() -> None:
    analysis = await Bench(harness=FakeHarness(TwoTasks(n_items=3_000, extra=True))).run(looks=5)
    assert any("Only the primary metrics are adjusted for the looks" in caveat for caveat in english(analysis.caveats))
    assert analysis.metrics[2].equals == "products/exact_match,none"
    assert analysis.metrics[2].verdict is analysis.metrics[1].verdict


async def test_missing_answers_count_as_no_information_and_can_keep_a_look_open() -> None:
    bench = Bench.of(1_000, on=other_for(range(3, 1_000, 20), failure()))
    analysis = await bench.run(looks=5, rule=DecisionRule(max_missing_share=0.2))
    assert analysis.verdict is Verdict.INCONCLUSIVE
    assert "missing counted as wrong" in english(analysis.reasons)[-1]
    fractions = [one.metrics[0].fraction for one in analysis.looks.looks]
    pairs = [one.metrics[0].n_pairs for one in analysis.looks.looks]
    assert fractions[:-1] == [n / 1_000 for n in pairs[:-1]]
    assert fractions[-1] == 1.0
    assert pairs[-1] == 950


def test_a_stage_without_a_pair_decides_nothing_and_spends_nothing() -> None:
    column = Column(task="t", off=[None] * 100 + [1.0] * 100, on=[1.0] * 200)
    first = take(column, number=1, n_looks=10, n_items=1_000)
    second = take(column, number=2, n_looks=10, n_items=1_000, before=[first])
    (early,), (late,) = first.metrics, second.metrics
    assert (early.n_pairs, early.boundary, early.interval, early.decision) == (0, None, None, LookDecision.CONTINUE)
    assert late.boundary == pytest.approx(float(spending_boundaries([0.1])[0]))


def same_but_for_names(one: Analysis, other: Analysis) -> bool:
    """What the engines counted aside: counters of a stretch that a death cut off are lost."""
    plain = {"comparison_id": "", "versions": {}, "treatment": None, "input_hash": ""}
    return replace(one, **plain) == replace(other, **plain)


@pytest.mark.parametrize(
    ("method", "call"),
    [("add_look", 1), ("add_look", 2), ("add_answers", 3), ("add_answers", 6), ("put_scores", 1), ("put_analysis", 1)],
)
async def test_a_run_that_dies_anywhere_comes_to_the_same_looks_and_verdict(method: str, call: int) -> None:
    """Before a look is stored, between a look and the next stage, within a stage, and after the last."""
    expected, bench = (Bench.of(1_200, off=wrong_at(0.01, salt=2**31), on=wrong_at(0.01)) for _ in range(2))
    bench.baseline.delay_s = bench.candidate.delay_s = 0.0005
    whole, progress, kept, calls = await expected.run(looks=5), QuietProgress(), getattr(bench.store, method), count(1)

    def fails_once(*arguments: Any, **named: Any) -> Any:
        if next(calls) == call:
            raise StoreFull("The disk is full")
        return kept(*arguments, **named)

    setattr(bench.store, method, fails_once)
    with pytest.raises((StoreFull, RunStopped)):
        await bench.run(looks=5, progress=progress)
    setattr(bench.store, method, kept)
    resumed = await bench.resume(progress.comparison.id)
    assert len(bench.store.answered(resumed.comparison_id)) == 2 * resumed.looks.n_items
    assert whole.looks.stopped_early
    assert len(whole.looks.looks) > 2
    assert same_but_for_names(whole, resumed)


async def test_a_run_that_has_stopped_asks_nothing_more_even_what_failed() -> None:
    bench = Bench.of(2_000, on=lambda p, s: failure() if p == "say 7" else wrong_at(0.15)(p, s))
    first, progress = await bench.run(looks=5), QuietProgress()
    assert await bench.resume(first.comparison_id, progress=progress, retry_failed=True) == first
    assert not progress.answers


async def test_what_failed_before_a_look_is_not_asked_again_and_what_failed_after_it_is() -> None:
    """A look is never taken twice on different answers."""
    bench = Bench.of(1_000)
    failing_now = {"after": False}
    early: set[str] = set()

    def answer(prompt: str, seed: int) -> Reply:
        if failing_now["after"]:
            return failure()
        if len(early) < 3:
            early.add(prompt)
            return failure()
        return wrong_at(0.02)(prompt, seed)

    class Watching(QuietProgress):
        def phase(self, text: str) -> None:
            failing_now["after"] |= text.startswith("Look 1")

    bench.candidate.answer = answer
    progress = Watching()
    with pytest.raises(RunStopped):
        await bench.run(looks=5, progress=progress)
    (taken,) = bench.store.looks(progress.comparison.id)
    failing_now["after"] = False
    analysis = await bench.resume(progress.comparison.id, retry_failed=True)
    assert analysis.looks.looks[0] == taken
    assert analysis.arms[1].statuses["http_error"] == 3
    assert analysis.metrics[0].n_missing_candidate == 3


def take(
    column: Column,
    *,
    number: int,
    n_looks: int,
    n_items: int,
    before: Sequence[Look] = (),
    rule: DecisionRule = DecisionRule(margin=0.02),  # noqa: B008  frozen
) -> Look:
    """A look at the first items of a column of scores, `n_items` of which are planned."""
    looks, end = LookPlan(n_looks=n_looks), -(-n_items * number // n_looks)
    plan = make_plan(tasks=(task_spec("t", n_items),), metrics=(column.spec,), rule=rule, looks=looks)
    clusters = column.clusters or [""] * len(column.off)
    items = [replace(generation("t", n), cluster=cluster) for n, cluster in enumerate(clusters)]
    data = LookData(
        plan=plan,
        looks=looks,
        scores=read_scores(column.scores({("t", n): n for n in range(len(items))}, repeats=1), items),
        layout=layout_of(plan, items[:end]),
        streams=Streams.of("p"),
        number=number,
        before=before,
    )
    return take_look(data, n_items=end, input_hash="")


def looked_at(column: Column, *, number: int, n_looks: int, **changes: Any) -> MetricLook:
    """A look at a whole column, as that of a plan of which it is the share so far."""
    n_items = len(column.off) * n_looks // number
    (found,) = take(column, number=number, n_looks=n_looks, n_items=n_items, **changes).metrics
    return found


def pure_decision(counts: PairedCounts, *, boundary: float, harm_boundary: float, is_last: bool) -> LookDecision:
    """A look at independent 0/1 scores, margin 2 pp, without what was proven before and without improvements."""
    level = normal_sf(boundary)
    result = equivalence(counts, margin=0.02, alpha=level)
    is_harmed = mcnemar_sides(counts.gains, counts.losses)[0] <= normal_sf(harm_boundary)
    if is_harmed and counts.difference <= -0.02:
        return LookDecision.HARM
    if level >= 1e-8 and min(result.statistic_lower, -result.statistic_upper) >= boundary and result.is_equivalent:
        return LookDecision.PROVEN
    return LookDecision.HARM if is_harmed and is_last else LookDecision.CONTINUE


@pytest.mark.parametrize(("gains", "losses"), [(0, 0), (1, 3), (4, 4), (9, 2), (2, 14), (1, 30), (0, 12), (12, 12)])
@pytest.mark.parametrize("n_items", [200, 800])
@pytest.mark.parametrize(("number", "n_looks"), [(2, 5), (2, 2)])
def test_a_look_at_independent_items_decides_as_the_pure_statistics_do(
    gains: int, losses: int, n_items: int, number: int, n_looks: int
) -> None:
    off, on = zeros_and_ones(n_items, gains, losses)
    found = looked_at(Column(task="t", off=off, on=on), number=number, n_looks=n_looks)
    fraction = number / n_looks
    (boundary,), (harm,) = spending_boundaries([fraction]), spending_boundaries([fraction], alpha=0.025)
    counts = PairedCounts(n_items=n_items, gains=gains, losses=losses)
    expected = pure_decision(counts, boundary=float(boundary), harm_boundary=float(harm), is_last=number == n_looks)
    if found.decision is LookDecision.IMPROVEMENT:  # of which the pure rule knows nothing
        assert (expected, gains > losses) == (LookDecision.CONTINUE, True)
    else:
        assert found.decision is expected
    level = level_of((fraction,), 0.05)
    repeated = tango(counts, confidence_level=1.0 - 2.0 * normal_sf(float(boundary)))
    expected_interval = with_zero(repeated, 2 * min(mcnemar_sides(gains, losses)), level)
    assert (found.interval.low, found.interval.high) == pytest.approx((expected_interval.low, expected_interval.high))
    assert found.pvalue_loss == pytest.approx(mcnemar_sides(gains, losses)[0])


def decided(
    gains: int,
    losses: int,
    *,
    number: int = 4,
    strict: bool = False,
    objective: Objective = Objective.EQUIVALENCE,
) -> LookDecision:
    """At a look of four, the first that brings anything."""
    off, on = zeros_and_ones(1_000, gains, losses)
    rule = DecisionRule(margin=0.02, strict=strict, objective=objective)
    return looked_at(Column(task="t", off=off, on=on), number=number, n_looks=4, rule=rule).decision


def test_a_small_real_loss_goes_on_so_that_it_can_be_proven_inside_the_margin() -> None:
    assert decided(2, 20, number=2) is LookDecision.CONTINUE  # −1.8 pp, beyond the boundary of harm
    assert decided(20, 2, number=2) is LookDecision.CONTINUE
    assert decided(2, 20, number=2, strict=True) is LookDecision.HARM
    assert decided(2, 24, number=2) is LookDecision.HARM  # −2.2 pp
    assert decided(24, 2, number=2) is LookDecision.IMPROVEMENT
    assert decided(0, 8) is LookDecision.PROVEN  # −0.8 pp, real and inside
    assert decided(0, 8, strict=True) is LookDecision.HARM
    assert decided(8, 0, strict=True) is LookDecision.IMPROVEMENT
    assert decided(2, 20) is LookDecision.HARM  # at the end what is real and not proven is a loss
    assert decided(20, 2) is LookDecision.IMPROVEMENT
    one_sided = Objective.NON_INFERIORITY
    assert decided(30, 2, objective=one_sided, number=3) is LookDecision.PROVEN
    assert decided(30, 2, objective=one_sided, number=3, strict=True) is LookDecision.IMPROVEMENT


@pytest.mark.parametrize(
    ("arms", "size", "decision"),
    [
        (zeros_and_ones(600, 4, 4), 4, LookDecision.PROVEN),
        (([1.0] * 900, [0.0] * 30 + [1.0] * 870), 10, LookDecision.HARM),
    ],
)
def test_clusters_make_a_look_more_careful(arms: Any, size: int, decision: LookDecision) -> None:
    off, on = arms
    free, tied = (
        looked_at(Column(task="t", off=off, on=on, clusters=clusters), number=3, n_looks=5)
        for clusters in ([], [str(n // size) for n in range(len(off))])
    )
    assert (free.decision, tied.decision) == (decision, LookDecision.CONTINUE)
    assert tied.interval.high > free.interval.high
    assert tied.pvalue_loss >= free.pvalue_loss


def test_other_scores_are_looked_at_by_their_bound() -> None:
    """At the first of five looks nothing is proven by little spread; at the last as by 0 discordant items."""
    off = [0.5, 0.4] * 150
    first, last = (looked_at(Column(task="t", off=off, on=off), number=number, n_looks=5) for number in (1, 5))
    assert (first.decision, last.decision) == (LookDecision.CONTINUE, LookDecision.PROVEN)
    assert last.interval.high == pytest.approx(1 - level_of((1.0,), 0.05) ** (1 / 300))
    assert (last.pvalue_loss, last.pvalue_gain) == (1.0, 1.0)
    lost = [x - 0.4 * (n < 30) for n, x in enumerate(off)]
    worse = looked_at(Column(task="t", off=off, on=lost), number=5, n_looks=5)
    assert worse.pvalue_loss == pytest.approx((1 + 0.4) ** -30)  # 30 weights of 0.4 against one gain of 1
    assert worse.decision is LookDecision.HARM


def test_macro_f1_is_bounded_by_counting_where_resamples_do_not_reach() -> None:
    truth = [n % 2 for n in range(600)]
    before = list(zip(truth, truth, strict=True))
    after = [(t, 1 - t if n < 20 else t) for n, t in enumerate(truth)]
    column = Column(task="t", off=before, on=after, kind=MetricKind.MACRO_F1)
    early, late = (looked_at(column, number=number, n_looks=5) for number in (1, 5))
    assert early.interval.low < -0.05 < late.interval.low
    assert early.pvalue_loss == pytest.approx(0.5e-4)
    assert late.decision is LookDecision.HARM
    assert early.decision is LookDecision.CONTINUE


@pytest.mark.simulation
def test_looks_at_clusters_in_random_order_are_wrong_at_the_margin_at_most_as_often_as_they_may() -> None:
    """240 passages of three questions that share most of their fate; items, not passages, come in random order."""
    rng, n_runs, margin = np.random.default_rng(5), 150, 0.05
    cluster = np.repeat(np.arange(240), 3)
    chances = [0.05 + margin / 2, 0.9, 0.05 - margin / 2]
    wrong = 0
    for _ in range(n_runs):
        shared, own = rng.choice([-1, 0, 1], p=chances, size=240)[cluster], rng.choice([-1, 0, 1], p=chances, size=720)
        differences = np.where(rng.random(720) < 0.8, shared, own)[order := rng.permutation(720)]
        off = np.where(differences > 0, 0.0, 1.0)
        wrong += _proves(off, off + differences, cluster[order], margin)
    assert wrong / n_runs <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / n_runs)
    assert _proves(np.ones(720), np.ones(720), cluster, margin)  # it can be proven at all


@pytest.mark.simulation
@pytest.mark.parametrize("missing", [0.0, 0.01])
def test_the_power_with_looks_is_the_frequency_of_the_verdict(missing: float) -> None:
    rng, n_items, discordance, margin, n_runs = np.random.default_rng(11), 400, 0.04, 0.05, 80
    power = power_at_looks(
        n_items=n_items,
        margin=margin,
        discordance=discordance,
        alpha=0.05,
        harm_alpha=0.025,
        n_looks=4,
        missing=Missing(share=missing),
    )
    n_proven = 0
    for _ in range(n_runs):
        off = rng.random(n_items) < 0.6
        on = np.where(rng.random(n_items) < discordance, ~off, off)
        arms = [np.where(rng.random(n_items) < missing, np.nan, arm) for arm in (off, on)]
        n_proven += _proves(*arms, np.arange(n_items), margin)
    assert n_proven / n_runs == pytest.approx(power, abs=3 * np.sqrt(0.25 / n_runs))


def _proves(off: Any, on: Any, cluster: Any, margin: float) -> bool:
    off_scores, on_scores = ([None if np.isnan(one) else one for one in arm.tolist()] for arm in (off, on))
    column = Column(task="t", off=off_scores, on=on_scores, clusters=[str(one) for one in cluster])
    looks: list[Look] = []
    for number in range(1, 5):
        rule = DecisionRule(margin=margin)
        looks.append(take(column, number=number, n_looks=4, n_items=off.size, before=looks, rule=rule))
    return looks[-1].metrics[0].decision is LookDecision.PROVEN


async def test_each_primary_is_looked_at_with_its_own_margin_until_all_are_settled() -> None:
    analysis = await Bench.of(600, TwoTasks).run(looks=5, rule=DecisionRule(margins={"products": 0.2}))
    rows = {row.task: row for row in analysis.metrics}
    assert rows["products"].verdict is Verdict.EQUIVALENT
    assert "±20.00 pp" in english(rows["products"].reason)
    decided = {one.metric: one.decided_at for one in analysis.looks.looks[-1].metrics}
    assert decided["products/exact_match,none"] == 2 < len(analysis.looks.looks)


async def test_a_run_with_looks_is_analysed_again_the_same_and_under_no_other_plan() -> None:
    bench = Bench.of(2_000)
    analysis = await bench.run(looks=5)
    again = compare_again(bench.services, analysis.comparison_id)
    assert again.is_as_stored
    assert again.analysis == analysis
    plan = bench.store.get(analysis.comparison_id).plan
    with pytest.raises(PlanChanged, match="looks"):
        compare_again(bench.services, analysis.comparison_id, other=with_rule(plan, {"margin": 0.05}))
    with pytest.raises(PlanChanged, match="looks differ"):
        compare_again(bench.services, analysis.comparison_id, other=replace(plan, looks=None))

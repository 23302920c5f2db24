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
from qualab.model.comparison import Look, MetricLook
from qualab.model.items import Item, Reply
from qualab.model.names import ComparisonStatus, LookDecision, MetricKind, Objective, Verdict
from qualab.model.plan import DecisionRule, LookPlan, MetricSpec
from qualab.planning.power import Missing, power_at_looks
from qualab.run.prepare import in_random_order, stage_ends
from qualab.run.stored import compare_again, with_rule
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar_sides
from qualab.stats.distributions import normal_sf
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

    def __post_init__(self) -> None:
        self.sizes = {"sums": self.n_items, "products": self.n_items // 3}

    @property
    def metrics(self) -> tuple[MetricSpec, ...]:
        return super().metrics + (metric_spec("products", name="other", is_primary=False),) * self.extra

    def render(self) -> Iterator[Item]:
        yield from FakeTasks(self.n_items).render()
        yield from (generation("products", number, asks=number + 10_000) for number in range(self.n_items // 3))

    def score(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> list[dict[str, Any]]:
        rows = super().score(task, answered)
        return [row | {"other,none": row["exact_match,none"]} for row in rows] if self.extra else rows


def wrong_at(share: float, *, salt: int = 0) -> Answerer:
    """A fixed share of the prompts, scattered."""
    is_wrong = lambda prompt: (int(prompt[4:]) * 2_654_435_761 + salt) % 2**32 < share * 2**32  # noqa: E731
    return lambda prompt, seed: reply("no") if is_wrong(prompt) else echo_number(prompt, seed)


async def test_an_equal_pair_stops_early_and_says_what_it_saved() -> None:
    bench = Bench.of(2_000)
    analysis = await bench.run(looks=5)
    taken, (row,) = analysis.looks, analysis.metrics
    assert (analysis.verdict, taken.looks[-1].decision) == (Verdict.EQUIVALENT, LookDecision.PROVEN)
    assert taken.stopped_early
    assert taken.looks[-1].n_items == taken.n_items == row.n_items < 1_000
    assert (taken.n_items_planned, taken.n_requests_saved) == (2_000, 2 * (2_000 - taken.n_items))
    assert len(bench.baseline.bodies) == len(bench.candidate.bodies) == taken.n_items
    assert row.n_missing == 0
    assert "proven at look" in english(row.reason)
    assert bench.store.get(analysis.comparison_id).status is ComparisonStatus.FINISHED


async def test_harm_to_one_metric_stops_the_run_and_leaves_the_other_open() -> None:
    analysis = await Bench.of(2_000, on=wrong_at(0.15)).run(looks=5)
    assert analysis.verdict is Verdict.REGRESSION
    assert (analysis.looks.n_items, analysis.looks.looks[0].decision) == (400, LookDecision.HARM)
    assert "harm" in english(analysis.reasons)[0]
    assert analysis.metrics[0].evidence.pvalue_adjusted < 0.05
    analysis = await Bench.of(3_000, TwoTasks, on=other_for(range(10_000, 11_000))).run(looks=10)
    verdicts = {row.task: row.verdict for row in analysis.metrics} | {"": analysis.verdict}
    assert verdicts == {"products": Verdict.REGRESSION, "sums": Verdict.INCONCLUSIVE, "": Verdict.REGRESSION}


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
    assert with_looks.metrics[0].evidence.equivalence_interval.low == pytest.approx(last.low)


async def test_intervals_and_p_values_are_those_of_the_boundaries() -> None:
    analysis = await Bench.of(2_000, on=wrong_at(0.006)).run(looks=5)
    looks = [one.metrics[0] for one in analysis.looks.looks]
    fractions = tuple(one.fraction for one in looks)
    assert fractions == tuple(k / 5 for k in range(1, len(fractions) + 1))
    evidence = analysis.metrics[0].evidence
    assert evidence.losses > 0
    counts = PairedCounts(n_items=evidence.n_items, gains=evidence.gains, losses=evidence.losses)
    for interval, alpha in ((evidence.interval, 0.025), (evidence.equivalence_interval, 0.05)):
        expected = tango(counts, confidence_level=1 - 2 * level_of(fractions, alpha))
        assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
        assert interval.confidence_level == pytest.approx(1 - 2 * alpha)
    assert looks[-1].boundary == pytest.approx(float(spending_boundaries(fractions)[-1]))
    assert looks[-1].harm_boundary == pytest.approx(float(spending_boundaries(fractions, alpha=0.025)[-1]))
    assert looks[-1].pvalue_loss == pytest.approx(mcnemar_sides(evidence.gains, evidence.losses)[0])
    assert evidence.pvalue_adjusted == looks[-1].pvalue_adjusted >= evidence.pvalue


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


async def test_each_primary_is_looked_at_with_its_own_margin_until_all_are_settled_and_no_other_metric() -> None:
    tasks = TwoTasks(n_items=600, extra=True)
    analysis = await Bench(harness=FakeHarness(tasks)).run(looks=5, rule=DecisionRule(margins={"products": 0.2}))
    _, products, other = analysis.metrics
    assert products.verdict is other.verdict is Verdict.EQUIVALENT
    assert "±20.00 pp" in english(products.reason)
    assert other.equals == "products/exact_match,none"
    assert any("Only the primary metrics are adjusted for the looks" in caveat for caveat in english(analysis.caveats))
    decided = {one.metric: one.decided_at for one in analysis.looks.looks[-1].metrics}
    assert decided["products/exact_match,none"] == 2 < len(analysis.looks.looks)


async def test_missing_answers_count_as_no_information_and_can_keep_a_look_open() -> None:
    bench = Bench.of(1_000, on=other_for(range(3, 1_000, 20), failure()))
    analysis = await bench.run(looks=5, rule=DecisionRule(max_missing_share=0.2))
    assert analysis.verdict is Verdict.INCONCLUSIVE
    assert "missing counted as wrong" in english(analysis.reasons)[-1]
    looks = [one.metrics[0] for one in analysis.looks.looks]
    assert [one.fraction for one in looks] == [*(one.n_pairs / 1_000 for one in looks[:-1]), 1.0]
    assert looks[-1].n_pairs == 950


def test_a_stage_without_a_pair_decides_nothing_and_spends_nothing() -> None:
    column = Column(task="t", off=[None] * 100 + [1.0] * 100, on=[1.0] * 200)
    first = take(column, number=1, n_looks=10, n_items=1_000)
    second = take(column, number=2, n_looks=10, n_items=1_000, before=[first])
    (early,), (late,) = first.metrics, second.metrics
    assert (early.n_pairs, early.boundary, early.interval, early.decision) == (0, None, None, LookDecision.CONTINUE)
    assert late.boundary == pytest.approx(float(spending_boundaries([0.1])[0]))


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
    own = {"comparison_id": "", "versions": {}, "input_hash": ""}
    own["treatment"] = None  # counters of a stretch that a death cut off are lost
    assert replace(whole, **own) == replace(resumed, **own)


async def test_a_run_that_has_stopped_asks_nothing_more_even_what_failed() -> None:
    bench = Bench.of(2_000, on=lambda p, s: failure() if p == "say 7" else wrong_at(0.15)(p, s))
    first, progress = await bench.run(looks=5), QuietProgress()
    assert await bench.resume(first.comparison_id, progress=progress, retry_failed=True) == first
    assert not progress.answers


async def test_what_failed_before_a_look_is_not_asked_again_and_what_failed_after_it_is() -> None:
    """A look is never taken twice on different answers."""
    bench, early = Bench.of(1_000), count()

    class Watching(QuietProgress):
        def phase(self, text: str) -> None:
            if text.startswith("Look 1"):
                bench.candidate.answer = lambda prompt, seed: failure()

    bench.candidate.answer = lambda p, s: failure() if next(early) < 3 else wrong_at(0.02)(p, s)
    progress = Watching()
    with pytest.raises(RunStopped):
        await bench.run(looks=5, progress=progress)
    (taken,) = bench.store.looks(progress.comparison.id)
    bench.candidate.answer = wrong_at(0.02)
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


def decided(gains: int, losses: int, *, n_items: int = 1_000, number: int = 4, **rule: Any) -> LookDecision:
    """At a look of four, the first that brings anything."""
    off, on = zeros_and_ones(n_items, gains, losses)
    rule = DecisionRule(margin=0.02, **rule)
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


@pytest.mark.parametrize(("gains", "losses"), [(0, 0), (1, 3), (9, 2), (0, 12), (12, 12)])
def test_the_interval_of_a_look_is_the_score_interval_at_its_boundary_and_agrees_with_its_p_value(
    gains: int, losses: int
) -> None:
    off, on = zeros_and_ones(200, gains, losses)
    found = looked_at(Column(task="t", off=off, on=on), number=2, n_looks=5)
    counts, level = PairedCounts(n_items=200, gains=gains, losses=losses), level_of((0.4,), 0.05)
    repeated = tango(counts, confidence_level=1.0 - 2.0 * normal_sf(found.boundary))
    expected = with_zero(repeated, 2 * min(mcnemar_sides(gains, losses)), level)
    assert (found.interval.low, found.interval.high) == pytest.approx((expected.low, expected.high))


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
    rng, n_items, n_runs, n_proven = np.random.default_rng(11), 400, 80, 0
    truth: Any = {"n_items": n_items, "margin": 0.05, "discordance": 0.04, "missing": Missing(share=missing)}
    power = power_at_looks(**truth, alpha=0.05, harm_alpha=0.025, n_looks=4)
    for _ in range(n_runs):
        off = rng.random(n_items) < 0.6
        on = np.where(rng.random(n_items) < 0.04, ~off, off)
        arms = [np.where(rng.random(n_items) < missing, np.nan, arm) for arm in (off, on)]
        n_proven += _proves(*arms, np.arange(n_items), 0.05)
    assert n_proven / n_runs == pytest.approx(power, abs=3 * np.sqrt(0.25 / n_runs))


def _proves(off: Any, on: Any, cluster: Any, margin: float) -> bool:
    off_scores, on_scores = ([None if np.isnan(one) else one for one in arm.tolist()] for arm in (off, on))
    column = Column(task="t", off=off_scores, on=on_scores, clusters=[str(one) for one in cluster])
    looks: list[Look] = []
    for number in range(1, 5):
        found = take(column, number=number, n_looks=4, n_items=off.size, before=looks, rule=DecisionRule(margin=margin))
        looks.append(found)
    return looks[-1].metrics[0].decision is LookDecision.PROVEN


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

"""What each kind of metric gets, from scores by hand: clusters, repeats, lists, macro-F1 and groups."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qualab.analysis.analyse import analyse
from qualab.analysis.evidence import with_items_needed
from qualab.analysis.summaries import Summary
from qualab.model.comparison import Analysis, MetricResult
from qualab.model.items import Score
from qualab.model.names import EvidenceKind, MetricKind, MissingPolicy, Objective, Verdict
from qualab.model.plan import DecisionRule, MetricRule, MetricSpec
from qualab.stats.bounded import BoundedMean
from qualab.stats.clustered import clustered_equivalence
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar
from qualab.stats.interval import score_interval, tango
from qualab.stats.mean import mean_difference
from tests.app.fakes import BASELINE, CANDIDATE, generation, metric_spec, task_spec
from tests.fresh_store import fresh_store
from tests.said import KOREAN, english
from tests.stats.reference import macro_f1
from tests.store.samples import make_comparison, make_plan

Values = Sequence[Any]
"""One task's scores in one arm by document; None is missing. With repeats, a list a document."""


@dataclass(frozen=True, kw_only=True)
class Column:
    task: str
    off: Values
    on: Values
    kind: MetricKind = MetricKind.BINARY_MEAN
    name: str = "acc"
    clusters: Sequence[str] = ()
    higher_is_better: bool = True

    @property
    def spec(self) -> MetricSpec:
        return metric_spec(self.task, name=self.name, kind=self.kind, higher_is_better=self.higher_is_better)

    def scores(self, positions: Mapping[tuple[str, int], int], *, repeats: int) -> Iterator[Score]:
        for arm, values in ((BASELINE, self.off), (CANDIDATE, self.on)):
            for doc, value in enumerate(values):
                for repeat, one in enumerate(value if repeats > 1 else [value]):
                    if one is None:
                        continue
                    number, detail = (float(one), None) if isinstance(one, (int, float)) else (0.0, tuple(one))
                    place = {"arm": arm, "position": positions[self.task, doc], "repeat": repeat}
                    yield Score(**place, metric=self.spec.key, value=number, detail=detail)


def group(*members: str, name: str = "acc", **changes: Any) -> MetricSpec:
    return metric_spec("all", name=name, kind=MetricKind.GROUP_MEAN, members=members, is_primary=False, **changes)


class Aggregates:
    """Means only: the values shown are the harness's business."""

    def aggregate(self, values: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, float]]:
        return {task: dict.fromkeys(own, 0.5) for task, own in values.items()}


def analysis_of(
    *columns: Column,
    groups: Sequence[MetricSpec] = (),
    repeats: int = 1,
    rule: DecisionRule = DecisionRule(margin=0.02, max_missing_share=1.0),  # noqa: B008  frozen
) -> Analysis:
    """The analysis of these columns, asked in some random order."""
    sizes = {column.task: len(column.off) for column in columns}
    plan = make_plan(
        tasks=tuple(task_spec(task, n_items) for task, n_items in sizes.items()),
        metrics=(*groups, *(column.spec for column in columns)),
        rule=rule,
    )
    plan = replace(plan, sampling=replace(plan.sampling, repeats=repeats))
    docs = [(task, doc) for task, n_items in sizes.items() for doc in range(n_items)]
    order = np.random.default_rng(1).permutation(len(docs)).tolist()
    positions = {docs[place]: position for position, place in enumerate(order)}
    clusters = {column.task: column.clusters for column in columns if column.clusters}
    items = [
        replace(generation(task, doc), position=position, cluster=clusters[task][doc] if task in clusters else "")
        for position, (task, doc) in enumerate(docs[place] for place in order)
    ]
    store, comparison = fresh_store(), make_comparison(plan=plan)
    store.create(comparison, items)
    store.put_scores(comparison.id, [score for one in columns for score in one.scores(positions, repeats=repeats)])
    return analyse(store, comparison, Aggregates(), items, Summary(items))


def row_of(
    off: Values, on: Values, kind: MetricKind = MetricKind.BINARY_MEAN, clusters: Sequence[str] = (), **changes: Any
) -> MetricResult:
    (row,) = analysis_of(Column(task="t", off=off, on=on, kind=kind, clusters=clusters), **changes).metrics
    return row


F1 = MetricKind.MACRO_F1


def zeros_and_ones(n: int, gains: int, losses: int) -> tuple[list[float], list[float]]:
    rest = [1.0] * (n - gains - losses)
    return [0.0] * gains + [1.0] * losses + rest, [1.0] * gains + [0.0] * losses + rest


def test_items_without_clusters_get_mcnemar_and_tango() -> None:
    arms = zeros_and_ones(200, 3, 9)
    evidence = row_of(*arms).evidence
    counts = PairedCounts(n_items=200, gains=3, losses=9)
    assert evidence.kind is EvidenceKind.COUNTS
    assert (evidence.pvalue, evidence.pvalue_exact) == (mcnemar(counts).pvalue, mcnemar(counts).pvalue_exact)
    assert evidence.interval.low == tango(counts, confidence_level=0.95).low
    assert evidence.pvalue_adjusted == evidence.pvalue_holm == evidence.pvalue  # one metric needs no adjustment
    assert row_of(*arms, clusters=[f"c{n}" for n in range(200)]).evidence == evidence


def test_items_of_a_cluster_and_entries_of_a_list_flip_together_and_labels_of_an_item_are_swapped() -> None:
    # four passages of two questions, all of the first three lost: 2 of 2**3 patterns of the changed ones tie with that
    evidence = row_of([1.0] * 8, [0.0] * 6 + [1.0] * 2, clusters=list("aabbccdd")).evidence
    assert evidence.kind is EvidenceKind.CLUSTERS
    assert (evidence.pvalue, evidence.pvalue_exact) == pytest.approx((1 / 8, 2 / 8))
    assert (evidence.n_items, evidence.n_clusters, evidence.losses, evidence.difference) == (8, 4, 6, -0.75)
    off, on = [[1, 1, 1], [1], [0, 1], [1]], [[1, 0, 0], [1], [1, 1], [1]]
    evidence = row_of(off, on, MetricKind.LIST_MEAN).evidence
    assert (evidence.n_items, evidence.n_clusters, evidence.gains, evidence.losses) == (7, 4, 1, 2)
    assert evidence.difference == pytest.approx(-1 / 7)  # of all entries, not the mean of the prompts' means
    # sums −2 and +1: two patterns of four tie with −1, the others are more extreme
    assert (evidence.pvalue, evidence.pvalue_exact) == (0.75, 1.0)
    truth, after = [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 0]
    evidence = row_of([*zip(truth, truth, strict=True)], [*zip(truth, after, strict=True)], F1).evidence
    assert evidence.kind is EvidenceKind.LABELS
    assert evidence.difference == pytest.approx(macro_f1(truth, after) - 1.0)
    # both swapped or none of them, of four patterns
    assert (evidence.pvalue, evidence.pvalue_exact) == (0.25, 0.5)
    assert (evidence.gains, evidence.losses, evidence.n_changed) == (0, 2, 2)


def test_the_interval_of_clusters_has_the_farthest_limits_of_score_cr2_and_bound() -> None:
    rng = np.random.default_rng(3)
    clusters = np.repeat(np.arange(120), 3)
    off = (rng.random(360) < 0.6).astype(float)
    flips = np.repeat(rng.random(120) < 0.08, 3)
    on = np.where(flips, np.repeat(rng.integers(2, size=120), 3), off)
    evidence = row_of(off.tolist(), on.tolist(), clusters=[str(c) for c in clusters]).evidence
    t = mean_difference(on - off, cluster=clusters)
    found = clustered_equivalence(off, on, cluster=clusters, margin=0.02)
    bound = BoundedMean.of(on - off, cluster=clusters)
    assert evidence.design_effect == pytest.approx(found.design_effect)
    assert evidence.design_effect > 1.2
    score = score_interval(
        *(np.sum(on - off == sign) / found.design_effect for sign in (1, -1)),
        n_items=on.size / found.design_effect,
        confidence_level=0.9,
    )
    three = (t.interval(confidence_level=0.9), score, bound.interval(confidence_level=0.9))
    assert evidence.equivalence_interval.low == pytest.approx(min(one.low for one in three))
    assert evidence.equivalence_interval.high == pytest.approx(max(one.high for one in three))
    assert evidence.pvalue_equivalence_bounded == max(bound.pvalue_above(-0.02), bound.pvalue_below(0.02))
    assert evidence.pvalue_equivalence_exact is None
    assert evidence.standard_error == pytest.approx(t.standard_error)
    assert evidence.degrees_of_freedom == pytest.approx(t.degrees_of_freedom)
    assert evidence.provable_margin >= max(-evidence.equivalence_interval.low, evidence.equivalence_interval.high)


def test_shared_passages_prove_less_than_independent_items_and_repeats_of_an_item_no_more() -> None:
    arms = zeros_and_ones(1200, 8, 8)
    # gains stand together and so do losses
    tied, free = (row_of(*arms, clusters=own).evidence for own in ([str(n // 4) for n in range(1200)], ()))
    assert tied.design_effect > 3
    assert tied.provable_margin > 1.5 * free.provable_margin
    needed = [with_items_needed(one, MetricRule()).items_needed for one in (tied, free)]
    assert needed[0] > 3 * needed[1]
    off, on = zeros_and_ones(100, 2, 4)
    once = row_of(off, on).evidence
    five = row_of([[x] * 5 for x in off], [[x] * 5 for x in on], repeats=5).evidence
    assert (five.n_items, five.n_clusters, five.difference) == (500, 100, once.difference)
    assert five.design_effect == pytest.approx(5.0, rel=0.02)
    assert (five.pvalue, five.pvalue_exact) == pytest.approx((once.pvalue, once.pvalue_exact))
    assert five.provable_margin == pytest.approx(once.provable_margin, rel=0.1)


def labels(n: int, n_changed: int, *, seed: int = 1, n_classes: int = 2) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    truth = (np.arange(n) % n_classes).tolist()
    before = [t if rng.random() < 0.8 else (t + 1) % n_classes for t in truth]
    after = [(b + 1) % n_classes if i < n_changed else b for i, b in enumerate(before)]
    return list(zip(truth, before, strict=True)), list(zip(truth, after, strict=True))


def test_macro_f1_is_resampled_without_a_change_counted_and_not_bounded_with_a_label_that_is_none_of_the_true() -> None:
    evidence = row_of(*labels(1400, 40), F1).evidence
    assert evidence.standard_error > 0
    assert evidence.interval.low < evidence.equivalence_interval.low < evidence.difference < evidence.interval.high
    assert english(evidence.note) == ""
    off, on = labels(1400, 0)
    row = row_of(off, on, F1)
    # none of 1400 changed: at most 3 / 1400 did (95 %), each worth at most 3 / (2 · 1/2) of macro-F1
    assert row.evidence.equivalence_interval.high == pytest.approx(3 * (1 - 0.05 ** (1 / 1400)), rel=1e-9)
    assert row.evidence.equivalence_interval.low == -row.evidence.equivalence_interval.high
    assert (row.verdict, row.evidence.pvalue) == (Verdict.EQUIVALENT, 1.0)
    assert "no changed answers, counted, not resampled" in english(row.reason)
    off[3] = on[3] = (off[3][0], "neither")
    row = row_of(off, on, F1)
    assert (row.verdict, row.evidence.interval) == (Verdict.INCONCLUSIVE, None)
    assert "no bound yet" in english(row.reason)


def test_a_missing_label_is_a_wrong_one_that_adds_no_class_and_a_share_of_them_is_lost() -> None:
    off, on = labels(1400, 0)
    row = row_of(off, [*on[:5], None, *on[6:]], F1)
    assert (row.n_missing, row.n_missing_baseline, row.n_missing_candidate) == (1, 0, 1)
    assert len(row.policies) == 4
    assert all(abs(policy.difference) < 0.002 for policy in row.policies)
    assert row.policies[2].difference < 0.0
    assert row.verdict is Verdict.EQUIVALENT
    right = [(n % 2, n % 2) for n in range(1200)]
    for lost, expected in ((None, -6 / 1200), (0.25, -3 / 1200)):
        rule = DecisionRule(margin=0.1, max_missing_share=1.0, missing_lost=lost)
        row = row_of(right[:1194] + [None] * 6, right[:1188] + [None] * 6 + right[1194:], F1, rule=rule)
        worst = {one.policy: one.difference for one in row.policies}[MissingPolicy.AGAINST_CANDIDATE]
        assert worst == pytest.approx(expected, abs=1e-4)


def test_a_group_pools_items_of_zero_or_one_and_weights_macro_f1_of_tasks_by_their_size() -> None:
    def rows(a: Any, b: Any, kind: MetricKind) -> Sequence[MetricResult]:
        columns = [Column(task=task, off=off, on=on, kind=kind) for task, (off, on) in (("a", a), ("b", b))]
        return analysis_of(*columns, groups=[group("a", "b")]).metrics

    pooled = rows(zeros_and_ones(300, 4, 1), zeros_and_ones(100, 0, 6), MetricKind.BINARY_MEAN)[0]
    evidence = pooled.evidence
    assert (pooled.n_items, evidence.n_items, evidence.gains, evidence.losses) == (400, 400, 4, 7)
    assert evidence.difference == -3 / 400
    assert evidence.pvalue == mcnemar(PairedCounts(n_items=400, gains=4, losses=7)).pvalue
    whole, *parts = [one.evidence for one in rows(labels(300, 30, seed=2), labels(100, 3, seed=3, n_classes=4), F1)]
    assert whole.kind is EvidenceKind.LABELS
    assert whole.difference == pytest.approx((300 * parts[0].difference + 100 * parts[1].difference) / 400)


def test_a_group_of_one_member_is_counted_once_and_other_scores_with_the_same_differences_are_another() -> None:
    column = Column(task="a", off=(arms := zeros_and_ones(200, 1, 8))[0], on=arms[1])
    both = analysis_of(column, groups=[group("a")])
    assert [row.equals for row in both.metrics] == ["a/acc,none", ""]
    assert both.suite.n_family == 1
    assert both.metrics[0].evidence == both.metrics[1].evidence
    assert both.metrics[1].evidence.pvalue_adjusted == row_of(*arms).evidence.pvalue_adjusted
    same = [Column(task="a", off=(arm := [value] * 200), on=arm, name=f"is {value}") for value in (0.0, 1.0)]
    two = analysis_of(*same)
    assert [row.equals for row in two.metrics] == ["", ""]
    assert two.suite.n_family == 2


@pytest.mark.parametrize(
    ("kind", "off", "on", "said"),
    [
        (MetricKind.OTHER, [1.0] * 4, [1.0] * 4, "does not declare"),
        (MetricKind.BINARY_MEAN, [(1, 0)] * 4, [(1, 0)] * 4, "although the metric is declared"),
        (MetricKind.LIST_MEAN, [1.0] * 4, [1.0] * 4, "although the metric is declared"),
        (F1, [1.0] * 4, [1.0] * 4, "although the metric is declared"),
        (MetricKind.LIST_MEAN, [[1, 0]], [[1, 2]], "no test: a score of 2 lies outside 0 to 1"),
        (MetricKind.BINARY_MEAN, [0.5] * 4, [0.5, -0.2], "no test: a score of -0.2 lies outside 0 to 1"),
        (MetricKind.BINARY_MEAN, [0.5] * 4, [0.5, float("inf")], "no test: a score of inf lies outside 0 to 1"),
    ],
)
def test_what_cannot_be_tested_says_why(kind: MetricKind, off: list[Any], on: list[Any], said: str) -> None:
    row = row_of(off, on, kind)
    assert row.verdict is Verdict.NOT_TESTED
    assert said in english(row.reason)
    if "outside" in said:
        assert KOREAN.reason(row.reason).startswith("검정 없음: 이 지표의 범위를 벗어난 점수")


def test_scores_between_zero_and_one_are_decided_by_the_bound_alone() -> None:
    rng = np.random.default_rng(5)
    off = rng.uniform(0.1, 0.9, 300)
    on = off + rng.normal(0, 0.01, 300)
    row = row_of(off.tolist(), on.tolist())
    bound = BoundedMean.of(on - off)
    pvalue, expected = max(bound.pvalue_above(-0.02), bound.pvalue_below(0.02)), bound.interval(confidence_level=0.9)
    assert row.evidence.kind is EvidenceKind.SCORES
    assert row.evidence.equivalence_interval.low == pytest.approx(expected.low)
    assert row.evidence.pvalue_equivalence == row.evidence.pvalue_equivalence_bounded == pytest.approx(pvalue)
    assert row.evidence.standard_error == pytest.approx(mean_difference(on - off).standard_error)
    assert row.evidence.provable_margin == pytest.approx(max(-expected.low, expected.high))
    assert row.verdict is Verdict.EQUIVALENT


def test_few_scores_prove_nothing_however_small_their_spread_and_many_without_a_change_the_most() -> None:
    for n in (3, 20):
        row = row_of([1.0] * n, [0.99, *[1.0] * (n - 1)])
        assert row.verdict is Verdict.INCONCLUSIVE
        assert 149 <= row.evidence.items_needed <= 200  # without a change 149 would do
    off = [0.25] * 1500
    same, changed, counts = row_of(off, off), row_of(off, [0.5, *off[1:]]), row_of([1.0] * 1500, [1.0] * 1500)
    assert same.verdict is changed.verdict is counts.verdict is Verdict.EQUIVALENT
    assert same.evidence.provable_margin == pytest.approx(1 - 0.05 ** (1 / 1500))
    assert same.evidence.provable_margin <= min(changed.evidence.provable_margin, counts.evidence.provable_margin)


def test_percent_of_all_or_nothing_are_counts_and_missing_scores_of_a_range_are_filled_with_its_ends() -> None:
    def ranged(off: Values, on: Values, low: float, high: float, margin: float) -> MetricResult:
        rule = DecisionRule(margin=margin, max_missing_share=1.0, score_bounds={"t": (low, high)})
        return row_of(off, on, rule=rule)

    off, on = zeros_and_ones(200, 3, 9)
    percent = ranged([100 * x for x in off], [100 * x for x in on], 0.0, 100.0, 0.02)
    assert percent.evidence == row_of(off, on).evidence
    lacking = ranged([0.5] * 500, [None, *[0.5] * 499], -1.0, 1.0, 0.05)
    worst = {policy.policy: policy.difference for policy in lacking.policies}
    assert worst[MissingPolicy.AGAINST_CANDIDATE] == pytest.approx(-0.75 / 500)  # from 0.5 of −1 to 1 down to −1


def test_sixteen_repeats_of_broken_items_are_not_called_equivalent() -> None:
    """100 items, a true loss of 5 pp in a few of them."""
    if not os.environ.get("QUALAB_SHARED"):
        pytest.skip("needs QUALAB_SHARED, the directory with cases/statistics/rep_example.npz")
    data = np.load(Path(os.environ["QUALAB_SHARED"]) / "cases/statistics/rep_example.npz")
    off, on = data["b"].astype(float), data["d"].astype(float)
    rule = DecisionRule(margin=0.05, max_missing_share=1.0)
    row = row_of(off.tolist(), on.tolist(), repeats=16, rule=rule)
    assert row.verdict is not Verdict.EQUIVALENT
    assert row.evidence.pvalue_equivalence < 0.05 < row.evidence.pvalue_equivalence_bounded
    assert row.evidence.pvalue_equivalence_exact is None
    assert row.evidence.provable_margin > 0.05


def test_less_is_better_in_scores_that_are_not_zero_or_one() -> None:
    off = np.random.default_rng(7).uniform(0.2, 0.4, 300)
    column = Column(task="t", off=off.tolist(), on=(off - 0.06).tolist())
    rule = DecisionRule(margin=0.02, max_missing_share=1.0, objective=Objective.NON_INFERIORITY)
    lower = analysis_of(replace(column, higher_is_better=False), rule=rule)
    assert lower.metrics[0].verdict in (Verdict.IMPROVEMENT, Verdict.NON_INFERIOR)
    assert analysis_of(column, rule=rule).metrics[0].verdict is Verdict.REGRESSION


KINDS = {
    MetricKind.BINARY_MEAN: (1.0, 0.0),
    MetricKind.LIST_MEAN: ([1, 1], [0, 0]),
    MetricKind.MACRO_F1: ((1, 1), (1, 0)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "off", "on"),
    [(0, 0, 0), (1, 0, 0), (1, 0, 1), (1, None, None), (6, None, None), (6, None, 0), (6, 1, 1), (6, 0, 0), (6, 0, 1)],
)
@pytest.mark.parametrize("cluster", ["", "one"])
@pytest.mark.filterwarnings("error")
def test_degenerate_comparisons_end_in_a_decision(
    kind: MetricKind, n: int, off: int | None, on: int | None, cluster: str
) -> None:
    before, after = ([None if which is None else KINDS[kind][which]] * n for which in (off, on))
    row = row_of(before, after, kind, [cluster] * n if cluster else ())
    all_six_lost = (n, off, on) == (6, 0, 1) and not cluster
    assert row.verdict is (Verdict.REGRESSION if all_six_lost else Verdict.INCONCLUSIVE)
    assert english(row.reason)
    assert (row.evidence is None) is (n == 0 or None in (off, on))
    if row.evidence is not None:
        n_changed = 0 if off == on else 1 if cluster else n
        assert row.evidence.pvalue_adjusted == pytest.approx(0.5**n_changed)


def test_swapping_the_arms_negates_every_difference_and_interval() -> None:
    rng = np.random.default_rng(11)
    off = (rng.random(240) < 0.7).astype(float)
    on = np.where(rng.random(240) < 0.1, 1.0 - off, off)
    lists = [[[float(x), 1.0] for x in arm] for arm in (off, on)]
    columns = [
        Column(task=f"{kind} {len(clusters)}", off=arms[0], on=arms[1], kind=kind, clusters=clusters)
        for kind, arms in ((MetricKind.BINARY_MEAN, (off.tolist(), on.tolist())), (F1, labels(240, 30, seed=4)))
        for clusters in ([], [str(n // 2) for n in range(240)])
    ]
    columns.append(Column(task="lists", off=lists[0], on=lists[1], kind=MetricKind.LIST_MEAN))
    there, back = (analysis_of(*own) for own in (columns, [replace(one, off=one.on, on=one.off) for one in columns]))
    for one, other in zip(there.metrics, back.metrics, strict=True):
        a, b = one.evidence, other.evidence
        assert a.difference == pytest.approx(-b.difference)
        assert (a.gains, a.losses) == (b.losses, b.gains)
        assert a.pvalue == pytest.approx(b.pvalue, abs=1e-12)
        assert a.pvalue_adjusted == pytest.approx(b.pvalue_adjusted, abs=1e-12)
        drawn = 6e-3 if a.kind is EvidenceKind.LABELS else 1e-9  # the bootstrap draws in another order
        assert a.interval.low == pytest.approx(-b.interval.high, abs=drawn)
    assert there.suite.global_test.difference == pytest.approx(-back.suite.global_test.difference)
    assert there.suite.global_test.pvalue == back.suite.global_test.pvalue


def test_the_arms_error_rates_are_compared_with_all_repeats_of_an_item_as_one_piece_of_evidence() -> None:
    analysis = analysis_of(Column(task="t", off=[1.0] * 200, on=[None] * 9 + [1.0] * 191))
    missing = analysis.suite.missing
    assert (missing.n_asked, missing.baseline_only, missing.candidate_only, missing.both) == (200, 0, 9, 0)
    assert missing.pvalue == mcnemar(PairedCounts(n_items=200, gains=0, losses=9)).pvalue
    assert any("The candidate left more unanswered" in caveat for caveat in english(analysis.caveats))
    repeated = Column(task="t", off=[[1.0] * 8] * 50, on=[[None] * 8, *[[1.0] * 8] * 49])
    missing = analysis_of(repeated, repeats=8).suite.missing
    assert (missing.candidate_only, missing.pvalue) == (8, 0.5)


def test_missing_lost_keeps_equivalence_standing_and_the_tipping_point_is_shown() -> None:
    """13 pairs of 1,319, six of the baseline, seven of the candidate, or all of the candidate."""
    off, on = zeros_and_ones(1319, 20, 20)
    column = Column(task="t", off=off[:1313] + [None] * 6, on=on[:1306] + [None] * 7 + on[1313:])
    rule = DecisionRule(margin=0.0125, max_missing_share=0.05)
    all_lost, some = (analysis_of(column, rule=replace(rule, missing_lost=lost)) for lost in (None, 0.25))
    (row,), (other,) = all_lost.metrics, some.metrics
    assert (row.verdict, other.verdict) == (Verdict.INCONCLUSIVE, Verdict.EQUIVALENT)
    assert (row.n_lost, other.n_lost) == (None, 4)
    assert row.tipping_point == other.tipping_point >= 4
    assert f"(holds unless more than {row.tipping_point} of these 13 were lost)" in english(row.reason)
    assert "13 pairs without an answer alone cost ±0.99 pp" in english(row.reason)
    assert "The worst case takes 25 % of the pairs without an answer as lost, as planned." in english(some.caveats)
    at, beyond = (replace(rule, missing_lost=(row.tipping_point + more) / 13) for more in (0, 1))
    assert analysis_of(column, rule=at).metrics[0].verdict is Verdict.EQUIVALENT
    assert analysis_of(column, rule=beyond).metrics[0].verdict is Verdict.INCONCLUSIVE
    one_arm = Column(task="t", off=off, on=on[:1306] + [None] * 13)
    found = analysis_of(one_arm, rule=replace(rule, margin=0.015, missing_lost=0.25))
    assert (found.metrics[0].verdict, found.metrics[0].n_lost) == (Verdict.INCONCLUSIVE, None)
    assert any("all pairs without an answer as lost in 1 of 1 metric." in one for one in english(found.caveats))

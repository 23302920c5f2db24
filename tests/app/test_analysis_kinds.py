"""What each kind of metric gets, from scores by hand: clusters, repeats, lists, macro-F1 and groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from qualab.adapters.memory import MemoryStore
from qualab.app.analyse import analyse
from qualab.app.analysis.bounds import with_items_needed
from qualab.app.summaries import Summary
from qualab.domain.canonical import plan_hash
from qualab.domain.comparison import Analysis, MetricResult
from qualab.domain.items import Item, Score
from qualab.domain.names import ArmName, EvidenceKind, MetricKind, RequestKind, Verdict
from qualab.domain.plan import DecisionRule, MetricSpec, Plan
from qualab.stats import PairedCounts, mcnemar, mean_difference, tango
from qualab.stats.clustered import clustered_equivalence
from qualab.stats.f1 import macro_f1
from tests.app.fakes import metric_spec, task_spec
from tests.store.samples import make_comparison, make_plan

OFF, ON = ArmName.BASELINE, ArmName.CANDIDATE
Values = Sequence[Any]
"""One task's scores in one arm by document; None is missing. With repeats, a list a document."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One metric of one task."""

    task: str
    off: Values
    on: Values
    kind: MetricKind = MetricKind.BINARY_MEAN
    name: str = "acc"
    clusters: Sequence[str] = ()
    is_primary: bool = True

    @property
    def spec(self) -> MetricSpec:
        return metric_spec(self.task, name=self.name, kind=self.kind, is_primary=self.is_primary)

    def scores(self, positions: Mapping[tuple[str, int], int], *, repeats: int) -> Iterator[Score]:
        for arm, values in ((OFF, self.off), (ON, self.on)):
            for doc, value in enumerate(values):
                for repeat, one in enumerate(value if repeats > 1 else [value]):
                    if one is not None:
                        yield self._score(arm, positions[self.task, doc], repeat, one)

    def _score(self, arm: ArmName, position: int, repeat: int, value: Any) -> Score:
        is_number = isinstance(value, (int, float))
        return Score(
            arm=arm,
            position=position,
            repeat=repeat,
            metric=self.spec.key,
            value=float(value) if is_number else 0.0,
            detail=None if is_number else tuple(value),
        )


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
    rule: DecisionRule | None = None,
    order_seed: int = 1,
) -> Analysis:
    """The analysis of these columns, asked in some random order."""
    plan = plan_of(columns, groups, repeats, rule or DecisionRule(margin=0.02, max_missing_share=1.0))
    docs = [(task.name, doc) for task in plan.tasks for doc in range(task.n_items)]
    order = np.random.default_rng(order_seed).permutation(len(docs)).tolist()
    positions = {docs[place]: position for position, place in enumerate(order)}
    clusters = {column.task: column.clusters for column in columns if column.clusters}
    items = [_item(position, *docs[place], clusters) for position, place in enumerate(order)]
    store, comparison = MemoryStore(), make_comparison(plan=plan)
    store.create(comparison, items)
    store.put_scores(
        comparison.id, [score for column in columns for score in column.scores(positions, repeats=repeats)]
    )
    return analyse(store, comparison, Aggregates(), items, Summary(items))  # type: ignore[arg-type]


def plan_of(columns: Sequence[Column], groups: Sequence[MetricSpec], repeats: int, rule: DecisionRule) -> Plan:
    sizes = {column.task: len(column.off) for column in columns}
    plan = make_plan(
        tasks=tuple(task_spec(task, n_items) for task, n_items in sizes.items()),
        metrics=(*groups, *(column.spec for column in columns)),
        rule=rule,
    )
    return replace(plan, sampling=replace(plan.sampling, repeats=repeats))


def _item(position: int, task: str, doc: int, clusters: Mapping[str, Sequence[str]]) -> Item:
    return Item(
        position=position,
        task=task,
        doc_id=doc,
        kind=RequestKind.GENERATION,
        doc={},
        target="",
        prompts=(),
        cluster=clusters[task][doc] if task in clusters else "",
    )


def only(analysis: Analysis) -> MetricResult:
    (row,) = analysis.metrics
    return row


def zeros_and_ones(n: int, gains: int, losses: int) -> tuple[list[float], list[float]]:
    rest = [1.0] * (n - gains - losses)
    return [0.0] * gains + [1.0] * losses + rest, [1.0] * gains + [0.0] * losses + rest


def test_items_without_clusters_get_mcnemar_and_tango() -> None:
    off, on = zeros_and_ones(200, 3, 9)
    evidence = only(analysis_of(Column(task="t", off=off, on=on))).evidence
    counts = PairedCounts(n_items=200, gains=3, losses=9)
    assert evidence.kind is EvidenceKind.COUNTS
    assert evidence.pvalue == mcnemar(counts).pvalue
    assert evidence.pvalue_exact == mcnemar(counts).pvalue_exact
    assert evidence.interval.low == tango(counts, confidence_level=0.95).low
    assert evidence.pvalue_adjusted == evidence.pvalue  # one metric needs no adjustment
    assert evidence.pvalue_holm == evidence.pvalue


def test_clusters_of_one_item_are_no_clusters() -> None:
    off, on = zeros_and_ones(50, 2, 3)
    plain = only(analysis_of(Column(task="t", off=off, on=on))).evidence
    single = only(analysis_of(Column(task="t", off=off, on=on, clusters=[f"c{n}" for n in range(50)]))).evidence
    assert single == plain


def test_items_of_a_cluster_flip_together() -> None:
    # four passages of two questions, all of the first three lost: 2 of 2**3 patterns of the changed ones tie with that
    off, on = [1.0] * 8, [0.0] * 6 + [1.0] * 2
    row = only(analysis_of(Column(task="t", off=off, on=on, clusters=list("aabbccdd"))))
    assert row.evidence.kind is EvidenceKind.CLUSTERS
    assert row.evidence.pvalue == pytest.approx(1 / 8)
    assert row.evidence.pvalue_exact == pytest.approx(2 / 8)
    assert (row.evidence.n_items, row.evidence.n_clusters, row.evidence.losses) == (8, 4, 6)
    assert row.evidence.difference == -0.75


def test_the_interval_of_clusters_has_the_farther_limits_of_score_and_cr2() -> None:
    rng = np.random.default_rng(3)
    clusters = np.repeat(np.arange(120), 3)
    off = (rng.random(360) < 0.6).astype(float)
    flips = np.repeat(rng.random(120) < 0.08, 3)
    on = np.where(flips, np.repeat(rng.integers(2, size=120), 3), off)
    evidence = only(
        analysis_of(Column(task="t", off=off.tolist(), on=on.tolist(), clusters=[str(c) for c in clusters]))
    ).evidence
    t = mean_difference(on - off, cluster=clusters, confidence_level=0.9)
    score = clustered_equivalence(off, on, cluster=clusters, margin=0.02)
    assert evidence.design_effect == pytest.approx(score.design_effect)
    assert evidence.design_effect > 1.2
    assert evidence.equivalence_interval.low == pytest.approx(min(t.interval.low, score.result.interval.low))
    assert evidence.equivalence_interval.high == pytest.approx(max(t.interval.high, score.result.interval.high))
    assert evidence.standard_error == pytest.approx(t.standard_error)
    assert evidence.degrees_of_freedom == pytest.approx(t.degrees_of_freedom)
    assert evidence.provable_margin >= max(-evidence.equivalence_interval.low, evidence.equivalence_interval.high)


def test_shared_passages_prove_less_than_independent_items() -> None:
    off, on = zeros_and_ones(1200, 8, 8)
    free = only(analysis_of(Column(task="t", off=off, on=on))).evidence
    # gains stand together and so do losses
    tied = only(analysis_of(Column(task="t", off=off, on=on, clusters=[str(n // 4) for n in range(1200)]))).evidence
    assert tied.design_effect > 3
    assert tied.provable_margin > 1.5 * free.provable_margin
    needed = [with_items_needed(one, DecisionRule()).items_needed for one in (tied, free)]
    assert needed[0] > 3 * needed[1]


def test_repeats_of_an_item_are_one_cluster_and_never_more_items() -> None:
    off, on = zeros_and_ones(100, 2, 4)
    once = only(analysis_of(Column(task="t", off=off, on=on))).evidence
    five = only(analysis_of(Column(task="t", off=[[x] * 5 for x in off], on=[[x] * 5 for x in on]), repeats=5)).evidence
    assert (five.n_items, five.n_clusters) == (500, 100)
    assert five.difference == once.difference
    assert five.design_effect == pytest.approx(5.0, rel=0.02)
    assert five.pvalue == pytest.approx(once.pvalue)
    assert five.pvalue_exact == pytest.approx(once.pvalue_exact)
    assert five.provable_margin == pytest.approx(once.provable_margin, rel=0.1)


def test_list_entries_are_scores_in_the_cluster_of_their_prompt() -> None:
    off = [[1, 1, 1], [1], [0, 1], [1]]
    on = [[1, 0, 0], [1], [1, 1], [1]]
    row = only(analysis_of(Column(task="t", off=off, on=on, kind=MetricKind.LIST_MEAN)))
    assert (row.evidence.n_items, row.evidence.n_clusters) == (7, 4)
    assert (row.evidence.gains, row.evidence.losses) == (1, 2)
    assert row.evidence.difference == pytest.approx(-1 / 7)  # of all entries, not the mean of the prompts' means
    # sums −2 and +1: two patterns of four tie with −1, the others are more extreme
    assert (row.evidence.pvalue, row.evidence.pvalue_exact) == (0.75, 1.0)


def test_macro_f1_is_swapped_item_by_item() -> None:
    truth = [0, 0, 0, 1, 1, 1]
    before, after = [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 0]
    row = only(
        analysis_of(
            Column(
                task="t",
                off=list(zip(truth, before, strict=True)),
                on=list(zip(truth, after, strict=True)),
                kind=MetricKind.MACRO_F1,
            )
        )
    )
    assert row.evidence.kind is EvidenceKind.LABELS
    assert row.evidence.difference == pytest.approx(macro_f1(truth, after) - macro_f1(truth, before))
    # both swapped or none of them, of four patterns
    assert (row.evidence.pvalue, row.evidence.pvalue_exact) == (0.25, 0.5)
    assert (row.evidence.gains, row.evidence.losses, row.evidence.n_changed) == (0, 2, 2)


def labels(n: int, n_changed: int, *, seed: int = 1, n_classes: int = 2) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    truth = (np.arange(n) % n_classes).tolist()
    before = [t if rng.random() < 0.8 else (t + 1) % n_classes for t in truth]
    after = [(b + 1) % n_classes if i < n_changed else b for i, b in enumerate(before)]
    return list(zip(truth, before, strict=True)), list(zip(truth, after, strict=True))


def test_macro_f1_without_a_changed_answer_is_bounded_by_counting() -> None:
    off, on = labels(1400, 0)
    row = only(analysis_of(Column(task="t", off=off, on=on, kind=MetricKind.MACRO_F1)))
    # none of 1400 changed: at most 3 / 1400 did (95 %), each worth at most 3 / (2 · 1/2) of macro-F1
    assert row.evidence.equivalence_interval.high == pytest.approx(3 * (1 - 0.05 ** (1 / 1400)), rel=1e-9)
    assert row.evidence.equivalence_interval.low == -row.evidence.equivalence_interval.high
    assert row.verdict is Verdict.EQUIVALENT
    assert "no changed answers, counted, not resampled" in row.reason
    assert row.evidence.pvalue == 1.0


def test_macro_f1_with_an_answer_outside_the_labels_has_no_bound_and_says_so() -> None:
    off, on = labels(1400, 0)
    off[3] = on[3] = (off[3][0], "neither")
    row = only(analysis_of(Column(task="t", off=off, on=on, kind=MetricKind.MACRO_F1)))
    assert row.verdict is Verdict.INCONCLUSIVE
    assert "no bound yet" in row.reason
    assert row.evidence.interval is None


def test_macro_f1_with_many_changes_is_resampled() -> None:
    off, on = labels(1400, 40)
    row = only(analysis_of(Column(task="t", off=off, on=on, kind=MetricKind.MACRO_F1)))
    assert row.evidence.standard_error > 0
    assert row.evidence.interval.low < row.evidence.difference < row.evidence.interval.high
    assert row.evidence.interval.low < row.evidence.equivalence_interval.low
    assert row.evidence.note == ""


def test_a_missing_label_is_a_wrong_one_that_adds_no_class() -> None:
    off, on = labels(1400, 0)
    on[5] = None
    row = only(analysis_of(Column(task="t", off=off, on=on, kind=MetricKind.MACRO_F1)))
    assert len(row.policies) == 4
    assert (row.n_missing, row.n_missing_baseline, row.n_missing_candidate) == (1, 0, 1)
    assert all(abs(policy.difference) < 0.002 for policy in row.policies)
    assert row.policies[2].difference < 0.0
    assert row.verdict is Verdict.EQUIVALENT


def test_a_group_of_zero_or_one_metrics_pools_its_items() -> None:
    a, b = zeros_and_ones(300, 4, 1), zeros_and_ones(100, 0, 6)
    rows = analysis_of(
        Column(task="a", off=a[0], on=a[1]), Column(task="b", off=b[0], on=b[1]), groups=[group("a", "b")]
    ).metrics
    pooled = rows[0].evidence
    assert (pooled.n_items, pooled.gains, pooled.losses) == (400, 4, 7)
    assert pooled.difference == -3 / 400
    assert pooled.pvalue == mcnemar(PairedCounts(n_items=400, gains=4, losses=7)).pvalue
    assert rows[0].n_items == 400


def test_a_group_of_macro_f1_weights_tasks_by_their_size() -> None:
    a, b = labels(300, 30, seed=2), labels(100, 3, seed=3, n_classes=4)
    kind = MetricKind.MACRO_F1
    rows = analysis_of(
        Column(task="a", off=a[0], on=a[1], kind=kind),
        Column(task="b", off=b[0], on=b[1], kind=kind),
        groups=[group("a", "b")],
    ).metrics
    parts = [row.evidence.difference for row in rows[1:]]
    assert rows[0].evidence.kind is EvidenceKind.LABELS
    assert rows[0].evidence.difference == pytest.approx((300 * parts[0] + 100 * parts[1]) / 400)


def test_a_group_of_one_member_is_counted_once_and_names_it() -> None:
    off, on = zeros_and_ones(200, 1, 8)
    alone = analysis_of(Column(task="a", off=off, on=on))
    both = analysis_of(Column(task="a", off=off, on=on), groups=[group("a")])
    assert [row.equals for row in both.metrics] == ["a/acc,none", ""]
    assert both.suite.n_family == 1
    assert both.metrics[0].evidence == both.metrics[1].evidence
    assert both.metrics[1].evidence.pvalue_adjusted == only(alone).evidence.pvalue_adjusted


def test_metrics_with_the_same_differences_but_other_scores_are_two() -> None:
    off, on = zeros_and_ones(200, 0, 0)
    rows = analysis_of(
        Column(task="a", off=off, on=on), Column(task="a", off=[0.0] * 200, on=[0.0] * 200, name="other")
    )
    assert [row.equals for row in rows.metrics] == ["", ""]
    assert rows.suite.n_family == 2


def test_an_undeclared_kind_is_not_tested_and_says_why() -> None:
    off, on = zeros_and_ones(20, 1, 1)
    row = only(analysis_of(Column(task="t", off=off, on=on, kind=MetricKind.OTHER)))
    assert row.verdict is Verdict.NOT_TESTED
    assert "does not declare" in row.reason


@pytest.mark.parametrize(
    ("kind", "values"),
    [(MetricKind.BINARY_MEAN, [(1, 0)] * 4), (MetricKind.LIST_MEAN, [1.0] * 4), (MetricKind.MACRO_F1, [1.0] * 4)],
)
def test_scores_that_belie_the_declared_kind_are_not_tested(kind: MetricKind, values: list[Any]) -> None:
    row = only(analysis_of(Column(task="t", off=values, on=values, kind=kind)))
    assert row.verdict is Verdict.NOT_TESTED
    assert "although the metric is declared" in row.reason


def test_scores_between_zero_and_one_get_a_t_interval() -> None:
    rng = np.random.default_rng(5)
    off = rng.random(80)
    on = off + rng.normal(0, 0.01, 80)
    row = only(analysis_of(Column(task="t", off=off.tolist(), on=on.tolist())))
    expected = mean_difference(on - off, confidence_level=0.95)
    assert row.evidence.kind is EvidenceKind.SCORES
    assert row.evidence.interval.low == pytest.approx(expected.interval.low)
    assert row.verdict is Verdict.EQUIVALENT


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
    def column(which: int | None) -> list[Any]:
        return [None if which is None else KINDS[kind][which]] * n

    row = only(
        analysis_of(
            Column(task="t", off=column(off), on=column(on), kind=kind, clusters=[cluster] * n if cluster else ())
        )
    )
    all_six_lost = (n, off, on) == (6, 0, 1) and not cluster
    assert row.verdict is (Verdict.REGRESSION if all_six_lost else Verdict.INCONCLUSIVE)
    assert row.reason
    assert (row.evidence is None) is (n == 0 or None in (off, on))
    if row.evidence is not None:
        n_changed = 0 if off == on else 1 if cluster else n
        assert row.evidence.pvalue_adjusted == pytest.approx(0.5**n_changed)


def test_all_items_lost_is_a_regression_even_without_spread() -> None:
    off, on = [1.0] * 60, [0.0] * 60
    free = only(analysis_of(Column(task="t", off=off, on=on)))
    tied = only(analysis_of(Column(task="t", off=off, on=on, clusters=[str(n // 3) for n in range(60)])))
    assert free.verdict is tied.verdict is Verdict.REGRESSION
    assert tied.evidence.design_effect == 3.0


def everything(*, swap: bool = False) -> list[Column]:
    rng = np.random.default_rng(11)
    off = (rng.random(240) < 0.7).astype(float)
    on = np.where(rng.random(240) < 0.1, 1.0 - off, off)
    lists = [[float(x), 1.0] for x in off], [[float(x), 1.0] for x in on]
    pairs = labels(240, 30, seed=4)
    arms = [(off.tolist(), on.tolist()), lists, pairs]
    if swap:
        arms = [(after, before) for before, after in arms]
    clusters = [str(n // 2) for n in range(240)]
    return [
        Column(task="a", off=arms[0][0], on=arms[0][1]),
        Column(task="b", off=arms[0][0], on=arms[0][1], clusters=clusters),
        Column(task="c", off=arms[1][0], on=arms[1][1], kind=MetricKind.LIST_MEAN),
        Column(task="d", off=arms[2][0], on=arms[2][1], kind=MetricKind.MACRO_F1),
        Column(task="e", off=arms[2][0], on=arms[2][1], kind=MetricKind.MACRO_F1, clusters=clusters),
    ]


def test_swapping_the_arms_negates_every_difference_and_interval() -> None:
    there, back = analysis_of(*everything()), analysis_of(*everything(swap=True))
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


def test_nothing_moves_with_the_order_in_which_items_were_asked() -> None:
    one, other = (analysis_of(*everything(), order_seed=seed) for seed in (1, 2))
    assert one.metrics == other.metrics
    assert one.suite == other.suite


def test_the_arms_error_rates_are_compared() -> None:
    on: list[float | None] = [1.0] * 200
    on[:9] = [None] * 9
    analysis = analysis_of(Column(task="t", off=[1.0] * 200, on=on))
    missing = analysis.suite.missing
    assert (missing.n_asked, missing.baseline_only, missing.candidate_only, missing.both) == (200, 0, 9, 0)
    assert missing.pvalue == mcnemar(PairedCounts(n_items=200, gains=0, losses=9)).pvalue
    assert any("The candidate left more unanswered" in caveat for caveat in analysis.caveats)


def test_missing_repeats_of_one_item_are_one_piece_of_evidence() -> None:
    on: list[list[float | None]] = [[1.0] * 8 for _ in range(50)]
    on[0] = [None] * 8
    missing = analysis_of(Column(task="t", off=[[1.0] * 8] * 50, on=on), repeats=8).suite.missing
    assert missing.candidate_only == 8
    assert missing.pvalue == 0.5


def test_the_seed_comes_from_the_plan() -> None:
    columns = everything()
    one, same = analysis_of(*columns), analysis_of(*columns)
    other = analysis_of(*columns, rule=DecisionRule(margin=0.03, max_missing_share=1.0))
    assert one.suite.seed == same.suite.seed != other.suite.seed
    assert plan_hash(plan_of(columns, (), 1, DecisionRule())) != plan_hash(plan_of(columns, (), 2, DecisionRule()))

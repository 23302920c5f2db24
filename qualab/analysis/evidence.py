"""The evidence of a metric, from its complete pairs: one class a kind, all with the same methods.

Independent 0/1 scores are counted, 0/1 scores in clusters take three methods that have to agree, other scores Gaffke's
bound, and labels (macro-F1) swaps and the bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np

from qualab.analysis.ruling import MAX_ITEMS, is_one_sided, is_out_of_reach
from qualab.analysis.samples import LabelSample, MeanSample, Sample, Streams
from qualab.errors import InsufficientData
from qualab.model.comparison import Evidence, GlobalTest, ItemsRange
from qualab.model.names import EvidenceKind, IntervalOf, MetricKind
from qualab.model.plan import MetricRule, MetricSpec
from qualab.model.reason import Reason
from qualab.stats.bounded import BoundedMean
from qualab.stats.checks import FloatArray, IntArray
from qualab.stats.clustered import cluster_cells, clustered_equivalence, clustered_mcnemar, design_effect
from qualab.stats.counts import PairedCounts, tally
from qualab.stats.difference import McNemarResult, mcnemar, mcnemar_sides, two_proportion_z
from qualab.stats.distributions import normal_quantile
from qualab.stats.equivalence import equivalence, forget_guard, provable_margin
from qualab.stats.f1 import JoinedAnswers, LabelledAnswers, bound_macro_f1
from qualab.stats.interval import ConfidenceInterval, clopper_pearson, tango
from qualab.stats.mean import MeanDifference, cluster_codes, mean_difference
from qualab.stats.repeated import RepeatedCounts, RepeatedTest, is_mean_of, repeated_test
from qualab.stats.resampling import ResamplingResult, global_sign_flip, holm, max_t, sign_flip
from qualab.stats.sizing import items_needed, items_wald_equivalence

N_RESAMPLES = 9_999
EXACT_ITEMS = 10_000
"""Most items for which sizes are found by exact power."""
ENOUGH_CHANGES = 10
"""Changed items (or clusters) from which on the bootstrap of labels is used; below, changes are counted."""
LEAST_RESAMPLED = 0.001
"""Lowest level of a bootstrap limit: ten resamples lie beyond it."""
_HAIR = 1e-9
"""Counts times a design effect of 1 must not be rounded up."""

AnyInterval = TypeVar("AnyInterval", IntervalOf, ConfidenceInterval)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Intervals, and tests at the margin, of one sample without a missing score."""

    difference: float
    intervals: tuple[IntervalOf | None, ...]
    """At 1 − 2 alpha; then at each further one-sided level that was asked for."""
    pvalue_equivalence: float | None = None
    """By the tests that the objective takes, like the next two."""
    pvalue_equivalence_exact: float | None = None
    pvalue_equivalence_bounded: float | None = None
    """By Gaffke's bound: means of scores that are not 0/1, and 0/1 scores in clusters."""
    standard_error: float | None = None
    degrees_of_freedom: float | None = None
    design_effect: float = 1.0
    note: Reason | None = None

    @property
    def equivalence_interval(self) -> IntervalOf | None:
        return self.intervals[0]


def is_equivalent(tested: Bounds | Evidence, rule: MetricRule) -> bool:
    """Check that the 1 − 2 alpha interval lies inside the margin and the tests agree."""
    interval, pvalues = tested.equivalence_interval, (tested.pvalue_equivalence, tested.pvalue_equivalence_exact)
    is_inside = interval is not None and rule.larger(-interval.low, interval.high) < rule.margin
    return is_inside and all(p is None or p <= rule.alpha for p in pvalues)


DifferenceTest = dict[str, Any]
"""A two-sided test of no difference, as fields of Evidence."""


def _difference_test(
    result: ResamplingResult | McNemarResult, *, unpaired: float | None = None, clustered: float | None = None
) -> DifferenceTest:
    exact: float | None = None
    if isinstance(result, McNemarResult):
        exact = result.pvalue_exact
    elif result.is_exact:
        exact = result.pvalue_whole
    return {
        "pvalue": result.pvalue,
        "pvalue_exact": exact,
        "pvalue_unpaired": unpaired,
        "pvalue_clustered_mcnemar": clustered,
        "n_resamples": 0 if isinstance(result, McNemarResult) else result.n_resamples,
    }


class MeanPairs:
    """Pairs of scores whose mean is the metric, none missing."""

    kind: EvidenceKind

    def __init__(self, sample: MeanSample) -> None:
        self.sample, self.n_items, self.differences = sample, sample.n_items, sample.differences
        self.codes: IntArray = cluster_codes(sample.unit, sample.n_items)
        self.n_clusters = np.unique(self.codes).size

    def changes(self, rule: MetricRule) -> tuple[int, int, int]:
        """Return gains, losses, and pairs that differ."""
        more, less = int(np.sum(self.differences > 0.0)), int(np.sum(self.differences < 0.0))
        gains, losses = (more, less) if rule.higher_is_better else (less, more)
        return gains, losses, more + less

    @cached_property
    def counts(self) -> PairedCounts:
        return tally(self.sample.baseline, self.sample.candidate)

    @cached_property
    def bounded(self) -> BoundedMean:
        return BoundedMean.of(self.differences, cluster=self.codes)

    @cached_property
    def spread(self) -> MeanDifference | None:
        try:
            return mean_difference(self.differences, cluster=self.codes)
        except InsufficientData:
            return None

    def estimates(self) -> dict[str, Any]:
        """Return the fields of Bounds that clusters and other scores share."""
        return {
            "difference": math.fsum(self.differences) / self.n_items,
            "standard_error": self.spread.standard_error if self.spread else None,
            "degrees_of_freedom": self.spread.degrees_of_freedom if self.spread else None,
            "note": None if self.n_clusters > 1 or self.n_items == 1 else Reason("one-cluster"),
        }

    def _unpaired(self) -> float:
        baseline, candidate = self.counts.accuracies
        return two_proportion_z(
            baseline=baseline, candidate=candidate, n_baseline=self.n_items, n_candidate=self.n_items
        )


class Counts(MeanPairs):
    """0/1 scores of independent items: McNemar's mid-p, Tango's interval and the exact guard."""

    kind = EvidenceKind.COUNTS

    def bounds(self, rule: MetricRule, _: np.random.Generator, *levels: float) -> Bounds:
        result = equivalence(self.counts, margin=rule.margin, alpha=rule.alpha)
        more = (tango(self.counts, confidence_level=1.0 - 2.0 * level) for level in levels)
        return Bounds(
            difference=self.counts.difference,
            intervals=_intervals(result.interval, *more),
            pvalue_equivalence=rule.larger(result.pvalue_lower, result.pvalue_upper),
            pvalue_equivalence_exact=result.pvalue_exact_of(*rule.sides),
        )

    def test(self, _: np.random.Generator) -> DifferenceTest:
        return _difference_test(mcnemar(self.counts), unpaired=self._unpaired())

    def sides(self, _: np.random.Generator) -> tuple[float, float]:
        return mcnemar_sides(self.counts.gains, self.counts.losses)


class Repeated(MeanPairs):
    """0/1 scores of independent items that the baseline answered several times."""

    kind = EvidenceKind.REPEATED

    @cached_property
    def repeated(self) -> RepeatedCounts:
        return RepeatedCounts.of(self.sample.baseline, self.sample.candidate, n_runs=self.sample.n_runs)

    @cached_property
    def _tested(self) -> RepeatedTest:
        return repeated_test(self.repeated)

    def bounds(self, rule: MetricRule, _: np.random.Generator, *levels: float) -> Bounds:
        result = equivalence(self.repeated, margin=rule.margin, alpha=rule.alpha)
        more = (self.repeated.interval(confidence_level=1.0 - 2.0 * level) for level in levels)
        return Bounds(
            difference=self.repeated.difference,
            intervals=_intervals(result.interval, *more),
            pvalue_equivalence=rule.larger(result.pvalue_lower, result.pvalue_upper),
            pvalue_equivalence_exact=result.pvalue_exact_of(*rule.sides),
            standard_error=self.spread.standard_error if self.spread else None,
        )

    def test(self, _: np.random.Generator) -> DifferenceTest:
        tested = self._tested
        values = {"pvalue_unpaired": None, "pvalue_clustered_mcnemar": None, "n_resamples": 0}
        return {"pvalue": tested.pvalue, "pvalue_exact": tested.pvalue_exact, **values}

    def sides(self, _: np.random.Generator) -> tuple[float, float]:
        return self._tested.loss, self._tested.gain


class Clusters(MeanPairs):
    """0/1 scores in clusters: the farthest of score tests at the effective items, CR2 with t, and Gaffke's bound."""

    kind = EvidenceKind.CLUSTERS

    @property
    def _arms(self) -> dict[str, Any]:
        return {"baseline": self.sample.baseline, "candidate": self.sample.candidate, "cluster": self.codes}

    def bounds(self, rule: MetricRule, _: np.random.Generator, *levels: float) -> Bounds:
        results = [
            clustered_equivalence(**self._arms, margin=rule.margin, alpha=alpha) for alpha in (rule.alpha, *levels)
        ]
        first = results[0]
        return Bounds(
            intervals=_intervals(*(result.interval for result in results)),
            pvalue_equivalence=rule.larger(first.pvalue_lower, first.pvalue_upper),
            pvalue_equivalence_bounded=rule.larger(first.pvalue_bounded_lower, first.pvalue_bounded_upper),
            design_effect=first.design_effect,
            **self.estimates(),
        )

    def test(self, rng: np.random.Generator) -> DifferenceTest:
        clustered = clustered_mcnemar(cluster_cells(**self._arms))[1] if self.n_clusters > 1 else None
        flips = sign_flip(self.differences, cluster=self.codes, rng=rng)
        return _difference_test(flips, unpaired=self._unpaired(), clustered=clustered)

    def sides(self, _: np.random.Generator) -> tuple[float, float]:
        effect = design_effect(cluster_cells(**self._arms), self.spread)
        sides = [
            (self.bounded.pvalue_below(0.0), self.bounded.pvalue_above(0.0)),
            mcnemar_sides(self.counts.gains / effect, self.counts.losses / effect),
        ]
        if self.spread:
            sides.append(_halves(self.spread.pvalue, self.spread.difference))
        return max(loss for loss, _ in sides), max(gain for _, gain in sides)


class Scores(MeanPairs):
    """Other scores: Gaffke's bound alone, since a t-test knows nothing of rare large losses that were not seen."""

    kind = EvidenceKind.SCORES

    def bounds(self, rule: MetricRule, _: np.random.Generator, *levels: float) -> Bounds:
        pvalue = rule.larger(self.bounded.pvalue_above(-rule.margin), self.bounded.pvalue_below(rule.margin))
        limits = (self.bounded.interval(confidence_level=1.0 - 2.0 * alpha) for alpha in (rule.alpha, *levels))
        return Bounds(
            intervals=_intervals(*limits),
            pvalue_equivalence=pvalue,
            pvalue_equivalence_bounded=pvalue,
            design_effect=max(1.0, self.spread.design_effect) if self.spread else 1.0,
            **self.estimates(),
        )

    def test(self, rng: np.random.Generator) -> DifferenceTest:
        flips = _difference_test(sign_flip(self.differences, cluster=self.codes, rng=rng))
        # no smaller than the test whose interval is shown: one score that was not seen could turn the mean
        return {**flips, "pvalue": max(flips["pvalue"], min(1.0, 2.0 * min(self.sides(rng))))}

    def sides(self, _: np.random.Generator) -> tuple[float, float]:
        return self.bounded.pvalue_below(0.0), self.bounded.pvalue_above(0.0)


class LabelPairs:
    """Pairs of labels whose macro-F1 is the metric: swaps for the p-value, the bootstrap for the bounds.

    Where fewer than ten answers changed, resampling says little: the bounds are then counted.
    """

    kind = EvidenceKind.LABELS

    def __init__(self, sample: LabelSample) -> None:
        self.n_items = sample.n_items
        self.n_clusters = sum(np.unique(task.unit).size for task in sample.tasks)
        is_clustered = self.n_clusters < self.n_items
        self.tasks = [
            LabelledAnswers(
                truth=task.truth.tolist(),
                baseline=task.baseline.tolist(),
                candidate=task.candidate.tolist(),
                cluster=task.unit if is_clustered else None,
            )
            for task in sample.tasks
        ]
        truth, unit, before, after = (
            np.concatenate([getattr(task, name) for task in sample.tasks])
            for name in ("truth", "unit", "baseline", "candidate")
        )
        is_changed = before != after
        self.n_changed, self.n_changed_units = int(is_changed.sum()), np.unique(unit[is_changed]).size
        self.losses, self.gains = (int(np.sum(is_changed & (arm == truth))) for arm in (before, after))

    def changes(self, rule: MetricRule) -> tuple[int, int, int]:
        del rule
        return self.gains, self.losses, self.n_changed

    @cached_property
    def joined(self) -> JoinedAnswers:
        return JoinedAnswers.of(self.tasks)

    def bounds(self, rule: MetricRule, rng: np.random.Generator, *levels: float) -> Bounds:
        alphas = (rule.alpha, *levels)
        enough = self.n_changed_units >= ENOUGH_CHANGES
        drawn = [alpha for alpha in alphas if enough and alpha >= LEAST_RESAMPLED]
        intervals: dict[float, ConfidenceInterval] = {}
        standard_error = note = None
        if drawn:
            try:
                bootstraps = self.joined.bootstraps(
                    confidence_levels=[1.0 - 2.0 * alpha for alpha in drawn], n_resamples=N_RESAMPLES, rng=rng
                )
                intervals = {alpha: result.interval for alpha, result in zip(drawn, bootstraps, strict=True)}
                standard_error = bootstraps[0].standard_error
            except InsufficientData:
                drawn = []
        for alpha in {*alphas} - {*drawn}:
            with suppress(InsufficientData):
                intervals[alpha] = bound_macro_f1(self.tasks, confidence_level=1.0 - 2.0 * alpha)
        if rule.alpha not in drawn:
            note = Reason("counted" if intervals.get(rule.alpha) else "no-bound", {"n": self.n_changed})
            standard_error = None
        baseline, candidate = self.joined.scores
        return Bounds(
            difference=candidate - baseline,
            intervals=_intervals(*map(intervals.get, alphas)),
            standard_error=standard_error,
            note=note,
        )

    def test(self, rng: np.random.Generator) -> DifferenceTest:
        return _difference_test(self.joined.swap_test(n_resamples=N_RESAMPLES, rng=rng))

    def sides(self, rng: np.random.Generator) -> tuple[float, float]:
        # half of the swaps' p-value, which is no smaller than 1 in 10,000
        swaps = self.joined.swap_test(n_resamples=N_RESAMPLES, rng=rng)
        return _halves(swaps.pvalue, swaps.difference)


Pairs = Counts | Repeated | Clusters | Scores | LabelPairs


def pairs_of(complete: Sample) -> Pairs:
    """Choose the kind of a sample that has scores, none of them missing."""
    if isinstance(complete, LabelSample):
        return LabelPairs(complete)
    is_independent = np.unique(complete.unit).size == complete.n_items
    if not (is_mean_of(complete.baseline, complete.n_runs) and is_mean_of(complete.candidate, 1)):
        return Scores(complete)
    if complete.n_runs > 1:
        return Repeated(complete) if is_independent else Scores(complete)
    return Counts(complete) if is_independent else Clusters(complete)


def pairs_of_counts(counts: PairedCounts) -> Counts:
    """Make independent 0/1 scores of gains and losses; the other items are wrong in both arms."""
    order, baseline = np.arange(counts.n_items), np.zeros(counts.n_items)
    candidate = baseline.copy()
    candidate[: counts.gains] = 1.0
    baseline[counts.gains : counts.n_discordant] = 1.0
    return Counts(MeanSample(number=order, unit=order, baseline=baseline, candidate=candidate))


def evidence_of(
    pairs: Pairs, rule: MetricRule, streams: Streams, name: str, levels: tuple[float, float] | None = None
) -> Evidence:
    """Test a metric's complete pairs; not yet adjusted for the family.

    Args:
        name: the metric's id, which names its random streams.
        levels: one-sided, of the inner and the outer interval; None for alpha and its half.
    """
    inner, outer = levels or (rule.alpha, rule.alpha / 2.0)
    at_level = replace(rule, alpha=inner)
    test, bounds = pairs.test(streams.rng(f"test {name}")), pairs.bounds(at_level, streams.rng(f"bounds {name}"), outer)
    gains, losses, n_changed = pairs.changes(rule)
    limits = bounds.intervals[0]
    margin = None if limits is None else min(1.0, max(0.0, rule.larger(-limits.low, limits.high)))
    if margin is not None and isinstance(pairs, Counts | Repeated):  # the exact guard has to accept it as well
        counts: PairedCounts | RepeatedCounts = pairs.counts if isinstance(pairs, Counts) else pairs.repeated
        counts = counts if rule.higher_is_better else counts.swapped()
        margin = max(margin, provable_margin(counts, alpha=inner, is_one_sided=is_one_sided(rule)))
    intervals = [
        own and replace(with_zero(own, test["pvalue"], level), confidence_level=1.0 - shown)
        for own, level, shown in ((limits, inner, 2.0 * rule.alpha), (bounds.intervals[1], outer, rule.alpha))
    ]
    return Evidence(
        kind=pairs.kind,
        n_items=pairs.n_items,
        n_clusters=pairs.n_clusters,
        gains=gains,
        losses=losses,
        n_changed=n_changed,
        interval=intervals[1],
        equivalence_interval=intervals[0],
        pvalue_adjusted=test["pvalue"],
        pvalue_holm=test["pvalue"],
        provable_margin=margin,
        items_needed=None,
        **test,
        **{name: value for name, value in vars(bounds).items() if name != "intervals"},
    )


def _intervals(*intervals: ConfidenceInterval | None) -> tuple[IntervalOf | None, ...]:
    return tuple(
        None if own is None else IntervalOf(low=own.low, high=own.high, confidence_level=own.confidence_level)
        for own in intervals
    )


def with_zero(interval: AnyInterval, pvalue: float, level: float) -> AnyInterval:
    """Widen an interval to hold 0 where the two-sided p-value does not exclude 0 at this one-sided level.

    Score intervals leave 0 out a little before mid-p does (0 gained and 4 lost: p is 0.062).
    """
    if pvalue / 2.0 <= level:
        return interval
    return replace(interval, low=min(interval.low, 0.0), high=max(interval.high, 0.0))


def _halves(pvalue: float, difference: float) -> tuple[float, float]:
    """Split the p-value of a symmetric test into one of a loss and one of a gain."""
    half = pvalue / 2.0
    if difference == 0.0:
        return 0.5, 0.5
    return (half, 1.0 - half) if difference < 0.0 else (1.0 - half, half)


def with_items_needed(evidence: Evidence, rule: MetricRule, pairs: Pairs | None = None) -> Evidence:
    """Add the pairs that would prove the margin: at no true difference, and at the observed one.

    Args:
        pairs: those of the evidence; without them Gaffke's bound, which decides or has to agree, is left out.
    """
    bound = pairs.bounded if isinstance(pairs, Clusters | Scores) else None
    sign = 1.0 if rule.higher_is_better else -1.0
    seen = sign * evidence.difference

    if evidence.kind not in (EvidenceKind.COUNTS, EvidenceKind.CLUSTERS):
        at_none, at_seen = (
            _needed_by_bound(bound, evidence, rule, sign * difference)
            if bound
            else _needed_by_error(evidence, rule, difference)
            for difference in (0.0, seen)
        )
        return replace(evidence, items_needed=at_none, items_needed_observed=at_seen)
    goal: Any = {"margin": rule.margin, "alpha": rule.alpha, "power": rule.power, "is_one_sided": is_one_sided(rule)}
    effect, changed = evidence.design_effect, evidence.gains + evidence.losses
    over = clopper_pearson(changed / effect, evidence.n_items / effect, confidence_level=1.0 - 2.0 * rule.alpha)

    def sizes(difference: float) -> tuple[int | None, ...]:
        """At the lower limit of the discordance, at the observed one, at the upper limit."""
        shares = (max(share, abs(difference)) for share in (over[0], changed / evidence.n_items, over[1]))
        needed = (_needed(share, difference, **goal) for share in shares)
        low, at, high = (None if n is None else math.ceil(n * effect - _HAIR) for n in needed)
        if bound is None or at is None:
            return low, at, high
        least = _needed_by_bound(bound, evidence, rule, sign * difference)
        return low, least and max(at, least), high and least and max(high, least)

    (low, at, high), (low_seen, at_seen, high_seen) = sizes(0.0), sizes(seen)
    is_reached = not is_out_of_reach(evidence, rule)
    return replace(
        evidence,
        items_needed=at,
        items_needed_range=ItemsRange(low=low, high=high),
        items_needed_observed=at_seen,
        items_needed_observed_range=ItemsRange(low=low_seen, high=high_seen) if is_reached else None,
    )


@lru_cache(maxsize=1024)
def _needed(
    discordance: float, difference: float, *, margin: float, alpha: float, power: float, is_one_sided: bool
) -> int | None:
    """Exact up to EXACT_ITEMS; beyond by the closed form, which is right to a percent there."""
    goal: Any = {"discordance": discordance, "difference": difference, "margin": margin, "alpha": alpha}
    goal |= {"power": power, "is_one_sided": is_one_sided}
    if (-difference if is_one_sided else abs(difference)) >= margin:
        return None
    n_items = items_wald_equivalence(**goal)
    if n_items > EXACT_ITEMS:
        return math.ceil(n_items) if n_items <= MAX_ITEMS else None
    with suppress(InsufficientData):
        return items_needed(**goal, is_guarded=True, max_items=MAX_ITEMS)
    return None


def forget() -> None:
    """Clear the caches, for measurements."""
    _needed.cache_clear()
    forget_guard()


def _needed_by_error(evidence: Evidence, rule: MetricRule, difference: float) -> int | None:
    """From the standard error, which falls as 1 / √n; from a counted limit, which falls as 1 / n."""
    one_sided, limit = is_one_sided(rule), evidence.provable_margin
    room = rule.margin - (-difference if one_sided else abs(difference))
    if room <= 0.0 or limit is None:
        return None
    if evidence.standard_error is None:
        n_items = evidence.n_items * limit / room if limit < 1.0 else math.inf
    else:
        n_items = items_wald_equivalence(
            discordance=evidence.n_items * evidence.standard_error**2 + difference**2,
            difference=difference,
            margin=rule.margin,
            alpha=rule.alpha,
            power=rule.power,
            is_one_sided=one_sided,
        )
        # a guard that decides falls as 1 / n
        seen = evidence.difference if rule.higher_is_better else -evidence.difference
        width = limit + (seen if one_sided else -abs(seen))
        n_items = max(n_items, evidence.n_items * width / room)
    return math.ceil(n_items) if n_items <= MAX_ITEMS else None


def _needed_by_bound(mean: BoundedMean, evidence: Evidence, rule: MetricRule, difference: float) -> int | None:
    """Scores that prove the margin by Gaffke's bound with the rule's power, if more are like those seen.

    The true difference, and the error of its estimate, narrow the margin.
    """
    lower_taken, upper_taken = rule.sides
    is_split = lower_taken and upper_taken and not difference
    n_items = float(mean.counts @ mean.sizes)
    missed = (evidence.standard_error or 0.0) * normal_quantile(0.5 + rule.power / 2.0 if is_split else rule.power)

    def is_proven(factor: float) -> bool:
        room = rule.margin - missed / math.sqrt(factor)
        more = mean.scaled(factor)
        lower, upper = room + difference, room - difference
        return (not lower_taken or (lower > 0.0 and more.pvalue_above(-min(lower, 1.0)) <= rule.alpha)) and (
            not upper_taken or (upper > 0.0 and more.pvalue_below(min(upper, 1.0)) <= rule.alpha)
        )

    low, high = 1.0 / n_items, MAX_ITEMS / n_items
    if not is_proven(high):
        return None
    while high > low * 1.002:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_proven(middle) else (middle, high)
    return math.ceil(n_items * high)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyMember:
    """A metric with its complete pairs."""

    spec: MetricSpec
    sample: Sample
    evidence: Evidence


def twins(samples: Iterable[tuple[MetricSpec, Sample]]) -> dict[str, MetricSpec]:
    """Map each metric's id to the first metric with the same scores on the same items.

    Primaries come first, then a task's own metric before a group's.
    """
    groups: dict[Hashable, list[MetricSpec]] = {}
    for spec, sample in samples:
        groups.setdefault((type(sample), sample.identity), []).append(spec)
    return {
        spec.id: min(same, key=lambda spec: (not spec.is_primary, spec.kind is MetricKind.GROUP_MEAN))
        for same in groups.values()
        for spec in same
    }


def adjusted(family: Sequence[FamilyMember], n_units: int, rng: np.random.Generator) -> tuple[dict[str, Evidence], int]:
    """Adjust the family's p-values: max-T, what it cannot carry by Holm, alpha shared by their numbers.

    A block whose every hypothesis falls passes its share on to the other (Bretz et al. 2009). Returned are the evidence
    by metric id, and the number of sign patterns behind max-T.
    """
    means = _means(family)
    others = [member for member in family if not isinstance(member.sample, MeanSample)]
    stepped = max_t(_table(means, n_units), n_resamples=N_RESAMPLES, rng=rng) if len(means) > 1 else None
    # alone a metric needs no adjustment: its p is its own test's
    first = stepped.pvalues if stepped else np.array([member.evidence.pvalue for member in means])
    second = holm([member.evidence.pvalue for member in others])
    total = first.size + second.size

    def weighted(block: FloatArray) -> FloatArray:
        return np.asarray(np.minimum(1.0, block * (total / max(1, block.size))))

    def passed_on(block: FloatArray, other: FloatArray) -> FloatArray:
        return np.asarray(np.minimum(weighted(block), np.maximum(block, weighted(other).max(initial=0.0))))

    pvalues = np.concatenate([passed_on(first, second), passed_on(second, first)])
    checks = holm([member.evidence.pvalue for member in (*means, *others)])
    evidence = {
        member.spec.id: replace(
            member.evidence, pvalue_adjusted=max(float(p), member.evidence.pvalue), pvalue_holm=float(check)
        )
        for member, p, check in zip((*means, *others), pvalues, checks, strict=True)
    }
    return evidence, stepped.n_resamples if stepped else 0


def over_candidates(evidence: Evidence, n_candidates: int) -> Evidence:
    """Multiply adjusted p-values by the number of candidates (Bonferroni), which needs no other comparison's data."""
    adjusted, holm = (min(1.0, n_candidates * p) for p in (evidence.pvalue_adjusted, evidence.pvalue_holm))
    return replace(evidence, pvalue_adjusted=adjusted, pvalue_holm=holm)


def global_test(family: Sequence[FamilyMember], n_units: int, rng: np.random.Generator) -> GlobalTest | None:
    """Test whether the candidate is worse, or better, on average over the metrics that are means."""
    means = _means(family)
    if not means:
        return None
    signs = np.array([1.0 if member.spec.higher_is_better else -1.0 for member in means])
    sizes = [member.sample.n_items for member in means]
    flips = global_sign_flip(_table(means, n_units) * signs, n_items=sizes, n_resamples=N_RESAMPLES, rng=rng)
    return GlobalTest(
        n_metrics=len(means), difference=flips.difference, pvalue=flips.pvalue, n_resamples=flips.n_resamples
    )


def _means(family: Sequence[FamilyMember]) -> list[FamilyMember]:
    return [member for member in family if isinstance(member.sample, MeanSample)]


def _table(means: Sequence[FamilyMember], n_units: int) -> FloatArray:
    columns = [
        np.bincount(member.sample.unit, weights=member.sample.differences, minlength=n_units).astype(np.float64)
        for member in means
        if isinstance(member.sample, MeanSample)
    ]
    return np.column_stack(columns) if columns else np.zeros((n_units, 0))

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

from qualab.analysis.ruling import MAX_ITEMS, is_one_sided, is_out_of_reach, proves_margin
from qualab.analysis.samples import LabelSample, MeanSample, Sample, Streams
from qualab.errors import InsufficientData
from qualab.model.comparison import Evidence, GlobalTest, IntervalOf, ItemsRange
from qualab.model.names import EvidenceKind, MetricKind
from qualab.model.plan import MetricRule, MetricSpec
from qualab.model.reason import Reason
from qualab.stats.bounded import BoundedMean
from qualab.stats.checks import FloatArray, IntArray
from qualab.stats.clustered import cluster_cells, clustered_equivalence, clustered_mcnemar, design_effect
from qualab.stats.counts import PairedCounts, tally
from qualab.stats.difference import mcnemar, mcnemar_sides, two_proportion_z
from qualab.stats.distributions import normal_quantile
from qualab.stats.equivalence import equivalence, forget_guard, provable_margin
from qualab.stats.f1 import JoinedAnswers, LabelledAnswers, bound_macro_f1
from qualab.stats.interval import ConfidenceInterval, clopper_pearson, tango
from qualab.stats.mean import MeanDifference, cluster_codes, mean_difference
from qualab.stats.resampling import ResamplingResult, global_sign_flip, holm, max_t, sign_flip
from qualab.stats.sizing import items_needed, items_wald_equivalence

N_RESAMPLES = 9_999
EXACT_ITEMS = 10_000
"""Up to so many, items needed are found by exact power."""
ENOUGH_CHANGES = 10
"""Changed items (or clusters) from which on the bootstrap of labels is believed; below, changes are counted."""
LEAST_RESAMPLED = 0.001
"""A level below which resamples do not tell where a bound is: ten of them lie beyond it."""
_HAIR = 1e-9
"""Counts times a design effect of 1 must not be rounded up."""

AnyInterval = TypeVar("AnyInterval", IntervalOf, ConfidenceInterval)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far the difference of one sample without a missing score may be from 0."""

    difference: float
    intervals: tuple[IntervalOf | None, ...]
    """At 1 − 2 alpha; then at each further one-sided level that was asked for."""
    pvalue_equivalence: float | None = None
    """Of the tests at the margin that the objective takes, like the next two."""
    pvalue_equivalence_exact: float | None = None
    pvalue_equivalence_bounded: float | None = None
    """Of Gaffke's bound: means of scores that are not 0/1, and 0/1 scores in clusters."""
    standard_error: float | None = None
    degrees_of_freedom: float | None = None
    design_effect: float = 1.0
    note: Reason | None = None

    def prove(self, rule: MetricRule) -> bool:
        """Tell whether the interval and the tests at the margin prove the objective."""
        return proves_margin(rule, self.intervals[0], self.pvalue_equivalence, self.pvalue_equivalence_exact)


@dataclass(frozen=True, kw_only=True)
class DifferenceTest:
    """A two-sided test of no difference, in the names of Evidence."""

    pvalue: float
    pvalue_exact: float | None
    pvalue_unpaired: float | None = None
    """Only beside the others; so is the next."""
    pvalue_clustered_mcnemar: float | None = None
    n_resamples: int = 0


def _resampled(found: ResamplingResult) -> DifferenceTest:
    exact = found.pvalue_whole if found.is_exact else None
    return DifferenceTest(pvalue=found.pvalue, pvalue_exact=exact, n_resamples=found.n_resamples)


class MeanPairs:
    """Pairs of scores whose mean is the metric, none missing."""

    kind: EvidenceKind

    def __init__(self, sample: MeanSample) -> None:
        self.sample, self.n_items, self.differences = sample, sample.n_items, sample.differences
        self.codes: IntArray = cluster_codes(sample.unit, sample.n_items)
        self.n_clusters = np.unique(self.codes).size

    def changes(self, rule: MetricRule) -> tuple[int, int, int]:
        """Count gains, losses, and pairs that differ."""
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
        """Return what clusters and other scores share: the mean with its spread."""
        return {
            "difference": math.fsum(self.differences) / self.n_items,
            "standard_error": self.spread.standard_error if self.spread else None,
            "degrees_of_freedom": self.spread.degrees_of_freedom if self.spread else None,
            "note": None if self.n_clusters > 1 or self.n_items == 1 else Reason("one-cluster"),
        }

    def _flips(self, rng: np.random.Generator) -> DifferenceTest:
        return _resampled(sign_flip(self.differences, cluster=self.codes, rng=rng))

    def _unpaired(self) -> float:
        baseline, candidate = self.counts.accuracies
        return two_proportion_z(
            baseline=baseline, candidate=candidate, n_baseline=self.n_items, n_candidate=self.n_items
        )


class Counts(MeanPairs):
    """0/1 scores of independent items: McNemar's mid-p, Tango's interval and the exact guard."""

    kind = EvidenceKind.COUNTS

    def bounds(self, rule: MetricRule, _: np.random.Generator, *levels: float) -> Bounds:
        found = equivalence(self.counts, margin=rule.margin, alpha=rule.alpha)
        more = (tango(self.counts, confidence_level=1.0 - 2.0 * level) for level in levels)
        return Bounds(
            difference=self.counts.difference,
            intervals=_intervals(found.interval, *more),
            pvalue_equivalence=rule.larger(found.pvalue_lower, found.pvalue_upper),
            pvalue_equivalence_exact=found.pvalue_exact_of(*rule.sides),
        )

    def test(self, _: np.random.Generator) -> DifferenceTest:
        found = mcnemar(self.counts)
        return DifferenceTest(pvalue=found.pvalue, pvalue_exact=found.pvalue_exact, pvalue_unpaired=self._unpaired())

    def sides(self, _: np.random.Generator) -> tuple[float, float]:
        return mcnemar_sides(self.counts.gains, self.counts.losses)


class Clusters(MeanPairs):
    """0/1 scores in clusters: the farthest of score tests at the effective items, CR2 with t, and Gaffke's bound."""

    kind = EvidenceKind.CLUSTERS

    @property
    def _arms(self) -> dict[str, Any]:
        return {"baseline": self.sample.baseline, "candidate": self.sample.candidate, "cluster": self.codes}

    def bounds(self, rule: MetricRule, _: np.random.Generator, *levels: float) -> Bounds:
        found, *more = (
            clustered_equivalence(**self._arms, margin=rule.margin, alpha=alpha) for alpha in (rule.alpha, *levels)
        )
        return Bounds(
            intervals=_intervals(found.interval, *(one.interval for one in more)),
            pvalue_equivalence=rule.larger(found.pvalue_lower, found.pvalue_upper),
            pvalue_equivalence_bounded=rule.larger(found.pvalue_bounded_lower, found.pvalue_bounded_upper),
            design_effect=found.design_effect,
            **self.estimates(),
        )

    def test(self, rng: np.random.Generator) -> DifferenceTest:
        return replace(
            self._flips(rng),
            pvalue_unpaired=self._unpaired(),
            pvalue_clustered_mcnemar=(
                clustered_mcnemar(cluster_cells(**self._arms))[1] if self.n_clusters > 1 else None
            ),
        )

    def sides(self, _: np.random.Generator) -> tuple[float, float]:
        effect = design_effect(cluster_cells(**self._arms), self.spread)
        found = [
            (self.bounded.pvalue_below(0.0), self.bounded.pvalue_above(0.0)),
            mcnemar_sides(self.counts.gains / effect, self.counts.losses / effect),
        ]
        if self.spread:
            found.append(_halves(self.spread.pvalue, self.spread.difference))
        return max(loss for loss, _ in found), max(gain for _, gain in found)


class Scores(MeanPairs):
    """Other scores: Gaffke's bound alone, since a t-test knows nothing of rare large losses that were not seen."""

    kind = EvidenceKind.SCORES

    def bounds(self, rule: MetricRule, _: np.random.Generator, *levels: float) -> Bounds:
        pvalue = rule.larger(self.bounded.pvalue_above(-rule.margin), self.bounded.pvalue_below(rule.margin))
        found = (self.bounded.interval(confidence_level=1.0 - 2.0 * alpha) for alpha in (rule.alpha, *levels))
        return Bounds(
            intervals=_intervals(*found),
            pvalue_equivalence=pvalue,
            pvalue_equivalence_bounded=pvalue,
            design_effect=max(1.0, self.spread.design_effect) if self.spread else 1.0,
            **self.estimates(),
        )

    def test(self, rng: np.random.Generator) -> DifferenceTest:
        flips = self._flips(rng)
        # no smaller than the test whose interval is shown: one score that was not seen could turn the mean
        return replace(flips, pvalue=max(flips.pvalue, min(1.0, 2.0 * min(self.sides(rng)))))

    def sides(self, _: np.random.Generator) -> tuple[float, float]:
        return self.bounded.pvalue_below(0.0), self.bounded.pvalue_above(0.0)


class LabelPairs:
    """Pairs of labels whose macro-F1 is the metric: swaps for the p-value, the bootstrap for the bounds.

    Where fewer than ten answers changed, resampling them says little about the rest: the bounds are then counted.
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
                found = self.joined.bootstraps(
                    confidence_levels=[1.0 - 2.0 * alpha for alpha in drawn], n_resamples=N_RESAMPLES, rng=rng
                )
                intervals = dict(zip(drawn, (one.interval for one in found), strict=True))
                standard_error = found[0].standard_error
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
        return _resampled(self.joined.swap_test(n_resamples=N_RESAMPLES, rng=rng))

    def sides(self, rng: np.random.Generator) -> tuple[float, float]:
        # half of the swaps' p-value, which is no smaller than 1 in 10,000
        found = self.joined.swap_test(n_resamples=N_RESAMPLES, rng=rng)
        return _halves(found.pvalue, found.difference)


Pairs = Counts | Clusters | Scores | LabelPairs


def pairs_of(complete: Sample) -> Pairs:
    """Choose the kind of a sample without a missing score, of which there is at least one."""
    if isinstance(complete, LabelSample):
        return LabelPairs(complete)
    if not all(np.all((arm == 0.0) | (arm == 1.0)) for arm in (complete.baseline, complete.candidate)):
        return Scores(complete)
    return Counts(complete) if np.unique(complete.unit).size == complete.n_items else Clusters(complete)


def pairs_of_counts(counts: PairedCounts) -> Counts:
    """Make independent 0/1 scores of gains and losses; which of the other items are right does not matter."""
    order, baseline = np.arange(counts.n_items), np.zeros(counts.n_items)
    candidate = baseline.copy()
    candidate[: counts.gains] = 1.0
    baseline[counts.gains : counts.n_discordant] = 1.0
    return Counts(MeanSample(number=order, unit=order, baseline=baseline, candidate=candidate))


def evidence_of(
    pairs: Pairs, rule: MetricRule, streams: Streams, name: str, levels: tuple[float, float] | None = None
) -> Evidence:
    """Return everything that a metric's complete pairs say, not yet adjusted for the family.

    Args:
        name: of the metric, which names its random streams.
        levels: one-sided, of the inner and the outer interval, where looks make them other than alpha and its half.
    """
    inner, outer = levels or (rule.alpha, rule.alpha / 2.0)
    at_level = replace(rule, alpha=inner)
    test, bounds = pairs.test(streams.rng(f"test {name}")), pairs.bounds(at_level, streams.rng(f"bounds {name}"), outer)
    gains, losses, n_changed = pairs.changes(rule)
    limits = bounds.intervals[0]
    margin = None if limits is None else min(1.0, max(0.0, rule.larger(-limits.low, limits.high)))
    if margin is not None and isinstance(pairs, Counts):  # the exact guard has to accept it as well
        counts = pairs.counts if rule.higher_is_better else pairs.counts.swapped()
        margin = max(margin, provable_margin(counts, alpha=inner, is_one_sided=is_one_sided(rule)))
    intervals = [
        None if found is None else replace(with_zero(found, test.pvalue, level), confidence_level=1.0 - shown)
        for found, level, shown in ((limits, inner, 2.0 * rule.alpha), (bounds.intervals[1], outer, rule.alpha))
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
        pvalue_adjusted=test.pvalue,
        pvalue_holm=test.pvalue,
        provable_margin=margin,
        items_needed=None,
        **vars(test),
        **{name: value for name, value in vars(bounds).items() if name != "intervals"},
    )


def _intervals(*found: ConfidenceInterval | None) -> tuple[IntervalOf | None, ...]:
    return tuple(
        None if one is None else IntervalOf(low=one.low, high=one.high, confidence_level=one.confidence_level)
        for one in found
    )


def with_zero(interval: AnyInterval, pvalue: float, level: float) -> AnyInterval:
    """Widen an interval to hold 0 where the test of no difference does not exclude 0 at this one-sided level.

    Score intervals leave 0 out a little before mid-p does (0 gained and 4 lost: p is 0.062).

    Args:
        pvalue: two-sided.
    """
    if pvalue / 2.0 <= level:
        return interval
    return replace(interval, low=min(interval.low, 0.0), high=max(interval.high, 0.0))


def _halves(pvalue: float, difference: float) -> tuple[float, float]:
    """One-sided p-values of a loss and of a gain, from a two-sided one of a symmetric test."""
    half = pvalue / 2.0
    if difference == 0.0:
        return 0.5, 0.5
    return (half, 1.0 - half) if difference < 0.0 else (1.0 - half, half)


def with_items_needed(evidence: Evidence, rule: MetricRule, pairs: Pairs | None = None) -> Evidence:
    """Add the pairs that would prove the margin: at no true difference, and at the observed one.

    Args:
        pairs: those of the evidence, for scores and clusters, where Gaffke's bound decides or has to agree.
    """
    bound = pairs.bounded if isinstance(pairs, Clusters | Scores) else None
    seen = evidence.difference if rule.higher_is_better else -evidence.difference

    def bounded(difference: float) -> int | None:
        assert bound is not None
        own = difference if rule.higher_is_better else -difference
        return _needed_by_bound(bound, evidence.standard_error or 0.0, rule, own)

    if evidence.kind not in (EvidenceKind.COUNTS, EvidenceKind.CLUSTERS):
        at_none, at_seen = (
            _needed_by_error(evidence, rule, difference) if bound is None else bounded(difference)
            for difference in (0.0, seen)
        )
        return replace(evidence, items_needed=at_none, items_needed_observed=at_seen)
    goal: Any = {"margin": rule.margin, "alpha": rule.alpha, "power": rule.power, "is_one_sided": is_one_sided(rule)}
    effect, changed = evidence.design_effect, evidence.gains + evidence.losses
    over = clopper_pearson(changed / effect, evidence.n_items / effect, confidence_level=1.0 - 2.0 * rule.alpha)

    def sizes(difference: float) -> tuple[int | None, ...]:
        """At the lower limit of the discordance, at the observed one, at the upper limit."""
        shares = (max(share, abs(difference)) for share in (over[0], changed / evidence.n_items, over[1]))
        found = [_needed(share, difference, **goal) for share in shares]
        low, at, high = (None if n is None else math.ceil(n * effect - _HAIR) for n in found)
        if bound is None or at is None:
            return low, at, high
        least = bounded(difference)
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
    goal: Any = {"margin": margin, "alpha": alpha, "power": power, "is_one_sided": is_one_sided}
    if (-difference if is_one_sided else abs(difference)) >= margin:
        return None
    found = items_wald_equivalence(discordance=discordance, difference=difference, **goal)
    if found > EXACT_ITEMS:
        return math.ceil(found) if found <= MAX_ITEMS else None
    try:
        return items_needed(
            discordance=discordance, difference=difference, is_guarded=True, max_items=MAX_ITEMS, **goal
        )
    except InsufficientData:
        return None


def forget() -> None:
    """Drop everything that is kept from one analysis to the next, for measurements."""
    _needed.cache_clear()
    forget_guard()


def _needed_by_error(evidence: Evidence, rule: MetricRule, difference: float) -> int | None:
    """From the standard error, in closed form: it falls with the square root of the items. A counted limit as 1 / n."""
    one_sided, limit = is_one_sided(rule), evidence.provable_margin
    room = rule.margin - (-difference if one_sided else abs(difference))
    if room <= 0.0 or limit is None:
        return None
    if evidence.standard_error is None:
        found = evidence.n_items * limit / room if limit < 1.0 else math.inf
    else:
        found = items_wald_equivalence(
            discordance=evidence.n_items * evidence.standard_error**2 + difference**2,
            difference=difference,
            margin=rule.margin,
            alpha=rule.alpha,
            power=rule.power,
            is_one_sided=one_sided,
        )
    return math.ceil(found) if found <= MAX_ITEMS else None


def _needed_by_bound(mean: BoundedMean, standard_error: float, rule: MetricRule, difference: float) -> int | None:
    """Scores that prove the margin by Gaffke's bound with the rule's power, if more are as those seen.

    The observed distribution is moved to a mean of 0 and multiplied; the true difference, and what its estimate may
    miss, by `standard_error` at the scores seen, narrow the margin.
    """
    lower_taken, upper_taken = rule.sides
    is_split = lower_taken and upper_taken and not difference
    n_items = float(mean.counts @ mean.sizes)
    missed = standard_error * normal_quantile(0.5 + rule.power / 2.0 if is_split else rule.power)

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
    """Map each metric's id to the one that stands for all with the same scores on the same items.

    A primary stands before others, a task's own metric before a group's, then the earlier row.
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

    A block whose every hypothesis falls passes its share on to the other (Bretz et al. 2009).

    Returns:
        The evidence by metric id, and the number of sign patterns behind max-T.
    """
    means = _means(family)
    others = [one for one in family if not isinstance(one.sample, MeanSample)]
    found = max_t(_table(means, n_units), n_resamples=N_RESAMPLES, rng=rng) if len(means) > 1 else None
    # alone a metric needs no adjustment: its p is its own test's
    first = found.pvalues if found else np.array([one.evidence.pvalue for one in means])
    second = holm([one.evidence.pvalue for one in others])
    total = first.size + second.size

    def weighted(block: FloatArray) -> FloatArray:
        return np.asarray(np.minimum(1.0, block * (total / max(1, block.size))))

    def passed_on(block: FloatArray, other: FloatArray) -> FloatArray:
        return np.asarray(np.minimum(weighted(block), np.maximum(block, weighted(other).max(initial=0.0))))

    pvalues = np.concatenate([passed_on(first, second), passed_on(second, first)])
    checks = holm([one.evidence.pvalue for one in (*means, *others)])
    evidence = {
        one.spec.id: replace(one.evidence, pvalue_adjusted=max(float(p), one.evidence.pvalue), pvalue_holm=float(check))
        for one, p, check in zip((*means, *others), pvalues, checks, strict=True)
    }
    return evidence, found.n_resamples if found else 0


def global_test(family: Sequence[FamilyMember], n_units: int, rng: np.random.Generator) -> GlobalTest | None:
    """Test whether the candidate is worse, or better, on average over the metrics that are means."""
    means = _means(family)
    if not means:
        return None
    signs = np.array([1.0 if one.spec.higher_is_better else -1.0 for one in means])
    sizes = [one.sample.n_items for one in means]
    found = global_sign_flip(_table(means, n_units) * signs, n_items=sizes, n_resamples=N_RESAMPLES, rng=rng)
    return GlobalTest(
        n_metrics=len(means), difference=found.difference, pvalue=found.pvalue, n_resamples=found.n_resamples
    )


def _means(family: Sequence[FamilyMember]) -> list[FamilyMember]:
    return [one for one in family if isinstance(one.sample, MeanSample)]


def _table(means: Sequence[FamilyMember], n_units: int) -> FloatArray:
    columns = [
        np.bincount(one.sample.unit, weights=one.sample.differences, minlength=n_units).astype(np.float64)
        for one in means
        if isinstance(one.sample, MeanSample)
    ]
    return np.column_stack(columns) if columns else np.zeros((n_units, 0))

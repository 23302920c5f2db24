"""The evidence of a metric that is a mean over scores: independent items, clusters, or scores other than 0 and 1."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from qualab.analysis.bounds import Bounds, farther, halves, interval_of, of_sides, with_zero
from qualab.analysis.ruling import is_one_sided, sides
from qualab.analysis.samples import MeanSample
from qualab.errors import InsufficientData
from qualab.model.comparison import Evidence
from qualab.model.names import EvidenceKind
from qualab.model.plan import DecisionRule
from qualab.model.reason import Reason
from qualab.stats.bounded import BoundedMean
from qualab.stats.checks import IntArray
from qualab.stats.clustered import (
    ClusteredEquivalence,
    cluster_cells,
    clustered_equivalence,
    clustered_mcnemar,
    design_effect,
)
from qualab.stats.counts import PairedCounts, tally
from qualab.stats.difference import mcnemar, mcnemar_sides, two_proportion_z
from qualab.stats.equivalence import EquivalenceResult, equivalence, provable_margin
from qualab.stats.interval import tango
from qualab.stats.mean import MeanDifference, cluster_codes, mean_difference
from qualab.stats.resampling import sign_flip

_HAIR = 1e-9
"""Counts divided by a design effect of 1 must not be rounded up."""


def mean_evidence(
    sample: MeanSample,
    rule: DecisionRule,
    rng: np.random.Generator,
    *,
    higher_is_better: bool = True,
    level: float | None = None,
) -> Evidence:
    """Everything that one metric's complete pairs say, of which there is at least one. Not yet adjusted.

    `level`: of the bounds, where it is not the rule's alpha.
    """
    data = _Data(sample, higher_is_better=higher_is_better)
    at_level = rule if level is None else replace(rule, alpha=level)
    bounds = data.bounds(at_level)
    tests = data.tests(rng)
    gained = sample.differences if higher_is_better else -sample.differences
    return Evidence(
        kind=data.kind,
        n_items=sample.n_items,
        n_clusters=data.n_clusters,
        gains=int(np.sum(gained > 0.0)),
        losses=int(np.sum(gained < 0.0)),
        n_changed=int(np.count_nonzero(sample.differences)),
        difference=bounds.difference,
        interval=with_zero(bounds.interval, tests.pvalue, at_level.alpha / 2.0),
        equivalence_interval=with_zero(bounds.equivalence_interval, tests.pvalue, at_level.alpha),
        pvalue=tests.pvalue,
        pvalue_exact=tests.exact,
        pvalue_adjusted=tests.pvalue,
        pvalue_holm=tests.pvalue,
        pvalue_unpaired=data.pvalue_unpaired(),
        pvalue_clustered_mcnemar=tests.clustered_mcnemar,
        pvalue_equivalence=bounds.pvalue_equivalence,
        pvalue_equivalence_exact=bounds.pvalue_equivalence_exact,
        pvalue_equivalence_bounded=bounds.pvalue_equivalence_bounded,
        standard_error=bounds.standard_error,
        degrees_of_freedom=bounds.degrees_of_freedom,
        design_effect=bounds.design_effect,
        provable_margin=data.provable_margin(bounds, at_level),
        items_needed=None,
        n_resamples=tests.n_resamples,
        note=bounds.note,
    )


def sample_of_counts(counts: PairedCounts) -> MeanSample:
    """Independent 0/1 scores with these gains and losses. Which of the other items are right does not matter."""
    order, baseline = np.arange(counts.n_items), np.zeros(counts.n_items)
    candidate = baseline.copy()
    candidate[: counts.gains] = 1.0
    baseline[counts.gains : counts.n_discordant] = 1.0
    return MeanSample(number=order, unit=order, baseline=baseline, candidate=candidate)


def mean_bounds(sample: MeanSample, rule: DecisionRule, *, higher_is_better: bool = True) -> Bounds:
    """What a sample of at least one score says of the size of the difference."""
    return _Data(sample, higher_is_better=higher_is_better).bounds(rule)


def bounded_mean(sample: MeanSample) -> BoundedMean | None:
    """What Gaffke's bound is made from; None for independent 0/1 scores, which it does not decide."""
    data = _Data(sample, higher_is_better=True)
    return None if data.kind is EvidenceKind.COUNTS else data.bounded


def mean_sides(sample: MeanSample) -> tuple[float, float]:
    """One-sided p-values of a loss and of a gain, right far out in the tails: looks ask for small levels."""
    return _Data(sample, higher_is_better=True).sides()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tests:
    pvalue: float
    exact: float | None
    clustered_mcnemar: float | None = None
    n_resamples: int = 0


class _Data:
    """A sample without a missing score, and what is derived from it."""

    def __init__(self, sample: MeanSample, *, higher_is_better: bool) -> None:
        self.sample = sample
        self.higher_is_better = higher_is_better
        self.n_items = sample.n_items

    @cached_property
    def codes(self) -> IntArray:
        return cluster_codes(self.sample.unit, self.n_items)

    @cached_property
    def sizes(self) -> IntArray:
        return np.bincount(self.codes).astype(np.int64)

    @property
    def n_clusters(self) -> int:
        return self.sizes.size

    @cached_property
    def kind(self) -> EvidenceKind:
        scores = np.concatenate([self.sample.baseline, self.sample.candidate])
        if not np.all((scores == 0.0) | (scores == 1.0)):
            return EvidenceKind.SCORES
        return EvidenceKind.COUNTS if self.n_clusters == self.n_items else EvidenceKind.CLUSTERS

    @cached_property
    def counts(self) -> PairedCounts:
        return tally(self.sample.baseline, self.sample.candidate)

    @cached_property
    def bounded(self) -> BoundedMean:
        return BoundedMean.of(self.sample.differences, cluster=self.codes)

    @property
    def difference(self) -> float:
        return math.fsum(self.sample.differences) / self.n_items

    def bounds(self, rule: DecisionRule) -> Bounds:
        if self.kind is EvidenceKind.COUNTS:
            return self._bounds_of_counts(rule)
        return self._bounds_of_clusters(rule) if self.kind is EvidenceKind.CLUSTERS else self._bounds_of_scores(rule)

    def _bounds_of_counts(self, rule: DecisionRule) -> Bounds:
        found = equivalence(self.counts, margin=rule.margin, alpha=rule.alpha)
        return Bounds(
            difference=self.counts.difference,
            interval=interval_of(tango(self.counts, confidence_level=1.0 - rule.alpha)),
            equivalence_interval=interval_of(found.interval),
            pvalue_equivalence=self._taken(found.pvalue_lower, found.pvalue_upper, rule),
            pvalue_equivalence_exact=self._exact(found, rule),
            pvalue_equivalence_bounded=None,
            standard_error=None,
            degrees_of_freedom=None,
            design_effect=1.0,
        )

    def _taken(self, lower: float, upper: float, rule: DecisionRule) -> float:
        return of_sides(lower, upper, rule, higher_is_better=self.higher_is_better)

    def _exact(self, found: EquivalenceResult, rule: DecisionRule) -> float:
        """The exact p-value that the objective takes; one side alone where it takes one side."""
        lower, upper = sides(rule.objective, higher_is_better=self.higher_is_better)
        if lower and upper:
            return found.pvalue_exact
        return found.pvalue_exact_lower if lower else found.pvalue_exact_upper

    def _bounds_of_clusters(self, rule: DecisionRule) -> Bounds:
        """The farthest limits of three: score tests at the effective number of items, CR2 with t, Gaffke's bound."""
        found, outer = self._clustered(rule.margin, rule.alpha), self._clustered(rule.margin, rule.alpha / 2.0)
        spread = self._spread()
        return Bounds(
            difference=self.difference,
            interval=interval_of(outer.interval),
            equivalence_interval=interval_of(found.interval),
            pvalue_equivalence=self._taken(found.pvalue_lower, found.pvalue_upper, rule),
            pvalue_equivalence_exact=None,
            pvalue_equivalence_bounded=self._taken(found.pvalue_bounded_lower, found.pvalue_bounded_upper, rule),
            standard_error=spread.standard_error if spread else None,
            degrees_of_freedom=spread.degrees_of_freedom if spread else None,
            design_effect=found.design_effect,
            note=self._note,
        )

    def _clustered(self, margin: float, alpha: float) -> ClusteredEquivalence:
        sample = self.sample
        return clustered_equivalence(sample.baseline, sample.candidate, cluster=self.codes, margin=margin, alpha=alpha)

    def _bounds_of_scores(self, rule: DecisionRule) -> Bounds:
        """Gaffke's bound alone: a t-test knows nothing of rare large losses that were not seen."""
        spread = self._spread()
        lower, upper = self.bounded.pvalue_above(-rule.margin), self.bounded.pvalue_below(rule.margin)
        pvalue = self._taken(lower, upper, rule)
        return Bounds(
            difference=self.difference,
            interval=interval_of(self.bounded.interval(confidence_level=1.0 - rule.alpha)),
            equivalence_interval=interval_of(self.bounded.interval(confidence_level=1.0 - 2.0 * rule.alpha)),
            pvalue_equivalence=pvalue,
            pvalue_equivalence_exact=None,
            pvalue_equivalence_bounded=pvalue,
            standard_error=spread.standard_error if spread else None,
            degrees_of_freedom=spread.degrees_of_freedom if spread else None,
            design_effect=max(1.0, spread.design_effect) if spread else 1.0,
            note=self._note,
        )

    @property
    def _note(self) -> Reason | None:
        return None if self.n_clusters > 1 or self.n_items == 1 else Reason("one-cluster")

    def _spread(self) -> MeanDifference | None:
        try:
            return mean_difference(self.sample.differences, cluster=self.codes)
        except InsufficientData:
            return None

    def tests(self, rng: np.random.Generator) -> _Tests:
        """Two-sided tests of no difference."""
        if self.kind is EvidenceKind.COUNTS:
            found = mcnemar(self.counts)
            return _Tests(pvalue=found.pvalue, exact=found.pvalue_exact)
        flips = sign_flip(self.sample.differences, cluster=self.codes, rng=rng)
        return _Tests(
            pvalue=max(flips.pvalue, self._pvalue_of_bound()),
            exact=flips.pvalue_whole if flips.is_exact else None,
            clustered_mcnemar=self._clustered_mcnemar(),
            n_resamples=flips.n_resamples,
        )

    def _pvalue_of_bound(self) -> float:
        """Two-sided p of the test whose interval is shown: where scores are not 0/1, one unseen could turn the mean."""
        return min(1.0, 2.0 * min(self.sides())) if self.kind is EvidenceKind.SCORES else 0.0

    def sides(self) -> tuple[float, float]:
        """McNemar's mid-p of the counts, else Gaffke's bound against 0.

        Of 0/1 scores in clusters the largest p of that, the counts over the design effect, and CR2's t-test.
        """
        if self.kind is EvidenceKind.COUNTS:
            return mcnemar_sides(self.counts.gains, self.counts.losses)
        found = [(self.bounded.pvalue_below(0.0), self.bounded.pvalue_above(0.0))]
        if self.kind is EvidenceKind.CLUSTERS:
            effect = design_effect(self.sample.baseline, self.sample.candidate, cluster=self.codes)
            found.append(mcnemar_sides(self.counts.gains / effect, self.counts.losses / effect))
            if spread := self._spread():
                found.append(halves(spread.pvalue, spread.difference))
        return max(loss for loss, _ in found), max(gain for _, gain in found)

    def _clustered_mcnemar(self) -> float | None:
        if self.kind is not EvidenceKind.CLUSTERS or self.n_clusters < 2:
            return None
        cells = cluster_cells(self.sample.baseline, self.sample.candidate, cluster=self.codes)
        return clustered_mcnemar(cells).pvalue

    def pvalue_unpaired(self) -> float | None:
        if self.kind is EvidenceKind.SCORES:
            return None
        baseline, candidate = self.counts.accuracies
        return two_proportion_z(
            baseline=baseline, candidate=candidate, n_baseline=self.n_items, n_candidate=self.n_items
        )

    def provable_margin(self, bounds: Bounds, rule: DecisionRule) -> float | None:
        if bounds.equivalence_interval is None:
            return None
        limit = farther(bounds.equivalence_interval, rule, higher_is_better=self.higher_is_better)
        if self.kind is not EvidenceKind.COUNTS:
            return limit
        counts = self.counts if self.higher_is_better else self.counts.swapped()
        return max(limit, provable_margin(counts, alpha=rule.alpha, is_one_sided=is_one_sided(rule)))

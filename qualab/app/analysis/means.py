"""The evidence of a metric that is a mean over scores: independent items, clusters, or scores other than 0 and 1."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from qualab.app.analysis.bounds import (
    Bounds,
    farther,
    halves,
    interval_of,
    of_sides,
    wider,
    with_zero,
)
from qualab.app.analysis.ruling import is_one_sided, sides
from qualab.app.analysis.samples import MeanSample
from qualab.domain.comparison import Evidence
from qualab.domain.names import EvidenceKind
from qualab.domain.plan import DecisionRule
from qualab.errors import InsufficientData
from qualab.stats.checks import IntArray
from qualab.stats.clustered import cluster_cells, clustered_equivalence, clustered_mcnemar, design_effect
from qualab.stats.counts import PairedCounts, tally
from qualab.stats.difference import mcnemar, mcnemar_sides, two_proportion_z
from qualab.stats.equivalence import EquivalenceResult, equivalence, provable_margin, weighted_equivalence
from qualab.stats.interval import ConfidenceInterval, score_interval, tango
from qualab.stats.mean import MeanDifference, cluster_codes, mean_difference, mean_equivalence
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
    return Evidence(
        kind=data.kind,
        n_items=sample.n_items,
        n_clusters=data.n_clusters,
        gains=int(np.sum(sample.differences > 0.0)),
        losses=int(np.sum(sample.differences < 0.0)),
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
        """The farther limits of two intervals: score tests at the effective number of items, and CR2 with t.

        The first is right where few answers changed, the second where there are few clusters.
        """
        effect, found = self._at_effective_items(rule)
        score = score_interval(
            self.counts.gains / effect,
            self.counts.losses / effect,
            n_items=self.n_items / effect,
            confidence_level=1.0 - rule.alpha,
        )
        spread = self._spread(1.0 - rule.alpha)
        outer = self._t_test(rule)
        return Bounds(
            difference=self.difference,
            interval=wider(score, spread.interval if spread else None),
            equivalence_interval=wider(found.interval, outer[1] if outer else None),
            pvalue_equivalence=max(
                self._taken(found.pvalue_lower, found.pvalue_upper, rule), outer[0] if outer else 0.0
            ),
            pvalue_equivalence_exact=self._exact(found, rule),
            standard_error=spread.standard_error if spread else None,
            degrees_of_freedom=spread.degrees_of_freedom if spread else None,
            design_effect=effect,
            note="" if self.n_clusters > 1 else "all scores stand in one cluster, which counts as one item",
        )

    def _at_effective_items(self, rule: DecisionRule) -> tuple[float, EquivalenceResult]:
        sample = self.sample
        if self.n_clusters > 1:
            found = clustered_equivalence(
                sample.baseline, sample.candidate, cluster=self.codes, margin=rule.margin, alpha=rule.alpha
            )
            return found.design_effect, found.result
        effect = float(self.n_items)
        result = weighted_equivalence(
            self.counts.gains / effect, self.counts.losses / effect, n_items=1.0, margin=rule.margin, alpha=rule.alpha
        )
        return effect, result

    def _bounds_of_scores(self, rule: DecisionRule) -> Bounds:
        spread, outer = self._spread(1.0 - rule.alpha), self._t_test(rule)
        note = "" if spread else "the differences have no spread, so that there is no bound yet"
        return Bounds(
            difference=self.difference,
            interval=interval_of(spread.interval) if spread else None,
            equivalence_interval=interval_of(outer[1]) if outer else None,
            pvalue_equivalence=outer[0] if outer else None,
            pvalue_equivalence_exact=None,
            standard_error=spread.standard_error if spread else None,
            degrees_of_freedom=spread.degrees_of_freedom if spread else None,
            design_effect=max(1.0, spread.design_effect) if spread else 1.0,
            note=note,
        )

    def _spread(self, confidence_level: float) -> MeanDifference | None:
        try:
            return mean_difference(self.sample.differences, cluster=self.codes, confidence_level=confidence_level)
        except InsufficientData:
            return None

    def _t_test(self, rule: DecisionRule) -> tuple[float, ConfidenceInterval] | None:
        try:
            found = mean_equivalence(self.sample.differences, margin=rule.margin, alpha=rule.alpha, cluster=self.codes)
        except InsufficientData:
            return None
        return self._taken(found.pvalue_lower, found.pvalue_upper, rule), found.interval

    def tests(self, rng: np.random.Generator) -> _Tests:
        """Two-sided tests of no difference."""
        if self.kind is EvidenceKind.COUNTS:
            found = mcnemar(self.counts)
            return _Tests(pvalue=found.pvalue, exact=found.pvalue_exact)
        flips = sign_flip(self.sample.differences, cluster=self.codes, rng=rng)
        return _Tests(
            pvalue=flips.pvalue,
            exact=flips.pvalue_whole if flips.is_exact else None,
            clustered_mcnemar=self._clustered_mcnemar(),
            n_resamples=flips.n_resamples,
        )

    def sides(self) -> tuple[float, float]:
        """McNemar's mid-p of the counts; in clusters of the counts over the design effect, and CR2's t-test.

        Without any spread the t-test has nothing to say: of other scores that is no evidence, p = 1.
        """
        if self.kind is EvidenceKind.COUNTS:
            return mcnemar_sides(self.counts.gains, self.counts.losses)
        spread = self._spread(0.95)
        if self.kind is EvidenceKind.SCORES:
            return halves(spread.pvalue, spread.difference) if spread else (1.0, 1.0)
        effect = float(self.n_items) if self.n_clusters == 1 else self._design_effect()
        counted = mcnemar_sides(self.counts.gains / effect, self.counts.losses / effect)
        if spread is None:
            return counted
        by_t = halves(spread.pvalue, spread.difference)
        return max(counted[0], by_t[0]), max(counted[1], by_t[1])

    def _design_effect(self) -> float:
        return design_effect(self.sample.baseline, self.sample.candidate, cluster=self.codes)

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
        ).pvalue

    def provable_margin(self, bounds: Bounds, rule: DecisionRule) -> float | None:
        if bounds.equivalence_interval is None:
            return None
        limit = farther(bounds.equivalence_interval, rule, higher_is_better=self.higher_is_better)
        if self.kind is EvidenceKind.SCORES:
            return limit
        counts = self._whole_counts(bounds.design_effect)
        if counts is None:
            return 1.0
        counts = counts if self.higher_is_better else counts.swapped()
        return max(limit, provable_margin(counts, alpha=rule.alpha, is_one_sided=is_one_sided(rule)).margin)

    def _whole_counts(self, effect: float) -> PairedCounts | None:
        """Items over the design effect rounded down, changes rounded up; None where nothing is left."""
        n_items = math.floor(self.n_items / effect + _HAIR)
        gains, losses = (math.ceil(count / effect - _HAIR) for count in (self.counts.gains, self.counts.losses))
        if n_items < 1 or gains + losses > n_items:
            return None
        return PairedCounts(n_items=n_items, gains=gains, losses=losses)

"""The evidence of macro-F1: swapped answers for the p-value, the bootstrap for the bounds.

Where fewer than ten answers changed, resampling them says little about the rest: the bounds are then counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from qualab.analysis.bounds import Bounds, farther, halves, interval_of, with_zero
from qualab.analysis.samples import LabelSample
from qualab.errors import InsufficientData
from qualab.model.comparison import Evidence, IntervalOf
from qualab.model.names import EvidenceKind
from qualab.model.plan import DecisionRule
from qualab.model.reason import Reason
from qualab.stats.f1 import JoinedAnswers, LabelledAnswers, bound_macro_f1
from qualab.stats.resampling import ResamplingResult

ENOUGH_CHANGES = 10
"""Changed items (or clusters) from which on the bootstrap is believed."""
N_RESAMPLES = 9_999


LEAST_RESAMPLED = 0.001
"""A level below which resamples do not tell where a bound is: ten of them lie beyond it."""


def label_evidence(
    sample: LabelSample,
    rule: DecisionRule,
    rng: np.random.Generator,
    bounds_rng: np.random.Generator,
    *,
    higher_is_better: bool = True,
    level: float | None = None,
) -> Evidence:
    """Everything that one metric's complete pairs say, of which there is at least one. Not yet adjusted.

    `level`: of the bounds, where it is not the rule's alpha.
    """
    data = _Data(sample)
    found = data.swap_test(rng)
    at_level = rule if level is None else replace(rule, alpha=level)
    bounds = data.bounds(found.difference, at_level, bounds_rng)
    inner = bounds.equivalence_interval
    limit = None if inner is None else farther(inner, rule, higher_is_better=higher_is_better)
    return Evidence(
        kind=EvidenceKind.LABELS,
        n_items=data.n_items,
        n_clusters=data.n_clusters,
        gains=data.gains,
        losses=data.losses,
        n_changed=data.n_changed,
        difference=bounds.difference,
        interval=with_zero(bounds.interval, found.pvalue, at_level.alpha / 2.0),
        equivalence_interval=with_zero(bounds.equivalence_interval, found.pvalue, at_level.alpha),
        pvalue=found.pvalue,
        pvalue_exact=found.pvalue_whole if found.is_exact else None,
        pvalue_adjusted=found.pvalue,
        pvalue_holm=found.pvalue,
        pvalue_unpaired=None,
        pvalue_clustered_mcnemar=None,
        pvalue_equivalence=None,
        pvalue_equivalence_exact=None,
        standard_error=bounds.standard_error,
        degrees_of_freedom=None,
        design_effect=1.0,
        provable_margin=limit,
        items_needed=None,
        n_resamples=found.n_resamples,
        note=bounds.note,
    )


def label_bounds(sample: LabelSample, rule: DecisionRule, rng: np.random.Generator) -> Bounds:
    """What a sample of at least one label says of the size of the difference."""
    data = _Data(sample)
    baseline, candidate = data.joined.scores
    return data.bounds(candidate - baseline, rule, rng)


def label_sides(sample: LabelSample, rng: np.random.Generator) -> tuple[float, float]:
    """One-sided p-values of a loss and of a gain: half that of the swaps, which is no smaller than 1 in 10,000."""
    found = _Data(sample).swap_test(rng)
    return halves(found.pvalue, found.difference)


@dataclass(frozen=True, slots=True)
class _Change:
    unit: int
    was_right: bool
    is_right: bool


class _Data:
    """A sample without a missing label, and what is derived from it."""

    def __init__(self, sample: LabelSample) -> None:
        self.n_items = sample.n_items
        units = [np.unique(task.unit).size for task in sample.tasks]
        self.n_clusters = sum(units)
        is_clustered = self.n_clusters < self.n_items
        self.tasks = [
            LabelledAnswers(
                truth=task.truth,
                baseline=task.baseline,
                candidate=task.candidate,
                cluster=task.unit if is_clustered else None,
            )
            for task in sample.tasks
        ]
        changes = [
            _Change(unit, before == truth, after == truth)
            for task in sample.tasks
            for unit, truth, before, after in zip(
                task.unit.tolist(), task.truth, task.baseline, task.candidate, strict=True
            )
            if before != after
        ]
        self.n_changed = len(changes)
        self.n_changed_units = len({change.unit for change in changes})
        self.gains = sum(change.is_right for change in changes)
        self.losses = sum(change.was_right for change in changes)

    @cached_property
    def joined(self) -> JoinedAnswers:
        return JoinedAnswers.of(self.tasks, [float(len(task.truth)) for task in self.tasks])

    def swap_test(self, rng: np.random.Generator) -> ResamplingResult:
        return self.joined.swap_test(n_resamples=N_RESAMPLES, rng=rng)

    def bounds(self, difference: float, rule: DecisionRule, rng: np.random.Generator) -> Bounds:
        if self.n_changed_units < ENOUGH_CHANGES or rule.alpha < LEAST_RESAMPLED:
            return self._counted(difference, rule)
        try:
            outer, inner = self.joined.bootstraps(
                confidence_levels=(1.0 - rule.alpha, 1.0 - 2.0 * rule.alpha), n_resamples=N_RESAMPLES, rng=rng
            )
        except InsufficientData:
            return self._counted(difference, rule)
        return Bounds(
            difference=difference,
            interval=interval_of(outer.interval),
            equivalence_interval=interval_of(inner.interval),
            pvalue_equivalence=None,
            pvalue_equivalence_exact=None,
            standard_error=outer.standard_error,
            degrees_of_freedom=None,
            design_effect=1.0,
        )

    def _counted(self, difference: float, rule: DecisionRule) -> Bounds:
        outer, inner = (self._counted_interval(level) for level in (1.0 - rule.alpha, 1.0 - 2.0 * rule.alpha))
        return Bounds(
            difference=difference,
            interval=outer,
            equivalence_interval=inner,
            pvalue_equivalence=None,
            pvalue_equivalence_exact=None,
            standard_error=None,
            degrees_of_freedom=None,
            design_effect=1.0,
            note=Reason("counted" if inner else "no-bound", {"n": self.n_changed}),
        )

    def _counted_interval(self, confidence_level: float) -> IntervalOf | None:
        try:
            return interval_of(bound_macro_f1(self.tasks, confidence_level=confidence_level))
        except InsufficientData:
            return None

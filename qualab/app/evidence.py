"""The paired evidence of one 0/1 metric, under each way of treating missing answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from qualab.domain.comparison import BinaryEvidence, IntervalOf
from qualab.domain.plan import DecisionRule
from qualab.errors import InsufficientData
from qualab.stats.adjustment import holm
from qualab.stats.counts import PairedCounts, tally
from qualab.stats.difference import mcnemar, two_proportion_z
from qualab.stats.equivalence import equivalence, provable_margin
from qualab.stats.interval import tango
from qualab.stats.sizing import items_needed

POWER = 0.8

Outcome = bool | None
"""Right, wrong, or missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """One metric's item outcomes in both arms, in the same order."""

    baseline: tuple[Outcome, ...]
    candidate: tuple[Outcome, ...]

    @property
    def n_missing(self) -> int:
        """Items that at least one arm left unanswered."""
        return sum(a is None or b is None for a, b in zip(self.baseline, self.candidate, strict=True))


def _complete(outcomes: Outcomes) -> list[tuple[bool, bool]]:
    pairs = zip(outcomes.baseline, outcomes.candidate, strict=True)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def complete_pairs(outcomes: Outcomes) -> PairedCounts:
    """Counts over the items that both arms answered."""
    pairs = _complete(outcomes)
    return tally([a for a, _ in pairs], [b for _, b in pairs])


def _filled(outcomes: Outcomes, *, baseline: bool, candidate: bool) -> PairedCounts:
    return tally(
        [baseline if a is None else a for a in outcomes.baseline],
        [candidate if b is None else b for b in outcomes.candidate],
    )


POLICIES: dict[str, Callable[[Outcomes], PairedCounts]] = {
    "complete pairs": complete_pairs,
    "missing counted as wrong": lambda o: _filled(o, baseline=False, candidate=False),
    "worst case against the candidate": lambda o: _filled(o, baseline=True, candidate=False),
    "worst case against the baseline": lambda o: _filled(o, baseline=False, candidate=True),
}


def binary_evidence(outcomes: Outcomes, rule: DecisionRule) -> BinaryEvidence | None:
    """Everything that one metric's complete pairs say; None where there is none.

    The adjusted p is the plain one until `adjust`.
    """
    counts = complete_pairs(outcomes)
    return _evidence(counts, _unpaired(outcomes), rule) if counts.n_items else None


def _evidence(counts: PairedCounts, pvalue_unpaired: float, rule: DecisionRule) -> BinaryEvidence:
    test = mcnemar(counts)
    equal = equivalence(counts, margin=rule.margin, alpha=rule.alpha)
    return BinaryEvidence(
        n_items=counts.n_items,
        gains=counts.gains,
        losses=counts.losses,
        difference=counts.difference,
        interval=_interval(counts, 1 - rule.alpha),
        equivalence_interval=_interval(counts, 1 - 2 * rule.alpha),
        pvalue=test.pvalue,
        pvalue_exact=test.pvalue_exact,
        pvalue_adjusted=test.pvalue,
        pvalue_unpaired=pvalue_unpaired,
        pvalue_equivalence=equal.pvalue,
        pvalue_equivalence_exact=equal.pvalue_exact,
        provable_margin=provable_margin(counts, alpha=rule.alpha).margin,
        items_needed=_items_needed(counts, rule),
    )


def adjust(evidence: Sequence[BinaryEvidence]) -> list[BinaryEvidence]:
    """The same evidence with the family's p-values adjusted (Holm)."""
    adjusted = holm([one.pvalue for one in evidence])
    return [replace(one, pvalue_adjusted=float(p)) for one, p in zip(evidence, adjusted, strict=True)]


def is_equivalent(evidence: BinaryEvidence, rule: DecisionRule) -> bool:
    """Whether the interval lies inside the margin and the exact guard agrees."""
    inside = -rule.margin < evidence.equivalence_interval.low and evidence.equivalence_interval.high < rule.margin
    return inside and evidence.pvalue_equivalence_exact <= rule.alpha


def dissenting_policy(outcomes: Outcomes, rule: DecisionRule) -> str:
    """The first missing-answer policy under which equivalence is not shown; empty when all agree."""
    for name, count in POLICIES.items():
        if not equivalence(count(outcomes), margin=rule.margin, alpha=rule.alpha).is_equivalent:
            return name
    return ""


def _interval(counts: PairedCounts, confidence_level: float) -> IntervalOf:
    found = tango(counts, confidence_level=confidence_level)
    return IntervalOf(low=found.low, high=found.high, confidence_level=confidence_level)


def _unpaired(outcomes: Outcomes) -> float:
    pairs = _complete(outcomes)
    baseline, candidate = (sum(arm) / len(pairs) for arm in zip(*pairs, strict=True))
    found = two_proportion_z(baseline=baseline, candidate=candidate, n_baseline=len(pairs), n_candidate=len(pairs))
    return found.pvalue


def _items_needed(counts: PairedCounts, rule: DecisionRule) -> int | None:
    try:
        return items_needed(
            discordance=counts.discordance, difference=0.0, margin=rule.margin, alpha=rule.alpha, power=POWER
        )
    except InsufficientData:
        return None

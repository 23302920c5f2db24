"""How far a difference may be from 0: intervals, equivalence tests and what the answers would have proven."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

from qualab.analysis.ruling import MAX_ITEMS, is_one_sided, is_out_of_reach, sides
from qualab.errors import InsufficientData
from qualab.model.comparison import Evidence, IntervalOf, ItemsRange
from qualab.model.names import EvidenceKind
from qualab.model.plan import DecisionRule
from qualab.model.reason import Reason
from qualab.stats.bounded import BoundedMean
from qualab.stats.distributions import normal_quantile
from qualab.stats.equivalence import forget_guard
from qualab.stats.interval import ConfidenceInterval, clopper_pearson
from qualab.stats.sizing import items_needed, items_wald_equivalence

EXACT_ITEMS = 10_000
"""Up to so many, items needed are found by exact power."""
_HAIR = 1e-9
"""Counts times a design effect of 1 must not be rounded up."""

AnyInterval = TypeVar("AnyInterval", IntervalOf, IntervalOf | None, ConfidenceInterval)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one sample without a missing score says of the size of the difference."""

    difference: float
    interval: IntervalOf | None
    equivalence_interval: IntervalOf | None
    pvalue_equivalence: float | None
    """Of the tests at the margin that the objective takes, like the next one."""
    pvalue_equivalence_exact: float | None
    standard_error: float | None
    degrees_of_freedom: float | None
    design_effect: float
    note: Reason | None = None
    pvalue_equivalence_bounded: float | None = None
    """Of Gaffke's bound: means of scores that are not 0/1, and 0/1 scores in clusters."""


def is_inside(
    interval: IntervalOf | None,
    *,
    pvalue: float | None,
    pvalue_exact: float | None,
    rule: DecisionRule,
    higher_is_better: bool = True,
) -> bool:
    """Whether the 1 − 2 alpha interval keeps within the margin where it has to, and the tests at the margin agree."""
    if interval is None:
        return False
    lower, upper = sides(rule.objective, higher_is_better=higher_is_better)
    if (lower and interval.low <= -rule.margin) or (upper and interval.high >= rule.margin):
        return False
    return all(p is None or p <= rule.alpha for p in (pvalue, pvalue_exact))


def of_sides(lower: float, upper: float, rule: DecisionRule, *, higher_is_better: bool) -> float:
    """The larger value of those sides of the margin that the objective takes."""
    taken = sides(rule.objective, higher_is_better=higher_is_better)
    return max(value for value, is_taken in zip((lower, upper), taken, strict=True) if is_taken)


def interval_of(found: ConfidenceInterval) -> IntervalOf:
    """The same interval as a domain value."""
    return IntervalOf(low=found.low, high=found.high, confidence_level=found.confidence_level)


def farther(interval: IntervalOf, rule: DecisionRule, *, higher_is_better: bool = True) -> float:
    """The smallest margin that holds the interval where it has to."""
    limit = of_sides(-interval.low, interval.high, rule, higher_is_better=higher_is_better)
    return min(1.0, max(0.0, limit))


def with_zero(interval: AnyInterval, pvalue: float, level: float) -> AnyInterval:
    """The interval, with 0 in it where the test of no difference does not exclude 0 at this one-sided level.

    `pvalue` is two-sided. Score intervals leave 0 out a little before mid-p does (0 gained and 4 lost: p is 0.062).
    """
    if interval is None or pvalue / 2.0 <= level:
        return interval
    return replace(interval, low=min(interval.low, 0.0), high=max(interval.high, 0.0))


def halves(pvalue: float, difference: float) -> tuple[float, float]:
    """One-sided p-values of a loss and of a gain, from a two-sided one of a symmetric test."""
    half = pvalue / 2.0
    if difference == 0.0:
        return 0.5, 0.5
    return (half, 1.0 - half) if difference < 0.0 else (1.0 - half, half)


def with_items_needed(
    evidence: Evidence, rule: DecisionRule, *, higher_is_better: bool = True, bound: BoundedMean | None = None
) -> Evidence:
    """The evidence with the pairs that would prove the margin: at no true difference, and at the observed one.

    `bound`: of the same pairs, where Gaffke's bound decides or has to agree.
    """
    seen = evidence.difference if higher_is_better else -evidence.difference

    def bounded(difference: float) -> int | None:
        assert bound is not None
        own = difference if higher_is_better else -difference
        error = evidence.standard_error or 0.0
        return needed_by_bound(bound, error, rule, higher_is_better=higher_is_better, difference=own)

    if evidence.kind not in (EvidenceKind.COUNTS, EvidenceKind.CLUSTERS):
        by_error = partial(_needed_by_error, evidence, rule)
        find = by_error if bound is None else bounded
        return replace(evidence, items_needed=find(0.0), items_needed_observed=find(seen))
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
    is_reached = not is_out_of_reach(evidence, rule, higher_is_better=higher_is_better)
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
    """For measurements: everything that is kept from one analysis to the next is found anew."""
    _needed.cache_clear()
    forget_guard()


def _needed_by_error(evidence: Evidence, rule: DecisionRule, difference: float) -> int | None:
    """From the standard error, in closed form: it falls with the square root of the items. A counted limit as 1 / n."""
    limit, room = evidence.provable_margin, rule.margin - (-difference if is_one_sided(rule) else abs(difference))
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
            is_one_sided=is_one_sided(rule),
        )
    return math.ceil(found) if found <= MAX_ITEMS else None


def needed_by_bound(
    mean: BoundedMean,
    standard_error: float,
    rule: DecisionRule,
    *,
    higher_is_better: bool = True,
    difference: float = 0.0,
) -> int | None:
    """Scores that prove the margin by Gaffke's bound with the rule's power, if more are as those seen.

    The observed distribution is moved to a mean of 0 and multiplied; the true difference, `difference`, and what its
    estimate may miss, by `standard_error` at the scores seen, narrow the margin. None for more than MAX_ITEMS.
    """
    taken = sides(rule.objective, higher_is_better=higher_is_better)
    n_items = float(mean.counts @ mean.sizes)
    missed = standard_error * normal_quantile(0.5 + rule.power / 2.0 if all(taken) and not difference else rule.power)

    def is_proven(factor: float) -> bool:
        room = rule.margin - missed / math.sqrt(factor)
        more = mean.scaled(factor)
        lower, upper = room + difference, room - difference
        return (not taken[0] or (lower > 0.0 and more.pvalue_above(-min(lower, 1.0)) <= rule.alpha)) and (
            not taken[1] or (upper > 0.0 and more.pvalue_below(min(upper, 1.0)) <= rule.alpha)
        )

    low, high = 1.0 / n_items, MAX_ITEMS / n_items
    if not is_proven(high):
        return None
    while high > low * 1.002:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_proven(middle) else (middle, high)
    return math.ceil(n_items * high)

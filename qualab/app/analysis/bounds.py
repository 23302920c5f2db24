"""How far a difference may be from 0: intervals, equivalence tests and what the answers would have proven."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from qualab.app.analysis.ruling import MAX_ITEMS, is_one_sided, sides
from qualab.domain.comparison import IntervalOf
from qualab.domain.plan import DecisionRule
from qualab.errors import InsufficientData
from qualab.stats.bounded import BoundedMean
from qualab.stats.distributions import normal_quantile
from qualab.stats.guard import forget_guard
from qualab.stats.interval import ConfidenceInterval
from qualab.stats.sizing import items_needed, items_wald_equivalence


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
    note: str = ""
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


def needed(discordance: float, rule: DecisionRule) -> int | None:
    """Independent items that prove the margin at this discordance; None where more than MAX_ITEMS would be."""
    return _needed(discordance, rule.margin, rule.alpha, rule.power, is_one_sided(rule))


def halves(pvalue: float, difference: float) -> tuple[float, float]:
    """One-sided p-values of a loss and of a gain, from a two-sided one of a symmetric test."""
    half = pvalue / 2.0
    if difference == 0.0:
        return 0.5, 0.5
    return (half, 1.0 - half) if difference < 0.0 else (1.0 - half, half)


@lru_cache(maxsize=256)
def _needed(discordance: float, margin: float, alpha: float, power: float, is_one_sided: bool) -> int | None:
    try:
        return items_needed(
            discordance=discordance,
            margin=margin,
            alpha=alpha,
            power=power,
            is_one_sided=is_one_sided,
            is_guarded=True,
            max_items=MAX_ITEMS,
        )
    except InsufficientData:
        return None


def forget() -> None:
    """For measurements: everything that is kept from one analysis to the next is found anew."""
    _needed.cache_clear()
    forget_guard()


def needed_by_error(standard_error: float, n_items: int, rule: DecisionRule) -> int | None:
    """The same from a standard error at `n_items`, in closed form: it falls with the square root of the items."""
    found = items_wald_equivalence(
        discordance=n_items * standard_error**2,
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

"""How far a difference may be from 0: intervals, equivalence tests and what the answers would have proven."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from qualab.domain.comparison import IntervalOf
from qualab.domain.plan import DecisionRule
from qualab.errors import InsufficientData
from qualab.stats.interval import ConfidenceInterval
from qualab.stats.sizing import items_needed, items_wald_equivalence

POWER = 0.8
MAX_ITEMS = 200_000
"""No number of items beyond is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one sample without a missing score says of the size of the difference."""

    difference: float
    interval: IntervalOf | None
    equivalence_interval: IntervalOf | None
    pvalue_equivalence: float | None
    pvalue_equivalence_exact: float | None
    standard_error: float | None
    degrees_of_freedom: float | None
    design_effect: float
    note: str = ""


def is_inside(
    interval: IntervalOf | None, *, pvalue: float | None, pvalue_exact: float | None, rule: DecisionRule
) -> bool:
    """Whether the 1 − 2 alpha interval lies inside the margin and the tests at the margin agree."""
    if interval is None or not (-rule.margin < interval.low and interval.high < rule.margin):
        return False
    return all(p is None or p <= rule.alpha for p in (pvalue, pvalue_exact))


def interval_of(found: ConfidenceInterval) -> IntervalOf:
    """The same interval as a domain value."""
    return IntervalOf(low=found.low, high=found.high, confidence_level=found.confidence_level)


def wider(one: ConfidenceInterval, other: ConfidenceInterval | None) -> IntervalOf:
    """The farther limits of two intervals at the same level."""
    if other is None:
        return interval_of(one)
    return IntervalOf(
        low=min(one.low, other.low), high=max(one.high, other.high), confidence_level=one.confidence_level
    )


def farther(interval: IntervalOf) -> float:
    """The smallest margin that holds the interval."""
    return min(1.0, max(-interval.low, interval.high))


@lru_cache(maxsize=256)
def needed(discordance: float, margin: float, alpha: float) -> int | None:
    """Independent items that prove the margin at this discordance; None where more than MAX_ITEMS would be."""
    try:
        return items_needed(
            discordance=discordance, difference=0.0, margin=margin, alpha=alpha, power=POWER, max_items=MAX_ITEMS
        )
    except InsufficientData:
        return None


def needed_by_error(standard_error: float, n_items: int, rule: DecisionRule) -> int | None:
    """The same from a standard error at `n_items`, in closed form: it falls with the square root of the items."""
    found = items_wald_equivalence(
        discordance=n_items * standard_error**2, margin=rule.margin, alpha=rule.alpha, power=POWER
    )
    return math.ceil(found) if found <= MAX_ITEMS else None

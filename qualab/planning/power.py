"""Power of a number of items: the one calculation behind command line, plan, REST, page and report."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeVar

import numpy as np

from qualab.analysis.ruling import MAX_ITEMS, is_one_sided
from qualab.errors import InsufficientData, InvalidValue
from qualab.model.plan import DecisionRule
from qualab.stats.bounded import bound_cost
from qualab.stats.checks import check_alpha, check_items, check_margin
from qualab.stats.distributions import normal_quantile
from qualab.stats.looks import MOST_GUARDED, LookDesign, LookPerformance, design_looks, looks_at, simulate_looks
from qualab.stats.sizing import is_guard_counted, items_needed, power_equivalence, smallest_margin

SIMULATED_ITEMS = 10_000
"""Beyond, a design with looks is not simulated."""
SIMULATED_RUNS = 10_000
MOST_LOOKS = 50
SEED = 20_240_501
_SHORTFALL = 0.005
"""Simulated powers that fall no more than so far short of a target reach it."""

T = TypeVar("T")


def if_any(find: Callable[[], T]) -> T | None:
    """Return what is found, None on InsufficientData."""
    try:
        return find()
    except InsufficientData:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Answers that are expected to be missing, and how the worst case takes them."""

    share: float = 0.0
    """Share of each arm's answers."""
    lost: float | None = None
    """Share of the pairs without an answer that is taken as lost; None takes all."""

    @property
    def shift(self) -> float:
        """Average change of the difference in the worst case."""
        pairs = 1.0 - (1.0 - self.share) ** 2
        return self.share if self.lost is None else min(self.share, self.lost * pairs)

    def worst(self, discordance: float) -> float:
        return min(1.0, discordance + self.shift)


NONE_MISSING = Missing()


def verdict_power(
    *,
    n_items: int,
    discordance: float,
    margin: float,
    alpha: float,
    is_one_sided: bool = False,
    missing: Missing = NONE_MISSING,
    is_guarded: bool = True,
    n_clusters: float | None = None,
) -> float:
    """Compute the chance of the verdict without a true difference; simulated where answers are missing.

    Args:
        n_items: their effective number where they stand in clusters.
        is_guarded: the exact guard counts up to 20,000 items; else only where less than ten changed ones are expected.
        n_clusters: those whose bound narrows the margin.
    """
    check_items(n_items)
    if n_clusters is not None:
        margin -= bound_cost(n_clusters=n_clusters, variance=discordance / n_items, alpha=check_alpha(alpha))
        if margin <= 0.0:
            return 0.0
    is_guarded = (is_guarded and n_items <= MOST_GUARDED) or is_guard_counted(n_items, discordance)
    if not missing.share:
        return power_equivalence(
            n_items=n_items,
            discordance=discordance,
            margin=margin,
            alpha=alpha,
            is_one_sided=is_one_sided,
            is_guarded=is_guarded,
        )
    one_look = LookDesign(
        margin=check_margin(margin),
        alpha=check_alpha(alpha),
        n_items=(n_items,),
        boundaries=(normal_quantile(1.0 - alpha),),
        harm_boundaries=(math.inf,),
    )
    return _simulated(one_look, discordance, missing, is_one_sided=is_one_sided, is_guarded=is_guarded).equivalent


def power_at_looks(
    *,
    n_items: int,
    margin: float,
    discordance: float,
    alpha: float,
    harm_alpha: float,
    n_looks: int,
    missing: Missing = NONE_MISSING,
) -> float | None:
    """Simulate how often runs with looks end in EQUIVALENT without a true difference.

    None above 10,000 items, and where there are fewer items than looks.
    """
    if not n_looks <= n_items <= SIMULATED_ITEMS:
        return None
    design = looks_at(most_items=n_items, margin=margin, alpha=alpha, harm_alpha=harm_alpha, n_looks=n_looks)
    return _simulated(design, discordance, missing).equivalent


def _simulated(
    design: LookDesign, discordance: float, missing: Missing = NONE_MISSING, **tests: bool
) -> LookPerformance:
    return simulate_looks(
        design,
        discordance=discordance,
        missing=missing.share,
        missing_lost=missing.lost,
        n_resamples=SIMULATED_RUNS,
        rng=np.random.default_rng(SEED),
        **tests,
    )


def sufficient_items(
    discordance: float, power: float, *, rule: DecisionRule, missing: Missing, clusters_per_item: float | None = None
) -> int | None:
    """Find how many items prove the rule's margin with this power; None beyond MAX_ITEMS.

    Args:
        clusters_per_item: for each effective item; None where items are independent.
    """
    margin, is_loss_alone = rule.margin - missing.shift, is_one_sided(rule)
    if margin <= 0.0:
        return None
    n_items = if_any(
        lambda: items_needed(
            discordance=missing.worst(discordance),
            margin=margin,
            alpha=rule.alpha,
            power=power,
            is_one_sided=is_loss_alone,
            is_guarded=True,
            max_items=MAX_ITEMS,
        )
    )
    if n_items is None or not (missing.share or clusters_per_item):
        return n_items
    design = partial(verdict_power, discordance=discordance, margin=rule.margin, alpha=rule.alpha, missing=missing)
    target = power - (_SHORTFALL if missing.share else 0.0)

    def is_enough(n: int) -> bool:
        n_clusters = clusters_per_item and n * clusters_per_item
        return design(n_items=n, is_one_sided=is_loss_alone, n_clusters=n_clusters) >= target

    low = high = n_items
    while not is_enough(high):
        low, high = high, math.ceil(1.1 * high)
        if high > MAX_ITEMS:
            return None
    while high > 1.005 * low + 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def narrowest_margin(
    n_items: int, discordance: float, power: float, *, rule: DecisionRule, missing: Missing
) -> float | None:
    """Find the smallest margin that the items prove with this power; None where they prove none."""
    margin = if_any(
        lambda: smallest_margin(
            n_items=n_items,
            discordance=missing.worst(discordance),
            alpha=rule.alpha,
            power=power,
            is_one_sided=is_one_sided(rule),
            is_guarded=True,
        )
    )
    return None if margin is None or margin + missing.shift >= 1.0 else margin + missing.shift


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyLooks:
    """A design that may stop at planned looks, simulated without a true difference; None above 10,000 items."""

    n_looks: int
    most_items: int
    expected_items: float | None
    power: float | None
    """Share of the runs that end in EQUIVALENT."""
    harm: float | None
    """Share of the runs that stop for harm though there is none."""


@lru_cache(maxsize=32)
def early_looks(*, discordance: float, n_looks: int, **goal: float) -> EarlyLooks:
    """Find the items with equally spaced O'Brien–Fleming-type looks; `goal` as of `design_looks`."""
    if not 2 <= n_looks <= MOST_LOOKS:
        raise InvalidValue(
            f"A design with looks has 2 to {MOST_LOOKS} of them, not {n_looks}",
            hint="5 to 10 looks are usual; 1 is the look at the end alone.",
        )
    design = design_looks(discordance=discordance, n_looks=n_looks, **goal)
    most = design.n_items[-1]
    if most > SIMULATED_ITEMS:
        return EarlyLooks(n_looks=n_looks, most_items=most, expected_items=None, power=None, harm=None)
    runs = _simulated(design, discordance)
    return EarlyLooks(
        n_looks=n_looks, most_items=most, expected_items=runs.expected_items, power=runs.equivalent, harm=runs.harm
    )

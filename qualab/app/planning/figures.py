"""What the items of one primary metric can prove, from its assumptions.

An item's mean difference over k answers has the variance noise / k + (discordance − noise): repeats divide the noise of
runs, never what differs between items. That variance stands in for the discordance. Items in clusters count as items
over the design effect, and where there are clusters or repeats the bound over clusters narrows the margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TypeVar

from qualab.app.analysis.ruling import MAX_ITEMS, is_one_sided
from qualab.app.calculators import EarlyLooks, early_looks, power_at_looks
from qualab.app.planning.beliefs import Belief
from qualab.domain.plan import DecisionRule, LookPlan
from qualab.errors import InsufficientData
from qualab.stats.bounded import bound_cost
from qualab.stats.sizing import (
    discordance_with_repeats,
    items_needed,
    mde,
    mde_beyond_noise,
    power_to_prove,
    smallest_margin,
)

_HAIR = 1e-9
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a metric's items are."""

    n_items: int
    n_clusters: int
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Which metric it is."""

    id: str
    name: str
    exercises_drafter: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One primary metric. Powers are chances without a true difference; None is "does not exist" or "too many"."""

    id: str
    name: str
    """For a person: the benchmark where it has one primary metric, else the id."""
    exercises_drafter: bool
    asked: Asked
    belief: Belief
    margin: float
    variance: float
    """Of an item's mean difference: what stands in for the discordance. The discordance itself without repeats."""
    effective_items: int
    """Items over the design effect."""
    power: float
    """Of proving the margin, with one look at the end."""
    power_looks: float | None
    """The same with the plan's looks at these items, by simulation. None without looks, for non-inferiority, and above
    10,000 items."""
    provable_margin: float | None
    """Proven with the power that is aimed at."""
    mde: float | None
    """Smallest loss found with that power, the discordance fixed; of the two-sided test, not adjusted."""
    mde_beyond_noise: float | None
    """The same where noise is there anyway, a pilot's noise floor or else the discordance, and the loss on top."""
    items_needed: int | None
    items_needed_repeated: int | None
    """With four answers an item, if all of the discordance were run noise: what repeats can help at best."""
    items_for_joint: int | None
    """For all primary metrics together to have the power that is aimed at."""
    looks: EarlyLooks | None
    """Items with early looks; None where none are planned for, or for non-inferiority, which has no such design."""

    @property
    def planned_power(self) -> float:
        """Of the run as it is planned: with looks where there are any."""
        return self.power if self.power_looks is None else self.power_looks


BEST_REPEATS = 4


def figures_of(
    metric: Named, asked: Asked, belief: Belief, *, rule: DecisionRule, power_each: float, looks: LookPlan | None
) -> Figures:
    """Everything that planning says of one metric.

    `power_each` is what it needs for the joint power; `looks` has the level of a loss that is this metric's share.
    """
    variance = discordance_with_repeats(discordance=belief.discordance, noise=belief.noise, repeats=asked.repeats)
    effective = max(1, math.floor(asked.n_items / belief.design_effect + _HAIR))
    one_sided, alpha, target = is_one_sided(rule), rule.alpha, rule.power
    n_clusters = asked.n_clusters if asked.n_clusters < asked.n_items or asked.repeats > 1 else None
    needed = partial(
        _needed, rule=rule, effect=belief.design_effect, clusters=n_clusters and n_clusters / asked.n_items
    )
    cost = 0.0
    if n_clusters is not None:
        cost = bound_cost(n_clusters=n_clusters, variance=variance / effective, alpha=alpha)
    narrowed = replace(rule, margin=rule.margin - cost)
    return Figures(
        id=metric.id,
        name=metric.name,
        exercises_drafter=metric.exercises_drafter,
        asked=asked,
        belief=belief,
        margin=rule.margin,
        variance=variance,
        effective_items=effective,
        power=power_to_prove(
            n_items=effective,
            discordance=variance,
            margin=rule.margin,
            alpha=alpha,
            is_one_sided=one_sided,
            n_clusters=n_clusters,
        ),
        power_looks=_power_looks(variance, narrowed, looks, effective),
        provable_margin=_if_any(
            lambda: (
                cost
                + smallest_margin(
                    n_items=effective,
                    discordance=variance,
                    alpha=alpha,
                    power=target,
                    is_one_sided=one_sided,
                    is_guarded=True,
                )
            )
        ),
        mde=_if_any(lambda: mde(n_items=effective, discordance=variance, alpha=alpha, power=target)),
        mde_beyond_noise=_if_any(
            lambda: mde_beyond_noise(
                n_items=effective,
                noise=variance if belief.floor is None or asked.repeats > 1 else belief.floor,
                alpha=alpha,
                power=target,
            )
        ),
        items_needed=needed(variance, target),
        items_needed_repeated=needed(belief.discordance / BEST_REPEATS, target),
        items_for_joint=needed(variance, power_each),
        looks=_looks(variance, narrowed, looks, belief.design_effect),
    )


def _needed(
    discordance: float, power: float, *, rule: DecisionRule, effect: float, clusters: float | None
) -> int | None:
    """`clusters`: clusters an item; None where items are independent."""
    independent = _if_any(
        lambda: items_needed(
            discordance=discordance,
            margin=rule.margin,
            alpha=rule.alpha,
            power=power,
            is_one_sided=is_one_sided(rule),
            is_guarded=True,
            max_items=MAX_ITEMS,
        )
    )
    if independent is None or clusters is None:
        return independent and math.ceil(independent * effect - _HAIR)

    def is_enough(n_items: int) -> bool:
        found = power_to_prove(
            n_items=n_items,
            discordance=discordance,
            margin=rule.margin,
            alpha=rule.alpha,
            is_one_sided=is_one_sided(rule),
            n_clusters=n_items * effect * clusters,
        )
        return found >= power

    low, high = independent, independent
    while not is_enough(high):
        low, high = high, 2 * high
        if high > MAX_ITEMS:
            return None
    while high > 1.005 * low + 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return math.ceil(high * effect - _HAIR)


def _power_looks(discordance: float, rule: DecisionRule, looks: LookPlan | None, n_items: int) -> float | None:
    if looks is None or is_one_sided(rule):
        return None
    if rule.margin <= 0.0:
        return 0.0
    return power_at_looks(
        n_items=n_items,
        margin=rule.margin,
        discordance=discordance,
        alpha=rule.alpha,
        harm_alpha=looks.harm_alpha,
        n_looks=looks.n_looks,
    )


def _looks(discordance: float, rule: DecisionRule, looks: LookPlan | None, effect: float) -> EarlyLooks | None:
    if looks is None or is_one_sided(rule) or rule.margin <= 0.0:
        return None
    found = _early_looks(rule.margin, discordance, rule.alpha, rule.power, looks)
    return found and EarlyLooks(
        n_looks=looks.n_looks,
        most_items=math.ceil(found.most_items * effect - _HAIR),
        expected_items=None if found.expected_items is None else found.expected_items * effect,
        power=found.power,
        harm=found.harm,
    )


@lru_cache(maxsize=32)
def _early_looks(margin: float, discordance: float, alpha: float, power: float, looks: LookPlan) -> EarlyLooks | None:
    """Simulated once for metrics with the same assumptions."""
    return _if_any(
        lambda: early_looks(
            margin=margin,
            discordance=discordance,
            alpha=alpha,
            power=power,
            harm_alpha=looks.harm_alpha,
            n_looks=looks.n_looks,
        )
    )


def _if_any(find: Callable[[], T]) -> T | None:
    """What is found, or None where it does not exist. Arguments that cannot be still raise."""
    try:
        return find()
    except InsufficientData:
        return None

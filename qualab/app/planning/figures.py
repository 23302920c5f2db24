"""What the items of one primary metric can prove, from its assumptions.

An item's mean difference over k answers has the variance noise / k + (discordance − noise): repeats divide the noise of
runs, never what differs between items. That variance stands in for the discordance. Items in clusters count as items
over the design effect, and where there are clusters or repeats the bound over clusters narrows the margin. Answers that
are expected to be missing shift the worst cases towards the margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TypeVar

from qualab.app.analysis.ruling import MAX_ITEMS, is_one_sided
from qualab.app.calculators import EarlyLooks, Missing, early_looks, power_at_looks, verdict_power
from qualab.app.planning.beliefs import Belief
from qualab.domain.plan import DecisionRule, LookPlan
from qualab.errors import InsufficientData
from qualab.stats.bounded import bound_cost
from qualab.stats.sizing import (
    discordance_with_repeats,
    items_needed,
    mde,
    mde_beyond_noise,
    smallest_margin,
)

_HAIR = 1e-9
_NEAR = 0.005
"""Simulated powers that fall no more than so far short of a target reach it."""
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
    """Of the verdict, with one look at the end and no answer missing: score tests and exact guard."""
    power_missing: float | None
    """The same with the expected missing answers, by simulation; None where none are expected."""
    power_looks: float | None
    """With them and the plan's looks at these items, by simulation. None without looks, for non-inferiority, and above
    10,000 items."""
    provable_margin: float | None
    """Proven with the power that each primary metric needs, like the items needed, expected missing answers counted."""
    mde: float | None
    """Smallest loss found with that power, the discordance fixed; of the two-sided test, not adjusted."""
    mde_beyond_noise: float | None
    """The same where noise is there anyway, a pilot's noise floor or else the discordance, and the loss on top."""
    items_needed: int | None
    """For all primary metrics together to have the power that is aimed at: each of them a higher one."""
    items_needed_alone: int | None
    """For this metric alone to have the power that is aimed at."""
    items_needed_repeated: int | None
    """As `items_needed`, with four answers an item, if all of the discordance were run noise: what repeats can help at
    best."""
    looks: EarlyLooks | None
    """Items with early looks; None where none are planned for, or for non-inferiority, which has no such design."""

    @property
    def planned_power(self) -> float:
        """Of the run as it is planned: with looks and missing answers where there are any."""
        powers = (self.power_looks, self.power_missing, self.power)
        return next(power for power in powers if power is not None)


BEST_REPEATS = 4


def figures_of(
    metric: Named,
    asked: Asked,
    belief: Belief,
    *,
    rule: DecisionRule,
    power_each: float,
    looks: LookPlan | None,
    missing: float = 0.0,
) -> Figures:
    """Everything that planning says of one metric.

    `power_each` is what it needs for the joint power; `looks` has the level of a loss that is this metric's share;
    `missing` is the expected share of each arm's answers.
    """
    expected = Missing(share=missing, lost=rule.missing_lost)
    variance = discordance_with_repeats(discordance=belief.discordance, noise=belief.noise, repeats=asked.repeats)
    effective = max(1, math.floor(asked.n_items / belief.design_effect + _HAIR))
    one_sided, alpha, target = is_one_sided(rule), rule.alpha, rule.power

    n_clusters = asked.n_clusters if asked.n_clusters < asked.n_items or asked.repeats > 1 else None
    clusters_per_item = None if n_clusters is None else belief.design_effect * n_clusters / asked.n_items

    def needed(discordance: float, power: float) -> int | None:
        n_items = sufficient_items(discordance, power, rule=rule, missing=expected, clusters_per_item=clusters_per_item)
        return None if n_items is None else math.ceil(n_items * belief.design_effect - _HAIR)

    power = partial(
        verdict_power,
        n_items=effective,
        discordance=variance,
        margin=rule.margin,
        alpha=alpha,
        is_one_sided=one_sided,
        n_clusters=n_clusters,
    )
    cost = 0.0
    if n_clusters is not None:
        cost = bound_cost(n_clusters=n_clusters, variance=variance / effective, alpha=alpha)
    narrowed = replace(rule, margin=rule.margin - cost)
    provable = narrowest_margin(effective, variance, power_each, rule=rule, missing=expected)
    return Figures(
        id=metric.id,
        name=metric.name,
        exercises_drafter=metric.exercises_drafter,
        asked=asked,
        belief=belief,
        margin=rule.margin,
        variance=variance,
        effective_items=effective,
        power=power(),
        power_missing=power(missing=expected) if missing else None,
        power_looks=_power_looks(variance, narrowed, looks, effective, expected),
        provable_margin=None if provable is None or provable + cost >= 1.0 else provable + cost,
        mde=_if_any(lambda: mde(n_items=effective, discordance=variance, alpha=alpha, power=target)),
        mde_beyond_noise=_if_any(
            lambda: mde_beyond_noise(
                n_items=effective,
                noise=variance if belief.floor is None or asked.repeats > 1 else belief.floor,
                alpha=alpha,
                power=target,
            )
        ),
        items_needed=needed(variance, power_each),
        items_needed_alone=needed(variance, target),
        items_needed_repeated=needed(belief.discordance / BEST_REPEATS, power_each),
        looks=_looks(_worst(variance, expected), _shifted(narrowed, expected, power_each), looks, belief.design_effect),
    )


def sufficient_items(
    discordance: float,
    power: float,
    *,
    rule: DecisionRule,
    missing: Missing,
    clusters_per_item: float | None = None,
) -> int | None:
    """Items that prove the rule's margin with this power; None where more than MAX_ITEMS would be needed.

    `clusters_per_item`: clusters for each effective item; None where items are independent.
    Where answers are expected to be missing: from the shifted margin on, the first size whose power is enough.
    """
    at_worst = _shifted(rule, missing, power)
    if at_worst is None:
        return None
    n_items = _if_any(
        lambda: items_needed(
            discordance=_worst(discordance, missing),
            margin=at_worst.margin,
            alpha=rule.alpha,
            power=power,
            is_one_sided=is_one_sided(rule),
            is_guarded=True,
            max_items=MAX_ITEMS,
        )
    )
    if n_items is None or not (missing.share or clusters_per_item):
        return n_items

    def is_enough(n_items: int) -> bool:
        found = verdict_power(
            n_items=n_items,
            discordance=discordance,
            margin=rule.margin,
            alpha=rule.alpha,
            is_one_sided=is_one_sided(rule),
            missing=missing,
            n_clusters=clusters_per_item and n_items * clusters_per_item,
        )
        return found >= power - (_NEAR if missing.share else 0.0)

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
    """The smallest margin that the items prove with this power; None where they prove none."""
    margin = _if_any(
        lambda: smallest_margin(
            n_items=n_items,
            discordance=_worst(discordance, missing),
            alpha=rule.alpha,
            power=power,
            is_one_sided=is_one_sided(rule),
            is_guarded=True,
        )
    )
    return None if margin is None or margin + missing.shift >= 1.0 else margin + missing.shift


def _worst(discordance: float, missing: Missing) -> float:
    """With the pairs without an answer that the worst case counts as changed."""
    return min(1.0, discordance + missing.shift)


def _shifted(rule: DecisionRule, missing: Missing, power: float) -> DecisionRule | None:
    """The rule with what the worst case leaves of its margin, for a power; None where it leaves nothing."""
    left = rule.margin - missing.shift
    return replace(rule, margin=left, power=power) if left > 0.0 else None


def _power_looks(
    discordance: float, rule: DecisionRule, looks: LookPlan | None, n_items: int, missing: Missing
) -> float | None:
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
        missing=missing,
    )


def _looks(discordance: float, rule: DecisionRule | None, looks: LookPlan | None, effect: float) -> EarlyLooks | None:
    if looks is None or rule is None or is_one_sided(rule):
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

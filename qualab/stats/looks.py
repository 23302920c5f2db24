"""Stopping a comparison early: looks at planned numbers of items, for equivalence and for plain harm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np

from qualab.errors import InvalidValue
from qualab.stats.checks import FloatArray, check_items, check_margin, check_rates
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar_sides
from qualab.stats.distributions import binomial_cdfs, normal_sf
from qualab.stats.equivalence import equivalence
from qualab.stats.guard import guard_threshold
from qualab.stats.interval import ConfidenceInterval, tango
from qualab.stats.score import score_statistic
from qualab.stats.sequential import Spending, inflation, spending_boundaries
from qualab.stats.sizing import is_guard_counted, items_needed

_LEAST_LEVEL = 1e-8
"""Below this level exact tails are not exact enough to stop on."""


class Decision(StrEnum):
    CONTINUE = "continue"
    EQUIVALENT = "equivalent"
    HARM = "harm"
    """A plain regression: go no further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookResult:
    """What one look at the counts so far decides."""

    decision: Decision
    statistic_lower: float
    """Score statistic against −margin, to compare with the boundary."""
    statistic_upper: float
    """Minus the score statistic against +margin, to compare with the boundary."""
    pvalue_harm: float
    """One-sided mid-p of "the candidate is not worse" (McNemar)."""
    interval: ConfidenceInterval
    """Repeated confidence interval: Tango's at the level of the boundary (Jennison & Turnbull 1989)."""


def look(
    counts: PairedCounts, *, margin: float, boundary: float, harm_boundary: float = math.inf, is_last: bool = False
) -> LookResult:
    """Judge the items so far at one look.

    EQUIVALENT takes both one-sided score statistics at or above `boundary`, and the exact guard at the boundary's
    level (never where that is below 1e-8). HARM takes a one-sided McNemar mid-p at most that of `harm_boundary`, and an
    observed loss of at least the margin: a smaller one may still be proven inside it. Where it is not, it is HARM at
    the last look. Boundaries come from `spending_boundaries`.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: the margin is not between 0 and 1.
    """
    check_items(counts.n_items)
    level = min(max(normal_sf(boundary), 1e-15), 0.499)
    found = equivalence(counts, margin=margin, alpha=level)
    statistics = found.statistic_lower, -found.statistic_upper
    pvalue_harm = mcnemar_sides(counts.gains, counts.losses)[0]
    is_harmed = math.isfinite(harm_boundary) and pvalue_harm <= normal_sf(harm_boundary)
    decision = Decision.CONTINUE
    if is_harmed and counts.difference <= -margin:
        decision = Decision.HARM
    elif level >= _LEAST_LEVEL and min(statistics) >= boundary and found.is_equivalent:
        decision = Decision.EQUIVALENT
    elif is_harmed and is_last:
        decision = Decision.HARM
    return LookResult(
        decision=decision,
        statistic_lower=statistics[0],
        statistic_upper=statistics[1],
        pvalue_harm=pvalue_harm,
        interval=tango(counts, confidence_level=1.0 - 2.0 * level),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LookDesign:
    """When to look, and what to compare with."""

    margin: float
    alpha: float
    n_items: tuple[int, ...]
    """Items at each look; the last is the most that are ever asked."""
    boundaries: tuple[float, ...]
    """For both one-sided score statistics."""
    harm_boundaries: tuple[float, ...]
    """For the one-sided test of a loss, which spends a level of its own, `harm_alpha`."""


def design_looks(
    *,
    discordance: float,
    margin: float,
    alpha: float = 0.05,
    power: float = 0.8,
    harm_alpha: float = 0.025,
    n_looks: int = 10,
    spending: Spending = Spending.OBRIEN_FLEMING,
) -> LookDesign:
    """Equally spaced looks at as many items as give this power at a true difference of 0.

    The items of the fixed design, exact guard included, are inflated by what the looks cost on either side. Where so
    few changes are to be expected that the guard matters, they are at least those that the last look needs by itself:
    the guard makes early looks nearly idle there, and is stricter at a last look's lower level.

    Raises:
        InsufficientData: no number of items gives the power.
        InvalidValue: an argument cannot be.
    """
    if n_looks < 1:
        raise InvalidValue("A design needs at least one look", hint="5 to 10 looks are usual.")
    fractions = [(k + 1) / n_looks for k in range(n_looks)]
    needed = partial(items_needed, discordance=discordance, margin=margin, power=power, is_guarded=True)
    fixed = needed(alpha=alpha)
    # both sides have to cross: each fails about half as often as the two together
    most = math.ceil(fixed * inflation(fractions, alpha=alpha, power=(1.0 + power) / 2.0, spending=spending))
    if is_guard_counted(fixed, discordance):
        last = normal_sf(float(spending_boundaries(fractions, alpha=alpha, spending=spending)[-1]))
        most = max(most, needed(alpha=last))
    return looks_at(
        most_items=most,
        margin=margin,
        alpha=alpha,
        harm_alpha=harm_alpha,
        n_looks=n_looks,
        spending=spending,
    )


def looks_at(
    *,
    most_items: int,
    margin: float,
    alpha: float = 0.05,
    harm_alpha: float = 0.025,
    n_looks: int = 10,
    spending: Spending = Spending.OBRIEN_FLEMING,
) -> LookDesign:
    """Equally spaced looks at a given number of items.

    Raises:
        InvalidValue: more looks than items, or an argument cannot be.
    """
    if not 1 <= n_looks <= most_items:
        raise InvalidValue(f"{n_looks} looks do not fit {most_items} items", hint="5 to 10 looks are usual.")
    n_items = tuple(round(most_items * (k + 1) / n_looks) for k in range(n_looks))
    fractions = [n / most_items for n in n_items]
    boundaries, harm_boundaries = (
        tuple(spending_boundaries(fractions, alpha=level, spending=spending).tolist()) for level in (alpha, harm_alpha)
    )
    return LookDesign(
        margin=check_margin(margin),
        alpha=alpha,
        n_items=n_items,
        boundaries=boundaries,
        harm_boundaries=harm_boundaries,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LookPerformance:
    """What a design with looks does at a given truth, by simulation."""

    equivalent: float
    """Share of runs that end in EQUIVALENT."""
    harm: float
    """Share of runs that end in HARM."""
    expected_items: float
    n_resamples: int


def simulate_looks(
    design: LookDesign,
    *,
    discordance: float,
    difference: float = 0.0,
    n_resamples: int = 20_000,
    rng: np.random.Generator,
) -> LookPerformance:
    """Simulate runs under a design, with the rule of `look`, guard and harm boundary included.

    Raises:
        InvalidValue: discordance or difference cannot be.
    """
    check_rates(discordance=discordance, difference=difference)
    rates = np.maximum(0.0, [(discordance + difference) / 2.0, (discordance - difference) / 2.0, 1.0 - discordance])
    counts = np.zeros((n_resamples, 2))
    is_open = np.ones(n_resamples, dtype=bool)
    n_equivalent = n_harmed = n_asked = before = 0
    for n_items, boundary, harm_boundary in zip(design.n_items, design.boundaries, design.harm_boundaries, strict=True):
        counts += rng.multinomial(n_items - before, rates / rates.sum(), size=n_resamples)[:, :2]
        n_asked += int(is_open.sum()) * (n_items - before)
        crossed = is_open & (_harm_pvalues(counts) <= normal_sf(harm_boundary))
        harmed = crossed & (counts[:, 1] - counts[:, 0] >= design.margin * n_items)
        proven = (
            is_open & ~harmed & (_worse_statistics(counts, n_items, design.margin) >= _bar(design, n_items, boundary))
        )
        if n_items == design.n_items[-1]:
            harmed |= crossed & ~proven
        n_harmed, n_equivalent = n_harmed + int(harmed.sum()), n_equivalent + int(proven.sum())
        is_open &= ~(harmed | proven)
        before = n_items
    return LookPerformance(
        equivalent=n_equivalent / n_resamples,
        harm=n_harmed / n_resamples,
        expected_items=n_asked / n_resamples,
        n_resamples=n_resamples,
    )


def _bar(design: LookDesign, n_items: int, boundary: float) -> float:
    """What both statistics have to reach: the boundary, and the threshold of the guard at its level."""
    level = normal_sf(boundary)
    if level < _LEAST_LEVEL:
        return math.inf
    return max(boundary, guard_threshold(n_items=n_items, margin=design.margin, alpha=level))


def _worse_statistics(counts: FloatArray, n_items: int, margin: float) -> FloatArray:
    gains, losses = counts.T
    lower = score_statistic(gains, losses, n_items=n_items, difference=-margin)
    upper = score_statistic(gains, losses, n_items=n_items, difference=margin)
    return np.asarray(np.minimum(lower, -upper), dtype=np.float64)


def _harm_pvalues(counts: FloatArray) -> FloatArray:
    """One-sided mid-p values; 1 without a discordant item."""
    whole = counts.astype(np.int64)
    gains, totals = whole[:, 0], whole.sum(axis=1)
    both = binomial_cdfs(gains, totals, 0.5) + binomial_cdfs(gains - 1, totals, 0.5)
    return np.where(totals == 0, 1.0, both / 2.0)

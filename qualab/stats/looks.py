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
_HAIR = 1e-9
MOST_GUARDED = 20_000
"""Items beyond which powers leave the exact guard out: it takes long there, and hardly costs power."""


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
    missing: float = 0.0,
    missing_lost: float | None = None,
    is_one_sided: bool = False,
    is_guarded: bool = True,
    n_resamples: int = 20_000,
    rng: np.random.Generator,
) -> LookPerformance:
    """Simulate runs under a design, with the rule of `look`, guard and harm boundary included.

    Args:
        missing: share of each arm's answers that is missing, independently of the other arm's.
        missing_lost: share of the pairs without an answer that the worst cases take as lost; None takes all.
        is_one_sided: whether the test against −margin alone has to reject (non-inferiority).
        is_guarded: whether the exact guard has to agree; it takes long beyond 20,000 items, and is left out there.

    Raises:
        InvalidValue: discordance, difference or missing share cannot be.
    """
    check_rates(discordance=discordance, difference=difference)
    if not 0.0 <= missing < 1.0:
        raise InvalidValue(f"{missing:g} is no share of missing answers", hint="Give a fraction, as 0.005.")
    rates = np.maximum(0.0, _rates(discordance, difference, missing))
    counts = np.zeros((n_resamples, 7))
    is_open = np.ones(n_resamples, dtype=bool)
    n_equivalent = n_harmed = n_asked = before = 0
    for n_items, boundary, harm_boundary in zip(design.n_items, design.boundaries, design.harm_boundaries, strict=True):
        counts += rng.multinomial(n_items - before, rates / rates.sum(), size=n_resamples)[:, :7]
        n_asked += int(is_open.sum()) * (n_items - before)
        crossed = is_open & (_harm_pvalues(counts[:, :2]) <= normal_sf(harm_boundary))
        harmed = crossed & (counts[:, 1] - counts[:, 0] >= design.margin * n_items)
        lost, gained = _worst_cases(counts, missing_lost, design.alpha)
        statistics = _worse_statistics(counts, lost, gained, n_items, design.margin, is_one_sided=is_one_sided)
        proven = is_open & ~harmed & (statistics >= _bar(design, n_items, boundary, is_guarded=is_guarded))
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


def _rates(discordance: float, difference: float, missing: float) -> list[float]:
    """Of gains and losses; of pairs that one arm lacks, which may be losses or gains, an arm at a time; of pairs that
    both lack; of all others.

    Either arm lacks a pair equally often, so that it may be a loss as often as a gain, whatever share is right.
    """
    changed, one_arm = (1.0 - missing) ** 2, missing * (1.0 - missing) / 2.0
    ways = [changed * (discordance + difference) / 2.0, changed * (discordance - difference) / 2.0]
    ways += [*[one_arm] * 4, missing**2]
    return [*ways, 1.0 - sum(ways)]


def _worst_cases(counts: FloatArray, missing_lost: float | None, alpha: float) -> tuple[FloatArray, FloatArray]:
    """How many pairs without an answer count as losses against the candidate, and as gains against the baseline."""
    lost_off, gained_off, lost_on, gained_on, both = counts.T[2:]
    lost, gained = lost_off + lost_on + both, gained_off + gained_on + both
    if missing_lost is None:
        return lost, gained
    most = np.ceil(missing_lost * counts[:, 2:].sum(axis=1) - _HAIR)
    off, on = (lost_off + gained_off).astype(np.int64), (lost_on + gained_on).astype(np.int64)
    fewer = np.minimum(off, on)
    midp = binomial_cdfs(fewer, off + on, 0.5) + binomial_cdfs(fewer - 1, off + on, 0.5)
    most = np.where(midp <= alpha, np.inf, most)
    return np.minimum(lost, most), np.minimum(gained, most)


def _bar(design: LookDesign, n_items: int, boundary: float, *, is_guarded: bool) -> float:
    """What both statistics have to reach: the boundary, and the threshold of the guard at its level."""
    level = normal_sf(boundary)
    if level < _LEAST_LEVEL:
        return math.inf
    if not is_guarded or n_items > MOST_GUARDED:
        return boundary
    return max(boundary, guard_threshold(n_items=n_items, margin=design.margin, alpha=level))


def _worse_statistics(
    counts: FloatArray, lost: FloatArray, gained: FloatArray, n_items: int, margin: float, *, is_one_sided: bool
) -> FloatArray:
    """The weakest test against ±margin, over complete pairs and with the pairs without an answer at their worst."""
    gains, losses = counts.T[:2]
    sides = [(gains, losses, lost)] if is_one_sided else [(gains, losses, lost), (losses, gains, gained)]
    n_complete = np.maximum(1.0, n_items - counts[:, 2:].sum(axis=1))
    worst = [score_statistic(ups, downs + more, n_items=n_items, difference=-margin) for ups, downs, more in sides]
    worst += [score_statistic(ups, downs, n_items=n_complete, difference=-margin) for ups, downs, _ in sides]
    return np.asarray(np.minimum.reduce(worst), dtype=np.float64)


def _harm_pvalues(counts: FloatArray) -> FloatArray:
    """One-sided mid-p values; 1 without a discordant item."""
    whole = counts.astype(np.int64)
    gains, totals = whole[:, 0], whole.sum(axis=1)
    both = binomial_cdfs(gains, totals, 0.5) + binomial_cdfs(gains - 1, totals, 0.5)
    return np.where(totals == 0, 1.0, both / 2.0)

"""Exact unconditional p-values of non-inferiority: the guard behind every "equivalent".

The score test orders the outcomes; the p-value is the largest probability, over the unknown discordance at a true
difference of −margin, of an outcome ordered at least as high as the observed one (Hsueh, Liu & Chen 2001).

Given m discordant items the rejection region is "at least `lo(m)` gains", and lo(m + 1) is lo(m) or lo(m) + 1. So the
conditional tail for m + 1 differs from that for m by one binomial term, and all tails are one cumulative sum,
vectorised over neighbouring discordances. Each term counts as often as the tails that it is part of: times the chance
of more than m discordant items, which neither margin nor threshold moves, so that it is kept from one p-value to the
next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy

from qualab.stats.checks import BoolArray, FloatArray, IntArray
from qualab.stats.distributions import (
    binomial_weights,
    largest_integers,
    likely_totals,
    log_factorials,
    safe_log,
)
from qualab.stats.score import score_statistic
from qualab.stats.supremum import Supremum, exceeds, supremum

_TIE = 1e-9
_STRIDE = 16
_LOG_ZERO = -1e6
"""As a logarithm: vanishes in an exponential."""
_MOST_KEPT = 2_000.0
"""Discordances times √items, up to which chances are kept: they take a hundred kilobytes."""


def critical_gains(totals: IntArray, *, n_items: int | IntArray, margin: float, threshold: float) -> IntArray:
    """For each number of discordant items m, the fewest gains with a score statistic of at least `threshold`.

    The statistic is that against −margin. m + 1 where not even m gains reach the threshold.

    Args:
        totals: neighbouring numbers m, ascending; or a row of them for each number of items.
        n_items: one number, or a column of ascending ones.
    """

    def search(totals: IntArray, n_items: int | IntArray, low: IntArray, high: IntArray) -> IntArray:
        # Tango's statistic as in `score_statistic`, with what the gains do not move worked out once
        shift, spread = n_items * margin, n_items * margin * (1.0 - margin)
        constant = 2.0 * shift - totals

        def falls_short(gains: IntArray) -> BoolArray:
            gained = np.maximum(gains, 0)
            ahead = 2.0 * gained - totals
            linear = constant + margin * ahead
            variance = 0.5 * (np.sqrt(linear * linear + (8.0 * spread) * gained) - linear) + spread
            return np.asarray(ahead + shift < (threshold - _TIE) * np.sqrt(variance), dtype=np.bool_)

        return largest_integers(falls_short, low, high)

    def row(totals: IntArray, n_items: int) -> IntArray:
        """Every sixteenth by bisection, and the others between: from one m to the next they grow by 0 or 1."""
        knots = np.append(np.arange(0, totals.size - 1, _STRIDE), totals.size - 1)
        known = search(totals[knots], n_items, np.full(knots.size, -1), totals[knots])
        before = np.minimum(np.arange(totals.size) // _STRIDE, max(0, knots.size - 2))
        after = np.minimum(before + 1, knots.size - 1)
        low = np.maximum(known[before], known[after] - (totals[knots[after]] - totals))
        high = np.minimum(known[after], known[before] + (totals - totals[knots[before]]))
        return search(totals, n_items, low, high)

    if not isinstance(n_items, np.ndarray):
        return row(totals, n_items) + 1
    # the more items, the fewer gains of m are enough
    most, fewest = (row(totals[end], int(n_items[end, 0])) for end in (0, -1))
    if len(totals) == 1:
        return most[None, :] + 1
    return search(totals, n_items, *(np.broadcast_to(end, totals.shape) for end in (fewest, most))) + 1


@dataclass(frozen=True, slots=True)
class _Region:
    """Outcomes that reject "worse by the margin or more": at least `critical[m]` gains of m discordant items."""

    n_items: int
    margin: float
    critical: IntArray
    powers: FloatArray
    """Of the term by which the conditional tail changes from m to m + 1: powers of the shares of gains and of losses,
    and log C(m, k)."""
    signs: FloatArray
    """−1 where the critical number grows from m to m + 1, else 1."""

    @classmethod
    def of(cls, *, n_items: int, margin: float, threshold: float) -> _Region:
        totals = np.arange(n_items + 1, dtype=np.int64)
        critical = _convex(critical_gains(totals, n_items=n_items, margin=margin, threshold=threshold))
        grows, before, gains = np.diff(critical), totals[:-1], critical[:-1]
        successes = gains - 1 + grows
        inside = (successes >= 0) & (successes <= before)
        factorials, chosen = log_factorials(n_items), np.where(inside, successes, 0)
        log_choose = factorials[:-1] - factorials[chosen] - factorials[before - chosen]
        powers = np.array([gains, before - gains + 1, np.where(inside, log_choose, _LOG_ZERO)])
        return cls(n_items, margin, critical, powers, 1.0 - 2.0 * grows)

    def probabilities(self, discordances: FloatArray) -> FloatArray:
        """Probability of the region at true difference −margin, for neighbouring ascending discordances >= margin."""
        first, reached = _reached(self.n_items, discordances)
        last = first + reached.shape[1] - 1
        shares = np.maximum(0.0, (1.0 - self.margin / discordances) / 2.0)
        logs = np.array([safe_log(shares), safe_log(1.0 - shares), np.ones(shares.size)])
        terms = np.exp(logs.T @ self.powers[:, first:last])
        terms *= reached[:, 1:]
        start = _upper_tails(int(self.critical[first]), first, shares) * reached[:, 0]
        return np.asarray(start + terms @ self.signs[first:last], dtype=np.float64)


def _reached(n_items: int, discordances: FloatArray) -> tuple[int, FloatArray]:
    """The first of the likely numbers of discordant items, and the chances that there are at least so many.

    A row for each discordance, a column for each number from the first on.
    """
    key = discordances.tobytes()
    if discordances.size * math.sqrt(n_items) > _MOST_KEPT:
        return _found_reached(n_items, key)
    return _kept_reached(n_items, key)


def _found_reached(n_items: int, discordances: bytes) -> tuple[int, FloatArray]:
    rates: FloatArray = np.frombuffer(discordances)
    totals = likely_totals(n_items, rates[0], rates[-1])
    weights = binomial_weights(totals, n_items, rates)
    return int(totals[0]), np.ascontiguousarray(np.cumsum(weights[:, ::-1], axis=1)[:, ::-1])


_kept_reached = lru_cache(maxsize=128)(_found_reached)


def _convex(critical: IntArray) -> IntArray:
    """The critical numbers with steps of 0 or 1 only; they have them already, but for rounding at ties."""
    totals = np.arange(critical.size)
    ascending = np.minimum.accumulate(critical[::-1])[::-1]
    return np.asarray(np.minimum.accumulate(ascending - totals) + totals, dtype=np.int64)


def _upper_tails(k: int, n: int, shares: FloatArray) -> FloatArray:
    if k <= 0:
        return np.ones_like(shares)
    if k > n:
        return np.zeros_like(shares)
    return np.asarray(scipy.special.bdtrc(k - 1, n, shares), dtype=np.float64)


def guard_pvalue(*, n_items: int, margin: float, threshold: float) -> Supremum:
    """Largest probability, at a true difference of −margin, of a score statistic of at least `threshold`.

    The supremum over the discordance in [margin, 1] is found within about 1e-7; `at` is the discordance where it lies.
    """
    region = _Region.of(n_items=n_items, margin=margin, threshold=threshold)
    return supremum(region.probabilities, low=margin, high=1.0, n_items=n_items)


@lru_cache(maxsize=4096)
def is_accepted(statistic: float, *, n_items: int, margin: float, alpha: float) -> bool:
    """Whether the exact p-value of a score statistic is at most alpha. Kept: metrics of few changes ask the same."""
    region = _Region.of(n_items=n_items, margin=margin, threshold=statistic)
    return not exceeds(region.probabilities, alpha, low=margin, high=1.0, n_items=n_items)


@lru_cache(maxsize=512)
def guard_threshold(*, n_items: int, margin: float, alpha: float) -> float:
    """The score statistic from which on the exact p-value is at most alpha; infinite where no outcome reaches that."""
    best = score_statistic(float(n_items), 0.0, n_items=n_items, difference=-margin)
    if not is_accepted(best, n_items=n_items, margin=margin, alpha=alpha):
        return math.inf
    low, high = 0.0, best
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        if is_accepted(middle, n_items=n_items, margin=margin, alpha=alpha):
            high = middle
        else:
            low = middle
    return high


def first_accepted(statistics: FloatArray, *, n_items: int, margin: float, alpha: float) -> float:
    """The smallest of ascending statistics that the guard accepts; infinite where there is none."""
    low, high, step = -1, statistics.size, 1
    # it is among the first few: gallop, then bisect
    while low + step < high:
        if is_accepted(float(statistics[low + step]), n_items=n_items, margin=margin, alpha=alpha):
            high = low + step
        else:
            low, step = low + step, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        is_low = is_accepted(float(statistics[middle]), n_items=n_items, margin=margin, alpha=alpha)
        low, high = (low, middle) if is_low else (middle, high)
    return float(statistics[high]) if high < statistics.size else math.inf


def forget_guard() -> None:
    """For measurements: whatever is kept is found anew."""
    for kept in (_kept_reached, is_accepted, guard_threshold):
        kept.cache_clear()

"""Exact unconditional p-values of non-inferiority: the guard behind every "equivalent".

The score test orders the outcomes; the p-value is the largest probability, over the unknown discordance at a true
difference of −margin, of an outcome ordered at least as high as the observed one (Hsueh, Liu & Chen 2001).

Given m discordant items the rejection region is "at least `lo(m)` gains", and lo(m + 1) is lo(m) or lo(m) + 1. So the
conditional tail for m + 1 differs from that for m by one binomial term, and all tails are one cumulative sum,
vectorised over neighbouring discordances.
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
from qualab.stats.supremum import Supremum, supremum

_TIE = 1e-9


def critical_gains(totals: IntArray, *, n_items: int | IntArray, margin: float, threshold: float) -> IntArray:
    """For each number of discordant items m, the fewest gains with a score statistic of at least `threshold`.

    The statistic is that against −margin. m + 1 where not even m gains reach the threshold.
    """

    def falls_short(gains: IntArray) -> BoolArray:
        gained = np.maximum(gains, 0).astype(np.float64)
        z = score_statistic(gained, totals - gained, n_items=n_items, difference=-margin)
        return z < threshold - _TIE

    return largest_integers(falls_short, np.full_like(totals, -1), totals) + 1


@dataclass(frozen=True, slots=True)
class _Region:
    """Outcomes that reject "worse by the margin or more": at least `critical[m]` gains of m discordant items."""

    n_items: int
    margin: float
    critical: IntArray
    log_terms: FloatArray
    """log C(m, k) of the term by which the conditional tail changes from m to m + 1."""
    grows: IntArray
    """1 where the critical number grows from m to m + 1, else 0."""

    @classmethod
    def of(cls, *, n_items: int, margin: float, threshold: float) -> _Region:
        totals = np.arange(n_items + 1, dtype=np.int64)
        critical = _convex(critical_gains(totals, n_items=n_items, margin=margin, threshold=threshold))
        grows = np.diff(critical)
        successes = critical[:-1] - 1 + grows
        factorials = log_factorials(n_items)
        inside = (successes >= 0) & (successes <= totals[:-1])
        chosen = np.where(inside, successes, 0)
        log_choose = factorials[totals[:-1]] - factorials[chosen] - factorials[totals[:-1] - chosen]
        return cls(n_items, margin, critical, np.where(inside, log_choose, -np.inf), grows)

    def probabilities(self, discordances: FloatArray) -> FloatArray:
        """Probability of the region at true difference −margin, for neighbouring ascending discordances >= margin."""
        totals = likely_totals(self.n_items, discordances[0], discordances[-1])
        shares = np.maximum(0.0, (1.0 - self.margin / discordances) / 2.0)
        tails = self._tails(totals, shares)
        weights = binomial_weights(totals, self.n_items, discordances)
        return np.asarray(np.einsum("ij,ij->i", weights, tails), dtype=np.float64)

    def _tails(self, totals: IntArray, shares: FloatArray) -> FloatArray:
        """P(at least critical[m] gains of m), a row for each share of gains, a column for each m."""
        first, last = int(totals[0]), int(totals[-1])
        grows, before = self.grows[first:last], totals[:-1]
        gains = self.critical[first:last]
        exponents = np.multiply.outer(safe_log(shares), gains) + np.multiply.outer(
            safe_log(1.0 - shares), before - gains + 1
        )
        tails = np.empty((shares.size, totals.size))
        tails[:, 0] = _upper_tails(int(self.critical[first]), first, shares)
        np.multiply(np.exp(exponents + self.log_terms[first:last]), 1 - 2 * grows, out=tails[:, 1:])
        np.cumsum(tails, axis=1, out=tails)
        return tails


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


@lru_cache(maxsize=512)
def guard_threshold(*, n_items: int, margin: float, alpha: float) -> float:
    """The score statistic from which on the exact p-value is at most alpha; infinite where no outcome reaches that."""
    best = score_statistic(float(n_items), 0.0, n_items=n_items, difference=-margin)
    if guard_pvalue(n_items=n_items, margin=margin, threshold=best).value > alpha:
        return math.inf
    low, high = 0.0, best
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        if guard_pvalue(n_items=n_items, margin=margin, threshold=middle).value <= alpha:
            high = middle
        else:
            low = middle
    return high


def first_accepted(statistics: FloatArray, *, n_items: int, margin: float, alpha: float) -> float:
    """The smallest of ascending statistics that the guard accepts; infinite where there is none."""
    low, high, step = -1, statistics.size, 1
    # it is among the first few: gallop, then bisect
    while low + step < high:
        if is_accepted(statistics[low + step], n_items=n_items, margin=margin, alpha=alpha):
            high = low + step
        else:
            low, step = low + step, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        is_low = is_accepted(statistics[middle], n_items=n_items, margin=margin, alpha=alpha)
        low, high = (low, middle) if is_low else (middle, high)
    return float(statistics[high]) if high < statistics.size else math.inf


def is_accepted(statistic: float, *, n_items: int, margin: float, alpha: float) -> bool:
    """Whether the exact p-value of a score statistic is at most alpha."""
    return guard_pvalue(n_items=n_items, margin=margin, threshold=float(statistic)).value <= alpha

"""Distribution functions and searches that the tests for 0/1 data stand on."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import scipy

from qualab.stats.checks import BoolArray, FloatArray, IntArray

_SQRT2 = math.sqrt(2.0)
normal_quantile = NormalDist().inv_cdf


def normal_cdf(z: float) -> float:
    """Compute the probability of a standard normal value at most `z`."""
    return 0.5 * math.erfc(-z / _SQRT2)


def normal_sf(z: float) -> float:
    """Compute the probability of a standard normal value above `z`."""
    return 0.5 * math.erfc(z / _SQRT2)


def chi_square_sf(statistic: float) -> float:
    """Compute the upper tail of the chi-square distribution with one degree of freedom."""
    return math.erfc(math.sqrt(statistic / 2.0))


def binomial_cdfs(k: IntArray, n: IntArray, p: float) -> FloatArray:
    """Compute the probabilities of at most `k` successes in `n` trials; 0 below 0 and 1 from `n` on."""
    inside = np.asarray(scipy.special.bdtr(np.clip(k, 0, n), n, p), dtype=np.float64)
    return np.where(k < 0, 0.0, np.where(k >= n, 1.0, inside))


@lru_cache(maxsize=32)
def log_factorials(n: int) -> FloatArray:
    """Compute log(0!), log(1!), ..., log(n!)."""
    values = np.asarray(scipy.special.gammaln(np.arange(1.0, n + 2.0)), dtype=np.float64)
    values.setflags(write=False)
    return values


def safe_log(p: FloatArray) -> FloatArray:
    """Compute log(p), finite at 0, so that 0 · log(0) is 0 and k · log(0) vanishes in an exponential."""
    return np.log(np.maximum(p, 1e-300))


def binomial_weights(totals: IntArray, n: int, p: FloatArray) -> FloatArray:
    """Compute binomial probabilities of `totals` (columns) for each success probability (rows)."""
    factorials = log_factorials(n)
    log_choose = factorials[n] - factorials[totals] - factorials[n - totals]
    logs = np.array([safe_log(p), safe_log(1.0 - p), np.ones(p.size)])
    return np.asarray(np.exp(logs.T @ np.array([totals, n - totals, log_choose])), dtype=np.float64)


def likely_totals(n: int, low: float, high: float, *, spread: float = 6.5) -> IntArray:
    """List the totals that Bin(n, p) takes for p in [low, high], but for less than about 1e-9 of its mass."""
    first, last = (
        n * p + sign * (spread * math.sqrt(n * p * (1.0 - p)) + spread) for p, sign in ((low, -1.0), (high, 1.0))
    )
    return np.arange(max(0, math.floor(first)), min(n, math.ceil(last)) + 1, dtype=np.int64)


def largest_integers(holds: Callable[[IntArray], BoolArray], low: IntArray, high: IntArray) -> IntArray:
    """Find elementwise the largest k in [low, high] up to which `holds`; `low` where nothing above it holds."""
    low, high = low.copy(), high.copy()
    while np.any(low < high):
        middle = (low + high + 1) // 2
        passes = holds(middle)
        low, high = np.where(passes, middle, low), np.where(passes, high, middle - 1)
    return low


def bisect(holds: Callable[[float], bool], low: float, high: float, *, n_steps: int = 60) -> float:
    """Find where `holds` turns from False (at low) to True (at high): the upper end of the bracket."""
    for _ in range(n_steps):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def falling_root(
    function: Callable[[float], float], low: float, high: float, *, above: float, below: float, tolerance: float
) -> float:
    """Find a point at which a falling function is at most 0, within `tolerance` above one at which it is not.

    The bracket is closed from above: first half a tolerance beyond where the root is believed to be, then a tolerance
    below that.

    Args:
        above: the value at `low`.
        below: the value at `high`.

    Source: false position with the Illinois modification, Dowell & Jarratt (1971).
    """
    back = 0.99 * tolerance
    while high - low > tolerance:
        middle = low + (high - low) * above / (above - below) + tolerance / 2.0
        if middle > high - back:
            middle, back = max(high - back, 0.5 * (low + high)), 4.0 * back
        middle = max(middle, low + 0.05 * (high - low))
        value = function(middle)
        if value > 0.0:
            low, above, below = middle, value, below / 2.0
        else:
            high, below, above = middle, value, above / 2.0
    return high

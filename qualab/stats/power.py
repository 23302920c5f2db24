"""Exact power of the paired tests, by enumeration of the trinomial from critical values.

The number of discordant items is Bin(n, ψ), and given m of them the gains are Bin(m, θ) with θ = (ψ + Δ) / 2ψ. Each
test rejects for the gains in a range that depends on m alone, so that its power is one weighted sum over m.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum

import numpy as np
import scipy

from qualab.stats.checks import FloatArray, IntArray, check_alpha, check_items, check_margin, check_rates
from qualab.stats.distributions import (
    binomial_cdfs,
    binomial_weights,
    largest_integers,
    likely_totals,
    normal_quantile,
)
from qualab.stats.guard import critical_gains, guard_threshold


class McNemarMethod(StrEnum):
    EXACT = "exact"
    MIDP = "midp"
    ASYMPTOTIC = "asymptotic"


def power_equivalence(
    *,
    n_items: int,
    discordance: float,
    difference: float = 0.0,
    margin: float,
    alpha: float = 0.05,
    is_guarded: bool = False,
) -> float:
    """Probability that the two one-sided score tests both reject at a given truth.

    With `is_guarded` the probability that the exact guard agrees as well: the power of the verdict EQUIVALENT. At a
    `difference` of ±margin this is the size of the test.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: margin, alpha, discordance or difference cannot be.
    """
    threshold = _threshold(check_items(n_items), check_margin(margin), check_alpha(alpha), is_guarded)
    check_rates(discordance=discordance, difference=difference)
    if math.isinf(threshold):
        return 0.0
    totals = likely_totals(n_items, discordance, discordance)
    fewest = critical_gains(totals, n_items=n_items, margin=margin, threshold=threshold)
    share = _gain_share(discordance, difference)
    accepted = binomial_cdfs(totals - fewest, totals, share) - binomial_cdfs(fewest - 1, totals, share)
    return _expected(np.where(2 * fewest <= totals, accepted, 0.0), totals, n_items, discordance)


def power_non_inferiority(
    *,
    n_items: int,
    discordance: float,
    difference: float = 0.0,
    margin: float,
    alpha: float = 0.05,
    is_guarded: bool = False,
) -> float:
    """As `power_equivalence`, for the test against −margin alone."""
    threshold = _threshold(check_items(n_items), check_margin(margin), check_alpha(alpha), is_guarded)
    check_rates(discordance=discordance, difference=difference)
    if math.isinf(threshold):
        return 0.0
    totals = likely_totals(n_items, discordance, discordance)
    fewest = critical_gains(totals, n_items=n_items, margin=margin, threshold=threshold)
    tails = 1.0 - binomial_cdfs(fewest - 1, totals, _gain_share(discordance, difference))
    return _expected(tails, totals, n_items, discordance)


def power_mcnemar(
    *,
    n_items: int,
    discordance: float,
    difference: float,
    alpha: float = 0.05,
    method: McNemarMethod = McNemarMethod.EXACT,
) -> float:
    """Probability that the two-sided McNemar test rejects at a given truth.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: alpha, discordance or difference cannot be.
    """
    check_items(n_items)
    check_rates(discordance=discordance, difference=difference)
    totals = likely_totals(n_items, discordance, discordance)
    fewer = _CRITICAL[method](totals, check_alpha(alpha))
    share = _gain_share(discordance, difference)
    tails = binomial_cdfs(fewer, totals, share) + 1.0 - binomial_cdfs(totals - fewer - 1, totals, share)
    return _expected(np.where(fewer >= 0, tails, 0.0), totals, n_items, discordance)


def _threshold(n_items: int, margin: float, alpha: float, is_guarded: bool) -> float:
    z = normal_quantile(1.0 - alpha)
    return max(z, guard_threshold(n_items=n_items, margin=margin, alpha=alpha)) if is_guarded else z


def _gain_share(discordance: float, difference: float) -> float:
    return min(1.0, max(0.0, 0.5 + 0.5 * difference / discordance)) if discordance else 0.5


def _expected(values: FloatArray, totals: IntArray, n_items: int, discordance: float) -> float:
    weights = binomial_weights(totals, n_items, np.array([discordance]))[0]
    return float(min(1.0, weights @ values))


def _critical_asymptotic(totals: IntArray, alpha: float) -> IntArray:
    """The largest count of the rarer change at which (b − c)² / m reaches the chi-square quantile; −1 for none."""
    z = normal_quantile(1.0 - alpha / 2.0)
    fewer = np.floor((totals - z * np.sqrt(totals)) / 2.0 + 1e-12).astype(np.int64)
    return np.where(totals == 0, -1, np.maximum(fewer, -1))


def _critical_exact(totals: IntArray, alpha: float) -> IntArray:
    return _largest_significant(totals, lambda k: 2.0 * binomial_cdfs(k, totals, 0.5), alpha)


def _critical_midp(totals: IntArray, alpha: float) -> IntArray:
    return _largest_significant(
        totals, lambda k: binomial_cdfs(k, totals, 0.5) + binomial_cdfs(k - 1, totals, 0.5), alpha
    )


def _largest_significant(totals: IntArray, pvalue: Callable[[IntArray], FloatArray], alpha: float) -> IntArray:
    guess = scipy.special.ndtri(alpha / 2.0) * np.sqrt(totals) / 2.0 + totals / 2.0
    reach = 3 + (np.sqrt(totals) / 4.0).astype(np.int64)
    low = np.clip(np.floor(guess).astype(np.int64) - reach, -1, totals)
    high = np.clip(np.floor(guess).astype(np.int64) + reach, -1, (totals - 1) // 2)
    return largest_integers(lambda k: (pvalue(k) <= alpha) | (k < 0), np.minimum(low, high), high)


_CRITICAL: dict[McNemarMethod, Callable[[IntArray, float], IntArray]] = {
    McNemarMethod.EXACT: _critical_exact,
    McNemarMethod.MIDP: _critical_midp,
    McNemarMethod.ASYMPTOTIC: _critical_asymptotic,
}

"""Exact power of the paired tests, by enumeration of the trinomial from critical values.

The number of discordant items is Bin(n, ψ), and given m of them the gains are Bin(m, θ) with θ = (ψ + Δ) / 2ψ. Each
test rejects for the gains in a range that depends on m alone, so that its power is one weighted sum over m.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import scipy

from qualab.stats.checks import (
    FloatArray,
    IntArray,
    binomial_cdfs,
    check_alpha,
    check_items,
    check_margin,
    check_rates,
    largest_integers,
    likely_totals,
    log_factorials,
    normal_quantile,
    safe_log,
)
from qualab.stats.equivalence import critical_gains, guard_threshold


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
    powers = equivalence_powers(
        np.array([n_items]), discordance=discordance, difference=difference, margin=margin, threshold=threshold
    )
    return float(powers[0])


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
    powers = non_inferiority_powers(
        np.array([n_items]), discordance=discordance, difference=difference, margin=margin, threshold=threshold
    )
    return float(powers[0])


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
    powers = mcnemar_powers(
        np.array([n_items]), discordance=discordance, difference=difference, alpha=check_alpha(alpha), method=method
    )
    return float(powers[0])


def equivalence_powers(
    n_items: IntArray, *, discordance: float, difference: float, margin: float, threshold: float
) -> FloatArray:
    """Powers of the two one-sided score tests at neighbouring numbers of items, from a z threshold, unchecked."""
    if math.isinf(threshold):
        return np.zeros(n_items.size)
    truth = _Truth.of(n_items, discordance, difference)
    fewest = critical_gains(truth.totals, n_items=truth.n_items, margin=margin, threshold=threshold)
    accepted = truth.cdf(truth.totals - fewest) - truth.cdf(fewest - 1)
    return truth.expected(np.where(2 * fewest <= truth.totals, accepted, 0.0))


def non_inferiority_powers(
    n_items: IntArray, *, discordance: float, difference: float, margin: float, threshold: float
) -> FloatArray:
    """As `equivalence_powers`, of the test against −margin alone."""
    if math.isinf(threshold):
        return np.zeros(n_items.size)
    truth = _Truth.of(n_items, discordance, difference)
    fewest = critical_gains(truth.totals, n_items=truth.n_items, margin=margin, threshold=threshold)
    return truth.expected(1.0 - truth.cdf(fewest - 1))


def mcnemar_powers(
    n_items: IntArray, *, discordance: float, difference: float, alpha: float, method: McNemarMethod
) -> FloatArray:
    """Powers of McNemar's two-sided test at neighbouring numbers of items, unchecked."""
    truth = _Truth.of(n_items, discordance, difference)
    totals = truth.totals[:1]  # the test is conditional: its critical values do not depend on the items
    fewer = _CRITICAL[method](totals, alpha)
    tails = truth.cdf(fewer) + 1.0 - truth.cdf(totals - fewer - 1)
    return truth.expected(np.where(fewer >= 0, tails, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Truth:
    """An assumed truth at several numbers of items (rows), and the discordant items to expect (columns)."""

    n_items: IntArray
    totals: IntArray
    gain_share: float
    """Of the discordant items."""
    weights: FloatArray
    """Probabilities of the totals, a row for each number of items."""

    @classmethod
    def of(cls, n_items: IntArray, discordance: float, difference: float) -> _Truth:
        low = likely_totals(int(n_items.min()), discordance, discordance)[0]
        high = likely_totals(int(n_items.max()), discordance, discordance)[-1]
        totals = np.arange(low, high + 1, dtype=np.int64)
        share = min(1.0, max(0.0, 0.5 + 0.5 * difference / discordance)) if discordance else 0.5
        return cls(
            n_items=n_items[:, None],
            totals=np.broadcast_to(totals, (n_items.size, totals.size)),
            gain_share=share,
            weights=_binomial_rows(totals, n_items, discordance),
        )

    def cdf(self, gains: IntArray) -> FloatArray:
        """Probability of at most so many gains among the totals: found once for all rows that ask for the same."""
        fewest = gains.min(axis=0)
        depth = gains - fewest
        table = binomial_cdfs(fewest + np.arange(int(depth.max()) + 1)[:, None], self.totals[:1], self.gain_share)
        return np.take_along_axis(table, depth, axis=0)

    def expected(self, values: FloatArray) -> FloatArray:
        return np.asarray(np.minimum(1.0, np.sum(self.weights * values, axis=1)), dtype=np.float64)


def _binomial_rows(totals: IntArray, n_items: IntArray, p: float) -> FloatArray:
    """Binomial probabilities of the totals (columns) among each number of items (rows); 0 where they are too many."""
    factorials = log_factorials(int(n_items.max()))
    rest = n_items[:, None] - totals
    kept = np.maximum(rest, 0)
    log_p, log_q = safe_log(np.array([p, 1.0 - p]))
    exponents = factorials[n_items][:, None] - factorials[totals] - factorials[kept] + totals * log_p + kept * log_q
    return np.where(rest >= 0, np.exp(exponents), 0.0)


def _threshold(n_items: int, margin: float, alpha: float, is_guarded: bool) -> float:
    z = normal_quantile(1.0 - alpha)
    return max(z, guard_threshold(n_items=n_items, margin=margin, alpha=alpha)) if is_guarded else z


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

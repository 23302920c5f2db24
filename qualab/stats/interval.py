"""Confidence intervals for the difference of paired proportions. None of them is a Wald interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import scipy

from qualab.stats.checks import FloatArray, IntArray, check_confidence_level, check_items
from qualab.stats.counts import PairedCounts
from qualab.stats.distributions import bisect, normal_quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceInterval:
    """Limits of a difference, candidate − baseline, as fractions."""

    low: float
    high: float
    confidence_level: float


def tango(counts: PairedCounts, *, confidence_level: float = 0.95) -> ConfidenceInterval:
    """Compute the interval of differences that the score test does not reject (Tango 1998).

    >>> interval = tango(PairedCounts(n_items=600, gains=12, losses=9))
    >>> round(interval.low, 4), round(interval.high, 4)
    (-0.0108, 0.0215)
    """
    n_items = check_items(counts.n_items)
    return score_interval(float(counts.gains), float(counts.losses), n_items=n_items, confidence_level=confidence_level)


def score_interval(gains: float, losses: float, *, n_items: float, confidence_level: float) -> ConfidenceInterval:
    """Compute Tango's interval; counts need not be whole."""
    z = normal_quantile(0.5 + check_confidence_level(confidence_level) / 2.0)

    def upper_limit(gains: float, losses: float) -> float:
        return bisect(
            lambda difference: score_statistic(gains, losses, n_items=n_items, difference=difference) <= -z,
            (gains - losses) / n_items,
            1.0,
        )

    return ConfidenceInterval(
        low=-upper_limit(losses, gains), high=upper_limit(gains, losses), confidence_level=confidence_level
    )


def newcombe(counts: PairedCounts, *, confidence_level: float = 0.95) -> ConfidenceInterval:
    """Combine the Wilson limits of each arm (Newcombe 1998, method 10): a cross-check, which needs `both_right`.

    The arms' correlation is phi, corrected for continuity; 0 where an arm is constant.
    """
    n_items = check_items(counts.n_items)
    z = normal_quantile(0.5 + check_confidence_level(confidence_level) / 2.0)
    difference, accuracies = counts.difference, counts.accuracies
    right = counts.both_right or 0
    wrong = n_items - counts.n_discordant - right
    spread = math.sqrt(
        math.prod([right + counts.losses, right + counts.gains, wrong + counts.losses, wrong + counts.gains])
    )
    covariance = float(right * wrong - counts.gains * counts.losses)
    if covariance > 0:
        covariance = max(0.0, covariance - n_items / 2.0)
    phi = covariance / spread if spread else 0.0

    def wilson(proportion: float) -> tuple[float, float]:
        centre = proportion + z * z / (2 * n_items)
        half = z * math.sqrt(proportion * (1.0 - proportion) / n_items + z * z / (4 * n_items * n_items))
        scale = 1.0 + z * z / n_items
        return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)

    def distance(toward: float, away: float) -> float:
        return math.sqrt(max(0.0, toward**2 - 2.0 * phi * toward * away + away**2))

    (baseline, candidate), ((low_b, high_b), (low_c, high_c)) = accuracies, map(wilson, accuracies)
    return ConfidenceInterval(
        low=max(-1.0, difference - distance(candidate - low_c, high_b - baseline)),
        high=min(1.0, difference + distance(high_c - candidate, baseline - low_b)),
        confidence_level=confidence_level,
    )


def clopper_pearson(count: float, n_items: float, *, confidence_level: float) -> tuple[float, float]:
    """Compute exact limits of a share (Clopper & Pearson 1934); counts need not be whole.

    >>> [round(limit, 4) for limit in clopper_pearson(0, 600, confidence_level=0.9)]
    [0.0, 0.005]
    """
    tail = (1.0 - check_confidence_level(confidence_level)) / 2.0
    low = scipy.special.betaincinv(count, n_items - count + 1.0, tail) if count > 0.0 else 0.0
    high = scipy.special.betaincinv(count + 1.0, n_items - count, 1.0 - tail) if count < n_items else 1.0
    return float(low), float(high)


Numbers = TypeVar("Numbers", float, FloatArray)


def score_statistic(gains: Numbers, losses: Numbers, *, n_items: float | IntArray, difference: float) -> Numbers:
    """Compute the score statistic of "the true difference is `difference`" (Tango 1998, section 3), elementwise.

    z(δ) = (b − c − nδ) / √(n (2q̃ + δ(1 − δ))), where q̃ is the restricted maximum-likelihood estimate of the
    probability of a loss: q̃ = (√(B² − 4AC) − B) / 2A with A = 2n, B = −b − c + (2n − b + c) δ, C = −c δ (1 − δ).

    Args:
        difference: strictly between −1 and 1, and not 0 where gains and losses are both 0.
    """
    if difference < 0.0:  # by symmetry; the formula then never subtracts two nearly equal numbers
        return -score_statistic(losses, gains, n_items=n_items, difference=-difference)
    linear = (2.0 * n_items - gains + losses) * difference - gains - losses
    root: Any = (linear * linear + 8.0 * n_items * losses * difference * (1.0 - difference)) ** 0.5
    loss_probability = (root - linear) / (4.0 * n_items)
    variance = n_items * (2.0 * loss_probability + difference * (1.0 - difference))
    return (gains - losses - n_items * difference) / variance**0.5  # type: ignore[no-any-return]

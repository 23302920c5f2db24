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
    """Score interval of Tango (1998): the differences that the score test does not reject.

    Raises:
        InsufficientData: there is no item.
    """
    check_items(counts.n_items)
    return score_interval(
        float(counts.gains), float(counts.losses), n_items=counts.n_items, confidence_level=confidence_level
    )


def score_interval(gains: float, losses: float, *, n_items: float, confidence_level: float) -> ConfidenceInterval:
    """Tango's interval of counts that need not be whole, as of items that are worth less than one."""
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
    """Method 10 of Newcombe (1998): Wilson limits of each arm, squared and added, with a corrected correlation.

    Raises:
        InsufficientData: there is no item, or the items right in both arms were not counted.
    """
    n_items = check_items(counts.n_items)
    z = normal_quantile(0.5 + check_confidence_level(confidence_level) / 2.0)
    baseline, candidate = counts.accuracies
    phi = _correlation(counts)
    low_b, high_b = _wilson(baseline, n_items, z)
    low_c, high_c = _wilson(candidate, n_items, z)
    difference = counts.difference

    def distance(toward: float, away: float) -> float:
        return math.sqrt(max(0.0, toward**2 - 2.0 * phi * toward * away + away**2))

    return ConfidenceInterval(
        low=max(-1.0, difference - distance(candidate - low_c, high_b - baseline)),
        high=min(1.0, difference + distance(high_c - candidate, baseline - low_b)),
        confidence_level=confidence_level,
    )


def _wilson(proportion: float, n: int, z: float) -> tuple[float, float]:
    centre = proportion + z * z / (2 * n)
    half = z * math.sqrt(proportion * (1.0 - proportion) / n + z * z / (4 * n * n))
    scale = 1.0 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def _correlation(counts: PairedCounts) -> float:
    """Phi coefficient of the 2 x 2 table, corrected for continuity; 0 where an arm is constant."""
    right, wrong = counts.both_right or 0, counts.both_wrong or 0
    margins = [right + counts.losses, right + counts.gains, wrong + counts.losses, wrong + counts.gains]
    denominator = math.sqrt(math.prod(margins))
    if denominator == 0.0:
        return 0.0
    covariance = float(right * wrong - counts.gains * counts.losses)
    if covariance > 0:
        covariance = max(0.0, covariance - counts.n_items / 2.0)
    return covariance / denominator


def clopper_pearson(count: float, n_items: float, *, confidence_level: float) -> tuple[float, float]:
    """Exact limits of a share (Clopper & Pearson 1934); counts need not be whole, as of items worth less than one."""
    tail = (1.0 - check_confidence_level(confidence_level)) / 2.0
    low = scipy.special.betaincinv(count, n_items - count + 1.0, tail) if count > 0.0 else 0.0
    high = scipy.special.betaincinv(count + 1.0, n_items - count, 1.0 - tail) if count < n_items else 1.0
    return float(low), float(high)


Numbers = TypeVar("Numbers", float, FloatArray)


def score_statistic(gains: Numbers, losses: Numbers, *, n_items: float | IntArray, difference: float) -> Numbers:
    """Score statistic of "the true difference is `difference`" (Tango 1998, section 3); approximately standard normal.

    z(δ) = (b − c − nδ) / √(n (2q̃ + δ(1 − δ))), where q̃ is the restricted maximum-likelihood estimate of the
    probability of a loss: q̃ = (√(B² − 4AC) − B) / 2A with A = 2n, B = −b − c + (2n − b + c) δ, C = −c δ (1 − δ).
    Works on numbers and on arrays.

    `difference` lies strictly between −1 and 1, and is not 0 where gains and losses are both 0.
    """
    if difference < 0.0:  # by symmetry; the formula then never subtracts two nearly equal numbers
        return -score_statistic(losses, gains, n_items=n_items, difference=-difference)
    linear = (2.0 * n_items - gains + losses) * difference - gains - losses
    root: Any = (linear * linear + 8.0 * n_items * losses * difference * (1.0 - difference)) ** 0.5
    loss_probability = (root - linear) / (4.0 * n_items)
    variance = n_items * (2.0 * loss_probability + difference * (1.0 - difference))
    return (gains - losses - n_items * difference) / variance**0.5  # type: ignore[no-any-return]

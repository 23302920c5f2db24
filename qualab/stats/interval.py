"""Confidence intervals for the difference of paired proportions. None of them is a Wald interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
import scipy

from qualab.stats.checks import (
    FloatArray,
    IntArray,
    bisect,
    check_confidence_level,
    check_items,
    gauss_legendre,
    normal_quantile,
)
from qualab.stats.counts import PairedCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceInterval:
    """Limits of a difference, candidate − baseline, as fractions."""

    low: float
    high: float
    confidence_level: float

    def __contains__(self, difference: float) -> bool:
        return self.low <= difference <= self.high

    def is_inside(self, margin: float) -> bool:
        """Whether the whole interval lies within ±margin."""
        return -margin <= self.low and self.high <= margin

    def negated(self) -> ConfidenceInterval:
        """The interval of baseline − candidate."""
        return ConfidenceInterval(low=-self.high, high=-self.low, confidence_level=self.confidence_level)


_MELDED_POINTS = 128
"""Quadrature points of the melded distribution."""


class IntervalMethod(StrEnum):
    TANGO = "tango"
    NEWCOMBE = "newcombe"
    FAY_LUMBARD = "fay-lumbard"


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
    return _square_and_add(counts, confidence_level=confidence_level, is_corrected=True)


def newcombe_uncorrected(counts: PairedCounts, *, confidence_level: float = 0.95) -> ConfidenceInterval:
    """Method 8 of Newcombe (1998): as method 10, without the continuity correction of the correlation."""
    return _square_and_add(counts, confidence_level=confidence_level, is_corrected=False)


def _square_and_add(counts: PairedCounts, *, confidence_level: float, is_corrected: bool) -> ConfidenceInterval:
    n_items = check_items(counts.n_items)
    z = normal_quantile(0.5 + check_confidence_level(confidence_level) / 2.0)
    baseline, candidate = counts.accuracies
    phi = _correlation(counts, is_corrected=is_corrected)
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


def _correlation(counts: PairedCounts, *, is_corrected: bool) -> float:
    """Phi coefficient of the 2 x 2 table; 0 where an arm is constant, as then nothing correlates."""
    right, wrong = counts.both_right or 0, counts.both_wrong or 0
    margins = [right + counts.losses, right + counts.gains, wrong + counts.losses, wrong + counts.gains]
    denominator = math.sqrt(math.prod(margins))
    if denominator == 0.0:
        return 0.0
    covariance = float(right * wrong - counts.gains * counts.losses)
    if is_corrected and covariance > 0:
        covariance = max(0.0, covariance - counts.n_items / 2.0)
    return covariance / denominator


def clopper_pearson(count: float, n_items: float, *, confidence_level: float) -> tuple[float, float]:
    """Exact limits of a share (Clopper & Pearson 1934); counts need not be whole, as of items worth less than one."""
    tail = (1.0 - check_confidence_level(confidence_level)) / 2.0
    low = scipy.special.betaincinv(count, n_items - count + 1.0, tail) if count > 0.0 else 0.0
    high = scipy.special.betaincinv(count + 1.0, n_items - count, 1.0 - tail) if count < n_items else 1.0
    return float(low), float(high)


def fay_lumbard(counts: PairedCounts, *, confidence_level: float = 0.95) -> ConfidenceInterval:
    """Exact interval that agrees with the exact conditional McNemar test (Fay & Lumbard 2021, melding).

    The difference is ψ (2θ − 1): Clopper–Pearson confidence distributions of the discordance ψ and of the share θ
    of gains among the discordant items are combined so that the limit is on the safe side of both. 0 lies inside
    exactly when the exact p-value is above 1 − confidence_level. Limits are right to about 1e-8.

    Raises:
        InsufficientData: there is no item.
    """
    check_items(counts.n_items)
    tail = (1.0 - check_confidence_level(confidence_level)) / 2.0
    return ConfidenceInterval(
        low=_melded_lower(counts, tail), high=-_melded_lower(counts.swapped(), tail), confidence_level=confidence_level
    )


def _melded_lower(counts: PairedCounts, tail: float) -> float:
    melded = _Melded.of(counts)
    return bisect(lambda difference: melded.cdf(difference) >= tail, -1.0, counts.difference, n_steps=40)


def melded_cdf(difference: float, counts: PairedCounts) -> float:
    """Lower melded confidence distribution of the difference (Fay & Lumbard 2021); at 0 a one-sided exact p."""
    return _Melded.of(counts).cdf(difference)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Melded:
    """Quadrature over the lower Clopper–Pearson confidence distribution of the share θ of gains, split at θ = 1/2."""

    counts: PairedCounts
    below: FloatArray
    """2θ − 1 at points with θ < 1/2."""
    below_masses: FloatArray
    above: FloatArray
    above_masses: FloatArray

    @classmethod
    def of(cls, counts: PairedCounts) -> _Melded:
        gains, total = counts.gains, counts.n_discordant
        if gains == 0:  # θ may be 0 for all that is known
            return cls(
                counts=counts,
                below=np.array([-1.0]),
                below_masses=np.ones(1),
                above=np.zeros(0),
                above_masses=np.zeros(0),
            )
        points, weights = gauss_legendre(_MELDED_POINTS)
        half = float(scipy.special.betainc(gains, total - gains + 1, 0.5))

        def directions(probabilities: FloatArray) -> FloatArray:
            shares = scipy.special.betaincinv(gains, total - gains + 1, probabilities)
            return np.asarray(2.0 * shares - 1.0, dtype=np.float64)

        return cls(
            counts=counts,
            below=directions(half * (points + 1.0) / 2.0),
            below_masses=half * weights / 2.0,
            above=directions(half + (1.0 - half) * (points + 1.0) / 2.0),
            above_masses=(1.0 - half) * weights / 2.0,
        )

    def cdf(self, difference: float) -> float:
        """P((2θ − 1) ψ <= difference), ψ from its lower distribution where θ > 1/2, else from its upper one."""
        n, m = self.counts.n_items, self.counts.n_discordant
        if difference < 0.0:
            share = np.minimum(1.0, difference / np.minimum(self.below, -1e-300))
            reached = _beta_cdf(1.0 - share, n - m, m + 1) if m < n else (share < 1.0).astype(np.float64)
            return float(self.below_masses @ reached)
        share = np.minimum(1.0, difference / np.maximum(self.above, 1e-300))
        reached = _beta_cdf(share, m, n - m + 1) if m else np.ones_like(share)
        return float(self.below_masses.sum() + self.above_masses @ reached)


def _beta_cdf(x: FloatArray, a: int, b: int) -> FloatArray:
    return np.asarray(scipy.special.betainc(a, b, x), dtype=np.float64)


INTERVALS: dict[IntervalMethod, Callable[..., ConfidenceInterval]] = {
    IntervalMethod.TANGO: tango,
    IntervalMethod.NEWCOMBE: newcombe,
    IntervalMethod.FAY_LUMBARD: fay_lumbard,
}


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

"""Items that the baseline answered several times: the candidate against the mean of K baseline answers.

The score test of one answer an arm (Tango 1998) knows three differences, −1, 0 and 1; with K baseline answers there are
2K + 1, at j/K. The variance is that of the multinomial distribution that fits best under the hypothesis, with mass at
−1 or 1 allowed where nobody was seen: the constrained likelihood that gives Tango's statistic for K = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from qualab.errors import InvalidValue
from qualab.stats.checks import FloatArray, check_confidence_level, check_items, finite
from qualab.stats.distributions import bisect, normal_quantile
from qualab.stats.interval import ConfidenceInterval

_HAIR = 1e-9
"""Means of thirds are not whole thirds to the last digit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedCounts:
    """Items by the candidate's answer less the mean of K baseline answers, each 0 or 1."""

    counts: tuple[int, ...]
    """Items whose difference is −K/K, (1 − K)/K, ..., K/K."""

    def __post_init__(self) -> None:
        if len(self.counts) < 3 or len(self.counts) % 2 == 0 or min(self.counts) < 0:
            raise InvalidValue("These are no counts of differences", hint="Give 2K + 1 numbers of items.")

    @classmethod
    def of(cls, baseline: npt.ArrayLike, candidate: npt.ArrayLike, *, n_runs: int) -> RepeatedCounts:
        """Count the differences; `baseline` holds means of `n_runs` answers.

        >>> RepeatedCounts.of([1.0, 0.5, 0.0, 1.0], [1, 0, 0, 0], n_runs=2)
        RepeatedCounts(counts=(1, 1, 2, 0, 0))
        """
        before, after = finite(baseline, name="Baseline"), finite(candidate, name="Candidate")
        if before.shape != after.shape or not (is_mean_of(before, n_runs) and is_mean_of(after, 1)):
            raise InvalidValue(f"These are no means of {n_runs} answers", hint="Score every answer 0 or 1.")
        places = np.round((after - before) * n_runs)
        return cls(counts=tuple(np.bincount(places.astype(np.int64) + n_runs, minlength=2 * n_runs + 1).tolist()))

    @property
    def n_items(self) -> int:
        return sum(self.counts)

    @property
    def n_runs(self) -> int:
        return len(self.counts) // 2

    @property
    def difference(self) -> float:
        return float(self._values @ np.array(self.counts)) / check_items(self.n_items)

    @property
    def _values(self) -> FloatArray:
        return np.arange(-self.n_runs, self.n_runs + 1) / self.n_runs

    def swapped(self) -> RepeatedCounts:
        """Turn every difference round."""
        return RepeatedCounts(counts=self.counts[::-1])

    def statistic(self, difference: float) -> float:
        """Compute the score statistic of "the true difference is `difference`", strictly between −1 and 1.

        Infinite where all items agree and `difference` is 0 or beyond what they allow.
        """
        n_items, seen = check_items(self.n_items), np.flatnonzero(self.counts)
        shares, distances = np.array(self.counts)[seen] / n_items, self._values[seen] - difference

        def slope(tilt: float) -> float:  # falls in the tilt; 0 where the mean is the hypothesis's
            return float(shares @ (distances / (1.0 + tilt * distances)))

        lowest, highest = -1.0 / (1.0 - difference), 1.0 / (1.0 + difference)
        low, high = (end * (1.0 - 1e-12) for end in (lowest, highest))
        if slope(high) > 0.0:
            tilt, end = highest, -1.0 - difference
        elif slope(low) < 0.0:
            tilt, end = lowest, 1.0 - difference
        else:
            tilt, end = float(scipy.optimize.brentq(slope, low, high, xtol=1e-14, rtol=1e-13)), 0.0
        fitted = np.divide(shares, 1.0 + tilt * distances)
        unseen = max(0.0, 1.0 - float(fitted.sum())) if end else 0.0
        variance = float(fitted @ distances**2) + unseen * end**2
        shift = float(shares @ distances)
        if variance <= 0.0:
            return math.copysign(math.inf, shift) if shift else 0.0
        return math.sqrt(n_items / variance) * shift

    def interval(self, *, confidence_level: float) -> ConfidenceInterval:
        """Compute the interval of differences that the score test does not reject."""
        z = normal_quantile(0.5 + check_confidence_level(confidence_level) / 2.0)

        def upper_limit(counts: RepeatedCounts) -> float:
            if counts.difference >= 1.0:
                return 1.0
            return bisect(lambda difference: counts.statistic(difference) <= -z, counts.difference, 1.0 - 1e-12)

        low, high = -upper_limit(self.swapped()), upper_limit(self)
        return ConfidenceInterval(low=low, high=high, confidence_level=confidence_level)


def is_mean_of(values: FloatArray, n_runs: int) -> bool:
    """Tell whether these may be means of `n_runs` answers, each 0 or 1."""
    if n_runs == 1:
        return bool(np.all((values == 0.0) | (values == 1.0)))
    places = values * n_runs
    return bool(np.all((np.abs(places - np.round(places)) <= _HAIR) & (places >= -_HAIR) & (places <= n_runs + _HAIR)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedTest:
    """Tests of "the difference is 0"."""

    loss: float
    """One-sided mid-p."""
    gain: float
    pvalue: float
    """Two-sided mid-p."""
    pvalue_exact: float


def repeated_test(counts: RepeatedCounts) -> RepeatedTest:
    """Test whether the difference is 0; all are 1 where no item changed.

    Each item's difference is taken to be as likely with the other sign: a sum of binomial variables, one for each size
    of a change. McNemar's test for K = 1. Where items are merely unstable the signs are not quite symmetric; the test
    is then right for many changes, as the score test is.

    Source: the sign-flip test (Fisher 1935; Romano 1990), whose distribution is counted out on the grid of 1/K.

    >>> result = repeated_test(RepeatedCounts(counts=(1, 13, 7)))
    >>> round(result.pvalue, 6), round(result.pvalue_exact, 6)
    (0.039062, 0.070312)
    """
    chances, seen, n_runs = np.ones(1), 0, counts.n_runs
    for size in range(1, n_runs + 1):
        gains, n_changed = counts.counts[n_runs + size], counts.counts[n_runs + size] + counts.counts[n_runs - size]
        part = np.zeros(size * n_changed + 1)
        part[::size] = scipy.stats.binom.pmf(np.arange(n_changed + 1), n_changed, 0.5)
        chances, seen = np.convolve(chances, part), seen + size * gains
    if chances.size == 1:
        return RepeatedTest(loss=1.0, gain=1.0, pvalue=1.0, pvalue_exact=1.0)
    observed, below, above = float(chances[seen]), float(chances[:seen].sum()), float(chances[seen + 1 :].sum())
    loss, gain = below + observed / 2.0, above + observed / 2.0
    exact = min(1.0, 2.0 * (min(below, above) + observed))
    return RepeatedTest(loss=loss, gain=gain, pvalue=min(1.0, 2.0 * min(loss, gain)), pvalue_exact=exact)

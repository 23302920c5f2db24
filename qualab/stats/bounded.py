"""The mean of bounded differences: tests and intervals that hold at any number of items or clusters.

Gaffke's bound (Gaffke 2005; Learned-Miller & Thomas 2020). Each unit (a cluster, or an item alone) has a random weight,
exponential with mean 1, and one more unit is added that fares as badly as any can: all of the largest cluster lost. The
p-value of "the mean is at most μ" is the probability that the weighted mean is at most μ. For units of equal size with
two possible values, one of them the worst, this is Clopper & Pearson's exact test; without a change in n items it is
(1 − margin)ⁿ. That it holds for every bounded distribution is a conjecture, borne out by every simulation so far.

The probability is found without random numbers: a sum of gamma variables, its transform inverted along a contour
through the saddlepoint, where the trapezoidal rule converges exponentially.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy

from qualab.errors import InvalidValue
from qualab.stats.checks import FloatArray, check_confidence_level, check_items, finite
from qualab.stats.distributions import normal_quantile
from qualab.stats.interval import ConfidenceInterval
from qualab.stats.mean import Labels, cluster_codes, cluster_sums

_MOST_VALUES = 2_000
"""Different values from which on they are put on a grid."""
_GRID = 1 / 512
_SMALLEST = 1e-300
_STEP = 0.15


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundedMean:
    """The mean of differences in −1..1, its units grouped by size and sum."""

    sizes: FloatArray
    """Items of a unit."""
    sums: FloatArray
    counts: FloatArray
    """Units of this size and sum; need not be whole."""

    @classmethod
    def of(cls, differences: npt.ArrayLike, *, cluster: Labels | None = None) -> BoundedMean:
        """Group the differences by cluster, and equal clusters together.

        >>> interval = BoundedMean.of([0.0] * 600).interval(confidence_level=0.9)
        >>> round(interval.high, 5)  # what 0 discordant of 600 items proves
        0.00498
        """
        values = finite(differences, name="Differences")
        check_items(values.size)
        if np.any(np.abs(values) > 1.0):
            raise InvalidValue("Differences must lie within −1 and 1", hint="Scale scores to 0..1 first.")
        codes = cluster_codes(cluster, values.size)
        sizes = np.bincount(codes).astype(np.float64)
        # rounded, so that neither order nor the last digit of a sum makes two values of one
        sums = np.round(cluster_sums(values, codes), 12)
        mean = cls(sizes=sizes, sums=sums, counts=np.ones(sizes.size))._unique()
        return mean if mean.sums.size <= _MOST_VALUES else mean._on_grid()._unique()

    @property
    def difference(self) -> float:
        return float(self.counts @ self.sums / (self.counts @ self.sizes))

    def pvalue_above(self, difference: float) -> float:
        """Compute the p-value of "the true mean is at most `difference`"."""
        worst = -float(self.sizes.max()) * (1.0 + difference)
        return gamma_sum_cdf(np.append(self.sums - self.sizes * difference, worst), np.append(self.counts, 1.0))

    def pvalue_below(self, difference: float) -> float:
        """Compute the p-value of "the true mean is at least `difference`"."""
        return self._negated().pvalue_above(-difference)

    def interval(self, *, confidence_level: float) -> ConfidenceInterval:
        alpha = (1.0 - check_confidence_level(confidence_level)) / 2.0
        return ConfidenceInterval(
            low=self._lowest(alpha), high=-self._negated()._lowest(alpha), confidence_level=confidence_level
        )

    def scaled(self, factor: float) -> BoundedMean:
        """Multiply the units, moved to a mean of 0: what more items may show without a difference."""
        return replace(self, sums=self.sums - self.sizes * self.difference, counts=self.counts * factor)

    def _negated(self) -> BoundedMean:
        return replace(self, sums=-self.sums)

    def _lowest(self, alpha: float) -> float:  # where `pvalue_above` is alpha
        high = float(np.max(self.sums / self.sizes))
        if high <= -1.0:
            return -1.0
        target = normal_quantile(alpha)

        def excess(difference: float) -> float:
            return normal_quantile(min(max(self.pvalue_above(difference), _SMALLEST), 1.0 - 1e-15)) - target

        return float(scipy.optimize.brentq(excess, -1.0, high, xtol=1e-12, rtol=1e-10))

    def _unique(self) -> BoundedMean:
        pairs, places = np.unique(self.sizes + 1j * self.sums, return_inverse=True)
        return BoundedMean(
            sizes=pairs.real, sums=pairs.imag, counts=np.bincount(places, self.counts).astype(np.float64)
        )

    def _on_grid(self) -> BoundedMean:
        # each mean is split between the two nearest points: the same mean and hardly more spread, so never narrower
        places = self.sums / self.sizes / _GRID
        below = np.floor(places)
        share = places - below
        return BoundedMean(
            sizes=np.tile(self.sizes, 2),
            sums=np.concatenate([below, np.minimum(below + 1.0, 1.0 / _GRID)]) * _GRID * np.tile(self.sizes, 2),
            counts=np.concatenate([self.counts * (1.0 - share), self.counts * share]),
        )


def bound_cost(*, n_clusters: float, variance: float, alpha: float) -> float:
    """Approximate how much farther than a score interval the bound reaches, for equal clusters (Cornish & Fisher).

    One more cluster is lost: that moves the limit by a cluster's share, adds to its variance, and makes it skew.

    Args:
        variance: of the mean difference.

    >>> round(bound_cost(n_clusters=488, variance=0.05 / 900, alpha=0.05), 4)
    0.0026
    """
    share, z = 1.0 / n_clusters, -normal_quantile(alpha)
    total = variance + share**2
    return share + z * (math.sqrt(total) - math.sqrt(variance)) + (z * z - 1.0) / 3.0 * share**3 / total


def gamma_sum_cdf(values: FloatArray, shapes: FloatArray) -> float:
    """Compute the probability that Σ values · Gamma(shapes) is at most 0, to about nine digits even in the tails."""
    counts = (values != 0.0) & (shapes > 0.0)
    values, shapes = values[counts], shapes[counts]
    if not np.any(values > 0.0):
        return 1.0
    if not np.any(values < 0.0):
        return 0.0
    values = values / np.max(np.abs(values))
    if shapes @ values < 0.0:
        return 1.0 - _lower_tail(-values, shapes)
    return _lower_tail(values, shapes)


def _lower_tail(values: FloatArray, shapes: FloatArray) -> float:
    # (1 / 2πi) ∫ exp(K(t)) / −t dt with K(t) = −Σ shapes log(1 − t values), between the nearest pole and 0, along the
    # hyperbola saddle + reach (bend (cosh u − 1) + i sinh u) that leaves the saddle on the path of steepest descent
    pole = 1.0 / float(np.min(values))

    def slope(t: float) -> float:
        return float(shapes @ (values / (1.0 - t * values))) - 1.0 / t

    # any contour between pole and 0 gives the same integral, so that the saddle may be rough
    saddle = float(scipy.optimize.brentq(slope, pole * (1.0 - 1e-12), pole * 1e-12, xtol=-pole * 1e-14, rtol=1e-6))
    ratios = values / (1.0 - saddle * values)
    second = float(shapes @ ratios**2) + saddle**-2
    third = 2.0 * float(shapes @ ratios**3) - 2.0 * saddle**-3
    reach = min(-saddle, saddle - pole)
    bend = min(max(third * reach / (3.0 * second), -1.0), 0.5)
    step = min(_STEP, 0.75 / (reach * math.sqrt(second)))
    height = -float(shapes @ np.log1p(-saddle * values)) - math.log(-saddle)
    total, start = 0.5 * reach, 1
    while True:
        u = step * np.arange(start, start + 16)
        t = saddle + reach * (bend * (np.cosh(u) - 1.0) + 1j * np.sinh(u))
        factors = 1.0 - np.multiply.outer(values, t)
        # NumPy's complex logarithm takes many times as long
        exponent = -(shapes @ np.log(np.abs(factors)) + 1j * (shapes @ np.angle(factors))) - np.log(-t) - height
        if np.any(exponent.real > 0.0):  # climbs again: straight up it never does
            bend, total, start = bend / 2.0 if abs(bend) > 0.1 else 0.0, 0.5 * reach, 1
            continue
        # dt / du, over i
        terms = np.real(np.exp(exponent) * (np.cosh(u) - 1j * bend * np.sinh(u))) * reach
        total += float(np.sum(terms))
        start += 16
        if abs(terms[-1]) <= 1e-13 * reach:
            return min(1.0, max(0.0, math.exp(height) * step / math.pi * total))

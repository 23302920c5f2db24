"""Paired bootstrap intervals for scores that are functions of sums over items, such as means and macro-F1."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qualab.errors import InsufficientData
from qualab.stats.checks import FloatArray, IntArray, check_confidence_level
from qualab.stats.distributions import normal_cdf, normal_quantile
from qualab.stats.interval import ConfidenceInterval
from qualab.stats.mean import Labels, cluster_codes, cluster_sums
from qualab.stats.resampling import Statistic, paired_features

_CELLS = 1 << 17
"""Counts of a block: there are to be blocks enough for two threads."""
_HEIGHT = 16
"""Resamples of a product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapResult:
    """A difference of scores, its bootstrap standard error and interval."""

    difference: float
    standard_error: float
    interval: ConfidenceInterval
    n_resamples: int


def paired_bootstraps(
    baseline: npt.ArrayLike,
    candidate: npt.ArrayLike,
    statistic: Statistic,
    *,
    cluster: Labels | None = None,
    strata: Labels | None = None,
    confidence_levels: Sequence[float],
    n_resamples: int,
    rng: np.random.Generator,
) -> tuple[BootstrapResult, ...]:
    """BCa bootstraps of candidate − baseline, one a confidence level, all from the same resamples (Efron 1987).

    An item is drawn with both its answers. Equal items are drawn as a group, so that a resample costs as much as there
    are distinct items.

    Args:
        baseline, candidate: items × features, for each arm; the score is a function of the features' totals.
        statistic: the score, from rows of totals.
        cluster: labels of items that are drawn together.
        strata: labels of items among which a resample keeps the numbers of items (or clusters), as a group's tasks.
        confidence_levels: of the intervals; an equivalence test at alpha takes 1 − 2 alpha.

    Raises:
        InsufficientData: there is no item, or no resample differs from another, as where no answer changed: an
            interval of no width would claim certainty.
        InvalidValue: features or labels cannot be.
    """
    for level in confidence_levels:
        check_confidence_level(level)
    before, after = paired_features(baseline, candidate)
    units = _Units.of(np.hstack([before, after]), cluster, strata)

    def gap(totals: FloatArray) -> FloatArray:
        return statistic(totals[:, before.shape[1] :]) - statistic(totals[:, : before.shape[1]])

    observed = float(gap(units.total[None, :])[0])
    values = np.sort(units.resampled(gap, n_resamples, rng))
    if values[-1] - values[0] <= 1e-12:
        raise InsufficientData(
            "No resample differs from another, so that there is no spread to estimate",
            hint="Count the items that changed instead: none of n bounds the share of changes.",
            difference=observed,
        )
    jackknife = units.jackknife(gap)

    def interval(confidence_level: float) -> ConfidenceInterval:
        tail = (1.0 - confidence_level) / 2.0
        low, high = np.quantile(values, _bca_levels([tail, 1.0 - tail], values, observed, jackknife, units.sizes))
        return ConfidenceInterval(low=float(low), high=float(high), confidence_level=confidence_level)

    error = float(values.std(ddof=1))
    return tuple(
        BootstrapResult(difference=observed, standard_error=error, interval=interval(level), n_resamples=n_resamples)
        for level in confidence_levels
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Units:
    """Distinct rows that are drawn, how often each occurs, and where the strata begin."""

    rows: FloatArray
    sizes: IntArray
    bounds: tuple[int, ...]
    """Row numbers at which strata begin, and the end."""

    @classmethod
    def of(cls, rows: FloatArray, cluster: Labels | None, strata: Labels | None) -> _Units:
        stratum = np.zeros(len(rows), dtype=np.int64) if strata is None else cluster_codes(strata, len(rows))
        if cluster is not None:
            codes = cluster_codes(stratum * len(rows) + cluster_codes(cluster, len(rows)), len(rows))
            first = np.unique(codes, return_index=True)[1]
            rows, stratum = cluster_sums(rows, codes), stratum[first]
        keyed, sizes = _distinct(np.column_stack([stratum, rows]))
        starts = np.unique(keyed[:, 0], return_index=True)[1]
        return cls(rows=keyed[:, 1:], sizes=sizes.astype(np.int64), bounds=(*starts.tolist(), len(keyed)))

    @property
    def total(self) -> FloatArray:
        return np.asarray(self.sizes @ self.rows, dtype=np.float64)

    def resampled(self, statistic: Statistic, n_resamples: int, rng: np.random.Generator) -> FloatArray:
        """The statistic of resamples.

        Blocks of them have their own generators, seeded from `rng`, and run on two threads; the result does not depend
        on the number of threads.
        """
        block = _HEIGHT * max(1, _CELLS // (_HEIGHT * len(self.rows)))
        starts = range(0, n_resamples, block)
        seeds = rng.integers(0, 2**63, size=len(starts)).tolist()

        def values(start: int, seed: int) -> FloatArray:
            size = min(block, n_resamples - start)
            counts = self._drawn(-(-size // _HEIGHT) * _HEIGHT, np.random.Generator(np.random.SFC64(seed)))
            # in slices so thin that the linear-algebra library starts no threads of its own
            totals = counts.reshape(-1, _HEIGHT, len(self.rows)) @ self.rows
            return statistic(totals.reshape(len(counts), -1)[:size])

        with ThreadPoolExecutor(max_workers=2) as pool:
            return np.concatenate(list(pool.map(values, starts, seeds)))

    def _drawn(self, n_resamples: int, rng: np.random.Generator) -> FloatArray:
        """How often each row is drawn, a row a resample."""
        counts = np.empty((n_resamples, len(self.rows)))
        for start, end in zip(self.bounds, self.bounds[1:], strict=False):
            sizes = self.sizes[start:end]
            counts[:, start:end] = rng.multinomial(int(sizes.sum()), sizes / sizes.sum(), size=n_resamples)
        return counts

    def jackknife(self, statistic: Statistic) -> FloatArray:
        """The statistic without one unit, for one unit of each distinct row."""
        return statistic(self.total - self.rows)


def _distinct(rows: FloatArray) -> tuple[FloatArray, IntArray]:
    """The distinct rows, ordered by their first column, and how often each occurs.

    Rows are told apart by one random sum each: sorting numbers is much faster than sorting rows.
    """
    generator = np.random.Generator(np.random.PCG64(20_240_301))
    keys = rows[:, 1:] @ generator.integers(1, 2**31, size=rows.shape[1] - 1).astype(np.float64)
    _, index, inverse, sizes = np.unique(
        rows[:, 0] + 1j * keys, return_index=True, return_inverse=True, return_counts=True
    )
    if np.array_equal(rows[index][inverse], rows):
        return rows[index], sizes.astype(np.int64)
    distinct, sizes = np.unique(rows, axis=0, return_counts=True)  # two rows with one sum: next to never
    return distinct, sizes.astype(np.int64)


def _bca_levels(
    levels: list[float], values: FloatArray, observed: float, jackknife: FloatArray, sizes: IntArray
) -> list[float]:
    """The quantiles that BCa takes instead (Efron 1987, equation 2.3); ties with the observed value count half."""
    below = np.count_nonzero(values < observed - 1e-12) + 0.5 * np.count_nonzero(np.abs(values - observed) <= 1e-12)
    share = min(1.0 - 0.5 / values.size, max(0.5 / values.size, below / values.size))
    bias = normal_quantile(share)
    influence = np.average(jackknife, weights=sizes) - jackknife
    cubes, squares = float(sizes @ influence**3), float(sizes @ influence**2)
    acceleration = cubes / (6.0 * squares**1.5) if squares > 0.0 else 0.0
    shifted = [bias + normal_quantile(level) for level in levels]
    return [normal_cdf(bias + z / (1.0 - acceleration * z)) for z in shifted]

"""p-values of a family, adjusted from the p-values alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from qualab.errors import InvalidValue
from qualab.stats.checks import FloatArray, finite, lattice
from qualab.stats.flips import patterns, signed_sums
from qualab.stats.mean import Labels, cluster_codes, cluster_sums


def holm(pvalues: Sequence[float] | npt.ArrayLike) -> FloatArray:
    """Step-down family-wise adjustment of Holm (1979), in the order given; valid under any dependence.

    Raises:
        InvalidValue: a p-value is outside 0..1.
    """
    p = _checked(pvalues)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    return _restored(steps, order)


def benjamini_hochberg(pvalues: Sequence[float] | npt.ArrayLike) -> FloatArray:
    """False-discovery-rate adjustment of Benjamini & Hochberg (1995), in the order given; for independent p-values.

    Raises:
        InvalidValue: a p-value is outside 0..1.
    """
    return _step_up(_checked(pvalues), scale=1.0)


def benjamini_yekutieli(pvalues: Sequence[float] | npt.ArrayLike) -> FloatArray:
    """False-discovery-rate adjustment of Benjamini & Yekutieli (2001), in the order given; valid under any dependence.

    Raises:
        InvalidValue: a p-value is outside 0..1.
    """
    p = _checked(pvalues)
    return _step_up(p, scale=float(np.sum(1.0 / np.arange(1, p.size + 1))))


def _step_up(p: FloatArray, *, scale: float) -> FloatArray:
    order = np.argsort(p, kind="stable")
    ratios = p[order] * scale * p.size / np.arange(1, p.size + 1)
    return _restored(np.minimum.accumulate(ratios[::-1])[::-1], order)


def _checked(pvalues: Sequence[float] | npt.ArrayLike) -> FloatArray:
    p = finite(pvalues, name="p-values")
    if p.ndim != 1 or np.any((p < 0.0) | (p > 1.0)):
        raise InvalidValue("A p-value must lie between 0 and 1", hint="Give a flat list of p-values.")
    return p


def _restored(sorted_values: FloatArray, order: npt.NDArray[np.intp]) -> FloatArray:
    adjusted = np.empty_like(sorted_values)
    adjusted[order] = np.minimum(1.0, sorted_values)
    return adjusted


_TIE = 1e-9


class Alternative(StrEnum):
    TWO_SIDED = "two-sided"
    LOSS = "loss"
    """The candidate is worse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxTResult:
    """One value a metric, in the order of the columns given."""

    statistics: FloatArray
    """Σ d / √(Σ d²), signed; 0 where no item changed."""
    pvalues_raw: FloatArray
    """Sign-flip p-value of the metric alone."""
    pvalues_single_step: FloatArray
    pvalues: FloatArray
    """Step-down adjusted: the ones to use."""
    n_resamples: int
    """Sign patterns drawn, or all of them where `is_exact`."""
    is_exact: bool


def max_t(
    differences: npt.ArrayLike,
    *,
    cluster: Labels | None = None,
    alternative: Alternative = Alternative.TWO_SIDED,
    is_midp: bool = True,
    n_resamples: int = 9_999,
    rng: np.random.Generator,
) -> MaxTResult:
    """Step-down max-T of Westfall & Young (1993, algorithm 2.8 with signs), the signs shared over all metrics.

    Args:
        differences: items × metrics, candidate − baseline; 0 where an item does not belong to a metric.
        cluster: labels of items whose signs flip together.
        alternative: two-sided, or losses alone.
        is_midp: whether resamples that tie with the observed count half, as in `sign_flip`, or whole.
        n_resamples: random sign patterns; all are gone through where at most 16 items (or clusters) changed.
        rng: source of the signs.

    Family-wise error is controlled strongly where signs are exchangeable under the null hypothesis. The p-values do not
    depend on the order of the items.

    Raises:
        InvalidValue: the differences are not a finite matrix, or the labels do not fit.
    """
    table = finite(differences, name="Differences")
    if table.ndim != 2:
        raise InvalidValue("Differences must be a matrix", hint="Give items × metrics, 0 where a metric has no item.")
    rows, slacks = _lattice_rows(table, cluster)
    groups = patterns(rows)
    scales = np.sqrt(np.maximum(1.0, groups.sizes @ groups.rows**2))
    totals = rows.sum(axis=0)
    observed = _oriented(totals, alternative) / scales
    tie = slacks / scales + _TIE * np.abs(observed)
    # without any change nothing is evidence: every resample then counts whole, and p is 1
    halves = rows.any(axis=0) & is_midp
    thresholds = observed - tie, np.where(halves, observed + tie, np.nextafter(observed - tie, -np.inf))
    flipped = _oriented(signed_sums(groups, n_resamples=n_resamples, rng=rng), alternative) / scales
    order = np.argsort(-observed, kind="stable")
    extra = 0 if groups.is_enumerable else 1
    exceeding = _exceeding(flipped, thresholds, order)
    raw, single, stepped = ((counts + extra) / (len(flipped) + extra) for counts in exceeding)
    stepped[order] = np.maximum.accumulate(stepped[order])
    return MaxTResult(
        statistics=totals / scales,
        pvalues_raw=raw,
        pvalues_single_step=single,
        pvalues=stepped,
        n_resamples=len(flipped),
        is_exact=groups.is_enumerable,
    )


def _lattice_rows(table: FloatArray, cluster: Labels | None) -> tuple[FloatArray, FloatArray]:
    """Whole-number rows of the items or clusters in which something changed, and each column's slack."""
    changed = table.any(axis=1)
    columns = [lattice(column) for column in table[changed].T]
    steps = np.column_stack([column.steps for column in columns]) if columns else table[changed]
    if cluster is not None:
        steps = cluster_sums(steps, cluster_codes(cluster, len(table))[changed])
    return steps, np.array([column.slack for column in columns])


def _oriented(sums: FloatArray, alternative: Alternative) -> FloatArray:
    return np.abs(sums) if alternative is Alternative.TWO_SIDED else -sums


def _exceeding(
    flipped: FloatArray, thresholds: tuple[FloatArray, FloatArray], order: npt.NDArray[np.intp]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """How many resamples are as extreme: in the metric itself, in the largest of all, in the largest not above it.

    Between the two thresholds a resample ties with the observed, and counts half.
    """
    least, most = thresholds
    raw, single, stepped = (np.zeros(least.size) for _ in range(3))

    def beyond(values: FloatArray, metric: int) -> float:
        return (np.count_nonzero(values >= least[metric]) + np.count_nonzero(values > most[metric])) / 2.0

    columns = np.ascontiguousarray(flipped.T)
    largest = np.full(len(flipped), -np.inf)
    for metric in order[::-1]:
        raw[metric] = beyond(columns[metric], metric)
        np.maximum(largest, columns[metric], out=largest)
        stepped[metric] = beyond(largest, metric)
    largest.sort()
    below = np.searchsorted(largest, least) + np.searchsorted(largest, most, side="right")
    single[:] = len(largest) - below / 2.0
    return raw, single, stepped

"""Mean paired differences of scores on any scale, with items in clusters or on their own.

Items that share a passage, a prompt or a word, and repeats of one item, are one cluster: naive tests on such items
reject far too often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.checks import (
    FloatArray,
    IntArray,
    check_alpha,
    check_confidence_level,
    check_items,
    check_margin,
    finite,
)
from qualab.stats.interval import ConfidenceInterval

Labels = Sequence[object] | npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanDifference:
    """A mean paired difference with its standard error."""

    n_items: int
    n_clusters: int
    difference: float
    standard_error: float
    """CR2; the usual one of a mean where every item is its own cluster."""
    degrees_of_freedom: float
    """Satterthwaite's; items − 1 where every item is its own cluster."""
    statistic: float
    pvalue: float
    """Two-sided t-test."""
    interval: ConfidenceInterval
    standard_error_items: float
    """As if items were independent."""

    @property
    def design_effect(self) -> float:
        """Variance over that of independent items."""
        return (self.standard_error / self.standard_error_items) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanEquivalence:
    """Two one-sided t-tests of a mean paired difference at ±margin."""

    margin: float
    alpha: float
    pvalue_lower: float
    pvalue_upper: float
    pvalue: float
    """The larger of the two."""
    interval: ConfidenceInterval
    """At 1 − 2 alpha: inside ±margin exactly when `pvalue` <= alpha."""
    is_equivalent: bool


def paired_differences(baseline: npt.ArrayLike, candidate: npt.ArrayLike) -> FloatArray:
    """Candidate − baseline, item by item.

    Raises:
        InvalidValue: the arms differ in length, are not one-dimensional, or hold NaN or infinite scores.
    """
    before, after = finite(baseline, name="Baseline scores"), finite(candidate, name="Candidate scores")
    if before.ndim != 1 or before.shape != after.shape:
        raise InvalidValue(
            f"The arms are not paired: {before.size} baseline and {after.size} candidate scores",
            hint="Give one score an item and arm, in the same order of items.",
        )
    return after - before


def cluster_codes(cluster: Labels | None, n_items: int) -> IntArray:
    """Cluster labels as 0, 1, ..., one an item; every item its own cluster where there are no labels.

    Raises:
        InvalidValue: there is not one label an item.
    """
    if cluster is None:
        return np.arange(n_items, dtype=np.int64)
    if len(cluster) != n_items:
        raise InvalidValue(
            f"{len(cluster)} cluster labels do not fit {n_items} items", hint="Give one cluster label an item."
        )
    if isinstance(cluster, np.ndarray) and cluster.ndim == 1 and cluster.dtype.kind in "iu":
        return _codes_of_integers(cluster)
    labels = cluster.tolist() if isinstance(cluster, np.ndarray) else cluster
    known = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    return np.fromiter(map(known.__getitem__, labels), dtype=np.int64, count=n_items)


def _codes_of_integers(labels: npt.NDArray[Any]) -> IntArray:
    """As `cluster_codes`, in the order of first appearance as well."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    ranks = np.empty(first.size, dtype=np.int64)
    ranks[np.argsort(first)] = np.arange(first.size)
    return ranks[inverse]


def cluster_sums(values: FloatArray, codes: IntArray) -> FloatArray:
    """Sums of the values (or of each column) within each cluster, the same whatever the order of the items."""
    n_clusters = int(codes.max()) + 1 if codes.size else 0
    if values.ndim == 2:
        columns = [cluster_sums(column, codes) for column in values.T]
        return np.column_stack(columns) if columns else np.zeros((n_clusters, 0))
    order = np.argsort(values, kind="stable")
    return np.asarray(np.bincount(codes[order], weights=values[order], minlength=n_clusters), dtype=np.float64)


def mean_difference(
    differences: npt.ArrayLike, *, cluster: Labels | None = None, confidence_level: float = 0.95
) -> MeanDifference:
    """Mean of paired differences, its CR2 standard error and t-test with Satterthwaite's degrees of freedom.

    CR2 and its degrees of freedom as in Bell & McCaffrey (2002) and Pustejovsky & Tipton (2018), for the mean
    alone, where they have closed forms. Without clusters this is the paired t-test.

    Raises:
        InsufficientData: fewer than two clusters, or all cluster means equal, so that no spread can be estimated.
        InvalidValue: differences are not a flat list of finite numbers, or labels do not fit.
    """
    values = _flat(differences)
    codes = cluster_codes(cluster, values.size)
    sizes = np.bincount(codes).astype(np.float64)
    check_items(values.size)
    if sizes.size < 2:
        raise InsufficientData(
            "A standard error needs at least two clusters", hint="Add items of other clusters.", n_clusters=sizes.size
        )
    mean = math.fsum(values) / values.size
    error = math.sqrt(_cr2_variance(cluster_sums(values - mean, codes), sizes))
    if error <= 1e-12 * max(1.0, abs(mean)):
        raise InsufficientData(
            "All differences are equal, so that their spread cannot be estimated",
            hint="Count gains and losses, or use a sign-flip test: equal differences are no proof of certainty.",
            difference=mean,
        )
    degrees = _satterthwaite(sizes)
    statistic = mean / error
    half = error * _t_quantile(0.5 + check_confidence_level(confidence_level) / 2.0, degrees)
    return MeanDifference(
        n_items=values.size,
        n_clusters=sizes.size,
        difference=mean,
        standard_error=error,
        degrees_of_freedom=degrees,
        statistic=statistic,
        pvalue=2.0 * _t_sf(abs(statistic), degrees),
        interval=ConfidenceInterval(low=mean - half, high=mean + half, confidence_level=confidence_level),
        standard_error_items=math.sqrt(math.fsum((values - mean) ** 2) / (values.size * (values.size - 1))),
    )


def mean_equivalence(
    differences: npt.ArrayLike, *, margin: float, alpha: float = 0.05, cluster: Labels | None = None
) -> MeanEquivalence:
    """Two one-sided t-tests (Schuirmann 1987) of the mean paired difference, with CR2 errors where items are clustered.

    Raises:
        InsufficientData: as `mean_difference`.
        InvalidValue: the margin is not between 0 and 1, alpha not between 0 and 0.5, or the data cannot be.
    """
    check_margin(margin)
    result = mean_difference(differences, cluster=cluster, confidence_level=1.0 - 2.0 * check_alpha(alpha))
    lower = _t_sf((result.difference + margin) / result.standard_error, result.degrees_of_freedom)
    upper = _t_sf((margin - result.difference) / result.standard_error, result.degrees_of_freedom)
    return MeanEquivalence(
        margin=margin,
        alpha=alpha,
        pvalue_lower=lower,
        pvalue_upper=upper,
        pvalue=max(lower, upper),
        interval=result.interval,
        is_equivalent=max(lower, upper) <= alpha,
    )


def _flat(differences: npt.ArrayLike) -> FloatArray:
    values = finite(differences, name="Differences")
    if values.ndim != 1:
        raise InvalidValue("Differences must be a flat list", hint="Give one difference an item.")
    return values


def _cr2_variance(residual_sums: FloatArray, sizes: FloatArray) -> float:
    n_items = sizes.sum()
    return math.fsum(residual_sums**2 / (1.0 - sizes / n_items)) / float(n_items) ** 2


def _satterthwaite(sizes: FloatArray) -> float:
    """(tr Ω)² / tr Ω² of the quadratic form behind the CR2 variance when items are independent."""
    sizes = np.sort(sizes)  # so that the order of clusters does not show in the last digit
    n_items = sizes.sum()
    off = sizes**2 / (1.0 - sizes / n_items)
    squares = np.sum(sizes**2) + (off.sum() ** 2 - np.sum(off**2)) / n_items**2
    return float(n_items**2 / squares)


def _t_sf(t: float, degrees: float) -> float:
    return float(scipy.special.stdtr(degrees, -t))


def _t_quantile(probability: float, degrees: float) -> float:
    return float(scipy.special.stdtrit(degrees, probability))

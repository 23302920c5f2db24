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
from qualab.stats.checks import FloatArray, IntArray, check_confidence_level, check_items, finite
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
    standard_error_items: float
    """Standard error if items were independent."""

    @property
    def pvalue(self) -> float:
        return 2.0 * float(scipy.special.stdtr(self.degrees_of_freedom, -abs(self.difference / self.standard_error)))

    @property
    def design_effect(self) -> float:
        return (self.standard_error / self.standard_error_items) ** 2

    def pvalue_above(self, difference: float) -> float:
        """Compute the one-sided p-value of "the true mean is at most `difference`"."""
        t = (self.difference - difference) / self.standard_error
        return float(scipy.special.stdtr(self.degrees_of_freedom, -t))

    def pvalue_below(self, difference: float) -> float:
        """Compute the one-sided p-value of "the true mean is at least `difference`"."""
        t = (difference - self.difference) / self.standard_error
        return float(scipy.special.stdtr(self.degrees_of_freedom, -t))

    def interval(self, *, confidence_level: float) -> ConfidenceInterval:
        quantile = scipy.special.stdtrit(self.degrees_of_freedom, 0.5 + check_confidence_level(confidence_level) / 2.0)
        half = self.standard_error * float(quantile)
        return ConfidenceInterval(
            low=self.difference - half, high=self.difference + half, confidence_level=confidence_level
        )


def cluster_codes(cluster: Labels | None, n_items: int) -> IntArray:
    """Number cluster labels from 0 in order of appearance; without labels every item is its own cluster."""
    if cluster is None:
        return np.arange(n_items, dtype=np.int64)
    if len(cluster) != n_items:
        raise InvalidValue(f"{len(cluster)} cluster labels do not fit {n_items} items", hint="Give one label an item.")
    if isinstance(cluster, np.ndarray) and cluster.ndim == 1 and cluster.dtype.kind in "iu":
        _, first, inverse = np.unique(cluster, return_index=True, return_inverse=True)
        ranks = np.empty(first.size, dtype=np.int64)
        ranks[np.argsort(first)] = np.arange(first.size)
        return ranks[inverse]
    labels = cluster.tolist() if isinstance(cluster, np.ndarray) else cluster
    known = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    return np.fromiter(map(known.__getitem__, labels), dtype=np.int64, count=n_items)


def cluster_sums(values: FloatArray, codes: IntArray) -> FloatArray:
    """Add up the values (or each column) within each cluster, the same whatever the order of the items."""
    n_clusters = int(codes.max()) + 1 if codes.size else 0
    if values.ndim == 2:
        columns = [cluster_sums(column, codes) for column in values.T]
        return np.column_stack(columns) if columns else np.zeros((n_clusters, 0))
    order = np.argsort(values, kind="stable")
    return np.asarray(np.bincount(codes[order], weights=values[order], minlength=n_clusters), dtype=np.float64)


def mean_difference(differences: npt.ArrayLike, *, cluster: Labels | None = None) -> MeanDifference:
    """Estimate the mean of paired differences with its CR2 standard error and Satterthwaite's degrees of freedom.

    Without clusters these give the paired t-test. InsufficientData where no spread can be estimated: fewer than two
    clusters, or all cluster means equal.

    Source: Bell & McCaffrey (2002); Pustejovsky & Tipton (2018).

    >>> mean = mean_difference([0.1, 0.3, -0.2, 0.2], cluster=["a", "a", "b", "c"])
    >>> round(mean.difference, 3), round(mean.standard_error, 3), round(mean.degrees_of_freedom, 2)
    (0.1, 0.115, 1.8)
    """
    values = finite(differences, name="Differences")
    n_items = check_items(values.size)
    codes = cluster_codes(cluster, n_items)
    sizes = np.bincount(codes).astype(np.float64)
    if sizes.size < 2:
        raise InsufficientData("A standard error needs at least two clusters", hint="Add items of other clusters.")
    mean = math.fsum(values) / n_items
    sums = cluster_sums(values - mean, codes)
    error = math.sqrt(math.fsum(sums**2 / (1.0 - sizes / n_items)) / float(n_items) ** 2)
    if error <= 1e-12 * max(1.0, abs(mean)):
        raise InsufficientData(
            "All differences are equal, so that their spread cannot be estimated",
            hint="Count gains and losses, or use a sign-flip test: equal differences are no proof of certainty.",
        )
    # (tr Ω)² / tr Ω² of the quadratic form behind the CR2 variance when items are independent
    ordered = np.sort(sizes)  # so that the order of clusters does not show in the last digit
    parts = ordered**2 / (1.0 - ordered / n_items)
    squares = np.sum(ordered**2) + (parts.sum() ** 2 - np.sum(parts**2)) / n_items**2
    return MeanDifference(
        n_items=n_items,
        n_clusters=sizes.size,
        difference=mean,
        standard_error=error,
        degrees_of_freedom=float(n_items**2 / squares),
        standard_error_items=math.sqrt(math.fsum((values - mean) ** 2) / (n_items * (n_items - 1))),
    )

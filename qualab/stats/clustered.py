"""Paired 0/1 outcomes of items in clusters: McNemar's test and equivalence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qualab.errors import InsufficientData
from qualab.stats.bounded import BoundedMean
from qualab.stats.checks import FloatArray, check_alpha, check_margin, finite, zeros_and_ones
from qualab.stats.distributions import chi_square_sf, normal_sf
from qualab.stats.interval import ConfidenceInterval, score_interval, score_statistic
from qualab.stats.mean import Labels, MeanDifference, cluster_codes, mean_difference


def clustered_mcnemar(cells: npt.ArrayLike) -> tuple[float, float]:
    """Test "gains and losses are equally likely" with items in clusters (Yang, Sun & Hardin 2010).

    Args:
        cells: as of `cluster_cells`.

    Returns:
        Chi-square with one degree of freedom, and its p-value; 0 and 1 without a discordant item.
    """
    table = finite(cells, name="Cells", ndim=2)
    if len(table) < 2:
        raise InsufficientData("A clustered test needs at least two clusters", hint="Add items of other clusters.")
    sizes, gaps = table.sum(axis=1), table[:, 1] - table[:, 2]
    centred = gaps - sizes * gaps.sum() / sizes.sum()
    # the mean of the variances under the null hypothesis and at the estimate
    variance = float(len(gaps) / (len(gaps) - 1) * 0.5 * np.sum(centred**2 + gaps**2))
    statistic = float(gaps.sum() ** 2 / variance) if variance > 0.0 else 0.0
    return statistic, chi_square_sf(statistic)


def cluster_cells(baseline: npt.ArrayLike, candidate: npt.ArrayLike, *, cluster: Labels) -> FloatArray:
    """Count both right, gains, losses and both wrong, a row for each cluster in the order of first appearance.

    >>> cluster_cells([1, 1, 0], [1, 0, 1], cluster=["x", "x", "y"]).tolist()
    [[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
    """
    before, after = zeros_and_ones(baseline, candidate)
    codes = cluster_codes(cluster, before.size)
    kinds = np.where(after > before, 1, np.where(after < before, 2, np.where(before == 1, 0, 3)))
    n_clusters = int(codes.max()) + 1 if codes.size else 0
    return np.bincount(codes * 4 + kinds, minlength=4 * n_clusters).reshape(n_clusters, 4).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteredEquivalence:
    """Two one-sided tests at ±margin of clustered 0/1 outcomes: by estimated spread, and a bound that has to agree."""

    design_effect: float
    pvalue_lower: float
    """The larger of the score test at the effective items and CR2's t-test."""
    pvalue_upper: float
    pvalue_bounded_lower: float
    """p-value of `BoundedMean`, which takes no estimate of the spread."""
    pvalue_bounded_upper: float
    interval: ConfidenceInterval
    """At 1 − 2 alpha, the farthest limits of the three: inside ±margin exactly when all p-values are <= alpha."""
    is_equivalent: bool


def clustered_equivalence(
    baseline: npt.ArrayLike, candidate: npt.ArrayLike, *, cluster: Labels, margin: float, alpha: float = 0.05
) -> ClusteredEquivalence:
    """Test whether clustered 0/1 outcomes differ by less than the margin; three methods have to agree.

    Score tests on counts over the design effect are right where few answers changed, CR2 with t where there are few
    clusters; Gaffke's bound holds where a few clusters, perhaps none of those seen, carry the loss.
    """
    check_margin(margin)
    level = 1.0 - 2.0 * check_alpha(alpha)
    before, after = zeros_and_ones(baseline, candidate)
    bounded = BoundedMean.of(after - before, cluster=cluster)
    table = cluster_cells(before, after, cluster=cluster)
    try:
        spread = mean_difference(after - before, cluster=cluster)
    except InsufficientData:
        spread = None
    effect = design_effect(table, spread)
    n_items, gains, losses = (float(count) / effect for count in (table.sum(), table[:, 1].sum(), table[:, 2].sum()))
    lower = [normal_sf(score_statistic(gains, losses, n_items=n_items, difference=-margin))]
    upper = [normal_sf(score_statistic(losses, gains, n_items=n_items, difference=-margin))]
    intervals = [
        score_interval(gains, losses, n_items=n_items, confidence_level=level),
        bounded.interval(confidence_level=level),
    ]
    if spread:
        lower, upper = [*lower, spread.pvalue_above(-margin)], [*upper, spread.pvalue_below(margin)]
        intervals.append(spread.interval(confidence_level=level))
    bounded_lower, bounded_upper = bounded.pvalue_above(-margin), bounded.pvalue_below(margin)
    return ClusteredEquivalence(
        design_effect=effect,
        pvalue_lower=max(lower),
        pvalue_upper=max(upper),
        pvalue_bounded_lower=bounded_lower,
        pvalue_bounded_upper=bounded_upper,
        interval=ConfidenceInterval(
            low=min(part.low for part in intervals), high=max(part.high for part in intervals), confidence_level=level
        ),
        is_equivalent=max(*lower, *upper, bounded_lower, bounded_upper) <= alpha,
    )


def design_effect(cells: FloatArray, spread: MeanDifference | None) -> float:
    """Compute what clusters divide counts by, at least 1 (Rao & Scott 1992).

    Where fewer than two clusters hold a discordant item, the spread over clusters is unknown, and a cluster counts as
    one item: Σ size² / Σ size, the largest effect that clusters can have.
    """
    if spread is None or np.sum(cells[:, 1] + cells[:, 2] > 0) < 2:
        sizes = cells.sum(axis=1)
        return float(np.sum(sizes**2) / sizes.sum())
    return max(1.0, spread.design_effect)

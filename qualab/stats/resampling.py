"""Tests by changing signs and swapping answers: valid where the two arms are exchangeable, whatever the score.

Sign flips test differences of means; swaps test any score that is a function of sums over items, such as macro-F1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy

from qualab.errors import InvalidValue
from qualab.stats.checks import FloatArray, IntArray, check_items, finite, lattice
from qualab.stats.flips import patterns, signed_sums
from qualab.stats.mean import Labels, cluster_codes, cluster_sums
from qualab.stats.multiplicity import Alternative

Statistic = Callable[[FloatArray], FloatArray]
"""From rows of totals over items to one score a row."""

_MOST_WORK = 1 << 20
"""Sums that an exact distribution may go through."""
_TIE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class ResamplingResult:
    """A difference and the share of sign patterns or swaps that are at least as extreme."""

    difference: float
    pvalue: float
    """Mid-p: patterns as extreme as the observed count half. The one to show."""
    pvalue_whole: float
    """The same with ties counted whole: never liberal, rather conservative."""
    is_exact: bool
    """Every pattern was counted; else `n_resamples` random ones, and the observed one itself."""
    n_resamples: int
    """Random patterns drawn; 0 where the p-value is exact."""


def sign_flip(
    differences: npt.ArrayLike,
    *,
    cluster: Labels | None = None,
    alternative: Alternative = Alternative.TWO_SIDED,
    n_resamples: int = 9_999,
    rng: np.random.Generator,
) -> ResamplingResult:
    """Sign-flip test of a mean paired difference (Fisher 1935), all items of a cluster flipping together.

    The distribution over all sign patterns is computed exactly where the differences sit on a lattice of few enough
    points, which 0/1 scores and small fractions do; else random patterns are drawn. Ties count half (mid-p), so that
    independent 0/1 scores give `mcnemar`'s p-value. Sums are compared as whole numbers, whatever the order of items.
    Without a difference anywhere p is 1.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: differences are not a flat list of finite numbers, or the labels do not fit.
    """
    values = finite(differences, name="Differences")
    if values.ndim != 1:
        raise InvalidValue("Differences must be a flat list", hint="Give one difference an item.")
    check_items(values.size)
    on_lattice = lattice(values)
    steps = on_lattice.steps if cluster is None else cluster_sums(on_lattice.steps, cluster_codes(cluster, values.size))
    total = float(steps.sum())
    observed = float(_extremity(np.array([total]), alternative)[0])
    difference = total * on_lattice.unit / values.size
    if not steps.any():
        return ResamplingResult(difference=difference, pvalue=1.0, pvalue_whole=1.0, is_exact=True, n_resamples=0)
    found = _exact_sums(steps)
    if found is not None:
        support, weights = found
        return _exact(difference, _extremity(support, alternative), observed, on_lattice.slack, weights)
    sums = signed_sums(patterns(steps[:, None]), n_resamples=n_resamples, rng=rng)[:, 0]
    return _drawn(difference, _extremity(sums, alternative), observed, on_lattice.slack)


def _exact(
    difference: float, extremities: FloatArray, observed: float, slack: float, weights: FloatArray
) -> ResamplingResult:
    """From all patterns; `weights` are their probabilities, and what is within `slack` of the observed ties with it."""
    whole = min(1.0, float(weights[extremities >= observed - slack].sum()))
    beyond = float(weights[extremities > observed + slack].sum())
    return ResamplingResult(
        difference=difference, pvalue=(whole + beyond) / 2.0, pvalue_whole=whole, is_exact=True, n_resamples=0
    )


def _drawn(difference: float, extremities: FloatArray, observed: float, slack: float) -> ResamplingResult:
    """From random patterns and the observed one, which counts whole."""
    n_whole = np.count_nonzero(extremities >= observed - slack)
    n_beyond = np.count_nonzero(extremities > observed + slack)
    n_all = extremities.size + 1
    return ResamplingResult(
        difference=difference,
        pvalue=((n_whole + n_beyond) / 2.0 + 1.0) / n_all,
        pvalue_whole=(n_whole + 1.0) / n_all,
        is_exact=False,
        n_resamples=extremities.size,
    )


def _extremity(sums: FloatArray, alternative: Alternative) -> FloatArray:
    return np.abs(sums) if alternative is Alternative.TWO_SIDED else -sums


def _exact_sums(steps: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """The sums over all sign patterns with their probabilities; None where there are too many."""
    sizes, counts = np.unique(np.abs(steps[steps != 0.0]), return_counts=True)
    if _work(sizes, counts) > _MOST_WORK:
        return None
    support, weights = np.zeros(1), np.ones(1)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        ups = np.arange(count + 1)
        chances = np.exp(_log_choose(count, ups) - count * np.log(2.0))
        support, inverse = np.unique(np.add.outer(support, size * (2.0 * ups - count)), return_inverse=True)
        products = np.multiply.outer(weights, chances).ravel()
        weights = np.asarray(np.bincount(inverse.ravel(), weights=products), dtype=np.float64)
    return support, weights


def _work(sizes: FloatArray, counts: IntArray) -> float:
    """At most how many sums arise on the way: each distinct size multiplies them, up to the points of the lattice."""
    work, n_sums, reach = 0.0, 1.0, 0.0
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        work += n_sums * (count + 1)
        reach += size * count
        n_sums = min(n_sums * (count + 1), reach + 1.0)
    return work


def _log_choose(n: int, k: npt.NDArray[np.int64]) -> FloatArray:
    gammaln = scipy.special.gammaln
    return np.asarray(gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0), dtype=np.float64)


def global_sign_flip(
    differences: npt.ArrayLike,
    *,
    n_items: npt.ArrayLike,
    cluster: Labels | None = None,
    alternative: Alternative = Alternative.TWO_SIDED,
    n_resamples: int = 9_999,
    rng: np.random.Generator,
) -> ResamplingResult:
    """Sign-flip test of the mean, over all metrics, of their mean differences: it sees a small loss everywhere.

    Args:
        differences: items × metrics, candidate − baseline; 0 where an item does not belong to a metric.
        n_items: items of each metric.
        cluster, alternative, n_resamples, rng: as in `sign_flip`.

    Raises:
        InvalidValue: the matrix or the numbers of items cannot be.
    """
    table, sizes = finite(differences, name="Differences"), finite(n_items, name="Numbers of items")
    if table.ndim != 2 or sizes.shape != table.shape[1:] or np.any(sizes < 1):
        raise InvalidValue("Each metric needs its number of items", hint="Give items × metrics, a number a metric.")
    contributions = np.sort(table / sizes, axis=1).sum(axis=1)
    found = sign_flip(contributions, cluster=cluster, alternative=alternative, n_resamples=n_resamples, rng=rng)
    return replace(found, difference=found.difference * len(table) / sizes.size)


def swap_test(
    baseline: npt.ArrayLike,
    candidate: npt.ArrayLike,
    statistic: Statistic,
    *,
    cluster: Labels | None = None,
    n_resamples: int = 9_999,
    rng: np.random.Generator,
) -> ResamplingResult:
    """Approximate randomisation (Noreen 1989): swap an item's two answers, compare the arms' scores, two-sided.

    Args:
        baseline, candidate: items × features, for each arm; the score is a function of the features' totals.
        statistic: the score, from rows of totals.
        cluster: labels of items that are swapped together.
        n_resamples: random swaps; all are gone through where at most 16 items (or clusters) differ.
        rng: source of the swaps.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: the features are not two finite matrices of one shape, or the labels do not fit.
    """
    before, after = paired_features(baseline, candidate)
    changes = [lattice(column) for column in (after - before).T]
    steps = np.column_stack([change.steps for change in changes])
    if cluster is not None:
        steps = cluster_sums(steps, cluster_codes(cluster, len(steps)))
    units = np.array([change.unit for change in changes])
    middle = (before.sum(axis=0) + after.sum(axis=0)) / 2.0

    def gap(sums: FloatArray) -> FloatArray:
        half = sums * units / 2.0
        return statistic(middle + half) - statistic(middle - half)

    observed = float(gap(steps.sum(axis=0)[None, :])[0])
    groups = patterns(steps)
    if not groups.n_rows:
        return ResamplingResult(difference=observed, pvalue=1.0, pvalue_whole=1.0, is_exact=True, n_resamples=0)
    gaps = np.abs(gap(signed_sums(groups, n_resamples=n_resamples, rng=rng)))
    if groups.is_enumerable:
        return _exact(observed, gaps, abs(observed), _TIE, np.full(gaps.size, 1.0 / gaps.size))
    return _drawn(observed, gaps, abs(observed), _TIE)


def paired_features(baseline: npt.ArrayLike, candidate: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Both arms' features, items × features, checked.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: they are not two finite matrices of one shape.
    """
    before, after = finite(baseline, name="Baseline features"), finite(candidate, name="Candidate features")
    if before.ndim != 2 or before.shape != after.shape:
        raise InvalidValue("The arms are not paired", hint="Give items × features for each arm, in the same order.")
    check_items(len(before))
    return before, after

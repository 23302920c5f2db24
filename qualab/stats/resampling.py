"""Tests by changing signs and swapping answers: valid where the two arms are exchangeable, whatever the score.

Sign flips test differences of means, of one metric or of many at once; swaps test any score that is a function of sums
over items, such as macro-F1. All of them sum rows under random signs. Rows that are equal up to sign are exchangeable,
so a group of g of them needs no g signs but the number of positive ones, which is the number of ones in g random bits.
Rows are put into a canonical order first: the same rows and generator give the same sums in whatever order items came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from qualab.errors import InvalidValue
from qualab.stats.checks import FloatArray, IntArray, check_items, finite
from qualab.stats.mean import Labels, cluster_codes, cluster_sums

_MOST_DISTINCT = 512
_LARGEST_DENOMINATOR = 1_000
_LARGEST_SUM = 2.0**52


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """Values as whole multiples of a unit."""

    steps: FloatArray
    """Whole numbers, held as floats; the sum of their absolute values is below 2**52."""
    unit: float
    slack: float
    """Sums that differ by at most this many steps are equal: 0 where the values are exact multiples."""


def lattice(values: FloatArray) -> Lattice:
    """The values on the coarsest lattice of fractions that holds them, else rounded to a very fine one."""
    size = float(np.sum(np.abs(values)))
    denominator = _common_denominator(values)
    if denominator is not None and size * denominator < _LARGEST_SUM:
        return Lattice(steps=np.rint(values * denominator), unit=1.0 / denominator, slack=0.0)
    scale = 2.0 ** math.floor(math.log2(_LARGEST_SUM / (size + values.size)))
    return Lattice(steps=np.rint(values * scale), unit=1.0 / scale, slack=float(np.count_nonzero(values)))


def _common_denominator(values: FloatArray) -> int | None:
    if np.array_equal(values, np.rint(values)):
        return 1
    distinct = np.unique(np.abs(values))
    if distinct.size > _MOST_DISTINCT:
        return None
    fractions = [Fraction(value).limit_denominator(_LARGEST_DENOMINATOR) for value in distinct.tolist()]
    if any(abs(float(part) - value) > 1e-12 for part, value in zip(fractions, distinct.tolist(), strict=True)):
        return None
    return math.lcm(*(part.denominator for part in fractions))


Bytes = npt.NDArray[np.uint8]

_MOST_ENUMERATED = 16
"""Up to 2**16 sign patterns are enumerated."""
_GROUPED_FROM = 8
"""Groups at least this large are counted, smaller ones flipped row by row."""
_CELLS = 1 << 18
"""Signs of a block, so that a block stays in cache."""
_HEIGHT, _WIDTH = 64, 120
"""Resamples and rows of a tile of the product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns:
    """Distinct nonzero rows, up to sign, in canonical order."""

    rows: FloatArray
    sizes: IntArray

    @property
    def n_rows(self) -> int:
        """Rows that are not zero."""
        return int(self.sizes.sum())

    @property
    def is_enumerable(self) -> bool:
        """Whether all sign patterns are few enough to go through."""
        return self.n_rows <= _MOST_ENUMERATED


def patterns(rows: FloatArray) -> Patterns:
    """Group rows of whole numbers that are equal up to sign; rows of zeros are left out."""
    kept = rows[np.any(rows != 0.0, axis=1)]
    if not len(kept):
        return Patterns(rows=kept, sizes=np.zeros(0, dtype=np.int64))
    first = kept[np.arange(len(kept)), np.argmax(kept != 0.0, axis=1)]
    kept = kept * np.sign(first)[:, None]
    _, index, inverse, sizes = np.unique(_hashes(kept), return_index=True, return_inverse=True, return_counts=True)
    if np.array_equal(kept[index][inverse], kept):
        return Patterns(rows=kept[index], sizes=sizes.astype(np.int64))
    distinct, sizes = np.unique(kept, axis=0, return_counts=True)  # two rows with one hash: next to never
    return Patterns(rows=distinct, sizes=sizes.astype(np.int64))


def _hashes(rows: FloatArray) -> npt.NDArray[np.uint64]:
    """A 64-bit number a row: the bits of every entry times an odd constant of its column, added up modulo 2**64."""
    generator = np.random.Generator(np.random.PCG64(20_240_229))
    constants = [int(constant) for constant in generator.integers(1, 2**63, size=(rows.shape[1],))]
    total = np.zeros(len(rows), dtype=np.uint64)
    for number, constant in enumerate(constants):
        bits = rows[:, number].astype(np.int64).view(np.uint64) * np.uint64(constant | 1)
        total += bits ^ (bits >> np.uint64(31))
    return total


def signed_sums(groups: Patterns, *, n_resamples: int, rng: np.random.Generator) -> FloatArray:
    """Sums of all rows under random signs, one row a resample.

    Where there are at most 16 nonzero rows, every sign pattern is given once instead. Blocks of resamples have
    their own generators, seeded from `rng`, and run on two threads; the result does not depend on the number of
    threads.
    """
    if groups.is_enumerable:
        return _Single.of(groups.rows, groups.sizes).sums(_all_bits(groups.n_rows))
    small = groups.sizes < _GROUPED_FROM
    parts = [kind.of(groups.rows[some], groups.sizes[some]) for kind, some in ((_Single, small), (_Counted, ~small))]
    parts = [part for part in parts if part.width]
    block = _HEIGHT * max(1, _CELLS // (_HEIGHT * max(part.width for part in parts)))
    sums = np.empty((n_resamples, groups.rows.shape[1]))
    starts = range(0, n_resamples, block)
    seeds = rng.integers(0, 2**63, size=len(starts)).tolist()

    def fill(start: int, seed: int) -> None:
        own = np.random.Generator(np.random.SFC64(seed))
        target = sums[start : start + block]
        height = -(-len(target) // _HEIGHT) * _HEIGHT
        target[:] = parts[0].random_sums(own, height)[: len(target)]
        for part in parts[1:]:
            target += part.random_sums(own, height)[: len(target)]

    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(fill, starts, seeds))
    return sums


def _all_bits(n_rows: int) -> Bytes:
    """Every pattern of `n_rows` bits, packed as `np.packbits` does."""
    every = np.arange(2**n_rows, dtype=np.int64)[:, None] >> np.arange(n_rows, dtype=np.int64)[::-1]
    return np.packbits((every & 1).astype(np.uint8), axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """Rows to be added or taken away."""

    doubled: npt.NDArray[Any]
    """Twice the rows, and zeros up to whole tiles; single precision where every partial sum fits into it."""
    total: FloatArray
    """Sum of the rows, each as often as it may be added."""

    @classmethod
    def of(cls, rows: FloatArray, times: IntArray) -> _Weights:
        is_small = float((times @ np.abs(rows)).max(initial=0.0)) < 2.0**23
        padded = np.zeros(
            (-(-len(rows) // _WIDTH) * _WIDTH, rows.shape[1]), dtype=np.float32 if is_small else np.float64
        )
        padded[: len(rows)] = 2.0 * rows
        return cls(doubled=padded, total=np.asarray(times @ rows, dtype=np.float64))

    def signed(self, counts: npt.NDArray[Any]) -> FloatArray:
        """Σ (2 count − times) row, for each row of counts, in tiles.

        Tiles are so small that the linear-algebra library starts no threads for them: its threads wait for one another,
        which is slow on a busy machine. Whole blocks run side by side instead.
        """
        height, width = len(counts) // _HEIGHT, counts.shape[1] // _WIDTH
        tiles = counts.astype(self.doubled.dtype).reshape(height, _HEIGHT, width, _WIDTH).transpose(0, 2, 1, 3)
        parts = tiles @ self.doubled.reshape(width, _WIDTH, -1)
        sums = parts.sum(axis=1, dtype=np.float64).reshape(len(counts), -1)
        sums -= self.total
        return np.asarray(sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Single:
    """Rows that get a sign each, from one random bit."""

    weights: _Weights

    @classmethod
    def of(cls, rows: FloatArray, sizes: IntArray) -> _Single:
        repeated = np.repeat(rows, sizes, axis=0)
        return cls(weights=_Weights.of(repeated, np.ones(len(repeated), dtype=np.int64)))

    @property
    def width(self) -> int:
        """Cells of work a resample."""
        return len(self.weights.doubled)

    def random_sums(self, rng: np.random.Generator, n_flips: int) -> FloatArray:
        bits = rng.integers(0, 256, size=(n_flips, self.width // 8), dtype=np.uint8)
        return self.weights.signed(np.unpackbits(bits, axis=1))

    def sums(self, bits: Bytes) -> FloatArray:
        """Σ ±row for each row of packed bits."""
        if not self.width:
            return np.zeros((len(bits), self.weights.total.size))
        padded = np.zeros((-(-len(bits) // _HEIGHT) * _HEIGHT, self.width), dtype=np.uint8)
        padded[: len(bits), : 8 * bits.shape[1]] = np.unpackbits(bits, axis=1)[:, : self.width]
        return self.weights.signed(padded)[: len(bits)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """Large groups: for each, random bits in whole words, of which the ones are counted."""

    weights: _Weights
    starts: IntArray
    masks: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, rows: FloatArray, sizes: IntArray) -> _Counted:
        words = -(-sizes // 64)
        ends = np.cumsum(words)
        masks = np.full(int(words.sum()), np.iinfo(np.uint64).max, dtype=np.uint64)
        masks[ends - 1] >>= (words * 64 - sizes).astype(np.uint64)
        return cls(weights=_Weights.of(rows, sizes), starts=(ends - words).astype(np.int64), masks=masks)

    @property
    def width(self) -> int:
        """Cells of work a resample; a word takes about eight times a sign."""
        return 8 * self.masks.size

    def random_sums(self, rng: np.random.Generator, n_flips: int) -> FloatArray:
        words = rng.integers(0, 2**64, size=(n_flips, self.masks.size), dtype=np.uint64)
        counts = np.zeros((n_flips, len(self.weights.doubled)), dtype=np.int64)
        ones = np.bitwise_count(words & self.masks)
        np.add.reduceat(ones, self.starts, axis=1, dtype=np.int64, out=counts[:, : self.starts.size])
        return self.weights.signed(counts)


Statistic = Callable[[FloatArray], FloatArray]
"""From rows of totals over items to one score a row."""

_MOST_WORK = 1 << 20
"""Sums that an exact distribution may go through."""
_SCORE_TIE = 1e-12


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
    difference = total * on_lattice.unit / values.size
    if not steps.any():
        return ResamplingResult(difference=difference, pvalue=1.0, pvalue_whole=1.0, is_exact=True, n_resamples=0)
    found = _exact_sums(steps)
    if found is not None:
        support, weights = found
        return _exact(difference, np.abs(support), abs(total), on_lattice.slack, weights)
    sums = signed_sums(patterns(steps[:, None]), n_resamples=n_resamples, rng=rng)[:, 0]
    return _drawn(difference, np.abs(sums), abs(total), on_lattice.slack)


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


def _exact_sums(steps: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """The sums over all sign patterns with their probabilities; None where there are too many."""
    sizes, counts = np.unique(np.abs(steps[steps != 0.0]), return_counts=True)
    if _work(sizes, counts) > _MOST_WORK:
        return None
    gammaln, support, weights = scipy.special.gammaln, np.zeros(1), np.ones(1)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        ups = np.arange(count + 1)
        log_choose = gammaln(count + 1.0) - gammaln(ups + 1.0) - gammaln(count - ups + 1.0)
        chances = np.exp(log_choose - count * np.log(2.0))
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


def global_sign_flip(
    differences: npt.ArrayLike,
    *,
    n_items: npt.ArrayLike,
    cluster: Labels | None = None,
    n_resamples: int = 9_999,
    rng: np.random.Generator,
) -> ResamplingResult:
    """Sign-flip test of the mean, over all metrics, of their mean differences: it sees a small loss everywhere.

    Args:
        differences: items × metrics, candidate − baseline; 0 where an item does not belong to a metric.
        n_items: items of each metric.
        cluster, n_resamples, rng: as in `sign_flip`.

    Raises:
        InvalidValue: the matrix or the numbers of items cannot be.
    """
    table, sizes = finite(differences, name="Differences"), finite(n_items, name="Numbers of items")
    if table.ndim != 2 or sizes.shape != table.shape[1:] or np.any(sizes < 1):
        raise InvalidValue("Each metric needs its number of items", hint="Give items × metrics, a number a metric.")
    contributions = np.sort(table / sizes, axis=1).sum(axis=1)
    found = sign_flip(contributions, cluster=cluster, n_resamples=n_resamples, rng=rng)
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
        return _exact(observed, gaps, abs(observed), _SCORE_TIE, np.full(gaps.size, 1.0 / gaps.size))
    return _drawn(observed, gaps, abs(observed), _SCORE_TIE)


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


_TIE = 1e-9


def holm(pvalues: Sequence[float] | npt.ArrayLike) -> FloatArray:
    """Step-down family-wise adjustment of Holm (1979), in the order given; valid under any dependence.

    Raises:
        InvalidValue: a p-value is outside 0..1.
    """
    p = finite(pvalues, name="p-values")
    if p.ndim != 1 or np.any((p < 0.0) | (p > 1.0)):
        raise InvalidValue("A p-value must lie between 0 and 1", hint="Give a flat list of p-values.")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return adjusted


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxTResult:
    """Adjusted p-values of several metrics."""

    pvalues: FloatArray
    """Step-down adjusted, in the order of the columns given."""
    n_resamples: int
    """Sign patterns drawn, or all of them where `is_exact`."""
    is_exact: bool


def max_t(
    differences: npt.ArrayLike,
    *,
    cluster: Labels | None = None,
    is_midp: bool = True,
    n_resamples: int = 9_999,
    rng: np.random.Generator,
) -> MaxTResult:
    """Step-down max-T of Westfall & Young (1993, algorithm 2.8 with signs), the signs shared over all metrics.

    The statistic of a metric is |Σ d| / √(Σ d²), 0 where no item changed.

    Args:
        differences: items × metrics, candidate − baseline; 0 where an item does not belong to a metric.
        cluster: labels of items whose signs flip together.
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
    observed = np.abs(rows.sum(axis=0)) / scales
    tie = slacks / scales + _TIE * np.abs(observed)
    # without any change nothing is evidence: every resample then counts whole, and p is 1
    halves = rows.any(axis=0) & is_midp
    thresholds = observed - tie, np.where(halves, observed + tie, np.nextafter(observed - tie, -np.inf))
    flipped = np.abs(signed_sums(groups, n_resamples=n_resamples, rng=rng)) / scales
    order = np.argsort(-observed, kind="stable")
    extra = 0 if groups.is_enumerable else 1
    stepped = (_exceeding(flipped, thresholds, order) + extra) / (len(flipped) + extra)
    stepped[order] = np.maximum.accumulate(stepped[order])
    return MaxTResult(
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


def _exceeding(
    flipped: FloatArray, thresholds: tuple[FloatArray, FloatArray], order: npt.NDArray[np.intp]
) -> FloatArray:
    """How many resamples are as extreme in the largest of the metrics that are not above a metric.

    Between the two thresholds a resample ties with the observed, and counts half.
    """
    least, most = thresholds
    counts = np.zeros(least.size)
    columns = np.ascontiguousarray(flipped.T)
    largest = np.full(len(flipped), -np.inf)
    for metric in order[::-1]:
        np.maximum(largest, columns[metric], out=largest)
        whole, beyond = np.count_nonzero(largest >= least[metric]), np.count_nonzero(largest > most[metric])
        counts[metric] = (whole + beyond) / 2.0
    return counts

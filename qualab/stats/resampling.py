"""Sign-flip tests, of one metric and of many: valid where the two arms are exchangeable, whatever the score.

Rows that are equal up to sign are exchangeable, so a group of g of them needs no g signs but the number of positive
ones, which is the number of ones in g random bits. Rows are put into a canonical order first, so that the order of
items does not matter. Values are whole multiples of a unit, so that sums are exact and ties are ties.
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

from qualab.stats.checks import FloatArray, IntArray, check_items, finite
from qualab.stats.mean import Labels, cluster_codes, cluster_sums

Draw = Callable[[np.random.Generator, int], npt.NDArray[Any]]
"""So many random resamples, one a row."""

_MOST_DISTINCT = 512
_LARGEST_DENOMINATOR = 1_000
_LARGEST_SUM = 2.0**52
_MOST_ENUMERATED = 16
"""Up to 2**16 sign patterns are enumerated."""
_GROUPED_FROM = 8
"""Groups at least this large are counted, smaller ones flipped row by row."""
_CELLS = 1 << 18
"""Signs of a block, so that a block stays in cache."""
_HEIGHT, _WIDTH = 64, 120
"""Resamples and rows of a tile of the product."""
_MOST_WORK = 1 << 20
"""Sums that an exact distribution may go through."""
_TIE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """Values as whole multiples of a unit."""

    steps: FloatArray
    """Whole numbers, held as floats; the sum of their absolute values is below 2**52."""
    unit: float
    slack: float
    """Sums that differ by at most this many steps are equal: 0 where the values are exact multiples."""


def lattice(values: FloatArray) -> Lattice:
    """Put the values on the coarsest lattice of fractions that holds them, else on a very fine one."""
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


def distinct_rows(rows: FloatArray, keys: npt.NDArray[Any]) -> tuple[FloatArray, IntArray]:
    """Count each distinct row, in the order of keys, which equal rows share: sorting rows takes much longer."""
    _, index, inverse, sizes = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    if np.array_equal(rows[index][inverse], rows):
        return rows[index], sizes.astype(np.int64)
    distinct, sizes = np.unique(rows, axis=0, return_counts=True)  # two rows with one key: next to never
    return distinct, sizes.astype(np.int64)


def in_blocks(draw: Draw, *, n_resamples: int, block: int, rng: np.random.Generator) -> FloatArray:
    """Draw resamples in blocks on two threads, each block with a generator of its own, seeded from `rng`."""
    starts = range(0, n_resamples, block)
    seeds = rng.integers(0, 2**63, size=len(starts)).tolist()

    def drawn(start: int, seed: int) -> FloatArray:
        return draw(np.random.Generator(np.random.SFC64(seed)), min(block, n_resamples - start))

    with ThreadPoolExecutor(max_workers=2) as pool:
        return np.concatenate(list(pool.map(drawn, starts, seeds)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns:
    """Distinct nonzero rows, up to sign, in canonical order."""

    rows: FloatArray
    sizes: IntArray

    @property
    def is_enumerable(self) -> bool:
        return int(self.sizes.sum()) <= _MOST_ENUMERATED


def patterns(rows: FloatArray) -> Patterns:
    """Group rows of whole numbers that are equal up to sign, without those of zeros."""
    changed = rows[np.any(rows != 0.0, axis=1)]
    first = changed[np.arange(len(changed)), np.argmax(changed != 0.0, axis=1)]
    changed = changed * np.sign(first)[:, None]
    # a 64-bit key: the bits of every entry times an odd constant of its column, added up modulo 2**64
    generator = np.random.Generator(np.random.PCG64(20_240_229))
    keys = np.zeros(len(changed), dtype=np.uint64)
    for column, constant in zip(changed.T, generator.integers(1, 2**63, size=(changed.shape[1],)), strict=True):
        bits = column.astype(np.int64).view(np.uint64) * np.uint64(int(constant) | 1)
        keys += bits ^ (bits >> np.uint64(31))
    distinct, sizes = distinct_rows(changed, keys)
    return Patterns(rows=distinct, sizes=sizes)


def signed_sums(groups: Patterns, *, n_resamples: int, rng: np.random.Generator) -> FloatArray:
    """Add up all rows under random signs, one row a resample; every sign pattern once where at most 16 rows."""
    if groups.is_enumerable:
        every = np.repeat(groups.rows, groups.sizes, axis=0)
        bits = np.arange(2 ** len(every))[:, None] >> np.arange(len(every))[::-1] & 1
        return np.asarray((2.0 * bits - 1.0) @ every)
    small = groups.sizes < _GROUPED_FROM
    kinds = ((_single, small), (_counted, ~small))
    parts = [kind(groups.rows[some], groups.sizes[some]) for kind, some in kinds if some.any()]
    block = _HEIGHT * max(1, _CELLS // (_HEIGHT * max(width for _, width in parts)))

    def draw(rng: np.random.Generator, n_flips: int) -> FloatArray:
        height = -(-n_flips // _HEIGHT) * _HEIGHT
        sums = parts[0][0](rng, height)
        for part, _ in parts[1:]:
            sums += part(rng, height)
        return sums[:n_flips]

    return in_blocks(draw, n_resamples=n_resamples, block=block, rng=rng)


def _sums(rows: FloatArray, times: IntArray, count: Draw) -> Draw:
    # Σ (2 count − times) row for each resample, in tiles so small that the linear-algebra library starts no threads for
    # them: these wait for one another, which is slow on a busy machine; whole blocks run side by side instead
    is_small = float((times @ np.abs(rows)).max(initial=0.0)) < 2.0**23  # fits into single precision
    doubled = np.zeros((_padded(len(rows)), rows.shape[1]), dtype=np.float32 if is_small else np.float64)
    doubled[: len(rows)] = 2.0 * rows
    total = times @ rows

    def draw(rng: np.random.Generator, height: int) -> FloatArray:
        counts = count(rng, height).astype(doubled.dtype)
        tiles = counts.reshape(height // _HEIGHT, _HEIGHT, -1, _WIDTH).transpose(0, 2, 1, 3)
        parts = tiles @ doubled.reshape(-1, _WIDTH, doubled.shape[1])
        sums = parts.sum(axis=1, dtype=np.float64).reshape(height, -1)
        sums -= total
        return np.asarray(sums)

    return draw


def _padded(n_rows: int) -> int:
    return -(-n_rows // _WIDTH) * _WIDTH


def _single(rows: FloatArray, sizes: IntArray) -> tuple[Draw, int]:
    # a random bit for the sign of each row; and the cells of work a resample
    every = np.repeat(rows, sizes, axis=0)
    width = _padded(len(every))

    def count(rng: np.random.Generator, height: int) -> npt.NDArray[Any]:
        return np.unpackbits(rng.integers(0, 256, size=(height, width // 8), dtype=np.uint8), axis=1)

    return _sums(every, np.ones(len(every), dtype=np.int64), count), width


def _counted(rows: FloatArray, sizes: IntArray) -> tuple[Draw, int]:
    # random bits in whole words for each group, of which the ones are counted; and the cells of work a resample
    words = -(-sizes // 64)
    ends = np.cumsum(words)
    masks = np.full(int(words.sum()), np.iinfo(np.uint64).max, dtype=np.uint64)
    masks[ends - 1] >>= (words * 64 - sizes).astype(np.uint64)

    def count(rng: np.random.Generator, height: int) -> npt.NDArray[Any]:
        bits = rng.integers(0, 2**64, size=(height, masks.size), dtype=np.uint64)
        counts = np.zeros((height, _padded(len(rows))), dtype=np.int64)
        ones = np.bitwise_count(bits & masks)
        np.add.reduceat(ones, ends - words, axis=1, dtype=np.int64, out=counts[:, : len(rows)])
        return counts

    return _sums(rows, sizes, count), 8 * masks.size  # a word takes about eight times a sign


@dataclass(frozen=True, slots=True, kw_only=True)
class ResamplingResult:
    """A difference and the share of sign patterns or swaps that are at least as extreme."""

    difference: float
    pvalue: float
    """Mid-p: patterns as extreme as the observed count half."""
    pvalue_whole: float
    """Ties counted whole: never liberal."""
    is_exact: bool
    n_resamples: int
    """Random patterns drawn; 0 where the p-value is exact."""


def resampled(
    difference: float, extremities: FloatArray, observed: float, slack: float, weights: FloatArray | None = None
) -> ResamplingResult:
    """Compute the p-values of an observed extremity; what is within `slack` of it ties with it.

    Args:
        extremities: of all patterns, with their probabilities as weights; or of random ones, to which the observed one
            is added, counting whole.
    """
    is_whole, is_beyond = extremities >= observed - slack, extremities > observed + slack
    if weights is None:
        n_all, n_whole, n_beyond = extremities.size + 1, np.count_nonzero(is_whole), np.count_nonzero(is_beyond)
        midp, whole = float(((n_whole + n_beyond) / 2.0 + 1.0) / n_all), float((n_whole + 1.0) / n_all)
    else:
        whole = min(1.0, float(weights[is_whole].sum()))
        midp = (whole + float(weights[is_beyond].sum())) / 2.0
    return ResamplingResult(
        difference=difference,
        pvalue=midp,
        pvalue_whole=whole,
        is_exact=weights is not None,
        n_resamples=extremities.size if weights is None else 0,
    )


def sign_flip(
    differences: npt.ArrayLike, *, cluster: Labels | None = None, n_resamples: int = 9_999, rng: np.random.Generator
) -> ResamplingResult:
    """Test a mean paired difference by sign flips (Fisher 1935), all items of a cluster flipping together.

    Exact where the differences sit on a lattice of few enough points, as 0/1 scores do; else random patterns are drawn.
    Independent 0/1 scores give `mcnemar`'s p-value. Without a difference anywhere p is 1.

    >>> sign_flip([1.0, 1.0, 0.5, -0.5], rng=np.random.default_rng(1)).pvalue
    0.25
    """
    values = finite(differences, name="Differences")
    check_items(values.size)
    on_lattice = lattice(values)
    steps = on_lattice.steps if cluster is None else cluster_sums(on_lattice.steps, cluster_codes(cluster, values.size))
    total = float(steps.sum())
    difference = total * on_lattice.unit / values.size
    if not steps.any():
        return ResamplingResult(difference=difference, pvalue=1.0, pvalue_whole=1.0, is_exact=True, n_resamples=0)
    exact = _exact_sums(steps)
    if exact:
        return resampled(difference, np.abs(exact[0]), abs(total), on_lattice.slack, exact[1])
    sums = signed_sums(patterns(steps[:, None]), n_resamples=n_resamples, rng=rng)[:, 0]
    return resampled(difference, np.abs(sums), abs(total), on_lattice.slack)


def _exact_sums(steps: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    # the sums over all sign patterns with their probabilities; None where there are too many
    sizes, counts = np.unique(np.abs(steps[steps != 0.0]), return_counts=True)
    distinct = list(zip(sizes.tolist(), counts.tolist(), strict=True))
    work, n_sums, reach = 0.0, 1.0, 0.0
    for size, count in distinct:  # each distinct size multiplies the sums, up to the points of the lattice
        work += n_sums * (count + 1)
        reach += size * count
        n_sums = min(n_sums * (count + 1), reach + 1.0)
    if work > _MOST_WORK:
        return None
    gammaln, support, weights = scipy.special.gammaln, np.zeros(1), np.ones(1)
    for size, count in distinct:
        ups = np.arange(count + 1)
        log_choose = gammaln(count + 1.0) - gammaln(ups + 1.0) - gammaln(count - ups + 1.0)
        chances = np.exp(log_choose - count * np.log(2.0))
        support, inverse = np.unique(np.add.outer(support, size * (2.0 * ups - count)), return_inverse=True)
        products = np.multiply.outer(weights, chances).ravel()
        weights = np.asarray(np.bincount(inverse.ravel(), weights=products), dtype=np.float64)
    return support, weights


def global_sign_flip(
    differences: npt.ArrayLike, *, n_items: npt.ArrayLike, n_resamples: int = 9_999, rng: np.random.Generator
) -> ResamplingResult:
    """Test the mean of all metrics' mean differences by sign flips: it sees a small loss everywhere.

    Args:
        differences: items × metrics, candidate − baseline; 0 where an item does not belong to a metric.
        n_items: items of each metric.
    """
    table, sizes = finite(differences, name="Differences", ndim=2), finite(n_items, name="Numbers of items")
    contributions = np.sort(table / sizes, axis=1).sum(axis=1)
    result = sign_flip(contributions, n_resamples=n_resamples, rng=rng)
    return replace(result, difference=result.difference * len(table) / sizes.size)


def holm(pvalues: Sequence[float] | npt.ArrayLike) -> FloatArray:
    """Adjust p-values step-down (Holm 1979), in the order given; valid under any dependence.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = finite(pvalues, name="p-values")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return adjusted


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxTResult:
    pvalues: FloatArray
    """Adjusted, in the order of the columns given."""
    n_resamples: int
    """Sign patterns drawn, or all of them where at most 16 items (or clusters) changed."""


def max_t(
    differences: npt.ArrayLike,
    *,
    cluster: Labels | None = None,
    is_midp: bool = True,
    n_resamples: int = 9_999,
    rng: np.random.Generator,
) -> MaxTResult:
    """Adjust p-values by step-down max-T (Westfall & Young 1993, 2.8), the signs shared over all metrics.

    The statistic of a metric is |Σ d| / √(Σ d²), 0 where no item changed.

    Args:
        differences: items × metrics, candidate − baseline; 0 where an item does not belong to a metric.
        cluster: labels of items whose signs flip together.
        is_midp: resamples that tie with the observed count half, as in `sign_flip`, else whole.
    """
    table = finite(differences, name="Differences", ndim=2)
    changed = table.any(axis=1)
    columns = [lattice(column) for column in table[changed].T]
    rows = np.column_stack([column.steps for column in columns]) if columns else table[changed]
    if cluster is not None:
        rows = cluster_sums(rows, cluster_codes(cluster, len(table))[changed])
    groups = patterns(rows)
    scales = np.sqrt(np.maximum(1.0, groups.sizes @ groups.rows**2))
    observed = np.abs(rows.sum(axis=0)) / scales
    tie = np.array([column.slack for column in columns]) / scales + _TIE * np.abs(observed)
    # between the two a resample ties; without any change nothing is evidence: it then counts whole, and p is 1
    least = observed - tie
    most = np.where(rows.any(axis=0) & is_midp, observed + tie, np.nextafter(least, -np.inf))
    flipped = np.abs(signed_sums(groups, n_resamples=n_resamples, rng=rng)) / scales
    by_metric, largest = np.ascontiguousarray(flipped.T), np.full(len(flipped), -np.inf)
    order = np.argsort(-observed, kind="stable")
    exceeding = np.zeros(observed.size)
    for metric in order[::-1]:  # the largest of the metrics that are not above this one
        np.maximum(largest, by_metric[metric], out=largest)
        exceeding[metric] = (
            np.count_nonzero(largest >= least[metric]) + np.count_nonzero(largest > most[metric])
        ) / 2.0
    extra = 0 if groups.is_enumerable else 1
    stepped = (exceeding + extra) / (len(flipped) + extra)
    stepped[order] = np.maximum.accumulate(stepped[order])
    return MaxTResult(pvalues=stepped, n_resamples=len(flipped))

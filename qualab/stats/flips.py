"""Sums of rows under random signs: the engine of every sign-flip and swap test.

Rows that are equal up to sign are exchangeable, so a group of g of them needs no g signs but the number of positive
ones, which is the number of ones in g random bits. Rows are put into a canonical order first: the same rows and
generator give the same sums in whatever order the items came.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qualab.stats.checks import FloatArray, IntArray

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

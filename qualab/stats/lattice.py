"""Differences as whole numbers, so that equal sums are equal whatever the order of summation.

Sign-flip statistics sit on a lattice, and many flips tie with the observed value. In floating point those ties
would be broken by rounding; sums of whole numbers below 2**53 are exact in every order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from qualab.stats.checks import FloatArray

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

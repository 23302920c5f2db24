"""Noise floor: how much two runs of the same arm differ, and whether the candidate differs more."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, combinations, zip_longest

import numpy.typing as npt
import scipy

from qualab.errors import InsufficientData
from qualab.stats.checks import finite


def excess_discordance(*, n_odd: int, n_candidate_odd: int) -> float:
    """Compute the exact one-sided p-value of "the odd one out is the candidate with probability 1/3".

    It is that where the candidate behaves as one more run of the baseline. Without an odd item p is 1.

    >>> round(excess_discordance(n_odd=60, n_candidate_odd=35), 6)
    6.2e-05
    """
    return float(scipy.special.bdtrc(n_candidate_odd - 1, n_odd, 1.0 / 3.0)) if n_candidate_odd else 1.0


def odd_ones_out(
    first: Sequence[Hashable], second: Sequence[Hashable], candidate: Sequence[Hashable]
) -> tuple[int, int]:
    """Count items with one odd run of the three, and those where it is the candidate's."""
    rows = list(zip(first, second, candidate, strict=True))
    candidate_odd = sum(a == b != c for a, b, c in rows)
    return candidate_odd + sum((a == c != b) or (b == c != a) for a, b, c in rows), candidate_odd


def excess_rate(n_differ: int, n: int, *, n_noise_differ: int, n_noise: int) -> float:
    """Compute Fisher's exact one-sided p-value of "as rare as in the noise", of two independent counts.

    Args:
        n_differ: pairs of `n` that differ.
        n_noise_differ: pairs of `n_noise`, of the noise alone, that differ.

    Returns:
        Chance of at least `n_differ`, given all that differ; 1 where none does or nothing is compared. Both counts may
        share items: their positive correlation makes it conservative.

    Source: Fisher (1935), by the hypergeometric distribution.

    >>> round(excess_rate(2, 100, n_noise_differ=0, n_noise=1_000), 4)
    0.0082
    """
    if not n_differ:
        return 1.0
    return float(scipy.stats.hypergeom.sf(n_differ - 1, n + n_noise, n_differ + n_noise_differ, n))


def disagreement(outcomes: Sequence[Sequence[Hashable]]) -> float:
    """Compute the share of pairs of an item's runs that differ; one row an item, one outcome a run.

    Of 0/1 scores with x of k runs right it is the mean of 2x (k − x) / (k (k − 1)).
    """
    if min(map(len, outcomes), default=0) < 2:
        raise InsufficientData("Noise needs at least two runs of at least one item", hint="Repeat the baseline.")
    pairs = [a != b for row in outcomes for a, b in combinations(row, 2)]
    return sum(pairs) / len(pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceComponents:
    """Contributions of items and of runs to the spread of scores."""

    variance_between: float
    """Between items; at least 0."""
    variance_within: float
    """Between runs of one item."""
    icc: float | None
    """Share of the variance of a single score that is between items, ICC(1); None where scores do not vary."""
    icc_mean: float | None
    """Share for the mean of an item's k runs, ICC(k)."""


def variance_components(samples: npt.ArrayLike) -> VarianceComponents:
    """Estimate one-way random-effects components of scores, items × runs, by ANOVA (Shrout & Fleiss 1979)."""
    table = finite(samples, name="Scores", ndim=2)
    n_items, k = table.shape
    if n_items < 2 or k < 2:
        raise InsufficientData("Noise needs at least two runs of at least two items", hint="Repeat the baseline.")
    within = float(table.var(axis=1, ddof=1).mean())
    between = max(0.0, float(table.mean(axis=1).var(ddof=1)) - within / k)
    varies = between + within > 0.0
    return VarianceComponents(
        variance_between=between,
        variance_within=within,
        icc=between / (between + within) if varies else None,
        icc_mean=between / (between + within / k) if varies else None,
    )


def first_difference(first: Sequence[object], second: Sequence[object]) -> int | None:
    """Find the first position at which two sequences differ; None where they are the same."""
    pairs = enumerate(zip_longest(first, second, fillvalue=object()))
    return next((position for position, (a, b) in pairs if a != b), None)


def weighted_median(values: Sequence[float], weights: Sequence[Fraction]) -> float:
    """Find the value below and above which lies at most half of the weight; midway where two values are such."""
    if not values:
        raise InsufficientData("A median needs at least one value", hint="Say that there is none.")
    ordered = sorted(zip(values, weights, strict=True))
    reached = list(accumulate(weight for _, weight in ordered))
    half = reached[-1] / 2
    low = next(value for (value, _), weight in zip(ordered, reached, strict=True) if weight >= half)
    high = next(value for (value, _), weight in zip(ordered, reached, strict=True) if weight > half)
    return (low + high) / 2

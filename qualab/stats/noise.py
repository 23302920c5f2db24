"""The noise floor: how much two runs of the same arm differ, and whether the candidate differs more."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, combinations, zip_longest

import numpy as np
import numpy.typing as npt
import scipy

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.checks import FloatArray, finite


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcessDiscordance:
    """How often the candidate is the odd one out, of the items on which exactly one of three runs is."""

    n_odd: int
    n_candidate_odd: int
    pvalue: float
    """One-sided: probability of at least as many where the candidate is just another run of the baseline."""

    @property
    def share(self) -> float | None:
        """Expected to be 1/3 where the drafter adds nothing; None without an odd item."""
        return self.n_candidate_odd / self.n_odd if self.n_odd else None


def excess_discordance(*, n_odd: int, n_candidate_odd: int) -> ExcessDiscordance:
    """Exact binomial test, one-sided, of "the odd one out is the candidate with probability 1/3".

    If the candidate behaves as one more run of the baseline, the three runs are exchangeable, and each is the odd
    one equally often. Without an odd item p is 1: there is no evidence of an excess.

    >>> round(excess_discordance(n_odd=60, n_candidate_odd=35).pvalue, 6)
    6.2e-05
    """
    if not 0 <= n_candidate_odd <= n_odd:
        raise InvalidValue(
            f"{n_candidate_odd} of {n_odd} items cannot be", hint="Count items on which exactly one run stands out."
        )
    pvalue = float(scipy.special.bdtrc(n_candidate_odd - 1, n_odd, 1.0 / 3.0)) if n_candidate_odd else 1.0
    return ExcessDiscordance(n_odd=n_odd, n_candidate_odd=n_candidate_odd, pvalue=pvalue)


def odd_ones_out(
    first: Sequence[Hashable], second: Sequence[Hashable], candidate: Sequence[Hashable]
) -> ExcessDiscordance:
    """Excess discordance of two baseline runs' and the candidate's outcomes (scores, or texts), item by item.

    Items on which all three agree, or all three differ, say nothing and are left out.
    """
    if not len(first) == len(second) == len(candidate):
        raise InvalidValue("The three runs are not paired", hint="Give one outcome an item and run.")
    rows = list(zip(first, second, candidate, strict=True))
    candidate_odd = sum(a == b != c for a, b, c in rows)
    baseline_odd = sum((a == c != b) or (b == c != a) for a, b, c in rows)
    return excess_discordance(n_odd=candidate_odd + baseline_odd, n_candidate_odd=candidate_odd)


def disagreement(outcomes: Sequence[Sequence[Hashable]]) -> float:
    """Share of pairs of an item's runs that differ, the mean over items; one row an item, one outcome a run."""
    sizes = {len(row) for row in outcomes}
    if not sizes or min(sizes) < 2:
        raise InsufficientData("Noise needs at least two runs of at least one item", hint="Repeat the baseline.")
    if len(sizes) > 1:
        raise InvalidValue("Items have different numbers of runs", hint="Give one outcome an item and run.")
    pairs = [a != b for row in outcomes for a, b in combinations(row, 2)]
    return sum(pairs) / len(pairs)


def flip_rate(samples: npt.ArrayLike) -> float:
    """`disagreement` of 0/1 scores, items × runs: the mean of 2x (k − x) / (k (k − 1)), x of k runs right.

    >>> flip_rate([[1, 0], [1, 1]])
    0.5
    """
    table = _samples(samples)
    if not np.all((table == 0) | (table == 1)):
        raise InvalidValue("A flip rate needs scores of 0 and 1", hint="Use variance_components() for other scores.")
    return disagreement(table.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceComponents:
    """What items and what runs contribute to the spread of scores."""

    mean: float
    variance_between: float
    """Between items; at least 0."""
    variance_within: float
    """Between runs of one item."""
    standard_error: float
    """Of the mean, over items."""
    icc: float | None
    """Share of the variance of a single score that is between items, ICC(1); None where scores do not vary."""
    icc_mean: float | None
    """The same for the mean of an item's k runs, ICC(k)."""


def variance_components(samples: npt.ArrayLike) -> VarianceComponents:
    """One-way random-effects components of scores, items × runs (ANOVA estimators).

    Repeats divide the variance within items, never that between them: k runs of an item are not k items.

    Source: Shrout & Fleiss (1979), ICC(1) and ICC(k).
    """
    table = _samples(samples)
    if len(table) < 2:
        raise InsufficientData("Variance between items needs at least two items", hint="Add items.")
    n_items, k = table.shape
    means = table.mean(axis=1)
    of_means = float(means.var(ddof=1))
    within = float(table.var(axis=1, ddof=1).mean())
    between = max(0.0, of_means - within / k)
    varies = between + within > 0.0
    return VarianceComponents(
        mean=float(table.mean()),
        variance_between=between,
        variance_within=within,
        standard_error=math.sqrt(of_means / n_items),
        icc=between / (between + within) if varies else None,
        icc_mean=between / (between + within / k) if varies else None,
    )


def _samples(samples: npt.ArrayLike) -> FloatArray:
    table = finite(samples, name="Scores", ndim=2)
    if len(table) < 1 or table.shape[1] < 2:
        raise InsufficientData("Noise needs at least two runs of at least one item", hint="Repeat the baseline.")
    return table


def first_difference(first: Sequence[object], second: Sequence[object]) -> int | None:
    """Position of the first element (token, character) at which two sequences differ; None where they are the same.

    Where one sequence begins with the other, they differ at the shorter one's length.
    """
    pairs = enumerate(zip_longest(first, second, fillvalue=object()))
    return next((position for position, (a, b) in pairs if a != b), None)


def weighted_median(values: Sequence[float], weights: Sequence[Fraction]) -> float:
    """The value below and above which lies at most half of the weight; midway where two values are such.

    With equal weights it is the median. A weight of N/n makes n values stand for the N that they were drawn from.
    """
    if not values:
        raise InsufficientData("A median needs at least one value", hint="Say that there is none.")
    if len(values) != len(weights) or min(weights) <= 0:
        raise InvalidValue("Each value needs a positive weight", hint="Give one weight a value.")
    ordered = sorted(zip(values, weights, strict=True))
    reached = list(accumulate(weight for _, weight in ordered))
    half = reached[-1] / 2
    low = next(value for (value, _), weight in zip(ordered, reached, strict=True) if weight >= half)
    high = next(value for (value, _), weight in zip(ordered, reached, strict=True) if weight > half)
    return (low + high) / 2

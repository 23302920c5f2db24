"""Accepted draft tokens a round: one verification of up to k draft tokens.

The model's own token comes on top, so a round yields 1 + accepted tokens (Leviathan, Kalman & Matias 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.checks import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Rounds of one drafter, summed up."""

    histogram: tuple[int, ...]
    """Rounds with 0, 1, ... k accepted tokens."""
    mean_length: float
    """Tokens a round yields: 1 + accepted / rounds."""
    median_length: float
    p10_length: float
    """A tenth of the rounds yields at most this many tokens."""
    zero_share: float
    """Rounds in which no draft token was accepted."""


def acceptance(histogram: Sequence[int]) -> Acceptance:
    """Sum up rounds, `histogram[j]` of them with j accepted tokens.

    >>> acceptance((2, 3, 5)).mean_length
    2.3
    """
    counts: IntArray = np.asarray(histogram, dtype=np.int64)
    if counts.size and counts.min() < 0:
        raise InvalidValue("Counts of rounds are below 0", hint="Give counts of rounds by accepted tokens")
    n_rounds = int(counts.sum())
    if n_rounds == 0:
        raise InsufficientData("no draft round was counted", hint="The drafter did not run, or is not observable")
    median, p10 = np.searchsorted(np.cumsum(counts), np.array([0.5, 0.1]) * n_rounds - 1e-9).tolist()
    return Acceptance(
        histogram=tuple(counts.tolist()),
        mean_length=1.0 + float(counts @ np.arange(counts.size)) / n_rounds,
        median_length=1.0 + median,
        p10_length=1.0 + p10,
        zero_share=float(counts[0]) / n_rounds,
    )


def histogram_of_survival(n_rounds: int, accepted_at: Sequence[int]) -> tuple[int, ...]:
    """Count rounds by accepted tokens, from how many rounds accepted the first draft token, the second, ..."""
    survival = np.asarray([n_rounds, *accepted_at], dtype=np.int64)
    histogram = survival - np.append(survival[1:], 0)
    if histogram.size and histogram.min() < 0:
        raise InvalidValue(
            f"Accepted tokens by position rise: {survival.tolist()}", hint="Counters of one engine, after minus before"
        )
    return tuple(histogram.tolist())


def break_even_length(*, draft_cost: float, overhead: float) -> float:
    """Compute the tokens a round must yield for drafting to pay, its costs in steps of the model alone."""
    return 1.0 + draft_cost + overhead

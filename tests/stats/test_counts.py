"""Counting pairs: what tally and PairedCounts accept, add and refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.counts import PairedCounts, tally

pairs = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=60)


def test_tally_counts_each_kind_of_pair() -> None:
    counts = tally([1, 1, 0, 0, 0, 1], [1, 0, 1, 1, 0, 1])
    assert counts == PairedCounts(n_items=6, gains=2, losses=1, both_right=2)
    assert counts.both_wrong == 1
    assert counts.difference == pytest.approx(1 / 6)
    assert counts.discordance == 0.5
    assert counts.accuracies == (0.5, pytest.approx(2 / 3))


@given(pairs)
def test_swapping_the_arms_swaps_gains_and_losses(rows: list[tuple[int, int]]) -> None:
    baseline, candidate = zip(*rows, strict=True)
    assert tally(candidate, baseline) == tally(baseline, candidate).swapped()
    assert tally(candidate, baseline).difference == -tally(baseline, candidate).difference


def test_accuracies_take_the_items_right_in_both_arms() -> None:
    with pytest.raises(InsufficientData):
        _ = PairedCounts(n_items=5, gains=1, losses=1).accuracies


@pytest.mark.parametrize(
    ("n_items", "gains", "losses", "both_right"),
    [(5, -1, 0, None), (-1, 0, 0, None), (5, 3, 3, None), (5, 2, 2, 2), (5, 0, 0, -1)],
)
def test_impossible_counts_are_refused(n_items: int, gains: int, losses: int, both_right: int | None) -> None:
    with pytest.raises(InvalidValue):
        PairedCounts(n_items=n_items, gains=gains, losses=losses, both_right=both_right)


def test_rates_of_no_items_are_refused() -> None:
    with pytest.raises(InsufficientData):
        _ = PairedCounts(n_items=0, gains=0, losses=0).difference
    with pytest.raises(InsufficientData):
        _ = PairedCounts(n_items=0, gains=0, losses=0).discordance


@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [
        ([1, 0], [1]),
        ([1, 0.5], [1, 0]),
        ([1, np.nan], [1, 0]),
        ([[1, 0]], [[1, 0]]),
        (["a", "b"], [1, 0]),
        ([1, 2], [1, 1]),
    ],
)
def test_scores_that_are_not_paired_zeros_and_ones_are_refused(baseline: list[float], candidate: list[float]) -> None:
    with pytest.raises(InvalidValue):
        tally(baseline, candidate)

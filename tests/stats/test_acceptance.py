"""Acceptance lengths: against counts made by hand and against rounds drawn one by one."""

from __future__ import annotations

import numpy as np
import pytest

from qualab.stats.acceptance import acceptance, break_even_length, histogram_of_survival


@pytest.mark.parametrize(
    ("histogram", "lengths"),
    [((7, 0, 0), (1.0, 1.0, 1.0, 1.0)), ((0, 0, 7), (3.0, 3.0, 3.0, 0.0)), ((0, 1), (2.0, 2.0, 2.0, 0.0))],
)
def test_a_drafter_that_is_never_and_one_that_is_always_right(
    histogram: tuple[int, ...], lengths: tuple[float, ...]
) -> None:
    found = acceptance(histogram)
    assert (found.mean_length, found.median_length, found.p10_length, found.zero_share) == lengths


def test_against_rounds_drawn_one_by_one() -> None:
    rounds = np.random.default_rng(3).binomial(5, 0.6, size=1_001)
    survival = [int((rounds >= position).sum()) for position in range(1, 6)]
    found = acceptance(histogram_of_survival(len(rounds), survival))
    lengths = 1 + rounds
    assert found.histogram == tuple(np.bincount(rounds, minlength=6).tolist())
    assert histogram_of_survival(4, ()) == (4,)
    assert break_even_length(draft_cost=0.25, overhead=0.1) == pytest.approx(1.35)
    assert found.mean_length == pytest.approx(lengths.mean())
    assert found.median_length == np.median(lengths)
    assert found.p10_length == np.quantile(lengths, 0.1, method="inverted_cdf")
    assert found.zero_share == pytest.approx((rounds == 0).mean())

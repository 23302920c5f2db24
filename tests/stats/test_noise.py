"""The noise floor: repeats of one arm and the odd one out."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from statistics import median

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from qualab.stats import noise
from tests.stats.reference import rng


@pytest.mark.parametrize(("odd", "total"), [(0, 0), (0, 5), (3, 9), (9, 9), (18, 30), (400, 1000)])
def test_excess_is_an_exact_binomial_test(odd: int, total: int) -> None:
    expected = scipy.stats.binomtest(odd, total, 1 / 3, alternative="greater").pvalue if total else 1.0
    assert noise.excess_discordance(n_odd=total, n_candidate_odd=odd) == pytest.approx(expected)


def test_each_run_can_be_the_odd_one_and_disagreement_is_the_share_of_pairs_that_differ() -> None:
    assert noise.odd_ones_out([1, 1, 0, 0, 1], [1, 0, 1, 0, 1], [0, 1, 1, 0, 1]) == (3, 1)
    assert noise.odd_ones_out(["x"], ["y"], ["z"]) == (0, 0)
    with pytest.raises(ValueError, match="argument 2"):
        noise.odd_ones_out([1], [1, 1], [1])
    samples = rng().integers(0, 2, size=(20, 5))
    right = samples.sum(axis=1)
    assert noise.disagreement(samples.tolist()) == pytest.approx(np.mean(2 * right * (5 - right) / (5 * 4)))
    assert noise.disagreement([["a", "a", "b"], ["x", "y", "z"]]) == pytest.approx((2 / 3 + 1) / 2)


def test_variance_components_are_found_again() -> None:
    generator = rng(2)
    items = generator.normal(0.0, 2.0, size=(4000, 1))
    found = noise.variance_components(items + generator.normal(0.0, 1.0, size=(4000, 4)))
    assert found.variance_between == pytest.approx(4.0, rel=0.08)
    assert found.variance_within == pytest.approx(1.0, rel=0.05)
    assert found.icc == pytest.approx(0.8, abs=0.02)
    assert found.icc_mean == pytest.approx(4 / 4.25, abs=0.02)
    found = noise.variance_components([[1, 1], [1, 1]])
    assert (found.variance_between, found.variance_within, found.icc) == (0.0, 0.0, None)
    noise_only = noise.variance_components([[0, 1], [1, 0]])
    assert (noise_only.variance_between, noise_only.icc) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("abc", "abc", None), ("abc", "abd", 2), ("abc", "ab", 2), ("", "a", 0), ("", "", None), ("가나", "가다", 1)],
)
def test_first_difference(first: str, second: str, expected: int | None) -> None:
    assert noise.first_difference(first, second) == expected
    assert noise.first_difference(second, first) == expected


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), min_size=1, max_size=12), st.integers(1, 7), st.randoms()
)
def test_a_value_of_weight_n_counts_as_n_values(pairs: list[tuple[int, int]], scale: int, chance: Random) -> None:
    chance.shuffle(pairs)
    values, times = [value for value, _ in pairs], [n for _, n in pairs]
    expected = median([value for value, n in pairs for _ in range(n)])
    assert noise.weighted_median(values, [Fraction(n, scale) for n in times]) == expected
    assert noise.weighted_median(values, [Fraction(1, scale)] * len(values)) == median(values)

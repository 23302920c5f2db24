"""Means of any scores, in clusters or not: CR2 with t, and Gaffke's bound against exact tests and brute force."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from qualab.errors import InsufficientData
from qualab.stats import bounded as module
from qualab.stats.bounded import BoundedMean
from qualab.stats.clustered import cluster_cells, clustered_equivalence, clustered_mcnemar
from qualab.stats.equivalence import equivalence
from qualab.stats.mean import mean_difference
from tests.stats.reference import counts_of, is_inside, rng

RNG = rng(3)


def sandwich(values: np.ndarray, codes: np.ndarray) -> tuple[float, float]:
    """CR2 standard error and Satterthwaite degrees of freedom, from the full matrices."""
    n_items = values.size
    ones = np.ones((n_items, 1))
    hat = ones @ ones.T / n_items
    residuals = values - values.mean()
    parts, middle = [], 0.0
    for code in np.unique(codes):
        inside = codes == code
        left = np.eye(int(inside.sum())) - hat[np.ix_(inside, inside)]
        eigenvalues, vectors = np.linalg.eigh(left)
        root = vectors @ np.diag(eigenvalues**-0.5) @ vectors.T
        middle += float((ones[inside].T @ root @ residuals[inside]).item()) ** 2
        parts.append((np.eye(n_items) - hat)[:, inside] @ root @ ones[inside] / n_items)
    stacked = np.hstack(parts)
    omega = stacked.T @ stacked
    return float(np.sqrt(middle) / n_items), float(np.trace(omega) ** 2 / np.trace(omega @ omega))


@pytest.mark.parametrize("sizes", [[3, 3, 3, 3], [1, 2, 5, 7, 1], [1] * 9, [20, 1, 1, 2]])
def test_closed_forms_are_those_of_the_full_matrices(sizes: list[int]) -> None:
    codes = np.repeat(np.arange(len(sizes)), sizes)
    values = RNG.normal(size=codes.size) + RNG.normal(size=len(sizes))[codes]
    found = mean_difference(values, cluster=codes)
    assert (found.standard_error, found.degrees_of_freedom) == pytest.approx(sandwich(values, codes))


def test_without_clusters_it_is_the_paired_t_test() -> None:
    values = RNG.normal(0.002, 0.05, 60)
    found, expected = mean_difference(values), scipy.stats.ttest_1samp(values, 0.0)
    interval = found.interval(confidence_level=0.95)
    statistic = found.difference / found.standard_error
    assert (statistic, found.pvalue) == pytest.approx((expected.statistic, expected.pvalue))
    assert (interval.low, interval.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert found.design_effect == pytest.approx(1.0)
    for margin in (0.005, 0.01, 0.02, 0.05):
        above = scipy.stats.ttest_1samp(values, -margin, alternative="greater").pvalue
        below = scipy.stats.ttest_1samp(values, margin, alternative="less").pvalue
        assert (found.pvalue_above(-margin), found.pvalue_below(margin)) == pytest.approx((above, below))
        assert (max(above, below) <= 0.05) == is_inside(found.interval(confidence_level=0.9), margin)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4)), min_size=6, max_size=30), st.randoms())
def test_order_and_names_of_clusters_do_not_matter(rows: list[tuple[int, int]], random: st.random.Random) -> None:
    values, codes = [row[0] / 3 for row in rows], [row[1] for row in rows]
    random.shuffle(shuffled := list(rows))
    others, names = [row[0] / 3 for row in shuffled], [f"passage {row[1]}" for row in shuffled]
    here, there = BoundedMean.of(values, cluster=codes), BoundedMean.of(others, cluster=names)
    assert here.interval(confidence_level=0.9) == there.interval(confidence_level=0.9)
    try:
        spread = mean_difference(values, cluster=codes)
    except InsufficientData:
        return
    assert spread == mean_difference(others, cluster=names)


@pytest.mark.parametrize(
    ("n", "k", "margin"),
    [
        *((1, 0, 0.02), (149, 0, 0.02), (1000, 0, 0.3), (50, 0, 0.9), (100_000, 0, 0.0001)),
        *((20, 1, 0.2), (5, 4, 0.3), (5, 5, 0.3), (600, 200, 0.02), (10_000, 150, 0.02)),
    ],
)
def test_losses_alone_are_judged_by_clopper_and_pearson(n: int, k: int, margin: float) -> None:
    """From p near 1 down to 1e-155. None of n lost proves the rule of three."""
    mean = BoundedMean.of(np.concatenate([np.full(k, -1.0), np.zeros(n - k)]))
    assert mean.pvalue_above(-margin) == pytest.approx(scipy.special.bdtr(k, n, margin), rel=1e-9)
    for level in (0.9, 0.95, 1 - 2e-6):
        exact = 1.0 if k == n else scipy.special.betaincinv(k + 1, n - k, 0.5 + level / 2)
        assert mean.interval(confidence_level=level).low == pytest.approx(-exact, rel=1e-7)


@pytest.mark.parametrize("n_clusters", [4, 30, 200])
@pytest.mark.parametrize("margin", [0.02, 0.1, 0.3])
def test_the_inversion_agrees_with_random_weights(n_clusters: int, margin: float) -> None:
    generator = rng(n_clusters)
    sizes = generator.integers(1, 5, n_clusters)
    cluster = np.repeat(np.arange(n_clusters), sizes)
    values = np.clip(generator.normal(0, 0.4, cluster.size), -1, 1) * (generator.random(cluster.size) < 0.3)
    units = np.bincount(cluster, weights=values) + sizes * margin
    n_draws = 50_000
    weights = generator.standard_exponential((n_draws, n_clusters + 1))
    drawn = np.mean(weights[:, :-1] @ units - weights[:, -1] * sizes.max() * (1 - margin) <= 0)
    expected = BoundedMean.of(values, cluster=cluster).pvalue_above(-margin)
    assert drawn == pytest.approx(expected, abs=4 * sqrt(expected * (1 - expected) / n_draws) + 1e-5)


def test_many_different_values_are_put_on_a_grid_that_proves_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.clip(rng(10).normal(0, 0.1, 3_000), -1, 1)
    on_grid = BoundedMean.of(values).interval(confidence_level=0.9)
    monkeypatch.setattr(module, "_MOST_VALUES", 10_000)
    exact = BoundedMean.of(values).interval(confidence_level=0.9)
    assert on_grid.low <= exact.low <= on_grid.low + 1e-6
    assert on_grid.high - 1e-6 <= exact.high <= on_grid.high


CHANGED = np.array([1] * 6 + [0] * 5 + [1] * 189), np.array([0] * 6 + [1] * 5 + [1] * 189)
"""Five gains and six losses of 200 items."""


def test_items_copied_within_clusters_add_no_evidence() -> None:
    copies, clusters = [np.repeat(arm, 5) for arm in CHANGED], np.repeat(np.arange(200), 5)
    designs = ((CHANGED, np.arange(200)), (copies, clusters))
    once, copied = (clustered_mcnemar(cluster_cells(*arms, cluster=cluster)) for arms, cluster in designs)
    assert copied == pytest.approx(once)
    assert clustered_mcnemar([[3, 0, 0, 1], [2, 0, 0, 0]]) == (0.0, 1.0)
    cells = cluster_cells([1, 1, 0, 0, 1], [1, 0, 1, 0, 1], cluster=["x", "x", "y", "y", "x"])
    assert cells.tolist() == [[2, 0, 1, 0], [0, 1, 0, 1]]
    once, copied = (clustered_equivalence(*arms, cluster=cluster, margin=0.05) for arms, cluster in designs)
    assert copied.design_effect == pytest.approx(5.0, rel=0.02)
    assert copied.pvalue_lower == pytest.approx(once.pvalue_lower, rel=0.05)
    assert copied.pvalue_bounded_lower == pytest.approx(once.pvalue_bounded_lower)
    assert equivalence(counts_of(1000, 25, 30), margin=0.05).pvalue < copied.pvalue_lower / 10


def test_clusters_of_one_item_have_the_score_tests_of_independent_items() -> None:
    clustered = clustered_equivalence(*CHANGED, cluster=np.arange(200), margin=0.08)
    free = equivalence(counts_of(200, 5, 6), margin=0.08)
    assert clustered.design_effect == pytest.approx(1.0)
    assert (clustered.pvalue_lower, clustered.pvalue_upper) == pytest.approx((free.pvalue_lower, free.pvalue_upper))
    assert clustered.interval.low <= free.interval.low
    assert clustered.is_equivalent


def test_unchanged_clusters_count_as_one_item_each() -> None:
    same = np.ones(600)
    result = clustered_equivalence(same, same, cluster=np.repeat(np.arange(120), 5), margin=0.02)
    assert result.design_effect == 5.0
    assert result.pvalue_lower == equivalence(counts_of(120, 0, 0), margin=0.02).pvalue
    assert result.pvalue_bounded_lower == result.pvalue_bounded_upper == pytest.approx(0.98**120)
    assert not result.is_equivalent
    in_one = clustered_equivalence(same, same, cluster=["a"] * 600, margin=0.02)  # is one item
    assert in_one.pvalue_bounded_lower == pytest.approx(0.98)

"""Items in clusters: errors, tests and equivalence that do not take five answers about one passage for five items."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.clustered import cluster_cells, clustered_equivalence, clustered_mcnemar
from qualab.stats.counts import PairedCounts
from qualab.stats.equivalence import equivalence
from qualab.stats.mean import mean_difference, mean_equivalence, paired_differences
from tests.stats.reference import is_inside

RNG = np.random.default_rng(3)


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
    error, degrees = sandwich(values, codes)
    assert found.standard_error == pytest.approx(error)
    assert found.degrees_of_freedom == pytest.approx(degrees)


def test_without_clusters_it_is_the_paired_t_test() -> None:
    baseline, candidate = RNG.random(15), RNG.random(15)
    found = mean_difference(paired_differences(baseline, candidate))
    reference = scipy.stats.ttest_rel(candidate, baseline)
    assert found.statistic == pytest.approx(reference.statistic)
    assert found.pvalue == pytest.approx(reference.pvalue)
    assert found.interval.low == pytest.approx(reference.confidence_interval().low)
    assert found.design_effect == pytest.approx(1.0)


def test_equivalence_of_means_agrees_with_its_interval() -> None:
    values = RNG.normal(0.002, 0.05, 60)
    for margin in (0.005, 0.01, 0.02, 0.05):
        result = mean_equivalence(values, margin=margin)
        assert result.is_equivalent == is_inside(result.interval, margin)
        assert result.pvalue == pytest.approx(
            max(
                scipy.stats.ttest_1samp(values, -margin, alternative="greater").pvalue,
                scipy.stats.ttest_1samp(values, margin, alternative="less").pvalue,
            )
        )


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4)), min_size=6, max_size=30), st.randoms())
def test_order_and_names_of_clusters_do_not_matter(rows: list[tuple[int, int]], random: st.random.Random) -> None:
    values, codes = [row[0] / 3 for row in rows], [row[1] for row in rows]
    if len(set(codes)) < 2 or len(set(values)) < 2:
        return
    shuffled = list(rows)
    random.shuffle(shuffled)
    try:
        here = mean_difference(values, cluster=codes)
    except InsufficientData:
        return
    there = mean_difference([row[0] / 3 for row in shuffled], cluster=[f"passage {row[1]}" for row in shuffled])
    assert here == there


def test_swapping_the_arms_negates_the_difference() -> None:
    values, codes = RNG.normal(size=30), RNG.integers(0, 8, 30)
    here, there = mean_difference(values, cluster=codes), mean_difference(-values, cluster=codes)
    assert here.difference == -there.difference
    assert here.interval.low == pytest.approx(-there.interval.high)
    assert here.pvalue == pytest.approx(there.pvalue)


@pytest.mark.parametrize(
    ("differences", "cluster"),
    [([0.1], None), ([0.1, 0.2], ["a", "a"]), ([0.0, 0.0, 0.0], None), ([1.0, 1.0], None), ([], None)],
)
def test_no_spread_is_no_certainty(differences: list[float], cluster: list[str] | None) -> None:
    with pytest.raises(InsufficientData):
        mean_difference(differences, cluster=cluster)


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidValue):
        mean_difference([0.1, 0.2, 0.3], cluster=["a", "b"])
    with pytest.raises(InvalidValue):
        mean_difference([0.1, float("nan")])
    with pytest.raises(InvalidValue):
        mean_difference([[0.1], [0.2]])
    with pytest.raises(InvalidValue):
        mean_equivalence([0.1, 0.2], margin=0.0)


def test_items_copied_within_clusters_add_no_evidence() -> None:
    baseline, candidate = np.array([1] * 12 + [0] * 3 + [1] * 30), np.array([0] * 12 + [1] * 3 + [1] * 30)
    once = clustered_mcnemar(cluster_cells(baseline, candidate, cluster=list(range(45))))
    copied = clustered_mcnemar(
        cluster_cells(np.repeat(baseline, 5), np.repeat(candidate, 5), cluster=np.repeat(np.arange(45), 5))
    )
    assert copied.statistic == pytest.approx(once.statistic)
    assert copied.pvalue == pytest.approx(once.pvalue)


def test_without_a_discordant_item_clusters_show_no_difference() -> None:
    result = clustered_mcnemar([[3, 0, 0, 1], [2, 0, 0, 0]])
    assert (result.statistic, result.pvalue) == (0.0, 1.0)
    with pytest.raises(InsufficientData):
        clustered_mcnemar([[3, 1, 0, 1]])
    with pytest.raises(InvalidValue):
        clustered_mcnemar([[3, 1, 0], [1, 1, 1]])
    with pytest.raises(InvalidValue):
        clustered_mcnemar([[0, 0, 0, 0], [1, 1, 1, 0]])


def test_cells_count_each_cluster() -> None:
    cells = cluster_cells([1, 1, 0, 0, 1], [1, 0, 1, 0, 1], cluster=["x", "x", "y", "y", "x"])
    assert cells.tolist() == [[2, 0, 1, 0], [0, 1, 0, 1]]
    with pytest.raises(InvalidValue):
        cluster_cells([1, 0.5], [1, 1], cluster=["x", "y"])


def test_clusters_of_one_item_have_the_score_tests_of_independent_items() -> None:
    baseline = np.array([1] * 6 + [0] * 5 + [1] * 589)
    candidate = np.array([0] * 6 + [1] * 5 + [1] * 589)
    clustered = clustered_equivalence(baseline, candidate, cluster=np.arange(600), margin=0.02)
    free = equivalence(PairedCounts(n_items=600, gains=5, losses=6), margin=0.02)
    assert clustered.design_effect == pytest.approx(1.0)
    assert (clustered.pvalue_lower, clustered.pvalue_upper) == pytest.approx((free.pvalue_lower, free.pvalue_upper))
    assert clustered.interval.low <= free.interval.low
    assert clustered.is_equivalent


def test_items_copied_within_clusters_prove_no_smaller_margin() -> None:
    baseline = np.array([1] * 6 + [0] * 5 + [1] * 189)
    candidate = np.array([0] * 6 + [1] * 5 + [1] * 189)
    once = clustered_equivalence(baseline, candidate, cluster=np.arange(200), margin=0.05)
    copied = clustered_equivalence(
        np.repeat(baseline, 5), np.repeat(candidate, 5), cluster=np.repeat(np.arange(200), 5), margin=0.05
    )
    assert copied.design_effect == pytest.approx(5.0, rel=0.02)
    assert copied.pvalue_lower == pytest.approx(once.pvalue_lower, rel=0.05)
    assert copied.pvalue_bounded_lower == pytest.approx(once.pvalue_bounded_lower)
    naive = equivalence(PairedCounts(n_items=1000, gains=25, losses=30), margin=0.05)
    assert naive.pvalue < copied.pvalue_lower / 10


def test_unchanged_clusters_count_as_one_item_each() -> None:
    same = np.ones(600)
    result = clustered_equivalence(same, same, cluster=np.repeat(np.arange(120), 5), margin=0.02)
    assert result.design_effect == 5.0
    assert result.pvalue_lower == equivalence(PairedCounts(n_items=120, gains=0, losses=0), margin=0.02).pvalue
    assert result.pvalue_bounded_lower == result.pvalue_bounded_upper == pytest.approx(0.98**120)
    assert not result.is_equivalent
    # all in one cluster is one item
    assert clustered_equivalence(same, same, cluster=["a"] * 600, margin=0.02).pvalue_bounded_lower == pytest.approx(
        0.98
    )

"""Many metrics at once: step-down max-T against full enumeration, and what must hold of it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qualab.errors import InvalidValue
from qualab.stats.resampling import holm, max_t, patterns, sign_flip, signed_sums


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def enumerated(table: np.ndarray) -> np.ndarray:
    """Step-down adjusted mid-p values over all sign patterns, straight from the definition."""
    scales = np.sqrt((table**2).sum(axis=0))
    scales[scales == 0] = 1.0

    def statistics(signs: tuple[int, ...]) -> np.ndarray:
        return np.abs(np.array(signs) @ table / scales)

    observed = statistics((1,) * len(table))
    flips = np.array([statistics(signs) for signs in product((1, -1), repeat=len(table))])
    order = np.argsort(-observed, kind="stable")
    adjusted = np.empty(table.shape[1])
    running = 0.0
    for position, metric in enumerate(order):
        largest = flips[:, order[position:]].max(axis=1)
        beyond = largest > observed[metric] + (1e-9 if table[:, metric].any() else -1e-9)
        running = max(running, float(np.mean(largest >= observed[metric] - 1e-9) + np.mean(beyond)) / 2)
        adjusted[metric] = running
    return adjusted


tables = st.integers(1, 8).flatmap(
    lambda n_items: st.lists(st.lists(st.integers(-1, 1), min_size=3, max_size=3), min_size=n_items, max_size=n_items)
)


@settings(max_examples=40, deadline=None)
@given(tables)
def test_max_t_is_the_enumeration(rows: list[list[int]]) -> None:
    table = np.array(rows, dtype=float)
    result = max_t(table, rng=rng())
    assert result.is_exact
    assert result.pvalues == pytest.approx(enumerated(table), abs=1e-12)


def test_fractional_scores_are_enumerated_too() -> None:
    table = rng(2).integers(-3, 4, size=(9, 4)) / 3.0
    assert max_t(table, rng=rng()).pvalues == pytest.approx(enumerated(table), abs=1e-12)


def correlated(n_items: int, n_metrics: int, seed: int) -> np.ndarray:
    generator = rng(seed)
    changed = generator.random(n_items) < 0.2
    signs = generator.choice([-1.0, 1.0], n_items)
    follows = generator.random((n_items, n_metrics)) < 0.4
    return np.where(follows & changed[:, None], signs[:, None], 0.0)


def test_correlated_metrics_are_adjusted_less_than_by_holm() -> None:
    base = correlated(600, 1, 4)[:, 0]
    base[:12] = -1.0
    table = np.column_stack([base] * 10)
    result = max_t(table, n_resamples=9_999, rng=rng())
    alone = sign_flip(base, rng=rng()).pvalue
    assert result.pvalues == pytest.approx([alone] * 10, abs=0.015)  # ten copies are one metric
    assert holm([alone] * 10)[0] == pytest.approx(min(1.0, 10 * alone))


def test_adjusted_pvalues_are_ordered_as_they_must_be() -> None:
    table = correlated(500, 12, 5)
    result = max_t(table, n_resamples=2_000, rng=rng())
    alone = [sign_flip(column, rng=rng()).pvalue for column in table.T]
    assert np.all(result.pvalues >= np.array(alone) - 0.04)
    order = np.argsort(-np.abs(table.sum(axis=0)) / np.sqrt((table**2).sum(axis=0)))
    assert np.all(np.diff(result.pvalues[order]) >= 0)


def test_pvalues_do_not_move_with_the_order_of_items_or_metrics() -> None:
    table = correlated(300, 5, 6)
    here = max_t(table, n_resamples=999, rng=rng())
    there = max_t(table[rng(7).permutation(300)], n_resamples=999, rng=rng())
    assert np.array_equal(here.pvalues, there.pvalues)


def test_swapping_the_arms_keeps_two_sided_pvalues() -> None:
    table = correlated(300, 5, 8)
    here, there = max_t(table, n_resamples=999, rng=rng()), max_t(-table, n_resamples=999, rng=rng())
    assert np.array_equal(here.pvalues, there.pvalues)


def test_clusters_flip_together() -> None:
    table = np.repeat(np.array([[1.0, 0.0], [1.0, -1.0], [0.0, 1.0], [1.0, 0.0]]), 5, axis=0)
    result = max_t(table, cluster=np.repeat(np.arange(4), 5), rng=rng())
    assert result.pvalues == pytest.approx(enumerated(table[::5]), abs=1e-12)


def test_metrics_that_nothing_changed_in_show_nothing() -> None:
    table = np.zeros((50, 3))
    table[:20, 0] = -1.0
    result = max_t(table, n_resamples=999, rng=rng())
    assert result.pvalues[0] == pytest.approx(0.001, abs=0.002)
    assert result.pvalues[1:] == pytest.approx([1.0, 1.0])
    assert max_t(np.zeros((50, 3)), rng=rng()).pvalues == pytest.approx([1.0] * 3)


def test_bad_matrices_are_refused() -> None:
    with pytest.raises(InvalidValue):
        max_t([1.0, 2.0], rng=rng())
    with pytest.raises(InvalidValue):
        max_t([[np.nan]], rng=rng())
    with pytest.raises(InvalidValue):
        max_t([[1.0], [0.0]], cluster=["a"], rng=rng())


def test_grouped_rows_have_the_moments_of_their_signs() -> None:
    """Large groups are counted from random bits, small ones flipped row by row: mean 0 and the right variance."""
    rows = np.repeat(np.array([[1.0, 0.0], [1.0, 1.0], [-1.0, 2.0]]), [300, 5, 70], axis=0)
    sums = signed_sums(patterns(rows), n_resamples=20_000, rng=rng())
    covariance = rows.T @ rows
    assert np.abs(sums.mean(axis=0)).max() < 4 * np.sqrt(covariance.max() / 20_000)
    assert np.cov(sums.T) == pytest.approx(covariance, rel=0.06, abs=12)
    assert np.all((sums[:, 0] - rows[:, 0].sum()) % 2 == 0)


def test_blocks_and_threads_do_not_change_the_sums() -> None:
    rows = correlated(3_000, 4, 9)
    here, there = (signed_sums(patterns(rows), n_resamples=5_000, rng=rng()) for _ in range(2))
    assert np.array_equal(here, there)
    halves = here[:2_500], here[2_500:]
    assert not np.array_equal(*halves)

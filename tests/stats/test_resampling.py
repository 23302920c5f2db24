"""Sign flips, max-T and Holm: against full enumeration, in any order, and where nothing changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from qualab.stats import resampling
from qualab.stats.difference import mcnemar
from qualab.stats.resampling import global_sign_flip, holm, max_t, sign_flip
from tests.stats.reference import counts_of, rng


def enumerated(values: list[Fraction]) -> float:
    """Sign-flip p-value in exact arithmetic over all sign patterns, ties counting half."""

    def extremity(signs: tuple[int, ...]) -> Fraction:
        return abs(sum((s * v for s, v in zip(signs, values, strict=True)), Fraction(0)))

    observed = extremity((1,) * len(values))
    every = list(product((1, -1), repeat=len(values)))
    if not any(values):
        return 1.0
    return sum((extremity(signs) >= observed) + (extremity(signs) > observed) for signs in every) / len(every) / 2


@settings(max_examples=40)
@given(st.lists(st.fractions(min_value=-1, max_value=1, max_denominator=12), min_size=1, max_size=9))
def test_sign_flip_is_the_enumeration_in_exact_arithmetic(values: list[Fraction]) -> None:
    result = sign_flip([float(value) for value in values], rng=rng())
    assert result.is_exact
    assert result.pvalue == pytest.approx(enumerated(values), abs=1e-12)


def test_sign_flip_of_zeros_and_ones_is_the_mid_p_mcnemar_test() -> None:
    expected = mcnemar(counts_of(5860, 400, 460))
    result = sign_flip([1.0] * 400 + [-1.0] * 460 + [0.0] * 5000, rng=rng())
    assert result.is_exact
    assert result.pvalue == pytest.approx(expected.pvalue, abs=1e-12)
    assert result.pvalue_whole == pytest.approx(expected.pvalue_exact, abs=1e-12)
    assert result.difference == pytest.approx(-60 / 5860)


def test_random_sign_flips_come_close_to_the_exact_value() -> None:
    values = rng(5).normal(0.35, 1.0, 60)
    drawn = sign_flip(values, n_resamples=20_000, rng=rng(6))
    assert not drawn.is_exact
    permuted = scipy.stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=20_000, rng=rng(7)
    )
    assert drawn.pvalue == pytest.approx(permuted.pvalue, abs=0.012)
    assert 0.01 < drawn.pvalue < 0.4


def test_clusters_flip_together() -> None:
    result = sign_flip([1.0, 1.0, 1.0, -1.0, 1.0, 1.0], cluster=["a", "a", "a", "b", "c", "c"], rng=rng())
    assert result.pvalue == enumerated([Fraction(3), Fraction(-1), Fraction(2)])
    copied = sign_flip(np.repeat([1.0, 1.0, -1.0], 40), cluster=np.repeat([0, 1, 2], 40), rng=rng())
    assert copied.pvalue == 0.625
    table = np.repeat(np.array([[1.0, 0.0], [1.0, -1.0], [0.0, 1.0], [1.0, 0.0]]), 5, axis=0)
    together = max_t(table, cluster=np.repeat(np.arange(4), 5), rng=rng())
    assert together.pvalues == pytest.approx(stepped_down(table[::5]), abs=1e-12)


def test_no_difference_is_no_evidence() -> None:
    assert sign_flip([0.0, 0.0], rng=rng()).pvalue == 1.0
    assert (sign_flip([1.0], rng=rng()).pvalue, sign_flip([1.0], rng=rng()).pvalue_whole) == (0.5, 1.0)
    table = np.zeros((50, 3))
    table[:20, 0] = -1.0
    pvalues = max_t(table, n_resamples=999, rng=rng()).pvalues
    assert pvalues[0] == pytest.approx(0.001, abs=0.002)
    assert pvalues[1:].tolist() == max_t(np.zeros((50, 2)), rng=rng()).pvalues.tolist() == [1.0, 1.0]


def test_the_global_test_sees_a_small_loss_everywhere() -> None:
    generator = rng(11)
    table = np.where(generator.random((2000, 12)) < 0.03, np.where(generator.random((2000, 12)) < 0.7, -1.0, 1.0), 0.0)
    everywhere = global_sign_flip(table, n_items=[2000] * 12, n_resamples=9_999, rng=rng())
    assert everywhere.pvalue < min(sign_flip(column, rng=rng()).pvalue for column in table.T)
    assert everywhere.difference == pytest.approx(table.mean())
    unequal = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, -1.0], [1.0, 0.0]])  # 2 of 4 and -1 of 2
    assert global_sign_flip(unequal, n_items=[4, 2], rng=rng()).difference == pytest.approx(0.0)


def stepped_down(table: np.ndarray) -> np.ndarray:
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
    lambda n_items: st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=n_items, max_size=n_items)
)


@settings(max_examples=40)
@given(tables, st.sampled_from([1.0, 3.0]))
def test_max_t_is_the_enumeration(rows: list[list[int]], denominator: float) -> None:
    table = np.array(rows) / denominator
    result = max_t(table, rng=rng())
    assert result.n_resamples == 2 ** int(table.any(axis=1).sum())
    assert result.pvalues == pytest.approx(stepped_down(table), abs=1e-12)


def correlated(n_items: int, n_metrics: int, seed: int) -> np.ndarray:
    generator = rng(seed)
    changed = generator.random(n_items) < 0.2
    signs = generator.choice([-1.0, 1.0], n_items)
    follows = generator.random((n_items, n_metrics)) < 0.4
    return np.where(follows & changed[:, None], signs[:, None], 0.0)


def test_correlated_metrics_are_adjusted_less_than_by_holm() -> None:
    base = correlated(600, 1, 4)[:, 0]
    base[:12] = -1.0
    result = max_t(np.column_stack([base] * 10), n_resamples=9_999, rng=rng())
    alone = sign_flip(base, rng=rng()).pvalue
    assert result.pvalues == pytest.approx([alone] * 10, abs=0.015)  # ten copies are one metric
    assert holm([alone] * 10)[0] == pytest.approx(min(1.0, 10 * alone))


def test_pvalues_do_not_move_with_the_order_of_items_the_sign_of_all_or_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = correlated(3_000, 5, 6)
    values, order = np.round(rng(8).normal(0.1, 1.0, 3_000), 3), rng(7).permutation(3_000)

    def pvalues(table: np.ndarray, values: np.ndarray) -> list[float]:
        flipped = sign_flip(values, n_resamples=999, rng=rng())
        return [*max_t(table, n_resamples=5_000, rng=rng()).pvalues.tolist(), flipped.pvalue, flipped.pvalue_whole]

    expected = pvalues(table, values)
    assert pvalues(table[order], values[order]) == expected
    assert pvalues(-table, -values) == expected
    monkeypatch.setattr(resampling, "ThreadPoolExecutor", lambda max_workers: ThreadPoolExecutor(1))
    assert pvalues(table, values) == expected


@given(st.lists(st.floats(0.0, 1.0), max_size=12))
def test_holm_keeps_the_order_and_never_lowers_a_pvalue(pvalues: list[float]) -> None:
    adjusted = holm(sorted(pvalues))
    assert all(after >= before for before, after in zip(sorted(pvalues), adjusted, strict=True))
    assert list(adjusted) == sorted(adjusted) == sorted(holm(pvalues))

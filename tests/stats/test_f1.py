"""Macro-F1: swaps and bootstraps against enumeration and other libraries, and the bound by counts."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from qualab.errors import InsufficientData
from qualab.stats.f1 import JoinedAnswers, LabelledAnswers, bound_macro_f1
from qualab.stats.resampling import ResamplingResult
from tests.stats.reference import bootstrap_macro_f1, bootstrap_mean, joined, macro_f1, mean_score, rng


def swapped(*tasks: LabelledAnswers, n_resamples: int = 9_999) -> ResamplingResult:
    return JoinedAnswers.of(tasks).swap_test(n_resamples=n_resamples, rng=rng())


def same(truth: list[int], **changes: Any) -> LabelledAnswers:
    """Everything right in both arms, but for the changes."""
    return LabelledAnswers(**{"truth": truth, "baseline": truth, "candidate": truth, **changes})


def answers(n_items: int, seed: int, *, changed: float) -> LabelledAnswers:
    generator = rng(seed)
    truth = generator.integers(0, 3, n_items)
    baseline = np.where(generator.random(n_items) < 0.7, truth, generator.integers(0, 3, n_items))
    candidate = np.where(generator.random(n_items) < changed, generator.integers(0, 3, n_items), baseline)
    return same(truth.tolist(), baseline=baseline.tolist(), candidate=candidate.tolist())


labels = st.integers(0, 2)


@settings(max_examples=40)
@given(st.lists(st.tuples(labels, labels), min_size=1, max_size=30))
def test_macro_f1_is_that_of_scikit_learn(rows: list[tuple[int, int]]) -> None:
    truth, given_answers = (list(column) for column in zip(*rows, strict=True))
    expected = f1_score(truth, given_answers, average="macro", zero_division=0)
    assert JoinedAnswers.of([same(truth, baseline=given_answers)]).scores == pytest.approx((expected, 1.0))


@settings(max_examples=15)
@given(st.lists(st.tuples(labels, labels, labels), min_size=2, max_size=8))
def test_macro_f1_is_tested_by_every_swap(rows: list[tuple[int, int, int]]) -> None:
    truth, baseline, candidate = (list(column) for column in zip(*rows, strict=True))
    observed = macro_f1(truth, candidate) - macro_f1(truth, baseline)
    extreme = 0
    for swaps in product((False, True), repeat=len(rows)):
        a = [c if s else b for s, b, c in zip(swaps, baseline, candidate, strict=True)]
        b = [b if s else c for s, b, c in zip(swaps, baseline, candidate, strict=True)]
        extreme += abs(macro_f1(truth, b) - macro_f1(truth, a)) >= abs(observed) - 1e-12
    result = swapped(LabelledAnswers(truth=truth, baseline=baseline, candidate=candidate))
    assert result.difference == pytest.approx(observed)
    assert result.pvalue_whole == pytest.approx(extreme / 2 ** len(rows))
    assert result.pvalue <= result.pvalue_whole <= 2 * result.pvalue


def test_a_group_is_the_size_weighted_mean_of_its_tasks() -> None:
    tasks = [answers(200, 1, changed=0.1), answers(80, 2, changed=0.2)]
    group = JoinedAnswers.of(tasks)
    expected = [
        np.average([macro_f1(task.truth, given) for task, given in zip(tasks, arm, strict=True)], weights=[200, 80])
        for arm in ([task.baseline for task in tasks], [task.candidate for task in tasks])
    ]
    assert group.scores == pytest.approx(tuple(expected))
    difference = group.scores[1] - group.scores[0]
    assert group.swap_test(n_resamples=99, rng=rng()).difference == difference
    bootstrap = bootstrap_macro_f1(*tasks, n_resamples=2_000, rng=rng())
    assert bootstrap.difference == pytest.approx(difference)
    assert bootstrap.interval.low < difference < bootstrap.interval.high


def test_f1_swaps_of_clusters_move_together() -> None:
    task = same([0, 1] * 20, candidate=[1, 0] * 10 + [0, 1] * 10, cluster=["a"] * 20 + ["b"] * 20)
    swap = swapped(task)
    assert (swap.pvalue, swap.pvalue_whole) == (0.5, 1.0)  # one cluster changed: swapped or not, as extreme
    assert swapped(same([0, 1] * 20, candidate=task.candidate), n_resamples=999).pvalue < 0.01


def test_bootstrap_of_a_mean_is_that_of_scipy() -> None:
    values = rng(4).exponential(1.0, 60)
    found = bootstrap_mean(values, n_resamples=20_000, rng=rng())
    expected = scipy.stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa", rng=rng(2))
    assert found.interval.low == pytest.approx(expected.confidence_interval.low, abs=0.012)
    assert found.interval.high == pytest.approx(expected.confidence_interval.high, abs=0.012)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=0.03)
    assert found.difference == pytest.approx(values.mean())


def test_bootstrap_draws_whole_clusters_in_any_order() -> None:
    values = np.round(rng(6).normal(size=40), 2)
    once, shuffled = (bootstrap_mean(v, rng=rng(), n_resamples=3_000) for v in (values, rng(9).permutation(values)))
    copied = bootstrap_mean(np.repeat(values, 5), cluster=np.repeat(np.arange(40), 5), rng=rng(), n_resamples=3_000)
    assert copied.standard_error == pytest.approx(once.standard_error)
    limits = (shuffled.interval.low, shuffled.interval.high)
    assert limits == pytest.approx((once.interval.low, once.interval.high), abs=1e-12)


def test_tasks_keep_their_sizes() -> None:
    features = np.column_stack([np.repeat([0.0, 1.0], 50), np.ones(100)])
    nothing = np.column_stack([np.zeros(100), np.ones(100)])
    design: Any = {"confidence_levels": [0.95], "n_resamples": 500}
    (free,) = joined(nothing, features, mean_score).bootstraps(**design, rng=rng())
    assert free.interval.high - free.interval.low > 0.15
    with pytest.raises(InsufficientData):  # each task is constant, so nothing varies
        joined(nothing, features, mean_score, task=np.repeat([0, 1], 50)).bootstraps(**design, rng=rng())


@pytest.mark.parametrize("truth", [(0, 0, 1, 1), (0, 1, 1, 1), (0, 0, 1, 1, 2)])
def test_no_change_moves_macro_f1_by_more_than_its_bound(truth: tuple[int, ...]) -> None:
    classes = sorted(set(truth))
    each = 3.0 / (len(classes) * min(truth.count(label) for label in classes))
    every = list(product(classes, repeat=len(truth)))
    for before in every:
        for after in [every[place] for place in rng().integers(len(every), size=30)]:
            worse = sum(b not in (a, t) for t, a, b in zip(truth, before, after, strict=True))
            better = sum(a not in (b, t) for t, a, b in zip(truth, before, after, strict=True))
            difference = macro_f1(truth, after) - macro_f1(truth, before)
            assert -worse * each - 1e-12 <= difference <= better * each + 1e-12


@pytest.mark.parametrize(("size", "n_units"), [(1, 600), (4, 150)])
def test_no_change_gives_the_rule_of_three_and_a_cluster_counts_as_one_item(size: int, n_units: int) -> None:
    task = same([0, 1] * 300, cluster=[n // size for n in range(600)])
    assert bound_macro_f1([task], confidence_level=0.9).high == pytest.approx(3 * (1 - 0.05 ** (1 / n_units)))


def test_gains_do_not_widen_the_side_of_losses() -> None:
    truth = [0, 1] * 300
    wrong = [1 - truth[0], *truth[1:]]
    found, mirrored = bound_macro_f1([same(truth, baseline=wrong)]), bound_macro_f1([same(truth, candidate=wrong)])
    assert found.high > -found.low
    assert (mirrored.low, mirrored.high) == (-found.high, -found.low)

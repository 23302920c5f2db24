"""Sign flips, swaps and bootstraps: against full enumeration, in any order, and where nothing changed."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.bootstrap import paired_bootstraps
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar
from qualab.stats.f1 import JoinedAnswers, LabelledAnswers
from qualab.stats.resampling import ResamplingResult, global_sign_flip, lattice, sign_flip, swap_test
from tests.stats.reference import bootstrap_macro_f1, bootstrap_mean, macro_f1


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def swapped(*tasks: LabelledAnswers, n_resamples: int = 9_999) -> ResamplingResult:
    return JoinedAnswers.of(tasks, None).swap_test(n_resamples=n_resamples, rng=rng())


def enumerated(values: list[Fraction]) -> float:
    """Sign-flip p-value in exact arithmetic over all sign patterns, ties counting half."""

    def extremity(signs: tuple[int, ...]) -> Fraction:
        return abs(sum((s * v for s, v in zip(signs, values, strict=True)), Fraction(0)))

    observed = extremity((1,) * len(values))
    patterns = list(product((1, -1), repeat=len(values)))
    if not any(values):
        return 1.0
    return sum((extremity(signs) >= observed) + (extremity(signs) > observed) for signs in patterns) / len(patterns) / 2


fractions = st.fractions(min_value=-1, max_value=1, max_denominator=12)


@settings(max_examples=40, deadline=None)
@given(st.lists(fractions, min_size=1, max_size=9))
def test_sign_flip_is_the_enumeration_in_exact_arithmetic(values: list[Fraction]) -> None:
    floats = [float(value) for value in values]
    result = sign_flip(floats, rng=rng())
    assert result.is_exact
    assert result.pvalue == pytest.approx(enumerated(values), abs=1e-12)


def test_ties_of_thirds_are_ties() -> None:
    """1/3 + 1/3 and 2/3 differ in floating point; as whole numbers they do not."""
    values = [Fraction(1, 3)] * 4 + [Fraction(2, 3)] * 3 + [Fraction(-1, 3)] * 2
    assert sign_flip([float(v) for v in values], rng=rng()).pvalue == pytest.approx(enumerated(values), abs=1e-12)


def test_sign_flip_of_zeros_and_ones_is_the_mid_p_mcnemar_test() -> None:
    values = [1.0] * 400 + [-1.0] * 460 + [0.0] * 5000
    expected = mcnemar(PairedCounts(n_items=5860, gains=400, losses=460))
    result = sign_flip(values, rng=rng())
    assert result.is_exact
    assert result.pvalue == pytest.approx(expected.pvalue, abs=1e-12)
    assert result.pvalue_whole == pytest.approx(expected.pvalue_exact, abs=1e-12)
    assert result.difference == pytest.approx(-60 / 5860)


def test_random_sign_flips_come_close_to_the_exact_value() -> None:
    values = rng(5).normal(0.35, 1.0, 60)
    drawn = sign_flip(values, n_resamples=20_000, rng=rng(6))
    assert not drawn.is_exact
    reference = scipy.stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=20_000, rng=rng(7)
    )
    assert drawn.pvalue == pytest.approx(reference.pvalue, abs=0.012)
    assert 0.01 < drawn.pvalue < 0.4


def test_pvalues_do_not_move_with_the_order_of_items() -> None:
    values = np.round(rng(8).normal(0.1, 1.0, 500), 3)
    shuffled = rng(9).permutation(values)
    assert sign_flip(values, n_resamples=999, rng=rng()) == sign_flip(shuffled, n_resamples=999, rng=rng())


def test_clusters_flip_together() -> None:
    values = [1.0, 1.0, 1.0, -1.0, 1.0, 1.0]
    result = sign_flip(values, cluster=["a", "a", "a", "b", "c", "c"], rng=rng())
    assert result.pvalue == enumerated([Fraction(3), Fraction(-1), Fraction(2)])
    copied = sign_flip(np.repeat([1.0, 1.0, -1.0], 40), cluster=np.repeat([0, 1, 2], 40), rng=rng())
    assert copied.pvalue == enumerated([Fraction(1), Fraction(1), Fraction(-1)]) == 0.625


def test_no_difference_is_no_evidence() -> None:
    assert sign_flip([0.0, 0.0], rng=rng()).pvalue == 1.0
    assert (sign_flip([1.0], rng=rng()).pvalue, sign_flip([1.0], rng=rng()).pvalue_whole) == (0.5, 1.0)
    with pytest.raises(InsufficientData):
        sign_flip([], rng=rng())
    with pytest.raises(InvalidValue):
        sign_flip([0.5, float("nan")], rng=rng())
    with pytest.raises(InvalidValue):
        sign_flip([[0.5]], rng=rng())


@given(st.lists(st.floats(-1, 1, allow_nan=False), min_size=1, max_size=30))
def test_lattice_holds_the_values(values: list[float]) -> None:
    found = lattice(np.array(values))
    assert np.array_equal(found.steps, np.rint(found.steps))
    assert np.abs(found.steps).sum() < 2**53
    assert found.steps * found.unit == pytest.approx(np.array(values), abs=1e-11)


def test_the_global_test_sees_a_small_loss_everywhere() -> None:
    generator = rng(11)
    table = np.where(generator.random((2000, 12)) < 0.03, np.where(generator.random((2000, 12)) < 0.7, -1.0, 1.0), 0.0)
    worst_alone = min(sign_flip(column, rng=rng()).pvalue for column in table.T)
    everywhere = global_sign_flip(table, n_items=[2000] * 12, n_resamples=9_999, rng=rng())
    assert everywhere.pvalue < worst_alone
    assert everywhere.difference == pytest.approx(table.mean())
    with pytest.raises(InvalidValue):
        global_sign_flip(table, n_items=[2000] * 11, rng=rng())


def test_the_global_difference_is_the_mean_of_the_metrics_differences() -> None:
    table = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, -1.0], [1.0, 0.0]])
    result = global_sign_flip(table, n_items=[4, 2], rng=rng())
    assert result.difference == pytest.approx((2 / 4 - 1 / 2) / 2)


labels = st.integers(0, 2)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(labels, labels), min_size=1, max_size=30))
def test_macro_f1_is_that_of_scikit_learn(rows: list[tuple[int, int]]) -> None:
    truth, answers = zip(*rows, strict=True)
    task = LabelledAnswers(truth=truth, baseline=answers, candidate=truth)
    assert JoinedAnswers.of([task], None).scores == pytest.approx(
        (f1_score(truth, answers, average="macro", zero_division=0), 1.0)
    )


@settings(max_examples=15, deadline=None)
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


def answers(n_items: int, seed: int, *, changed: float, clusters: int | None = None) -> LabelledAnswers:
    generator = rng(seed)
    truth = generator.integers(0, 3, n_items)
    baseline = np.where(generator.random(n_items) < 0.7, truth, generator.integers(0, 3, n_items))
    candidate = np.where(generator.random(n_items) < changed, generator.integers(0, 3, n_items), baseline)
    cluster = None if clusters is None else generator.integers(0, clusters, n_items).tolist()
    return LabelledAnswers(
        truth=truth.tolist(), baseline=baseline.tolist(), candidate=candidate.tolist(), cluster=cluster
    )


def test_a_group_is_the_mean_of_its_tasks() -> None:
    tasks = [answers(200, 1, changed=0.1), answers(80, 2, changed=0.2)]
    baseline, candidate = JoinedAnswers.of(tasks, None).scores
    assert baseline == pytest.approx(np.mean([macro_f1(task.truth, task.baseline) for task in tasks]))
    assert candidate == pytest.approx(np.mean([macro_f1(task.truth, task.candidate) for task in tasks]))
    assert swapped(*tasks, n_resamples=499).difference == pytest.approx(candidate - baseline)


def test_swapping_the_arms_mirrors_the_f1_comparison() -> None:
    task = answers(300, 3, changed=0.1)
    mirrored = LabelledAnswers(truth=task.truth, baseline=task.candidate, candidate=task.baseline)
    here, there = (swapped(one, n_resamples=999) for one in (task, mirrored))
    assert here.difference == pytest.approx(-there.difference)
    assert here.pvalue == there.pvalue


def test_f1_swaps_of_clusters_move_together() -> None:
    truth, baseline, candidate = [0, 1] * 20, [0, 1] * 20, [1, 0] * 10 + [0, 1] * 10
    task = LabelledAnswers(truth=truth, baseline=baseline, candidate=candidate, cluster=["a"] * 20 + ["b"] * 20)
    swap = swapped(task)
    assert (swap.pvalue, swap.pvalue_whole) == (0.5, 1.0)  # one cluster changed: swapped or not, as extreme
    alone = LabelledAnswers(truth=truth, baseline=baseline, candidate=candidate)
    assert swapped(alone, n_resamples=999).pvalue < 0.01


def test_unpaired_answers_are_refused() -> None:
    with pytest.raises(InvalidValue):
        LabelledAnswers(truth=[1, 2], baseline=[1], candidate=[1, 2])
    with pytest.raises(InsufficientData):
        LabelledAnswers(truth=[], baseline=[], candidate=[])
    with pytest.raises(InsufficientData):
        JoinedAnswers.of([], None)
    with pytest.raises(InvalidValue):
        swap_test([[1.0]], [[1.0], [2.0]], lambda totals: totals[:, 0], rng=rng())


def test_bootstrap_of_a_mean_is_that_of_scipy() -> None:
    values = rng(4).exponential(1.0, 60)
    found = bootstrap_mean(values, n_resamples=20_000, rng=rng())
    reference = scipy.stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa", rng=rng(2))
    assert found.interval.low == pytest.approx(reference.confidence_interval.low, abs=0.012)
    assert found.interval.high == pytest.approx(reference.confidence_interval.high, abs=0.012)
    assert found.standard_error == pytest.approx(reference.standard_error, rel=0.03)
    assert found.difference == pytest.approx(values.mean())


def test_bootstrap_of_zeros_and_ones_is_near_the_score_interval() -> None:
    values = np.array([1.0] * 20 + [-1.0] * 25 + [0.0] * 555)
    found = bootstrap_mean(values, confidence_level=0.9, rng=rng())
    assert found.interval.low == pytest.approx(-0.0267, abs=0.003)
    assert found.interval.high == pytest.approx(0.0100, abs=0.003)


def test_bootstrap_draws_whole_clusters() -> None:
    values = rng(6).normal(size=40)
    once = bootstrap_mean(values, rng=rng(), n_resamples=3_000)
    copied = bootstrap_mean(np.repeat(values, 5), cluster=np.repeat(np.arange(40), 5), rng=rng(), n_resamples=3_000)
    assert copied.standard_error == pytest.approx(once.standard_error)


def test_bootstrap_does_not_move_with_the_order_of_items() -> None:
    values = np.round(rng(8).normal(0.1, 1.0, 200), 2)
    here = bootstrap_mean(values, n_resamples=500, rng=rng())
    there = bootstrap_mean(rng(9).permutation(values), n_resamples=500, rng=rng())
    assert here.interval.low == pytest.approx(there.interval.low, abs=1e-12)
    assert here.interval.high == pytest.approx(there.interval.high, abs=1e-12)


def test_strata_keep_their_sizes() -> None:
    features = np.column_stack([np.repeat([0.0, 1.0], 50), np.ones(100)])
    nothing = np.column_stack([np.zeros(100), np.ones(100)])

    def mean(totals: np.ndarray) -> np.ndarray:
        return np.asarray(totals[:, 0] / totals[:, 1])

    how = {"confidence_levels": [0.95], "n_resamples": 500}
    (free,) = paired_bootstraps(nothing, features, mean, **how, rng=rng())  # type: ignore[arg-type]
    assert free.interval.high - free.interval.low > 0.15
    with pytest.raises(InsufficientData):  # each stratum is constant, so nothing varies
        paired_bootstraps(nothing, features, mean, strata=np.repeat([0, 1], 50), **how, rng=rng())  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [[0.0] * 50, [0.25] * 50, [1.0]])
def test_equal_differences_have_no_bootstrap_interval(values: list[float]) -> None:
    with pytest.raises(InsufficientData):
        bootstrap_mean(values, rng=rng())


def test_bootstrap_of_macro_f1_covers_the_difference() -> None:
    task = answers(900, 12, changed=0.08)
    found = bootstrap_macro_f1(task, n_resamples=2_000, rng=rng())
    observed = macro_f1(task.truth, task.candidate) - macro_f1(task.truth, task.baseline)
    assert found.difference == pytest.approx(observed)
    assert found.interval.low < observed < found.interval.high
    assert 0.003 < found.standard_error < 0.012
    clustered = bootstrap_macro_f1(answers(900, 12, changed=0.08, clusters=40), n_resamples=2_000, rng=rng())
    assert clustered.difference == pytest.approx(observed)
    unchanged = LabelledAnswers(truth=[0, 1, 0], baseline=[0, 1, 1], candidate=[0, 1, 1])
    with pytest.raises(InsufficientData):
        bootstrap_macro_f1(unchanged, n_resamples=99, rng=rng())

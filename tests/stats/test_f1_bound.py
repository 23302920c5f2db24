"""The counted bound on macro-F1: against every possible change, and by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.f1 import JoinedAnswers, LabelledAnswers, bound_macro_f1
from tests.stats.reference import bootstrap_macro_f1, macro_f1


@pytest.mark.parametrize("truth", [(0, 0, 1, 1), (0, 1, 1, 1), (0, 0, 1, 1, 2)])
def test_no_change_moves_macro_f1_by_more_than_its_bound(truth: tuple[int, ...]) -> None:
    labels = sorted(set(truth))
    counts = [truth.count(label) for label in labels]
    each = 3.0 / (len(labels) * min(counts))
    answers = list(product(labels, repeat=len(truth)))
    rng = np.random.default_rng(1)
    for before in answers:
        for after in [answers[place] for place in rng.integers(len(answers), size=30)]:
            worse = sum(b not in (a, t) for t, a, b in zip(truth, before, after, strict=True))
            better = sum(a not in (b, t) for t, a, b in zip(truth, before, after, strict=True))
            difference = macro_f1(truth, after) - macro_f1(truth, before)
            assert -worse * each - 1e-12 <= difference <= better * each + 1e-12


def test_no_change_of_n_gives_the_rule_of_three() -> None:
    truth = [0, 1] * 300
    found = bound_macro_f1([LabelledAnswers(truth=truth, baseline=truth, candidate=truth)], confidence_level=0.9)
    assert found.high == pytest.approx(3 * (1 - 0.05 ** (1 / 600)))


def test_gains_do_not_widen_the_side_of_losses() -> None:
    truth = [0, 1] * 300
    before = [1 - truth[0], *truth[1:]]
    found = bound_macro_f1([LabelledAnswers(truth=truth, baseline=before, candidate=truth)])
    swapped = bound_macro_f1([LabelledAnswers(truth=truth, baseline=truth, candidate=before)])
    assert found.high > -found.low
    assert (swapped.low, swapped.high) == (-found.high, -found.low)


def test_a_cluster_counts_as_one_item() -> None:
    truth = [0, 1] * 300
    tied = LabelledAnswers(truth=truth, baseline=truth, candidate=truth, cluster=[n // 4 for n in range(600)])
    found = bound_macro_f1([tied], confidence_level=0.9)
    assert found.high == pytest.approx(3 * (1 - 0.05 ** (1 / 150)))


def test_a_label_that_is_never_right_has_no_bound() -> None:
    with pytest.raises(InsufficientData, match="outside the true labels"):
        bound_macro_f1([LabelledAnswers(truth=[0, 1], baseline=[0, 2], candidate=[0, 2])])


def test_weights_of_tasks_enter_the_mean() -> None:
    one = LabelledAnswers(truth=[0, 1, 0, 1], baseline=[0, 1, 0, 1], candidate=[0, 1, 0, 0])
    two = LabelledAnswers(truth=[0, 1], baseline=[0, 1], candidate=[0, 1])
    drop = macro_f1([0, 1, 0, 1], [0, 1, 0, 0]) - 1.0
    rng = np.random.default_rng(1)
    for weights, expected in ((None, drop / 2), ([4.0, 2.0], drop * 2 / 3)):
        baseline, candidate = JoinedAnswers.of([one, two], weights).scores
        assert candidate - baseline == pytest.approx(expected)
    found = bootstrap_macro_f1(one, two, weights=[4.0, 2.0], n_resamples=200, rng=rng)
    assert found.difference == pytest.approx(drop * 2 / 3)
    for wrong in ([1.0], [1.0, 0.0]):
        with pytest.raises(InvalidValue):
            JoinedAnswers.of([one, two], wrong)

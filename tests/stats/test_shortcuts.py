"""What a shortcut finds is what the plain way finds: critical values, exact p-values, cluster codes, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qualab.stats import bootstrap
from qualab.stats.counts import PairedCounts
from qualab.stats.equivalence import critical_gains, equivalence, guard_pvalue, is_accepted
from qualab.stats.f1 import JoinedAnswers, LabelledAnswers
from qualab.stats.interval import score_statistic
from qualab.stats.mean import cluster_codes
from tests.stats.reference import bootstrap_macro_f1, non_inferiority

sizes = st.integers(1, 300)
margins = st.floats(1e-4, 0.999)
thresholds = st.floats(-3.0, 6.0)


def fewest_gains(total: int, *, n_items: int, margin: float, threshold: float) -> int:
    """One after the other."""
    for gains in range(total + 1):
        z = score_statistic(float(gains), float(total - gains), n_items=n_items, difference=-margin)
        if z >= threshold - 1e-9:
            return gains
    return total + 1


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 80), margins, thresholds)
@example(44, 0.1, 1.708)
@example(1, 0.5, 0.0)
def test_critical_gains_are_those_of_a_walk_through_all(n_items: int, margin: float, threshold: float) -> None:
    test = {"margin": margin, "threshold": threshold}
    found = critical_gains(np.arange(n_items + 1), n_items=n_items, **test)  # type: ignore[arg-type]
    assert found.tolist() == [fewest_gains(m, n_items=n_items, **test) for m in range(n_items + 1)]


@settings(deadline=None, max_examples=25)
@given(sizes, st.integers(0, 40), margins, thresholds)
def test_critical_gains_of_several_sizes_are_those_of_each(
    n_items: int, first: int, margin: float, threshold: float
) -> None:
    totals = np.arange(min(first, n_items), n_items + 1)
    many = n_items + np.array([[0], [1], [25], [200]])
    together = critical_gains(
        np.broadcast_to(totals, (4, totals.size)), n_items=many, margin=margin, threshold=threshold
    )
    alone = [critical_gains(totals, n_items=int(n), margin=margin, threshold=threshold).tolist() for n in many.ravel()]
    assert together.tolist() == alone


@settings(deadline=None, max_examples=40)
@given(sizes, st.floats(0.002, 0.5), st.floats(0.5, 4.0), st.floats(0.001, 0.3))
@example(600, 0.02, 1.645, 0.05)
def test_a_statistic_is_accepted_where_its_exact_pvalue_is_at_most_alpha(
    n_items: int, margin: float, statistic: float, alpha: float
) -> None:
    exact = guard_pvalue(statistic, n_items=n_items, margin=margin)
    assert is_accepted(statistic, n_items=n_items, margin=margin, alpha=alpha) is (exact <= alpha)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 400), st.data(), st.floats(0.003, 0.6))
def test_the_nearer_side_has_the_larger_exact_pvalue(n_items: int, data: st.DataObject, margin: float) -> None:
    changed = data.draw(st.integers(0, n_items))
    gains = data.draw(st.integers(0, changed))
    counts = PairedCounts(n_items=n_items, gains=gains, losses=changed - gains)
    found = equivalence(counts, margin=margin)
    assert found.pvalue_exact_lower == non_inferiority(counts, margin=margin).pvalue_exact
    assert found.pvalue_exact_upper == non_inferiority(counts.swapped(), margin=margin).pvalue_exact
    assert found.pvalue_exact == pytest.approx(max(found.pvalue_exact_lower, found.pvalue_exact_upper), abs=2e-7)


@given(st.lists(st.integers(-5, 5), min_size=1))
def test_whole_numbers_as_labels_are_coded_as_any_labels(labels: list[int]) -> None:
    assert cluster_codes(np.array(labels), len(labels)).tolist() == cluster_codes(labels, len(labels)).tolist()
    assert cluster_codes([str(label) for label in labels], len(labels)).tolist() == [
        list(dict.fromkeys(labels)).index(label) for label in labels
    ]


def answers() -> LabelledAnswers:
    rng = np.random.default_rng(5)
    truth = rng.integers(0, 3, 300)
    before = np.where(rng.random(300) < 0.7, truth, rng.integers(0, 3, 300))
    after = np.where(rng.random(300) < 0.9, before, rng.integers(0, 3, 300))
    return LabelledAnswers(
        truth=truth.tolist(), baseline=before.tolist(), candidate=after.tolist(), cluster=np.arange(300) // 2
    )


def test_resamples_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> object:
        return bootstrap_macro_f1(answers(), n_resamples=20_000, rng=np.random.default_rng(1))

    two = found()
    monkeypatch.setattr(bootstrap, "ThreadPoolExecutor", lambda max_workers: ThreadPoolExecutor(1))
    assert found() == two


def test_joined_answers_have_the_difference_of_the_swaps() -> None:
    joined = JoinedAnswers.of([answers(), answers()], [2.0, 1.0])
    baseline, candidate = joined.scores
    assert joined.swap_test(n_resamples=99, rng=np.random.default_rng(1)).difference == candidate - baseline

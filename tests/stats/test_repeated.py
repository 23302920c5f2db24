"""Several baseline answers: as one answer for K = 1, by other ways to the same number, and in simulated runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from operator import eq, lt

import numpy as np
import pytest
import scipy.optimize

from qualab.errors import InvalidValue
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar, mcnemar_sides
from qualab.stats.distributions import normal_sf
from qualab.stats.equivalence import equivalence, guard_threshold, provable_margin
from qualab.stats.looks import spending_boundaries
from qualab.stats.repeated import RepeatedCounts, repeated_test
from qualab.stats.sizing import discordance_with_repeats

MARGIN = 0.02


@pytest.mark.parametrize(
    ("gains", "losses", "n_items"), [(0, 0, 600), (3, 5, 600), (0, 4, 300), (5, 0, 300), (30, 31, 900), (0, 149, 149)]
)
def test_one_baseline_answer_gives_the_numbers_of_one(gains: int, losses: int, n_items: int) -> None:
    one = PairedCounts(n_items=n_items, gains=gains, losses=losses)
    repeated = RepeatedCounts(counts=(losses, n_items - gains - losses, gains))
    usual, other = (equivalence(counts, margin=MARGIN) for counts in (one, repeated))
    for name in ("statistic_lower", "statistic_upper", "pvalue", "pvalue_exact"):
        assert getattr(other, name) == pytest.approx(getattr(usual, name), rel=1e-9)
    assert (other.interval.low, other.interval.high) == pytest.approx((usual.interval.low, usual.interval.high))
    assert provable_margin(repeated) == pytest.approx(provable_margin(one), rel=1e-9)
    tested, of_one = repeated_test(repeated), mcnemar(one)
    assert (tested.pvalue, tested.pvalue_exact) == pytest.approx((of_one.pvalue, of_one.pvalue_exact), abs=1e-12)
    assert (tested.loss, tested.gain) == pytest.approx(mcnemar_sides(gains, losses), abs=1e-12)


@pytest.mark.parametrize("counts", [(1, 4, 80, 3, 2), (0, 2, 60, 0, 0), (0, 0, 50, 0, 0), (2, 1, 3, 70, 1, 0, 1)])
@pytest.mark.parametrize("difference", [-0.1, -0.02, 0.05])
def test_the_variance_is_that_of_the_likeliest_distribution_with_this_mean(
    counts: tuple[int, ...], difference: float
) -> None:
    repeated, n_runs, seen = RepeatedCounts(counts=counts), len(counts) // 2, np.array(counts)
    values = np.arange(-n_runs, n_runs + 1) / n_runs

    def unlikely(shares: np.ndarray) -> float:
        return -float(seen[seen > 0] @ np.log(np.maximum(shares[seen > 0], 1e-300)))

    best = min(
        (
            scipy.optimize.minimize(
                unlikely,
                start / start.sum(),
                bounds=[(0.0, 1.0)] * seen.size,
                constraints=[
                    {"type": "eq", "fun": lambda shares: shares.sum() - 1.0},
                    {"type": "eq", "fun": lambda shares: shares @ values - difference},
                ],
                method="SLSQP",
                options={"maxiter": 2_000, "ftol": 1e-14},
            )
            for start in (seen + 0.3, np.ones(seen.size))
        ),
        key=lambda result: result.fun if result.success else math.inf,
    )
    variance = float(best.x @ (values - difference) ** 2)
    expected = math.sqrt(repeated.n_items / variance) * (repeated.difference - difference)
    assert repeated.statistic(difference) == pytest.approx(expected, rel=1e-3)


def test_the_test_of_no_difference_is_the_count_of_all_signs() -> None:
    differences = [-1.0, -0.5, 0.5, 0.0, 1.0, 0.5, 0.5]
    counts = RepeatedCounts(counts=(1, 1, 1, 3, 1))
    sums = [sum(signs) for signs in itertools.product(*((size, -size) for size in map(abs, differences) if size))]
    below, tied = (sum(test(total, sum(differences)) for total in sums) / len(sums) for test in (lt, eq))
    tested = repeated_test(counts)
    assert tested.loss == pytest.approx(below + tied / 2)
    assert tested.gain == pytest.approx(1.0 - below - tied / 2)


def test_no_item_whose_answers_differ_is_no_evidence_and_no_means_are_refused() -> None:
    assert repeated_test(RepeatedCounts(counts=(0, 0, 0, 9, 0, 0, 0))).pvalue == 1.0
    thirds = [sum(answers) / 3 for answers in itertools.product((0, 1), repeat=3)]
    assert RepeatedCounts.of(thirds, [0] * 8, n_runs=3).counts == (1, 3, 3, 1, 0, 0, 0)
    for baseline, candidate in (([0.5], [1]), ([0.0], [0.5]), ([0.0, 1.0], [1])):
        with pytest.raises(InvalidValue):
            RepeatedCounts.of(baseline, candidate, n_runs=3)


def test_further_answers_halve_at_most_the_noise() -> None:
    left = [discordance_with_repeats(discordance=0.05, noise=0.05, baseline_runs=k) for k in (1, 2, 4, 1_000)]
    assert left == pytest.approx([0.05, 0.0375, 0.03125, 0.025], rel=1e-2)
    assert discordance_with_repeats(discordance=0.05, noise=0.0, baseline_runs=4) == 0.05


Draw = Callable[[np.random.Generator, int, int], tuple[np.ndarray, np.ndarray]]
"""Right answers of the baseline (of K) and of the candidate, item by item."""


def _unstable(rng: np.random.Generator, n_items: int, n_runs: int, *, candidate: float = 0.5, broken: float = 0.0):  # type: ignore[no-untyped-def]
    """One item in ten is answered by chance, so that two runs differ in 5 %; others are always right."""
    is_unstable = rng.random(n_items) < 0.1
    before = np.where(is_unstable, rng.binomial(n_runs, 0.5, n_items), n_runs)
    is_right = np.where(is_unstable, rng.random(n_items) < candidate, rng.random(n_items) >= broken)
    return before, is_right.astype(int)


def _all_worse(rng: np.random.Generator, n_items: int, n_runs: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.binomial(n_runs, 0.95, n_items), (rng.random(n_items) < 0.93).astype(int)


def run_with_looks(draw: Draw, rng: np.random.Generator, *, n_items: int, n_runs: int, n_looks: int = 10) -> int | None:
    """Items at which a run ends in EQUIVALENT at ±2 pp; None where it does not."""
    before, after = draw(rng, n_items, n_runs)
    ends = [round(n_items * look / n_looks) for look in range(1, n_looks + 1)]
    for end, boundary in zip(ends, BOUNDARIES, strict=True):
        if (level := normal_sf(boundary)) < 1e-8:
            continue
        counts = RepeatedCounts.of(before[:end] / n_runs, after[:end], n_runs=n_runs)
        threshold = max(boundary, guard_threshold(n_items=end, margin=MARGIN, alpha=level))
        if min(counts.statistic(-MARGIN), counts.swapped().statistic(-MARGIN)) >= threshold:
            return end
    return None


BOUNDARIES = spending_boundaries([look / 10 for look in range(1, 11)], alpha=0.05).tolist()


@pytest.mark.simulation
@pytest.mark.parametrize(("n_runs", "n_items", "most"), [(2, 1_130, 900), (4, 960, 750)])
def test_further_baseline_answers_cost_fewer_items(n_runs: int, n_items: int, most: int) -> None:
    """±2 pp, discordance 5 %, ten looks, power 0.9: without a difference so many items are asked on average."""
    rng, n_simulated = np.random.default_rng(7), 1_500
    ended = [run_with_looks(_unstable, rng, n_items=n_items, n_runs=n_runs) for _ in range(n_simulated)]
    proven = [end for end in ended if end]
    assert len(proven) >= 0.9 * n_simulated - 2 * math.sqrt(0.09 * n_simulated)
    assert np.mean(proven) <= most


WORSE: dict[str, Draw] = {
    "items are broken": lambda rng, n_items, n_runs: _unstable(rng, n_items, n_runs, broken=MARGIN / 0.9),
    "unstable items are worse": lambda rng, n_items, n_runs: _unstable(rng, n_items, n_runs, candidate=0.3),
    "every item is a little worse": _all_worse,
    "nothing but a rare loss": lambda rng, n_items, n_runs: (
        np.full(n_items, n_runs),
        (rng.random(n_items) >= MARGIN).astype(int),
    ),
}


@pytest.mark.simulation
@pytest.mark.parametrize("n_runs", [2, 4])
@pytest.mark.parametrize("case", WORSE)
def test_a_loss_of_the_margin_is_seldom_called_equivalent(case: str, n_runs: int) -> None:
    rng, n_simulated = np.random.default_rng(9), 1_500
    ended = [run_with_looks(WORSE[case], rng, n_items=1_130, n_runs=n_runs) for _ in range(n_simulated)]
    n_proven = sum(end is not None for end in ended)
    assert n_proven <= (0.05 + 2 * math.sqrt(0.05 * 0.95 / n_simulated)) * n_simulated


@pytest.mark.simulation
@pytest.mark.parametrize("n_runs", [2, 4])
@pytest.mark.parametrize("right", [0.5, 0.9])
def test_no_difference_is_seldom_called_one(right: float, n_runs: int) -> None:
    """Unstable items, whose differences are not symmetric, and items that fixedly changed, as many for the better."""
    rng, n_simulated = np.random.default_rng(3), 4_000
    rejected = [0, 0]
    for _ in range(n_simulated):
        before, after = rng.binomial(n_runs, right, 120), rng.binomial(1, right, 120)
        before[:20], after[:20] = n_runs * (fixed := rng.integers(0, 2, 20)), 1 - fixed
        tested = repeated_test(RepeatedCounts.of(before / n_runs, after, n_runs=n_runs))
        rejected[0] += tested.loss <= 0.025
        rejected[1] += tested.gain <= 0.025
    most = (0.025 + 3 * math.sqrt(0.025 * 0.975 / n_simulated)) * n_simulated
    assert max(rejected) <= most

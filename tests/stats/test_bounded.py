"""Gaffke's bound against exact binomial tests and brute force, and its error rates in designs that broke t-tests."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest
import scipy

from qualab.errors import InsufficientData, InvalidValue
from qualab.planning.power import verdict_power
from qualab.stats import bounded as module
from qualab.stats.bounded import BoundedMean, bounded_equivalence, gamma_sum_cdf
from qualab.stats.checks import FloatArray
from qualab.stats.clustered import clustered_equivalence
from qualab.stats.counts import tally
from qualab.stats.equivalence import equivalence
from qualab.stats.mean import mean_equivalence
from tests.stats.reference import is_inside


def lost(n: int, k: int) -> FloatArray:
    return np.concatenate([np.full(k, -1.0), np.zeros(n - k)])


@pytest.mark.parametrize(
    ("n", "k", "margin"),
    [
        (1, 0, 0.02),
        (3, 0, 0.02),
        (149, 0, 0.02),
        (1000, 0, 0.3),
        (50, 0, 0.9),
        (100_000, 0, 0.0001),
        (20, 1, 0.2),
        (5, 4, 0.3),
        (5, 5, 0.3),
        (600, 12, 0.02),
        (600, 200, 0.02),
        (10_000, 50, 0.02),
        (10_000, 150, 0.02),
    ],
)
def test_losses_alone_are_judged_by_clopper_and_pearson(n: int, k: int, margin: float) -> None:
    """From p near 1 down to 1e-155."""
    mean = BoundedMean.of(lost(n, k))
    assert mean.pvalue_above(-margin) == pytest.approx(scipy.special.bdtr(k, n, margin), rel=1e-9)
    for level in (0.9, 0.95, 1 - 2e-6):
        exact = 1.0 if k == n else scipy.special.betaincinv(k + 1, n - k, 0.5 + level / 2)
        assert mean.interval(confidence_level=level).low == pytest.approx(-exact, rel=1e-7)


def test_nothing_changed_proves_what_no_discordant_item_proves() -> None:
    found = bounded_equivalence(np.zeros(1500), margin=0.02)
    assert found.interval.high == -found.interval.low == pytest.approx(1 - 0.05 ** (1 / 1500), rel=1e-9)
    assert not bounded_equivalence(np.zeros(148), margin=0.02).is_equivalent
    assert bounded_equivalence(np.zeros(149), margin=0.02).is_equivalent


@pytest.mark.parametrize("n_clusters", [4, 30, 200])
@pytest.mark.parametrize("margin", [0.02, 0.1, 0.3])
def test_the_inversion_agrees_with_random_weights(n_clusters: int, margin: float) -> None:
    rng = np.random.default_rng(n_clusters)
    sizes = rng.integers(1, 5, n_clusters)
    cluster = np.repeat(np.arange(n_clusters), sizes)
    values = np.clip(rng.normal(0, 0.4, cluster.size), -1, 1) * (rng.random(cluster.size) < 0.3)
    units = np.bincount(cluster, weights=values) + sizes * margin
    n_draws = 50_000
    weights = rng.standard_exponential((n_draws, n_clusters + 1))
    drawn = np.mean(weights[:, :-1] @ units - weights[:, -1] * sizes.max() * (1 - margin) <= 0)
    expected = BoundedMean.of(values, cluster=cluster).pvalue_above(-margin)
    assert drawn == pytest.approx(expected, abs=4 * sqrt(expected * (1 - expected) / n_draws) + 1e-5)


def test_gamma_sums_have_the_probabilities_of_the_f_distribution() -> None:
    """G(a) <= r G(b): a ratio of gammas."""
    for a, b, ratio in [(0.5, 3.0, 0.01), (7.3, 2.0, 1.0), (400.0, 1.0, 20.0), (250.0, 300.0, 0.2), (30.0, 30.0, 40.0)]:
        exact = scipy.special.fdtr(2 * a, 2 * b, ratio * b / a)
        assert gamma_sum_cdf(np.array([1.0, -ratio]), np.array([a, b])) == pytest.approx(exact, rel=1e-9)
    assert gamma_sum_cdf(np.array([0.0, 1.0]), np.array([1.0, 1.0])) == 0.0
    assert gamma_sum_cdf(np.array([0.0, -1.0]), np.array([1.0, 1.0])) == 1.0
    assert gamma_sum_cdf(np.array([0.0]), np.array([1.0])) == 1.0


@pytest.mark.parametrize("values", [[-1.0] * 4, [1.0] * 4, [0.3], [0.0], [-0.25] * 9, [1.0, -1.0]])
def test_degenerate_differences_have_an_interval_that_holds_them(values: list[float]) -> None:
    found = bounded_equivalence(values, margin=0.02)
    assert -1.0 <= found.interval.low <= np.mean(values) <= found.interval.high <= 1.0
    assert not found.is_equivalent


def test_the_interval_lies_inside_the_margin_exactly_when_the_test_says_so() -> None:
    rng = np.random.default_rng(8)
    for _ in range(40):
        values = np.clip(rng.normal(rng.normal(0, 0.01), 0.1, 300), -1, 1)
        found = bounded_equivalence(values, margin=0.02)
        assert found.is_equivalent == is_inside(found.interval, 0.02)
        assert BoundedMean.of(values).pvalue_above(found.interval.low) == pytest.approx(0.05, rel=1e-6)


def test_order_labels_and_arms_change_nothing_but_the_sign() -> None:
    rng = np.random.default_rng(9)
    values, cluster = rng.normal(0, 0.1, 90), np.repeat(np.arange(30), 3)
    order = rng.permutation(90)
    here = bounded_equivalence(values, cluster=cluster, margin=0.05)
    there = bounded_equivalence(values[order], cluster=[f"passage {c}" for c in cluster[order]], margin=0.05)
    assert here == there
    back = bounded_equivalence(-values, cluster=cluster, margin=0.05)
    assert (back.pvalue_lower, back.pvalue_upper) == pytest.approx((here.pvalue_upper, here.pvalue_lower))
    assert (back.interval.low, back.interval.high) == pytest.approx((-here.interval.high, -here.interval.low))


def test_many_different_values_are_put_on_a_grid_that_proves_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.clip(np.random.default_rng(10).normal(0, 0.1, 3_000), -1, 1)
    on_grid = bounded_equivalence(values, margin=0.02).interval
    monkeypatch.setattr(module, "_MOST_VALUES", 10_000)
    exact = bounded_equivalence(values, margin=0.02).interval
    assert on_grid.low <= exact.low <= on_grid.low + 1e-6
    assert on_grid.high - 1e-6 <= exact.high <= on_grid.high


def test_bad_differences_are_refused() -> None:
    with pytest.raises(InsufficientData):
        bounded_equivalence([], margin=0.02)
    for values in ([0.0, 1.5], [float("nan")], [[0.1]]):
        with pytest.raises(InvalidValue):
            bounded_equivalence(values, margin=0.02)
    with pytest.raises(InvalidValue):
        bounded_equivalence([0.0, 0.0], margin=0.02, cluster=["a"])


Draw = Callable[[np.random.Generator], FloatArray]


def rare(n: int, *, size: float, noise: float = 0.0) -> Draw:
    """A true loss of 3 pp in rare large pieces, everything else the same but for noise."""

    def draw(rng: np.random.Generator) -> FloatArray:
        rest = rng.normal(0.0, noise, n) if noise else np.zeros(n)
        return np.where(rng.random(n) < 0.03 / size, -size, np.clip(rest, -1.0, 1.0))

    return draw


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("draw", "margin"),
    [
        (rare(20, size=0.6, noise=0.01), 0.02),
        (rare(40, size=0.6, noise=0.01), 0.02),
        (rare(150, size=1.0, noise=0.01), 0.03),
        (rare(300, size=1.0), 0.03),
        (rare(600, size=0.5, noise=0.1), 0.03),
        (rare(600, size=0.3, noise=0.2), 0.03),
    ],
)
def test_rare_large_losses_are_seldom_called_equivalent(draw: Draw, margin: float) -> None:
    """At a true loss of the margin or more; t-tests alone call half of the first equivalent."""
    rng, n_runs = np.random.default_rng(11), 1_000
    called = sum(BoundedMean.of(draw(rng)).pvalue_above(-margin) <= 0.05 for _ in range(n_runs))
    assert called / n_runs <= 0.05 + 3 * sqrt(0.05 * 0.95 / n_runs)


@pytest.mark.simulation
def test_the_t_test_would_call_them_equivalent() -> None:
    rng, n_runs = np.random.default_rng(12), 1_000
    draw = rare(20, size=0.6, noise=0.01)
    called = sum(mean_equivalence(draw(rng), margin=0.02).is_equivalent for _ in range(n_runs))
    assert called / n_runs > 0.25


Arms = tuple[FloatArray, FloatArray]


def flipped(rng: np.random.Generator, changed: FloatArray) -> Arms:
    """Arms of 0/1 scores with these differences."""
    baseline = np.where(changed == 0, (rng.random(changed.size) < 0.7), changed < 0).astype(float)
    return baseline, baseline + changed


def broken(n: int, size: int, *, share: float, margin: float) -> Callable[[np.random.Generator], Arms]:
    """A loss of the margin in a few clusters, `share` of whose items are lost; 2 % of all items flip either way."""

    def draw(rng: np.random.Generator) -> Arms:
        is_broken = rng.random((n, 1)) < margin / share
        losses = is_broken & (rng.random((n, size)) < share)
        noise = np.where(rng.random((n, size)) < 0.02, rng.choice([-1.0, 1.0], (n, size)), 0.0)
        return flipped(rng, np.where(losses, -1.0, np.where(is_broken, 0.0, noise)).ravel())

    return draw


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("n_clusters", "size", "share", "margin"),
    [
        (20, 45, 0.5, 0.02),
        (8, 20, 0.8, 0.05),
        (12, 20, 0.8, 0.05),
        (20, 20, 0.8, 0.05),
        (100, 16, 1.0, 0.05),
        (100, 16, 0.5, 0.05),
        (200, 4, 1.0, 0.03),
        (488, 2, 1.0, 0.02),
        (541, 3, 1.0, 0.02),
    ],
)
def test_losses_in_few_clusters_are_seldom_called_equivalent(
    n_clusters: int, size: int, share: float, margin: float
) -> None:
    rng, n_runs = np.random.default_rng(13), 400
    draw, cluster = broken(n_clusters, size, share=share, margin=margin), np.repeat(np.arange(n_clusters), size)
    called = sum(clustered_equivalence(*draw(rng), cluster=cluster, margin=margin).is_equivalent for _ in range(n_runs))
    assert called / n_runs <= 0.05 + 3 * sqrt(0.05 * 0.95 / n_runs)


@pytest.mark.simulation
def test_lists_of_unequal_length_hold_the_level_too() -> None:
    """As IFEval's: 541 prompts of one to three instructions, a prompt lost as a whole."""
    rng, n_runs = np.random.default_rng(15), 400
    sizes = rng.choice([1, 2, 3], 541, p=[0.55, 0.35, 0.1])
    cluster = np.repeat(np.arange(541), sizes)
    for weights in (np.ones(541), sizes == 3, sizes == 1):
        share = 0.02 * cluster.size / float(np.sum(sizes * weights))
        called = 0
        for _ in range(n_runs):
            changed = -((rng.random(541) < share) & (weights > 0))[cluster].astype(float)
            called += BoundedMean.of(changed, cluster=cluster).pvalue_above(-0.02) <= 0.05
        assert called / n_runs <= 0.05 + 3 * sqrt(0.05 * 0.95 / n_runs)


@pytest.mark.simulation
def test_harmless_designs_keep_most_of_their_power() -> None:
    """600 items, differences with a spread of 0.1, ±2 pp: nearly all, as the t-test; 488 passages, 900 items, ±3 pp."""
    rng, n_runs = np.random.default_rng(16), 200
    sizes = np.array([2] * 412 + [1] * 76)
    cluster = np.repeat(np.arange(488), sizes)
    scores = passages = free = 0
    for _ in range(n_runs):
        mean = BoundedMean.of(np.clip(rng.normal(0, 0.1, 600), -1, 1))
        scores += max(mean.pvalue_above(-0.02), mean.pvalue_below(0.02)) <= 0.05
        arms = flipped(rng, np.where(rng.random(900) < 0.05, rng.choice([-1.0, 1.0], 900), 0.0))
        passages += clustered_equivalence(*arms, cluster=cluster, margin=0.03).is_equivalent
        free += equivalence(tally(*arms), margin=0.03).is_equivalent
    assert scores / n_runs > 0.97
    assert passages / n_runs > free / n_runs - 0.07
    planned = verdict_power(n_items=900, discordance=0.05, margin=0.03, alpha=0.05, n_clusters=488)
    assert passages / n_runs == pytest.approx(planned, abs=0.05)

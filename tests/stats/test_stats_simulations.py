"""Size and coverage by seeded simulation: how often the tests are wrong where nothing is there, or just the margin."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from qualab.errors import InsufficientData
from qualab.planning.power import verdict_power
from qualab.stats.bounded import BoundedMean
from qualab.stats.checks import FloatArray
from qualab.stats.clustered import cluster_cells, clustered_equivalence, clustered_mcnemar
from qualab.stats.counts import tally
from qualab.stats.difference import mcnemar_sides
from qualab.stats.equivalence import equivalence
from qualab.stats.f1 import JoinedAnswers, LabelledAnswers
from qualab.stats.looks import design_looks, looks_at, simulate_looks
from qualab.stats.mean import mean_difference
from qualab.stats.resampling import max_t, sign_flip
from tests.stats.reference import bootstrap_macro_f1, contains, pvalue_within, rng

pytestmark = pytest.mark.simulation


def at_most(level: float, n_runs: int) -> float:
    """The level and three standard errors of a simulated share."""
    return level + 3.0 * float(np.sqrt(level * (1.0 - level) / n_runs))


def metrics_of(generator: np.random.Generator, n_items: int, n_metrics: int, size: int = 1) -> np.ndarray:
    """Differences of correlated 0/1 metrics without a true difference; clusters of `size` items mostly agree."""
    n_clusters = n_items // size
    shared = generator.choice([-1.0, 0.0, 1.0], p=[0.08, 0.84, 0.08], size=(n_clusters, 1))
    item = np.repeat(shared, size, axis=0)
    own = generator.choice([-1.0, 0.0, 1.0], p=[0.02, 0.96, 0.02], size=(n_items, n_metrics))
    follows = generator.random((n_items, n_metrics)) < 0.6
    return np.where(follows, item, own)


def test_clusters_of_five_raise_no_more_false_alarms() -> None:
    generator, n_runs = rng(5), 600
    cluster = np.repeat(np.arange(60), 5)
    right = wrong = 0
    for _ in range(n_runs):
        table = metrics_of(generator, 300, 34, size=5)
        right += max_t(table, cluster=cluster, n_resamples=199, rng=generator).pvalues.min() <= 0.05
        wrong += max_t(table, n_resamples=199, rng=generator).pvalues.min() <= 0.05
    assert right / n_runs <= at_most(0.05, n_runs)
    assert wrong / n_runs > 0.1  # what ignoring the clusters would cost


def passages(generator: np.random.Generator, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Five questions on each of 180 passages; two questions' differences are correlated by one half."""
    cluster = np.repeat(np.arange(180), 5)
    chances = [0.05 - shift / 2, 0.9, 0.05 + shift / 2]
    common = generator.choice([-1, 0, 1], p=chances, size=180)[cluster]
    own = generator.choice([-1, 0, 1], p=chances, size=900)
    return np.where(generator.random(900) < np.sqrt(0.5), common, own), cluster


def arms(differences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    baseline = np.where(differences > 0, 0, 1)
    return baseline, baseline + differences


def test_clustered_tests_hold_their_level_where_naive_ones_reject_every_fourth() -> None:
    generator, n_runs = rng(6), 1_000
    naive = cr2 = flips = yang = covered = 0
    for _ in range(n_runs):
        differences, cluster = passages(generator)
        found = mean_difference(differences, cluster=cluster)
        naive += mean_difference(differences).pvalue <= 0.05
        cr2 += found.pvalue <= 0.05
        covered += contains(found.interval(confidence_level=0.95), 0.0)
        flips += sign_flip(differences, cluster=cluster, rng=generator).pvalue <= 0.05
        yang += clustered_mcnemar(cluster_cells(*arms(differences), cluster=cluster))[1] <= 0.05
    assert naive / n_runs == pytest.approx(0.257, abs=0.05)
    assert max(cr2, flips, yang) / n_runs <= at_most(0.05, n_runs)
    assert covered / n_runs >= 1 - at_most(0.05, n_runs)


def test_clustered_equivalence_is_wrong_at_the_margin_at_most_as_often_as_it_may() -> None:
    generator, n_runs, margin = rng(7), 400, 0.04
    clustered = naive = 0
    for _ in range(n_runs):
        differences, cluster = passages(generator, shift=-margin)
        baseline, candidate = arms(differences)
        clustered += clustered_equivalence(baseline, candidate, cluster=cluster, margin=margin).is_equivalent
        naive += equivalence(tally(baseline, candidate), margin=margin).is_equivalent
    assert clustered / n_runs <= at_most(0.05, n_runs)
    assert naive / n_runs > 0.12


@pytest.mark.parametrize(("discordance", "expected"), [(0.02, 561), (0.05, 1154), (0.1, 2219)])
def test_ten_looks_ask_as_many_items_as_planned_and_hold_their_level(discordance: float, expected: int) -> None:
    design = design_looks(discordance=discordance, margin=0.02, power=0.9)
    same = simulate_looks(design, discordance=discordance, rng=rng(8))
    assert same.expected_items == pytest.approx(expected, rel=0.03)
    assert same.equivalent == pytest.approx(0.9, abs=0.02)
    assert same.harm <= at_most(0.025, 20_000)
    for sign in (-1, 1):
        edge = simulate_looks(design, discordance=discordance, difference=sign * 0.02, rng=rng(9))
        assert edge.equivalent <= at_most(0.05, 20_000)


@pytest.mark.parametrize("n_looks", [2, 5, 10])
def test_looks_stop_for_harm_no_more_often_than_they_may_and_prove_small_losses(n_looks: int) -> None:
    design = looks_at(most_items=1_500, margin=0.02, n_looks=n_looks)
    for discordance in (0.01, 0.03, 0.08):
        same = simulate_looks(design, discordance=discordance, rng=rng(11))
        assert same.harm <= at_most(0.025, 20_000)
    small = simulate_looks(design, discordance=0.012, difference=-0.006, rng=rng(12))
    assert small.equivalent > 0.9
    assert small.harm < 0.1


@pytest.mark.parametrize("level", [0.025, 0.005, 0.0005])
def test_one_sided_mid_p_keeps_its_level_whatever_the_discordance(level: float) -> None:
    """What is harm at a look: the probability under no difference, over numbers of changed items (Poisson)."""
    totals = np.arange(1, 600)
    gains = [np.arange(total // 2 + 1) for total in totals]
    reject = [
        scipy.stats.binom.cdf(g, m, 0.5)[[mcnemar_sides(float(k), float(m - k))[0] <= level for k in g]].max(initial=0)
        for g, m in zip(gains, totals, strict=True)
    ]
    for mean in (3, 5, 8, 13, 20, 40, 80, 160, 300):
        assert scipy.stats.poisson.pmf(totals, mean) @ np.array(reject) <= 1.1 * level


def answered(generator: np.random.Generator) -> LabelledAnswers:
    truth = generator.integers(0, 3, 400)
    first, second = (np.where(generator.random(400) < 0.75, truth, generator.integers(0, 3, 400)) for _ in range(2))
    differs = generator.random(400) < 0.3
    swapped = generator.random(400) < 0.5
    baseline, candidate = first, np.where(differs, second, first)
    return LabelledAnswers(
        truth=truth.tolist(),
        baseline=np.where(swapped, baseline, candidate).tolist(),
        candidate=np.where(swapped, candidate, baseline).tolist(),
    )


def test_macro_f1_is_tested_and_bounded_as_it_says() -> None:
    generator, n_runs = rng(12), 400
    rejected = covered = 0
    for _ in range(n_runs):
        task = answered(generator)
        rejected += JoinedAnswers.of([task]).swap_test(n_resamples=199, rng=generator).pvalue <= 0.05
        found = bootstrap_macro_f1(task, confidence_level=0.9, n_resamples=500, rng=generator)
        covered += contains(found.interval, 0.0)
    assert rejected / n_runs <= at_most(0.05, n_runs)
    assert 0.85 <= covered / n_runs <= 0.96


def test_intervals_of_clustered_means_cover_with_few_unequal_clusters() -> None:
    generator, n_runs = rng(14), 2_000
    cluster = np.repeat(np.arange(12), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 25])
    covered = 0
    for _ in range(n_runs):
        values = generator.normal(size=100) + generator.normal(size=12)[cluster]
        try:
            covered += contains(mean_difference(values, cluster=cluster).interval(confidence_level=0.95), 0.0)
        except InsufficientData:
            continue
    assert 0.93 <= covered / n_runs <= 0.985


@pytest.mark.parametrize(
    ("n", "size", "noise", "margin"),
    [
        *((20, 0.6, 0.01, 0.02), (40, 0.6, 0.01, 0.02), (150, 1.0, 0.01, 0.03), (300, 1.0, 0.0, 0.03)),
        *((600, 0.5, 0.1, 0.03), (600, 0.3, 0.2, 0.03)),
    ],
)
def test_rare_large_losses_are_seldom_called_equivalent(n: int, size: float, noise: float, margin: float) -> None:
    """A true loss of 3 pp, the margin or more, in rare pieces of a size; t-tests alone call half of the first so."""
    generator, n_runs, called = rng(11), 1_000, 0
    for _ in range(n_runs):
        rest = generator.normal(0.0, noise, n) if noise else np.zeros(n)
        losses = np.where(generator.random(n) < 0.03 / size, -size, np.clip(rest, -1.0, 1.0))
        called += BoundedMean.of(losses).pvalue_above(-margin) <= 0.05
    assert called / n_runs <= at_most(0.05, n_runs)


def flipped(generator: np.random.Generator, changed: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Arms of 0/1 scores with these differences."""
    baseline = np.where(changed == 0, (generator.random(changed.size) < 0.7), changed < 0).astype(float)
    return baseline, baseline + changed


@pytest.mark.parametrize(
    ("n_clusters", "size", "share", "margin"),
    [
        *((20, 45, 0.5, 0.02), (8, 20, 0.8, 0.05), (12, 20, 0.8, 0.05), (20, 20, 0.8, 0.05), (100, 16, 1.0, 0.05)),
        *((100, 16, 0.5, 0.05), (200, 4, 1.0, 0.03), (488, 2, 1.0, 0.02), (541, 3, 1.0, 0.02)),
    ],
)
def test_losses_in_few_clusters_are_seldom_called_equivalent(
    n_clusters: int, size: int, share: float, margin: float
) -> None:
    """A loss of the margin in a few clusters, `share` of whose items are lost; 2 % of all items flip either way."""
    generator, n_runs, called = rng(13), 400, 0
    shape, cluster = (n_clusters, size), np.repeat(np.arange(n_clusters), size)
    for _ in range(n_runs):
        is_broken = generator.random((n_clusters, 1)) < margin / share
        losses = is_broken & (generator.random(shape) < share)
        noise = np.where(generator.random(shape) < 0.02, generator.choice([-1.0, 1.0], shape), 0.0)
        arms = flipped(generator, np.where(losses, -1.0, np.where(is_broken, 0.0, noise)).ravel())
        called += clustered_equivalence(*arms, cluster=cluster, margin=margin).is_equivalent
    assert called / n_runs <= at_most(0.05, n_runs)


def test_harmless_designs_keep_most_of_their_power() -> None:
    """600 items, differences with a spread of 0.1, ±2 pp: nearly all, as the t-test; 488 passages, 900 items, ±3 pp."""
    generator, n_runs = rng(16), 200
    sizes = np.array([2] * 412 + [1] * 76)
    cluster = np.repeat(np.arange(488), sizes)
    scores = passages = free = 0
    for _ in range(n_runs):
        mean = BoundedMean.of(np.clip(generator.normal(0, 0.1, 600), -1, 1))
        scores += pvalue_within(mean, 0.02) <= 0.05
        arms = flipped(generator, np.where(generator.random(900) < 0.05, generator.choice([-1.0, 1.0], 900), 0.0))
        passages += clustered_equivalence(*arms, cluster=cluster, margin=0.03).is_equivalent
        free += equivalence(tally(*arms), margin=0.03).is_equivalent
    assert scores / n_runs > 0.97
    assert passages / n_runs > free / n_runs - 0.07
    planned = verdict_power(n_items=900, discordance=0.05, margin=0.03, alpha=0.05, n_clusters=488)
    assert passages / n_runs == pytest.approx(planned, abs=0.05)

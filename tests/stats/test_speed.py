"""Ratios of speeds, times between tokens, and two speeds, against brute force and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.checks import FloatArray
from qualab.stats.speed import Timed, bucket_of, bucket_quantile, dip, modes_of, ratio_interval
from tests.stats.reference import rng


def pairs(baseline: list[float], candidate: list[float]) -> list[tuple[Timed, Timed]]:
    """Repeats of 100 tokens an arm, of so many seconds."""
    return [(Timed(100, one), Timed(100, other)) for one, other in zip(baseline, candidate, strict=True)]


def test_a_bucket_holds_a_time_to_within_1_percent() -> None:
    times = np.exp(rng(1).uniform(math.log(1e-4), math.log(60.0), 2_000))
    told = [bucket_quantile([(bucket_of(time), 3)], 0.5) for time in times]
    assert np.abs(told / times - 1.0).max() < 0.0101
    mixed = [(bucket_of(time), 1) for time in times]
    for q in (0.5, 0.95, 0.99):
        assert bucket_quantile(mixed, q) == pytest.approx(np.quantile(times, q, method="inverted_cdf"), rel=0.011)
    assert (bucket_of(0.0), bucket_quantile([(0, 4)], 0.99)) == (0, 1e-4)
    with pytest.raises(InsufficientData):
        bucket_quantile([], 0.5)


def test_degenerate_repeats_give_no_certainty() -> None:
    assert ratio_interval([pairs([2.0], [1.0])], seed=1) == (2.0, None)
    value, interval = ratio_interval([pairs([2.0] * 5, [1.0] * 5)], seed=1)
    assert interval is not None
    assert value == pytest.approx(2.0)
    assert 0.001 < interval[1] / interval[0] - 1.0 < 0.003  # repeats that are all the same: ±0.12 %
    value, interval = ratio_interval([pairs([2.0, 2.0], [1.0, 1.1])], seed=1)
    assert interval is not None
    assert interval[0] < 1.2
    assert interval[1] > 3.0  # two repeats prove next to nothing
    for seconds in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidValue):
            ratio_interval([pairs([1.0, 1.0], [1.0, seconds])], seed=1)
    for none in ([], [[]]):
        with pytest.raises(InsufficientData):
            ratio_interval(none, seed=1)


def test_a_ratio_is_that_of_the_sums_and_of_cells_the_geometric_mean() -> None:
    first, second = pairs([1.0, 3.0, 2.0], [0.5, 1.5, 1.0]), pairs([1.0, 1.1, 0.9], [2.0, 2.0, 2.0])
    assert ratio_interval([first], seed=1)[0] == pytest.approx(2.0)
    value, interval = ratio_interval([first, second], seed=1)
    assert value == pytest.approx(1.0)
    assert interval is not None
    # the first cell is certain but for the clock, so that the second's uncertainty is halved
    alone = ratio_interval([second], seed=1)[1]
    assert alone is not None
    assert math.log(interval[1] / interval[0]) == pytest.approx(math.log(alone[1] / alone[0]) / 2, rel=0.05)
    assert ratio_interval([first, second], seed=1) == (value, interval)


def farthest(values: FloatArray) -> float:
    """The dip by linear programming: for each mode the nearest distribution that is convex before and concave after."""
    points, counts = np.unique(values, return_counts=True)
    upper = np.cumsum(counts) / len(values)
    lower, least = upper - counts / len(values), 1.0
    for mode in range(len(points)):
        before, after = mode + 1, len(points) - mode  # the mode is in both: it may have a jump
        rows: list[FloatArray] = []
        limits: list[float] = []

        def add(limit: float, width: int = before + after + 1, **entries: float) -> None:
            row = np.zeros(width)
            for name, entry in entries.items():
                row[int(name[1:])] += entry
            rows.append(row)  # noqa: B023
            limits.append(limit)  # noqa: B023

        size = before + after
        for at in range(size):
            point = at if at < before else at - 1
            both = {lower[point]} if at == mode else {upper[point]} if at == before else {lower[point], upper[point]}
            for bound in both:
                add(bound, **{f"g{at}": 1.0, f"g{size}": -1.0})
                add(-bound, **{f"g{at}": -1.0, f"g{size}": -1.0})
        for at in range(size - 1):
            add(0.0, **{f"g{at}": 1.0, f"g{at + 1}": -1.0})
        for start, n, sign in ((0, before, 1.0), (before, after, -1.0)):
            for at in range(start, start + n - 2):
                point = at if at < before else at - 1
                one, two = 1 / (points[point + 1] - points[point]), 1 / (points[point + 2] - points[point + 1])
                add(0.0, **{f"g{at + 1}": sign * (one + two), f"g{at}": -sign * one, f"g{at + 2}": -sign * two})
        costs = np.append(np.zeros(size), 1.0)
        least = min(least, scipy.optimize.linprog(costs, A_ub=np.array(rows), b_ub=limits, bounds=(0.0, 1.0)).fun)
    return least


def test_the_dip_is_the_distance_from_the_nearest_distribution_with_one_mode() -> None:
    generator = rng(3)
    for run in range(24):
        n = int(generator.integers(4, 14))
        values = generator.normal(size=n) + generator.choice([0.0, 4.0]) * (np.arange(n) < n // 2)
        values = np.sort(np.round(values) if run % 3 == 0 else values)
        assert dip(values) == pytest.approx(farthest(values), abs=1e-7)


def test_the_dip_of_published_data() -> None:
    # faithful's 272 waiting times are not here; uniform spacing has the least dip, two points the largest
    assert dip(np.arange(100.0)) == pytest.approx(1 / 200)
    assert dip(np.repeat([0.0, 1.0], 50)) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(
    ("levels", "scatter", "n_modes"),
    [
        ([10, 10, 10, 10, 10, 10], 0.05, 0),
        ([10, 12, 9, 11, 13, 8], 0.01, 0),  # repeats differ, without two levels
        ([5, 10, 10, 10, 10, 10, 10, 10], 0.02, 0),  # one repeat stands out
        ([10, 15, 10, 15, 15, 10, 15, 10, 10, 15, 15, 10, 15, 10, 10], 0.01, 2),
    ],
)
def test_two_speeds_of_whole_repeats(levels: list[float], scatter: float, n_modes: int) -> None:
    generator = rng(11)
    modes = modes_of([(level * np.exp(generator.normal(0, scatter, 12))).tolist() for level in levels])
    assert len(modes) == n_modes
    if modes:
        assert modes[0] == (pytest.approx(15, rel=0.02), pytest.approx(7 / 15))
        assert modes[1] == (pytest.approx(10, rel=0.02), pytest.approx(8 / 15))


def test_two_speeds_of_requests() -> None:
    generator = rng(12)
    speeds = np.where(generator.random((5, 16)) < 0.4, 15.0, 10.0) * np.exp(generator.normal(0, 0.03, (5, 16)))
    (fast, share), (slow, rest) = modes_of(speeds.tolist())
    assert (fast, slow, share + rest) == (pytest.approx(15, rel=0.03), pytest.approx(10, rel=0.03), 1.0)
    assert share == np.mean(speeds > 12.5)
    assert modes_of([[10.0] * 16] * 2) == modes_of([]) == ()


NOISES = [
    *((f"lognormal {sd:g}", sd, 0.0, 1.0) for sd in (0.03, 0.2)),
    ("common to a pair", 0.05, 0.2, 1.0),
    ("outliers", 0.05, 0.0, 1.5),
    ("far outliers", 0.05, 0.0, 2.5),
]


@pytest.mark.simulation
@pytest.mark.parametrize("n", [5, 8, 15])
@pytest.mark.parametrize(("sd", "common", "outlier"), [noise[1:] for noise in NOISES], ids=[one[0] for one in NOISES])
def test_an_interval_of_95_percent_covers_the_ratio_so_often(n: int, sd: float, common: float, outlier: float) -> None:
    generator, n_runs, covered = rng(9), 1_500, 0
    for seed in range(n_runs):
        seconds = np.exp(generator.normal(0, common, (n, 1)) + generator.normal(0, sd, (n, 2)))
        seconds *= np.where(generator.random((n, 2)) < 0.1, outlier, 1.0)
        _, interval = ratio_interval([pairs(*seconds.T.tolist())], seed=seed)
        assert interval is not None
        covered += interval[0] <= 1.0 <= interval[1]
    most = 0.985 if outlier > 1.0 else 0.97  # outliers make it conservative
    assert 0.93 <= covered / n_runs <= most


@pytest.mark.simulation
def test_one_speed_is_rarely_taken_for_two() -> None:
    generator, n_runs = rng(10), 400
    draws = {
        "uniform, where the dip test is exact": lambda: generator.uniform(1.0, 1.5, (8, 16)),
        "repeats vary": lambda: np.exp(generator.normal(0, 0.1, (8, 1)) + generator.normal(0, 0.01, (8, 16))),
    }
    for draw in draws.values():
        wrong = sum(bool(modes_of(draw().tolist())) for _ in range(n_runs)) / n_runs
        assert wrong <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / n_runs)

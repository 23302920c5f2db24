"""Speeds over paired repeats: ratios with intervals, times between tokens, and whether there are two speeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.checks import FloatArray, check_confidence_level, finite
from qualab.stats.distributions import normal_cdf
from qualab.stats.noise import variance_components

SHORTEST_GAP_S, WIDTH = 1e-4, 1.02
"""Gaps up to the shortest are one bucket; each of the others is 2 % wide."""
RESOLUTION = 0.001
"""Scatter of a repeat's ratio that is assumed at the least: no timing of a burst is better than 0.1 %."""
N_RESAMPLES = 4_999
FEWEST_SPEEDS = 16


def bucket_of(gap_s: float) -> int:
    """Return the bucket of a time between two tokens.

    >>> bucket_of(0.0), bucket_of(0.02)
    (0, 268)
    """
    return max(0, math.ceil(math.log(max(gap_s, SHORTEST_GAP_S) / SHORTEST_GAP_S) / math.log(WIDTH)))


def bucket_quantile(buckets: Iterable[tuple[int, int]], q: float) -> float:
    """Return a quantile of times in buckets, in seconds, to within 1 %. Buckets may occur several times.

    >>> round(bucket_quantile([(268, 9), (400, 1)], 0.5), 3)
    0.02
    """
    counts = Counter[int]()
    for bucket, n in buckets:
        counts[bucket] += n
    total, reached = counts.total(), 0
    for bucket, n in sorted(counts.items()):
        reached += n
        if n and reached >= q * total:
            return SHORTEST_GAP_S * math.pow(WIDTH, max(0.0, bucket - 0.5))
    raise InsufficientData("There is no time between tokens", hint="Answers need at least two tokens each.")


class Timed(NamedTuple):
    """What an arm did in one repeat."""

    tokens: float
    seconds: float
    """Summed over requests."""


Pairs = Sequence[tuple[Timed, Timed]]
"""Paired repeats of one cell, the baseline's first."""


def ratio_interval(
    cells: Sequence[Pairs], *, confidence_level: float = 0.95, seed: int
) -> tuple[float, tuple[float, float] | None]:
    """Compute the candidate's speed over the baseline's, with an interval: of several cells the geometric mean.

    A cell's ratio is that of its sums: (Σ tokens / Σ seconds) / (Σ tokens / Σ seconds). The interval is the expanded
    percentile bootstrap over pairs of repeats, and never narrower than Student's t by the infinitesimal jackknife of
    the log ratio: alone, the bootstrap covers too rarely with 5 repeats. Repeats that agree better than 0.1 % are taken
    to scatter by that much.

    Args:
        cells: tokens and seconds above 0.

    Returns:
        The ratio, and None instead of an interval where a cell has fewer than two pairs.

    Source: Efron (1982), 6; Hesterberg (2015), "What Teachers Should Know About the Bootstrap", 5; degrees of freedom
    by Satterthwaite (1946).

    >>> cell = [(Timed(100, 2.0), Timed(100, seconds)) for seconds in (1.0, 1.02, 0.99, 1.01, 0.98)]
    >>> value, (low, high) = ratio_interval([cell], seed=1)
    >>> round(value, 3), round(low, 3), round(high, 3)
    (2.0, 1.961, 2.04)
    """
    check_confidence_level(confidence_level)
    if not cells or not all(cells):
        raise InsufficientData("A ratio of speeds needs a repeat of both arms", hint="Repeat what failed.")
    tables = [np.array(pairs, dtype=np.float64) for pairs in cells]
    if min(float(table.min()) for table in tables) <= 0.0 or not all(np.isfinite(table).all() for table in tables):
        raise InvalidValue("Tokens and seconds must be above 0", hint="Leave out repeats in which no token came.")
    value = float(np.mean([_log_ratio(table) for table in tables]))
    if min(map(len, tables)) < 2:
        return math.exp(value), None
    sizes = np.array([len(table) for table in tables])
    variances = np.array([_variance(table) for table in tables])
    df = float(variances.sum() ** 2 / np.sum(variances**2 / (sizes - 1.0)))
    t = float(scipy.special.stdtrit(df, 0.5 + confidence_level / 2.0))
    half = t * math.sqrt(float(variances.sum())) / len(tables)
    rng, draws = np.random.default_rng(seed), np.zeros(N_RESAMPLES)
    for table in tables:
        draws += _log_ratio(table[rng.integers(0, len(table), size=(N_RESAMPLES, len(table)))])
    # a resample's variance is smaller by (n − 1) / n, and its tails are a normal's, not Student's
    tail = normal_cdf(-t * math.sqrt(float(variances.sum() / np.sum(variances * (sizes - 1.0) / sizes))))
    low, high = np.quantile(draws / len(tables), (tail, 1.0 - tail)).tolist()
    return math.exp(value), (math.exp(min(low, value - half)), math.exp(max(high, value + half)))


def _log_ratio(table: FloatArray) -> FloatArray:
    # repeats × arms × (tokens, seconds), or resamples of them
    logs = np.log(table.sum(axis=-3))
    rates = logs[..., 0] - logs[..., 1]
    return np.asarray(rates[..., 1] - rates[..., 0])


def _variance(table: FloatArray) -> float:
    n, shares = len(table), table / table.sum(axis=0)
    influences = n * (shares[:, 1, 0] - shares[:, 1, 1] - shares[:, 0, 0] + shares[:, 0, 1])
    return max(float(influences @ influences) / (n - 1.0), RESOLUTION**2) / n


def modes_of(repeats: Sequence[Sequence[float]]) -> tuple[tuple[float, float], ...]:
    """Find two speeds among the requests of some repeats, by Hartigan's dip test at 5 %.

    Requests of a repeat are alike, so that the critical value is that of the effective number of requests
    (n / (1 + (m − 1) ICC) for m requests a repeat). The modes are parted where the variance between them is largest.

    Returns:
        Median and share of each mode, the fastest first; empty where one mode is not ruled out.

    Source: Hartigan & Hartigan (1985); Kish (1965) for the design effect; Otsu (1979) for the split.

    >>> modes_of([[9.9, 10.1, 20.0, 10.0, 19.9, 20.1]] * 6)
    ((20.0, 0.5), (10.0, 0.5))
    """
    speeds = np.sort(
        np.concatenate([finite(speeds, name="Speeds") for speeds in repeats if len(speeds)] or [np.empty(0)])
    )
    if speeds.size < FEWEST_SPEEDS or speeds[0] == speeds[-1]:
        return ()
    m, n_repeats = min(map(len, repeats)), len(repeats)
    size = float(n_repeats)
    if m > 1 and n_repeats > 1:
        icc = variance_components([list(own)[:m] for own in repeats]).icc or 0.0
        size = speeds.size / (1.0 + (speeds.size / n_repeats - 1.0) * icc)
    root = math.sqrt(size)
    if dip(speeds) <= (0.54 - 0.3 / root) / root:  # the 95 % quantile for uniform values, by simulation, to within 1 %
        return ()
    sizes, sums = np.arange(1, speeds.size), np.cumsum(speeds)
    split = 1 + int(np.argmax((sums[:-1] - sizes * speeds.mean()) ** 2 / (sizes * (speeds.size - sizes))))
    return tuple((float(np.median(mode)), mode.size / speeds.size) for mode in (speeds[split:], speeds[:split]))


def dip(values: FloatArray) -> float:
    """Compute Hartigan's dip: the distance of sorted values' distribution from the nearest one with a single mode.

    Source: Hartigan & Hartigan (1985), "The Dip Test of Unimodality", Annals of Statistics 13, section 4.

    >>> dip(np.array([1.0, 1.1, 1.2, 3.0, 3.1, 3.2]))
    0.225
    """
    points, counts = np.unique(values, return_counts=True)
    upper = np.cumsum(counts).astype(np.float64)
    lower = upper - counts
    first, last, distance = 0, len(points) - 1, 1.0
    while True:
        part = slice(first, last + 1)
        minorant, majorant = first + _hull(points[part], lower[part]), first + _hull(points[part], -upper[part])
        convex = np.interp(points, points[minorant], lower[minorant])
        concave = np.interp(points, points[majorant], upper[majorant])
        between = concave - convex
        by_minorant, by_majorant = minorant[np.argmax(between[minorant])], majorant[np.argmax(between[majorant])]
        if between[by_minorant] > between[by_majorant]:
            begin, end = by_minorant, majorant[np.searchsorted(majorant, by_minorant)]
        else:
            begin, end = minorant[np.searchsorted(minorant, by_majorant, side="right") - 1], by_majorant
        if between[[begin, end]].max() <= distance:
            break
        left, right = slice(first, begin), slice(end + 1, last + 1)
        distance = max(distance, (upper - convex)[left].max(initial=0.0), (concave - lower)[right].max(initial=0.0))
        if (begin, end) == (first, last):
            break
        first, last = int(begin), int(end)
    return float(distance) / (2.0 * len(values))


def _hull(x: FloatArray, y: FloatArray) -> np.ndarray:
    """Return the corners of the greatest convex minorant."""
    corners: list[int] = []
    for point in range(len(x)):
        while len(corners) > 1:
            a, b = corners[-2:]
            if (y[b] - y[a]) * (x[point] - x[b]) < (y[point] - y[b]) * (x[b] - x[a]):
                break
            corners.pop()
        corners.append(point)
    return np.array(corners)

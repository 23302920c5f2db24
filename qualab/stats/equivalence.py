"""Equivalence of paired 0/1 outcomes: score tests, and the exact test that has to agree.

An exact unconditional test takes the largest rejection probability over an unknown discordance. As a function of the
discordance ψ, the probability that Bin(n, ψ) discordant items lead into a fixed region waves with a period of at least
about two standard deviations of ψ's estimate. On the scale asin(√ψ) that standard deviation is 1 / (2√n) everywhere, so
a grid of half of it meets every hump; the highest humps are then narrowed down.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy

from qualab.stats.checks import BoolArray, FloatArray, IntArray, check_alpha, check_items, check_margin
from qualab.stats.counts import PairedCounts
from qualab.stats.distributions import (
    binomial_weights,
    falling_root,
    largest_integers,
    likely_totals,
    log_factorials,
    normal_quantile,
    normal_sf,
    safe_log,
)
from qualab.stats.interval import ConfidenceInterval, score_statistic, tango
from qualab.stats.repeated import RepeatedCounts

_BLOCK = 16
_HUMPS = 3
_FIRST, _SECOND = 8, 16
"""Points of the two finer grids."""
_NEAR = 1e-4
"""Humps whose first estimates differ by this part are told apart by the second."""
_LOW = 0.9
"""A hump on the grid below so much of a level stays below it: half a standard deviation from its top it has lost far
less than a tenth."""

Probability = Callable[[FloatArray], FloatArray]
"""From an ascending array of at most 16 discordances, neighbours that may share work, to one value each."""


def supremum(probability: Probability, *, low: float, n_items: int, level: float | None = None) -> float:
    """Find the largest value of `probability` over discordances from `low` to 1, within about 1e-7.

    With a `level`, a value on the same side of it. The maximum mostly lies near an end, so the ends are asked first.
    The grid hangs at 1: another `low` asks the same blocks.
    """
    first, last = math.asin(math.sqrt(low)), math.asin(1.0)
    step = min(0.25 / math.sqrt(n_items), (last - first) / (_BLOCK - 1))
    n_steps = math.ceil((last - first) / step - 1e-9) if step > 0.0 else 0
    grid = np.maximum(first, last - step * np.arange(n_steps, -1, -1))
    grid[0] = first
    blocks = np.split(grid, range(grid.size % _BLOCK or _BLOCK, grid.size, _BLOCK))
    parts: dict[int, FloatArray] = {}
    for number in sorted(range(len(blocks)), key=lambda number: min(number, len(blocks) - 1 - number)):
        parts[number] = probability(np.sin(blocks[number]) ** 2)
        if level is not None and parts[number].max() > level:
            return float(parts[number].max())
    values = np.concatenate([parts[number] for number in range(len(blocks))])
    best = float(values.max())
    if level is not None and best < _LOW * level:
        return best

    def finer(grid: FloatArray, hump: int, n_points: int) -> tuple[FloatArray, FloatArray]:
        closer = np.linspace(grid[max(0, hump - 1)], grid[min(grid.size - 1, hump + 1)], n_points)
        return closer, probability(np.sin(closer) ** 2)

    padded = np.concatenate(([-np.inf], values, [-np.inf]))
    is_hump = (values >= padded[:-2]) & (values >= padded[2:]) & (values >= _LOW * best)
    humps = np.flatnonzero(is_hump)
    humps = humps[np.argsort(values[humps])[::-1][:_HUMPS]]
    closer_grids = [finer(grid, int(hump), _FIRST) for hump in humps]
    tops = [_top(closer_values) for _, closer_values in closer_grids]
    for (closer, closer_values), top in zip(closer_grids, tops, strict=True):
        if top >= (1.0 - _NEAR) * max(tops):
            best = max(best, _top(finer(closer, int(closer_values.argmax()), _SECOND)[1]))
    return best


def _top(values: FloatArray) -> float:  # of the parabola through the best point and its neighbours
    hump = int(values.argmax())
    if hump in (0, values.size - 1):
        return float(values[hump])
    before, best, after = values[hump - 1 : hump + 2].tolist()
    curvature = 2.0 * best - before - after
    return float(best + ((before - after) ** 2 / (8.0 * curvature) if curvature > 0.0 else 0.0))


_TIE = 1e-9
_LOG_ZERO = -1e6
"""Logarithm that vanishes in an exponential."""
_MOST_KEPT = 2_000.0
"""Discordances times √items, up to which chances are kept: they take a hundred kilobytes."""


def critical_gains(totals: IntArray, *, n_items: int | IntArray, margin: float, threshold: float) -> IntArray:
    """Find the fewest gains of each number of discordant items m whose score statistic against −margin is `threshold`.

    Elementwise; m + 1 where not even m gains reach it.
    """
    # the statistic as in `score_statistic`, with what the gains do not move worked out once
    shift, spread = n_items * margin, n_items * margin * (1.0 - margin)
    constant = 2.0 * shift - totals

    def falls_short(gains: IntArray) -> BoolArray:
        gained = np.maximum(gains, 0)
        ahead = 2.0 * gained - totals
        linear = constant + margin * ahead
        variance = 0.5 * (np.sqrt(linear * linear + (8.0 * spread) * gained) - linear) + spread
        return np.asarray(ahead + shift < (threshold - _TIE) * np.sqrt(variance), dtype=np.bool_)

    low, high = np.full(totals.shape, -1), totals
    if totals.ndim > 1 and len(totals) > 2:  # fewer gains suffice among more items: the rows lie between their ends
        most, fewest = critical_gains(totals[[0, -1]], n_items=n_items[[0, -1]], margin=margin, threshold=threshold)  # type: ignore[index]
        low, high = np.maximum(low, fewest - 2), np.minimum(high, most)
    return largest_integers(falls_short, low, high) + 1


def _rejection(*, n_items: int, margin: float, threshold: float) -> Probability:
    # rejected is "worse by the margin or more" with at least `critical[m]` gains of m discordant items; from m to m + 1
    # the chance of that, given m and a true difference of −margin, changes by one binomial term
    totals = np.arange(n_items + 1, dtype=np.int64)
    critical = critical_gains(totals, n_items=n_items, margin=margin, threshold=threshold)
    # they grow by 0 or 1 from one m to the next, but for rounding at ties
    critical = np.minimum.accumulate(critical[::-1])[::-1]
    critical = np.asarray(np.minimum.accumulate(critical - totals) + totals, dtype=np.int64)
    grows, before, gains = np.diff(critical), totals[:-1], critical[:-1]
    signs, successes = 1.0 - 2.0 * grows, gains - 1 + grows
    inside = (successes >= 0) & (successes <= before)
    factorials, chosen = log_factorials(n_items), np.where(inside, successes, 0)
    log_choose = factorials[:-1] - factorials[chosen] - factorials[before - chosen]
    # exponents of the shares of gains and of losses in the term, and its logarithm of C(m, k)
    powers = np.array([gains, before - gains + 1, np.where(inside, log_choose, _LOG_ZERO)])

    def probability(discordances: FloatArray) -> FloatArray:
        is_kept = discordances.size * math.sqrt(n_items) <= _MOST_KEPT
        chances = _chances_of_more if is_kept else _chances_of_more.__wrapped__
        first, reached = chances(n_items, discordances.tobytes())
        last = first + reached.shape[1] - 1
        shares = np.maximum(0.0, (1.0 - margin / discordances) / 2.0)
        logs = np.array([safe_log(shares), safe_log(1.0 - shares), np.ones(shares.size)])
        terms = np.exp(logs.T @ powers[:, first:last])
        terms *= reached[:, 1:]
        start, fewest = reached[:, 0], int(critical[first])
        if fewest > 0:
            start = start * (scipy.special.bdtrc(fewest - 1, first, shares) if fewest <= first else 0.0)
        return np.asarray(start + terms @ signs[first:last], dtype=np.float64)

    return probability


@lru_cache(maxsize=128)
def _chances_of_more(n_items: int, discordances: bytes) -> tuple[int, FloatArray]:
    # for each discordance (row), the chances of at least so many discordant items (columns, from the first likely one)
    rates: FloatArray = np.frombuffer(discordances)
    totals = likely_totals(n_items, rates[0], rates[-1])
    weights = binomial_weights(totals, n_items, rates)
    return int(totals[0]), np.ascontiguousarray(np.cumsum(weights[:, ::-1], axis=1)[:, ::-1])


def guard_pvalue(statistic: float, *, n_items: int, margin: float) -> float:
    """Compute the exact p-value of a score statistic against −margin (Hsueh, Liu & Chen 2001), to about 1e-7.

    The largest probability of a statistic at least as high, over all discordances.
    """
    rejection = _rejection(n_items=n_items, margin=margin, threshold=statistic)
    return min(1.0, supremum(rejection, low=margin, n_items=n_items))


@lru_cache(maxsize=4096)
def is_accepted(statistic: float, *, n_items: int, margin: float, alpha: float) -> bool:
    """Check that `guard_pvalue` is at most alpha."""
    rejection = _rejection(n_items=n_items, margin=margin, threshold=statistic)
    return supremum(rejection, low=margin, n_items=n_items, level=alpha) <= alpha


@lru_cache(maxsize=512)
def guard_threshold(*, n_items: int, margin: float, alpha: float) -> float:
    """Find the score statistic from which on the exact p-value is at most alpha; infinite where none is."""

    def accepts(statistic: float) -> bool:
        return is_accepted(statistic, n_items=n_items, margin=margin, alpha=alpha)

    low, high = 0.0, score_statistic(float(n_items), 0.0, n_items=n_items, difference=-margin)
    if not accepts(high):
        return math.inf
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if accepts(middle) else (middle, high)
    return high


def forget_guard() -> None:
    """Clear the caches, for measurements."""
    for cached in (_chances_of_more, is_accepted, guard_threshold):
        cached.cache_clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class EquivalenceResult:
    """Two one-sided tests at ±margin."""

    n_items: int
    margin: float
    statistic_lower: float
    """Against −margin; large positive speaks against "worse by the margin or more"."""
    statistic_upper: float
    """Against +margin; large negative speaks against "better by the margin or more"."""
    pvalue_lower: float
    pvalue_upper: float
    pvalue: float
    """The larger of the two score p-values."""
    pvalue_exact: float
    """p-value of the side with the smaller statistic, whose outcomes hold those of the other."""
    interval: ConfidenceInterval
    """Tango's at 1 − 2 alpha: inside ±margin exactly when `pvalue` <= alpha."""
    is_equivalent: bool
    """Both `pvalue` and `pvalue_exact` are at most alpha."""

    def pvalue_exact_of(self, lower: bool, upper: bool) -> float:
        """Compute the exact p-value of these sides of the margin, at least one of them."""
        statistics = (self.statistic_lower, -self.statistic_upper)
        nearer = min(z for z, is_taken in zip(statistics, (lower, upper), strict=True) if is_taken)
        if nearer == min(statistics):
            return self.pvalue_exact
        return guard_pvalue(nearer, n_items=self.n_items, margin=self.margin)


def _statistic(counts: PairedCounts | RepeatedCounts, margin: float) -> float:  # against −margin
    if isinstance(counts, RepeatedCounts):
        return counts.statistic(-margin)
    return score_statistic(float(counts.gains), float(counts.losses), n_items=counts.n_items, difference=-margin)


def score_limits(counts: PairedCounts | RepeatedCounts, *, confidence_level: float) -> ConfidenceInterval:
    """Compute the interval of differences that the score test does not reject."""
    if isinstance(counts, RepeatedCounts):
        return counts.interval(confidence_level=confidence_level)
    return tango(counts, confidence_level=confidence_level)


def equivalence(counts: PairedCounts | RepeatedCounts, *, margin: float, alpha: float = 0.05) -> EquivalenceResult:
    """Test equivalence by two one-sided score tests and the exact guard, which has to agree.

    With several baseline answers the guard takes the statistic as that of one answer: the least favourable
    distributions, a rare loss of whole items, are the same, and others spread less. Shown by simulation.

    Source: Nam (1997); Tango (1998); Liu et al. (2002); the guard: Hsueh, Liu & Chen (2001).

    >>> result = equivalence(PairedCounts(n_items=44, gains=0, losses=1), margin=0.1)
    >>> round(result.pvalue, 4), round(result.pvalue_exact, 4), result.is_equivalent
    (0.0438, 0.0571, False)
    """
    n_items = check_items(counts.n_items)
    check_margin(margin)
    check_alpha(alpha)
    lower, upper = _statistic(counts, margin), _statistic(counts.swapped(), margin)
    nearer = min(lower, upper)
    pvalue, exact = normal_sf(nearer), guard_pvalue(nearer, n_items=n_items, margin=margin)
    return EquivalenceResult(
        n_items=n_items,
        margin=margin,
        statistic_lower=lower,
        statistic_upper=-upper,
        pvalue_lower=normal_sf(lower),
        pvalue_upper=normal_sf(upper),
        pvalue=pvalue,
        pvalue_exact=exact,
        interval=score_limits(counts, confidence_level=1.0 - 2.0 * alpha),
        is_equivalent=max(pvalue, exact) <= alpha,
    )


def provable_margin(counts: PairedCounts | RepeatedCounts, *, alpha: float = 0.05, is_one_sided: bool = False) -> float:
    """Find the smallest margin that these counts prove, or the smallest loss that they rule out. 1 where there is none.

    One that the exact guard accepts, at most 1e-5 and one part in 2,000 above one that it does not.

    >>> round(provable_margin(PairedCounts(n_items=600, gains=0, losses=0)), 4)  # by the score tests alone: 0.0045
    0.005
    """
    check_items(counts.n_items)
    limits = score_limits(counts, confidence_level=1.0 - 2.0 * check_alpha(alpha))
    both = ((-limits.low, counts), (limits.high, counts.swapped()))
    sides = sorted(both[:1] if is_one_sided else both, key=lambda side: -side[0])
    margin = _guarded_margin(sides[0][1], sides[0][0], alpha)
    for start, side in sides[1:]:
        # with the higher statistic the other side is accepted as well
        if not start < margin < 1.0 or _statistic(side, margin) < _statistic(sides[0][1], margin):
            margin = _guarded_margin(side, max(start, margin), alpha)
    return margin


def _guarded_margin(counts: PairedCounts | RepeatedCounts, start: float, alpha: float) -> float:
    # from `start` on, accepted by the guard on the side of a loss
    def excess(margin: float) -> float:  # in standard normal quantiles: nearly straight in the margin
        exact = guard_pvalue(_statistic(counts, margin), n_items=counts.n_items, margin=margin)
        return normal_quantile(min(max(exact, 1e-300), 1.0 - 1e-12)) - normal_quantile(alpha)

    low, widest = max(start, 1e-9), 1.0 - 1e-9
    if low >= widest or (above := excess(low)) <= 0.0:
        return min(low, 1.0)
    tolerance = 1e-5 + 5e-4 * low
    nearby = 1e-3 * min(low, 1.0 - low)  # the wider margin stays below 1, where the statistic ends
    steepness = max((_statistic(counts, low + nearby) - _statistic(counts, low)) / nearby, 1e-6)
    step = above / steepness + tolerance / 2.0
    high = min(low + step, widest)
    while (below := excess(high)) > 0.0:
        if high == widest:
            return 1.0
        low, above, step = high, below, 2.0 * step
        high = min(low + step, widest)
    return falling_root(excess, low, high, above=above, below=below, tolerance=tolerance)

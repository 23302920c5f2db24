"""The largest value of a rejection probability over an unknown discordance.

Every exact unconditional test needs it. As a function of the discordance ψ, the probability that Bin(n, ψ) discordant
items lead into a fixed region waves with a period of at least about two standard deviations of ψ's estimate. On the
scale asin(√ψ) that standard deviation is 1 / (2√n) everywhere, so a grid of half of it meets every hump; the
highest humps are then narrowed down.
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


def supremum(probability: Probability, *, low: float, high: float, n_items: int) -> float:
    """Largest value of `probability` over [low, high], within about 1e-7.

    `probability` takes an ascending array of at most 16 discordances and gives one value each; neighbours are asked
    together so that it can share its work between them. The grid hangs at `high`: another `low` asks the same blocks.
    """
    blocks = _blocks(low, high, n_items)
    values = np.concatenate([probability(_discordances(block)) for block in blocks])
    return _refined(probability, np.concatenate(blocks), values)


def exceeds(probability: Probability, level: float, *, low: float, high: float, n_items: int) -> bool:
    """Whether the `supremum` is above a level. It mostly lies near an end: the ends are asked first."""
    blocks = _blocks(low, high, n_items)
    values: dict[int, FloatArray] = {}
    for number in sorted(range(len(blocks)), key=lambda number: min(number, len(blocks) - 1 - number)):
        values[number] = probability(_discordances(blocks[number]))
        if values[number].max() > level:
            return True
    together = np.concatenate([values[number] for number in range(len(blocks))])
    if together.max() < _LOW * level:
        return False
    return _refined(probability, np.concatenate(blocks), together) > level


def _blocks(low: float, high: float, n_items: int) -> list[FloatArray]:
    """The grid, on the scale asin(√ψ), in blocks from its upper end on."""
    first, last = math.asin(math.sqrt(low)), math.asin(math.sqrt(high))
    step = min(0.25 / math.sqrt(n_items), (last - first) / (_BLOCK - 1))
    n_steps = math.ceil((last - first) / step - 1e-9) if step > 0.0 else 0
    grid = np.maximum(first, last - step * np.arange(n_steps, -1, -1))
    grid[0] = first
    return np.split(grid, range(grid.size % _BLOCK or _BLOCK, grid.size, _BLOCK))


def _discordances(angles: FloatArray) -> FloatArray:
    return np.sin(angles) ** 2


def _refined(probability: Probability, grid: FloatArray, values: FloatArray) -> float:
    """The best of the highest humps, narrowed down by two finer grids; the second for those that may be the best."""
    best = float(values.max())
    finer_grids = [_finer(probability, grid, hump, _FIRST) for hump in _highest_humps(values)]
    tops = [_top(finer_values) for _, finer_values in finer_grids]
    for (finer, finer_values), top in zip(finer_grids, tops, strict=True):
        if top >= (1.0 - _NEAR) * max(tops):
            best = max(best, _top(_finer(probability, finer, int(finer_values.argmax()), _SECOND)[1]))
    return best


def _highest_humps(values: FloatArray) -> list[int]:
    padded = np.concatenate(([-np.inf], values, [-np.inf]))
    is_hump = (values >= padded[:-2]) & (values >= padded[2:])
    humps = np.flatnonzero(is_hump & (values >= _LOW * values.max()))
    return [int(hump) for hump in humps[np.argsort(values[humps])[::-1][:_HUMPS]]]


def _finer(probability: Probability, grid: FloatArray, hump: int, n_points: int) -> tuple[FloatArray, FloatArray]:
    """A finer grid between a hump's neighbours, and the values there."""
    finer = np.linspace(grid[max(0, hump - 1)], grid[min(grid.size - 1, hump + 1)], n_points)
    return finer, probability(_discordances(finer))


def _top(values: FloatArray) -> float:
    """The top of the parabola through the best point and its neighbours."""
    hump = int(values.argmax())
    if hump in (0, values.size - 1):
        return float(values[hump])
    before, best, after = values[hump - 1 : hump + 2].tolist()
    curvature = 2.0 * best - before - after
    rise = (before - after) ** 2 / (8.0 * curvature) if curvature > 0.0 else 0.0
    return float(best + rise)


_TIE = 1e-9
_STRIDE = 16
_LOG_ZERO = -1e6
"""As a logarithm: vanishes in an exponential."""
_MOST_KEPT = 2_000.0
"""Discordances times √items, up to which chances are kept: they take a hundred kilobytes."""


def critical_gains(totals: IntArray, *, n_items: int | IntArray, margin: float, threshold: float) -> IntArray:
    """For each number of discordant items m, the fewest gains with a score statistic of at least `threshold`.

    The statistic is that against −margin. m + 1 where not even m gains reach the threshold.

    Args:
        totals: neighbouring numbers m, ascending; or a row of them for each number of items.
        n_items: one number, or a column of ascending ones.
    """

    def search(totals: IntArray, n_items: int | IntArray, low: IntArray, high: IntArray) -> IntArray:
        # Tango's statistic as in `score_statistic`, with what the gains do not move worked out once
        shift, spread = n_items * margin, n_items * margin * (1.0 - margin)
        constant = 2.0 * shift - totals

        def falls_short(gains: IntArray) -> BoolArray:
            gained = np.maximum(gains, 0)
            ahead = 2.0 * gained - totals
            linear = constant + margin * ahead
            variance = 0.5 * (np.sqrt(linear * linear + (8.0 * spread) * gained) - linear) + spread
            return np.asarray(ahead + shift < (threshold - _TIE) * np.sqrt(variance), dtype=np.bool_)

        return largest_integers(falls_short, low, high)

    def row(totals: IntArray, n_items: int) -> IntArray:
        """Every sixteenth by bisection, and the others between: from one m to the next they grow by 0 or 1."""
        knots = np.append(np.arange(0, totals.size - 1, _STRIDE), totals.size - 1)
        known = search(totals[knots], n_items, np.full(knots.size, -1), totals[knots])
        before = np.minimum(np.arange(totals.size) // _STRIDE, max(0, knots.size - 2))
        after = np.minimum(before + 1, knots.size - 1)
        low = np.maximum(known[before], known[after] - (totals[knots[after]] - totals))
        high = np.minimum(known[after], known[before] + (totals - totals[knots[before]]))
        return search(totals, n_items, low, high)

    if not isinstance(n_items, np.ndarray):
        return row(totals, n_items) + 1
    # the more items, the fewer gains of m are enough
    most, fewest = (row(totals[end], int(n_items[end, 0])) for end in (0, -1))
    if len(totals) == 1:
        return most[None, :] + 1
    return search(totals, n_items, *(np.broadcast_to(end, totals.shape) for end in (fewest, most))) + 1


@dataclass(frozen=True, slots=True)
class _Region:
    """Outcomes that reject "worse by the margin or more": at least `critical[m]` gains of m discordant items."""

    n_items: int
    margin: float
    critical: IntArray
    powers: FloatArray
    """Of the term by which the conditional tail changes from m to m + 1: powers of the shares of gains and of losses,
    and log C(m, k)."""
    signs: FloatArray
    """−1 where the critical number grows from m to m + 1, else 1."""

    @classmethod
    def of(cls, *, n_items: int, margin: float, threshold: float) -> _Region:
        totals = np.arange(n_items + 1, dtype=np.int64)
        critical = _convex(critical_gains(totals, n_items=n_items, margin=margin, threshold=threshold))
        grows, before, gains = np.diff(critical), totals[:-1], critical[:-1]
        successes = gains - 1 + grows
        inside = (successes >= 0) & (successes <= before)
        factorials, chosen = log_factorials(n_items), np.where(inside, successes, 0)
        log_choose = factorials[:-1] - factorials[chosen] - factorials[before - chosen]
        powers = np.array([gains, before - gains + 1, np.where(inside, log_choose, _LOG_ZERO)])
        return cls(n_items, margin, critical, powers, 1.0 - 2.0 * grows)

    def probabilities(self, discordances: FloatArray) -> FloatArray:
        """Probability of the region at true difference −margin, for neighbouring ascending discordances >= margin."""
        first, reached = _reached(self.n_items, discordances)
        last = first + reached.shape[1] - 1
        shares = np.maximum(0.0, (1.0 - self.margin / discordances) / 2.0)
        logs = np.array([safe_log(shares), safe_log(1.0 - shares), np.ones(shares.size)])
        terms = np.exp(logs.T @ self.powers[:, first:last])
        terms *= reached[:, 1:]
        start = _upper_tails(int(self.critical[first]), first, shares) * reached[:, 0]
        return np.asarray(start + terms @ self.signs[first:last], dtype=np.float64)


def _reached(n_items: int, discordances: FloatArray) -> tuple[int, FloatArray]:
    """The first of the likely numbers of discordant items, and the chances that there are at least so many.

    A row for each discordance, a column for each number from the first on.
    """
    is_kept = discordances.size * math.sqrt(n_items) <= _MOST_KEPT
    return (_kept_reached if is_kept else _kept_reached.__wrapped__)(n_items, discordances.tobytes())


@lru_cache(maxsize=128)
def _kept_reached(n_items: int, discordances: bytes) -> tuple[int, FloatArray]:
    rates: FloatArray = np.frombuffer(discordances)
    totals = likely_totals(n_items, rates[0], rates[-1])
    weights = binomial_weights(totals, n_items, rates)
    return int(totals[0]), np.ascontiguousarray(np.cumsum(weights[:, ::-1], axis=1)[:, ::-1])


def _convex(critical: IntArray) -> IntArray:
    """The critical numbers with steps of 0 or 1 only; they have them already, but for rounding at ties."""
    totals = np.arange(critical.size)
    ascending = np.minimum.accumulate(critical[::-1])[::-1]
    return np.asarray(np.minimum.accumulate(ascending - totals) + totals, dtype=np.int64)


def _upper_tails(k: int, n: int, shares: FloatArray) -> FloatArray:
    if k <= 0:
        return np.ones_like(shares)
    if k > n:
        return np.zeros_like(shares)
    return np.asarray(scipy.special.bdtrc(k - 1, n, shares), dtype=np.float64)


def guard_pvalue(statistic: float, *, n_items: int, margin: float) -> float:
    """Exact p-value of a score statistic against −margin, within about 1e-7.

    The largest probability of a statistic at least as high, at a true difference of −margin and any discordance.
    """
    region = _Region.of(n_items=n_items, margin=margin, threshold=statistic)
    return min(1.0, supremum(region.probabilities, low=margin, high=1.0, n_items=n_items))


@lru_cache(maxsize=4096)
def is_accepted(statistic: float, *, n_items: int, margin: float, alpha: float) -> bool:
    """Whether the exact p-value of a score statistic is at most alpha. Kept: metrics of few changes ask the same."""
    region = _Region.of(n_items=n_items, margin=margin, threshold=statistic)
    return not exceeds(region.probabilities, alpha, low=margin, high=1.0, n_items=n_items)


@lru_cache(maxsize=512)
def guard_threshold(*, n_items: int, margin: float, alpha: float) -> float:
    """The score statistic from which on the exact p-value is at most alpha; infinite where no outcome reaches that."""
    best = score_statistic(float(n_items), 0.0, n_items=n_items, difference=-margin)
    if not is_accepted(best, n_items=n_items, margin=margin, alpha=alpha):
        return math.inf
    low, high = 0.0, best
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        if is_accepted(middle, n_items=n_items, margin=margin, alpha=alpha):
            high = middle
        else:
            low = middle
    return high


def forget_guard() -> None:
    """For measurements: whatever is kept is found anew."""
    for kept in (_kept_reached, is_accepted, guard_threshold):
        kept.cache_clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class EquivalenceResult:
    """Two one-sided tests at ±margin."""

    margin: float
    alpha: float
    statistic_lower: float
    """Score statistic against −margin; large positive speaks against "worse by the margin or more"."""
    statistic_upper: float
    """Score statistic against +margin; large negative speaks against "better by the margin or more"."""
    pvalue_lower: float
    pvalue_upper: float
    pvalue: float
    """The larger of the two score p-values."""
    n_items: int
    pvalue_exact: float
    """The larger of the two exact unconditional p-values: that of the side with the smaller statistic, since a region
    of outcomes with higher statistics is a part of one with lower."""
    interval: ConfidenceInterval
    """Tango interval at 1 − 2 alpha: inside ±margin exactly when `pvalue` <= alpha."""
    is_equivalent: bool
    """Both `pvalue` and `pvalue_exact` are at most alpha."""

    @property
    def pvalue_exact_lower(self) -> float:
        """Of "worse by the margin or more" alone; found when asked for, where it is not `pvalue_exact`."""
        return self._pvalue_exact(self.statistic_lower)

    @property
    def pvalue_exact_upper(self) -> float:
        """Of "better by the margin or more" alone."""
        return self._pvalue_exact(-self.statistic_upper)

    def _pvalue_exact(self, statistic: float) -> float:
        if statistic == min(self.statistic_lower, -self.statistic_upper):
            return self.pvalue_exact
        return guard_pvalue(statistic, n_items=self.n_items, margin=self.margin)


def _statistic(counts: PairedCounts, margin: float) -> float:
    """The score statistic against −margin."""
    return score_statistic(float(counts.gains), float(counts.losses), n_items=counts.n_items, difference=-margin)


def equivalence(counts: PairedCounts, *, margin: float, alpha: float = 0.05) -> EquivalenceResult:
    """Two one-sided score tests (Nam 1997; Tango 1998; Liu et al. 2002) and the exact guard (Hsueh, Liu & Chen 2001).

    The score tests are slightly liberal where the discordance is near the margin, so "equivalent" takes both.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: the margin is not between 0 and 1, or alpha not between 0 and 0.5.
    """
    check_items(counts.n_items)
    check_margin(margin)
    check_alpha(alpha)
    lower, upper = _statistic(counts, margin), _statistic(counts.swapped(), margin)
    nearer = min(lower, upper)
    pvalue, exact = normal_sf(nearer), guard_pvalue(nearer, n_items=counts.n_items, margin=margin)
    return EquivalenceResult(
        margin=margin,
        alpha=alpha,
        statistic_lower=lower,
        statistic_upper=-upper,
        pvalue_lower=normal_sf(lower),
        pvalue_upper=normal_sf(upper),
        pvalue=pvalue,
        n_items=counts.n_items,
        pvalue_exact=exact,
        interval=tango(counts, confidence_level=1.0 - 2.0 * alpha),
        is_equivalent=max(pvalue, exact) <= alpha,
    )


def provable_margin(counts: PairedCounts, *, alpha: float = 0.05, is_one_sided: bool = False) -> float:
    """The smallest margin that these counts prove; with `is_one_sided`, that no more is lost. 1 where they prove none.

    The score tests prove every margin beyond the farther limit of the 1 − 2 alpha Tango interval. The exact guard may
    ask for a wider one: the returned margin is one that it accepts (p <= alpha, checked), at most 1e-5 and one part in
    2,000 above one that it does not. 0 discordant of 600 gives 0.45 pp by the score tests and 0.50 pp with the guard.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: alpha is not between 0 and 0.5.
    """
    check_items(counts.n_items)
    limits = tango(counts, confidence_level=1.0 - 2.0 * check_alpha(alpha))
    both = ((-limits.low, counts), (limits.high, counts.swapped()))
    sides = sorted(both[:1] if is_one_sided else both, key=lambda side: -side[0])
    margin = _guarded_margin(sides[0][1], sides[0][0], alpha)
    for start, side in sides[1:]:
        # with the higher statistic the other side is accepted as well
        if not start < margin < 1.0 or _statistic(side, margin) < _statistic(sides[0][1], margin):
            margin = _guarded_margin(side, max(start, margin), alpha)
    return margin


def _guarded_margin(counts: PairedCounts, start: float, alpha: float) -> float:
    """The smallest margin from `start` on that the guard accepts on the side of a loss."""

    def excess(margin: float) -> float:
        """Standard normal quantiles that the exact p-value misses alpha by: nearly straight in the margin."""
        exact = guard_pvalue(_statistic(counts, margin), n_items=counts.n_items, margin=margin)
        return normal_quantile(min(max(exact, 1e-300), 1.0 - 1e-12)) - normal_quantile(alpha)

    low, widest = max(start, 1e-9), 1.0 - 1e-9
    if low >= widest or (above := excess(low)) <= 0.0:
        return min(low, 1.0)
    tolerance = 1e-5 + 5e-4 * low
    step = above / _steepness(counts, low) + tolerance / 2.0
    high = min(low + step, widest)
    while (below := excess(high)) > 0.0:
        if high == widest:
            return 1.0
        low, above, step = high, below, 2.0 * step
        high = min(low + step, widest)
    return falling_root(excess, low, high, above=above, below=below, tolerance=tolerance)


def _steepness(counts: PairedCounts, margin: float) -> float:
    """How fast the score statistic grows with the margin."""
    step = 1e-3 * min(margin, 1.0 - margin)  # the wider margin stays below 1, where the statistic ends
    return max((_statistic(counts, margin + step) - _statistic(counts, margin)) / step, 1e-6)

"""Exact power of the paired tests, and from it sample sizes, provable margins and minimal detectable effects.

The number of discordant items is Bin(n, ψ), and given m of them the gains are Bin(m, θ) with θ = (ψ + Δ) / 2ψ. Each
test rejects for the gains in a range that depends on m alone, so that its power is one weighted sum over m. It is
saw-toothed in the number of items, so a size counts only where the power stays above its target for 25 more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.checks import (
    BoolArray,
    FloatArray,
    IntArray,
    check_alpha,
    check_items,
    check_margin,
    check_power,
    check_rates,
    check_share,
)
from qualab.stats.distributions import (
    binomial_cdfs,
    bisect,
    largest_integers,
    likely_totals,
    log_factorials,
    normal_quantile,
    safe_log,
)
from qualab.stats.equivalence import critical_gains, guard_threshold, is_accepted
from qualab.stats.interval import score_statistic

MAX_ITEMS = 1_000_000
_STAYS = 25
"""Sizes beyond the answer at which the power must still reach its target."""
_AT_ONCE = 8
"""Windows of so many sizes that are looked at together."""
_AHEAD = (25, 12, 4, 0)
"""Those of them at which the exact guard is asked, which takes longer."""
_CLOSER = 2
"""Steps from the closed form towards the size whose power is the target."""
_LEAST_POWER, _MOST_POWER = 0.3, 0.999
"""Powers outside say too little of how far off a size is."""
_FAR_BEYOND = 2.0
"""A closed form that says so many times the most items is not off by that much."""
_MANY_CHANGES = 10
"""Changed items to be expected, from which on the exact guard hardly costs power."""
_MOST_GUARDED = 5_000
_TIE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Truth:
    """An assumed truth at several numbers of items (rows), and the discordant items to expect (columns)."""

    n_items: IntArray
    totals: IntArray
    gain_share: float
    weights: FloatArray
    """Probabilities of the totals; 0 where they are too many."""

    @classmethod
    def of(cls, n_items: IntArray, discordance: float, difference: float) -> _Truth:
        low = likely_totals(int(n_items.min()), discordance, discordance)[0]
        high = likely_totals(int(n_items.max()), discordance, discordance)[-1]
        totals = np.arange(low, high + 1, dtype=np.int64)
        factorials, rest = log_factorials(int(n_items.max())), n_items[:, None] - totals
        same = np.maximum(rest, 0)
        log_p, log_q = safe_log(np.array([discordance, 1.0 - discordance]))
        exponents = factorials[n_items][:, None] - factorials[totals] - factorials[same] + totals * log_p + same * log_q
        return cls(
            n_items=n_items[:, None],
            totals=np.broadcast_to(totals, (n_items.size, totals.size)),
            gain_share=min(1.0, max(0.0, 0.5 + 0.5 * difference / discordance)) if discordance else 0.5,
            weights=np.where(rest >= 0, np.exp(exponents), 0.0),
        )

    def cdf(self, gains: IntArray) -> FloatArray:
        # found once for all rows that ask for the same
        fewest = gains.min(axis=0)
        depth = gains - fewest
        table = binomial_cdfs(fewest + np.arange(int(depth.max()) + 1)[:, None], self.totals[:1], self.gain_share)
        return np.take_along_axis(table, depth, axis=0)

    def expected(self, values: FloatArray) -> FloatArray:
        return np.asarray(np.minimum(1.0, np.sum(self.weights * values, axis=1)), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Goal:
    discordance: float
    difference: float
    margin: float
    alpha: float
    is_one_sided: bool

    def __post_init__(self) -> None:
        check_rates(discordance=self.discordance, difference=self.difference)
        check_margin(self.margin)
        check_alpha(self.alpha)

    @property
    def is_split(self) -> bool:
        """Check that both tests count equally: neither margin is nearer."""
        return self.difference == 0.0 and not self.is_one_sided

    def powers(self, n_items: IntArray, threshold: float | None = None) -> FloatArray:
        """Compute the score tests' powers at neighbouring numbers of items, from a z threshold, else that of alpha."""
        if threshold is None:
            threshold = normal_quantile(1.0 - self.alpha)
        if math.isinf(threshold):
            return np.zeros(n_items.size)
        truth = _Truth.of(n_items, self.discordance, self.difference)
        fewest = critical_gains(truth.totals, n_items=truth.n_items, margin=self.margin, threshold=threshold)
        if self.is_one_sided:
            return truth.expected(1.0 - truth.cdf(fewest - 1))
        accepted = truth.cdf(truth.totals - fewest) - truth.cdf(fewest - 1)
        return truth.expected(np.where(2 * fewest <= truth.totals, accepted, 0.0))

    def is_agreed(self, n_items: int, power: float) -> bool:
        # by one exact p-value: that of the highest threshold that leaves enough power
        most = int(likely_totals(n_items, self.discordance, self.discordance)[-1])
        gains, losses = np.indices((most + 1, most + 1))
        is_possible = gains + losses <= most
        gains, losses = gains[is_possible], losses[is_possible]
        ups, downs = gains.astype(np.float64), losses.astype(np.float64)
        statistics = score_statistic(ups, downs, n_items=n_items, difference=-self.margin)
        if not self.is_one_sided:
            upper = score_statistic(downs, ups, n_items=n_items, difference=-self.margin)
            statistics = np.minimum(statistics, upper)
        # outcomes that the score tests accept, the highest statistic first: the power at each as threshold
        order = np.argsort(-statistics, kind="stable")
        order = order[statistics[order] >= normal_quantile(1.0 - self.alpha) - _TIE]
        enough = np.flatnonzero(np.cumsum(self._probabilities(gains, losses, n_items)[order]) >= power)
        return enough.size > 0 and is_accepted(
            float(statistics[order[enough[0]]]), n_items=n_items, margin=self.margin, alpha=self.alpha
        )

    def _probabilities(self, gains: IntArray, losses: IntArray, n_items: int) -> FloatArray:
        factorials, rest = log_factorials(n_items), n_items - gains - losses
        better, worse = (max(0.0, self.discordance + sign * self.difference) / 2.0 for sign in (1.0, -1.0))
        log_better, log_worse, log_same = safe_log(np.array([better, worse, 1.0 - self.discordance]))
        choices = factorials[n_items] - factorials[gains] - factorials[losses] - factorials[rest]
        exponents = choices + gains * log_better + losses * log_worse + rest * log_same
        return np.asarray(np.exp(exponents), dtype=np.float64)


def power_equivalence(
    *,
    n_items: int,
    discordance: float,
    difference: float = 0.0,
    margin: float,
    alpha: float = 0.05,
    is_one_sided: bool = False,
    is_guarded: bool = False,
) -> float:
    """Compute the probability that the two one-sided score tests both reject at a given truth.

    Args:
        is_one_sided: the test against −margin alone has to reject (non-inferiority).
        is_guarded: the exact guard has to agree as well: the power of the verdict.

    >>> round(power_equivalence(n_items=1319, discordance=0.05, margin=0.02, is_guarded=True), 3)
    0.874
    """
    check_items(n_items)
    goal = _Goal(discordance, difference, margin, alpha, is_one_sided)
    threshold = normal_quantile(1.0 - alpha)
    if is_guarded:
        threshold = max(threshold, guard_threshold(n_items=n_items, margin=margin, alpha=alpha))
    return float(goal.powers(np.array([n_items]), threshold)[0])


def power_mcnemar(
    *, n_items: int, discordance: float, difference: float, alpha: float = 0.05, is_midp: bool = False
) -> float:
    """Compute the probability that the two-sided McNemar test, exact or mid-p, rejects at a given truth.

    >>> round(power_mcnemar(n_items=600, discordance=0.09, difference=0.03), 3)
    0.652
    """
    check_items(n_items)
    check_rates(discordance=discordance, difference=difference)
    check_alpha(alpha)
    truth = _Truth.of(np.array([n_items]), discordance, difference)

    def is_significant(fewer: IntArray) -> BoolArray:
        below = fewer - 1 if is_midp else fewer
        pvalue = binomial_cdfs(fewer, truth.totals, 0.5) + binomial_cdfs(below, truth.totals, 0.5)
        return np.asarray((pvalue <= alpha) | (fewer < 0))

    fewer = largest_integers(is_significant, np.full(truth.totals.shape, -1), (truth.totals - 1) // 2)
    tails = truth.cdf(fewer) + 1.0 - truth.cdf(truth.totals - fewer - 1)
    return float(truth.expected(np.where(fewer >= 0, tails, 0.0))[0])


def items_needed(
    *,
    discordance: float,
    difference: float = 0.0,
    margin: float,
    alpha: float = 0.05,
    power: float = 0.8,
    is_one_sided: bool = False,
    is_guarded: bool = False,
    max_items: int = MAX_ITEMS,
) -> int:
    """Find the fewest items at which two one-sided score tests prove ±margin with this power, and for 25 more sizes.

    InsufficientData where no number of items up to `max_items` does.

    Args:
        is_one_sided: the test against −margin alone (non-inferiority).
        is_guarded: the exact guard has to agree as well, up to 5,000 items and where fewer than 10 changed items are to
            be expected; from there on it costs at most about three percentage points of power, mostly half a point.

    >>> items_needed(discordance=0.05, margin=0.02, power=0.9)
    1409
    """
    goal = _Goal(discordance, difference, margin, alpha, is_one_sided)
    if (-difference if is_one_sided else abs(difference)) >= margin:
        raise InsufficientData(
            f"No number of items proves a margin of {margin:g} where the true difference is {difference:g}",
            hint="Widen the margin, or assume a smaller difference.",
            difference=difference,
            margin=margin,
        )
    guess = items_wald_equivalence(
        discordance=discordance,
        difference=difference,
        margin=margin,
        alpha=alpha,
        power=power,
        is_one_sided=is_one_sided,
    )
    too_many = InsufficientData(
        f"More than {max_items:,} items would be needed for a power of {power:g}",
        hint="Widen the margin or the difference to be found, or lower the discordance.",
        max_items=max_items,
    )
    if guess > _FAR_BEYOND * max_items:
        raise too_many
    # two sides: not even items without a change prove the margin before z² (1 − δ) / δ of them
    least = 1 if is_one_sided else math.floor(normal_quantile(1.0 - alpha) ** 2 * (1.0 - margin) / margin)
    window = np.arange(_STAYS + 1, dtype=np.int64)
    far_ends = _STAYS + window.size * np.arange(_AT_ONCE, dtype=np.int64)
    n_items = _below_all_teeth(goal, power, guess, max(1, least))
    while n_items <= max_items:
        # a window that fails at n + j rules out every answer up to n + j: its far end is tried first, and those of the
        # next windows with it
        passing = np.flatnonzero(goal.powers(n_items + far_ends) >= power)
        if not passing.size:
            n_items += window.size * _AT_ONCE
            continue
        n_items += window.size * int(passing[0])
        failing = np.flatnonzero(goal.powers(n_items + window) < power)
        if not failing.size:
            break
        n_items += int(failing[-1]) + 1
    while is_guarded and n_items <= max_items and is_guard_counted(n_items, discordance):
        ahead = next((ahead for ahead in _AHEAD if not goal.is_agreed(n_items + ahead, power)), None)
        if ahead is None:
            break
        n_items += ahead + 1
    if n_items > max_items:
        raise too_many
    return n_items


def is_guard_counted(n_items: int, discordance: float) -> bool:
    """Check that sizes count the exact guard: with few changes to be expected it matters, and is quick."""
    return n_items * discordance < _MANY_CHANGES and n_items <= _MOST_GUARDED


def _below_all_teeth(goal: _Goal, power: float, guess: float, least: int) -> int:
    """A size from `least` on below the answer: where the power is about its target, less teeth of the saw.

    A tooth is one more discordant item in one direction; relative to n it is about 1 / √(n ψ) wide.
    """
    z_alpha, size = normal_quantile(1.0 - goal.alpha), guess

    def root_items(power: float) -> float:
        """Return what the root of the size is proportional to, by the normal approximation."""
        return z_alpha + normal_quantile((1.0 + power) / 2.0 if goal.is_split else power)

    for _ in range(_CLOSER):  # as far off as the approximation was at the last size
        reached = float(goal.powers(np.array([max(2, math.ceil(size))]))[0])
        here = root_items(min(_MOST_POWER, max(_LEAST_POWER, reached)))
        size *= (root_items(power) / max(here, root_items(power) / 4.0)) ** 2
    start = math.floor(size * (1.0 - 4.0 / math.sqrt(max(16.0, size * goal.discordance)))) - _STAYS
    while start > least and goal.powers(np.array([start]))[0] >= power:
        start //= 2
    return max(least, start)


def smallest_margin(
    *,
    n_items: int,
    discordance: float,
    alpha: float = 0.05,
    power: float = 0.8,
    is_one_sided: bool = False,
    is_guarded: bool = False,
) -> float:
    """Find the smallest margin that n items prove with this power, to 1e-6; with the guard to 1e-5.

    `is_one_sided` and `is_guarded` as in `items_needed`.
    """
    check_items(n_items)
    check_power(power)

    def goal(margin: float) -> _Goal:
        return _Goal(discordance, 0.0, margin, alpha, is_one_sided)

    def is_enough(margin: float) -> bool:
        return float(goal(margin).powers(np.array([n_items]))[0]) >= power

    def is_agreed(margin: float) -> bool:
        return goal(margin).is_agreed(n_items, power)

    none = InsufficientData(f"{n_items} items prove no margin with a power of {power:g}", hint="Add items.")
    widest = 1.0 - 1e-9
    if not is_enough(widest):
        raise none
    low = high = bisect(is_enough, 0.0, widest, n_steps=22)
    if not is_guarded or not is_guard_counted(n_items, discordance) or is_agreed(high):
        return high
    while not is_agreed(high):
        if high >= widest:
            raise none
        low, high = high, min(widest, 1.2 * high)
    return bisect(is_agreed, low, high, n_steps=math.ceil(math.log2((high - low) / 1e-5)) + 1)


def mde(*, n_items: int, discordance: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Find the smallest difference that exact McNemar finds with this power, the total discordance fixed.

    InsufficientData where even if every discordant item changed the same way, the power falls short.
    """
    power_at = partial(power_mcnemar, n_items=n_items, discordance=discordance, alpha=alpha)
    return _smallest_difference(lambda difference: power_at(difference=difference), discordance, power)


def mde_beyond_noise(*, n_items: int, noise: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Find the smallest loss that exact McNemar finds with this power on top of a discordance of `noise`.

    Of all items, noise / 2 are gained, noise / 2 + loss are lost.
    """

    def power_at(loss: float) -> float:
        return power_mcnemar(n_items=n_items, discordance=min(1.0, noise + loss), difference=-loss, alpha=alpha)

    return _smallest_difference(power_at, 1.0 - noise, power)


def _smallest_difference(power_at: Callable[[float], float], limit: float, power: float) -> float:
    if power_at(limit) < check_power(power):
        raise InsufficientData(
            f"These items find no difference with a power of {power:g} at this discordance",
            hint="Add items: there is no minimal detectable effect here.",
        )
    return bisect(lambda difference: power_at(difference) >= power, 0.0, limit, n_steps=24)


def joint_power(powers: Sequence[float]) -> float:
    """Multiply the powers of independent primary metrics that all have to pass.

    >>> round(joint_power([0.8] * 5), 2)
    0.33
    """
    return float(np.prod([check_share(power, "A power") for power in powers]))


def power_for_joint(*, n_metrics: int, power: float = 0.8) -> float:
    """Compute the power that each of several independent metrics needs for this joint power."""
    if n_metrics < 1:
        raise InvalidValue("A joint power needs at least one metric", hint="Name the primary metrics.")
    return float(check_power(power) ** (1.0 / n_metrics))


def discordance_with_repeats(*, discordance: float, noise: float, repeats: int = 1, baseline_runs: int = 1) -> float:
    """Compute the variance of an item's difference with repeats, which stands in for the discordance.

    Repeats divide `noise`, the discordance of two runs of the same arm, never what differs between items. Several runs
    of the baseline divide the baseline's half of it.

    >>> round(discordance_with_repeats(discordance=0.05, noise=0.05, baseline_runs=2), 4)
    0.0375
    """
    check_rates(discordance=discordance, difference=0.0)
    if not 0.0 <= noise <= discordance or min(repeats, baseline_runs) < 1:
        raise InvalidValue(
            f"A noise of {noise:g} and {repeats} repeats do not fit a discordance of {discordance:g}",
            hint="The noise floor is at most the discordance; an item is answered at least once.",
        )
    return discordance - noise + noise * (1.0 + 1.0 / baseline_runs) / (2.0 * repeats)


def items_wald_equivalence(
    *,
    discordance: float,
    difference: float = 0.0,
    margin: float,
    alpha: float = 0.05,
    power: float = 0.8,
    is_one_sided: bool = False,
) -> float:
    """Compute the items of two one-sided Wald tests, or one, in closed form (Lu & Bean 1995): a starting point."""
    z_alpha = normal_quantile(1.0 - check_alpha(alpha))
    is_split = difference == 0.0 and not is_one_sided
    share = (1.0 + check_power(power)) / 2.0 if is_split else power
    room = check_margin(margin) - (-difference if is_one_sided else abs(difference))
    return (z_alpha + normal_quantile(share)) ** 2 * (discordance - difference**2) / room**2

"""Exact power of the paired tests, and from it sample sizes, provable margins and minimal detectable effects.

Power is found by enumeration of the trinomial from critical values. The number of discordant items is Bin(n, ψ), and
given m of them the gains are Bin(m, θ) with θ = (ψ + Δ) / 2ψ. Each test rejects for the gains in a range that depends
on m alone, so that its power is one weighted sum over m. Exact power is saw-toothed in the number of items, so a sample
size counts only when the power stays above its target for the next 25 sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import scipy

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.checks import FloatArray, IntArray, check_alpha, check_items, check_margin, check_power, check_rates
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
_FAR_BEYOND = 2.0
"""A closed form that says so many times the most items is not off by that much."""
_MANY_CHANGES = 10
"""Changed items to be expected, from which on the exact guard hardly costs power."""
_MOST_GUARDED = 5_000
_TIE = 1e-9


class McNemarMethod(StrEnum):
    EXACT = "exact"
    MIDP = "midp"


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
    """Probability that the two one-sided score tests both reject at a given truth.

    At a `difference` of ±margin this is the size of the test.

    Args:
        is_one_sided: whether the test against −margin alone has to reject (non-inferiority).
        is_guarded: whether the exact guard has to agree as well: the power of the verdict.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: margin, alpha, discordance or difference cannot be.
    """
    check_items(n_items)
    check_rates(discordance=discordance, difference=difference)
    threshold = normal_quantile(1.0 - check_alpha(alpha))
    if is_guarded:
        threshold = max(threshold, guard_threshold(n_items=n_items, margin=check_margin(margin), alpha=alpha))
    powers = equivalence_powers(
        np.array([n_items]),
        discordance=discordance,
        difference=difference,
        margin=check_margin(margin),
        threshold=threshold,
        is_one_sided=is_one_sided,
    )
    return float(powers[0])


def power_mcnemar(
    *,
    n_items: int,
    discordance: float,
    difference: float,
    alpha: float = 0.05,
    method: McNemarMethod = McNemarMethod.EXACT,
) -> float:
    """Probability that the two-sided McNemar test rejects at a given truth.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: alpha, discordance or difference cannot be.
    """
    check_items(n_items)
    check_rates(discordance=discordance, difference=difference)
    truth = _Truth.of(np.array([n_items]), discordance, difference)
    fewer = _largest_significant(truth.totals, check_alpha(alpha), method)
    tails = truth.cdf(fewer) + 1.0 - truth.cdf(truth.totals - fewer - 1)
    return float(truth.expected(np.where(fewer >= 0, tails, 0.0))[0])


def equivalence_powers(
    n_items: IntArray, *, discordance: float, difference: float, margin: float, threshold: float, is_one_sided: bool
) -> FloatArray:
    """Powers of the one-sided score tests at neighbouring numbers of items, from a z threshold, unchecked."""
    if math.isinf(threshold):
        return np.zeros(n_items.size)
    truth = _Truth.of(n_items, discordance, difference)
    fewest = critical_gains(truth.totals, n_items=truth.n_items, margin=margin, threshold=threshold)
    if is_one_sided:
        return truth.expected(1.0 - truth.cdf(fewest - 1))
    accepted = truth.cdf(truth.totals - fewest) - truth.cdf(fewest - 1)
    return truth.expected(np.where(2 * fewest <= truth.totals, accepted, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Truth:
    """An assumed truth at several numbers of items (rows), and the discordant items to expect (columns)."""

    n_items: IntArray
    totals: IntArray
    gain_share: float
    """Of the discordant items."""
    weights: FloatArray
    """Probabilities of the totals, a row for each number of items."""

    @classmethod
    def of(cls, n_items: IntArray, discordance: float, difference: float) -> _Truth:
        low = likely_totals(int(n_items.min()), discordance, discordance)[0]
        high = likely_totals(int(n_items.max()), discordance, discordance)[-1]
        totals = np.arange(low, high + 1, dtype=np.int64)
        share = min(1.0, max(0.0, 0.5 + 0.5 * difference / discordance)) if discordance else 0.5
        return cls(
            n_items=n_items[:, None],
            totals=np.broadcast_to(totals, (n_items.size, totals.size)),
            gain_share=share,
            weights=_binomial_rows(totals, n_items, discordance),
        )

    def cdf(self, gains: IntArray) -> FloatArray:
        """Probability of at most so many gains among the totals: found once for all rows that ask for the same."""
        fewest = gains.min(axis=0)
        depth = gains - fewest
        table = binomial_cdfs(fewest + np.arange(int(depth.max()) + 1)[:, None], self.totals[:1], self.gain_share)
        return np.take_along_axis(table, depth, axis=0)

    def expected(self, values: FloatArray) -> FloatArray:
        return np.asarray(np.minimum(1.0, np.sum(self.weights * values, axis=1)), dtype=np.float64)


def _binomial_rows(totals: IntArray, n_items: IntArray, p: float) -> FloatArray:
    """Binomial probabilities of the totals (columns) among each number of items (rows); 0 where they are too many."""
    factorials = log_factorials(int(n_items.max()))
    rest = n_items[:, None] - totals
    kept = np.maximum(rest, 0)
    log_p, log_q = safe_log(np.array([p, 1.0 - p]))
    exponents = factorials[n_items][:, None] - factorials[totals] - factorials[kept] + totals * log_p + kept * log_q
    return np.where(rest >= 0, np.exp(exponents), 0.0)


def _largest_significant(totals: IntArray, alpha: float, method: McNemarMethod) -> IntArray:
    """The largest count of the rarer change at which the test rejects; −1 for none."""

    def pvalue(k: IntArray) -> FloatArray:
        below = k - 1 if method is McNemarMethod.MIDP else k
        return binomial_cdfs(k, totals, 0.5) + binomial_cdfs(below, totals, 0.5)

    guess = scipy.special.ndtri(alpha / 2.0) * np.sqrt(totals) / 2.0 + totals / 2.0
    reach = 3 + (np.sqrt(totals) / 4.0).astype(np.int64)
    low = np.clip(np.floor(guess).astype(np.int64) - reach, -1, totals)
    high = np.clip(np.floor(guess).astype(np.int64) + reach, -1, (totals - 1) // 2)
    return largest_integers(lambda k: (pvalue(k) <= alpha) | (k < 0), np.minimum(low, high), high)


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
    """The fewest items at which two one-sided score tests prove ±margin with this power, and for 25 more sizes.

    With `is_one_sided` the test against −margin alone (non-inferiority). With `is_guarded` the exact guard has to agree
    as well, where fewer than 10 changed items are to be expected; from there on it costs at most about three percentage
    points of power, mostly half a point (measured for margins of 1 to 5 pp and up to 2,200 items), and is left out, as
    it is beyond 5,000 items, where it takes long.

    Raises:
        InsufficientData: no number of items up to `max_items` does (none at all where the difference is the margin or
            more).
        InvalidValue: an argument cannot be.
    """
    check_rates(discordance=discordance, difference=difference)
    if (-difference if is_one_sided else abs(difference)) >= check_margin(margin):
        raise InsufficientData(
            f"No number of items proves a margin of {margin:g} where the true difference is {difference:g}",
            hint="Widen the margin, or assume a smaller difference.",
            difference=difference,
            margin=margin,
        )
    goal = _Goal(discordance, difference, margin, check_alpha(alpha), is_one_sided)
    guess = items_wald_equivalence(
        discordance=discordance,
        difference=difference,
        margin=margin,
        alpha=alpha,
        power=power,
        is_one_sided=is_one_sided,
    )
    # two sides: not even items without a change prove the margin before z² (1 − δ) / δ of them
    least = 1 if is_one_sided else math.floor(normal_quantile(1.0 - alpha) ** 2 * (1.0 - margin) / margin)
    found = _smallest_lasting(
        goal.powers, power, guess=guess, discordance=discordance, max_items=max_items, least=max(1, least)
    )
    return _agreed(goal, power, found, max_items) if is_guarded else found


@dataclass(frozen=True, slots=True)
class _Goal:
    """What is to be proven, and the truth that is assumed."""

    discordance: float
    difference: float
    margin: float
    alpha: float
    is_one_sided: bool = False

    def powers(self, n_items: IntArray) -> FloatArray:
        """Powers of the score tests at neighbouring numbers of items."""
        return equivalence_powers(
            n_items,
            discordance=self.discordance,
            difference=self.difference,
            margin=self.margin,
            threshold=normal_quantile(1.0 - self.alpha),
            is_one_sided=self.is_one_sided,
        )

    def is_agreed(self, n_items: int, power: float) -> bool:
        """Whether the guarded power is enough, by one exact p-value: that of the highest threshold that leaves it."""
        statistics, powers = self._accepted(n_items)
        enough = np.flatnonzero(powers >= power)
        return enough.size > 0 and is_accepted(
            float(statistics[enough[0]]), n_items=n_items, margin=self.margin, alpha=self.alpha
        )

    def _accepted(self, n_items: int) -> tuple[FloatArray, FloatArray]:
        """Outcomes that the score tests accept, the highest statistic first, and the power at each as threshold."""
        most = int(likely_totals(n_items, self.discordance, self.discordance)[-1])
        gains, losses = np.indices((most + 1, most + 1))
        kept = gains + losses <= most
        gains, losses = gains[kept], losses[kept]
        statistics = self._statistics(gains.astype(np.float64), losses.astype(np.float64), n_items)
        order = np.argsort(-statistics, kind="stable")
        order = order[statistics[order] >= normal_quantile(1.0 - self.alpha) - _TIE]
        powers = np.cumsum(self._probabilities(gains, losses, n_items)[order])
        return statistics[order], powers

    def _statistics(self, gains: FloatArray, losses: FloatArray, n_items: int) -> FloatArray:
        """The smaller one of the two sides', or that against a loss."""
        lower = score_statistic(gains, losses, n_items=n_items, difference=-self.margin)
        if self.is_one_sided:
            return lower
        return np.minimum(lower, score_statistic(losses, gains, n_items=n_items, difference=-self.margin))

    def _probabilities(self, gains: IntArray, losses: IntArray, n_items: int) -> FloatArray:
        """Trinomial."""
        factorials, rest = log_factorials(n_items), n_items - gains - losses
        better, worse = (max(0.0, self.discordance + sign * self.difference) / 2.0 for sign in (1.0, -1.0))
        log_better, log_worse, log_same = safe_log(np.array([better, worse, 1.0 - self.discordance]))
        choices = factorials[n_items] - factorials[gains] - factorials[losses] - factorials[rest]
        exponents = choices + gains * log_better + losses * log_worse + rest * log_same
        return np.asarray(np.exp(exponents), dtype=np.float64)


def is_guard_counted(n_items: int, discordance: float) -> bool:
    """Whether sizes count the exact guard: few changes are to be expected, so that it matters, and asking is quick."""
    return n_items * discordance < _MANY_CHANGES and n_items <= _MOST_GUARDED


def _agreed(goal: _Goal, power: float, n_items: int, max_items: int) -> int:
    """The first size from `n_items` on at which the guard leaves the power, there and at several of the next 25."""
    while n_items <= max_items:
        if not is_guard_counted(n_items, goal.discordance):
            return n_items
        failing = next((ahead for ahead in _AHEAD if not goal.is_agreed(n_items + ahead, power)), None)
        if failing is None:
            return n_items
        n_items += failing + 1
    raise _too_many(power, max_items)


Powers = Callable[[IntArray], FloatArray]


def _smallest_lasting(
    powers_at: Powers, target: float, *, guess: float, discordance: float, max_items: int, least: int = 1
) -> int:
    """The smallest n with powers of at least the target at n, ..., n + 25; it is at least `least`.

    A window that fails at n + j rules out every answer up to n + j, so that its far end is tried first, and those of
    the next windows with it.
    """
    check_power(target)
    if guess > _FAR_BEYOND * max_items:
        raise _too_many(target, max_items)
    window = np.arange(_STAYS + 1, dtype=np.int64)
    far_ends = _STAYS + window.size * np.arange(_AT_ONCE, dtype=np.int64)
    n_items = _below_all_teeth(powers_at, target, guess, discordance, least)
    while n_items <= max_items:
        passing = np.flatnonzero(powers_at(n_items + far_ends) >= target)
        if not passing.size:
            n_items += window.size * _AT_ONCE
            continue
        n_items += window.size * int(passing[0])
        failing = np.flatnonzero(powers_at(n_items + window) < target)
        if not failing.size:
            break
        n_items += int(failing[-1]) + 1
    if n_items > max_items:
        raise _too_many(target, max_items)
    return n_items


def _too_many(target: float, max_items: int) -> InsufficientData:
    return InsufficientData(
        f"More than {max_items:,} items would be needed for a power of {target:g}",
        hint="Widen the margin or the difference to be found, or lower the discordance.",
        max_items=max_items,
    )


def _below_all_teeth(powers_at: Powers, target: float, guess: float, discordance: float, least: int) -> int:
    """A size from `least` on below the answer: where the power first reaches its target, less a tooth of the saw.

    A tooth is one more discordant item in one direction; relative to n it is about 1 / √(n ψ) wide.
    """
    low, high = 0, max(2, math.ceil(1.2 * guess))
    while high - low > 1 + low // 64 and high > least:
        middle = (low + high) // 2
        low, high = (low, middle) if powers_at(np.array([middle]))[0] >= target else (middle, high)
    return max(least, math.floor(low * (1.0 - 4.0 / math.sqrt(max(16.0, low * discordance)))) - _STAYS)


def smallest_margin(
    *,
    n_items: int,
    discordance: float,
    difference: float = 0.0,
    alpha: float = 0.05,
    power: float = 0.8,
    is_one_sided: bool = False,
    is_guarded: bool = False,
) -> float:
    """The smallest margin that n items prove (two one-sided score tests) with this power, to 1e-6.

    `is_one_sided` and `is_guarded` as in `items_needed`; with the guard to 1e-5.

    Raises:
        InsufficientData: there is no item, or no margin below 1 is proven with this power.
        InvalidValue: an argument cannot be.
    """
    check_items(n_items)
    check_power(power)
    check_rates(discordance=discordance, difference=difference)
    check_alpha(alpha)

    def goal(margin: float) -> _Goal:
        return _Goal(discordance, difference, margin, alpha, is_one_sided)

    def is_enough(margin: float) -> bool:
        return float(goal(margin).powers(np.array([n_items]))[0]) >= power

    def is_agreed(margin: float) -> bool:
        return goal(margin).is_agreed(n_items, power)

    widest = 1.0 - 1e-9
    if not is_enough(widest):
        raise _no_margin(n_items, power)
    found = bisect(is_enough, 0.0, widest, n_steps=22)
    if not is_guarded or not is_guard_counted(n_items, discordance) or is_agreed(found):
        return found
    high = found
    while not is_agreed(high):
        if high >= widest:
            raise _no_margin(n_items, power)
        found, high = high, min(widest, 1.2 * high)
    return bisect(is_agreed, found, high, n_steps=math.ceil(math.log2((high - found) / 1e-5)) + 1)


def _no_margin(n_items: int, power: float) -> InsufficientData:
    return InsufficientData(
        f"{n_items} items prove no margin with a power of {power:g}", hint="Add items.", n_items=n_items
    )


def mde(
    *,
    n_items: int,
    discordance: float,
    alpha: float = 0.05,
    power: float = 0.8,
    method: McNemarMethod = McNemarMethod.EXACT,
) -> float:
    """The smallest difference that McNemar's two-sided test finds with this power, the total discordance fixed.

    Raises:
        InsufficientData: there is none: even if every discordant item changed the same way, the power falls short.
        InvalidValue: an argument cannot be.
    """
    return _smallest_difference(
        n_items=n_items,
        power=power,
        limit=discordance,
        power_at=lambda difference: power_mcnemar(
            n_items=n_items, discordance=discordance, difference=difference, alpha=alpha, method=method
        ),
    )


def mde_beyond_noise(
    *,
    n_items: int,
    noise: float,
    alpha: float = 0.05,
    power: float = 0.8,
    method: McNemarMethod = McNemarMethod.EXACT,
) -> float:
    """The smallest loss found with this power, where `noise` is the discordance without it and the loss comes on top.

    Of all items, noise / 2 are gained, noise / 2 + loss are lost.

    Raises:
        InsufficientData: no loss up to 1 − noise is found with this power.
        InvalidValue: an argument cannot be.
    """
    return _smallest_difference(
        n_items=n_items,
        power=power,
        limit=1.0 - noise,
        power_at=lambda loss: power_mcnemar(
            n_items=n_items, discordance=min(1.0, noise + loss), difference=-loss, alpha=alpha, method=method
        ),
    )


def _smallest_difference(*, n_items: int, power: float, limit: float, power_at: Callable[[float], float]) -> float:
    check_items(n_items)
    check_power(power)
    if power_at(limit) < power:
        raise InsufficientData(
            f"{n_items} items find no difference with a power of {power:g} at this discordance",
            hint="Add items: there is no minimal detectable effect here.",
            n_items=n_items,
        )
    return bisect(lambda difference: power_at(difference) >= power, 0.0, limit, n_steps=24)


def joint_power(powers: Sequence[float]) -> float:
    """Probability that every primary metric passes, were they independent: the product of their powers.

    "All are equivalent" needs no adjusted level (intersection–union), but its power falls: 0.8 five times is 0.33.

    Raises:
        InvalidValue: a power is outside 0..1.
    """
    return float(np.prod([_checked_power(power) for power in powers]))


def power_for_joint(*, n_metrics: int, power: float = 0.8) -> float:
    """The power that each of several independent primary metrics needs, so that all pass with this joint power.

    Raises:
        InvalidValue: the power is not between 0 and 1, or there is no metric.
    """
    if n_metrics < 1:
        raise InvalidValue("A joint power needs at least one metric", hint="Name the primary metrics.")
    return float(check_power(power) ** (1.0 / n_metrics))


def _checked_power(power: float) -> float:
    if not 0.0 <= power <= 1.0:
        raise InvalidValue(f"A power must lie between 0 and 1, not {power:g}", hint="Give fractions.")
    return power


def discordance_with_repeats(*, discordance: float, noise: float, repeats: int) -> float:
    """Variance of an item's difference when each arm answers it k times: what stands in for the discordance then.

    Repeats divide the noise of runs (the discordance of two runs of the same arm), never what differs between items:
    a floor of discordance − noise stays however many there are.

    Raises:
        InvalidValue: noise exceeds the discordance, or there is no repeat.
    """
    check_rates(discordance=discordance, difference=0.0)
    if not 0.0 <= noise <= discordance or repeats < 1:
        raise InvalidValue(
            f"A noise of {noise:g} and {repeats} repeats do not fit a discordance of {discordance:g}",
            hint="The noise floor is at most the discordance; an item is answered at least once.",
        )
    return discordance - noise + noise / repeats


def items_wald_equivalence(
    *,
    discordance: float,
    difference: float = 0.0,
    margin: float,
    alpha: float = 0.05,
    power: float = 0.8,
    is_one_sided: bool = False,
) -> float:
    """Closed form for two one-sided Wald tests, or one (Lu & Bean 1995): a starting point."""
    z_alpha = normal_quantile(1.0 - check_alpha(alpha))
    is_split = difference == 0.0 and not is_one_sided
    share = (1.0 + check_power(power)) / 2.0 if is_split else power
    room = check_margin(margin) - (-difference if is_one_sided else abs(difference))
    return (z_alpha + normal_quantile(share)) ** 2 * (discordance - difference**2) / room**2

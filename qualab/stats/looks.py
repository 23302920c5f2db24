"""Group-sequential boundaries: the level of a test, spent over several looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import scipy

from qualab.errors import InvalidValue
from qualab.stats.checks import FloatArray, check_alpha, check_margin, check_power, check_rates, check_share, finite
from qualab.stats.distributions import binomial_cdfs, bisect, normal_quantile, normal_sf
from qualab.stats.equivalence import guard_threshold
from qualab.stats.interval import score_statistic
from qualab.stats.sizing import is_guard_counted, items_needed

_NODES = 128
_FAR = 8.5
"""Standard deviations beyond which a density is taken as 0."""
_WIDEST_LEVEL = 0.499
_LEAST_LEVEL = 1e-8
"""Below this level exact tails are not exact enough to stop on."""
_HAIR = 1e-9
MOST_GUARDED = 20_000
"""Items beyond which powers leave the exact guard out: it takes long there, and hardly costs power."""


@lru_cache(maxsize=1)
def _quadrature() -> tuple[FloatArray, FloatArray]:
    return np.polynomial.legendre.leggauss(_NODES)


def spent(fraction: float, *, alpha: float) -> float:
    """Compute the one-sided level spent by a fraction of the items (Lan & DeMets 1983, O'Brien–Fleming type)."""
    check_alpha(alpha)
    return 2.0 * normal_sf(-normal_quantile(alpha / 2.0) / math.sqrt(fraction)) if fraction > 0.0 else 0.0


def spending_boundaries(fractions: Sequence[float], *, alpha: float = 0.05) -> FloatArray:
    """Compute one-sided z boundaries at looks after these fractions of the items.

    >>> spending_boundaries([0.5, 1.0], alpha=0.025).round(3).tolist()
    [2.963, 1.969]
    """
    return level_boundaries(fractions, np.diff([0.0, *(spent(look, alpha=alpha) for look in _checked(fractions))]))


def level_boundaries(fractions: Sequence[float], levels: FloatArray) -> FloatArray:
    """Compute one-sided z boundaries that spend these levels (Armitage, McPherson & Rowe 1969); infinite for none."""
    walk, boundaries = _Walk.start(), []
    for look, level in zip(_checked(fractions), levels, strict=True):
        boundaries.append(walk.boundary(look, level))
        walk = walk.after(look, boundaries[-1])
    return np.array(boundaries)


def sequential_pvalue(pvalue: float, fractions: Sequence[float]) -> float:
    """Compute what a one-sided p-value at the last of these looks counts after all of them (Liu & Anderson 2008).

    The smallest level whose boundary at this look it reaches, within a part in 1,000; 0.5 where none below does. The
    smallest over the looks so far is valid whenever a run stops.
    """
    looks = _checked(fractions)
    least = max(pvalue, 1e-300)

    def reaches(log_level: float) -> bool:
        return bool(-normal_quantile(least) >= spending_boundaries(looks, alpha=math.exp(log_level))[-1])

    widest = math.log(_WIDEST_LEVEL)
    if pvalue >= _WIDEST_LEVEL or not reaches(widest):
        return 0.5
    return math.exp(bisect(reaches, math.log(least) - 1e-6, widest, n_steps=20))


def crossing_probability(boundaries: npt.ArrayLike, fractions: Sequence[float], *, drift: float = 0.0) -> float:
    """Compute the probability of reaching a z boundary at some look; `drift` is the expected z after all items."""
    total, walk = 0.0, _Walk.start(drift)
    for look, boundary in zip(_checked(fractions), finite(boundaries, name="Boundaries").tolist(), strict=True):
        total += walk.exceedance(look, boundary)
        walk = walk.after(look, boundary)
    return total


def _checked(fractions: Sequence[float]) -> list[float]:
    looks = finite(fractions, name="Fractions of the items").tolist()
    if not looks or any(after <= before for before, after in zip([0.0, *looks], looks, strict=False)) or looks[-1] > 1:
        raise InvalidValue(
            "Looks must ascend within (0, 1]", hint="Give the shares of the items after which to look, as 0.5, 1."
        )
    return [float(look) for look in looks]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """A Brownian motion that has not crossed yet: its density over quadrature nodes at its last look."""

    time: float
    nodes: FloatArray
    masses: FloatArray
    """Density times quadrature weight."""
    drift: float

    @classmethod
    def start(cls, drift: float = 0.0) -> _Walk:
        return cls(time=0.0, nodes=np.zeros(1), masses=np.ones(1), drift=drift)

    def exceedance(self, time: float, boundary: float) -> float:
        step = math.sqrt(time - self.time)
        distances = (boundary * math.sqrt(time) - self.nodes - self.drift * (time - self.time)) / step
        return float(self.masses @ scipy.special.ndtr(-distances))

    def boundary(self, time: float, level: float) -> float:  # the z that is reached with this probability
        if level <= 0.0 or self.exceedance(time, 35.0) > level:
            return math.inf
        return bisect(lambda z: self.exceedance(time, z) <= level, -_FAR, 35.0, n_steps=56)

    def after(self, time: float, boundary: float) -> _Walk:
        spread, centre = math.sqrt(time), self.drift * time
        low, high = centre - _FAR * spread, min(boundary * spread, centre + _FAR * spread)
        points, weights = _quadrature()
        nodes = low + (high - low) * (points + 1.0) / 2.0
        step = math.sqrt(time - self.time)
        moves = (nodes[:, None] - self.nodes - self.drift * (time - self.time)) / step
        density = np.exp(-0.5 * moves**2) @ self.masses / (step * math.sqrt(2.0 * math.pi))
        return _Walk(time=time, nodes=nodes, masses=density * weights * (high - low) / 2.0, drift=self.drift)


def _inflation(fractions: Sequence[float], *, alpha: float, power: float) -> float:
    # most items of a design with looks over those of a fixed one with the same one-sided level and power
    boundaries = spending_boundaries(fractions, alpha=alpha)
    fixed = normal_quantile(1.0 - alpha) + normal_quantile(check_power(power))
    drift = bisect(
        lambda drift: crossing_probability(boundaries, fractions, drift=drift) >= power, 0.0, 3.0 * fixed, n_steps=30
    )
    return (drift / fixed) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LookDesign:
    margin: float
    alpha: float
    n_items: tuple[int, ...]
    """At each look."""
    boundaries: tuple[float, ...]
    """For both one-sided score statistics."""
    harm_boundaries: tuple[float, ...]
    """For the one-sided test of a loss."""


def design_looks(
    *,
    discordance: float,
    margin: float,
    alpha: float = 0.05,
    power: float = 0.8,
    harm_alpha: float = 0.025,
    n_looks: int = 10,
) -> LookDesign:
    """Place equally spaced looks at as many items as give this power at a true difference of 0.

    The fixed design's items, exact guard included, are inflated by what the looks cost. Where few changes are to be
    expected, the guard makes early looks nearly idle: there they are at least what the last look needs by itself.
    """
    fractions = [(k + 1) / n_looks for k in range(n_looks)]
    needed = partial(items_needed, discordance=discordance, margin=margin, power=power, is_guarded=True)
    fixed = needed(alpha=alpha)
    # both sides have to cross: each fails about half as often as the two together
    most = math.ceil(fixed * _inflation(fractions, alpha=alpha, power=(1.0 + power) / 2.0))
    if is_guard_counted(fixed, discordance):
        last = normal_sf(float(spending_boundaries(fractions, alpha=alpha)[-1]))
        most = max(most, needed(alpha=last))
    return looks_at(most_items=most, margin=margin, alpha=alpha, harm_alpha=harm_alpha, n_looks=n_looks)


def looks_at(
    *, most_items: int, margin: float, alpha: float = 0.05, harm_alpha: float = 0.025, n_looks: int = 10
) -> LookDesign:
    """Place equally spaced looks at a given number of items."""
    if not 1 <= n_looks <= most_items:
        raise InvalidValue(f"{n_looks} looks do not fit {most_items} items", hint="5 to 10 looks are usual.")
    n_items = tuple(round(most_items * (k + 1) / n_looks) for k in range(n_looks))
    fractions = [n / most_items for n in n_items]
    boundaries, harm_boundaries = (
        tuple(spending_boundaries(fractions, alpha=level).tolist()) for level in (alpha, harm_alpha)
    )
    return LookDesign(
        margin=check_margin(margin),
        alpha=alpha,
        n_items=n_items,
        boundaries=boundaries,
        harm_boundaries=harm_boundaries,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LookPerformance:
    """Shares of simulated runs that end so at a given truth."""

    equivalent: float
    harm: float
    expected_items: float


def simulate_looks(
    design: LookDesign,
    *,
    discordance: float,
    difference: float = 0.0,
    missing: float = 0.0,
    missing_lost: float | None = None,
    is_one_sided: bool = False,
    is_guarded: bool = True,
    n_resamples: int = 20_000,
    rng: np.random.Generator,
) -> LookPerformance:
    """Simulate runs under a design, guard and harm boundary included.

    A run ends as worse where a one-sided McNemar mid-p is at most that of the harm boundary and the observed loss is at
    least the margin (a smaller one may still be proven inside it), or at the last look any.

    Args:
        missing: share of each arm's answers that is missing, independently of the other arm's.
        missing_lost: share of the pairs without an answer that the worst cases take as lost; None takes all.
        is_one_sided: the test against −margin alone has to reject (non-inferiority).
        is_guarded: the exact guard has to agree, up to 20,000 items.
    """
    check_rates(discordance=discordance, difference=difference)
    check_share(missing, "A share of missing answers")
    rates = np.maximum(0.0, _rates(discordance, difference, missing))
    counts = np.zeros((n_resamples, 7))
    is_open = np.ones(n_resamples, dtype=bool)
    n_equivalent = n_harmed = n_asked = before = 0
    for n_items, boundary, harm_boundary in zip(design.n_items, design.boundaries, design.harm_boundaries, strict=True):
        counts += rng.multinomial(n_items - before, rates / rates.sum(), size=n_resamples)[:, :7]
        n_asked += int(is_open.sum()) * (n_items - before)
        harm_pvalues = _twice_midp(counts[:, 0], counts[:, :2].sum(axis=1)) / 2.0
        crossed = is_open & (counts[:, :2].any(axis=1)) & (harm_pvalues <= normal_sf(harm_boundary))
        harmed = crossed & (counts[:, 1] - counts[:, 0] >= design.margin * n_items)
        lost, gained = _worst_cases(counts, missing_lost, design.alpha)
        statistics = _worse_statistics(counts, lost, gained, n_items, design.margin, is_one_sided=is_one_sided)
        level = normal_sf(boundary)
        threshold = boundary if level >= _LEAST_LEVEL else math.inf
        if is_guarded and n_items <= MOST_GUARDED and level >= _LEAST_LEVEL:
            threshold = max(boundary, guard_threshold(n_items=n_items, margin=design.margin, alpha=level))
        proven = is_open & ~harmed & (statistics >= threshold)
        if n_items == design.n_items[-1]:
            harmed |= crossed & ~proven
        n_harmed, n_equivalent = n_harmed + int(harmed.sum()), n_equivalent + int(proven.sum())
        is_open &= ~(harmed | proven)
        before = n_items
    return LookPerformance(
        equivalent=n_equivalent / n_resamples, harm=n_harmed / n_resamples, expected_items=n_asked / n_resamples
    )


def _rates(discordance: float, difference: float, missing: float) -> list[float]:
    # of gains and losses; of pairs that one arm lacks, an arm at a time, as often losses as gains; of pairs that both
    # lack; of all others
    changed, one_arm = (1.0 - missing) ** 2, missing * (1.0 - missing) / 2.0
    ways = [changed * (discordance + difference) / 2.0, changed * (discordance - difference) / 2.0]
    ways += [*[one_arm] * 4, missing**2]
    return [*ways, 1.0 - sum(ways)]


def _worst_cases(counts: FloatArray, missing_lost: float | None, alpha: float) -> tuple[FloatArray, FloatArray]:
    # how many pairs without an answer count as losses, and as gains
    lost_off, gained_off, lost_on, gained_on, both = counts.T[2:]
    lost, gained = lost_off + lost_on + both, gained_off + gained_on + both
    if missing_lost is None:
        return lost, gained
    most = np.ceil(missing_lost * counts[:, 2:].sum(axis=1) - _HAIR)
    off, on = lost_off + gained_off, lost_on + gained_on
    most = np.where(_twice_midp(np.minimum(off, on), off + on) <= alpha, np.inf, most)
    return np.minimum(lost, most), np.minimum(gained, most)


def _worse_statistics(
    counts: FloatArray, lost: FloatArray, gained: FloatArray, n_items: int, margin: float, *, is_one_sided: bool
) -> FloatArray:
    # of the weakest test against ±margin, over complete pairs and with the pairs without an answer at their worst
    gains, losses = counts.T[:2]
    sides = [(gains, losses, lost)] if is_one_sided else [(gains, losses, lost), (losses, gains, gained)]
    n_complete = np.maximum(1.0, n_items - counts[:, 2:].sum(axis=1))
    worst = [score_statistic(ups, downs + more, n_items=n_items, difference=-margin) for ups, downs, more in sides]
    worst += [score_statistic(ups, downs, n_items=n_complete, difference=-margin) for ups, downs, _ in sides]
    return np.asarray(np.minimum.reduce(worst), dtype=np.float64)


def _twice_midp(fewer: FloatArray, totals: FloatArray) -> FloatArray:  # McNemar's, elementwise
    k, n = fewer.astype(np.int64), totals.astype(np.int64)
    return binomial_cdfs(k, n, 0.5) + binomial_cdfs(k - 1, n, 0.5)

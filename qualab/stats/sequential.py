"""Group-sequential boundaries: the level of a test, spent over several looks so that peeking costs nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import scipy

from qualab.errors import InvalidValue
from qualab.stats.checks import FloatArray, check_alpha, check_power, finite
from qualab.stats.distributions import bisect, falling_root, gauss_legendre, normal_quantile, normal_sf

_NODES = 128
_FAR = 8.5
"""Standard deviations beyond which a density is taken as 0."""
_WIDEST_LEVEL = 0.499


class Spending(StrEnum):
    """How the level of a test is spent over the looks."""

    OBRIEN_FLEMING = "obrien-fleming"
    """Next to nothing early, nearly all at the end."""
    POCOCK = "pocock"
    """About evenly."""


def spent(fraction: float, *, alpha: float, spending: Spending = Spending.OBRIEN_FLEMING) -> float:
    """The one-sided level spent by a fraction of the items (Lan & DeMets 1983)."""
    check_alpha(alpha)
    if fraction <= 0.0:
        return 0.0
    if spending is Spending.POCOCK:
        return alpha * math.log1p((math.e - 1.0) * fraction)
    return 2.0 * normal_sf(-normal_quantile(alpha / 2.0) / math.sqrt(fraction))


def spending_boundaries(
    fractions: Sequence[float], *, alpha: float = 0.05, spending: Spending = Spending.OBRIEN_FLEMING
) -> FloatArray:
    """One-sided z boundaries at looks after these fractions of the items (Lan & DeMets 1983).

    Found by recursive numerical integration (Armitage, McPherson & Rowe 1969). A boundary is infinite where a look has
    nothing to spend.

    Raises:
        InvalidValue: fractions do not ascend within (0, 1], or alpha is not between 0 and 0.5.
    """
    looks = _checked(fractions)
    levels = np.diff([0.0, *(spent(look, alpha=alpha, spending=spending) for look in looks)])
    walk, boundaries = _Walk.start(), []
    for look, level in zip(looks, levels, strict=True):
        boundaries.append(walk.boundary(look, level))
        walk = walk.after(look, boundaries[-1])
    return np.array(boundaries)


def sequential_pvalue(
    pvalue: float, fractions: Sequence[float], *, spending: Spending = Spending.OBRIEN_FLEMING
) -> float:
    """A one-sided p-value at the last of these looks, as it counts after all of them (Liu & Anderson 2008).

    The smallest level whose boundary at this look the p-value reaches, within a part in 1,000; 0.5 where none below
    does. The smallest over the looks so far is valid whenever a run stops.

    Raises:
        InvalidValue: fractions do not ascend within (0, 1], or the p-value is not between 0 and 1.
    """
    if not 0.0 <= pvalue <= 1.0:
        raise InvalidValue(f"{pvalue} is no p-value", hint="Give a number between 0 and 1.")
    looks = _checked(fractions)
    if pvalue >= _WIDEST_LEVEL:
        return 0.5
    least = max(pvalue, 1e-300)
    statistic = -normal_quantile(least)

    def reaches(log_level: float) -> bool:
        return bool(statistic >= spending_boundaries(looks, alpha=math.exp(log_level), spending=spending)[-1])

    widest = math.log(_WIDEST_LEVEL)
    if not reaches(widest):
        return 0.5
    return math.exp(bisect(reaches, math.log(least) - 1e-6, widest, n_steps=20))


def classical_boundaries(n_looks: int, *, alpha: float = 0.05, shape: Spending = Spending.OBRIEN_FLEMING) -> FloatArray:
    """The boundaries of O'Brien & Fleming (1979), c √(K / k), or Pocock (1977), c, one-sided, at equally spaced looks.

    Raises:
        InvalidValue: there is no look, or alpha is not between 0 and 0.5.
    """
    looks = _checked([(k + 1) / n_looks for k in range(n_looks)])
    check_alpha(alpha)
    form = np.ones(n_looks) if shape is Spending.POCOCK else 1.0 / np.sqrt(looks)

    def excess(constant: float) -> float:
        return crossing_probability(constant * form, looks) - alpha

    low, high = normal_quantile(1.0 - alpha), normal_quantile(1.0 - alpha / n_looks) + 1e-9
    return form * falling_root(excess, low, high, above=excess(low), below=excess(high), tolerance=1e-9)


def crossing_probability(boundaries: npt.ArrayLike, fractions: Sequence[float], *, drift: float = 0.0) -> float:
    """Probability of reaching an upper z boundary at some look; `drift` is the expected z after all items."""
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
        """Probability of being at or above the z boundary at `time`."""
        step = math.sqrt(time - self.time)
        distances = (boundary * math.sqrt(time) - self.nodes - self.drift * (time - self.time)) / step
        return float(self.masses @ scipy.special.ndtr(-distances))

    def boundary(self, time: float, level: float) -> float:
        """The z boundary that is reached with probability `level` at `time`."""
        if level <= 0.0 or self.exceedance(time, 35.0) > level:
            return math.inf
        return bisect(lambda z: self.exceedance(time, z) <= level, -_FAR, 35.0, n_steps=56)

    def after(self, time: float, boundary: float) -> _Walk:
        """The walks that stayed below the z boundary at `time`."""
        spread, centre = math.sqrt(time), self.drift * time
        low, high = centre - _FAR * spread, min(boundary * spread, centre + _FAR * spread)
        points, weights = gauss_legendre(_NODES)
        nodes = low + (high - low) * (points + 1.0) / 2.0
        step = math.sqrt(time - self.time)
        moves = (nodes[:, None] - self.nodes - self.drift * (time - self.time)) / step
        density = np.exp(-0.5 * moves**2) @ self.masses / (step * math.sqrt(2.0 * math.pi))
        return _Walk(time=time, nodes=nodes, masses=density * weights * (high - low) / 2.0, drift=self.drift)


def inflation(
    fractions: Sequence[float],
    *,
    alpha: float = 0.05,
    power: float = 0.8,
    spending: Spending = Spending.OBRIEN_FLEMING,
) -> float:
    """Most items of a design with looks over those of a fixed one with the same one-sided level and power.

    Raises:
        InvalidValue: fractions, alpha or power cannot be.
    """
    boundaries = spending_boundaries(fractions, alpha=alpha, spending=spending)
    fixed = normal_quantile(1.0 - alpha) + normal_quantile(check_power(power))
    drift = bisect(
        lambda drift: crossing_probability(boundaries, fractions, drift=drift) >= power, 0.0, 3.0 * fixed, n_steps=30
    )
    return (drift / fixed) ** 2

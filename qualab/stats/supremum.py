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

import numpy as np

from qualab.stats.checks import FloatArray

_BLOCK = 16
_HUMPS = 3
_FINER = (16, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supremum:
    value: float
    at: float


def supremum(probability: Callable[[FloatArray], FloatArray], *, low: float, high: float, n_items: int) -> Supremum:
    """Largest value of `probability` over [low, high], within about 1e-7.

    `probability` takes an ascending array of at most 16 discordances and gives one value each; neighbours are asked
    together so that it can share its work between them.
    """
    first, last = math.asin(math.sqrt(low)), math.asin(math.sqrt(high))
    n_points = max(_BLOCK, math.ceil((last - first) * 4.0 * math.sqrt(n_items)) + 1)
    grid = np.linspace(first, last, n_points)
    values = np.concatenate(
        [probability(_discordances(block)) for block in np.array_split(grid, -(-n_points // _BLOCK))]
    )
    best = Supremum(value=float(values.max()), at=float(_discordances(grid[[values.argmax()]])[0]))
    for hump in _highest_humps(values):
        best = max(best, _narrowed(probability, grid, hump), key=lambda found: found.value)
    return best


def _discordances(angles: FloatArray) -> FloatArray:
    return np.sin(angles) ** 2


def _highest_humps(values: FloatArray) -> list[int]:
    padded = np.concatenate(([-np.inf], values, [-np.inf]))
    is_hump = (values >= padded[:-2]) & (values >= padded[2:])
    # half a standard deviation from its top a hump has lost far less than a tenth
    humps = np.flatnonzero(is_hump & (values >= 0.9 * values.max()))
    return [int(hump) for hump in humps[np.argsort(values[humps])[::-1][:_HUMPS]]]


def _narrowed(probability: Callable[[FloatArray], FloatArray], grid: FloatArray, hump: int) -> Supremum:
    """The top of a hump, by two finer grids and the parabola through the best point and its neighbours."""
    for n_points in _FINER:
        grid = np.linspace(grid[max(0, hump - 1)], grid[min(grid.size - 1, hump + 1)], n_points)
        values = probability(_discordances(grid))
        hump = int(values.argmax())
    at = float(_discordances(grid[[hump]])[0])
    if hump in (0, grid.size - 1):
        return Supremum(value=float(values[hump]), at=at)
    before, best, after = values[hump - 1 : hump + 2].tolist()
    curvature = 2.0 * best - before - after
    rise = (before - after) ** 2 / (8.0 * curvature) if curvature > 0.0 else 0.0
    return Supremum(value=best + rise, at=at)

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
_FIRST, _SECOND = 8, 16
"""Points of the two finer grids."""
_NEAR = 1e-4
"""Humps whose first estimates differ by this part are told apart by the second."""
_LOW = 0.9
"""A hump on the grid below so much of a level stays below it: half a standard deviation from its top it has lost far
less than a tenth."""

Probability = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Supremum:
    value: float
    at: float


def supremum(probability: Probability, *, low: float, high: float, n_items: int) -> Supremum:
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
    return _refined(probability, np.concatenate(blocks), together).value > level


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


def _refined(probability: Probability, grid: FloatArray, values: FloatArray) -> Supremum:
    """The best of the highest humps, narrowed down by two finer grids; the second for those that may be the best."""
    best = Supremum(value=float(values.max()), at=float(_discordances(grid[[values.argmax()]])[0]))
    finer = [_finer(probability, grid, hump, _FIRST) for hump in _highest_humps(values)]
    tops = [_top(*one).value for one in finer]
    for one, top in zip(finer, tops, strict=True):
        if top >= (1.0 - _NEAR) * max(tops):
            narrowed = _finer(probability, one[0], int(one[1].argmax()), _SECOND)
            best = max(best, _top(*narrowed), key=lambda found: found.value)
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


def _top(grid: FloatArray, values: FloatArray) -> Supremum:
    """The top of the parabola through the best point and its neighbours."""
    hump = int(values.argmax())
    at = float(_discordances(grid[[hump]])[0])
    if hump in (0, grid.size - 1):
        return Supremum(value=float(values[hump]), at=at)
    before, best, after = values[hump - 1 : hump + 2].tolist()
    curvature = 2.0 * best - before - after
    rise = (before - after) ** 2 / (8.0 * curvature) if curvature > 0.0 else 0.0
    return Supremum(value=best + rise, at=at)

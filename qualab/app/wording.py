"""Fractions in words for a person: percent and percentage points."""

from __future__ import annotations

import math


def percent(fraction: float) -> str:
    """An assumed share in percent, as short as it is exact."""
    return f"{100 * fraction:.6g} %"


def share(fraction: float, decimals: int = 1) -> str:
    """A computed share in percent, rounded; what is not quite 0 or all is never rounded to it."""
    least = 10.0**-decimals
    if 0.0 < 100 * fraction < least / 2:
        return f"<{least:g} %"
    if 100 - least / 2 <= 100 * fraction < 100:
        return f">{100 - least:g} %"
    return f"{100 * fraction:.{decimals}f} %"


def pp(fraction: float) -> str:
    """A size in percentage points, as short as it is exact."""
    return f"{100 * fraction:.6g} pp"


def proven(margin: float) -> str:
    """A margin that is proven, in percentage points, rounded up: a narrower one would not be."""
    return f"{math.ceil(1e4 * margin - 1e-6) / 100:.2f} pp"

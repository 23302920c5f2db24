"""Checks at the door of the statistics: one clear error for each kind of bad input."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import numpy.typing as npt

from qualab.errors import InsufficientData, InvalidValue

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def _check_inside(name: str, limit: float, hint: str, value: float) -> float:
    if not 0.0 < value < limit:
        raise InvalidValue(f"{name} must lie between 0 and {limit:g}, both excluded, not {value:g}", hint=hint)
    return float(value)


check_margin = partial(_check_inside, "A margin", 1.0, "Give a fraction: 0.02 for two percentage points.")
check_alpha = partial(_check_inside, "alpha", 0.5, "0.05 is the usual level of a one-sided test.")
check_confidence_level = partial(_check_inside, "A confidence level", 1.0, "Give a fraction: 0.95 for 95 %.")
check_power = partial(_check_inside, "A target power", 1.0, "Give a fraction: 0.8 for 80 %.")


def check_share(value: float, name: str) -> float:
    """Check a share or probability, 0 and 1 included."""
    if not 0.0 <= value <= 1.0:
        raise InvalidValue(f"{name} must lie between 0 and 1, not {value:g}", hint="Give a fraction, not percent.")
    return float(value)


def check_items(n_items: int) -> int:
    """Check that there is an item."""
    if n_items < 1:
        raise InsufficientData("There is no item to compare", hint="Compare at least one item that both arms answered.")
    return int(n_items)


def check_rates(*, discordance: float, difference: float) -> None:
    """Check an assumed truth: 0 <= |difference| <= discordance <= 1."""
    if not (math.isfinite(discordance) and math.isfinite(difference) and 0.0 <= discordance <= 1.0):
        raise InvalidValue(
            f"A discordance must lie between 0 and 1, not {discordance:g}",
            hint="Give the share of items that are right in exactly one arm.",
        )
    if abs(difference) > discordance:
        raise InvalidValue(
            f"A difference of {difference:g} cannot come from a discordance of {discordance:g}",
            hint="The difference is at most the discordance: every changed item is discordant.",
        )


def finite(values: object, *, name: str, ndim: int = 1) -> FloatArray:
    """Convert to an array of finite floats, by default a flat one."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as exc:
        raise InvalidValue(f"{name} must be numbers", hint="Score every item before comparing.") from exc
    if not np.all(np.isfinite(array)):
        raise InvalidValue(
            f"{name} hold a value that is NaN or infinite",
            hint="A missing score is left out or counted as wrong before the statistics, never passed as NaN.",
        )
    if array.ndim != ndim:
        raise InvalidValue(
            f"{name} must be a {'flat list' if ndim == 1 else 'table'}", hint="Give one value, or one row, an item."
        )
    return array


def paired(baseline: object, candidate: object, *, ndim: int = 1) -> tuple[FloatArray, FloatArray]:
    """Convert both arms' scores, one (or one row) an item in the same order."""
    before = finite(baseline, name="Baseline scores", ndim=ndim)
    after = finite(candidate, name="Candidate scores", ndim=ndim)
    if before.shape != after.shape:
        raise InvalidValue(
            f"The arms are not paired: {len(before)} baseline and {len(after)} candidate scores",
            hint="Give both arms the same items in the same order.",
        )
    return before, after


def zeros_and_ones(baseline: object, candidate: object) -> tuple[FloatArray, FloatArray]:
    """Convert both arms' 0/1 scores, one an item in the same order."""
    before, after = paired(baseline, candidate)
    if not np.all(((before == 0) | (before == 1)) & ((after == 0) | (after == 1))):
        raise InvalidValue(
            "Scores other than 0 and 1 cannot be counted as gains and losses",
            hint="Use the tests of paired differences for scores between 0 and 1.",
        )
    return before, after

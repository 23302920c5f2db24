"""Tango's score statistic: one formula under the interval, the equivalence tests and their power."""

from __future__ import annotations

from typing import Any, TypeVar

from qualab.stats.checks import FloatArray, IntArray

Numbers = TypeVar("Numbers", float, FloatArray)


def score_statistic(gains: Numbers, losses: Numbers, *, n_items: float | IntArray, difference: float) -> Numbers:
    """Score statistic of "the true difference is `difference`" (Tango 1998, section 3); approximately standard normal.

    z(δ) = (b − c − nδ) / √(n (2q̃ + δ(1 − δ))), where q̃ is the restricted maximum-likelihood estimate of the
    probability of a loss: q̃ = (√(B² − 4AC) − B) / 2A with A = 2n, B = −b − c + (2n − b + c) δ, C = −c δ (1 − δ).
    Works on numbers and on arrays.

    `difference` lies strictly between −1 and 1, and is not 0 where gains and losses are both 0.
    """
    if difference < 0.0:  # by symmetry; the formula then never subtracts two nearly equal numbers
        return -score_statistic(losses, gains, n_items=n_items, difference=-difference)
    linear = (2.0 * n_items - gains + losses) * difference - gains - losses
    root: Any = (linear * linear + 8.0 * n_items * losses * difference * (1.0 - difference)) ** 0.5
    loss_probability = (root - linear) / (4.0 * n_items)
    variance = n_items * (2.0 * loss_probability + difference * (1.0 - difference))
    return (gains - losses - n_items * difference) / variance**0.5  # type: ignore[no-any-return]

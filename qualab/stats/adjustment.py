"""p-values of a family, adjusted from the p-values alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from qualab.errors import InvalidValue
from qualab.stats.checks import FloatArray, finite


def holm(pvalues: Sequence[float] | npt.ArrayLike) -> FloatArray:
    """Step-down family-wise adjustment of Holm (1979), in the order given; valid under any dependence.

    Raises:
        InvalidValue: a p-value is outside 0..1.
    """
    p = _checked(pvalues)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    return _restored(steps, order)


def benjamini_hochberg(pvalues: Sequence[float] | npt.ArrayLike) -> FloatArray:
    """False-discovery-rate adjustment of Benjamini & Hochberg (1995), in the order given; for independent p-values.

    Raises:
        InvalidValue: a p-value is outside 0..1.
    """
    return _step_up(_checked(pvalues), scale=1.0)


def benjamini_yekutieli(pvalues: Sequence[float] | npt.ArrayLike) -> FloatArray:
    """False-discovery-rate adjustment of Benjamini & Yekutieli (2001), in the order given; valid under any dependence.

    Raises:
        InvalidValue: a p-value is outside 0..1.
    """
    p = _checked(pvalues)
    return _step_up(p, scale=float(np.sum(1.0 / np.arange(1, p.size + 1))))


def _step_up(p: FloatArray, *, scale: float) -> FloatArray:
    order = np.argsort(p, kind="stable")
    ratios = p[order] * scale * p.size / np.arange(1, p.size + 1)
    return _restored(np.minimum.accumulate(ratios[::-1])[::-1], order)


def _checked(pvalues: Sequence[float] | npt.ArrayLike) -> FloatArray:
    p = finite(pvalues, name="p-values")
    if p.ndim != 1 or np.any((p < 0.0) | (p > 1.0)):
        raise InvalidValue("A p-value must lie between 0 and 1", hint="Give a flat list of p-values.")
    return p


def _restored(sorted_values: FloatArray, order: npt.NDArray[np.intp]) -> FloatArray:
    adjusted = np.empty_like(sorted_values)
    adjusted[order] = np.minimum(1.0, sorted_values)
    return adjusted

"""How a metric comes from its items' scores: as it is known, else as the scores look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qualab.domain.names import MetricKind

_WORDS = {
    MetricKind.BINARY_MEAN: "a mean of 0/1 scores",
    MetricKind.MEAN: "a mean of scores",
    MetricKind.LIST_MEAN: "a mean over all entries of lists",
    MetricKind.MACRO_F1: "macro-F1 of pairs",
}
_CLOSE = 1e-6
"""Relative; sums in another order differ by less."""


def guessed_kind(values: Sequence[Any]) -> MetricKind:
    """What an unknown metric's scores may be. `values` are of both arms."""
    if all(isinstance(value, float) for value in values):
        return MetricKind.BINARY_MEAN if all(value in (0.0, 1.0) for value in values) else MetricKind.MEAN
    lists = [value for value in values if isinstance(value, tuple)]
    if len(lists) < len(values):
        return MetricKind.OTHER
    if all(isinstance(part, bool) for value in lists for part in value):
        return MetricKind.LIST_MEAN
    return MetricKind.MACRO_F1 if all(len(value) == 2 for value in lists) else MetricKind.OTHER


def in_words(kind: MetricKind) -> str:
    """For a person."""
    return _WORDS.get(kind, "not tested")


def fits(kind: MetricKind, values: Sequence[Any]) -> bool:
    """Whether these scores can be of that kind."""
    if kind in (MetricKind.BINARY_MEAN, MetricKind.MEAN):
        return all(isinstance(value, float) for value in values)
    return kind is MetricKind.OTHER or all(isinstance(value, tuple) for value in values)


def aggregate_of(kind: MetricKind, values: Sequence[Any]) -> float | None:
    """The metric's value of these scores in the order of their documents, as lm-eval sums them; None without a way."""
    if not values:
        return None
    if kind is MetricKind.LIST_MEAN:
        values = [part for value in values for part in value]
    if kind is MetricKind.MACRO_F1:
        return _macro_f1(values)
    if kind is MetricKind.OTHER or not values:
        return None
    return float(sum(values) / len(values))


def _macro_f1(pairs: Sequence[Any]) -> float:
    """Bit by bit what scikit-learn gives lm-eval; `qualab.stats.f1` may differ in the last one."""
    right = Counter(truth for truth, answer in pairs if truth == answer)
    true, given = Counter(truth for truth, _ in pairs), Counter(answer for _, answer in pairs)
    classes = sorted(true.keys() | given.keys(), key=_class_order)
    return float(np.mean([2 * right[one] / (true[one] + given[one]) for one in classes]))


def _class_order(label: Any) -> tuple[bool, Any]:
    """Numbers by size, then texts."""
    return (True, label) if isinstance(label, str) else (False, label or 0)


def weighted(values: Mapping[str, float], sizes: Mapping[str, int], *, by_size: bool) -> float:
    """A group's value of its members', as lm-eval adds them."""
    weights = {name: sizes[name] if by_size else 1 for name in values}
    return sum([value * weights[name] for name, value in values.items()]) / sum(weights.values())


def is_close(one: float, other: float) -> bool:
    """Whether two aggregates are the same but for rounding."""
    return abs(one - other) <= _CLOSE * max(1.0, abs(one), abs(other))

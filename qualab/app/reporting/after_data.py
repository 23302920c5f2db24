"""An analysis under another plan, made after the data. That plan is not stored: its analysis tells what it went by."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from qualab.domain.comparison import Analysis, Comparison
from qualab.domain.names import Objective
from qualab.domain.plan import DecisionRule

CHANGED: Mapping[str, Callable[[str], object]] = {
    "alpha": float,
    "power": float,
    "max_missing_share": lambda text: None if text == "None" else float(text),
    "missing_lost": lambda text: None if text == "None" else float(text),
    "objective": Objective,
    "strict": lambda text: text == "True",
}
"""Parts of a rule that the first reason of such an analysis names where they changed, as "alpha 0.05 to 0.1"."""


def under_its_plan(comparison: Comparison, analysis: Analysis) -> Comparison:
    """The comparison as the analysis judged it; its own plan's hash stays. Nothing was planned with that plan."""
    margins = {row.id: row.margin for row in analysis.metrics if row.margin is not None}
    primaries = {row.id for row in analysis.metrics if row.is_primary}
    plan = comparison.plan
    metrics = tuple(replace(one, is_primary=one.id in primaries) for one in plan.metrics)
    rule = replace(_changed(plan.rule, analysis), margins=margins)
    return replace(comparison, plan=replace(plan, rule=rule, metrics=metrics, assumptions=None))


def _changed(rule: DecisionRule, analysis: Analysis) -> DecisionRule:
    return replace(rule, **dict(_changes(analysis.reasons[0] if analysis.reasons else "")))  # type: ignore[arg-type]


def _changes(reason: str) -> Iterator[tuple[str, object]]:
    for name, read in CHANGED.items():
        if found := re.search(rf"\b{name} \S+ to ([^\s,)]+)", reason):
            yield name, read(found[1])

"""A stored comparison is analysed again over the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qualab.app.compare import compare_again, with_rule
from qualab.app.service.desk import By, Desk
from qualab.app.service.reading import AnalysisNamed, comparison_of, named
from qualab.domain.comparison import Analysis

RULE_FIELDS = ("margin", "margins", "objective", "alpha", "max_missing_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysedAgain:
    """What came of it."""

    name: AnalysisNamed
    is_as_stored: bool
    analysis: Analysis


def analyse_again(desk: Desk, comparison_id: str, changes: Mapping[str, Any], *, by: By) -> AnalysedAgain:
    """Under the comparison's own plan, or with parts of its rule changed: then it is marked as made after the data.

    Raises as `compare_again` and `with_rule`, NotYet.
    """
    comparison = comparison_of(desk, comparison_id)
    other = with_rule(comparison.plan, changes) if changes else None
    found = compare_again(desk.services, comparison.id, other=other)
    if not found.is_own_plan:
        said = {name: str(value) for name, value in changes.items()}
        desk.registry.note(by.entry("analysis.create", comparison.id, plan_hash=found.analysis.plan_hash, **said))
    return AnalysedAgain(
        name=named(found.analysis, comparison), is_as_stored=found.is_as_stored, analysis=found.analysis
    )

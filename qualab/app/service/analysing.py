"""A stored comparison is analysed again over the service."""

from __future__ import annotations

from dataclasses import dataclass

from qualab.app.compare import compare_again, with_rule
from qualab.app.service.desk import By, Desk
from qualab.app.service.reading import AnalysisNamed, comparison_of, named
from qualab.domain.comparison import Analysis
from qualab.domain.items import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysedAgain:
    """What came of it."""

    name: AnalysisNamed
    is_as_stored: bool
    analysis: Analysis


def analyse_again(desk: Desk, comparison_id: str, changes: JsonObject, *, by: By) -> AnalysedAgain:
    """Under the comparison's own plan, or with parts of its rule changed: then it is marked as made after the data.

    Raises as `compare_again`, `with_rule` and `Desk.read_rule`, NotYet.
    """
    comparison = comparison_of(desk, comparison_id)
    rule = desk.read_rule(changes)
    other = with_rule(comparison.plan, rule) if rule else None
    found = compare_again(desk.services, comparison.id, other=other)
    if not found.is_own_plan:
        said = {name: str(value) for name, value in rule.items()}
        desk.registry.note(by.entry("analysis.create", comparison.id, plan_hash=found.analysis.plan_hash, **said))
    return AnalysedAgain(
        name=named(found.analysis, comparison), is_as_stored=found.is_as_stored, analysis=found.analysis
    )

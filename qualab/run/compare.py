"""Analyses a stored comparison again, from its stored scores: under its own plan, or under one made after the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from qualab.analysis.analyse import analyse
from qualab.analysis.scoring import summary_of
from qualab.errors import InvalidValue, PlanChanged
from qualab.imports.plan import ImportedTasks
from qualab.model.canonical import canonical_json, plan_hash
from qualab.model.comparison import Analysis, Comparison
from qualab.model.names import Verdict
from qualab.model.plan import DecisionRule, Plan, check_names
from qualab.model.ports import ScoredTasks
from qualab.model.reason import Reason
from qualab.run.experiment import check_rule, check_unchanged, planned_options
from qualab.run.services import Services

_SAME = ("tasks", "sampling", "limit", "num_fewshot", "looks", "noise_floor", "pins", "imported", "sequential")
"""What another plan has to share with the comparison's own: what was asked of what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reanalysis:
    """An analysis made again."""

    comparison: Comparison
    analysis: Analysis
    is_own_plan: bool
    is_as_stored: bool
    """Byte for byte what is stored under the same plan; so it is where it has just been stored."""


def compare_again(
    services: Services, comparison_id: str, *, other: Plan | None = None, local: Mapping[str, str] | None = None
) -> Reanalysis:
    """Analyses the stored scores under the comparison's own plan, or under `other`; no endpoint is asked anything.

    Under another plan the analysis is marked as made after the data, INVALID as a whole, and stored beside the original
    one. Raises ComparisonNotFound, InvalidValue where nothing is analysed yet, PlanChanged for a plan of other items.
    """
    store = services.store
    comparison = store.get(comparison_id)
    if store.analysis(comparison.id) is None:
        raise InvalidValue(
            f"Comparison {comparison.id} is {comparison.status.value}: it has no analysis yet",
            hint=f"Finish it first: qualab resume {comparison.id}",
        )
    judged = _under(comparison, other)
    tasks = tasks_of(services, comparison, local)
    items = list(store.items(comparison.id))
    found = analyse(store, judged, tasks, items, summary_of(store, comparison.id, items))
    is_own = judged.plan_hash == comparison.plan_hash
    if not is_own:
        found = _after_data(found, comparison.plan.rule, judged.plan.rule)
    stored = store.analysis(comparison.id, plan_hash=found.plan_hash)
    if stored is not None and canonical_json(stored) == canonical_json(found):
        return Reanalysis(comparison=comparison, analysis=stored, is_own_plan=is_own, is_as_stored=True)
    if not is_own:
        store.put_analysis(found, now=services.clock.now())
    return Reanalysis(comparison=comparison, analysis=found, is_own_plan=is_own, is_as_stored=not is_own)


def tasks_of(services: Services, comparison: Comparison, local: Mapping[str, str] | None) -> ScoredTasks:
    """The tasks that a comparison's scores are added up with. Raises PlanChanged."""
    if comparison.plan.imported:
        return ImportedTasks(comparison.plan)
    tasks = services.harness.load(planned_options(comparison.plan, {**comparison.local, **(local or {})}))
    check_unchanged(comparison.plan, tasks)
    return tasks


def with_rule(plan: Plan, changes: Mapping[str, object]) -> Plan:
    """The plan with parts of its rule changed. Raises InvalidValue."""
    rule = replace(plan.rule, **changes)  # type: ignore[arg-type]  # the caller's names are the rule's
    check_rule(rule)
    changed = replace(plan, rule=rule)
    check_names(rule.margins, changed, what="margins")
    check_names(rule.score_bounds, changed, what="score_bounds")
    return changed


def _under(comparison: Comparison, other: Plan | None) -> Comparison:
    """The comparison as if it had the other plan. Raises PlanChanged."""
    if other is None or other == comparison.plan:
        return comparison
    differing = [name for name in _SAME if getattr(other, name) != getattr(comparison.plan, name)]
    if differing:
        raise PlanChanged(
            f"That plan is not for comparison {comparison.id}: {', '.join(differing)} differ",
            hint="Only a plan for the same items, asked in the same way, can judge what is stored",
        )
    if other.looks:
        raise PlanChanged(
            f"Comparison {comparison.id} has looks: what was asked followed from its own plan",
            hint="Only that plan can judge it",
        )
    return replace(comparison, plan=other, plan_hash=plan_hash(other))


def _after_data(found: Analysis, before: DecisionRule, after: DecisionRule) -> Analysis:
    changes = tuple(_changes(before, after)) or (Reason("nothing-changed"),)
    return marked(found, Reason("after-data", {"changes": changes}))


def marked(found: Analysis, why: Reason) -> Analysis:
    """An analysis that stands beside the original one: INVALID as a whole, its rows as they are."""
    return replace(found, verdict=Verdict.INVALID, reasons=(why, *found.reasons))


def _changes(before: DecisionRule, after: DecisionRule) -> Iterator[Reason]:
    for part in fields(DecisionRule):
        old, new = getattr(before, part.name), getattr(after, part.name)
        if old != new:
            yield Reason("changed", {"part": part.name, "before": _plain(old), "after": _plain(new)})


def _plain(value: object) -> object:
    """As a reason holds it: a number, a text, or parts of a mapping as text."""
    return value if isinstance(value, bool | int | float | None) else _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_shown(one)}" for name, one in value.items()) or "none"
    if isinstance(value, tuple):
        return ":".join(map(_shown, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)

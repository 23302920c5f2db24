"""A plan that was frozen before a run: as plain values for a file, and back, refused where it was changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from qualab.domain.canonical import plain, plan_hash
from qualab.domain.comparison import Comparison
from qualab.domain.plan import Plan, TaskSpec
from qualab.errors import InvalidValue, PlanChanged, UsageError
from qualab.ports import LoadedTasks

AGAIN = "A changed plan is a new plan: run `qualab plan` again"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenPlan:
    """A plan with its hash, and the settings that it was made from."""

    plan: Plan
    plan_hash: str
    frozen_at: datetime
    settings: dict[str, Any]
    """As in an experiment file."""


def to_document(frozen: FrozenPlan, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values, what a person looks for first."""
    return {
        "qualab_plan": frozen.plan.schema,
        "hash": frozen.plan_hash,
        "frozen_at": frozen.frozen_at.isoformat(timespec="seconds"),
        "figures": dict(figures),
        "experiment": frozen.settings,
        "plan": plain(frozen.plan),
    }


def from_document(document: Mapping[str, Any], *, where: str) -> FrozenPlan:
    """Raises UsageError for what is no plan, PlanChanged where the plan is not the one that was hashed."""
    try:
        content, named = document["plan"], str(document["hash"])
        plan = _plans().validate_python(content)
        frozen = FrozenPlan(
            plan=plan,
            plan_hash=named,
            frozen_at=datetime.fromisoformat(str(document["frozen_at"])),
            settings=dict(document["experiment"]),
        )
    except (KeyError, TypeError, ValueError, ValidationError) as exc:
        raise UsageError(f"{where} is not a whole plan file", hint=f"It was edited or cut short. {AGAIN}") from exc
    if plan_hash(content) != named or plan_hash(plan) != named:
        raise PlanChanged(f"{where} was edited: its plan is not the one that was frozen as {named[:12]}", hint=AGAIN)
    return frozen


def refuse_imported(comparison: Comparison, what: str) -> Comparison:
    """The comparison. Raises InvalidValue for an imported one: qualab asked nothing, and has no tasks to ask with."""
    if comparison.plan.imported:
        raise InvalidValue(
            f"Comparison {comparison.id} was imported from logs: it cannot be {what}",
            hint="Its answers and scores are here: qualab show, compare, rescore",
        )
    return comparison


def check_unchanged(plan: Plan, tasks: LoadedTasks) -> None:
    """Raises PlanChanged when the tasks loaded now do not ask what those of the plan asked."""
    now = {task.name: deciding(task) for task in tasks.tasks}
    changed = [task.name for task in plan.tasks if now.get(task.name) != deciding(task)]
    if changed:
        raise PlanChanged(
            f"The prompts or items of {', '.join(changed)} are not those of the plan any more",
            hint="Use the same task files, data and lm-eval version as when the comparison started, or start a new one",
        )


def check_frozen(frozen: Plan, now: Plan) -> None:
    """Raises PlanChanged where a plan made now, of the same settings, is not the frozen one."""
    one, other = (replace(plan, tasks=tuple(map(deciding, plan.tasks))) for plan in (frozen, now))
    parts = [part.name for part in fields(Plan) if getattr(one, part.name) != getattr(other, part.name)]
    if parts:
        raise PlanChanged(
            f"What would be run now is not the frozen plan: {', '.join(parts)} differ",
            hint=f"Use the same task files, data, settings and lm-eval version as then. {AGAIN}",
        )


def deciding(task: TaskSpec) -> TaskSpec:
    """What decides what is asked: not where the documents were read, whose hash says whether they are the same, nor
    what is known of their choices."""
    return replace(task, revision="", n_choices=None)


@cache
def _plans() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)

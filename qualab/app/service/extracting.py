"""What a task's filters take out of one item's answers: run again, because scores hold it of few metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from qualab.app.experiment import planned_options
from qualab.app.frozen import check_unchanged, refuse_imported
from qualab.app.service.desk import Desk
from qualab.domain.comparison import Comparison
from qualab.domain.items import Answer, Item
from qualab.domain.names import ArmName
from qualab.errors import PathForbidden
from qualab.ports import LoadedTasks

WAIT_S = 2.0
"""How long a page waits for a task to be loaded, which is begun by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """What one filter makes of both answers of one repeat."""

    filter: str
    repeat: int
    texts: dict[ArmName, str]
    """Without an arm that did not answer."""


def extracted_of(desk: Desk, comparison: Comparison, item: Item, answers: Sequence[Answer]) -> tuple[Extracted, ...]:
    """Filter by filter. The item's task alone is loaded, as it was planned; no code of the one who ran it is.

    Raises InvalidValue for what was imported, PathForbidden where the tasks came from a folder of their own,
    PlanChanged where the task is not what it was, StillLoading, and what loading and filtering raise.
    """
    refuse_imported(comparison, "filtered again")
    if comparison.local.get("include_path"):
        raise PathForbidden(
            "The tasks came from a folder of whoever ran them: no page loads their code",
            hint="qualab rescore scores the answers anew",
        )
    options = replace(planned_options(comparison.plan, comparison.local), names=(item.task,))
    plan = replace(comparison.plan, tasks=tuple(one for one in comparison.plan.tasks if one.name == item.task))

    def job(tasks: LoadedTasks) -> tuple[Extracted, ...]:
        check_unchanged(plan, tasks)
        return tuple(_by_filter(tasks, item, answers))

    return desk.planner.with_tasks(options, job, name=f"{comparison.id}/{item.id}", timeout_s=WAIT_S)


def _by_filter(tasks: LoadedTasks, item: Item, answers: Sequence[Answer]) -> Iterator[Extracted]:
    found: dict[tuple[int, str], dict[ArmName, str]] = {}
    for answer in answers:
        if answer.reply.status.is_answer:
            for name, (results,) in tasks.extracted(item.task, [(item, [answer.reply])]):
                found.setdefault((answer.repeat, name), {})[answer.arm] = _text(results)
    for (repeat, name), texts in sorted(found.items(), key=lambda entry: entry[0][0]):
        yield Extracted(filter=name, repeat=repeat, texts=texts)


def _text(filtered: object) -> str:
    """The one text there mostly is; several, line by line."""
    if isinstance(filtered, list | tuple):
        return "\n".join(map(_text, filtered))
    return str(filtered)

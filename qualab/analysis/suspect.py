"""Values that a broken scorer has too: both arms at 0, at 1, or below what guessing gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from qualab.model.comparison import MetricResult
from qualab.model.items import Item
from qualab.model.names import MetricKind, RequestKind
from qualab.model.plan import MetricSpec, Plan
from qualab.model.reason import Reason, of


def chances_of(plan: Plan, items: Iterable[Item]) -> dict[str, float]:
    """Expected values of pure guessing by metric id, where the choices are declared or can be counted."""
    declared = {task.name: task.n_choices for task in plan.tasks}
    guesses: dict[str, list[float]] = {}
    for item in items:
        n_counted = len(item.prompts) if item.kind is RequestKind.LOGLIKELIHOOD else 0
        n_choices = declared.get(item.task) or n_counted
        guesses.setdefault(item.task, []).append(1.0 / n_choices if n_choices > 1 else 0.0)
    return {spec.id: chance for spec in plan.metrics if (chance := _chance(plan.members_of(spec), guesses))}


def _chance(members: Sequence[MetricSpec], guesses: dict[str, list[float]]) -> float | None:
    """Over the items of all members; None where one of them is no share of right choices."""
    found = [chance for spec in members for chance in guesses.get(spec.task, [0.0])]
    is_share = all(spec.kind is MetricKind.BINARY_MEAN and spec.higher_is_better for spec in members)
    return sum(found) / len(found) if is_share and found and all(found) else None


def suspicions(rows: Sequence[MetricResult]) -> Iterator[Reason]:
    """Name each primary metric whose values are those of a broken scorer."""
    for row in rows:
        if row.is_primary and row.baseline is not None and row.candidate is not None:
            if row.baseline == row.candidate == 0.0:
                yield of(row.id, Reason("suspect.zero"))
            elif row.baseline == row.candidate == 1.0:
                yield of(row.id, Reason("suspect.one"))
            elif row.chance is not None and max(row.baseline, row.candidate) < row.chance:
                yield of(row.id, Reason("suspect.chance", {"chance": row.chance}))

"""What an analysis needs of tasks, without lm-eval: the logs' scores are added up as the plan says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from qualab.app.importing.kinds import aggregate_of, weighted
from qualab.domain.names import MetricKind
from qualab.domain.plan import Plan
from qualab.errors import UsageError


class ImportedTasks:
    """`qualab.ports.ScoredTasks` of an imported comparison."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def aggregate(self, values: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, float]]:
        """Bit by bit as lm-eval adds means, lists, macro-F1 and groups up; other metrics are left out."""
        found: dict[str, dict[str, float]] = {}
        for spec in self._plan.metrics:
            if not spec.members:
                value = aggregate_of(spec.kind, values.get(spec.task, {}).get(spec.key, ()))
                if value is not None:
                    found.setdefault(spec.task, {})[spec.key] = value
        sizes = {task: max((len(column) for column in columns.values()), default=0) for task, columns in values.items()}
        for spec in self._plan.metrics:
            known = {task: found[task][spec.key] for task in spec.members if spec.key in found.get(task, {})}
            if known:
                by_size = spec.kind is MetricKind.GROUP_MEAN
                found.setdefault(spec.task, {})[spec.key] = weighted(known, sizes, by_size=by_size)
        return found

    def score(self, *_: object, **__: object) -> NoReturn:
        """Answers of an imported comparison are scored by its logs; `qualab rescore` loads the tasks themselves."""
        raise UsageError("This comparison was imported: its tasks are not loaded", hint="Use qualab rescore")

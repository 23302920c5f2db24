"""The rows of an imported comparison's report: which metrics there are, how each comes about, and which decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qualab.app.importing.entries import ArmLog
from qualab.app.importing.kinds import aggregate_of, fits, guessed_kind, in_words, is_close, weighted
from qualab.domain.imported import FindingCode, ImportFinding
from qualab.domain.logged import LoggedTask
from qualab.domain.names import MetricKind, RequestKind
from qualab.domain.plan import MetricSpec, TaskSpec
from qualab.ports import TaskKnowledge

Logs = tuple[ArmLog, ArmLog]
Found = tuple[tuple[MetricSpec, ...], list[ImportFinding]]


class Values:
    """One arm's own aggregates, of every row of its log."""

    def __init__(self, log: ArmLog) -> None:
        self._log = log
        self._columns: dict[tuple[str, str], list[Any]] = {}

    def column(self, task: str, key: str) -> list[Any]:
        """A metric's scores in the order of the documents."""
        known = self._columns.get((task, key))
        if known is None:
            entries = self._log.tasks[task].entries if task in self._log.tasks else []
            ordered = sorted(entries, key=lambda entry: -1 if entry.doc_id is None else entry.doc_id)
            known = [entry.scores[key] for entry in ordered if key in entry.scores]
            self._columns[task, key] = known
        return known

    def of(self, spec: MetricSpec) -> float | None:
        """The value of a task's metric; of a group `group` tells it."""
        return None if spec.members else aggregate_of(spec.kind, self.column(spec.task, spec.key))

    def group(self, members: Sequence[MetricSpec], *, by_size: bool) -> float | None:
        """A group's value of its members' metrics."""
        values = {spec.task: self.of(spec) for spec in members}
        known = {task: value for task, value in values.items() if value is not None}
        sizes = {spec.task: len(self.column(spec.task, spec.key)) for spec in members}
        return weighted(known, sizes, by_size=by_size) if known and len(known) == len(values) else None

    def agree(self, spec: MetricSpec, said: float) -> bool:
        """Whether the log's own value is that of its rows."""
        found = self.of(spec)
        return found is not None and is_close(found, said)


def metric_specs(logs: Logs, tasks: Sequence[TaskSpec], knows: TaskKnowledge) -> Found:
    """Every metric in the order of lm-eval's table, with one primary a benchmark; and what was assumed of them."""
    table = _Table(logs=logs, tasks={task.name: task for task in tasks}, knows=knows)
    rows = {row.id: row for name in table.order() for row in sorted(table.rows(name), key=lambda row: row.key)}
    primary = set(table.primaries(rows))
    return tuple(replace(row, is_primary=row.id in primary) for row in rows.values()), table.findings


@dataclass(slots=True, kw_only=True)
class _Table:
    logs: Logs
    tasks: Mapping[str, TaskSpec]
    knows: TaskKnowledge
    findings: list[ImportFinding] = field(default_factory=list)
    values: tuple[Values, Values] = field(init=False)
    of_task: dict[str, dict[str, MetricSpec]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = (Values(self.logs[0]), Values(self.logs[1]))
        self.of_task = {name: {row.key: row for row in self._task_rows(name)} for name in self.tasks}

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Groups whose tasks both arms have."""
        return {name: members for name, members in self.logs[0].run.groups.items() if set(members) <= set(self.tasks)}

    def order(self) -> Iterator[str]:
        """Groups by name, each before its tasks by name; then the tasks of no group."""
        in_groups: dict[str, None] = {}
        for name, members in sorted(self.groups.items()):
            in_groups |= dict.fromkeys([name, *sorted(members)])
        yield from in_groups
        yield from sorted(task for task in self.tasks if task not in in_groups)

    def rows(self, name: str) -> Iterator[MetricSpec]:
        yield from self.of_task[name].values() if name in self.tasks else self._group_rows(name)

    def _task_rows(self, name: str) -> Iterator[MetricSpec]:
        keys = dict.fromkeys(key for log in self.logs for entry in log.tasks[name].entries for key in entry.scores)
        better = self.logs[0].run.tasks.get(name, LoggedTask(name=name)).higher_is_better
        for key in keys:
            metric, _, ensemble = key.partition(",")
            yield MetricSpec(
                task=name,
                name=metric,
                filter=ensemble,
                kind=self._kind(name, key),
                is_primary=False,
                exercises_drafter=self.tasks[name].kind is RequestKind.GENERATION,
                higher_is_better=better.get(metric, True),
            )

    def _kind(self, task: str, key: str) -> MetricKind:
        if spec := self._told(f"{task}/{key}"):
            return spec.kind
        both = [value for values in self.values for value in values.column(task, key)]
        facts = self.knows(task)
        known = facts.kind(key) if facts else None
        if known is not None and fits(known, both):
            return known
        kind = guessed_kind(both)
        said = [log.run.reported.get(task, {}).get(key) for log in self.logs]
        found = [aggregate_of(kind, values.column(task, key)) for values in self.values]
        told = [
            (one, other)
            for one, other, log in zip(said, found, self.logs, strict=True)
            if one is not None and other is not None and not log.has_lost(task)
        ]
        if not all(is_close(one, other) for one, other in told):
            self._assume(f"{task}/{key}: its scores do not add up to the log's own value in any way known: not tested")
            return MetricKind.OTHER
        why = "which gives the log's own values" if told else "as its scores look"
        self._assume(f"{task}/{key}: taken for {in_words(kind)}, {why}")
        return kind

    def _told(self, name: str) -> MetricSpec | None:
        """A metric as both logs tell it, where they agree."""
        off, on = (log.run.metrics.get(name) for log in self.logs)
        return off if off and on and off.kind is on.kind else None

    def _assume(self, what: str) -> None:
        self.findings.append(ImportFinding(code=FindingCode.ASSUMED, what=what))

    def _group_rows(self, name: str) -> Iterator[MetricSpec]:
        off, on = (self._group_keys(name, log) for log in self.logs)
        for key in (key for key in off if key in on):
            members = [self.of_task[task][key] for task in self.groups[name] if key in self.of_task[task]]
            metric, _, ensemble = key.partition(",")
            if members:
                yield MetricSpec(
                    task=name,
                    name=metric,
                    filter=ensemble,
                    kind=self._group_kind(name, key, members),
                    is_primary=False,
                    exercises_drafter=any(row.exercises_drafter for row in members),
                    higher_is_better=all(row.higher_is_better for row in members),
                    members=tuple(row.task for row in members),
                )

    def _group_keys(self, name: str, log: ArmLog) -> list[str]:
        told = [spec.key for spec in log.run.metrics.values() if spec.task == name]
        return told or list(log.run.reported.get(name, {}))

    def _group_kind(self, name: str, key: str, members: Sequence[MetricSpec]) -> MetricKind:
        """Weighted by size where that gives the log's own value, or where the group is known: a log may be cut."""
        if spec := self._told(f"{name}/{key}"):
            return spec.kind
        said = self.logs[0].run.reported[name][key]
        by_size, plain = (self.values[0].group(members, by_size=one) for one in (True, False))
        if by_size is not None and is_close(by_size, said):
            return MetricKind.GROUP_MEAN
        if plain is not None and is_close(plain, said):
            self._assume(f"{name}/{key}: the mean of its tasks, whatever their size: not tested")
            return MetricKind.OTHER
        if self.knows(name) is not None:
            return MetricKind.GROUP_MEAN
        self._assume(f"{name}/{key}: its tasks do not add up to the log's own value in any way known: not tested")
        return MetricKind.OTHER

    def primaries(self, rows: Mapping[str, MetricSpec]) -> Iterator[str]:
        """What the catalog says, of each benchmark; else the first metric that can be tested, of a group or a task."""
        told = [name for name in rows if (spec := self._told(name)) and spec.is_primary]
        if told:
            yield from told
            return
        by_benchmark: dict[str, list[str]] = {}
        for task in self.tasks.values():
            by_benchmark.setdefault(task.benchmark, []).append(task.name)
        for benchmark, tasks in by_benchmark.items():
            facts = self.knows(tasks[0])
            preferred = next((one for one in (facts.primary if facts else ()) if one in rows), None)
            names = [name for name in (benchmark, *tasks) if name in self.groups or name in self.tasks]
            tested = (
                row.id for name in names for row in self._in_own_order(name, rows) if row.kind is not MetricKind.OTHER
            )
            if chosen := preferred or next(tested, None):
                yield chosen

    def _in_own_order(self, name: str, rows: Mapping[str, MetricSpec]) -> Iterator[MetricSpec]:
        if name in self.of_task:
            yield from self.of_task[name].values()
        else:
            yield from (row for row in rows.values() if row.task == name)

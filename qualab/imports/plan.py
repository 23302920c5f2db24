"""How a metric comes from its items' scores: as it is known, else as the scores look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from pydantic import TypeAdapter, ValidationError

from qualab.errors import UsageError
from qualab.imports.join import ArmLog, Entry, Match
from qualab.model.canonical import canonical_json, plan_hash, sha256
from qualab.model.comparison import Look
from qualab.model.engine import Observation
from qualab.model.items import Answer, Score
from qualab.model.logged import LoggedRun, LoggedTask
from qualab.model.names import Api, ArmName, MetricKind, RequestKind
from qualab.model.plan import (
    DecisionRule,
    FindingCode,
    ImportFinding,
    MetricSpec,
    Pins,
    Plan,
    RequestPolicy,
    SamplingPlan,
    TaskSpec,
)
from qualab.model.ports import TaskKnowledge

if TYPE_CHECKING:
    from qualab.store import Store

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


UNKNOWN = "unknown"


def exported_plan(baseline: LoggedRun, candidate: LoggedRun) -> Plan | None:
    """The plan of the comparison whose two arms these logs are; None where they are not, or it is not whole."""
    document, arms = baseline.plan, [run.exported_from.rpartition("/") for run in (baseline, candidate)]
    are_its_arms = arms[0][0] == arms[1][0] and [arm[2] for arm in arms] == list(ArmName)
    if document is None or not are_its_arms or baseline.plan_hash != candidate.plan_hash:
        return None
    try:
        plan: Plan = TypeAdapter(Plan).validate_python(document)
    except ValidationError:
        return None
    return plan if baseline.plan_hash in (plan_hash(plan), sha256(canonical_json(document))) else None


def untaken_plan(baseline: ArmLog, candidate: ArmLog, exported: Plan | None) -> Iterator[ImportFinding]:
    """Says so where the logs hold plans that are not taken up."""
    if exported is None and (baseline.run.plan or candidate.run.plan):
        what = "the plans in the logs are not taken up: they are not of the two arms of one comparison, or were edited"
        yield ImportFinding(code=FindingCode.ASSUMED, what=what)


def adopted(plan: Plan) -> Plan:
    """A run's plan for what its export holds: every item once, without looks, a noise floor, or anything pinned."""
    sampling = replace(plan.sampling, repeats=1)
    return replace(plan, looks=None, noise_floor=None, drafter_costs=None, pins=Pins(), sampling=sampling)


def made_plan(
    logs: tuple[ArmLog, ArmLog], joined: Mapping[str, Sequence[Match]], knows: TaskKnowledge, rule: DecisionRule
) -> tuple[Plan, list[ImportFinding]]:
    """A plan from the logs, and what had to be assumed for it."""
    baseline, candidate = logs
    run = baseline.run
    tasks = tuple(_task_spec(name, baseline, matches, knows) for name, matches in joined.items())
    metrics, findings = metric_specs(logs, tasks, knows)
    plan = Plan(
        suite="imported",
        requested=tuple(_requested(run, [task.name for task in tasks])),
        tasks=tasks,
        metrics=metrics,
        sampling=SamplingPlan(
            model=candidate.run.model or run.model or UNKNOWN,
            api=Api.CHAT if any(entries.is_chat for entries in baseline.tasks.values()) else Api.COMPLETIONS,
            gen_kwargs=dict(run.gen_kwargs),
            seed=1234 if run.seed is None else run.seed,
            repeats=1 + max((match.content.repeat for one in joined.values() for match in one), default=0),
            system_instruction=run.settings.get("system instruction", ""),
        ),
        policy=RequestPolicy(),
        rule=replace(rule, allow_unobserved=True),
        limit=run.limit,
        num_fewshot=None,
        harness_version=run.harness_version or UNKNOWN,
    )
    return plan, findings


def value_findings(logs: tuple[ArmLog, ArmLog], plan: Plan) -> Iterator[ImportFinding]:
    """Where a log's own aggregates are not those of its rows."""
    for name, log in zip(("baseline", "candidate"), logs, strict=True):
        values = Values(log)
        for spec in plan.metrics:
            said, found = log.run.reported.get(spec.task, {}).get(spec.key), values.of(spec)
            if said is not None and found is not None and not values.agree(spec, said):
                what = f"{spec.id}: the {name}'s results say {said:.6g}, its rows give {found:.6g}"
                yield ImportFinding(code=FindingCode.VALUES, what=what)


def _task_spec(name: str, log: ArmLog, matches: Sequence[Match], knows: TaskKnowledge) -> TaskSpec:
    entries = log.tasks[name]
    said = log.run.tasks.get(name, LoggedTask(name=name))
    facts = knows(name)
    items = {(match.content.key, match.content.doc_id) for match in matches}
    return TaskSpec(
        name=name,
        benchmark=facts.benchmark if facts else _root(name, log.run),
        kind=entries.kind,
        version=said.version,
        config_hash=sha256(canonical_json(said.config)) if said.config else "",
        data_hash=_data_hash(match.content for match in matches),
        dataset=said.dataset,
        revision=UNKNOWN,
        num_fewshot=said.num_fewshot or 0,
        n_items=len(items),
        n_available=max(said.n_available or 0, len(items)),
        cluster_field="+".join(entries.cluster),
        n_choices=facts.n_choices if facts else None,
    )


def _data_hash(entries: Iterable[Entry]) -> str:
    return sha256(b"".join(sorted({entry.key for entry in entries})))


def _root(task: str, run: LoggedRun) -> str:
    """The largest group that a task belongs to, else the task."""
    groups = [name for name, members in run.groups.items() if task in members]
    return max(groups, key=lambda name: (len(run.groups[name]), name), default=task)


def _requested(run: LoggedRun, tasks: Sequence[str]) -> Iterator[str]:
    yield from dict.fromkeys(_root(task, run) for task in tasks)


class ImportedTasks:
    """`qualab.model.ports.ScoredTasks` of an imported comparison."""

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


class ScoresAlone:
    """`qualab.model.ports.Stored`: these scores, and the rest from a store where there is one."""

    def __init__(self, scores: Sequence[Score], store: Store | None = None) -> None:
        """`scores` in order of arm, position, repeat and metric."""
        self._scores = scores
        self._store = store

    def scores(self, comparison_id: str) -> Iterator[Score]:
        del comparison_id
        return iter(self._scores)

    def answers(self, comparison_id: str, *, arm: ArmName, run: int = 0) -> Iterator[Answer]:
        return self._store.answers(comparison_id, arm=arm, run=run) if self._store else iter(())

    def looks(self, comparison_id: str) -> Sequence[Look]:
        return self._store.looks(comparison_id) if self._store else ()

    def observations(self, comparison_id: str) -> Sequence[Observation]:
        return self._store.observations(comparison_id) if self._store else ()

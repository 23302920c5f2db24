"""Make a plan from two logs: how each metric comes from its items' scores, as known or as the scores look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from qualab.analysis.imported import aggregate_of, group_mean
from qualab.imports.join import ArmLog, Match
from qualab.model.canonical import canonical_json, plan_hash, sha256
from qualab.model.logged import LoggedRun
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
from qualab.model.reason import Reason, of

if TYPE_CHECKING:
    from qualab.harness.catalog import Catalog

UNKNOWN = "unknown"
CLOSE = 1e-6
"""Relative; sums in another order differ by less."""


def fits(kind: MetricKind, values: Sequence[Any]) -> bool:
    """Test whether these scores can be of that kind."""
    if kind in (MetricKind.BINARY_MEAN, MetricKind.MEAN):
        return all(isinstance(value, float) for value in values)
    return kind is MetricKind.OTHER or all(isinstance(value, tuple) for value in values)


def guessed_kind(values: Sequence[Any]) -> MetricKind:
    """Guess what an unknown metric's scores are. `values` are of both arms."""
    if fits(MetricKind.MEAN, values):
        return MetricKind.BINARY_MEAN if all(value in (0.0, 1.0) for value in values) else MetricKind.MEAN
    if not fits(MetricKind.LIST_MEAN, values):
        return MetricKind.OTHER
    if all(isinstance(part, bool) for value in values for part in value):
        return MetricKind.LIST_MEAN
    return MetricKind.MACRO_F1 if all(len(value) == 2 for value in values) else MetricKind.OTHER


def _is_close(computed: float, reported: float) -> bool:
    return abs(computed - reported) <= CLOSE * max(1.0, abs(computed), abs(reported))


def _spec(task: str, key: str, kind: MetricKind, **more: Any) -> MetricSpec:
    name, _, ensemble = key.partition(",")
    return MetricSpec(task=task, name=name, filter=ensemble, kind=kind, is_primary=False, **more)


Columns = Mapping[tuple[str, str], Sequence[Any]]
"""A metric's scores by task and "metric,filter", in the order of the documents."""


def _columns(log: ArmLog) -> Columns:
    columns: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    for name, task in log.tasks.items():
        for entry in sorted(task.entries, key=lambda entry: -1 if entry.doc_id is None else entry.doc_id):
            for key, value in entry.scores.items():
                columns[name, key].append(value)
    return columns


Logs = tuple[ArmLog, ArmLog]


class _MetricTable:
    """Every metric in the order of lm-eval's table, with one primary a benchmark; and what had to be assumed."""

    def __init__(self, logs: Logs, tasks: Sequence[TaskSpec], catalog: Catalog) -> None:
        self.findings: list[ImportFinding] = []
        self._logs, self._catalog = logs, catalog
        self._tasks = {task.name: task for task in tasks}
        self._columns = tuple(map(_columns, logs))
        self._of_task = {name: self._task_rows(name) for name in self._tasks}
        groups = logs[0].run.groups.items()
        self._groups = {name: members for name, members in groups if set(members) <= set(self._tasks)}

    def metrics(self) -> tuple[MetricSpec, ...]:
        """List groups by name, each before its tasks by name; then the tasks of no group."""
        order: dict[str, None] = {}
        for name, members in sorted(self._groups.items()):
            order |= dict.fromkeys([name, *sorted(members)])
        order |= dict.fromkeys(sorted(self._tasks))
        tables = (self._of_task[name] if name in self._tasks else self._group_rows(name) for name in order)
        rows = {row.id: row for table in tables for _, row in sorted(table.items())}
        primary = set(self._primaries(rows))
        return tuple(replace(row, is_primary=row.id in primary) for row in rows.values())

    def _task_rows(self, name: str) -> dict[str, MetricSpec]:
        keys = dict.fromkeys(key for log in self._logs for entry in log.tasks[name].entries for key in entry.scores)
        better = self._logs[0].run.task(name).higher_is_better
        return {
            key: _spec(
                name,
                key,
                self._kind(name, key),
                exercises_drafter=self._tasks[name].kind is RequestKind.GENERATION,
                higher_is_better=better.get(key.partition(",")[0], True),
            )
            for key in keys
        }

    def _kind(self, task: str, key: str) -> MetricKind:
        if spec := self._told(f"{task}/{key}"):
            return spec.kind
        both = [value for columns in self._columns for value in columns[task, key]]
        known = self._catalog.hints(task).kind(key)
        if known is not None and fits(known, both):
            return known
        kind = guessed_kind(both)
        checked = [
            (reported, computed)
            for log, columns in zip(self._logs, self._columns, strict=True)
            if (reported := log.run.reported.get(task, {}).get(key)) is not None
            and (computed := aggregate_of(kind, columns[task, key])) is not None
            and sum(entry.repeat == 0 for entry in log.tasks[task].entries) >= (log.run.task(task).n_evaluated or 0)
        ]
        if not all(_is_close(*pair) for pair in checked):
            self._assume(f"{task}/{key}", Reason("scores-do-not-add-up"))
            return MetricKind.OTHER
        why = Reason("as-reported" if checked else "as-scores-look")
        self._assume(f"{task}/{key}", Reason("taken-for", {"kind": kind, "why": why}))
        return kind

    def _told(self, name: str) -> MetricSpec | None:
        """Look up a metric in both stored runs; None where they do not agree."""
        off, on = (log.run.metrics.get(name) for log in self._logs)
        return off if off and on and off.kind is on.kind else None

    def _assume(self, metric: str, what: Reason) -> None:
        self.findings.append(ImportFinding(code=FindingCode.ASSUMED, what=of(metric, what)))

    def _group_rows(self, name: str) -> dict[str, MetricSpec]:
        off, on = (
            [spec.key for spec in log.run.metrics.values() if spec.task == name] or list(log.run.reported.get(name, {}))
            for log in self._logs
        )
        rows = {}
        for key in (key for key in off if key in on):
            tables = (self._of_task[task] for task in self._groups[name])
            if members := [table[key] for table in tables if key in table]:
                rows[key] = _spec(
                    name,
                    key,
                    self._group_kind(name, key, members),
                    exercises_drafter=any(row.exercises_drafter for row in members),
                    higher_is_better=all(row.higher_is_better for row in members),
                    members=tuple(row.task for row in members),
                )
        return rows

    def _group_kind(self, name: str, key: str, members: Sequence[MetricSpec]) -> MetricKind:
        """Weight tasks by size where that gives the log's own value, or the group is known: a log may be cut."""
        if spec := self._told(f"{name}/{key}"):
            return spec.kind
        reported = self._logs[0].run.reported[name][key]
        columns = {spec.task: self._columns[0][spec.task, key] for spec in members}
        totals = {spec.task: aggregate_of(spec.kind, columns[spec.task]) for spec in members}
        values = {task: value for task, value in totals.items() if value is not None}
        if len(values) == len(members):
            sizes = {task: len(column) for task, column in columns.items()}
            if _is_close(group_mean(values, sizes, by_size=True), reported):
                return MetricKind.GROUP_MEAN
            if _is_close(group_mean(values, sizes, by_size=False), reported):
                self._assume(f"{name}/{key}", Reason("mean-of-tasks"))
                return MetricKind.OTHER
        if name in self._catalog.owners:
            return MetricKind.GROUP_MEAN
        self._assume(f"{name}/{key}", Reason("tasks-do-not-add-up"))
        return MetricKind.OTHER

    def _primaries(self, rows: Mapping[str, MetricSpec]) -> Iterator[str]:
        """Choose each benchmark's primary in the catalog, else the first testable metric of the group or a task."""
        if told := [name for name in rows if (spec := self._told(name)) and spec.is_primary]:
            yield from told
            return
        by_benchmark: dict[str, list[str]] = {}
        for task in self._tasks.values():
            by_benchmark.setdefault(task.benchmark, []).append(task.name)
        for benchmark in self._catalog.deciding(by_benchmark):
            tasks = by_benchmark[benchmark]
            owner = self._catalog.owners.get(tasks[0], "")
            preferred = [name for name in self._catalog.preferred(owner) if name in rows]
            group = [row for row in rows.values() if row.task == benchmark and benchmark not in self._tasks]
            in_own_order = (*group, *(row for task in tasks for row in self._of_task[task].values()))
            tested = (row.id for row in in_own_order if row.kind is not MetricKind.OTHER)
            if chosen := next(iter(preferred), None) or next(tested, None):
                yield chosen


def exported_plan(baseline: LoggedRun, candidate: LoggedRun) -> Plan | None:
    """Read the plan of the comparison whose two arms these logs are; None where they are not, or it is not whole."""
    document, arms = baseline.plan, [run.exported_from.rpartition("/") for run in (baseline, candidate)]
    are_its_arms = arms[0][0] == arms[1][0] and [arm[2] for arm in arms] == list(ArmName)
    if document is None or not are_its_arms or baseline.plan_hash != candidate.plan_hash:
        return None
    try:
        plan: Plan = TypeAdapter(Plan).validate_python(document)
    except ValidationError:
        return None
    return plan if baseline.plan_hash in (plan_hash(plan), sha256(canonical_json(document))) else None


def adopted(plan: Plan) -> Plan:
    """Reduce a run's plan to what its export holds: every item once, without looks, a noise floor, or pins."""
    sampling = replace(plan.sampling, repeats=1)
    return replace(plan, looks=None, noise_floor=None, drafter_costs=None, pins=Pins(), sampling=sampling)


def made_plan(
    logs: Logs, joined: Mapping[str, Sequence[Match]], catalog: Catalog, rule: DecisionRule
) -> tuple[Plan, list[ImportFinding]]:
    """Make a plan from the logs; also findings of what had to be assumed."""
    baseline, candidate = logs
    run = baseline.run
    tasks = tuple(_task_spec(name, baseline, matches, catalog) for name, matches in joined.items())
    table = _MetricTable(logs, tasks, catalog)
    plan = Plan(
        suite="imported",
        requested=tuple(dict.fromkeys(_largest_group(task.name, run) for task in tasks)),
        tasks=tasks,
        metrics=table.metrics(),
        sampling=SamplingPlan(
            model=candidate.run.model or run.model or UNKNOWN,
            api=Api.CHAT if any(entries.is_chat for entries in baseline.tasks.values()) else Api.COMPLETIONS,
            gen_kwargs=dict(run.gen_kwargs),
            seed=1234 if run.seed is None else run.seed,
            repeats=1 + max((match.content.repeat for matches in joined.values() for match in matches), default=0),
            system_instruction=run.settings.get("system instruction", ""),
        ),
        policy=RequestPolicy(),
        rule=replace(rule, allow_unobserved=True),
        limit=run.limit,
        num_fewshot=None,
        harness_version=run.harness_version or UNKNOWN,
    )
    return plan, table.findings


def value_findings(logs: Logs, plan: Plan) -> Iterator[ImportFinding]:
    """Find where a log's own aggregates are not those of its rows."""
    for arm, log in zip(ArmName, logs, strict=True):
        columns = _columns(log)
        for spec in plan.metrics:
            reported = log.run.reported.get(spec.task, {}).get(spec.key)
            computed = None if spec.members else aggregate_of(spec.kind, columns[spec.task, spec.key])
            if reported is not None and computed is not None and not _is_close(computed, reported):
                both = {"arm": arm, "reported": reported, "computed": computed}
                yield ImportFinding(code=FindingCode.VALUES, what=of(spec.id, Reason("values-differ", both)))


def _task_spec(name: str, log: ArmLog, matches: Sequence[Match], catalog: Catalog) -> TaskSpec:
    entries, logged, hints = log.tasks[name], log.run.task(name), catalog.hints(name)
    n_items = len({(match.content.key, match.content.doc_id) for match in matches})
    return TaskSpec(
        name=name,
        benchmark=hints.benchmark or _largest_group(name, log.run),
        kind=entries.kind,
        version=logged.version,
        config_hash=sha256(canonical_json(logged.config)) if logged.config else "",
        data_hash=sha256(b"".join(sorted({match.content.key for match in matches}))),
        dataset=logged.dataset,
        revision=UNKNOWN,
        num_fewshot=logged.num_fewshot or 0,
        n_items=n_items,
        n_available=max(logged.n_available or 0, n_items),
        cluster_field="+".join(entries.cluster),
        n_choices=hints.choices,
    )


def _largest_group(task: str, run: LoggedRun) -> str:
    groups = [name for name, members in run.groups.items() if task in members]
    return max(groups, key=lambda name: (len(run.groups[name]), name), default=task)

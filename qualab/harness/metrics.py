"""The rows of a report: which metrics tasks and groups have, in lm-eval's order, and which of them decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask

from qualab.harness.building import Built
from qualab.harness.catalog import Catalog, TaskHints
from qualab.model.names import MetricKind, RequestKind
from qualab.model.plan import MetricSpec, TaskSpec

ZERO_OR_ONE: Mapping[str, frozenset[str]] = {
    "multiple_choice": frozenset({"acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match"}),
    "loglikelihood": frozenset({"acc"}),
    "generate_until": frozenset({"exact_match"}),
}
"""Metrics that lm-eval's own process_results can only score 0 or 1, by output type."""


def task_keys(task: Any) -> list[str]:
    """A task's "metric,filter" keys in the order in which lm-eval scores them."""
    return [f"{metric},{ensemble.name}" for ensemble in task._filters for metric in task.aggregation()]


def metric_specs(built: Built, specs: Mapping[str, TaskSpec], hints: Mapping[str, TaskHints]) -> tuple[MetricSpec, ...]:
    """Every row of lm-eval's table, in its order. None is primary yet."""
    rows: dict[str, MetricSpec] = {}
    for name in table_order(built):
        own = _task_rows(name, built, specs, hints) if name in built.tasks else _group_rows(name, built, specs)
        rows.update((row.id, row) for row in sorted(own, key=lambda row: row.key))
    return tuple(rows.values())


def table_order(built: Built) -> Iterator[str]:
    """Groups by name, each before its members by name; then the tasks of no group."""
    children = {name: sorted(group.child_names) for name, group in built.groups.items()}
    inner = {child for names in children.values() for child in names}

    def walk(name: str) -> Iterator[str]:
        yield name
        for child in children.get(name, ()):
            yield from walk(child)

    for root in sorted(set(children) - inner):
        yield from walk(root)
    yield from sorted(set(built.tasks) - inner)


def _task_rows(
    name: str, built: Built, specs: Mapping[str, TaskSpec], hints: Mapping[str, TaskHints]
) -> Iterator[MetricSpec]:
    task = built.tasks[name]
    for key in task_keys(task):
        metric, _, ensemble = key.partition(",")
        yield MetricSpec(
            task=name,
            name=metric,
            filter=ensemble,
            kind=hints[name].kind(key) or known_kind(task, metric, ensemble),
            is_primary=False,
            exercises_drafter=specs[name].kind is RequestKind.GENERATION,
            higher_is_better=bool(task.higher_is_better().get(metric, True)),
        )


def known_kind(task: Any, metric: str, ensemble: str) -> MetricKind:
    """BINARY_MEAN where lm-eval's code allows nothing else, OTHER everywhere else: no guess from names."""
    config = task.config
    is_plain = type(task).process_results is ConfigurableTask.process_results and config.process_results is None
    averaged = task.aggregation().get(metric) is mean
    one_answer = config.output_type != "generate_until" or _ends_with_one_answer(config, ensemble)
    is_binary = metric in ZERO_OR_ONE.get(str(config.output_type), ())
    return MetricKind.BINARY_MEAN if is_plain and averaged and one_answer and is_binary else MetricKind.OTHER


def _ends_with_one_answer(config: Any, ensemble: str) -> bool:
    pipelines = {one["name"]: one["filter"] for one in config.filter_list or ()}
    return ensemble not in pipelines or pipelines[ensemble][-1]["function"] == "take_first"


def _group_rows(name: str, built: Built, specs: Mapping[str, TaskSpec]) -> Iterator[MetricSpec]:
    group = built.groups[name]
    leaves = [task.task_name for task in group.get_all_tasks()]
    keys = {leaf: set(task_keys(built.tasks[leaf])) for leaf in leaves}
    for wanted in group.aggregate_metric_list or ():
        for ensemble in wanted.filter_list or _filters(wanted.metric, keys.values()):
            key = f"{wanted.metric},{ensemble}"
            members = tuple(leaf for leaf in leaves if key in keys[leaf])
            if members:
                yield MetricSpec(
                    task=name,
                    name=wanted.metric,
                    filter=ensemble,
                    kind=MetricKind.GROUP_MEAN if wanted.weight_by_size else MetricKind.OTHER,
                    is_primary=False,
                    exercises_drafter=any(specs[leaf].kind is RequestKind.GENERATION for leaf in members),
                    higher_is_better=_direction(wanted.metric, [built.tasks[leaf] for leaf in members]),
                    members=members,
                )


def _filters(metric: str, keys: Iterable[set[str]]) -> list[str]:
    return sorted({key.partition(",")[2] for group in keys for key in group if key.partition(",")[0] == metric})


def _direction(metric: str, tasks: Sequence[Any]) -> bool:
    return all(task.higher_is_better().get(metric, True) for task in tasks)


def with_primaries(
    rows: Sequence[MetricSpec], built: Built, specs: Mapping[str, TaskSpec], catalog: Catalog
) -> tuple[MetricSpec, ...]:
    """Marks one primary a benchmark that the catalog knows, else one for every task or group that was asked for."""
    ids = {row.id for row in rows}
    primary: set[str] = set()
    for benchmark in dict.fromkeys(spec.benchmark for spec in specs.values()):
        entry = catalog.benchmarks.get(benchmark)
        preferred = next((one for one in entry.primary if one in ids), None) if entry else None
        own = [spec.name for spec in specs.values() if spec.benchmark == benchmark]
        primary.update([preferred] if preferred else _first_metrics(own, built, rows))
    return tuple(replace(row, is_primary=row.id in primary) for row in rows)


def _first_metrics(tasks: Sequence[str], built: Built, rows: Sequence[MetricSpec]) -> Iterator[str]:
    """The first metric of each name that was asked for; of each member where a group has none of its own."""
    ids = {row.id for row in rows}
    grouped = {row.task: row.id for row in reversed(rows) if row.task in built.groups}
    for task in tasks:
        asked_as = built.asked_as[task]
        first = next(f"{task}/{key}" for key in task_keys(built.tasks[task]))
        chosen = grouped.get(asked_as, first)
        if chosen in ids:
            yield chosen

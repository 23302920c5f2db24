"""Loads lm-eval tasks: their documents, their metrics in the order of its table, and which of these decide."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask

from qualab.errors import BrokenTask, EmptyDataset, HarnessError, InvalidValue
from qualab.harness.building import Built, build, check_scoring, index, resolve, shots
from qualab.harness.catalog import Catalog, TaskHints, hints_from_metadata, read_catalog
from qualab.harness.patching import config_hash, data_hash, keep_compiled_templates, quiet, reseed, restored_randomness
from qualab.harness.rendering import LoadedTask, overridden, render
from qualab.harness.scoring import Note, Scorer, results_document
from qualab.harness.sources import Sources, label
from qualab.model.items import Item, JsonObject, Reply
from qualab.model.names import MetricKind, RequestKind
from qualab.model.plan import MetricSpec, TaskSpec
from qualab.model.ports import TaskOptions


class LmEvalTasks:
    """Tasks with their documents, ready to render and to score."""

    def __init__(
        self,
        *,
        suite: str,
        loaded: Mapping[str, LoadedTask],
        built: Built,
        metrics: tuple[MetricSpec, ...],
        applies_chat_template: bool,
        seed: int,
        system_instruction: str,
        note: Note,
    ) -> None:
        self.suite = suite
        self.tasks = tuple(task.spec for task in loaded.values())
        self.metrics = metrics
        self.applies_chat_template = applies_chat_template
        self.harness_version = version("lm_eval")
        self._loaded = dict(loaded)
        self._built = built
        self._seed = seed
        self._system_instruction = system_instruction
        self._scorers = {name: Scorer(task, note) for name, task in self._loaded.items()}

    def render(self) -> Iterator[Item]:
        """Every item with its prompts, in task and document order. Raises BrokenTask."""
        start = 0
        for loaded in self._loaded.values():
            yield from render(
                loaded,
                seed=self._seed,
                system_instruction=self._system_instruction,
                as_chat=self.applies_chat_template,
                start=start,
            )
            start += len(loaded.docs)

    def score(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> list[dict[str, Any]]:
        """Per-item values by "metric,filter", in the order of `answered`. Raises HarnessError."""
        if task not in self._scorers:
            raise HarnessError(f"Task {task} is not loaded")
        return self._scorers[task].score(answered)

    def aggregate(self, values: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, float]]:
        """Task and group values by lm-eval's aggregations. Raises HarnessError."""
        with quiet():
            rows = {name: self._task_row(name, columns) for name, columns in values.items()}
            groups = {name: group.aggregate(rows) for name, group in self._built.groups.items()}
        everything, aggregated = {**rows, **groups}, {}
        for name in table_order(self._built):
            row = everything.get(name, {})
            if kept := {key: value for key, value in row.items() if "," in key and "_stderr," not in key}:
                aggregated[name] = kept
        return aggregated

    def extracted(
        self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]
    ) -> Iterator[tuple[str, Sequence[Any]]]:
        """What each filter takes out of every entry's answers. Raises HarnessError."""
        return self._scorers[task].extracted(answered)

    def samples(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> Iterator[JsonObject]:
        """The rows that lm-eval's --log_samples writes. Raises HarnessError."""
        return self._scorers[task].samples(answered)

    def results(self, answered: Mapping[str, Sequence[tuple[Item, Sequence[Reply]]]]) -> JsonObject:
        """lm-eval's results document of these answers by task. Raises HarnessError."""
        values = {name: self.score(name, entries) for name, entries in answered.items()}
        return results_document(self._built.groups, self._loaded, values)

    def _task_row(self, name: str, columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """As lm_eval.evaluator_utils computes it, without its bootstrap."""
        if name not in self._loaded:
            raise HarnessError(f"Task {name} is not loaded")
        functions = self._loaded[name].task.aggregation()
        row: dict[str, Any] = {"sample_len": max((len(column) for column in columns.values()), default=0)}
        for key, column in columns.items():
            if column:
                row[key] = float(functions.get(key.partition(",")[0], mean)(column))
        return row


CUSTOM = "custom"

KINDS = {
    "generate_until": RequestKind.GENERATION,
    "multiple_choice": RequestKind.LOGLIKELIHOOD,
    "loglikelihood": RequestKind.LOGLIKELIHOOD,
}

_one_at_a_time = threading.RLock()
"""Loading replaces functions of lm-eval for its time."""


def load_tasks(options: TaskOptions, *, tasks_dir: Path, note: Note | None = None) -> LmEvalTasks:
    """Reads data, and touches no network where a data directory is given. `note` is told what is being scored.

    Raises InvalidValue, UnknownTask, BrokenTask, DatasetUnavailable, BadDataFile, EmptyDataset, ScoringUnavailable,
    TooManyTasks.
    """
    _check(options)
    catalog = read_catalog(tasks_dir)
    sources = Sources(catalog=catalog, tasks_dir=tasks_dir, data_dir=options.data_dir, planned=options.revisions)
    keep_compiled_templates()
    with _one_at_a_time, quiet(), restored_randomness():
        reseed(str(options.seed))  # a task's process_docs may shuffle
        names = catalog.expand(options.names)
        manager = index(
            names,
            catalog=catalog,
            tasks_dir=tasks_dir,
            include_paths=options.include_paths,
            most_tasks=options.most_tasks,
        )
        found = resolve(manager, names)
        built = build(manager, found, sources=sources, num_fewshot=options.num_fewshot, most_tasks=options.most_tasks)
        hints = {
            name: hints_from_metadata(name, task.config.metadata).over(catalog.hints(name))
            for name, task in built.tasks.items()
        }
        loaded = {
            name: _loaded(task, options, hints[name], sources, asked_as=built.asked_as[name])
            for name, task in built.tasks.items()
        }
        for one in loaded.values():
            check_scoring(one.task, one.docs, data_dir=options.data_dir)
    specs = {name: one.spec for name, one in loaded.items()}
    suite = options.names[0] if len(set(options.names)) == 1 and options.names[0] in catalog.suites else CUSTOM
    by_suite = catalog.suites[suite].apply_chat_template if suite != CUSTOM else False
    return LmEvalTasks(
        suite=suite,
        loaded=loaded,
        built=built,
        metrics=with_primaries(metric_specs(built, specs, hints), built, specs, catalog),
        applies_chat_template=by_suite if options.apply_chat_template is None else options.apply_chat_template,
        seed=options.seed,
        system_instruction=options.system_instruction,
        note=note or (lambda _item, _step: None),
    )


def _check(options: TaskOptions) -> None:
    if not options.names:
        raise InvalidValue(
            "No task is named",
            hint="Name tasks or a suite with --tasks",
            fields={"tasks": "must name tasks or a suite"},
        )
    if options.limit is not None and not (math.isfinite(options.limit) and options.limit > 0):
        raise InvalidValue(
            f"limit is {options.limit}, and must be more than 0",
            hint="Items a task, or a fraction below 1; leave it out to ask all",
        )
    if options.num_fewshot is not None and options.num_fewshot < 0:
        raise InvalidValue(f"num_fewshot is {options.num_fewshot}", hint="Give 0 or more")
    for name, path in [("data_dir", options.data_dir), *(("include_path", path) for path in options.include_paths)]:
        if path is not None and not path.is_dir():
            raise InvalidValue(f"{name} {path} is not a directory", hint=f"Correct --{name.replace('_', '-')}")


def _loaded(task: Any, options: TaskOptions, hints: TaskHints, sources: Sources, *, asked_as: str) -> LoadedTask:
    name = str(task.task_name)
    kind = _kind(task)
    if kind is RequestKind.GENERATION and options.gen_kwargs:
        task.set_config("generation_kwargs", overridden(task.config.generation_kwargs or {}, options.gen_kwargs))
    task.set_config("num_fewshot", shots(task.config.num_fewshot, options.num_fewshot))
    available = task.task_docs if hasattr(task, "task_docs") else task.eval_docs
    docs = list(islice(available, n_asked(len(available), options.limit)))
    if not docs:
        raise EmptyDataset(f"Task {name} has no items", hint="Check its data set")
    plain_docs = [_plain(doc) for doc in docs]
    cluster = _cluster(name, hints, plain_docs[0])
    spec = TaskSpec(
        name=name,
        benchmark=hints.benchmark or asked_as,
        kind=kind,
        version=str(task.VERSION),
        config_hash=config_hash(task),
        data_hash=data_hash(plain_docs),
        dataset=label(task.config.dataset_path, task.config.dataset_name),
        revision=sources.revision(name),
        num_fewshot=task.config.num_fewshot,
        n_items=len(docs),
        n_available=len(available),
        cluster_field="+".join(cluster),
        n_choices=hints.choices,
    )
    return LoadedTask(spec=spec, task=task, docs=docs, plain_docs=plain_docs, cluster=cluster)


def _kind(task: Any) -> RequestKind:
    """Raises BrokenTask for what qualab does not ask."""
    refused = {
        f"asks requests of the kind {task.config.output_type}": task.config.output_type not in KINDS,
        f"asks each item {task.config.repeats} times": (task.config.repeats or 1) > 1,
        "shows images or sounds": getattr(task, "MULTIMODAL", False),
        "runs code that a model wrote": getattr(task, "UNSAFE_CODE", False),
    }
    for reason, holds in refused.items():
        if holds:
            raise BrokenTask(f"Task {task.task_name} {reason}, which qualab does not do", hint="Leave it out")
    return KINDS[task.config.output_type]


def n_asked(n_available: int, limit: float | None) -> int:
    """Items that lm-eval's --limit leaves: a number, or a fraction below 1, rounded up."""
    if limit is None:
        return n_available
    return min(n_available, math.ceil(n_available * limit) if limit < 1 else int(limit))


def _plain(doc: Mapping[str, Any]) -> JsonObject:
    """The document as JSON would give it back; the same object where it is JSON already."""
    foreign: list[Any] = []

    def as_text(value: Any) -> str:
        foreign.append(value)
        return str(value)

    text = json.dumps(doc, default=as_text)
    return json.loads(text) if foreign or not isinstance(doc, dict) else doc


def _cluster(name: str, hints: TaskHints, doc: Mapping[str, Any]) -> tuple[str, ...]:
    fields = hints.cluster or ()
    missing = [field for field in fields if field not in doc]
    if missing:
        raise BrokenTask(f"Task {name} has no field {', '.join(missing)} to cluster by", hint="Correct `cluster`")
    return fields


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
                    higher_is_better=all(
                        built.tasks[leaf].higher_is_better().get(wanted.metric, True) for leaf in members
                    ),
                    members=members,
                )


def _filters(metric: str, keys: Iterable[set[str]]) -> list[str]:
    return sorted({key.partition(",")[2] for group in keys for key in group if key.partition(",")[0] == metric})


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

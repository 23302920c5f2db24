"""Loaded tasks: `qualab.model.ports.LoadedTasks` over lm-eval."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from lm_eval.api.metrics import mean

from qualab.errors import BrokenTask, EmptyDataset, HarnessError, InvalidValue
from qualab.harness.building import Built, build, check_scoring, index, resolve, shots
from qualab.harness.catalog import Catalog, TaskHints, hints_from_metadata, read_catalog
from qualab.harness.exporting import results_document, sample_rows
from qualab.harness.metrics import metric_specs, table_order, with_primaries
from qualab.harness.patching import config_hash, data_hash, keep_compiled_templates, quiet, reseed, restored_randomness
from qualab.harness.rendering import LoadedTask, overridden, render
from qualab.harness.scoring import Note, Scorer, unnoted
from qualab.harness.sources import Sources, label
from qualab.model.items import Item, JsonObject, Reply
from qualab.model.names import RequestKind
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
        note: Note = unnoted,
    ) -> None:
        self._suite = suite
        self._loaded = dict(loaded)
        self._built = built
        self._metrics = metrics
        self._applies_chat_template = applies_chat_template
        self._seed = seed
        self._system_instruction = system_instruction
        self._scorers = {name: Scorer(task, note) for name, task in self._loaded.items()}

    @property
    def suite(self) -> str:
        return self._suite

    @property
    def applies_chat_template(self) -> bool:
        return self._applies_chat_template

    @property
    def tasks(self) -> tuple[TaskSpec, ...]:
        return tuple(task.spec for task in self._loaded.values())

    @property
    def metrics(self) -> tuple[MetricSpec, ...]:
        return self._metrics

    @cached_property
    def harness_version(self) -> str:
        return version("lm_eval")

    def render(self) -> Iterator[Item]:
        """Every item with its prompts, in task and document order. Raises BrokenTask."""
        start = 0
        for loaded in self._loaded.values():
            yield from render(
                loaded,
                seed=self._seed,
                system_instruction=self._system_instruction,
                as_chat=self._applies_chat_template,
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
            groups = {name: _group_row(group, rows) for name, group in self._built.groups.items()}
        found = {**rows, **groups}
        keyed = {name: {key: value for key, value in found.get(name, {}).items() if "," in key} for name in self._order}
        return {name: row for name, row in keyed.items() if row}

    def extracted(
        self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]
    ) -> Iterator[tuple[str, Sequence[Any]]]:
        """What each filter takes out of every entry's answers. Raises HarnessError."""
        return self._scorers[task].extracted(answered)

    def samples(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> Iterator[JsonObject]:
        """The rows that lm-eval's --log_samples writes. Raises HarnessError."""
        return sample_rows(self._scorers[task], answered)

    def results(self, answered: Mapping[str, Sequence[tuple[Item, Sequence[Reply]]]]) -> JsonObject:
        """lm-eval's results document of these answers by task. Raises HarnessError."""
        values = {name: self.score(name, entries) for name, entries in answered.items()}
        return results_document(self._built, self._loaded, values)

    @cached_property
    def _order(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table_order(self._built)))

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


def _group_row(group: Any, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in group.aggregate(rows).items() if "_stderr," not in key}


CUSTOM = "custom"

KINDS = {
    "generate_until": RequestKind.GENERATION,
    "multiple_choice": RequestKind.LOGLIKELIHOOD,
    "loglikelihood": RequestKind.LOGLIKELIHOOD,
}

_one_at_a_time = threading.RLock()
"""Loading replaces functions of lm-eval for its time."""


def load_tasks(options: TaskOptions, *, tasks_dir: Path, note: Note | None = None) -> LmEvalTasks:
    """Raises what `LmEvalHarness.load` says."""
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
        hints = {name: _hints(name, task, catalog) for name, task in built.tasks.items()}
        loaded = {
            name: _loaded(task, options, hints[name], sources, asked_as=built.asked_as[name])
            for name, task in built.tasks.items()
        }
        for one in loaded.values():
            check_scoring(one.task, one.docs, data_dir=options.data_dir)
    return _assembled(options, catalog, built, loaded, hints, note=note or unnoted)


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


def _hints(name: str, task: Any, catalog: Catalog) -> TaskHints:
    return hints_from_metadata(name, task.config.metadata).over(catalog.hints(name))


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


def _assembled(
    options: TaskOptions,
    catalog: Catalog,
    built: Built,
    loaded: Mapping[str, LoadedTask],
    hints: Mapping[str, TaskHints],
    *,
    note: Note,
) -> LmEvalTasks:
    specs = {name: one.spec for name, one in loaded.items()}
    suite = _suite(options.names, catalog)
    by_suite = catalog.suites[suite].apply_chat_template if suite != CUSTOM else False
    return LmEvalTasks(
        suite=suite,
        loaded=loaded,
        built=built,
        metrics=with_primaries(metric_specs(built, specs, hints), built, specs, catalog),
        applies_chat_template=by_suite if options.apply_chat_template is None else options.apply_chat_template,
        seed=options.seed,
        system_instruction=options.system_instruction,
        note=note,
    )


def _suite(names: Sequence[str], catalog: Catalog) -> str:
    distinct = set(names)
    return names[0] if len(distinct) == 1 and names[0] in catalog.suites else CUSTOM

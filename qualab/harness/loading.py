"""Loads lm-eval tasks: their documents, their metrics in the order of its table, and which of these decide."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import logging
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import lm_eval.utils
from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask

from qualab.errors import BrokenTask, InvalidValue
from qualab.harness.building import Builder, check_scoring, no_items, shots
from qualab.harness.catalog import Catalog, TaskHints, hints_from_metadata, read_catalog
from qualab.harness.sources import LOCAL, Sources, label
from qualab.harness.tasks import LmEvalTasks, LoadedTask, Note, overridden, reseed
from qualab.model.items import JsonObject
from qualab.model.names import MetricKind, RequestKind
from qualab.model.plan import MetricSpec, TaskSpec
from qualab.model.ports import TaskOptions

CUSTOM = "custom"
KINDS = {
    "generate_until": RequestKind.GENERATION,
    "multiple_choice": RequestKind.LOGLIKELIHOOD,
    "loglikelihood": RequestKind.LOGLIKELIHOOD,
}
ZERO_OR_ONE: Mapping[str, frozenset[str]] = {
    "multiple_choice": frozenset({"acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match"}),
    "loglikelihood": frozenset({"acc"}),
    "generate_until": frozenset({"exact_match"}),
}
"""Metrics that lm-eval's own process_results can only score 0 or 1, by output type."""


def load_tasks(options: TaskOptions, *, tasks_dir: Path, note: Note = lambda _item, _step: None) -> LmEvalTasks:
    """Reads data, and touches no network where a data directory is given. `note` is told what is being scored.

    Raises InvalidValue, UnknownTask, BrokenTask, DatasetUnavailable, BadDataFile, EmptyDataset, ScoringUnavailable,
    TooManyTasks.
    """
    _check(options)
    prepare_process()
    reseed(str(options.seed))  # a task's process_docs may shuffle
    catalog = read_catalog(tasks_dir)
    sources = Sources(catalog=catalog, tasks_dir=tasks_dir, data_dir=options.data_dir, planned=options.revisions)
    builder = Builder(options, catalog=catalog, tasks_dir=tasks_dir, sources=sources)
    builder.build()
    hints = {
        name: hints_from_metadata(name, task.config.metadata).over(catalog.hints(name))
        for name, task in builder.tasks.items()
    }
    loaded = {
        name: _loaded(
            task, options, hints[name], asked_as=builder.asked_as[name], revision=sources.commits.get(name, LOCAL)
        )
        for name, task in builder.tasks.items()
    }
    for one in loaded.values():
        check_scoring(one.task, one.docs, data_dir=options.data_dir)
    suite = options.names[0] if len(set(options.names)) == 1 and options.names[0] in catalog.suites else CUSTOM
    by_suite = catalog.suites[suite].apply_chat_template if suite != CUSTOM else False
    rows = list(_metric_specs(loaded, builder.groups, hints))
    primary = _primaries(rows, builder, loaded, catalog)
    return LmEvalTasks(
        suite=suite,
        loaded=loaded,
        groups=builder.groups,
        metrics=tuple(replace(row, is_primary=row.id in primary) for row in rows),
        applies_chat_template=by_suite if options.apply_chat_template is None else options.apply_chat_template,
        seed=options.seed,
        system_instruction=options.system_instruction,
        note=note,
    )


def _check(options: TaskOptions) -> None:
    if not options.names:
        raise InvalidValue(
            "No task is named",
            hint="Name tasks or a suite with --tasks",
            fields={"tasks": "must name tasks or a suite"},
        )
    if options.limit is not None and not (math.isfinite(options.limit) and options.limit > 0):
        hint = "Items a task, or a fraction below 1; leave it out to ask all"
        raise InvalidValue(f"limit is {options.limit}, and must be more than 0", hint=hint)
    if options.num_fewshot is not None and options.num_fewshot < 0:
        raise InvalidValue(f"num_fewshot is {options.num_fewshot}", hint="Give 0 or more")
    for name, path in [("data_dir", options.data_dir), *(("include_path", path) for path in options.include_paths)]:
        if path is not None and not path.is_dir():
            raise InvalidValue(f"{name} {path} is not a directory", hint=f"Correct --{name.replace('_', '-')}")


def _loaded(task: Any, options: TaskOptions, hints: TaskHints, *, asked_as: str, revision: str) -> LoadedTask:
    name, config = str(task.task_name), task.config
    refused = {
        f"asks requests of the kind {config.output_type}": config.output_type not in KINDS,
        f"asks each item {config.repeats} times": (config.repeats or 1) > 1,
        "shows images or sounds": getattr(task, "MULTIMODAL", False),
        "runs code that a model wrote": getattr(task, "UNSAFE_CODE", False),
    }
    if reason := next((reason for reason, holds in refused.items() if holds), ""):
        raise BrokenTask(f"Task {name} {reason}, which qualab does not do", hint="Leave it out")
    kind = KINDS[config.output_type]
    if kind is RequestKind.GENERATION and options.gen_kwargs:
        task.set_config("generation_kwargs", overridden(config.generation_kwargs or {}, options.gen_kwargs))
    task.set_config("num_fewshot", shots(config.num_fewshot, options.num_fewshot))
    available = task.task_docs if hasattr(task, "task_docs") else task.eval_docs
    docs = list(islice(available, _n_asked(len(available), options.limit)))
    if not docs:
        raise no_items(name)
    plain_docs = [_plain(doc) for doc in docs]
    cluster = hints.cluster or ()
    if missing := [field for field in cluster if field not in plain_docs[0]]:
        raise BrokenTask(f"Task {name} has no field {', '.join(missing)} to cluster by", hint="Correct `cluster`")
    spec = TaskSpec(
        name=name,
        benchmark=hints.benchmark or asked_as,
        kind=kind,
        version=str(task.VERSION),
        config_hash=config_hash(task),
        data_hash=data_hash(plain_docs),
        dataset=label(task.config.dataset_path, task.config.dataset_name),
        revision=revision,
        num_fewshot=task.config.num_fewshot,
        n_items=len(docs),
        n_available=len(available),
        cluster_field="+".join(cluster),
        n_choices=hints.choices,
    )
    return LoadedTask(spec=spec, task=task, docs=docs, plain_docs=plain_docs, cluster=cluster)


def _n_asked(n_available: int, limit: float | None) -> int:
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


def table_order(loaded: Mapping[str, LoadedTask], groups: Mapping[str, Any]) -> Iterator[str]:
    """The rows of lm-eval's table: groups by name, each before its members by name; then the tasks of no group."""
    children = {name: sorted(group.child_names) for name, group in groups.items()}
    inner = {child for names in children.values() for child in names}

    def walk(name: str) -> Iterator[str]:
        yield name
        for child in children.get(name, ()):
            yield from walk(child)

    for root in sorted(set(children) - inner):
        yield from walk(root)
    yield from sorted(set(loaded) - inner)


def _metric_specs(
    loaded: Mapping[str, LoadedTask], groups: Mapping[str, Any], hints: Mapping[str, TaskHints]
) -> Iterator[MetricSpec]:
    """Every row of lm-eval's table, in its order, once. None is primary yet."""
    for name in dict.fromkeys(table_order(loaded, groups)):
        rows = _task_rows(loaded[name], hints[name]) if name in loaded else _group_rows(name, groups[name], loaded)
        yield from sorted(rows, key=lambda row: row.key)


def _task_rows(one: LoadedTask, hints: TaskHints) -> Iterator[MetricSpec]:
    for key in one.metric_keys():
        metric, _, ensemble = key.partition(",")
        yield MetricSpec(
            task=one.spec.name,
            name=metric,
            filter=ensemble,
            kind=hints.kind(key) or _known_kind(one.task, metric, ensemble),
            is_primary=False,
            exercises_drafter=one.spec.kind is RequestKind.GENERATION,
            higher_is_better=bool(one.task.higher_is_better().get(metric, True)),
        )


def _known_kind(task: Any, metric: str, ensemble: str) -> MetricKind:
    """BINARY_MEAN where lm-eval's code allows nothing else, OTHER everywhere else: no guess from names."""
    config = task.config
    is_plain = type(task).process_results is ConfigurableTask.process_results and config.process_results is None
    is_averaged = task.aggregation().get(metric) is mean
    is_binary = metric in ZERO_OR_ONE.get(str(config.output_type), ())
    pipelines = {one["name"]: one["filter"] for one in config.filter_list or ()}
    one_answer = (
        config.output_type != "generate_until"
        or ensemble not in pipelines
        or pipelines[ensemble][-1]["function"] == "take_first"
    )
    return MetricKind.BINARY_MEAN if is_plain and is_averaged and one_answer and is_binary else MetricKind.OTHER


def _group_rows(name: str, group: Any, loaded: Mapping[str, LoadedTask]) -> Iterator[MetricSpec]:
    leaves = [loaded[task.task_name] for task in group.get_all_tasks()]
    for listed in group.aggregate_metric_list or ():
        keys = {key for leaf in leaves for key in leaf.metric_keys() if key.partition(",")[0] == listed.metric}
        for ensemble in listed.filter_list or sorted(key.partition(",")[2] for key in keys):
            members = [leaf for leaf in leaves if f"{listed.metric},{ensemble}" in leaf.metric_keys()]
            if members:
                yield MetricSpec(
                    task=name,
                    name=listed.metric,
                    filter=ensemble,
                    kind=MetricKind.GROUP_MEAN if listed.weight_by_size else MetricKind.OTHER,
                    is_primary=False,
                    exercises_drafter=any(leaf.spec.kind is RequestKind.GENERATION for leaf in members),
                    higher_is_better=all(leaf.task.higher_is_better().get(listed.metric, True) for leaf in members),
                    members=tuple(leaf.spec.name for leaf in members),
                )


def _primaries(
    rows: Sequence[MetricSpec], builder: Builder, loaded: Mapping[str, LoadedTask], catalog: Catalog
) -> set[str]:
    """One a benchmark that the catalog knows, else the first of every name that was asked for; of each member where a
    group has no metric of its own."""
    ids = {row.id for row in rows}
    of_groups = {row.task: row.id for row in reversed(rows) if row.task in builder.groups}
    primary: set[str] = set()
    for benchmark in dict.fromkeys(one.spec.benchmark for one in loaded.values()):
        preferred = catalog.benchmarks[benchmark].primary if benchmark in catalog.benchmarks else ()
        own = [one for one in loaded.values() if one.spec.benchmark == benchmark]
        firsts = [
            of_groups.get(builder.asked_as[one.spec.name], f"{one.spec.name}/{one.metric_keys()[0]}") for one in own
        ]
        primary.update([one for one in preferred if one in ids][:1] or ids.intersection(firsts))
    return primary


TEMPLATES_KEPT = 4_096


def prepare_process() -> None:
    """Silences lm-eval, makes it keep compiled templates, and refuses NLTK's downloads. For good."""
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL + 1)
    datasets.disable_progress_bars()
    environment = lm_eval.utils.env
    if not hasattr(environment.from_string, "cache_info"):
        environment.from_string = functools.lru_cache(maxsize=TEMPLATES_KEPT)(environment.from_string)
    # task modules call nltk.download when they are imported; importing nltk here would take seconds
    downloader: Any = ModuleType("nltk.downloader")
    downloader.download = downloader.download_shell = downloader.download_gui = lambda *_args, **_kwargs: False
    sys.modules["nltk.downloader"] = downloader
    if nltk := sys.modules.get("nltk"):
        nltk.download = downloader.download  # type: ignore[attr-defined]


OF_THIS_MACHINE = frozenset({"config_source", "data_files", "data_dir", "cache_dir"})
"""Keys that say where files lie here; what the files hold is in the hash of the documents."""


def config_hash(task: Any) -> str:
    """SHA-256 of the task's class and configuration, functions by the source of their module."""
    return data_hash([{"class": _hashable(type(task)), "config": _hashable(task.config)}])


def data_hash(docs: Iterable[JsonObject]) -> str:
    """SHA-256 of documents in their order."""
    digest = hashlib.sha256()
    for doc in docs:
        digest.update(json.dumps(doc, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def _hashable(value: Any) -> Any:
    """A value as JSON, without addresses of objects and without paths of this machine."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, functools.partial):
        return ["partial", _hashable(value.func), _hashable(value.args), _hashable(value.keywords)]
    if callable(value):
        return [getattr(value, "__qualname__", type(value).__qualname__), _source_hash(value)]
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _hashable(one) for key, one in value.items() if key not in OF_THIS_MACHINE}
    if isinstance(value, (list, tuple)):
        return [_hashable(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_hashable(one), sort_keys=True) for one in value)
    return [type(value).__qualname__, _hashable(getattr(value, "__dict__", {}))]


def _source_hash(function: Any) -> str:
    """Of the whole module, as a function's helpers decide too; of nothing where there is no source."""
    subject = inspect.unwrap(function) if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    try:
        file = inspect.getsourcefile(subject)
    except (TypeError, OSError):
        return ""
    return _file_hash(file) if file else ""


@functools.lru_cache(maxsize=256)
def _file_hash(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""

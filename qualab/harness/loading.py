"""Loads lm-eval tasks: their documents, their metrics in the order of its table, and which of these decide."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import hashlib
import inspect
import json
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import datasets
import lm_eval.api.task
import lm_eval.tasks
import lm_eval.utils
from lm_eval.api.metrics import mean
from lm_eval.api.registry import metric_registry
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.tasks._yaml_loader import load_yaml

from qualab.errors import (
    BadDataFile,
    BrokenTask,
    InvalidValue,
    QualabError,
    ScoringUnavailable,
)
from qualab.harness.catalog import (
    Catalog,
    TaskHints,
    check_names,
    declared_names,
    hints_from_metadata,
    is_pattern,
    is_task_file,
    read_catalog,
    unknown_task,
)
from qualab.harness.sources import LOCAL, Sources, label
from qualab.harness.tasks import LmEvalTasks, LoadedTask, Note, broken, overridden, reseed
from qualab.model.items import JsonObject
from qualab.model.names import MetricKind, RequestKind
from qualab.model.plan import MetricSpec, TaskSpec
from qualab.model.ports import TaskOptions

LM_EVAL_TASKS = Path(lm_eval.tasks.__file__).parent
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
    """Load tasks and their data, without network where a data directory is given. `note` is told what is scored.

    Raises InvalidValue, UnknownTask, BrokenTask, DatasetUnavailable, BadDataFile, ScoringUnavailable.
    """
    _check(options)
    _prepare_process()
    reseed(str(options.seed))  # a task's process_docs may shuffle
    catalog = read_catalog(tasks_dir)
    sources = Sources(catalog=catalog, tasks_dir=tasks_dir, data_dir=options.data_dir, planned=options.revisions)
    builder = _Builder(options, catalog=catalog, tasks_dir=tasks_dir, sources=sources)
    builder.build()
    hints = {
        name: hints_from_metadata(name, task.config.metadata).over(catalog.hints(name))
        for name, task in builder.tasks.items()
    }
    loaded = {}
    for name, task in builder.tasks.items():
        revision = sources.commits.get(name, LOCAL)
        loaded[name] = _loaded(task, options, hints[name], asked_as=builder.asked_as[name], revision=revision)
        _check_scoring(task, loaded[name].docs, data_dir=options.data_dir)
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
    task.set_config("num_fewshot", _shots(config.num_fewshot, options.num_fewshot))
    available = task.task_docs if hasattr(task, "task_docs") else task.eval_docs
    n_asked, limit = len(available), options.limit
    if limit is not None:  # lm-eval's: a number, or a fraction below 1, rounded up
        n_asked = min(n_asked, math.ceil(n_asked * limit) if limit < 1 else int(limit))
    docs = list(islice(available, n_asked))
    if not docs:
        raise _no_items(name)
    plain_docs = [_plain(doc) for doc in docs]
    cluster = hints.cluster or ()
    if missing := [field for field in cluster if field not in plain_docs[0]]:
        raise BrokenTask(f"Task {name} has no field {', '.join(missing)} to cluster by", hint="Correct `cluster`")
    spec = TaskSpec(
        name=name,
        benchmark=hints.benchmark or asked_as,
        kind=kind,
        version=str(task.VERSION),
        config_hash=_data_hash([{"class": _hashable(type(task)), "config": _hashable(task.config)}]),
        data_hash=_data_hash(plain_docs),
        dataset=label(task.config.dataset_path, task.config.dataset_name),
        revision=revision,
        num_fewshot=task.config.num_fewshot,
        n_items=len(docs),
        n_available=len(available),
        cluster_field="+".join(cluster),
        n_choices=hints.choices,
        prompt_tokens=hints.prompt_tokens,
    )
    return LoadedTask(spec=spec, task=task, docs=docs, plain_docs=plain_docs, cluster=cluster)


def _plain(doc: Mapping[str, Any]) -> JsonObject:
    # as JSON would give it back; the same object where it is JSON already
    foreign: list[Any] = []

    def as_text(value: Any) -> str:
        foreign.append(value)
        return str(value)

    text = json.dumps(doc, default=as_text)
    return json.loads(text) if foreign or not isinstance(doc, dict) else doc


def _table_order(loaded: Mapping[str, LoadedTask], groups: Mapping[str, Any]) -> Iterator[str]:
    # lm-eval's: groups by name, each before its members by name; then the tasks of no group
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
    # every row of lm-eval's table, in its order, once; none is primary yet
    for name in dict.fromkeys(_table_order(loaded, groups)):
        rows = _task_rows(loaded[name], hints[name]) if name in loaded else _group_rows(name, groups[name], loaded)
        yield from sorted(rows, key=lambda row: row.key)


def _task_rows(task: LoadedTask, hints: TaskHints) -> Iterator[MetricSpec]:
    for key in task.metric_keys():
        metric, _, ensemble = key.partition(",")
        yield MetricSpec(
            task=task.spec.name,
            name=metric,
            filter=ensemble,
            kind=hints.kind(key) or _known_kind(task.task, metric, ensemble),
            is_primary=False,
            exercises_drafter=task.spec.kind is RequestKind.GENERATION,
            higher_is_better=bool(task.task.higher_is_better().get(metric, True)),
        )


def _known_kind(task: Any, metric: str, ensemble: str) -> MetricKind:
    # BINARY_MEAN where lm-eval's code allows nothing else, OTHER everywhere else: no guess from names
    config = task.config
    is_plain = type(task).process_results is ConfigurableTask.process_results and config.process_results is None
    is_averaged = task.aggregation().get(metric) is mean
    is_binary = metric in ZERO_OR_ONE.get(str(config.output_type), ())
    pipelines = {entry["name"]: entry["filter"] for entry in config.filter_list or ()}
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
    rows: Sequence[MetricSpec], builder: _Builder, loaded: Mapping[str, LoadedTask], catalog: Catalog
) -> set[str]:
    # one a benchmark that the catalog knows, else the first of every name that was asked for; of each member where a
    # group has no metric of its own
    ids = {row.id for row in rows}
    of_groups = {row.task: row.id for row in reversed(rows) if row.task in builder.groups}
    primary: set[str] = set()
    firsts: dict[str, list[str]] = {}
    for name, task in loaded.items():
        first = of_groups.get(builder.asked_as[name], f"{name}/{task.metric_keys()[0]}")
        firsts.setdefault(task.spec.benchmark, []).append(first)
    for benchmark in catalog.deciding(firsts):
        preferred = [metric for metric in catalog.preferred(benchmark) if metric in ids]
        primary.update(preferred[:1] or ids.intersection(firsts[benchmark]))
    return primary


TEMPLATES_KEPT = 4_096


def _prepare_process() -> None:
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


def _data_hash(docs: Iterable[JsonObject]) -> str:
    digest = hashlib.sha256()
    for doc in docs:
        digest.update(json.dumps(doc, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def _hashable(value: Any) -> Any:
    # as JSON, without addresses of objects and without paths of this machine
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, functools.partial):
        return ["partial", _hashable(value.func), _hashable(value.args), _hashable(value.keywords)]
    if callable(value):
        return [getattr(value, "__qualname__", type(value).__qualname__), _source_hash(value)]
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _hashable(inner) for key, inner in value.items() if key not in OF_THIS_MACHINE}
    if isinstance(value, (list, tuple)):
        return [_hashable(inner) for inner in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_hashable(inner), sort_keys=True) for inner in value)
    return [type(value).__qualname__, _hashable(getattr(value, "__dict__", {}))]


def _source_hash(function: Any) -> str:
    # of the whole module, as a function's helpers decide too; empty where there is no source
    subject = inspect.unwrap(function) if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    with suppress(TypeError, OSError):
        if file := inspect.getsourcefile(subject):
            return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return ""


class _Builder:
    def __init__(self, options: TaskOptions, *, catalog: Catalog, tasks_dir: Path, sources: Sources) -> None:
        self._options = options
        self._catalog = catalog
        self._own_folders = (tasks_dir, *options.include_paths)
        self._sources = sources
        self.tasks: dict[str, Any] = {}
        """lm-eval's leaf tasks in the order of their first mention."""
        self.groups: dict[str, Any] = {}
        self.asked_as: dict[str, str] = {}
        """Task -> the name that the user gave: a group's, or its own."""
        self._current: Any = None
        """The task that is being built, to name it when building fails."""
        self._n_begun = 0

    def build(self) -> None:
        """Build every name of the options.

        Raises UnknownTask and InvalidValue (within a second or two), BrokenTask, ScoringUnavailable (a Python package
        that a task needs), and as the sources.
        """
        names = self._catalog.expand(self._options.names, only=self._options.only)
        manager = self._index(names)
        matches = tuple(dict.fromkeys(match for name in names for match in _matches(manager, name)))
        self._check_bound(len(matches))  # each holds a task, or names what another holds
        fewshot_docs = ConfigurableTask.fewshot_docs

        def fewshot_docs_if_needed(task: Any) -> Any:
            # a sampler is made for every task; without shots its split need not be there
            return fewshot_docs(task) if _shots(task.config.num_fewshot, self._options.num_fewshot) > 0 else None

        def download(task: Any, dataset_kwargs: Mapping[str, Any] | None = None, *_: Any, **__: Any) -> None:
            self._download(task, dataset_kwargs)

        with (
            patch.object(Task, "download", download),
            patch.object(ConfigurableTask, "download", download),
            patch.object(ConfigurableTask, "fewshot_docs", fewshot_docs_if_needed),
            patch.object(lm_eval.api.task, "get_metric", _get_metric_lazily),
        ):
            for name in matches:
                if name in self.tasks or name in self.groups:
                    continue
                built = self._built(manager, name)
                groups = built.get("groups", {})
                self.groups.update(groups)
                for task_name, task in built["tasks"].items():
                    self.tasks.setdefault(task_name, task)
                    self.asked_as.setdefault(task_name, name if name in groups else task_name)

    def _index(self, names: Sequence[str]) -> Any:
        # lm-eval's TaskManager over the folders that these names need; later folders win, the user's last
        if self._options.most_tasks is not None:
            # "*": the index alone would take half a minute. What is near the bound is counted when it is loaded
            for pattern in filter(is_pattern, names):
                self._check_bound(len(fnmatch.filter(declared_names(), pattern)) / 2)
        entries = [self._catalog.benchmarks[owner] for name in names if (owner := self._catalog.owners.get(name))]
        known = dict.fromkeys(LM_EVAL_TASKS / folder for entry in entries for folder in entry.lm_eval_folders)
        own = [str(folder) for folder in self._own_folders]
        manager = lm_eval.tasks.TaskManager(include_defaults=False, include_path=[*map(str, known), *own])
        missing = [name for name in names if is_pattern(name) or not _matches(manager, name)]
        if not missing:
            return manager
        for name in missing:
            self._raise_if_broken(name)
        check_names(missing, self._catalog, self._own_folders)
        manager = lm_eval.tasks.TaskManager(include_path=own)
        if unknown := [name for name in missing if not _matches(manager, name)]:
            raise unknown_task(unknown, manager.all_tasks)
        return manager

    def _raise_if_broken(self, name: str) -> None:
        # lm-eval skips a YAML that it cannot read: it may be the one that was asked for
        for file in (path for folder in self._own_folders for path in _yaml_files(folder)):
            try:
                load_yaml(file, resolve_func=False)
            except Exception as exc:  # lm-eval's own index skips on any exception too
                if name in file.read_bytes().decode(errors="replace"):
                    reason = " ".join(str(exc).split())
                    raise BrokenTask(f"{file} is not a valid task YAML: {reason}", hint="Correct the file") from exc

    def _built(self, manager: Any, name: str) -> Mapping[str, Any]:
        self._current = None
        try:
            return manager.load(name)  # type: ignore[no-any-return]
        except QualabError:
            raise
        except Exception as exc:  # whatever a task's YAML, templates and functions raise
            task = str(getattr(self._current, "task_name", None) or name)
            if isinstance(exc, ModuleNotFoundError):
                raise _missing_package(task, exc) from exc
            docs = getattr(self._current, "task_docs", None)
            if docs is not None and len(docs) == 0:
                raise _no_items(task) from exc
            raise broken(task, "cannot be built", exc) from exc

    def _download(self, task: Any, dataset_kwargs: Mapping[str, Any] | None) -> None:
        self._current = task
        self._n_begun += 1
        self._check_bound(self._n_begun)
        options = dict(dataset_kwargs) if isinstance(dataset_kwargs, Mapping) else {}
        options.pop("trust_remote_code", None)  # the datasets library takes it no more
        config = getattr(task, "config", None)
        metadata = getattr(config, "metadata", None) or {}
        custom = getattr(config, "custom_dataset", None)
        if callable(custom):
            task.dataset = custom(**metadata, **options)
        elif task.DATASET_PATH is None:
            raise BrokenTask(f"Task {task.task_name} names no data set", hint="Add dataset_path to its YAML")
        else:
            task.dataset = self._sources.splits(
                task.DATASET_PATH,
                task.DATASET_NAME,
                options,
                task=str(task.task_name),
                beside=Path(metadata.get("config_source", "")).parent,
                items_split=getattr(config, "test_split", None) or getattr(config, "validation_split", None) or "test",
            )

    def _check_bound(self, n_tasks: float) -> None:
        most = self._options.most_tasks
        if most is not None and n_tasks > most:
            hint, fields = "Name fewer tasks, or groups that hold fewer", {"tasks": f"must be at most {most} tasks"}
            raise InvalidValue(f"These are more than {most} tasks", hint=hint, fields=fields)


def _matches(manager: Any, name: str) -> list[str]:
    if is_pattern(name):
        return [known for known in manager.all_tasks if fnmatch.fnmatch(known, name)]
    return [name] if is_task_file(name) or name in manager.task_index else []


def _yaml_files(root: Path) -> Iterator[Path]:
    # templates that YAMLs include have names like "_default_yaml"
    return (file for file in root.rglob("*") if file.name.endswith("yaml") and file.is_file())


def _shots(by_task: int | None, by_user: int | None) -> int:
    return by_task or 0 if by_task == 0 or by_user is None else by_user  # as in lm-eval, a YAML's 0 stays 0


NEEDS_SENTENCES = frozenset({"length_constraints:number_sentences", "change_case:capital_word_frequency"})
"""IFEval's instructions whose checks split a text into sentences, with NLTK's punkt_tab. The others do without."""
NLTK_FOLDER = "nltk_data"


def _check_scoring(task: Any, docs: Iterable[Mapping[str, Any]], *, data_dir: Path | None) -> None:
    name = str(task.task_name)
    if getattr(task.config, "process_results", None) is None:
        if task.config.output_type == "generate_until":  # only generations call the evaluate library's
            for metric in task._metric_fn_list.values():
                if isinstance(metric, _LazyMetric):
                    metric.compute  # noqa: B018 - fetches it
        return
    instructions = {instruction for doc in docs for instruction in doc.get("instruction_id_list") or ()}
    if instructions:
        try:  # now: a task may do so only when it scores
            import_module("lm_eval.tasks.ifeval.instructions_registry")
        except ModuleNotFoundError as exc:
            raise _missing_package(name, exc) from exc
    if instructions & NEEDS_SENTENCES:
        nltk = import_module("nltk")  # here, as it takes a second or two
        folder = (data_dir / NLTK_FOLDER).resolve() if data_dir else None
        if folder is not None and folder.is_dir() and str(folder) not in nltk.data.path:
            nltk.data.path.insert(0, str(folder))
        try:
            nltk.word_tokenize("One sentence. Another one.")
        except (LookupError, OSError) as exc:
            looked_in = ", ".join(dict.fromkeys([*([str(folder)] if folder else []), *nltk.data.path]))
            hint = f"Put it into DATA_DIR/{NLTK_FOLDER}/tokenizers/punkt_tab, or: python -m nltk.downloader punkt_tab"
            message = f"Task {name} needs NLTK's punkt_tab to score, and it is in none of {looked_in}"
            raise ScoringUnavailable(message, hint=hint) from exc


def _missing_package(task: str, exc: ModuleNotFoundError) -> ScoringUnavailable:
    return ScoringUnavailable(f"Task {task} needs the Python package {exc.name}", hint="Install it and start again")


def _no_items(task: str) -> BadDataFile:
    return BadDataFile(f"Task {task} has no items", hint="Check its data set")


class _LazyMetric:
    """A metric of the `evaluate` library, fetched when it is first called, not when a task names it."""

    def __init__(self, name: str) -> None:
        self.name = name

    @functools.cached_property
    def compute(self) -> Callable[..., Any]:
        """Fetch the metric. Raises ScoringUnavailable."""
        if metric := _original_get_metric(self.name, True):
            return metric  # type: ignore[no-any-return]
        raise ScoringUnavailable(
            f"Metric {self.name} of the evaluate library cannot be loaded",
            hint="It is fetched from the hub when first used: load it once with network access",
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compute(*args, **kwargs)


_original_get_metric: Callable[..., Any] = lm_eval.api.task.get_metric


def _get_metric_lazily(name: str, hf_evaluate_metric: bool = False) -> Any:
    if name in metric_registry and not hf_evaluate_metric:
        return metric_registry.get(name)
    return _LazyMetric(name)

"""From task names to lm-eval's task objects, without reading its 14,000 YAMLs unless a name is only there."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lm_eval.api.task
import lm_eval.tasks
from lm_eval.api.registry import metric_registry
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.tasks._yaml_loader import load_yaml

from qualab.errors import BrokenTask, EmptyDataset, QualabError, ScoringUnavailable, TooManyTasks, UnknownTask
from qualab.harness.catalog import Catalog
from qualab.harness.sources import Sources
from qualab.model.ports import TaskOptions

LM_EVAL_TASKS = Path(lm_eval.tasks.__file__).parent
N_SUGGESTIONS = 3
DECLARATION = re.compile(rb"""^[ \t]*["']?(?:task|group)["']?[ \t]*:[ \t]*["']?([\w.:-]+)["']?[ \t]*(?:#.*)?$""", re.M)
"""A line of a YAML that names its task or group."""


class Builder:
    """Builds the tasks of one load, each once."""

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

        Raises UnknownTask and TooManyTasks (within a second or two), BrokenTask, ScoringUnavailable (a Python package
        that a task needs), and as the sources.
        """
        names = self._catalog.expand(self._options.names)
        manager = self._index(names)
        matches = tuple(dict.fromkeys(match for name in names for match in _matches(manager, name)))
        self._check_bound(len(matches))  # each holds a task, or names what another holds
        fewshot_docs = ConfigurableTask.fewshot_docs

        def fewshot_docs_if_needed(task: Any) -> Any:
            # a sampler is made for every task; without shots its split need not be there
            return fewshot_docs(task) if shots(task.config.num_fewshot, self._options.num_fewshot) > 0 else None

        def download(task: Any, dataset_kwargs: Mapping[str, Any] | None = None, *_: Any, **__: Any) -> None:
            self._download(task, dataset_kwargs)

        with (
            patch.object(Task, "download", download),
            patch.object(ConfigurableTask, "download", download),
            patch.object(ConfigurableTask, "fewshot_docs", fewshot_docs_if_needed),
            patch.object(lm_eval.api.task, "get_metric", get_metric_lazily),
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
        most = self._options.most_tasks
        if most is not None and any(
            len(fnmatch.filter(_declared(), name)) > 2 * most for name in names if _is_pattern(name)
        ):
            # "*": the index alone would take half a minute. What is near the bound is counted when it is loaded
            raise self._too_many(most)
        entries = [self._catalog.benchmarks[owner] for name in names if (owner := self._catalog.owners.get(name))]
        known = dict.fromkeys(LM_EVAL_TASKS / folder for entry in entries for folder in entry.lm_eval_folders)
        own = [str(folder) for folder in self._own_folders]
        manager = lm_eval.tasks.TaskManager(include_defaults=False, include_path=[*map(str, known), *own])
        missing = [name for name in names if _is_pattern(name) or not _matches(manager, name)]
        if not missing:
            return manager
        for name in missing:
            self._raise_if_broken(name)
        unknown = [name for name in missing if not _is_pattern(name) and not _is_mentioned(name)]
        if not unknown:
            manager = lm_eval.tasks.TaskManager(include_path=own)
            unknown = [name for name in missing if not _matches(manager, name)]
        if unknown:
            names_known = sorted({*self._catalog.suites, *self._catalog.owners, *manager.all_tasks, *_declared()})
            matches = (difflib.get_close_matches(name, names_known, n=N_SUGGESTIONS, cutoff=0.6) for name in unknown)
            near = list(dict.fromkeys(match for group in matches for match in group))
            raise UnknownTask(
                f"There is no task, group or suite named {', '.join(unknown)}",
                hint=f"Did you mean {', '.join(near)}?" if near else "Own tasks are found with --include-path DIR",
                names=unknown,
                nearest=near,
            )
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
                raise no_items(task) from exc
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
                asked=getattr(config, "test_split", None) or getattr(config, "validation_split", None) or "test",
            )

    def _check_bound(self, n_tasks: int) -> None:
        most = self._options.most_tasks
        if most is not None and n_tasks > most:
            raise self._too_many(most)

    @staticmethod
    def _too_many(most: int) -> TooManyTasks:
        return TooManyTasks(
            f"These are more than {most} tasks",
            hint="Name fewer tasks, or groups that hold fewer",
            fields={"tasks": f"must be at most {most} tasks"},
        )


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _matches(manager: Any, name: str) -> list[str]:
    if _is_pattern(name):
        return [known for known in manager.all_tasks if fnmatch.fnmatch(known, name)]
    is_file = name.endswith((".yaml", ".yml")) and Path(name).is_file()
    return [name] if is_file or name in manager.task_index else []


def _is_mentioned(name: str) -> bool:
    # as a word in any of lm-eval's YAMLs: a tenth of the time that indexing takes
    word = re.compile(rb"(?<![\w-])" + re.escape(name.encode()) + rb"(?![\w-])")
    return any(word.search(file.read_bytes()) for file in _yaml_files(LM_EVAL_TASKS))


def _declared() -> set[str]:
    return {match.decode() for file in _yaml_files(LM_EVAL_TASKS) for match in DECLARATION.findall(file.read_bytes())}


def _yaml_files(root: Path) -> Iterator[Path]:
    # templates that YAMLs include have names like "_default_yaml"
    return (file for file in root.rglob("*") if file.name.endswith("yaml") and file.is_file())


def shots(own: int | None, asked: int | None) -> int:
    """Return the few-shot examples of a task. As in lm-eval, a YAML's 0 stays 0."""
    return own or 0 if own == 0 or asked is None else asked


NEEDS_SENTENCES = frozenset({"length_constraints:number_sentences", "change_case:capital_word_frequency"})
"""IFEval's instructions whose checks split a text into sentences, with NLTK's punkt_tab. The others do without."""
NLTK_FOLDER = "nltk_data"


def check_scoring(task: Any, docs: Iterable[Mapping[str, Any]], *, data_dir: Path | None) -> None:
    """Raise ScoringUnavailable where a metric, package or data are missing without which these cannot be scored."""
    name = str(task.task_name)
    if getattr(task.config, "process_results", None) is None:
        if task.config.output_type == "generate_until":  # only generations call the evaluate library's
            for metric in task._metric_fn_list.values():
                if isinstance(metric, LazyMetric):
                    metric.compute  # noqa: B018 - fetches it
        return
    asked = {instruction for doc in docs for instruction in doc.get("instruction_id_list") or ()}
    if asked:
        try:  # now: a task may do so only when it scores
            import_module("lm_eval.tasks.ifeval.instructions_registry")
        except ModuleNotFoundError as exc:
            raise _missing_package(name, exc) from exc
    if asked & NEEDS_SENTENCES:
        nltk = import_module("nltk")  # here, as it takes a second or two
        folder = (data_dir / NLTK_FOLDER).resolve() if data_dir else None
        if folder is not None and folder.is_dir() and str(folder) not in nltk.data.path:
            nltk.data.path.insert(0, str(folder))
        try:
            nltk.word_tokenize("One sentence. Another one.")
        except (LookupError, OSError) as exc:
            looked_in = ", ".join(dict.fromkeys([*([str(folder)] if folder else []), *nltk.data.path]))
            hint = f"Put it into DATA_DIR/{NLTK_FOLDER}/tokenizers/punkt_tab, or: python -m nltk.downloader punkt_tab"
            why = f"Task {name} needs NLTK's punkt_tab to score, and it is in none of {looked_in}"
            raise ScoringUnavailable(why, hint=hint) from exc


def _missing_package(task: str, exc: ModuleNotFoundError) -> ScoringUnavailable:
    return ScoringUnavailable(f"Task {task} needs the Python package {exc.name}", hint="Install it and start again")


def no_items(task: str) -> EmptyDataset:
    """Describe a task without documents."""
    return EmptyDataset(f"Task {task} has no items", hint="Check its data set")


def broken(task: str, event: str, exc: Exception) -> BrokenTask:
    """Describe a task whose own YAML or code fails."""
    reason = " ".join(str(exc).split())
    why = f"Task {task} {event}: {type(exc).__name__}: {reason}"
    return BrokenTask(why, hint="Correct its YAML, its functions or its data")


class LazyMetric:
    """A metric of the `evaluate` library, fetched when it is first called, not when a task names it."""

    def __init__(self, name: str) -> None:
        self.name = name

    @functools.cached_property
    def compute(self) -> Callable[..., Any]:
        """Fetch the metric. Raises ScoringUnavailable."""
        if metric := original_get_metric(self.name, True):
            return metric  # type: ignore[no-any-return]
        raise ScoringUnavailable(
            f"Metric {self.name} of the evaluate library cannot be loaded",
            hint="It is fetched from the hub when first used: load it once with network access",
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compute(*args, **kwargs)


original_get_metric: Callable[..., Any] = lm_eval.api.task.get_metric


def get_metric_lazily(name: str, hf_evaluate_metric: bool = False) -> Any:
    """Return lm-eval's own metric, or a LazyMetric where it would go to the hub."""
    if name in metric_registry and not hf_evaluate_metric:
        return metric_registry.get(name)
    return LazyMetric(name)

"""From task names to lm-eval's index, without reading its 14,000 YAMLs unless a name is only there."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import lm_eval.api.task
import lm_eval.tasks
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.tasks._yaml_loader import load_yaml

from qualab.errors import BrokenTask, EmptyDataset, QualabError, ScoringUnavailable, TooManyTasks, UnknownTask
from qualab.harness.catalog import Catalog
from qualab.harness.patching import LazyMetric, get_metric_lazily, no_nltk_downloads, replaced
from qualab.harness.sources import Sources

LM_EVAL_TASKS = Path(lm_eval.tasks.__file__).parent

N_SUGGESTIONS = 3

DECLARATION = re.compile(rb"""^[ \t]*["']?(?:task|group)["']?[ \t]*:[ \t]*["']?([\w.:-]+)["']?[ \t]*(?:#.*)?$""", re.M)
"""A line of a YAML that names its task or group."""


def index(
    names: Sequence[str],
    *,
    catalog: Catalog,
    tasks_dir: Path,
    include_paths: Sequence[Path],
    most_tasks: int | None = None,
) -> Any:
    """lm-eval's TaskManager over the folders that these names need; later folders win, the user's last.

    Raises UnknownTask and TooManyTasks (within a second or two) and BrokenTask.
    """
    if most_tasks is not None and any(
        len(fnmatch.filter(_declared(), name)) > 2 * most_tasks for name in names if is_pattern(name)
    ):  # "*": the index alone would take half a minute. What is near the bound is counted when it is loaded
        raise too_many(most_tasks)
    own = (tasks_dir, *include_paths)
    folders = [LM_EVAL_TASKS / folder for folder in catalog.folders(names)]
    manager = lm_eval.tasks.TaskManager(include_defaults=False, include_path=[str(path) for path in (*folders, *own)])
    missing = [name for name in names if is_pattern(name) or not _matches(manager, name)]
    if not missing:
        return manager
    for name in missing:
        _raise_if_broken(name, own)
    unknown = [name for name in missing if not is_pattern(name) and not _mentioned(name)]
    if not unknown:
        manager = lm_eval.tasks.TaskManager(include_path=[str(path) for path in own])
        unknown = [name for name in missing if not _matches(manager, name)]
    if unknown:
        raise _unknown(unknown, catalog, manager)
    return manager


def resolve(manager: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Patterns ("kobest_*") replaced by what they match; each name once."""
    return tuple(dict.fromkeys(match for name in names for match in _matches(manager, name)))


def is_pattern(name: str) -> bool:
    """Whether a name stands for all that match it."""
    return any(sign in name for sign in "*?[")


def _matches(manager: Any, name: str) -> list[str]:
    if is_pattern(name):
        return [known for known in manager.all_tasks if fnmatch.fnmatch(known, name)]
    is_file = name.endswith((".yaml", ".yml")) and Path(name).is_file()
    return [name] if is_file or name in manager.task_index else []


def _mentioned(name: str) -> bool:
    """Whether any of lm-eval's YAMLs holds this name as a word: a tenth of the time that indexing takes."""
    word = re.compile(rb"(?<![\w-])" + re.escape(name.encode()) + rb"(?![\w-])")
    return any(word.search(file.read_bytes()) for file in _yaml_files(LM_EVAL_TASKS))


def _yaml_files(root: Path) -> Iterator[Path]:
    # templates that YAMLs include have names like "_default_yaml"
    return (file for file in root.rglob("*") if file.name.endswith("yaml") and file.is_file())


def _declared() -> set[str]:
    """Tasks and groups that lm-eval's YAMLs seem to name."""
    return {match.decode() for file in _yaml_files(LM_EVAL_TASKS) for match in DECLARATION.findall(file.read_bytes())}


def too_many(most_tasks: int) -> TooManyTasks:
    """The error for more tasks than may be loaded."""
    return TooManyTasks(
        f"These are more than {most_tasks} tasks",
        hint="Name fewer tasks, or groups that hold fewer",
        fields={"tasks": f"must be at most {most_tasks} tasks"},
    )


def _unknown(names: Sequence[str], catalog: Catalog, manager: Any) -> UnknownTask:
    known = sorted({*catalog.names, *manager.all_tasks, *_declared()})
    matches = (difflib.get_close_matches(name, known, n=N_SUGGESTIONS, cutoff=0.6) for name in names)
    near = list(dict.fromkeys(match for group in matches for match in group))
    return UnknownTask(
        f"There is no task, group or suite named {', '.join(names)}",
        hint=f"Did you mean {', '.join(near)}?" if near else "Own tasks are found with --include-path DIR",
        names=list(names),
        nearest=near,
    )


def _raise_if_broken(name: str, folders: Iterable[Path]) -> None:
    """Raises BrokenTask where a YAML that lm-eval skipped as unreadable is the one that was asked for."""
    for file in (path for folder in folders for path in _yaml_files(folder)):
        try:
            load_yaml(file, resolve_func=False)
        except Exception as exc:  # lm-eval's own index skips on any exception too
            if name in file.read_bytes().decode(errors="replace"):
                reason = " ".join(str(exc).split())
                raise BrokenTask(f"{file} is not a valid task YAML: {reason}", hint="Correct the file") from exc


NEEDS_SENTENCES = frozenset({"length_constraints:number_sentences", "change_case:capital_word_frequency"})
"""IFEval's instructions whose checks split a text into sentences, with NLTK's punkt_tab. The others do without."""

NLTK_FOLDER = "nltk_data"


def check_scoring(task: Any, docs: Iterable[Mapping[str, Any]], *, data_dir: Path | None) -> None:
    """Raises ScoringUnavailable for a metric, a package or data without which these documents cannot be scored."""
    if getattr(task.config, "process_results", None) is None:
        if task.config.output_type == "generate_until":
            for metric in task._metric_fn_list.values():
                if isinstance(metric, LazyMetric):  # of the evaluate library, which only generations call
                    metric.load()
        return
    asked = {instruction for doc in docs for instruction in doc.get("instruction_id_list") or ()}
    if asked:
        try:  # now: a task may do so only when it scores, and the import downloads and prints
            with no_nltk_downloads(), redirect_stdout(StringIO()):
                import_module("lm_eval.tasks.ifeval.instructions_registry")
        except ModuleNotFoundError as exc:
            raise missing_package(str(task.task_name), exc) from exc
    if asked & NEEDS_SENTENCES:
        _check_sentences(str(task.task_name), data_dir)


def missing_package(task: str, exc: ModuleNotFoundError) -> ScoringUnavailable:
    """The error for a task whose code imports what is not installed."""
    return ScoringUnavailable(f"Task {task} needs the Python package {exc.name}", hint="Install it and start again")


def _check_sentences(task: str, data_dir: Path | None) -> None:
    nltk = import_module("nltk")  # here, as it takes a second or two
    folder = (data_dir / NLTK_FOLDER).resolve() if data_dir else None
    if folder is not None and folder.is_dir() and str(folder) not in nltk.data.path:
        nltk.data.path.insert(0, str(folder))
    try:
        nltk.word_tokenize("One sentence. Another one.")
    except (LookupError, OSError) as exc:
        looked_in = ", ".join(dict.fromkeys([*([str(folder)] if folder else []), *nltk.data.path]))
        raise ScoringUnavailable(
            f"Task {task} needs NLTK's punkt_tab to score, and it is in none of {looked_in}",
            hint=f"Put it into DATA_DIR/{NLTK_FOLDER}/tokenizers/punkt_tab, or: python -m nltk.downloader punkt_tab",
        ) from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """lm-eval's objects for the names that were asked for."""

    tasks: dict[str, Any] = field(default_factory=dict)
    """Leaf tasks in the order of their first mention."""
    groups: dict[str, Any] = field(default_factory=dict)
    asked_as: dict[str, str] = field(default_factory=dict)
    """Task -> the name under which it was asked for: a group's, or its own."""


@dataclass(slots=True)
class _Current:
    """The task that is being built, to name it when building fails; and how many there may be."""

    task: Any = None
    most_tasks: int | None = None
    n_tasks: int = 0

    def begin(self, task: Any) -> None:
        """Raises TooManyTasks."""
        self.task = task
        self.n_tasks += 1
        self.check(self.n_tasks)

    def check(self, n_tasks: int) -> None:
        """Raises TooManyTasks."""
        if self.most_tasks is not None and n_tasks > self.most_tasks:
            raise too_many(self.most_tasks)

    def name(self, default: str) -> str:
        return str(getattr(self.task, "task_name", None) or default) if self.task is not None else default


def build(
    manager: Any,
    names: tuple[str, ...],
    *,
    sources: Sources,
    num_fewshot: int | None,
    most_tasks: int | None = None,
) -> Built:
    """Builds each name; a task that several names hold is kept once.

    Raises BrokenTask, ScoringUnavailable (a Python package that a task needs), TooManyTasks, and as the sources.
    """
    built, current = Built(), _Current(most_tasks=most_tasks)
    current.check(len(names))  # each holds a task, or names what another holds
    with _replacements(sources, num_fewshot, current):
        for name in names:
            if name in built.tasks or name in built.groups:
                continue
            current.task = None
            loaded = _built(manager, name, current)
            groups = loaded.get("groups", {})
            built.groups.update(groups)
            for task_name, task in loaded["tasks"].items():
                built.tasks.setdefault(task_name, task)
                built.asked_as.setdefault(task_name, name if name in groups else task_name)
    return built


def _built(manager: Any, name: str, current: _Current) -> Mapping[str, Any]:
    try:
        return manager.load(name)  # type: ignore[no-any-return]
    except QualabError:
        raise
    except ModuleNotFoundError as exc:
        raise missing_package(current.name(name), exc) from exc
    except Exception as exc:  # whatever a task's YAML, templates and functions raise
        docs = getattr(current.task, "task_docs", None)
        if docs is not None and len(docs) == 0:
            raise EmptyDataset(f"Task {current.name(name)} has no items", hint="Check its data set") from exc
        raise broken(current.name(name), "cannot be built", exc) from exc


def broken(task: str, what: str, exc: Exception) -> BrokenTask:
    """The error for a task whose own YAML or code fails."""
    reason = " ".join(str(exc).split())
    return BrokenTask(
        f"Task {task} {what}: {type(exc).__name__}: {reason}",
        hint="Correct its YAML, its functions or its data",
    )


@contextmanager
def _replacements(sources: Sources, num_fewshot: int | None, current: _Current) -> Iterator[None]:
    fewshot_docs = ConfigurableTask.fewshot_docs
    download = _download(sources, current)

    def fewshot_docs_if_needed(task: Any) -> Any:
        # a sampler is made for every task; without shots its split need not be there
        return fewshot_docs(task) if shots(task.config.num_fewshot, num_fewshot) > 0 else None

    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(StringIO()))  # task modules print when they are imported
        stack.enter_context(no_nltk_downloads())
        stack.enter_context(replaced(Task, "download", download))
        stack.enter_context(replaced(ConfigurableTask, "download", download))
        stack.enter_context(replaced(ConfigurableTask, "fewshot_docs", fewshot_docs_if_needed))
        stack.enter_context(replaced(lm_eval.api.task, "get_metric", get_metric_lazily))
        yield


def _download(sources: Sources, current: _Current) -> Callable[..., None]:
    def download(task: Any, dataset_kwargs: Mapping[str, Any] | None = None, *_args: Any, **_kwargs: Any) -> None:
        current.begin(task)
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
            beside = Path(metadata.get("config_source", "")).parent
            asked = getattr(config, "test_split", None) or getattr(config, "validation_split", None) or "test"
            task.dataset = sources.splits(
                task.DATASET_PATH, task.DATASET_NAME, options, task=str(task.task_name), beside=beside, asked=asked
            )

    return download


def shots(own: int | None, asked: int | None) -> int:
    """Few-shot examples of a task. As in lm-eval, a task whose YAML says 0 stays at 0."""
    if own == 0 or asked is None:
        return own or 0
    return asked

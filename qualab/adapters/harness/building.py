"""Builds lm-eval's task objects with documents from qualab's sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import lm_eval.api.task
from lm_eval.api.task import ConfigurableTask, Task

from qualab.adapters.harness.naming import too_many
from qualab.adapters.harness.patching import get_metric_lazily, no_nltk_downloads, replaced
from qualab.adapters.harness.requirements import missing_package
from qualab.adapters.harness.sources import Sources
from qualab.errors import BrokenTask, EmptyDataset, QualabError


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
            _add(built, name, _built(manager, name, current))
    return built


def _add(built: Built, name: str, loaded: Mapping[str, Any]) -> None:
    groups = loaded.get("groups", {})
    built.groups.update(groups)
    for task_name, task in loaded["tasks"].items():
        built.tasks.setdefault(task_name, task)
        built.asked_as.setdefault(task_name, name if name in groups else task_name)


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
        options = dataset_options(dataset_kwargs)
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


def dataset_options(dataset_kwargs: Any) -> dict[str, Any]:
    """A YAML's dataset_kwargs without what the datasets library takes no more."""
    given = dataset_kwargs if isinstance(dataset_kwargs, Mapping) else {}
    return {key: value for key, value in given.items() if key != "trust_remote_code"}


def shots(own: int | None, asked: int | None) -> int:
    """Few-shot examples of a task. As in lm-eval, a task whose YAML says 0 stays at 0."""
    if own == 0 or asked is None:
        return own or 0
    return asked

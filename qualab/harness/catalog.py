"""The task catalog: what qualab knows about tasks beyond lm-eval's YAMLs. Format: `tasks/CATALOG.md`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from qualab.errors import BrokenTask
from qualab.model.logged import TaskFacts
from qualab.model.names import MetricKind

CATALOG_FILE = "catalog.yaml"

COMMIT = re.compile(r"[0-9a-f]{40}")


class Entry(BaseModel):
    """A frozen mapping of the catalog; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DatasetEntry(Entry):
    """Where one data set is found."""

    revision: str | None = None
    bundled: bool = False
    files: tuple[str, ...] = ()
    columns: tuple[str, ...] | dict[str, tuple[str, ...]] = ()

    @field_validator("revision")
    @classmethod
    def _is_commit(cls, revision: str | None) -> str | None:
        if revision is not None and not COMMIT.fullmatch(revision):
            raise ValueError("must be a commit of 40 hexadecimal digits")
        return revision

    def columns_of(self, config: str | None) -> tuple[str, ...]:
        """Columns that every line must have; empty where the first line says it."""
        if isinstance(self.columns, dict):
            return self.columns.get(config or "", ())
        return self.columns


class TaskHints(Entry):
    """What a task says about its own metrics and items, in the catalog or in its YAML's `metadata: {qualab: ...}`."""

    benchmark: str | None = None
    metrics: dict[str, MetricKind] = {}
    cluster: tuple[str, ...] | None = None
    choices: Annotated[int, Field(ge=2)] | None = None

    def kind(self, key: str) -> MetricKind | None:
        """Kind of a metric by its full key ("exact_match,none") or by its name alone."""
        return self.metrics.get(key, self.metrics.get(key.partition(",")[0]))

    def over(self, other: TaskHints) -> TaskHints:
        """These hints, and the other's where these are silent."""
        return TaskHints(
            benchmark=self.benchmark or other.benchmark,
            metrics={**other.metrics, **self.metrics},
            cluster=other.cluster if self.cluster is None else self.cluster,
            choices=self.choices or other.choices,
        )


class BenchmarkEntry(Entry):
    """The tasks and groups that measure one thing, and which metric decides."""

    title: str = ""
    lm_eval_folders: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    tasks: dict[str, TaskHints] = {}
    metrics: dict[str, MetricKind] = {}
    cluster: tuple[str, ...] = ()
    choices: Annotated[int, Field(ge=2)] | None = None
    primary: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.groups, *self.tasks)


class SuiteEntry(Entry):
    """A named choice of tasks."""

    description: str = ""
    tasks: tuple[str, ...]
    apply_chat_template: bool = False


class Catalog(Entry):
    """The whole file."""

    datasets: dict[str, DatasetEntry] = {}
    benchmarks: dict[str, BenchmarkEntry] = {}
    suites: dict[str, SuiteEntry] = {}

    @cached_property
    def owners(self) -> Mapping[str, str]:
        return {name: key for key, entry in self.benchmarks.items() for name in entry.names}

    @property
    def names(self) -> tuple[str, ...]:
        """Every suite, group and task that the catalog names."""
        return (*self.suites, *self.owners)

    def benchmark_of(self, name: str) -> str | None:
        """The benchmark of a task or group."""
        return self.owners.get(name)

    def hints(self, task: str) -> TaskHints:
        """What the catalog says about a task; nothing where it does not know it."""
        benchmark = self.benchmark_of(task)
        if benchmark is None:
            return TaskHints()
        entry = self.benchmarks[benchmark]
        common = TaskHints(benchmark=benchmark, metrics=entry.metrics, cluster=entry.cluster, choices=entry.choices)
        return entry.tasks.get(task, TaskHints()).over(common)

    def facts(self, name: str) -> TaskFacts | None:
        """What is known of a task or group for logs that others wrote; None where it is not known."""
        benchmark = self.benchmark_of(name)
        if benchmark is None:
            return None
        hints = self.hints(name)
        return TaskFacts(
            benchmark=benchmark,
            kinds=hints.metrics,
            cluster=hints.cluster or (),
            primary=self.benchmarks[benchmark].primary,
            n_choices=hints.choices,
        )

    def expand(self, names: Iterable[str]) -> tuple[str, ...]:
        """Suites replaced by their tasks; each name once, in the order of its first mention."""
        expanded = (task for name in names for task in (self.suites[name].tasks if name in self.suites else (name,)))
        return tuple(dict.fromkeys(expanded))

    def folders(self, names: Iterable[str]) -> tuple[str, ...]:
        """Folders under lm_eval/tasks that hold the official YAMLs of these names."""
        known = (self.benchmarks[key] for name in names if (key := self.benchmark_of(name)))
        return tuple(dict.fromkeys(folder for entry in known for folder in entry.lm_eval_folders))


def read_catalog(tasks_dir: Path) -> Catalog:
    """Reads `catalog.yaml`. Raises BrokenTask."""
    path = tasks_dir / CATALOG_FILE
    try:
        return Catalog.model_validate(yaml.safe_load(path.read_bytes()) or {})
    except (OSError, yaml.YAMLError) as exc:
        raise BrokenTask(f"The task catalog {path} cannot be read: {exc}", hint="Reinstall qualab") from exc
    except ValidationError as exc:
        raise BrokenTask(
            f"The task catalog {path} is wrong at {first_error(exc)}", hint="Its format is in CATALOG.md"
        ) from exc


def hints_from_metadata(task: str, metadata: Any) -> TaskHints:
    """The hints in a task YAML's own `metadata`. Raises BrokenTask."""
    own = metadata.get("qualab", {}) if isinstance(metadata, Mapping) else {}
    try:
        return TaskHints.model_validate(own)
    except ValidationError as exc:
        raise BrokenTask(
            f"The metadata of task {task} is wrong at qualab.{first_error(exc)}",
            hint="Known keys are benchmark, metrics, cluster and choices",
        ) from exc


def first_error(exc: ValidationError) -> str:
    """Where a value is wrong and why, as "suites.release.tasks: Field required"."""
    error = exc.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}"

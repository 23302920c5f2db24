"""The task catalog: what qualab knows about tasks beyond lm-eval's YAMLs. Format: `tasks/CATALOG.md`."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qualab.errors import BrokenTask, UnknownTask
from qualab.model.names import MetricKind

CATALOG_FILE = "catalog.yaml"
N_SUGGESTIONS = 3
DECLARATION = re.compile(
    rb"""^[ \t]*(?:-[ \t]+)?["']?(?:task|group|tag)["']?[ \t]*:([^\n]*\n(?:[ \t]*(?:[-#][^\n]*)?\n)*)""", re.M
)
"""Part of a YAML that names its task, group or tags, or a group's members."""
DECLARED_NAME = re.compile(rb"""[^\s"',\[\]{}#]+""")


class Entry(BaseModel):
    """A frozen mapping of the catalog; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DatasetEntry(Entry):
    """Where a data set is found."""

    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    """A commit."""
    bundled: bool = False
    files: tuple[str, ...] = ()
    columns: tuple[str, ...] | dict[str, tuple[str, ...]] = ()

    def columns_of(self, config: str | None) -> tuple[str, ...]:
        """List the columns that every line must have; empty for the first line's."""
        return self.columns.get(config or "", ()) if isinstance(self.columns, dict) else self.columns


class TaskHints(Entry):
    """A task's metrics and items, described in the catalog or in its YAML's `metadata: {qualab: ...}`."""

    benchmark: str | None = None
    metrics: dict[str, MetricKind] = {}
    cluster: tuple[str, ...] | None = None
    choices: Annotated[int, Field(ge=2)] | None = None
    prompt_tokens: Annotated[int, Field(ge=1)] | None = None

    def kind(self, key: str) -> MetricKind | None:
        """Look up a metric's kind by its full key ("exact_match,none") or its name."""
        return self.metrics.get(key, self.metrics.get(key.partition(",")[0]))

    def over(self, other: TaskHints) -> TaskHints:
        """Fill in the other's hints where these are silent."""
        return TaskHints(
            benchmark=self.benchmark or other.benchmark,
            metrics={**other.metrics, **self.metrics},
            cluster=other.cluster if self.cluster is None else self.cluster,
            choices=self.choices or other.choices,
            prompt_tokens=self.prompt_tokens or other.prompt_tokens,
        )


class BenchmarkEntry(TaskHints):
    """The tasks and groups that measure one thing, and which metric decides."""

    title: str = ""
    lm_eval_folders: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    tasks: dict[str, TaskHints] = {}
    primary: tuple[str, ...] | None = None
    """Metric ids in order of preference; empty for a benchmark without one beside others, None for no preference."""


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
        """Map every task and group of the catalog to its benchmark."""
        return {name: key for key, entry in self.benchmarks.items() for name in (*entry.groups, *entry.tasks)}

    def hints(self, name: str) -> TaskHints:
        """Return the hints for a task or group; empty for one that the catalog does not know."""
        if name not in self.owners:
            return TaskHints()
        benchmark = self.owners[name]
        entry = self.benchmarks[benchmark]
        return entry.tasks.get(name, TaskHints()).over(entry.model_copy(update={"benchmark": benchmark}))

    def deciding(self, benchmarks: Collection[str]) -> Collection[str]:
        """Leave out benchmarks whose `primary` is empty, unless that leaves none."""
        silent = {name for name, entry in self.benchmarks.items() if entry.primary == ()}
        return [name for name in benchmarks if name not in silent] or benchmarks

    def preferred(self, benchmark: str) -> tuple[str, ...]:
        """List a benchmark's primary metrics in order of preference."""
        return (self.benchmarks[benchmark].primary if benchmark in self.benchmarks else None) or ()

    def expand(self, names: Iterable[str], *, only: Collection[str] | None = None) -> tuple[str, ...]:
        """Replace suites by their tasks, of which `only` these; each name once, in the order of its first mention."""
        expanded = (task for name in names for task in (self.suites[name].tasks if name in self.suites else (name,)))
        known = {task for entry in self.benchmarks.values() for task in entry.tasks}
        return tuple(task for task in dict.fromkeys(expanded) if only is None or task in only or task not in known)


def read_catalog(tasks_dir: Path) -> Catalog:
    """Read `catalog.yaml`. Raises BrokenTask."""
    path = tasks_dir / CATALOG_FILE
    try:
        return Catalog.model_validate(yaml.safe_load(path.read_bytes()) or {})
    except (OSError, yaml.YAMLError) as exc:
        raise BrokenTask(f"The task catalog {path} cannot be read: {exc}", hint="Reinstall qualab") from exc
    except ValidationError as exc:
        message = f"The task catalog {path} is wrong at {_first_error(exc)}"
        raise BrokenTask(message, hint="Its format is in CATALOG.md") from exc


def is_pattern(name: str) -> bool:
    """Check for lm-eval's wildcards."""
    return any(sign in name for sign in "*?[")


def is_task_file(name: str) -> bool:
    """Check for the path of a task's YAML."""
    return name.endswith((".yaml", ".yml")) and Path(name).is_file()


def declared_names(*own_folders: Path) -> set[str]:
    """Read what lm-eval's YAMLs and own ones may declare, which takes a thirtieth of the time of lm-eval's index.

    All names of its index are among them, and a few words that name nothing.
    """
    spec, names = importlib.util.find_spec("lm_eval"), set[bytes]()
    lm_eval = [Path(spec.origin).parent / "tasks"] if spec and spec.origin else []  # found, and not imported
    for folder in (*lm_eval, *own_folders):
        for root, _, files in os.walk(folder, followlinks=True):
            for file in files:
                if "." not in file or file.endswith("yaml"):  # a template that YAMLs include has any name
                    for part in DECLARATION.findall(Path(root, file).read_bytes() + b"\n"):
                        names.update(DECLARED_NAME.findall(part))
    return {name.decode(errors="replace") for name in names}


def check_names(names: Iterable[str], catalog: Catalog, own_folders: Sequence[Path]) -> None:
    """Raise UnknownTask for names that neither the catalog nor a YAML declares. lm-eval is not loaded."""
    known = {*catalog.suites, *catalog.owners}
    asked = [name for name in names if name not in known and not is_pattern(name) and not is_task_file(name)]
    if asked and all(folder.is_dir() for folder in own_folders):
        known |= declared_names(*own_folders)
        if unknown := [name for name in asked if name not in known]:
            raise unknown_task(unknown, known)


def unknown_task(names: Sequence[str], known: Collection[str]) -> UnknownTask:
    """Make the error, which suggests the nearest of the known names."""
    matches = (difflib.get_close_matches(name, sorted(known), n=N_SUGGESTIONS, cutoff=0.6) for name in names)
    near = list(dict.fromkeys(match for group in matches for match in group))
    return UnknownTask(
        f"There is no task, group or suite named {', '.join(names)}",
        hint=f"Did you mean {', '.join(near)}?" if near else "--tasks list names some; --include-path adds your own",
        names=names,
        nearest=near,
    )


def hints_from_metadata(task: str, metadata: Any) -> TaskHints:
    """Read the hints in a task YAML's own `metadata`. Raises BrokenTask."""
    own = metadata.get("qualab", {}) if isinstance(metadata, Mapping) else {}
    try:
        return TaskHints.model_validate(own)
    except ValidationError as exc:
        message = f"The metadata of task {task} is wrong at qualab.{_first_error(exc)}"
        raise BrokenTask(message, hint="Known keys are benchmark, metrics, cluster, choices and prompt_tokens") from exc


def _first_error(exc: ValidationError) -> str:
    error = exc.errors(include_url=False)[0]
    return f"{'.'.join(map(str, error['loc']))}: {error['msg']}"

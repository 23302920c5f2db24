"""Where a task's documents come from: a data directory, files beside the tasks, files the task names, or the hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import datasets

from qualab.adapters.harness.catalog import Catalog, DatasetEntry
from qualab.adapters.harness.hub import FromHub, load_from_hub, load_local
from qualab.adapters.harness.jsonl import Table, read_table
from qualab.errors import BadDataFile, DatasetUnavailable, QualabError

T = TypeVar("T")

LOCAL = "local"
NEWEST = "main"
"""Where a data set on the hub is read if nothing says otherwise."""

PACKAGED = frozenset({"json", "csv", "parquet", "text", "arrow", "pandas", "xml", "webdataset"})
"""Builders of the datasets library, which read files that the task names itself."""

CONVERSION_ERRORS = (TypeError, ValueError, OverflowError, NotImplementedError)
"""Bases of what pyarrow raises when values do not fit one type."""

ANY_DATASET = (
    "{owner}/{name}/{config}/{split}.jsonl",
    "{name}/{config}/{split}.jsonl",
    "{name}/{config}_{split}.jsonl",
    "{name}/{config}.jsonl",
)
"""Where a data set without a catalog entry is looked for."""

ANY_DATASET_UNCONFIGURED = ("{owner}/{name}/{split}.jsonl", "{name}/{split}.jsonl")


class Splits(dict[str, Any]):
    """Splits of a data set, each read when it is first asked for: a split that no task needs may be missing."""

    def __init__(self, read: Callable[[str], Any]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, split: str) -> Any:
        self[split] = self._read(split)
        return self[split]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Finds and reads data sets. One object serves one load; what several tasks share is read or resolved once."""

    catalog: Catalog
    tasks_dir: Path
    data_dir: Path | None
    planned: Mapping[str, str] = field(default_factory=dict)
    """Hub commits that a plan records, by task: these are read, whatever is newest now."""
    _read: dict[Path, Any] = field(default_factory=dict)
    _resolved: dict[tuple[str, str], str] = field(default_factory=dict)
    _commits: dict[str, str] = field(default_factory=dict)

    def splits(
        self,
        path: str,
        config: str | None,
        options: Mapping[str, Any],
        *,
        task: str,
        beside: Path,
        asked: str = "test",
    ) -> Any:
        """The splits of a task's data set. `beside` is the folder of its YAML, `asked` the split of its items.

        Raises DatasetUnavailable, BadDataFile, EmptyDataset; for local files only when a split is asked for.
        """
        entry = self.catalog.datasets.get(path, DatasetEntry())
        if files := _named_files(path, options):
            return Splits(lambda split: self._named_split(files, split, beside=beside))
        if entry.bundled:
            return Splits(lambda split: self._local_split(self.tasks_dir, path, config, split))
        if is_local(path):
            return _loaded(path, config, lambda: load_local(path, config, options=options))
        if self.data_dir is not None:
            root = self.data_dir
            return Splits(lambda split: self._local_split(root, path, config, split))
        wanted = str(self.planned.get(task) or options.get("revision") or entry.revision or NEWEST)
        found = self._from_hub(path, config, options, revision=wanted, asked=asked)
        self._commits[task] = found.commit
        return found.splits

    def revision(self, task: str) -> str:
        """The hub commit that a task's splits were read at, or LOCAL."""
        return self._commits.get(task, LOCAL)

    def _named_split(self, files: Mapping[str, Sequence[str]], split: str, *, beside: Path) -> Any:
        if split not in files:
            raise DatasetUnavailable(f"The task names no data file for its split {split}", hint="Add it to data_files")
        tables = [self._table(_existing(name, beside), ()) for name in files[split]]
        return tables[0] if len(tables) == 1 else datasets.concatenate_datasets(tables)

    def _local_split(self, root: Path, path: str, config: str | None, split: str) -> Any:
        tried = list(self.candidates(root, path, config, split))
        found = next((file for file in tried if file.is_file()), None)
        if found is None:
            raise DatasetUnavailable(
                f"Data set {label(path, config)}, split {split}, is not in {root}: looked for {_listed(tried, root)}",
                hint="Put its JSONL file there, or give another directory with --data-dir or QUALAB_DATA_DIR",
            )
        return self._table(found, self.catalog.datasets.get(path, DatasetEntry()).columns_of(config))

    def candidates(self, root: Path, path: str, config: str | None, split: str) -> Iterator[Path]:
        """Files that may hold a split, in order of preference."""
        owner, _, name = path.rpartition("/")
        patterns = self.catalog.datasets.get(path, DatasetEntry()).files or (
            ANY_DATASET if config else ANY_DATASET_UNCONFIGURED
        )
        for pattern in patterns:
            yield root / pattern.format(owner=owner or name, name=name, config=config or "default", split=split)

    def _table(self, file: Path, required: Sequence[str]) -> Any:
        if file not in self._read:
            self._read[file] = in_memory(read_table(file, required=required))
        return self._read[file]

    def _from_hub(
        self, path: str, config: str | None, options: Mapping[str, Any], *, revision: str, asked: str
    ) -> FromHub:
        resolved = self._resolved.get((path, revision), revision)
        try:
            found = _loaded(path, config, lambda: load_from_hub(path, config, revision=resolved, options=options))
        except DatasetUnavailable as exc:
            wanted = _listed(list(self.candidates(Path(), path, config, asked)), Path())
            online = "unset HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "go online"
            raise DatasetUnavailable(
                f"{exc.message}, and there is no data directory",
                hint=f"Give a directory that holds {wanted} with --data-dir or QUALAB_DATA_DIR, or {online}",
            ) from exc
        self._resolved[path, revision] = found.commit
        return found


def label(path: str | None, config: str | None) -> str:
    """A data set and its configuration, as "skt/kobest_v1:boolq"."""
    return f"{path}:{config}" if path and config else path or ""


def is_local(path: str) -> bool:
    """Whether a dataset_path names files and not a data set of the hub."""
    return path in PACKAGED or path.startswith(("/", ".", "~"))


def in_memory(table: Table) -> Any:
    """A Dataset that touches no cache directory. Raises BadDataFile where a column mixes types."""
    columns = table.as_columns()
    try:
        return datasets.Dataset.from_dict(columns)
    except CONVERSION_ERRORS as exc:
        raise _mixed_types(table) from exc


def _mixed_types(table: Table) -> QualabError:
    hint = "A column holds one type in all lines"
    for name, values in table.as_columns().items():
        typical = next((value for value in values if value is not None), None)
        for line, value in zip(table.lines, values, strict=True):
            try:
                datasets.Dataset.from_dict({name: [typical, value]})
            except CONVERSION_ERRORS:
                found = f"{name} is {type(value).__name__} and {type(typical).__name__} before"
                return BadDataFile(f"{table.path}, line {line}: {found}", hint=hint)
    return BadDataFile(f"{table.path}: a column mixes types", hint=hint)


def _loaded(path: str, config: str | None, load: Callable[[], T]) -> T:
    try:
        return load()
    except QualabError:
        raise
    except Exception as exc:  # whatever the library's many backends raise
        lines = str(exc).strip().splitlines()
        reason = lines[0] if lines else type(exc).__name__
        raise DatasetUnavailable(f"Data set {label(path, config)} cannot be loaded ({reason})") from exc


def _named_files(path: str, options: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """The JSONL files that a task names itself, by split; empty where it names none or files of another kind."""
    named = options.get("data_files")
    if path != "json" or not named:
        return {}
    by_split: Mapping[str, Any] = named if isinstance(named, Mapping) else {"train": named}
    files: dict[str, Sequence[str]] = {
        split: [one] if isinstance(one, str) else list(one) for split, one in by_split.items()
    }
    ours = all(name.endswith((".jsonl", ".ndjson")) and "://" not in name for group in files.values() for name in group)
    return files if ours else {}


def _existing(name: str, beside: Path) -> Path:
    tried = [Path(name).expanduser(), beside / name]
    found = next((file for file in tried if file.is_file()), None)
    if found is None:
        raise DatasetUnavailable(
            f"Data file {name} is neither in the working directory nor in {beside}",
            hint="Correct data_files in the task's YAML",
        )
    return found


def _listed(files: Sequence[Path], root: Path) -> str:
    return " or ".join(str(file.relative_to(root)) for file in files)

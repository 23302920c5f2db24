"""Data sets of tasks: JSON Lines files, with the line named where something is wrong, and the hub."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import huggingface_hub
import orjson
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from qualab.errors import BadDataFile, DatasetUnavailable, QualabError
from qualab.harness.catalog import Catalog, DatasetEntry
from qualab.model.items import JsonObject
from qualab.model.plan import commit_of

BOM = b"\xef\xbb\xbf"
CONVERSION_ERRORS = (TypeError, ValueError, OverflowError, NotImplementedError)
"""Bases of what pyarrow raises when values do not fit one type."""


def read_table(path: Path, *, required: Sequence[str] = ()) -> dict[int, JsonObject]:
    """Read JSON objects, one a line, by the line's number from 1; blank lines are skipped.

    `required` are columns that every line must have (default: the first line's).
    Raises DatasetUnavailable (the file cannot be opened), BadDataFile (file and line).
    """
    try:
        content = path.read_bytes().removeprefix(BOM)
    except OSError as exc:
        hint = "Check the file and its rights"
        raise DatasetUnavailable(f"{path} cannot be read: {exc.strerror or exc}", hint=hint) from exc
    rows: dict[int, JsonObject] = {}
    columns = tuple(required)

    def expected() -> str:
        return "Expected one JSON object a line" + (f" with the columns {', '.join(columns)}" if columns else "")

    # only \n ends a line: U+2028 and its kin may stand inside a JSON string
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as exc:
            raise BadDataFile(f"{path}, line {number}: not JSON ({exc})", hint=expected()) from exc
        if not isinstance(row, dict):
            raise BadDataFile(f"{path}, line {number}: not a JSON object", hint=expected())
        if missing := [name for name in columns if name not in row]:
            raise BadDataFile(f"{path}, line {number}: no column {', '.join(missing)}", hint=expected())
        columns = columns or tuple(row)
        rows[number] = row
    if not rows:
        raise BadDataFile(f"{path} holds no items", hint=expected())
    return rows


def in_memory(path: Path, rows: Mapping[int, JsonObject]) -> Any:
    """Make a Dataset that touches no cache directory. Raises BadDataFile where a column mixes types."""
    names = dict.fromkeys(name for row in rows.values() for name in row)
    columns = {name: [row.get(name) for row in rows.values()] for name in names}
    hint = "A column holds one type in all lines"
    try:
        return datasets.Dataset.from_dict(columns)
    except CONVERSION_ERRORS as exc:
        for name, values in columns.items():
            typical = next((value for value in values if value is not None), None)
            for line, value in zip(rows, values, strict=True):
                try:
                    datasets.Dataset.from_dict({name: [typical, value]})
                except CONVERSION_ERRORS:
                    types = f"{type(value).__name__} and {type(typical).__name__} before"
                    raise BadDataFile(f"{path}, line {line}: {name} is {types}", hint=hint) from exc
        raise BadDataFile(f"{path}: a column mixes types", hint=hint) from exc


RESOLVE_S = 5.0
"""How long the hub has to say which commit a revision is; the libraries would retry for half a minute."""


def load_from_hub(path: str, config: str | None, *, revision: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Load the splits of a data set with their commit; from the library's cache where the hub cannot be reached.

    Raises DatasetUnavailable, and whatever the library raises, within ten seconds where the hub cannot be reached.
    """
    commit = commit_of(revision)
    with ExitStack() as stack:
        if newest := commit_on_hub(path, revision):
            commit = commit or newest
        else:
            stack.enter_context(patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True))
            stack.enter_context(patch.object(datasets.config, "HF_HUB_OFFLINE", True))
        builder = datasets.load_dataset_builder(path, config, **{**options, "revision": commit or revision})
        read = commit_of(str(builder.hash or ""))
        if commit and read and read != commit:  # without a hub the library gives what it read last
            raise DatasetUnavailable(
                f"Data set {path} is in the cache at commit {read}, not at {commit}, and the hub cannot be reached"
            )
        builder.download_and_prepare()
        return builder.as_dataset(), commit or read or revision


def commit_on_hub(path: str, revision: str) -> str:
    """Ask for the commit of a revision; empty where the hub does not answer. Raises DatasetUnavailable."""
    if huggingface_hub.constants.is_offline_mode() or datasets.config.HF_HUB_OFFLINE:
        return ""
    answer: Future[str] = Future()

    def ask() -> None:
        api = huggingface_hub.HfApi(endpoint=huggingface_hub.constants.ENDPOINT)
        try:
            answer.set_result(str(api.dataset_info(path, revision=revision, timeout=RESOLVE_S).sha))
        except Exception as exc:  # raised again in the caller's thread
            answer.set_exception(exc)

    threading.Thread(target=ask, daemon=True).start()  # resolving a host name knows no time limit
    try:
        return answer.result(RESOLVE_S)
    except RevisionNotFoundError as exc:
        raise DatasetUnavailable(f"Data set {path} has no revision {revision} on the hub") from exc
    except RepositoryNotFoundError as exc:
        raise DatasetUnavailable(f"Data set {path} is not on the hub, or not open to you") from exc
    except Exception:  # whatever the library's clients raise where nobody answers, or not as a hub does
        return ""


LOCAL = "local"
NEWEST = "main"

PACKAGED = frozenset({"json", "csv", "parquet", "text", "arrow", "pandas", "xml", "webdataset"})
"""Builders of the datasets library, which read files that the task names itself."""

ANY_DATASET = (
    "{owner}/{name}/{config}/{split}.jsonl",
    "{name}/{config}/{split}.jsonl",
    "{name}/{config}_{split}.jsonl",
    "{name}/{config}.jsonl",
)
"""Where a data set without a catalog entry is looked for."""
ANY_DATASET_UNCONFIGURED = ("{owner}/{name}/{split}.jsonl", "{name}/{split}.jsonl")


class Splits(dict[str, Any]):
    """Splits of a data set, each read when first asked for: one that no task needs may be missing."""

    def __init__(self, read: Callable[[str], Any]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, split: str) -> Any:
        self[split] = self._read(split)
        return self[split]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Finds and reads the data sets of one load, each once."""

    catalog: Catalog
    tasks_dir: Path
    data_dir: Path | None
    planned: Mapping[str, str] = field(default_factory=dict)
    """Hub commits that a plan records, by task: these are read, whatever is newest now."""
    commits: dict[str, str] = field(default_factory=dict)
    """Hub commit of each task whose splits were read there."""
    _read: dict[Path, Any] = field(default_factory=dict)
    _resolved: dict[tuple[str, str], str] = field(default_factory=dict)

    def splits(
        self,
        path: str,
        config: str | None,
        options: Mapping[str, Any],
        *,
        task: str,
        beside: Path,
        items_split: str = "test",
    ) -> Any:
        """Find the splits of a task's data set. `beside` is the folder of its YAML, `items_split` that of its items.

        Raises DatasetUnavailable, BadDataFile; for local files only when a split is asked for.
        """
        entry = self.catalog.datasets.get(path, DatasetEntry())
        if files := _named_files(path, options):
            return Splits(lambda split: self._named_split(files, split, beside=beside))
        is_local = path in PACKAGED or path.startswith(("/", ".", "~"))
        root = self.tasks_dir if entry.bundled else self.data_dir
        if root is not None and (entry.bundled or not is_local):
            return Splits(lambda split: self._local_split(root, path, config, split))
        revision = str(self.planned.get(task) or options.get("revision") or entry.revision or NEWEST)
        try:
            if is_local:
                return datasets.load_dataset(path, config, **options)
            known = self._resolved.get((path, revision), revision)
            splits, commit = load_from_hub(path, config, revision=known, options=options)
        except Exception as exc:  # whatever the library's many backends raise
            reason = (str(exc).strip() or type(exc).__name__).splitlines()[0]
            cannot = f"Data set {label(path, config)} cannot be loaded ({reason})"
            if is_local:
                raise DatasetUnavailable(cannot) from exc
            candidates = _listed(list(self._candidates(Path(), path, config, items_split)), Path())
            online = "unset HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "go online"
            raise DatasetUnavailable(
                f"{exc.message if isinstance(exc, QualabError) else cannot}, and there is no data directory",
                hint=f"Give a directory that holds {candidates} with --data-dir or QUALAB_DATA_DIR, or {online}",
            ) from exc
        self._resolved[path, revision] = self.commits[task] = commit
        return splits

    def _named_split(self, files: Mapping[str, Sequence[str]], split: str, *, beside: Path) -> Any:
        if split not in files:
            raise DatasetUnavailable(f"The task names no data file for its split {split}", hint="Add it to data_files")
        tables = []
        for name in files[split]:
            file = next((path for path in (Path(name).expanduser(), beside / name) if path.is_file()), None)
            if file is None:
                raise DatasetUnavailable(
                    f"Data file {name} is neither in the working directory nor in {beside}",
                    hint="Correct data_files in the task's YAML",
                )
            tables.append(self._table(file, ()))
        return tables[0] if len(tables) == 1 else datasets.concatenate_datasets(tables)

    def _local_split(self, root: Path, path: str, config: str | None, split: str) -> Any:
        candidates = list(self._candidates(root, path, config, split))
        file = next((file for file in candidates if file.is_file()), None)
        if file is None:
            looked_for = _listed(candidates, root)
            raise DatasetUnavailable(
                f"Data set {label(path, config)}, split {split}, is not in {root}: looked for {looked_for}",
                hint="Put its JSONL file there, or give another directory with --data-dir or QUALAB_DATA_DIR",
            )
        return self._table(file, self.catalog.datasets.get(path, DatasetEntry()).columns_of(config))

    def _candidates(self, root: Path, path: str, config: str | None, split: str) -> Iterator[Path]:
        # in order of preference
        owner, _, name = path.rpartition("/")
        unlisted = ANY_DATASET if config else ANY_DATASET_UNCONFIGURED
        for pattern in self.catalog.datasets.get(path, DatasetEntry()).files or unlisted:
            yield root / pattern.format(owner=owner or name, name=name, config=config or "default", split=split)

    def _table(self, file: Path, required: Sequence[str]) -> Any:
        if file not in self._read:
            self._read[file] = in_memory(file, read_table(file, required=required))
        return self._read[file]


def label(path: str | None, config: str | None) -> str:
    """Name a data set and its configuration, as "skt/kobest_v1:boolq"."""
    return f"{path}:{config}" if path and config else path or ""


def _named_files(path: str, options: Mapping[str, Any]) -> dict[str, list[str]]:
    # JSONL files that a task names itself, by split; empty where it names none or files of another kind
    named = options.get("data_files")
    if path != "json" or not named:
        return {}
    by_split = named if isinstance(named, Mapping) else {"train": named}
    files = {split: [names] if isinstance(names, str) else list(names) for split, names in by_split.items()}
    ours = all(name.endswith((".jsonl", ".ndjson")) and "://" not in name for names in files.values() for name in names)
    return files if ours else {}


def _listed(files: Sequence[Path], root: Path) -> str:
    return " or ".join(str(file.relative_to(root)) for file in files)

"""Data sets of tasks: JSON Lines files, with the line named where something is wrong, and the hub."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import datasets
import huggingface_hub
import orjson
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from qualab.errors import BadDataFile, DatasetUnavailable, EmptyDataset, QualabError
from qualab.harness.catalog import Catalog, DatasetEntry
from qualab.harness.patching import replaced
from qualab.model.items import JsonObject
from qualab.model.plan import commit_of

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows of one file. Every row has every required column."""

    path: Path
    rows: list[JsonObject]
    lines: list[int]
    """Line number of each row, from 1."""

    def as_columns(self) -> dict[str, list[Any]]:
        """Values by column, columns in the order of their first mention."""
        names = dict.fromkeys(key for row in self.rows for key in row)
        return {name: [row.get(name) for row in self.rows] for name in names}


def read_table(path: Path, *, required: Sequence[str] = ()) -> Table:
    """Reads one JSON object a line; blank lines are skipped.

    `required` are the columns that every line must have; where it is empty, those of the first line.
    Raises DatasetUnavailable (the file cannot be opened), BadDataFile (file and line), EmptyDataset.
    """
    try:
        content = path.read_bytes().removeprefix(BOM)
    except OSError as exc:
        reason = exc.strerror or str(exc)
        raise DatasetUnavailable(f"{path} cannot be read: {reason}", hint="Check the file and its rights") from exc
    table = Table(path=path, rows=[], lines=[])
    wanted = tuple(required)
    # only \n ends a line: U+2028 and its kin may stand inside a JSON string
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            row = _row(path, number, line, wanted)
            wanted = wanted or tuple(row)
            table.rows.append(row)
            table.lines.append(number)
    if not table.rows:
        raise EmptyDataset(f"{path} holds no items", hint=_expectation(wanted))
    return table


def _row(path: Path, number: int, line: bytes, wanted: Sequence[str]) -> JsonObject:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as exc:
        raise BadDataFile(f"{path}, line {number}: not JSON ({exc})", hint=_expectation(wanted)) from exc
    if not isinstance(row, dict):
        raise BadDataFile(f"{path}, line {number}: not a JSON object", hint=_expectation(wanted))
    missing = [name for name in wanted if name not in row]
    if missing:
        raise BadDataFile(f"{path}, line {number}: no column {', '.join(missing)}", hint=_expectation(wanted))
    return row


def _expectation(wanted: Sequence[str]) -> str:
    columns = f" with the columns {', '.join(wanted)}" if wanted else ""
    return f"Expected one JSON object a line{columns}"


T = TypeVar("T")

PROBE_S = 3.0
"""How long the hub has to answer at all."""
RESOLVE_S = 6.0
"""How long it has to say which commit a branch is at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FromHub:
    """A data set as it was read."""

    splits: Any
    commit: str
    """Of the hub, or what was asked for where the library's cache does not tell."""


def load_from_hub(path: str, config: str | None, *, revision: str, options: Mapping[str, Any]) -> FromHub:
    """The splits of a data set at a commit, or at the commit that a branch or tag is at now; from the library's own
    cache where the hub cannot be reached.

    Raises DatasetUnavailable, and whatever the library raises, within ten seconds where the hub cannot be reached.
    """
    with _without_waiting() as is_online:
        commit = commit_of(revision)
        if not commit and is_online:
            commit = newest_commit(path, revision)
        builder = datasets.load_dataset_builder(path, config, **{**options, "revision": commit or revision})
        read = commit_of(str(builder.hash or ""))
        if commit and read and read != commit:  # without a hub the library gives what it read last
            raise DatasetUnavailable(
                f"Data set {path} is in the cache at commit {read}, not at {commit}, and the hub cannot be reached"
            )
        builder.download_and_prepare()
        return FromHub(splits=builder.as_dataset(), commit=commit or read or revision)


def newest_commit(path: str, revision: str) -> str:
    """The commit that a branch or tag is at now. Raises DatasetUnavailable, and whatever the library raises."""
    api = huggingface_hub.HfApi(endpoint=huggingface_hub.constants.ENDPOINT)
    try:
        info = within(RESOLVE_S, lambda: api.dataset_info(path, revision=revision, timeout=RESOLVE_S))
    except RevisionNotFoundError as exc:
        raise DatasetUnavailable(f"Data set {path} has no revision {revision} on the hub") from exc
    except RepositoryNotFoundError as exc:
        raise DatasetUnavailable(f"Data set {path} is not on the hub, or not open to you") from exc
    return str(info.sha)


@contextmanager
def _without_waiting() -> Iterator[bool]:
    """Goes offline where the hub does not answer: the libraries would retry for half a minute otherwise."""
    with ExitStack() as stack:
        is_online = is_reachable()
        if not is_online:
            stack.enter_context(replaced(huggingface_hub.constants, "HF_HUB_OFFLINE", True))
            stack.enter_context(replaced(datasets.config, "HF_HUB_OFFLINE", True))
        yield is_online


def is_reachable() -> bool:
    """Whether the hub may be asked and answers HTTP at all, whatever it says."""
    if huggingface_hub.constants.is_offline_mode() or datasets.config.HF_HUB_OFFLINE:
        return False

    def probe() -> bool:
        request = urllib.request.Request(huggingface_hub.constants.ENDPOINT, method="HEAD")
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=PROBE_S).close()
        return True

    try:
        return within(PROBE_S, probe)
    except OSError:
        return False


def within(timeout_s: float, job: Callable[[], T]) -> T:
    """What a job gives, or raises. Raises TimeoutError. In a thread, as resolving a name knows no time limit."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(job())
        except Exception as exc:  # raised again in the caller's thread
            outcome.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    try:
        return outcome.result(timeout_s)
    except TimeoutError as exc:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from exc


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
        if path in PACKAGED or path.startswith(("/", ".", "~")):
            with _without_waiting():
                return _loaded(path, config, lambda: datasets.load_dataset(path, config, **options))
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

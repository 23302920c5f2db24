"""Read log files line by line and object by object: gzip, byte order marks, files that end too early."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import Any

import orjson

from qualab.errors import BadLog
from qualab.model.items import JsonObject
from qualab.model.logged import LoggedRow

BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
NOT_LOGS = {
    (b"version https://git-lfs",): ("is a Git LFS pointer, not the file itself", "Get the file first: git lfs pull"),
    (b"<!doctype", b"<html"): ("is an HTML page, not the file itself", "Download the file, not the page that shows it"),
    (b"\xff\xfe", b"\xfe\xff"): ("is UTF-16 text", "Save it as UTF-8"),
}
"""Files that a download or an editor leaves in place of a log: first bytes -> what it is, and what to do."""
DATE = r"(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)"
"""Matches the time that lm-eval and lighteval write into file names."""
PARQUET_ROWS = 500
"""In memory at a time."""

Objects = Iterator[tuple[int, JsonObject]]
"""Objects with the line on which each begins, from 1."""


class BadRow(Exception):
    """A row that is not what its format says; `read_rows` adds file and line."""


def read_rows(
    files: Mapping[str, Path],
    read: Callable[..., Objects],
    make: Callable[[str, int, JsonObject], LoggedRow],
    *,
    needed: Sequence[str],
    expected: str,
) -> Iterator[LoggedRow]:
    """Make a row of each task's objects and their lines. Raises BadLog."""
    for task, path in files.items():
        for line, values in read(path, expected=expected):
            try:
                if missing := [key for key in needed if key not in values]:
                    raise BadRow(f"has no {missing[0]}")
                row = make(task, line, values)
            except BadRow as bad:
                raise wrong(path, line, str(bad), expected) from bad
            yield row


def wrong(path: Path, line: int, problem: str, expected: str) -> BadLog:
    """Make an error that names file, line and what was expected."""
    return BadLog(f"{path}, line {line}: {problem}", hint=f"Expected {expected}")


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a file that is what its name says. Raises BadLog, for errors of the system inside, too."""
    try:
        with path.open("rb") as file:
            begin = file.read(64).lstrip().lower()
            for starts, (description, hint) in NOT_LOGS.items():
                if begin.startswith(starts):
                    raise BadLog(f"{path} {description}", hint=hint)
            file.seek(0)
            yield file
    except OSError as exc:
        hint = "Check the file and its permissions"
        raise BadLog(f"{path} cannot be read: {exc.strerror or exc}", hint=hint) from exc


def file_hashes(paths: Iterable[Path]) -> dict[str, str]:
    """Hash each file (SHA-256), by its absolute path. Raises BadLog."""
    hashes = {}
    for path in paths:
        with opened(path) as file:
            hashes[str(path.resolve())] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Read lines with their numbers, from 1, without a byte order mark. Raises BadLog."""
    with opened(path) as raw:
        is_gzip = raw.read(2) == GZIP
        raw.seek(0)
        try:
            for number, line in enumerate(gzip.GzipFile(fileobj=raw) if is_gzip else raw, 1):
                yield number, line.removeprefix(BOM) if number == 1 else line
        except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
            raise BadLog(f"{path} is damaged: {exc}", hint="Copy it again") from exc


def read_document(path: Path, *, expected: str) -> JsonObject:
    """Read a file that is one JSON object. Raises BadLog."""
    content = b"".join(line for _, line in lines(path))
    value = parsed(content)
    if not isinstance(value, dict):
        line = content.count(b"\n") + 1 if value is None and not content.rstrip().endswith(b"}") else 1
        raise wrong(path, line, "is not a JSON object", expected)
    return value


def json_objects(path: Path, *, expected: str) -> Objects:
    """Read one JSON object a line, one in memory at a time. Raises BadLog."""
    for number, line in lines(path):
        if line.strip():
            value = parsed(line)
            if not isinstance(value, dict):
                raise wrong(path, number, "is not a JSON object", expected)
            yield number, value


def parquet_rows(path: Path, *, expected: str) -> Objects:
    """Read rows as mappings, numbered from 1. Raises BadLog."""
    import pyarrow  # noqa: PLC0415
    import pyarrow.parquet  # noqa: PLC0415

    try:
        with opened(path) as raw, pyarrow.parquet.ParquetFile(raw) as file:
            batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=PARQUET_ROWS))
            yield from enumerate((row for batch in batches for row in batch), 1)
    except pyarrow.ArrowException as exc:
        reason = " ".join(str(exc).split())[:200]
        raise BadLog(f"{path} cannot be read as Parquet: {reason}", hint=f"Expected {expected}") from exc


def parsed(text: bytes) -> Any:
    """Parse JSON, NaN and Infinity included, which Python writes; None where it is none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None


def mapping(value: Any) -> JsonObject:
    """Return a mapping as it is, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:
    """Return a number as a float; None for anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def moment(value: Any) -> datetime | None:
    """Read seconds since 1970, ISO 8601 (UTC where it names no zone) or a file name's DATE; None for anything else."""
    if (seconds := number(value)) is not None:
        return datetime.fromtimestamp(seconds, UTC)
    text = str(value)
    if re.fullmatch(DATE, text):
        text = text[:11] + text[11:].replace("-", ":")
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)

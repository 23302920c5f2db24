"""Files line by line and object by object: gzip, byte order marks, files that end too early."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from qualab.errors import BadLog
from qualab.model.items import JsonObject
from qualab.model.logged import CutLine

BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
NOT_LOGS = (
    (b"version https://git-lfs", "is a Git LFS pointer, not the file itself", "Get the file first: git lfs pull"),
    (b"<!doctype", "is an HTML page, not the file itself", "Download the file, not the page that shows it"),
    (b"<html", "is an HTML page, not the file itself", "Download the file, not the page that shows it"),
    (b"\xff\xfe", "is UTF-16 text", "Save it as UTF-8"),
    (b"\xfe\xff", "is UTF-16 text", "Save it as UTF-8"),
)
"""What a download or an editor leaves in place of a log: how it begins, what it is, and what to do."""


class Numbered(NamedTuple):
    """A JSON object and the line on which it begins, from 1."""

    line: int
    value: JsonObject


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked where it is gzip. Raises BadLog."""
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == GZIP
            raw.seek(0)
            if not is_gzip:
                yield raw
                return
            with gzip.open(raw) as unpacked:
                yield unpacked  # type: ignore[misc]  # gzip's own class is not typed as IO
    except (gzip.BadGzipFile, zlib.error) as exc:
        raise BadLog(f"{path} is damaged: {exc}", hint="Copy it again") from exc
    except OSError as exc:
        raise BadLog(f"{path} cannot be read: {exc.strerror or exc}", hint="Check the file and its rights") from exc


def check_begin(path: Path, begin: bytes) -> None:
    """Raises BadLog where a file is something else than its name says."""
    for start, what, hint in NOT_LOGS:
        if begin.lstrip().lower().startswith(start):
            raise BadLog(f"{path} {what}", hint=hint)


def file_hashes(paths: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of each file by its absolute path. Raises BadLog."""
    found = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                check_begin(path, file.read(64))
                file.seek(0)
                found[str(path.resolve())] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as exc:
            raise BadLog(f"{path} cannot be read: {exc.strerror or exc}", hint="Check the file and its rights") from exc
    return found


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, from 1, without a byte order mark. A gzip file that is cut just ends."""
    with opened(path) as file:
        try:
            is_begun = False
            for number, line in enumerate(file, 1):
                if not is_begun and line.strip():
                    check_begin(path, line[:64])
                    is_begun = True
                yield number, line.removeprefix(BOM) if number == 1 else line
        except EOFError:  # the last line, as far as it came, is lost with the block that held it
            yield -1, b"{"


def read_document(path: Path, *, expected: str) -> JsonObject:
    """A file that is one JSON object. Raises BadLog."""
    content = b"".join(line for _, line in lines(path))
    value = parsed(content)
    if not isinstance(value, dict):
        line = content.count(b"\n") + 1 if value is None and not content.rstrip().endswith(b"}") else 1
        raise wrong(path, line, "is no JSON object", expected)
    return value


def json_objects(path: Path, *, expected: str) -> Iterator[Numbered | CutLine]:
    """One JSON object a line, or the objects of one JSON array that is indented by 2. Raises BadLog.

    Only one object is in memory at a time. A last line that was not written to its end is told, not an error.
    """
    number = 0
    for number, line in lines(path):
        if not line.strip():
            continue
        if line.lstrip()[:1] == b"[" and number == 1:
            yield from _array(path, expected)
            return
        value = parsed(line)
        if isinstance(value, dict):
            yield Numbered(number, value)
        elif value is None and not line.endswith(b"\n"):
            yield CutLine(file=path.name, line=number)
            return
        else:
            raise wrong(path, number, "is no JSON object", expected)


def _array(path: Path, expected: str) -> Iterator[Numbered | CutLine]:
    """What json.dump writes of a list of objects with an indent of 2."""
    parts: list[bytes] = []
    start = number = 0
    is_ended = False
    for number, line in lines(path):
        bare = line.rstrip()
        is_ended = bare.endswith(b"]") and not line.startswith(b"  ")
        if number == 1 and bare not in (b"[", b"[]"):
            yield from _whole_array(path, expected)
            return
        if bare == b"  {":
            parts, start = [line], number
        elif start:
            parts.append(line)
        if bare in (b"  }", b"  },") and start:
            value = parsed(b"".join(parts).rstrip().rstrip(b","))
            if not isinstance(value, dict):
                raise wrong(path, start, "is no JSON object", expected)
            yield Numbered(start, value)
            parts, start = [], 0
    if not is_ended:
        yield CutLine(file=path.name, line=number)


def _whole_array(path: Path, expected: str) -> Iterator[Numbered]:
    values = parsed(b"".join(line for _, line in lines(path)))
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise wrong(path, 1, "is no JSON array of objects", expected)
    yield from (Numbered(1, value) for value in values)


def parsed(text: bytes) -> Any:
    """A JSON value; None where the text is none. NaN and Infinity, which Python writes, are taken too."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None


def moment(text: Any) -> datetime | None:
    """A time in ISO 8601, taken for UTC where it names no zone; None for what is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def wrong(path: Path, line: int, what: str, expected: str) -> BadLog:
    """One sentence with file and line, and what was expected."""
    return BadLog(f"{path}, line {line}: {what}", hint=f"Expected {expected}")


ROWS = 500
"""In memory at a time."""


def read_parquet(path: Path, *, expected: str) -> Iterator[JsonObject]:
    """Rows as mappings. Raises BadLog."""
    import pyarrow  # noqa: PLC0415
    import pyarrow.parquet  # noqa: PLC0415

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as exc:
        if path.is_file():
            with path.open("rb") as raw:
                check_begin(path, raw.read(64))
        reason = " ".join(str(exc).split())[:200]
        raise BadLog(f"{path} cannot be read as Parquet: {reason}", hint=f"Expected {expected}") from exc

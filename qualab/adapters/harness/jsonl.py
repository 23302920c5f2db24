"""JSON Lines files as tables, with the line named where something is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from qualab.domain.items import JsonObject
from qualab.errors import BadDataFile, DatasetUnavailable, EmptyDataset

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows of one file. Every row has every required column."""

    path: Path
    rows: list[JsonObject]
    lines: list[int]
    """Line number of each row, from 1."""

    @property
    def columns(self) -> list[str]:
        """Every key, in the order of its first mention."""
        return list(dict.fromkeys(key for row in self.rows for key in row))

    def as_columns(self) -> dict[str, list[Any]]:
        return {name: [row.get(name) for row in self.rows] for name in self.columns}


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
    for number, line in _lines(content):
        row = _row(path, number, line, wanted)
        wanted = wanted or tuple(row)
        table.rows.append(row)
        table.lines.append(number)
    if not table.rows:
        raise EmptyDataset(f"{path} holds no items", hint=_expectation(wanted))
    return table


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    # only \n ends a line: U+2028 and its kin may stand inside a JSON string
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield number, line


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

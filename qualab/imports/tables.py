"""Plain tables of both arms' scores: CSV, JSON Lines or Parquet with the columns item, baseline and candidate."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from qualab.errors import BadLog
from qualab.imports.files import json_objects, lines, read_parquet, wrong
from qualab.model.logged import CutLine, LoggedRow, LoggedRun, LoggedTask
from qualab.model.names import ArmName

EXPECTED = (
    "columns item, baseline and candidate (a score each, empty where there is none); cluster and task as you like"
)
NEEDED = ("item", "baseline", "candidate")
_BOOLEANS = {"true": 1.0, "false": 0.0}


class _Line(NamedTuple):
    number: int
    values: Mapping[str, Any]


def open_table(path: Path) -> tuple[TableArm, TableArm]:
    """Both arms of a table. Raises BadLog with the file's line."""
    names = [name for name in path.name.lower().split(".")[1:] if name != "gz"]
    kind = names[-1] if names else ""
    if kind not in _READERS:
        raise BadLog(f"{path} is no table that is known", hint="Expected a .csv, .jsonl or .parquet file")
    baseline, candidate = (TableArm(path, kind, arm) for arm in ArmName)
    return baseline, candidate


@dataclass(frozen=True, slots=True)
class TableArm:
    """One arm's column."""

    path: Path
    kind: str
    arm: ArmName

    @property
    def run(self) -> LoggedRun:
        """A table tells nothing of how its scores came about."""
        name = self.path.name.split(".")[0]
        return LoggedRun(format="table", name=self.path.name, tasks={name: LoggedTask(name=name)})

    def rows(self) -> Iterator[LoggedRow | CutLine]:
        for line in _READERS[self.kind](self.path):
            yield line if isinstance(line, CutLine) else self._row(line)

    def _row(self, line: _Line) -> LoggedRow:
        if missing := [name for name in NEEDED if name not in line.values]:
            raise wrong(self.path, line.number, f"there is no column {missing[0]}", EXPECTED)
        values = line.values
        item = _text(values["item"])
        if not item:
            raise wrong(self.path, line.number, "the item has no name", EXPECTED)
        score = self._score(values[self.arm.value], line.number)
        return LoggedRow(
            task=_text(values.get("task")) or self.path.name.split(".")[0],
            filter="none",
            doc_id=None,
            name=item,
            doc={"item": item},
            target="",
            prompts=(),
            replies=(),
            scores={} if score is None else {"score": score},
            cluster=_text(values.get("cluster")),
        )

    def _score(self, value: Any, number: int) -> float | None:
        text = _text(value)
        if not text:
            return None
        if text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
        try:
            score = float(text)
        except ValueError as exc:
            what = f"the {self.arm} is {text[:40]!r}, which is no number"
            raise wrong(self.path, number, what, EXPECTED) from exc
        if not math.isfinite(score):
            raise wrong(self.path, number, f"the {self.arm} is {text!r}, which is no finite number", EXPECTED)
        return score


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _csv(path: Path) -> Iterator[_Line | CutLine]:
    """Separated by commas, semicolons or tabs, whichever the first line has."""
    content = b"".join(line for _, line in lines(path))
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = content[: exc.start].count(b"\n") + 1
        raise wrong(path, line, "is no UTF-8 text", EXPECTED) from exc
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
    if missing := [name for name in NEEDED if name not in reader.fieldnames]:
        raise wrong(path, 1, f"there is no column {missing[0]}", EXPECTED)
    for values in reader:
        if None in values or None in values.values():
            raise wrong(path, reader.line_num, f"has not {len(reader.fieldnames)} values as line 1", EXPECTED)
        yield _Line(reader.line_num, values)


def _json_lines(path: Path) -> Iterator[_Line | CutLine]:
    for one in json_objects(path, expected=EXPECTED):
        yield one if isinstance(one, CutLine) else _Line(one.line, one.value)


def _parquet(path: Path) -> Iterator[_Line | CutLine]:
    for number, values in enumerate(read_parquet(path, expected=EXPECTED), 1):
        yield _Line(number, values)


_READERS = {"csv": _csv, "tsv": _csv, "jsonl": _json_lines, "parquet": _parquet}

"""Read tables of both arms' scores: CSV, JSON Lines or Parquet with the columns item, baseline and candidate."""

from __future__ import annotations

import csv
import io
import math
from functools import partial
from pathlib import Path
from typing import Any

from qualab.errors import BadLog
from qualab.imports.files import BadRow, Objects, json_objects, lines, parquet_rows, read_rows, wrong
from qualab.model.items import JsonObject
from qualab.model.logged import Log, LoggedRow, LoggedRun, LoggedTask
from qualab.model.names import ArmName

EXPECTED = (
    "columns item, baseline and candidate (a score each, empty where there is none); cluster and task are optional"
)
NEEDED = ("item", "baseline", "candidate")


def open_table(path: Path) -> tuple[Log, Log]:
    """Open a table as both arms' logs. Raises BadLog with the file's line."""
    suffixes = [name for name in path.name.lower().split(".")[1:] if name != "gz"]
    readers = {"csv": _csv, "tsv": _csv, "jsonl": json_objects, "parquet": parquet_rows}
    reader = readers.get(suffixes[-1] if suffixes else "")
    if reader is None:
        raise BadLog(f"{path} is not a known kind of table", hint="Expected a .csv, .jsonl or .parquet file")
    name = path.name.split(".")[0]
    run = LoggedRun(format="table", name=path.name, tasks={name: LoggedTask(name=name)})

    def log(arm: ArmName) -> Log:
        return Log(
            run=run,
            rows=lambda: read_rows({name: path}, reader, partial(_row, arm), needed=NEEDED, expected=EXPECTED),
        )

    return log(ArmName.BASELINE), log(ArmName.CANDIDATE)


def _row(arm: ArmName, task: str, _: int, values: JsonObject) -> LoggedRow:
    item = _text(values["item"])
    if not item:
        raise BadRow("the item has no name")
    score = _score(_text(values[arm.value]), arm)
    return LoggedRow(
        task=_text(values.get("task")) or task,
        doc_id=None,
        name=item,
        doc={"item": item},
        target="",
        prompts=(),
        replies=(),
        scores={} if score is None else {"score": score},
        cluster=_text(values.get("cluster")),
    )


def _score(text: str, arm: ArmName) -> float | None:
    if not text:
        return None
    try:
        score = {"true": 1.0, "false": 0.0}.get(text.lower())
        score = float(text) if score is None else score
    except ValueError as exc:
        raise BadRow(f"the {arm} is {text[:40]!r}, not a number") from exc
    if not math.isfinite(score):
        raise BadRow(f"the {arm} is {text!r}, not a finite number")
    return score


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _csv(path: Path, *, expected: str) -> Objects:
    """Separated by commas, semicolons or tabs, whichever the first line has."""
    content = b"".join(line for _, line in lines(path))
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise wrong(path, content[: exc.start].count(b"\n") + 1, "is not UTF-8 text", expected) from exc
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
    if missing := [name for name in NEEDED if name not in reader.fieldnames]:
        raise wrong(path, 1, f"has no {missing[0]}", expected)
    for values in reader:
        if None in values or None in values.values():
            raise wrong(path, reader.line_num, f"does not have {len(reader.fieldnames)} values, as line 1", expected)
        yield reader.line_num, values

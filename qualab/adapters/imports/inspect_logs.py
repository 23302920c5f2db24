"""Inspect's `.eval` logs: a zip file of JSON, one file a sample; since 2026 its parts are packed with zstd."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from numbers import Real
from pathlib import Path
from typing import Any

import zstandard

from qualab.adapters.imports.files import parsed
from qualab.domain.items import JsonObject, Prompt
from qualab.domain.logged import CutLine, LoggedReply, LoggedRow, LoggedRun, LoggedTask
from qualab.domain.names import AnswerStatus
from qualab.errors import BadLog

EXPECTED = "an Inspect log (.eval): a zip file with header.json and samples/"
_ZSTD = 93
"""Zip's number of the method, which zipfile knows from Python 3.14 on."""
_LOCAL_HEADER = 30
_WORDS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""What Inspect's own value_to_float makes of them; the letters are correct, incorrect, partial and no answer."""


def open_inspect(path: Path, *, run: str = "") -> InspectLogs | None:
    """The newest log of each task in a folder, or the file itself; None where there is none. Raises BadLog."""
    if path.is_file():
        return InspectLogs([InspectLog(path)], others=0) if path.suffix == ".eval" else None
    found = sorted((one for one in path.rglob("*.eval") if run in one.name), key=lambda one: one.name)
    logs = [InspectLog(one) for one in found]  # names begin with the time, so that a later one takes a task over
    newest = {log.task.name: log for log in logs}
    return InspectLogs(list(newest.values()), others=len(logs) - len(newest)) if newest else None


class InspectLogs:
    """The logs of one run, one of each task."""

    def __init__(self, logs: Sequence[InspectLog], *, others: int) -> None:
        self._logs = logs
        first = logs[0]
        more = f" and {len(logs) - 1} more" if len(logs) > 1 else ""
        tasks = {log.task.name: log.task for log in logs}
        self._run = replace(first.run, name=f"{first.run.name}{more}", others=others, tasks=tasks)

    @property
    def run(self) -> LoggedRun:
        return self._run

    def rows(self) -> Iterator[LoggedRow | CutLine]:
        for log in self._logs:
            yield from log.rows()


class InspectLog:
    """One task's log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._archive() as archive:
            header = archive.document("header.json")
            self._names = archive.samples()
        self.run = _run_of(header, path)
        (self.task,) = self.run.tasks.values()

    def rows(self) -> Iterator[LoggedRow | CutLine]:
        with self._archive() as archive:
            for name in self._names:
                yield _row(self.task.name, archive.document(name), f"{self._path}, {name}")

    @contextmanager
    def _archive(self) -> Iterator[_Archive]:
        try:
            with zipfile.ZipFile(self._path) as archive:
                yield _Archive(self._path, archive)
        except (zipfile.BadZipFile, zstandard.ZstdError, EOFError) as exc:
            raise BadLog(f"{self._path} is no zip file, or a damaged one: {exc}", hint=f"Expected {EXPECTED}") from exc
        except OSError as exc:
            raise BadLog(f"{self._path} cannot be read: {exc.strerror or exc}", hint="Check its rights") from exc


class _Archive:
    """The JSON files of an open log."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path = path
        self._archive = archive

    def samples(self) -> list[str]:
        """Names of the samples' files in the order of the zip file. Raises BadLog."""
        names = [name for name in self._archive.namelist() if name.startswith("samples/") and name.endswith(".json")]
        if not names:
            raise BadLog(f"{self._path} holds no samples", hint="Run inspect eval with --log-samples")
        return names

    def document(self, name: str) -> JsonObject:
        """Raises BadLog."""
        try:
            value = parsed(self._content(name))
        except KeyError as exc:
            raise BadLog(f"{self._path} has no {name}: the run did not end", hint=f"Expected {EXPECTED}") from exc
        if not isinstance(value, dict):
            raise BadLog(f"{self._path}, {name} is no JSON object", hint=f"Expected {EXPECTED}")
        return value

    def _content(self, name: str) -> bytes:
        info = self._archive.getinfo(name)
        if info.compress_type != _ZSTD:
            return self._archive.read(info)
        with self._path.open("rb") as file:
            file.seek(info.header_offset)
            n_name, n_extra = struct.unpack("<HH", file.read(_LOCAL_HEADER)[26:])
            file.seek(info.header_offset + _LOCAL_HEADER + n_name + n_extra)
            packed = file.read(info.compress_size)
        content = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
        if zlib.crc32(content) != info.CRC:
            raise zipfile.BadZipFile(f"bad checksum of {name}")
        return content


def _run_of(header: Mapping[str, Any], path: Path) -> LoggedRun:
    spec = _mapping(header.get("eval"))
    task = str(spec.get("task") or path.stem)
    dataset = _mapping(spec.get("dataset"))
    config = _mapping(spec.get("model_generate_config"))
    scorers = [str(_mapping(one).get("name")) for one in _mapping(header.get("results")).get("scores") or ()]
    return LoggedRun(
        format="Inspect",
        name=path.name,
        harness_version=str(_mapping(spec.get("packages")).get("inspect_ai") or ""),
        date=_moment(spec.get("created")),
        model=str(spec.get("model") or ""),
        is_chat=True,
        limit=_limit(_mapping(spec.get("config")).get("limit")),
        settings={"system instruction": str(config.get("system_message") or "")},
        tasks={
            task: LoggedTask(
                name=task,
                version=str(spec.get("task_version") or ""),
                n_available=dataset.get("samples") if isinstance(dataset.get("samples"), int) else None,
                dataset=str(dataset.get("location") or dataset.get("name") or ""),
                config=_mapping(header.get("plan")),
                generation=config,
                scoring=json.dumps(scorers),
            )
        },
    )


def _row(task: str, sample: JsonObject, where: str) -> LoggedRow:
    if missing := [key for key in ("id", "input", "scores") if key not in sample]:
        raise BadLog(f"{where} is no sample, it has no {missing[0]}", hint=f"Expected {EXPECTED}")
    text = _text(sample["input"])
    target = sample.get("target")
    return LoggedRow(
        task=task,
        filter="none",
        doc_id=sample["id"] if isinstance(sample["id"], int) else None,
        name=str(sample["id"]),
        doc={"input": text, **{key: sample[key] for key in ("id", "choices", "metadata") if sample.get(key)}},
        target=target if isinstance(target, str) else json.dumps(target, ensure_ascii=False),
        prompts=(Prompt(text=text),),
        replies=(_reply(sample),),
        scores=dict(_scores(_mapping(sample["scores"]))) if not sample.get("error") else {},
        repeat=max(0, int(sample.get("epoch") or 1) - 1),
    )


def _reply(sample: Mapping[str, Any]) -> LoggedReply:
    output = _mapping(sample.get("output"))
    choices = output.get("choices") or [{}]
    usage = _mapping(output.get("usage"))
    stop = str(_mapping(choices[0]).get("stop_reason") or "")
    if error := _mapping(sample.get("error")):
        message = " ".join(str(error.get("message")).split())[:500]
        return LoggedReply(status=AnswerStatus.HTTP_ERROR, error=message, finish_reason=stop)
    return LoggedReply(
        text=str(output.get("completion") or ""),
        status=AnswerStatus.TRUNCATED if stop == "max_tokens" else AnswerStatus.OK,
        finish_reason=stop,
        prompt_tokens=usage.get("input_tokens"),
        completion_tokens=usage.get("output_tokens"),
    )


def _scores(scores: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for scorer, score in scores.items():
        value = _mapping(score).get("value")
        if isinstance(value, dict):
            yield from ((f"{scorer}/{name}", _number(one)) for name, one in value.items())
        else:
            yield scorer, _number(value)


def _number(value: Any) -> Any:
    """A word's worth; anything else as it is."""
    if isinstance(value, str):
        return _WORDS.get(value, _WORDS.get(value.lower(), value))
    return float(value) if isinstance(value, Real) else value


def _text(value: Any) -> str:
    """A prompt, or what the messages of a chat say; their ids are drawn anew in each run."""
    if isinstance(value, str):
        return value
    said = [{key: one.get(key) for key in ("role", "content")} for one in value if isinstance(one, dict)]
    return json.dumps(said, ensure_ascii=False)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _limit(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _moment(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None

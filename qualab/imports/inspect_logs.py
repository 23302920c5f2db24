"""Inspect's logs: `.eval`, a zip file of JSON with one file a sample, packed with zstd since 2026; or one JSON file."""

from __future__ import annotations

import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import zstandard

from qualab.errors import BadLog
from qualab.imports.files import check_begin, file_hashes, moment, parsed, read_document
from qualab.model.items import JsonObject, Prompt
from qualab.model.logged import NO_ANSWER, CutLine, LoggedReply, LoggedRow, LoggedRun, LoggedTask
from qualab.model.names import AnswerStatus

EXPECTED = "an Inspect log (.eval): a zip file with header.json and samples/"
EXPECTED_JSON = "an Inspect log (--log-format json): one object with eval, status and samples"
_JSON_LOG = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:')
"""How Inspect's own writer begins a JSON log."""
_ZSTD = 93
"""Zip's number of the method, which zipfile knows from Python 3.14 on."""
_LOCAL_HEADER = 30
_WORDS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""What Inspect's own value_to_float makes of them; the letters are correct, incorrect, partial and no answer."""


def open_inspect(path: Path, *, run: str = "") -> InspectLogs | None:
    """The newest log of each task in a folder, or the file itself; None where there is none. Raises BadLog."""
    if path.is_file():
        return InspectLogs([InspectLog(path)], others=0) if _is_log(path) else None
    found = sorted((one for one in path.rglob("*") if run in one.name and _is_log(one)), key=lambda one: one.name)
    logs = [InspectLog(one) for one in found]  # names begin with the time, so that a later one takes a task over
    newest = {log.task.name: log for log in logs}
    return InspectLogs(list(newest.values()), others=len(logs) - len(newest)) if newest else None


def _is_log(path: Path) -> bool:
    if path.suffix != ".json":
        return path.suffix == ".eval" and path.is_file()
    try:
        with path.open("rb") as file:
            return _JSON_LOG.match(file.read(200)) is not None
    except OSError:
        return False


class InspectLogs:
    """The logs of one run, one of each task."""

    def __init__(self, logs: Sequence[InspectLog], *, others: int) -> None:
        self._logs = logs
        for log in logs:
            log.check_ended()
        first = logs[0]
        more = f" and {len(logs) - 1} more" if len(logs) > 1 else ""
        tasks = {log.task.name: log.task for log in logs}
        files = file_hashes(log.path for log in logs)
        self._run = replace(first.run, name=f"{first.run.name}{more}", others=others, tasks=tasks, files=files)

    @property
    def run(self) -> LoggedRun:
        return self._run

    def rows(self) -> Iterator[LoggedRow | CutLine]:
        for log in self._logs:
            yield from log.rows()


class InspectLog:
    """One task's log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.suffix == ".json":
            header = read_document(path, expected=EXPECTED_JSON)
        else:
            with self._archive() as archive:
                header = archive.document("header.json")
        self._status = header.get("status", "success")
        self._n_planned = _n_planned(_mapping(header.get("eval")))
        self.run = _run_of(header, path)
        (self.task,) = self.run.tasks.values()

    def check_ended(self) -> None:
        """Raises BadLog for a run that broke off."""
        if self._status != "success":
            n_done = sum(not _is_cancelled(sample) for _, sample in self._samples())
            planned = f" of {self._n_planned}" if self._n_planned else ""
            raise BadLog(
                f"{self.path}: the run ended with status {self._status} after {n_done}{planned} samples",
                hint=f"Finish it (inspect eval-retry {self.path.name}), or take another run with --run",
            )

    def rows(self) -> Iterator[LoggedRow | CutLine]:
        """Raises BadLog where no sample has a score."""
        is_scored = False
        for name, sample in self._samples():
            row = _row(self.task.name, sample, f"{self.path}, {name}")
            is_scored = is_scored or bool(row.scores)
            yield row
        if not is_scored:
            raise BadLog(f"{self.path} has no scores", hint=f"Score it first: inspect score {self.path}")

    def _samples(self) -> Iterator[tuple[str, JsonObject]]:
        if self.path.suffix == ".json":
            samples = self._listed(read_document(self.path, expected=EXPECTED_JSON))
            yield from ((f"sample {number}", sample) for number, sample in enumerate(samples, 1))
            return
        with self._archive() as archive:
            for name in archive.samples():
                yield name, archive.document(name)

    def _listed(self, document: JsonObject) -> list[JsonObject]:
        samples = document.get("samples")
        if not isinstance(samples, list) or not samples or not all(isinstance(one, dict) for one in samples):
            raise BadLog(f"{self.path} holds no samples", hint="Run inspect eval with --log-samples")
        return samples

    @contextmanager
    def _archive(self) -> Iterator[_Archive]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield _Archive(self.path, archive)
        except (zipfile.BadZipFile, zstandard.ZstdError, EOFError) as exc:
            with self.path.open("rb") as file:
                check_begin(self.path, file.read(64))
            raise BadLog(f"{self.path} is no zip file, or a damaged one: {exc}", hint=f"Expected {EXPECTED}") from exc
        except OSError as exc:
            raise BadLog(f"{self.path} cannot be read: {exc.strerror or exc}", hint="Check its rights") from exc


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


def _is_cancelled(sample: JsonObject) -> bool:
    """Whether a sample was given up since another one failed."""
    return str(_mapping(sample.get("error")).get("message")).startswith("CancelledError")


def _n_planned(spec: Mapping[str, Any]) -> int | None:
    """Samples times epochs; None where the header does not tell."""
    n_items, epochs = _mapping(spec.get("dataset")).get("samples"), _mapping(spec.get("config")).get("epochs") or 1
    return n_items * epochs if isinstance(n_items, int) and isinstance(epochs, int) else None


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
        date=moment(spec.get("created")),
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
    if missing := [key for key in ("id", "input") if key not in sample]:
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
        has_more_answers=_has_more_answers(sample),
        scores=dict(_scores(_mapping(sample.get("scores")))) if not sample.get("error") else {},
        repeat=max(0, int(sample.get("epoch") or 1) - 1),
    )


def _reply(sample: Mapping[str, Any]) -> LoggedReply:
    output = _mapping(sample.get("output"))
    choice = _mapping((output.get("choices") or [{}])[0])
    usage = _mapping(output.get("usage"))
    stop = str(choice.get("stop_reason") or "")
    if error := _mapping(sample.get("error")):
        message = " ".join(str(error.get("message")).split())[:500]
        return LoggedReply(status=AnswerStatus.HTTP_ERROR, error=message, finish_reason=stop)
    completion = output.get("completion")
    text = completion if isinstance(completion, str) else _said(_mapping(choice.get("message")).get("content"))
    if text is None:
        return LoggedReply(status=AnswerStatus.NO_FINAL_ANSWER, error=NO_ANSWER, finish_reason=stop)
    return LoggedReply(
        text=text,
        status=AnswerStatus.TRUNCATED if stop == "max_tokens" else AnswerStatus.OK,
        finish_reason=stop,
        prompt_tokens=usage.get("input_tokens"),
        completion_tokens=usage.get("output_tokens"),
    )


def _said(content: Any) -> str | None:
    """A message's text without its reasoning; logs up to 0.3.95 have no completion beside it."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if _mapping(part).get("type") == "text")
    return content if isinstance(content, str) else None


def _has_more_answers(sample: Mapping[str, Any]) -> bool:
    """Whether more than one message or choice of the model went into the scores, as where it used tools."""
    messages = [one for one in sample.get("messages") or () if _mapping(one).get("role") == "assistant"]
    return len(messages) > 1 or len(_mapping(sample.get("output")).get("choices") or ()) > 1


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

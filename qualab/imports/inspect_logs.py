"""Read Inspect's logs: `.eval`, a zip of JSON with one file a sample, packed with zstd since 2026; or one JSON file."""

from __future__ import annotations

import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import zstandard

from qualab.errors import BadLog
from qualab.imports.files import file_hashes, mapping, moment, number, opened, parsed, read_document
from qualab.model.items import JsonObject, Prompt
from qualab.model.logged import Log, LoggedReply, LoggedRow, LoggedRun, LoggedTask
from qualab.model.names import AnswerStatus

EXPECTED = "an Inspect log (.eval): a zip file with header.json and samples/"
EXPECTED_JSON = "an Inspect log (--log-format json): one object with eval, status and samples"
JSON_LOG = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:')
"""How Inspect's own writer begins a JSON log."""
ZSTD = 93
"""Zip's number of the method, which zipfile knows from Python 3.14 on."""
LOCAL_HEADER = 30
WORDS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""Values by Inspect's own value_to_float; the letters are correct, incorrect, partial and no answer."""


def open_inspect(path: Path, *, run: str = "") -> Log | None:
    """Open the newest log of each task in a folder, or one file. None where there is none. Raises BadLog."""
    files = [path] if path.is_file() else sorted(path.rglob("*"), key=lambda file: file.name)
    headers = {file: _header(file) for file in files if (run in file.name or file == path) and _is_log(file)}
    newest = {_task_name(header, file): file for file, header in headers.items()}  # names begin with the time
    if not newest:
        return None
    for file in newest.values():
        _check_ended(file, headers[file])
    runs = [_run_of(headers[file], file) for file in newest.values()]
    return Log(
        run=replace(
            runs[0],
            name=runs[0].name + (f" and {len(runs) - 1} more" if len(runs) > 1 else ""),
            others=len(headers) - len(newest),
            tasks={name: task for run in runs for name, task in run.tasks.items()},
            files=file_hashes(newest.values()),
        ),
        rows=lambda: (row for task, file in newest.items() for row in _rows(task, file)),
    )


def _is_log(path: Path) -> bool:
    if path.suffix != ".json":
        return path.suffix == ".eval" and path.is_file()
    try:
        with path.open("rb") as file:
            return JSON_LOG.match(file.read(200)) is not None
    except OSError:
        return False


def _header(path: Path) -> JsonObject:
    if path.suffix == ".json":
        document = read_document(path, expected=EXPECTED_JSON)
        return {name: value for name, value in document.items() if name != "samples"}
    with _open_archive(path) as archive:
        return _read_part(path, archive, "header.json")


def _samples(path: Path) -> Iterator[tuple[str, JsonObject]]:
    none = BadLog(f"{path} holds no samples", hint="Run inspect eval with --log-samples")
    if path.suffix == ".json":
        samples = read_document(path, expected=EXPECTED_JSON).get("samples")
        if not isinstance(samples, list) or not samples:
            raise none
        yield from ((f"sample {number}", mapping(sample)) for number, sample in enumerate(samples, 1))
        return
    with _open_archive(path) as archive:
        names = [name for name in archive.namelist() if name.startswith("samples/") and name.endswith(".json")]
        if not names:
            raise none
        for name in names:
            yield name, _read_part(path, archive, name)


@contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with opened(path) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except (zipfile.BadZipFile, zstandard.ZstdError, EOFError) as exc:
        raise BadLog(f"{path} is not a zip file, or is damaged: {exc}", hint=f"Expected {EXPECTED}") from exc


def _read_part(path: Path, archive: zipfile.ZipFile, name: str) -> JsonObject:
    try:
        info = archive.getinfo(name)
    except KeyError as exc:
        raise BadLog(f"{path} has no {name}: the run did not end", hint=f"Expected {EXPECTED}") from exc
    value = parsed(_unpacked(path, info) if info.compress_type == ZSTD else archive.read(info))
    if not isinstance(value, dict):
        raise BadLog(f"{path}, {name} is not a JSON object", hint=f"Expected {EXPECTED}")
    return value


def _unpacked(path: Path, info: zipfile.ZipInfo) -> bytes:
    with path.open("rb") as file:
        file.seek(info.header_offset)
        n_name, n_extra = struct.unpack("<HH", file.read(LOCAL_HEADER)[26:])
        file.seek(info.header_offset + LOCAL_HEADER + n_name + n_extra)
        packed = file.read(info.compress_size)
    content = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    if zlib.crc32(content) != info.CRC:
        raise zipfile.BadZipFile(f"bad checksum of {info.filename}")
    return content


def _check_ended(path: Path, header: JsonObject) -> None:
    status = header.get("status", "success")
    if status == "success":
        return
    errors = (mapping(sample.get("error")) for _, sample in _samples(path))
    n_done = sum(not str(error.get("message")).startswith("CancelledError") for error in errors)
    spec = mapping(header.get("eval"))
    n_items, epochs = mapping(spec.get("dataset")).get("samples"), mapping(spec.get("config")).get("epochs") or 1
    planned = f" of {n_items * epochs}" if isinstance(n_items, int) and isinstance(epochs, int) else ""
    raise BadLog(
        f"{path}: the run ended with status {status} after {n_done}{planned} samples",
        hint=f"Finish it (inspect eval-retry {path.name}), or take another run with --run",
    )


def _task_name(header: JsonObject, path: Path) -> str:
    return str(mapping(header.get("eval")).get("task") or path.stem)


def _run_of(header: JsonObject, path: Path) -> LoggedRun:
    spec = mapping(header.get("eval"))
    dataset, config = mapping(spec.get("dataset")), mapping(spec.get("model_generate_config"))
    scorers = [str(mapping(score).get("name")) for score in mapping(header.get("results")).get("scores") or ()]
    name = _task_name(header, path)
    task = LoggedTask(
        name=name,
        version=str(spec.get("task_version") or ""),
        n_available=dataset.get("samples") if isinstance(dataset.get("samples"), int) else None,
        dataset=str(dataset.get("location") or dataset.get("name") or ""),
        config=mapping(header.get("plan")),
        generation=config,
        scoring=json.dumps(scorers),
    )
    return LoggedRun(
        format="Inspect",
        name=path.name,
        harness_version=str(mapping(spec.get("packages")).get("inspect_ai") or ""),
        date=moment(spec.get("created")),
        model=str(spec.get("model") or ""),
        limit=number(mapping(spec.get("config")).get("limit")),
        settings={"system instruction": str(config.get("system_message") or "")},
        tasks={name: task},
    )


def _rows(task: str, path: Path) -> Iterator[LoggedRow]:
    is_scored = False
    for name, sample in _samples(path):
        if missing := [key for key in ("id", "input") if key not in sample]:
            raise BadLog(f"{path}, {name}: has no {missing[0]}", hint=f"Expected {EXPECTED}")
        row = _row(task, sample)
        is_scored = is_scored or bool(row.scores)
        yield row
    if not is_scored:
        raise BadLog(f"{path} has no scores", hint=f"Score it first: inspect score {path}")


def _row(task: str, sample: JsonObject) -> LoggedRow:
    text, target, output = _prompt_text(sample["input"]), sample.get("target"), mapping(sample.get("output"))
    turns = [turn for turn in sample.get("messages") or () if mapping(turn).get("role") == "assistant"]
    return LoggedRow(
        task=task,
        doc_id=sample["id"] if isinstance(sample["id"], int) else None,
        name=str(sample["id"]),
        doc={"input": text, **{key: sample[key] for key in ("id", "choices", "metadata") if sample.get(key)}},
        target=target if isinstance(target, str) else json.dumps(target, ensure_ascii=False),
        prompts=(Prompt(text=text),),
        replies=(_reply(sample, output),),
        has_more_answers=len(turns) > 1 or len(output.get("choices") or ()) > 1,  # as where the model used tools
        scores={} if sample.get("error") else dict(_scores(mapping(sample.get("scores")))),
        repeat=max(0, int(sample.get("epoch") or 1) - 1),
    )


def _reply(sample: JsonObject, output: JsonObject) -> LoggedReply:
    choice = mapping((output.get("choices") or [{}])[0])
    stop = str(choice.get("stop_reason") or "")
    if error := mapping(sample.get("error")):
        message = " ".join(str(error.get("message")).split())[:500]
        return LoggedReply(status=AnswerStatus.HTTP_ERROR, error=message, finish_reason=stop)
    text = output.get("completion")
    if not isinstance(text, str):  # some logs tell it in the message alone, where reasoning stands apart
        text = mapping(choice.get("message")).get("content")
        if isinstance(text, list):
            parts = [part for part in map(mapping, text) if part.get("type") == "text"]
            text = "".join(str(part.get("text") or "") for part in parts)
    if not isinstance(text, str):
        return LoggedReply.missing(stop)
    usage = mapping(output.get("usage"))
    return LoggedReply(
        text=text,
        status=AnswerStatus.TRUNCATED if stop == "max_tokens" else AnswerStatus.OK,
        finish_reason=stop,
        prompt_tokens=usage.get("input_tokens"),
        completion_tokens=usage.get("output_tokens"),
    )


def _scores(scores: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for scorer, score in scores.items():
        value = mapping(score).get("value")
        if isinstance(value, dict):
            yield from ((f"{scorer}/{name}", _worth(part)) for name, part in value.items())
        else:
            yield scorer, _worth(value)


def _worth(value: Any) -> Any:
    if isinstance(value, str):
        return WORDS.get(value, WORDS.get(value.lower(), value))
    return float(value) if isinstance(value, Real) else value


def _prompt_text(value: Any) -> str:
    """Read a prompt, or the messages of a chat without their ids, which are drawn anew in each run."""
    if isinstance(value, str):
        return value
    messages = [{key: message.get(key) for key in ("role", "content")} for message in map(mapping, value)]
    return json.dumps(messages, ensure_ascii=False)

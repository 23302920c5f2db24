"""Bundles of NVIDIA NeMo Evaluator (0.3 and newer): eval-*.json with results.jsonl, one line a problem and repeat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qualab.errors import BadLog
from qualab.imports.files import Numbered, file_hashes, json_objects, moment, read_document, wrong
from qualab.model.items import JsonObject, Prompt
from qualab.model.logged import NO_ANSWER, CutLine, LoggedReply, LoggedRow, LoggedRun, LoggedTask
from qualab.model.names import AnswerStatus

RESULTS = "results.jsonl"
EXPECTED = "a line of NeMo Evaluator's results.jsonl: problem_idx and reward"
BUNDLE = "NeMo Evaluator's bundle: one object with benchmark.name"
_OF_THE_QUESTION = ("temperature", "max_tokens", "top_p", "seed", "shuffle_seed")


def open_nemo(path: Path, *, run: str = "") -> NemoLogs | None:
    """The newest bundle of each benchmark in a folder, or the file itself. None where there is none. Raises BadLog."""
    files = [path] if path.is_file() else sorted(path.rglob("eval-*.json"))
    bundles = [one for one in files if one.name.startswith("eval-") and one.suffix == ".json" and run in one.name]
    whole = {one: read_document(one, expected=BUNDLE) for one in bundles if (one.parent / RESULTS).exists()}
    if not whole:
        if bundles:
            raise BadLog(f"{bundles[0]} has no {RESULTS} beside it", hint="Scores problem by problem are needed")
        return None
    newest: dict[str, tuple[Path, JsonObject]] = {}
    for one, document in sorted(whole.items(), key=lambda pair: pair[0].name):  # names begin with the time
        newest[_name(one, document)] = (one, document)
    return NemoLogs(newest, others=len(whole) - len(newest))


def _name(path: Path, document: Mapping[str, Any]) -> str:
    name = _mapping(document.get("benchmark")).get("name")
    if not isinstance(name, str):
        raise wrong(path, 1, "has no benchmark.name", BUNDLE)
    return name


class NemoLogs:
    """One run's bundles, one a benchmark."""

    def __init__(self, bundles: Mapping[str, tuple[Path, JsonObject]], *, others: int) -> None:
        self._bundles = bundles
        path, document = next(iter(bundles.values()))
        config = _mapping(document.get("config"))
        more = f" and {len(bundles) - 1} more" if len(bundles) > 1 else ""
        self._run = LoggedRun(
            format="NeMo Evaluator",
            name=f"{path.name}{more}",
            others=others,
            harness_version=str(document.get("sdk_version") or ""),
            date=moment(document.get("timestamp")),
            model=str(config.get("model") or ""),
            is_chat=True,
            settings={"system instruction": str(config.get("system_prompt") or "")},
            tasks={name: _task(name, one) for name, (_, one) in bundles.items()},
            files=file_hashes(path.parent / RESULTS for path, _ in bundles.values()),
            reported={name: dict(_reported(one)) for name, (_, one) in bundles.items()},
        )

    @property
    def run(self) -> LoggedRun:
        return self._run

    def rows(self) -> Iterator[LoggedRow | CutLine]:
        for name, (path, _) in self._bundles.items():
            results = path.parent / RESULTS
            for one in json_objects(results, expected=EXPECTED):
                yield one if isinstance(one, CutLine) else _row(name, results, one)


def _task(name: str, document: Mapping[str, Any]) -> LoggedTask:
    config = _mapping(document.get("config"))
    settings = {key: config[key] for key in _OF_THE_QUESTION if config.get(key) is not None}
    return LoggedTask(name=name, config=config, generation=settings)


def _reported(document: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    score = _mapping(_mapping(_mapping(document.get("benchmark")).get("scores")).get("mean_reward")).get("value")
    if isinstance(score, (int, float)):
        yield "reward,none", float(score)


def _row(task: str, path: Path, numbered: Numbered) -> LoggedRow:
    line, row = numbered
    if missing := [key for key in ("problem_idx", "reward") if key not in row]:
        raise wrong(path, line, f"there is no {missing[0]}", EXPECTED)
    number, prompt = row["problem_idx"], row.get("prompt")
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False) if prompt else ""
    expected = row.get("expected_answer")
    return LoggedRow(
        task=task,
        filter="none",
        doc_id=number if isinstance(number, int) else None,
        name=str(number),
        doc={"problem_idx": number, "metadata": row.get("metadata") or {}},
        target=expected if isinstance(expected, str) else json.dumps(expected, ensure_ascii=False),
        prompts=(Prompt(text=text),) if text else (),
        replies=tuple(_replies(row)),
        scores={"reward": row["reward"]},
        repeat=row["repeat"] if isinstance(row.get("repeat"), int) else 0,
    )


def _replies(row: Mapping[str, Any]) -> Iterator[LoggedReply]:
    """The response, else what was extracted from it; nothing where a line tells neither."""
    answer = row.get("model_response", row.get("extracted_answer"))
    if answer is not None:
        yield LoggedReply(text=str(answer))
    elif "model_response" in row:
        yield LoggedReply(status=AnswerStatus.NO_FINAL_ANSWER, error=NO_ANSWER)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

"""Read bundles of NVIDIA NeMo Evaluator (0.3 or newer): eval-*.json with results.jsonl, a line a problem and repeat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qualab.errors import BadLog
from qualab.imports.files import file_hashes, json_objects, mapping, moment, number, read_document, read_rows, wrong
from qualab.model.items import JsonObject, Prompt
from qualab.model.logged import Log, LoggedReply, LoggedRow, LoggedRun, LoggedTask

RESULTS = "results.jsonl"
EXPECTED = "a line of NeMo Evaluator's results.jsonl: problem_idx and reward"
BUNDLE = "NeMo Evaluator's bundle: one object with benchmark.name"
GENERATION = ("temperature", "max_tokens", "top_p", "seed", "shuffle_seed")


def open_nemo(path: Path, *, run: str = "") -> Log | None:
    """Open the newest bundle of each benchmark in a folder, or a bundle's file. None where there is none."""
    files = [path] if path.is_file() else sorted(path.rglob("eval-*.json"))
    bundles = [file for file in files if file.match("eval-*.json") and run in file.name]
    whole = {file: read_document(file, expected=BUNDLE) for file in bundles if (file.parent / RESULTS).exists()}
    if not whole:
        if bundles:
            raise BadLog(f"{bundles[0]} has no {RESULTS} beside it", hint="Scores problem by problem are needed")
        return None
    newest: dict[str, tuple[Path, JsonObject]] = {}
    for file, document in sorted(whole.items(), key=lambda pair: pair[0].name):  # names begin with the time
        name = mapping(document.get("benchmark")).get("name")
        if not isinstance(name, str):
            raise wrong(file, 1, "has no benchmark.name", BUNDLE)
        newest[name] = (file, document)
    results = {name: file.parent / RESULTS for name, (file, _) in newest.items()}

    first, document = next(iter(newest.values()))
    config = mapping(document.get("config"))
    return Log(
        run=LoggedRun(
            format="NeMo Evaluator",
            name=first.name + (f" and {len(newest) - 1} more" if len(newest) > 1 else ""),
            others=len(whole) - len(newest),
            harness_version=str(document.get("sdk_version") or ""),
            date=moment(document.get("timestamp")),
            model=str(config.get("model") or ""),
            settings={"system instruction": str(config.get("system_prompt") or "")},
            tasks={name: _task(name, bundle) for name, (_, bundle) in newest.items()},
            files=file_hashes(results.values()),
            reported={name: _reported(bundle) for name, (_, bundle) in newest.items()},
        ),
        rows=lambda: read_rows(results, json_objects, _row, needed=("problem_idx", "reward"), expected=EXPECTED),
    )


def _task(name: str, document: JsonObject) -> LoggedTask:
    config = mapping(document.get("config"))
    settings = {key: config[key] for key in GENERATION if config.get(key) is not None}
    return LoggedTask(name=name, config=config, generation=settings)


def _reported(document: JsonObject) -> dict[str, float]:
    scores = mapping(mapping(document.get("benchmark")).get("scores"))
    reward = number(mapping(scores.get("mean_reward")).get("value"))
    return {} if reward is None else {"reward,none": reward}


def _row(task: str, _: int, row: Mapping[str, Any]) -> LoggedRow:
    problem, prompt, expected = row["problem_idx"], row.get("prompt"), row.get("expected_answer")
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False) if prompt else ""
    return LoggedRow(
        task=task,
        doc_id=problem if isinstance(problem, int) else None,
        name=str(problem),
        doc={"problem_idx": problem, "metadata": row.get("metadata") or {}},
        target=expected if isinstance(expected, str) else json.dumps(expected, ensure_ascii=False),
        prompts=(Prompt(text=text),) if text else (),
        replies=_replies(row),
        scores={"reward": row["reward"]},
        repeat=row["repeat"] if isinstance(row.get("repeat"), int) else 0,
    )


def _replies(row: Mapping[str, Any]) -> tuple[LoggedReply, ...]:
    """Read the response, else what was extracted from it; nothing where a line has neither."""
    answer = row.get("model_response", row.get("extracted_answer"))
    if answer is not None:
        return (LoggedReply(text=str(answer)),)
    return (LoggedReply.missing(),) if "model_response" in row else ()

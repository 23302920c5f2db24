"""lighteval's details (a Parquet file a task) with its results, as 0.11 to 0.13 write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from qualab.imports.files import file_hashes, read_document, read_parquet, wrong
from qualab.model.canonical import canonical_json
from qualab.model.items import Prompt
from qualab.model.logged import NO_ANSWER, CutLine, LoggedReply, LoggedRow, LoggedRun, LoggedTask
from qualab.model.names import AnswerStatus

EXPECTED = "lighteval's details: columns doc, model_response and metric (lighteval 0.11 or newer, --save-details)"
RESULTS = "lighteval's results: one object with config_general, results and versions"
_DATE = r"(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)"
_DETAILS = re.compile(rf"details_(?P<task>.+)_{_DATE}\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Details:
    """One task's file."""

    path: Path
    task: str
    date: str


def open_lighteval(path: Path, *, run: str = "") -> LightevalLogs | None:
    """The newest run with details in a folder; of a file, that task alone. None where there is none. Raises BadLog."""
    files = [path] if path.is_file() else sorted(path.rglob("details_*.parquet"))
    found = [
        _Details(path=one, task=named["task"], date=named["date"])
        for one in files
        if (named := _DETAILS.fullmatch(one.name)) and run in one.name
    ]
    if not found:
        return None
    newest = max(one.date for one in found)
    n_runs = len({one.date for one in found})
    return LightevalLogs([one for one in found if one.date == newest], base=path, others=n_runs - 1)


class LightevalLogs:
    """One run."""

    def __init__(self, details: Sequence[_Details], *, base: Path, others: int) -> None:
        date = details[0].date
        results = sorted(_above(base).rglob(f"results_{date}.json"))
        document = read_document(results[0], expected=RESULTS) if results else {}
        known = {**_mapping(document.get("results")), **_mapping(document.get("versions"))}
        self._details = [replace(one, task=_spelled(one.task, known)) for one in details]
        self._run = _run_of(document, self._details, others)

    @property
    def run(self) -> LoggedRun:
        return self._run

    def rows(self) -> Iterator[LoggedRow | CutLine]:
        for one in self._details:
            for number, row in enumerate(read_parquet(one.path, expected=EXPECTED)):
                yield _row(one, number, row)


def _spelled(written: str, known: Iterable[str]) -> str:
    """The task as the results spell it: file names may have "__" for "|"."""
    alike = [name for name in known if re.sub(r"[\W_]+", "_", name) == re.sub(r"[\W_]+", "_", written)]
    if written in alike or "|" in written:
        return written
    return alike[0] if len(alike) == 1 else written.replace("__", "|")


def _above(base: Path) -> Path:
    """Results lie beside the folder of details: a run's whole output may be given, or a part of it."""
    folder = base if base.is_dir() else base.parent
    inside = [place for place in (folder, *folder.parents) if place.name == "details"]
    return inside[-1].parent if inside else folder


def _run_of(document: Mapping[str, Any], details: Sequence[_Details], others: int) -> LoggedRun:
    general = _mapping(document.get("config_general"))
    config = _mapping(general.get("model_config"))
    date = details[0].date
    return LoggedRun(
        format="lighteval",
        name=f"details of {date}",
        others=others,
        harness_version=str(general.get("lighteval_sha") or ""),
        date=_moment(date),
        model=str(general.get("model_name") or config.get("model_name") or ""),
        limit=_number(general.get("max_samples")),
        settings={"system instruction": str(config.get("system_prompt") or "")} if config else {},
        tasks={one.task: _task(one.task, document, config) for one in details},
        reported=dict(_reported(document)),
        files=file_hashes(one.path for one in details),
    )


def _task(name: str, document: Mapping[str, Any], config: Mapping[str, Any]) -> LoggedTask:
    own = _mapping(_mapping(document.get("config_tasks")).get(name))
    version = _mapping(document.get("versions")).get(name, own.get("version"))
    shots = name.rpartition("|")[2]
    return LoggedTask(
        name=name,
        version="" if version is None else str(version),
        num_fewshot=int(shots) if shots.isdigit() else None,
        dataset=str(own.get("hf_repo") or ""),
        config=own,
        generation={key: one for key, one in _mapping(config.get("generation_parameters")).items() if one is not None},
    )


def _reported(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    for name, row in _mapping(document.get("results")).items():
        values = {f"{key},none": number for key, one in _mapping(row).items() if (number := _number(one)) is not None}
        yield name, {key: value for key, value in values.items() if "_stderr," not in key}


def _row(details: _Details, number: int, row: Mapping[str, Any]) -> LoggedRow:
    if missing := [key for key in ("doc", "model_response", "metric") if not isinstance(row.get(key), dict)]:
        raise wrong(details.path, number + 1, f"there is no column {missing[0]}", EXPECTED)
    doc, response = row["doc"], row["model_response"]
    return LoggedRow(
        task=details.task,
        filter="none",
        doc_id=number,
        doc={
            key: doc.get(key) for key in ("query", "choices", "gold_index", "instruction") if doc.get(key) is not None
        },
        target=canonical_json([doc.get("choices"), doc.get("gold_index")]),
        prompts=tuple(_prompts(doc, response)),
        replies=tuple(_replies(response)),
        has_more_answers=len(response.get("text") or ()) > 1,
        scores={name: value for name, value in row["metric"].items() if value is not None},
    )


def _prompts(doc: Mapping[str, Any], response: Mapping[str, Any]) -> Iterator[Prompt]:
    sent = response.get("input")
    text = sent if isinstance(sent, str) and sent else canonical_json(sent) if sent else str(doc.get("query") or "")
    if response.get("logprobs") and not response.get("text"):
        choices = doc.get("choices") or ()
        yield from (Prompt(text=text, continuation=str(choice)) for choice in choices[: len(response["logprobs"])])
    else:
        yield Prompt(text=text)


def _replies(response: Mapping[str, Any]) -> Iterator[LoggedReply]:
    """The first text, or each choice's log-likelihood."""
    if texts := response.get("text"):
        if texts[0] is None:
            yield LoggedReply(status=AnswerStatus.NO_FINAL_ANSWER, error=NO_ANSWER)
            return
        yield LoggedReply(text=str(texts[0]), completion_tokens=_length(response.get("output_tokens")))
        return
    greedy = response.get("argmax_logits_eq_gold") or ()
    for place, value in enumerate(response.get("logprobs") or ()):
        yield LoggedReply(loglikelihood=float(value), is_greedy=bool(greedy[place]) if place < len(greedy) else None)


def _length(tokens: Any) -> int | None:
    return len(tokens[0]) if isinstance(tokens, list) and tokens and isinstance(tokens[0], list) else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _moment(date: str) -> datetime:
    day, _, clock = date.partition("T")
    return datetime.fromisoformat(f"{day}T{clock.replace('-', ':')}").replace(tzinfo=UTC)

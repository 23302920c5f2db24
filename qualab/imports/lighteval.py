"""Read lighteval's details (a Parquet file a task) with its results, as 0.11 to 0.13 write them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qualab.imports.files import DATE, file_hashes, mapping, moment, number, parquet_rows, read_document, read_rows
from qualab.model.canonical import canonical_json
from qualab.model.items import JsonObject, Prompt
from qualab.model.logged import Log, LoggedReply, LoggedRow, LoggedRun, LoggedTask

COLUMNS = ("doc", "model_response", "metric")
EXPECTED = "lighteval's details: columns doc, model_response and metric (lighteval 0.11 or newer, --save-details)"
RESULTS = "lighteval's results: one object with config_general, results and versions"
DETAILS = re.compile(rf"details_(?P<task>.+)_{DATE}\.parquet")


def open_lighteval(path: Path, *, run: str = "") -> Log | None:
    """Open the newest run with details in a folder; of a file, that task alone. None where there is none."""
    files = [path] if path.is_file() else sorted(path.rglob("details_*.parquet"))
    named = [(file, match) for file in files if run in file.name and (match := DETAILS.fullmatch(file.name))]
    if not named:
        return None
    dates = {match["date"] for _, match in named}
    newest = max(dates)
    folder = path if path.is_dir() else path.parent
    inside = [parent for parent in (folder, *folder.parents) if parent.name == "details"]
    above = inside[-1].parent if inside else folder  # results lie beside the folder of details
    results = sorted(above.rglob(f"results_{newest}.json"))
    document = read_document(results[0], expected=RESULTS) if results else {}
    details = {_task_name(match["task"], document): file for file, match in named if match["date"] == newest}
    general = mapping(document.get("config_general"))
    config = mapping(general.get("model_config"))
    return Log(
        run=LoggedRun(
            format="lighteval",
            name=f"details of {newest}",
            others=len(dates) - 1,
            harness_version=str(general.get("lighteval_sha") or ""),
            date=moment(newest),
            model=str(general.get("model_name") or config.get("model_name") or ""),
            limit=number(general.get("max_samples")),
            settings={"system instruction": str(config.get("system_prompt") or "")} if config else {},
            tasks={task: _task(task, document, config) for task in details},
            reported={name: _values(row) for name, row in mapping(document.get("results")).items()},
            files=file_hashes(details.values()),
        ),
        rows=lambda: read_rows(details, parquet_rows, _row, needed=COLUMNS, expected=EXPECTED),
    )


def _task_name(written: str, document: JsonObject) -> str:
    """Spell a task as the results do: file names may have "__" for "|"."""
    known = {**mapping(document.get("results")), **mapping(document.get("versions"))}
    alike = [name for name in known if re.sub(r"[\W_]+", "_", name) == re.sub(r"[\W_]+", "_", written)]
    if written in alike or "|" in written:
        return written
    return alike[0] if len(alike) == 1 else written.replace("__", "|")


def _task(name: str, document: JsonObject, config: JsonObject) -> LoggedTask:
    own = mapping(mapping(document.get("config_tasks")).get(name))
    version = mapping(document.get("versions")).get(name, own.get("version"))
    shots, given = name.rpartition("|")[2], mapping(config.get("generation_parameters"))
    return LoggedTask(
        name=name,
        version="" if version is None else str(version),
        num_fewshot=int(shots) if shots.isdigit() else None,
        dataset=str(own.get("hf_repo") or ""),
        config=own,
        generation={key: value for key, value in given.items() if value is not None},
    )


def _values(row: Any) -> dict[str, float]:
    values = {key: number(value) for key, value in mapping(row).items() if not key.endswith("_stderr")}
    return {f"{key},none": value for key, value in values.items() if value is not None}


def _row(task: str, line: int, row: Mapping[str, Any]) -> LoggedRow:
    doc, response = mapping(row["doc"]), mapping(row["model_response"])
    fields = ("query", "choices", "gold_index", "instruction")
    return LoggedRow(
        task=task,
        doc_id=line - 1,
        doc={key: doc[key] for key in fields if doc.get(key) is not None},
        target=canonical_json([doc.get("choices"), doc.get("gold_index")]),
        prompts=_prompts(doc, response),
        replies=tuple(_replies(response)),
        has_more_answers=len(response.get("text") or ()) > 1,
        scores={name: value for name, value in mapping(row["metric"]).items() if value is not None},
    )


def _prompts(doc: Mapping[str, Any], response: Mapping[str, Any]) -> tuple[Prompt, ...]:
    sent = response.get("input")
    text = sent if isinstance(sent, str) and sent else canonical_json(sent) if sent else str(doc.get("query") or "")
    if not response.get("logprobs") or response.get("text"):
        return (Prompt(text=text),)
    choices = (doc.get("choices") or ())[: len(response["logprobs"])]
    return tuple(Prompt(text=text, continuation=str(choice)) for choice in choices)


def _replies(response: Mapping[str, Any]) -> Iterator[LoggedReply]:
    """Read the first text, or each choice's log-likelihood."""
    if texts := response.get("text"):
        tokens = response.get("output_tokens")
        length = len(tokens[0]) if isinstance(tokens, list) and tokens and isinstance(tokens[0], list) else None
        yield LoggedReply.missing() if texts[0] is None else LoggedReply(text=str(texts[0]), completion_tokens=length)
        return
    greedy = response.get("argmax_logits_eq_gold") or ()
    for place, value in enumerate(response.get("logprobs") or ()):
        yield LoggedReply(loglikelihood=float(value), is_greedy=bool(greedy[place]) if place < len(greedy) else None)

"""Read lm-eval's results_*.json with samples_*.jsonl, as 0.4.7 and newer write them, and as qualab exports them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from qualab.errors import BadLog
from qualab.imports.files import (
    DATE,
    BadRow,
    file_hashes,
    json_objects,
    mapping,
    moment,
    number,
    read_document,
    read_rows,
    wrong,
)
from qualab.model.canonical import canonical_json
from qualab.model.items import JsonObject, Prompt
from qualab.model.logged import Log, LoggedReply, LoggedRow, LoggedRun, LoggedTask
from qualab.model.names import AnswerStatus, RequestKind

RESULTS = "lm-eval's results: one object with results, configs and versions"
SAMPLE = "a row that lm_eval --log_samples writes (0.4.7 or newer): doc, target, resps, filter, metrics"
NEEDED = ("doc", "target", "resps", "filter", "metrics")
_RESULTS = re.compile(rf".+_{DATE}\.json(\.gz)?")
_SAMPLES = re.compile(rf"samples_.+_{DATE}\.jsonl(\.gz)?")
_LOGLIKELIHOODS = ("multiple_choice", "loglikelihood", "loglikelihood_rolling")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class _Files(NamedTuple):
    date: str
    results: Path | None
    samples: list[Path]

    @property
    def first(self) -> Path:
        return self.results or self.samples[0]


def open_lm_eval(path: Path, *, run: str = "") -> Log | None:
    """Open the newest run with samples whose name has `run` in it. None for other formats. Raises BadLog."""
    runs = _runs(path)
    whole = [files for files in runs if files.samples]
    if not whole:
        if runs:
            raise BadLog(
                f"{path} holds lm-eval's results, but no samples_*.jsonl",
                hint="Scores item by item are needed: run lm_eval with --log_samples",
            )
        return None
    base = path if path.is_dir() else path.parent
    by_name = {str(files.first.relative_to(base)): files for files in whole}
    chosen = next((name for name in by_name if run in name), None)
    if chosen is None:
        raise BadLog(f"{path} has no run named {run}", hint=f"It has: {', '.join(list(by_name)[:5])}")
    files = by_name[chosen]
    document = read_document(files.results, expected=RESULTS) if files.results else {}
    if files.results and not isinstance(document.get("results"), dict):
        raise wrong(files.results, 1, 'has no "results"', RESULTS)
    described = _run_of(document, files, others=len(whole) - 1)
    samples = _by_task(files.samples, described)

    def row_of(task: str, _: int, row: JsonObject) -> LoggedRow:
        return _row(described.task(task), row)

    return Log(
        run=replace(described, files=file_hashes(samples.values())),
        rows=lambda: read_rows(samples, json_objects, row_of, needed=NEEDED, expected=SAMPLE),
    )


def _runs(path: Path) -> list[_Files]:
    """List the runs of a folder, the newest first; a results file's own, a sample file's own with that file alone."""
    files: defaultdict[tuple[Path, str], list[Path]] = defaultdict(list)
    for file in sorted(path.rglob("*") if path.is_dir() else path.parent.iterdir()):
        if (named := _SAMPLES.fullmatch(file.name) or _RESULTS.fullmatch(file.name)) and file.is_file():
            files[file.parent, named["date"]].append(file)
    runs = []
    for (_, date), own in sorted(files.items(), key=lambda pair: pair[0][1], reverse=True):
        if path.is_dir() or path in own:
            samples = [file for file in own if _SAMPLES.fullmatch(file.name)]
            results = next((file for file in own if file not in samples), None)
            runs.append(_Files(date, results, [path] if path in samples else samples))
    return runs


def _by_task(samples: Sequence[Path], run: LoggedRun) -> dict[str, Path]:
    """Sort sample files by task, in the order of the results. Raises BadLog for two of one task."""
    by_task: dict[str, Path] = {}
    spelled = {re.sub(r"[^\w.-]", "_", task): task for task in run.tasks} | {task: task for task in run.tasks}
    for path in samples:
        written = path.name.removeprefix("samples_").rpartition("_")[0]
        task = spelled.get(written, written)  # file names may have lost characters
        if task in by_task:
            raise BadLog(f"{path} and {by_task[task].name} are both of task {task}", hint="Keep one of them")
        by_task[task] = path
    return {task: by_task[task] for task in dict.fromkeys((*run.tasks, *sorted(by_task))) if task in by_task}


def _run_of(document: JsonObject, files: _Files, *, others: int) -> LoggedRun:
    config, own = mapping(document.get("config")), mapping(document.get("qualab"))
    aggregates = {**mapping(document.get("results")), **mapping(document.get("groups"))}
    names = {"chat_template_sha": "chat template", "system_instruction": "system instruction"}
    settings = {name: str(document[key] or "") for key, name in names.items() if key in document}
    if "fewshot_as_multiturn" in document:
        settings["few-shot examples as turns"] = str(bool(document["fewshot_as_multiturn"]))
    return LoggedRun(
        format="lm-eval",
        name=files.first.name,
        others=others,
        harness_version=str(document.get("lm_eval_version") or ""),
        date=moment(number(document.get("date")) or files.date),
        model=str(document.get("model_name") or ""),
        limit=number(config.get("limit")),
        seed=_whole(config.get("random_seed")),
        gen_kwargs=mapping(config.get("gen_kwargs")),
        settings=settings,
        tasks={task: _task(task, document) for task in mapping(document.get("configs"))},
        groups=_groups(document),
        reported={task: _values(row) for task, row in aggregates.items()},
        plan=own.get("plan"),
        plan_hash=str(own.get("plan_hash") or ""),
        exported_from=f"{own.get('comparison')}/{own.get('arm')}" if own else "",
    )


def _task(name: str, document: JsonObject) -> LoggedTask:
    config, results = mapping(mapping(document.get("configs")).get(name)), mapping(document.get("results"))
    version = mapping(document.get("versions")).get(name, mapping(config.get("metadata")).get("version"))
    samples = mapping(mapping(document.get("n-samples")).get(name))
    better = mapping(mapping(document.get("higher_is_better")).get(name))
    output = config.get("output_type")
    scoring = canonical_json({key: config.get(key) for key in ("filter_list", "metric_list")})
    return LoggedTask(
        name=name,
        version="" if version is None else str(version),
        num_fewshot=_whole(mapping(document.get("n-shot")).get(name, config.get("num_fewshot"))),
        n_available=_whole(samples.get("original")),
        n_evaluated=_whole(mapping(results.get(name)).get("sample_len")) or _whole(samples.get("effective")),
        dataset=":".join(str(config[key]) for key in ("dataset_path", "dataset_name") if config.get(key)),
        config=config,
        generation=mapping(config.get("generation_kwargs")),
        scoring=_ADDRESS.sub("", scoring),  # of functions
        kind=RequestKind.LOGLIKELIHOOD if output in _LOGLIKELIHOODS else RequestKind.GENERATION if output else None,
        higher_is_better={metric: bool(value) for metric, value in better.items() if value is not None},
    )


def _groups(document: JsonObject) -> dict[str, tuple[str, ...]]:
    """List the tasks of each group that has aggregates of its own; groups within groups are resolved."""
    children = {name: list(names) for name, names in mapping(document.get("group_subtasks")).items() if names}
    scored = mapping(document.get("groups")) or mapping(document.get("results"))

    def leaves(name: str, above: frozenset[str]) -> Iterator[str]:
        for child in children.get(name, ()):
            if child not in children:
                yield child
            elif child not in above:
                yield from leaves(child, above | {child})

    groups = {name: tuple(dict.fromkeys(leaves(name, frozenset({name})))) for name in children}
    return {name: members for name, members in groups.items() if members and _values(scored.get(name))}


def _values(row: Any) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in mapping(row).items()
        if isinstance(value, Real) and "," in key and not key.partition(",")[0].endswith("_stderr")
    }


def _whole(value: Any) -> int | None:
    """Read an integer, also where a tool wrote 5 as 5.0."""
    size = number(value)
    return int(size) if size is not None and size.is_integer() else None


def _row(task: LoggedTask, row: JsonObject) -> LoggedRow:
    doc, responses, doc_id = row["doc"], row["resps"], row.get("doc_id")
    if row["metrics"] == ["bypass"]:
        raise BadRow("has no score: run lm_eval without --predict_only")
    if not isinstance(responses, list) or not all(isinstance(texts, list) and texts for texts in responses):
        raise BadRow("its resps are not a list of lists")
    replies = tuple(_reply(texts[0], task.kind) for texts in responses)
    prompts = tuple(_prompts(row.get("arguments")))
    return LoggedRow(
        task=task.name,
        filter=str(row["filter"]),
        doc_id=doc_id if isinstance(doc_id, int) else None,
        doc=doc if isinstance(doc, dict) else {"doc": doc},
        target=row["target"] if isinstance(row["target"], str) else str(row["target"]),
        prompts=prompts if len(prompts) == len(replies) else (),
        replies=replies,
        has_more_answers=any(len(texts) > 1 for texts in responses),  # of a task that repeats its requests
        scores={name: row[name] for name in row["metrics"] if name in row},
    )


def _reply(response: Any, kind: RequestKind | None) -> LoggedReply:
    if response is None:
        return LoggedReply.missing()
    is_pair = isinstance(response, list | tuple) and len(response) == 2
    if not is_pair and kind is not RequestKind.LOGLIKELIHOOD:
        return LoggedReply(text=response if isinstance(response, str) else str(response))
    value, is_greedy = response if is_pair else (response, None)
    try:
        loglikelihood = float(value)  # a text, as "-12.5"
    except (TypeError, ValueError) as exc:
        raise BadRow(f"the log-likelihood {str(value)[:40]!r} is not a number") from exc
    if math.isnan(loglikelihood):
        return LoggedReply(status=AnswerStatus.BAD_BODY, error="the log-likelihood is NaN")
    return LoggedReply(loglikelihood=loglikelihood, is_greedy=None if is_greedy is None else str(is_greedy) == "True")


def _prompts(arguments: Any) -> Iterator[Prompt]:
    """Read {"gen_args_0": {"arg_0": ...}}."""
    for request in mapping(arguments).values():
        first, second, *_ = (*mapping(request).values(), None, None)
        is_chat = isinstance(first, list)
        text = first[0] if is_chat and first else first
        yield Prompt(
            text=text if isinstance(text, str) else str(text),
            is_chat=is_chat,
            continuation=second if isinstance(second, str) else "",
            gen_kwargs=second if isinstance(second, dict) else None,
        )

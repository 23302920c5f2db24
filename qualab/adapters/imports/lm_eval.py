"""lm-eval's results and samples, as 0.4.0 to 0.4.13 wrote them: one row for each filter and document."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qualab.adapters.imports.files import Numbered, file_hashes, json_objects, read_document, wrong
from qualab.adapters.imports.lm_eval_results import filters_of, run_of
from qualab.adapters.imports.lm_eval_runs import RunFiles, file_task, find_run
from qualab.domain.items import Prompt
from qualab.domain.logged import NO_ANSWER, CutLine, LoggedReply, LoggedRow, LoggedRun, LoggedTask
from qualab.domain.names import AnswerStatus, RequestKind
from qualab.errors import BadLog

RESULTS = "lm-eval's results: one object with results, configs and versions"
SAMPLE = "a row that lm_eval --log_samples writes: doc, target, resps and a score"

_NO_METRICS = frozenset(
    {
        *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"),
        *("doc_hash", "prompt_hash", "target_hash"),
    }
)


def open_lm_eval(path: Path, *, run: str = "") -> LmEvalLogs | None:
    """A run's logs; None where a folder or file is not lm-eval's. Raises BadLog."""
    found = find_run(path, run)
    return LmEvalLogs(*found) if found else None


class LmEvalLogs:
    """One run of the `lm_eval` command, or of qualab's own export."""

    def __init__(self, files: RunFiles, others: int) -> None:
        self._files = files
        document = read_document(files.results, expected=RESULTS) if files.results else {}
        if files.results and not isinstance(document.get("results"), dict):
            raise wrong(files.results, 1, 'has no "results"', RESULTS)
        run = run_of(document, name=files.name, date=files.date, others=others)
        self._samples = _by_task(files.samples, run)
        self._run = replace(run, files=file_hashes(self._samples.values()))

    @property
    def run(self) -> LoggedRun:
        return self._run

    def rows(self) -> Iterator[LoggedRow | CutLine]:
        for task, path in self._samples.items():
            yield from _Rows(task, path, self._run.tasks.get(task)).read()


def _by_task(samples: Sequence[Path], run: LoggedRun) -> dict[str, Path]:
    """Sample files by the task that they are of, in the order of the results. Raises BadLog where two are of one."""
    found: dict[str, Path] = {}
    for path in samples:
        task = _task_of(path, run)
        if task in found:
            raise BadLog(f"{path} and {found[task].name} are both of task {task}", hint="Keep one of them")
        found[task] = path
    order = {task: place for place, task in enumerate(run.tasks)}
    return {task: found[task] for task in sorted(found, key=lambda task: (order.get(task, len(order)), task))}


def _task_of(path: Path, run: LoggedRun) -> str:
    """The task as the results spell it: file names may have lost characters, or begin with the model's arguments."""
    written = file_task(path)
    if written in run.tasks:
        return written
    alike = [task for task in run.tasks if re.sub(r"[^\w.-]", "_", task) == written]
    ends = sorted((task for task in run.tasks if written.endswith(f"_{task}")), key=len)
    return (alike or ends[-1:] or [written])[0]


class _Rows:
    """The rows of one file."""

    def __init__(self, task: str, path: Path, settings: LoggedTask | None) -> None:
        self._task = task
        self._path = path
        self._filters = filters_of(settings)
        self._kind = settings.kind if settings else None
        self._seen: Counter[Any] = Counter()

    def read(self) -> Iterator[LoggedRow | CutLine]:
        for one in json_objects(self._path, expected=SAMPLE):
            yield one if isinstance(one, CutLine) else self._row(one)

    def _row(self, numbered: Numbered) -> LoggedRow:
        line, row = numbered
        if missing := [key for key in ("doc", "target", "resps") if key not in row]:
            raise self._wrong(line, f"is no sample of lm-eval, it has no {missing[0]}")
        doc = row["doc"]
        responses = self._responses(row, line)
        replies = tuple(self._reply(one[0], line) for one in responses)
        prompts = tuple(_prompts(row.get("arguments")))
        doc_id = row.get("doc_id")
        return LoggedRow(
            task=self._task,
            filter=str(row["filter"]) if "filter" in row else self._counted_filter(doc_id),
            doc_id=doc_id if isinstance(doc_id, int) else None,
            doc=doc if isinstance(doc, dict) else {"doc": doc},
            target=row["target"] if isinstance(row["target"], str) else str(row["target"]),
            prompts=prompts if len(prompts) == len(replies) else (),
            prompt_hash=str(row.get("prompt_hash") or ""),
            replies=replies,
            has_more_answers=any(len(one) > 1 for one in responses),
            scores=self._scores(row, line),
        )

    def _counted_filter(self, doc_id: Any) -> str:
        """Filters come one after the other, each with every document once."""
        number = self._seen[doc_id]
        self._seen[doc_id] += 1
        return self._filters[number] if number < len(self._filters) else self._filters[-1]

    def _responses(self, row: Mapping[str, Any], line: int) -> list[list[Any]]:
        """The responses to each request; there are several only where a task repeats its requests."""
        resps = row["resps"]
        if not isinstance(resps, list) or not all(isinstance(one, list) and one for one in resps):
            raise self._wrong(line, "has resps that are no list of lists")
        return resps

    def _reply(self, response: Any, line: int) -> LoggedReply:
        if response is None:
            return LoggedReply(status=AnswerStatus.NO_FINAL_ANSWER, error=NO_ANSWER)
        if isinstance(response, (list, tuple)) and len(response) == 2:
            return self._loglikelihood(*response, line=line)
        if self._kind is RequestKind.LOGLIKELIHOOD:
            return self._loglikelihood(response, None, line=line)
        return LoggedReply(text=response if isinstance(response, str) else str(response))

    def _loglikelihood(self, value: Any, is_greedy: Any, *, line: int) -> LoggedReply:
        """Since 0.4.3 both are texts, as "-12.5" and "False"."""
        try:
            number = float(value)
        except (TypeError, ValueError) as exc:
            raise self._wrong(line, f"has the log-likelihood {str(value)[:40]!r}, which is no number") from exc
        if math.isnan(number):
            return LoggedReply(status=AnswerStatus.BAD_BODY, error="the log-likelihood is NaN")
        greedy = None if is_greedy is None else str(is_greedy) == "True"
        return LoggedReply(loglikelihood=number, is_greedy=greedy)

    def _scores(self, row: Mapping[str, Any], line: int) -> dict[str, Any]:
        names = row.get("metrics")
        named = names if isinstance(names, list) else [key for key in row if key not in _NO_METRICS]
        if named == ["bypass"]:
            raise self._wrong(
                line, "has no score (--predict_only)", hint="Score it: run lm_eval without --predict_only"
            )
        return {name: row[name] for name in named if name in row}

    def _wrong(self, line: int, what: str, hint: str = "") -> BadLog:
        found = wrong(self._path, line, what, SAMPLE)
        return BadLog(found.message, hint=hint) if hint else found


def _prompts(arguments: Any) -> Iterator[Prompt]:
    """Since 0.4.3 {"gen_args_0": {"arg_0": ...}}, before that a list of lists."""
    requests = list(arguments.values()) if isinstance(arguments, dict) else arguments
    for request in requests if isinstance(requests, list) else ():
        parts = list(request.values()) if isinstance(request, dict) else request
        if isinstance(parts, list) and parts:
            yield _prompt(parts)


def _prompt(parts: list[Any]) -> Prompt:
    first, second = parts[0], parts[1] if len(parts) > 1 else None
    is_chat = isinstance(first, list)
    text = first[0] if is_chat and first else first
    return Prompt(
        text=text if isinstance(text, str) else str(text),
        is_chat=is_chat,
        continuation=second if isinstance(second, str) else "",
        gen_kwargs=second if isinstance(second, dict) else None,
    )

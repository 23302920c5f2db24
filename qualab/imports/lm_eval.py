"""Which lm-eval runs a folder holds, and which files belong to each."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path
from typing import Any

from qualab.errors import BadLog
from qualab.imports.files import Numbered, file_hashes, json_objects, read_document, wrong
from qualab.model.canonical import canonical_json
from qualab.model.items import JsonObject, Prompt
from qualab.model.logged import NO_ANSWER, CutLine, LoggedReply, LoggedRow, LoggedRun, LoggedTask
from qualab.model.names import AnswerStatus, RequestKind

_DATE = r"(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)"
_RESULTS = re.compile(rf".+_{_DATE}\.json(\.gz)?")
_SAMPLES = re.compile(rf"samples_(?P<task>.+)_{_DATE}\.jsonl(\.gz)?")
_UNDATED_RESULTS = re.compile(r"results\.json(\.gz)?")
_JSONL = re.compile(r".+\.jsonl(\.gz)?")


@dataclass(slots=True, kw_only=True)
class RunFiles:
    """The files of one run."""

    folder: Path
    date: str
    """As in the files' names; empty for lm-eval before 0.4.3, which wrote none."""
    results: Path | None = None
    samples: list[Path] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.results.name if self.results else self.samples[0].name

    @property
    def age(self) -> tuple[str, float]:
        """Sorts runs; those without a date by when their file was written."""
        return self.date, 0.0 if self.date else (self.results or self.samples[0]).stat().st_mtime


def file_task(path: Path) -> str:
    """The task that a sample file's name holds, as its writer spelled it."""
    found = _SAMPLES.fullmatch(path.name)
    return found["task"] if found else re.sub(r"\.jsonl(\.gz)?$", "", path.name)


def find_run(path: Path, wanted: str) -> tuple[RunFiles, int] | None:
    """The newest run with samples in a folder (or of a file), or the newest whose name has `wanted` in it; and how many
    others there are. None where nothing looks like lm-eval's. Raises BadLog."""
    runs = _runs(path)
    whole = [run for run in runs if run.samples]
    if not whole:
        if any(run.results and run.date for run in runs):
            raise BadLog(
                f"{path} holds lm-eval's results, but no samples_*.jsonl",
                hint="Scores item by item are needed: run lm_eval with --log_samples",
            )
        return None
    named = [run for run in whole if wanted in _label(run, path)]
    if not named:
        raise BadLog(f"{path} has no run named {wanted}", hint=f"It has: {', '.join(_labels(whole, path))}")
    return max(named, key=lambda run: run.age), len(whole) - 1


def _label(run: RunFiles, path: Path) -> str:
    base = path if path.is_dir() else path.parent
    return str((run.folder / run.name).relative_to(base))


def _labels(runs: Sequence[RunFiles], path: Path) -> Iterator[str]:
    yield from (_label(run, path) for run in sorted(runs, key=lambda run: run.age, reverse=True)[:5])


def _runs(path: Path) -> list[RunFiles]:
    if not path.is_dir():
        return _runs_of_file(path)
    runs: dict[tuple[Path, str], RunFiles] = {}
    for file in sorted(one for one in path.rglob("*") if one.is_file()):
        if found := (_SAMPLES.fullmatch(file.name) or _RESULTS.fullmatch(file.name)):
            run = runs.setdefault((file.parent, found["date"]), RunFiles(folder=file.parent, date=found["date"]))
            _add(run, file)
        elif _UNDATED_RESULTS.fullmatch(file.name):
            runs[file.parent, ""] = _undated(file)
    return list(runs.values())


def _add(run: RunFiles, file: Path) -> None:
    if _SAMPLES.fullmatch(file.name):
        run.samples.append(file)
    else:
        run.results = file


def _undated(results: Path) -> RunFiles:
    """Before 0.4.3 the file of a task was named by the model's arguments and the task."""
    siblings = sorted(results.parent.iterdir())
    samples = [one for one in siblings if _JSONL.fullmatch(one.name) and not _SAMPLES.fullmatch(one.name)]
    return RunFiles(folder=results.parent, date="", results=results, samples=samples)


def _runs_of_file(path: Path) -> list[RunFiles]:
    """A results file stands for its run, a sample file for itself."""
    if _UNDATED_RESULTS.fullmatch(path.name):
        return [_undated(path)]
    found = _SAMPLES.fullmatch(path.name) or _RESULTS.fullmatch(path.name)
    if found is None:
        return []
    of_folder = [run for run in _runs(path.parent) if run.date == found["date"] and run.folder == path.parent]
    for run in of_folder:
        if path in run.samples:
            run.samples = [path]
    return of_folder


_MODEL_KEYS = ("peft", "delta", "pretrained", "model", "path", "engine")
_LOGLIKELIHOODS = ("multiple_choice", "loglikelihood", "loglikelihood_rolling")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SCORING = ("filter_list", "metric_list")


def run_of(document: Mapping[str, Any], *, name: str, date: str, others: int) -> LoggedRun:
    """The run that a results document describes; an empty one says nothing."""
    config = _mapping(document.get("config"))
    own = _mapping(document.get("qualab"))
    aggregates = {**_mapping(document.get("results")), **_mapping(document.get("groups"))}
    return LoggedRun(
        format="lm-eval",
        name=name,
        others=others,
        harness_version=str(document.get("lm_eval_version") or ""),
        date=_moment(document.get("date"), date),
        model=str(document.get("model_name") or _model(config.get("model_args")) or ""),
        is_chat="chat" in str(document.get("model_source") or "") or bool(document.get("chat_template")),
        limit=_number(config.get("limit")),
        seed=_whole(config.get("random_seed")),
        gen_kwargs=_settings(config.get("gen_kwargs")),
        settings=dict(_run_settings(document)),
        tasks={task: _task(task, document) for task in _mapping(document.get("configs"))},
        groups=_groups(document),
        reported={task: dict(_values(row)) for task, row in aggregates.items()},
        plan=own.get("plan"),
        plan_hash=str(own.get("plan_hash") or ""),
        exported_from=f"{own.get('comparison')}/{own.get('arm')}" if own else "",
    )


def filters_of(task: LoggedTask | None) -> tuple[str, ...]:
    """A task's filters in lm-eval's order; before 0.4.7 rows did not name theirs."""
    listed = (task.config.get("filter_list") if task else None) or ()
    return tuple(str(one.get("name")) for one in listed if isinstance(one, Mapping)) or ("none",)


def _run_settings(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Those that the document tells: without one, or before 0.4.3, nothing is known of them."""
    if "chat_template_sha" in document:
        yield "chat template", str(document["chat_template_sha"] or "")
    if "system_instruction" in document:
        yield "system instruction", str(document["system_instruction"] or "")
    if "fewshot_as_multiturn" in document:
        yield "few-shot examples as turns", str(bool(document["fewshot_as_multiturn"]))


def _task(name: str, document: Mapping[str, Any]) -> LoggedTask:
    config = _mapping(_mapping(document.get("configs")).get(name))
    version = _mapping(document.get("versions")).get(name, _mapping(config.get("metadata")).get("version"))
    samples = _mapping(_mapping(document.get("n-samples")).get(name))
    shots = _mapping(document.get("n-shot")).get(name, config.get("num_fewshot"))
    dataset = [str(config[key]) for key in ("dataset_path", "dataset_name") if config.get(key)]
    better = _mapping(_mapping(document.get("higher_is_better")).get(name))
    output = config.get("output_type")
    return LoggedTask(
        name=name,
        version="" if version is None else str(version),
        num_fewshot=_whole(shots),
        n_available=_whole(samples.get("original")),
        n_evaluated=_whole(_mapping(_mapping(document.get("results")).get(name)).get("sample_len"))
        or _whole(samples.get("effective")),
        dataset=":".join(dataset),
        config=dict(config),
        generation=_mapping(config.get("generation_kwargs")),
        scoring=_scoring(config),
        kind=RequestKind.LOGLIKELIHOOD if output in _LOGLIKELIHOODS else RequestKind.GENERATION if output else None,
        higher_is_better={metric: bool(one) for metric, one in better.items() if one is not None},
    )


def _scoring(config: Mapping[str, Any]) -> str:
    """Filters and metrics; functions in them stand without their addresses."""
    return _ADDRESS.sub("", canonical_json({key: config.get(key) for key in _SCORING}))


def _groups(document: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Tasks of each group that has aggregates of its own; groups within groups are resolved."""
    children = {name: list(names) for name, names in _mapping(document.get("group_subtasks")).items() if names}
    scored = _mapping(document.get("groups")) or _mapping(document.get("results"))

    def leaves(name: str, above: frozenset[str]) -> Iterator[str]:
        for child in children.get(name, ()):
            if child not in children:
                yield child
            elif child not in above:
                yield from leaves(child, above | {child})

    found = {name: tuple(dict.fromkeys(leaves(name, frozenset({name})))) for name in children}
    return {name: members for name, members in found.items() if members and any(_values(_mapping(scored.get(name))))}


def _values(row: Any) -> Iterator[tuple[str, float]]:
    for key, value in _mapping(row).items():
        metric, comma, name = key.partition(",")
        if isinstance(value, Real) and not metric.endswith("_stderr") and comma:
            yield f"{metric},{name}", float(value)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _model(arguments: Any) -> str:
    if isinstance(arguments, str):
        pairs = (part.partition("=") for part in arguments.split(","))
        arguments = {name: value for name, _, value in pairs}
    known = _mapping(arguments)
    return next((str(known[key]) for key in _MODEL_KEYS if known.get(key)), "")


def _settings(value: Any) -> JsonObject:
    """Generation settings as a mapping; lm-eval before 0.4.9 kept them as it was given them, in one text."""
    if isinstance(value, str):
        return {name: text for name, _, text in (part.partition("=") for part in value.split(",")) if name}
    return _mapping(value)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    """An integer, also where a tool wrote 5 as 5.0."""
    number = _number(value)
    return int(number) if number is not None and number.is_integer() else None


def _moment(stamp: Any, named: str) -> datetime | None:
    if (seconds := _number(stamp)) is not None:
        return datetime.fromtimestamp(seconds, UTC)
    if not named:
        return None
    day, _, clock = named.partition("T")
    return datetime.fromisoformat(f"{day}T{clock.replace('-', ':')}").replace(tzinfo=UTC)


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

"""One arm's log in short: what is needed to pair and to score it. Texts and documents stay in the files."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from numbers import Real
from typing import Any

import orjson

from qualab.domain.canonical import canonical_json
from qualab.domain.clusters import cluster_of
from qualab.domain.items import JsonObject
from qualab.domain.logged import CutLine, LoggedRow, LoggedRun
from qualab.domain.names import RequestKind
from qualab.ports import LogSource

NO_ROW = -1
"""Of an item that its log has lost."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """One answered item of one arm, with the scores of all its filters."""

    row: int
    """The number of the log's row that holds its document and answers."""
    key: bytes
    """Equal for the same document."""
    prompt: bytes
    """Equal for the same prompts; empty where the log does not tell."""
    target: bytes
    doc_id: int | None
    repeat: int
    cluster: str
    generation: str
    """Generation settings of its requests, as canonical JSON; empty where the log does not have them."""
    is_answered: bool
    """Its scores count; without an answer they are those of nothing."""
    filters: tuple[str, ...]
    scores: dict[str, Any]
    """By "metric,filter": a number, or a list of JSON values."""


@dataclass(slots=True, kw_only=True)
class TaskEntries:
    """One task's entries in the log's order."""

    cluster: tuple[str, ...]
    """Fields of a document that the items of one cluster share."""
    kind: RequestKind
    is_chat: bool
    has_more_answers: bool = False
    """The scores of some row come from more than its texts."""
    entries: list[Entry] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)
    """Metrics with a value that is neither a number nor a list of them, nor a pair of labels."""
    known: dict[int, list[Entry]] = field(default_factory=dict)
    """By document, number and repeat."""

    def add(self, row: LoggedRow, number: int) -> None:
        """Takes a row to the entry that its other filters have made, or makes one."""
        self.has_more_answers = self.has_more_answers or row.has_more_answers
        key, scores = key_of(row), self._scores(row)
        same = self.known.setdefault(hash((key, row.doc_id, row.repeat)), [])
        for entry in same:
            if row.filter not in entry.filters:
                entry.filters = _FILTERS.setdefault((*entry.filters, row.filter), (*entry.filters, row.filter))
                entry.scores.update(scores)
                return
        same.append(self._entry(row, number, key, scores))
        self.entries.append(same[-1])

    def _entry(self, row: LoggedRow, number: int, key: bytes, scores: dict[str, Any]) -> Entry:
        return Entry(
            row=number,
            key=key,
            prompt=_prompts(row),
            target=_digest(row.target.encode("utf-8", "surrogatepass")),
            doc_id=row.doc_id,
            repeat=row.repeat,
            cluster=row.cluster or self._cluster(row.doc),
            generation=" ".join(dict.fromkeys(settings_text(one.gen_kwargs or {}) for one in row.prompts)),
            is_answered=all(reply.status.is_answer for reply in row.replies),
            filters=_FILTERS.setdefault((row.filter,), (row.filter,)),
            scores=scores,
        )

    def _cluster(self, doc: Mapping[str, Any]) -> str:
        return sys.intern(cluster_of(doc, self.cluster)) if all(name in doc for name in self.cluster) else ""

    def _scores(self, row: LoggedRow) -> dict[str, Any]:
        found = {}
        for metric, raw in row.scores.items():
            value = score_value(raw)
            if value is None:
                self.left_out.add(metric)
            elif not (isinstance(value, float) and math.isnan(value)):
                found[sys.intern(f"{metric},{row.filter}")] = value
        return found


_FILTERS: dict[tuple[str, ...], tuple[str, ...]] = {}
"""Each combination of filters once."""


@dataclass(slots=True, kw_only=True)
class ArmLog:
    """A whole log in short."""

    run: LoggedRun
    tasks: dict[str, TaskEntries] = field(default_factory=dict)
    cut: list[CutLine] = field(default_factory=list)
    n_rows: int = 0

    def n_evaluated(self, task: str) -> int:
        """Items that the run's own values are of, as far as they tell; 0 otherwise."""
        return (self.run.tasks[task].n_evaluated or 0) if task in self.run.tasks else 0

    def has_lost(self, task: str) -> bool:
        """Whether rows are lost that the run's own values count."""
        return sum(entry.repeat == 0 for entry in self.tasks[task].entries) < self.n_evaluated(task)


def read_arm(source: LogSource, cluster_fields: Callable[[str], tuple[str, ...]]) -> ArmLog:
    """Reads a log once. `cluster_fields` says what a task's items are clustered by."""
    arm = ArmLog(run=source.run)
    for number, row in enumerate(source.rows()):
        arm.n_rows = number + 1
        if isinstance(row, CutLine):
            arm.cut.append(row)
            continue
        if row.task not in arm.tasks:
            arm.tasks[row.task] = _task_of(row, cluster_fields(row.task))
        arm.tasks[row.task].add(row, number)
    for task in arm.tasks.values():
        task.known.clear()
    return arm


def _task_of(row: LoggedRow, cluster: tuple[str, ...]) -> TaskEntries:
    is_scored_text = any(reply.loglikelihood is not None for reply in row.replies)
    return TaskEntries(
        cluster=cluster,
        kind=RequestKind.LOGLIKELIHOOD if is_scored_text else RequestKind.GENERATION,
        is_chat=any(prompt.is_chat for prompt in row.prompts),
    )


def settings_text(settings: JsonObject) -> str:
    """One spelling of settings that are the same: 0 and 0.0, one stop text and a list of it; empty for none."""
    return sys.intern(canonical_json({name: _plain(value) for name, value in settings.items()})) if settings else ""


def _plain(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return [value] if isinstance(value, str) else value


def score_value(raw: Any) -> Any:
    """A score as it is kept: a float, or a tuple of JSON values. None where it is neither."""
    if isinstance(raw, Real):
        return float(raw)
    if isinstance(raw, (list, tuple)) and (len(raw) == 2 or all(isinstance(part, Real) for part in raw)):
        return tuple(raw) if all(part is None or isinstance(part, (Real, str)) for part in raw) else None
    return None


def key_of(row: LoggedRow) -> bytes:
    """What makes it the same item: its name, else its document, in whatever order its keys are, empty ones left out.

    The hub's IFEval fills every item's kwargs up with empty keys; files of it do not.
    """
    if row.name:
        return blake2b(row.name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    plain = _without_empty(row.doc)
    try:
        text = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        text = json.dumps(plain, sort_keys=True).encode()
    return blake2b(text, digest_size=16).digest()


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_empty(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_empty(one) for one in value]
    return value


def _prompts(row: LoggedRow) -> bytes:
    if not row.prompts:
        return _digest(row.prompt_hash.encode()) if row.prompt_hash else b""
    parts = (part for prompt in row.prompts for part in (prompt.text, prompt.continuation))
    return _digest("\0".join(parts).encode("utf-8", "surrogatepass"))


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=8).digest()

"""Logs of another tool's run: its settings, and a row for each scored item."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from qualab.model.items import JsonObject, Prompt
from qualab.model.names import AnswerStatus, RequestKind
from qualab.model.plan import MetricSpec


class LoggedReply(NamedTuple):
    """One answer in a log; None or empty where the log does not tell."""

    text: str | None = None
    loglikelihood: float | None = None
    is_greedy: bool | None = None
    status: AnswerStatus = AnswerStatus.OK
    finish_reason: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: str = ""

    @classmethod
    def missing(cls, finish_reason: str = "") -> LoggedReply:
        status = AnswerStatus.NO_FINAL_ANSWER
        return cls(status=status, error="the log has no answer", finish_reason=finish_reason)


@dataclass(slots=True, kw_only=True)  # not frozen: made by the hundred thousand, and that takes three times as long
class LoggedRow:
    """One item, scored after one filter."""

    task: str
    filter: str = "none"
    doc_id: int | None
    name: str = ""
    doc: JsonObject
    target: str
    prompts: tuple[Prompt, ...]
    replies: tuple[LoggedReply, ...]
    has_more_answers: bool = False
    """The scores come from more than `replies`: from several answers to one request, or tool calls."""
    scores: Mapping[str, Any]
    """By metric: a number, a list of numbers (IFEval) or a pair (f1). Empty where the item was not scored."""
    repeat: int = 0
    cluster: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTask:
    """A task's settings; None or empty where the log does not tell."""

    name: str
    version: str = ""
    num_fewshot: int | None = None
    n_available: int | None = None
    n_evaluated: int | None = None
    dataset: str = ""
    config: JsonObject = field(default_factory=dict)
    generation: JsonObject = field(default_factory=dict)
    scoring: str = ""
    kind: RequestKind | None = None
    higher_is_better: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    format: str
    name: str
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each file with rows of this arm alone, by its absolute path."""
    others: int = 0
    harness_version: str = ""
    date: datetime | None = None
    model: str = ""
    limit: float | None = None
    seed: int | None = None
    gen_kwargs: JsonObject = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, LoggedTask] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reported: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The run's own aggregates: by task or group, then by "metric,filter"."""
    metrics: Mapping[str, MetricSpec] = field(default_factory=dict)
    plan: JsonObject | None = None
    plan_hash: str = ""
    exported_from: str = ""
    """For example "ID/baseline": which run of which comparison this is."""

    def task(self, name: str) -> LoggedTask:
        """Empty settings where the log has none."""
        return self.tasks.get(name) or LoggedTask(name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    run: LoggedRun
    rows: Callable[[], Iterator[LoggedRow]]
    """Every row in the order of the files: the same each time. Raises BadLog with file and line."""

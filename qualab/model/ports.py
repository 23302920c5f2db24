"""Values passed between rooms, and Protocols where two things stand behind a seam."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from qualab.model.comparison import Comparison, Look
from qualab.model.engine import Counters, Engine, Observation
from qualab.model.items import Answer, Item, Reply, Request, Score
from qualab.model.names import Api, ArmName, ComparisonStatus, Verdict
from qualab.model.plan import RequestPolicy
from qualab.model.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """A user's choice of tasks, in lm-eval's names and meanings."""

    names: tuple[str, ...]
    num_fewshot: int | None = None
    limit: float | None = None
    gen_kwargs: Mapping[str, Any] | None = None
    seed: int = 1234
    include_paths: tuple[Path, ...] = ()
    data_dir: Path | None = None
    revisions: Mapping[str, str] = field(default_factory=dict)
    """Hub commits of data sets by task, as a plan records them: read at these, not at the newest."""
    apply_chat_template: bool | None = None
    system_instruction: str = ""
    most_tasks: int | None = None


class ScoredTasks(Protocol):
    def score(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> list[dict[str, Any]]:
        """Score items, each with its replies in the order of its choices, as lm-eval does.

        Returns each item's values by "metric,filter": a number, a list (IFEval) or a pair (f1).
        """

    def aggregate(self, values: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, float]]:
        """Aggregate {task: {"metric,filter": items' values}} to {task or group: {"metric,filter": value}}.

        A metric without items is left out.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointInfo:
    url: str
    tokenizes: bool


class Endpoint(Protocol):
    @property
    def url(self) -> str: ...

    async def inspect(self, *, model: str) -> EndpointInfo:
        """Raises EndpointUnreachable, EndpointMisconfigured (path, key, model name)."""

    async def engine(self, *, model: str) -> Engine:
        """Configuration and counters, empty where closed. Raises EndpointUnreachable, also where it is too busy."""

    async def counters(self) -> Counters | None:
        """None where they are closed."""

    async def settings(self, api: Api) -> frozenset[str] | None:
        """Names that a request may have, as the server tells; None where it does not."""

    async def ask(self, request: Request, body: bytes, *, on_wait: Callable[[float], None] | None = None) -> Reply:
        """Send one request, again where that may help. Never raises for what the server does.

        `on_wait` is told each pause, in seconds, that the server asks for.
        """

    async def tokenize(self, texts: Sequence[str], *, model: str) -> list[list[int]]:
        """Token ids by the server's own tokenizer, without special tokens. Raises EndpointMisconfigured."""


class OpenEndpoint(Protocol):
    def __call__(
        self, url: str, *, policy: RequestPolicy, key: str | None
    ) -> AbstractAsyncContextManager[Endpoint]: ...


Tokenize = Callable[[Sequence[str]], list[list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonFilter:
    """Conditions that must all hold; None sets none."""

    status: ComparisonStatus | None = None
    verdict: Verdict | None = None
    label: str | None = None
    model: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 50


class Stored(Protocol):
    """The store, or logs that are being imported."""

    def answers(self, comparison_id: str, *, arm: ArmName, run: int = 0) -> Iterator[Answer]: ...

    def scores(self, comparison_id: str) -> Iterator[Score]: ...

    def looks(self, comparison_id: str) -> Sequence[Look]: ...

    def observations(self, comparison_id: str) -> Sequence[Observation]: ...


Renderer = Callable[[Report], bytes]
"""Draws a report: the same report gives the same bytes."""


class Clock(Protocol):
    def now(self) -> datetime: ...

    def monotonic_s(self) -> float: ...


class Progress(Protocol):
    def started(
        self, comparison: Comparison, *, totals: Mapping[ArmName, int], done: Mapping[ArmName, int]
    ) -> None: ...

    def answered(self, arm: ArmName, reply: Reply) -> None: ...

    def waiting(self, arm: ArmName, seconds: float) -> None: ...

    def phase(self, text: str) -> None: ...

    def finished(self) -> None: ...

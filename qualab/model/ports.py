"""What is passed between rooms, and Protocols where two things stand behind a seam."""

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
    """What a user may set about tasks; lm-eval's names and meanings."""

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
    """None leaves it to the suite."""
    system_instruction: str = ""
    most_tasks: int | None = None
    """More raise TooManyTasks; None is no bound."""


class ScoredTasks(Protocol):
    """What an analysis needs of tasks."""

    def score(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> list[dict[str, Any]]:
        """lm-eval's per-item metric values, keyed "metric,filter", in the order of `answered`.

        Each entry is an item and its replies in the order of its choices. The values are lm-eval's own: a number,
        a list (IFEval) or a pair (f1). The same answer always scores the same.
        """

    def aggregate(self, values: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, float]]:
        """Task and group values by lm-eval's aggregation: {task: {"metric,filter": per-item values}} in,
        {task or group: {"metric,filter": value}} out. A metric without items is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointInfo:
    """What a check of an endpoint found."""

    url: str
    tokenizes: bool


class Endpoint(Protocol):
    """One arm's OpenAI-compatible server."""

    @property
    def url(self) -> str: ...

    async def inspect(self, *, model: str) -> EndpointInfo:
        """Raises EndpointUnreachable, EndpointMisconfigured (path, key, model name)."""

    async def engine(self, *, model: str) -> Engine:
        """What the engine says of its configuration, and its counters; what is closed stays empty.

        Raises EndpointUnreachable where that cannot be told from a server that is too busy to answer.
        """

    async def counters(self) -> Counters | None:
        """The engine's counters now; None where they are closed."""

    async def settings(self, api: Api) -> frozenset[str] | None:
        """Names that a request on this route may have, as the server tells; None where it does not."""

    async def ask(self, request: Request, body: bytes, *, on_wait: Callable[[float], None] | None = None) -> Reply:
        """One request with its attempts. Never raises for what the server does: that is a Reply's status.

        `on_wait` is told each pause, in seconds, that the server asks for.
        """

    async def tokenize(self, texts: Sequence[str], *, model: str) -> list[list[int]]:
        """Token ids by the server's own tokenizer, without special tokens. Raises EndpointMisconfigured."""


class OpenEndpoint(Protocol):
    """Opens an endpoint; the context owns its connections. `key` is sent and never stored, logged or shown."""

    def __call__(
        self, url: str, *, policy: RequestPolicy, key: str | None
    ) -> AbstractAsyncContextManager[Endpoint]: ...


Tokenize = Callable[[Sequence[str]], list[list[int]]]
"""A named tokenizer: token ids without special tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonFilter:
    """Which comparisons a list shows; every condition that is set must hold."""

    status: ComparisonStatus | None = None
    verdict: Verdict | None = None
    label: str | None = None
    model: str | None = None
    since: datetime | None = None
    """Created at or after."""
    until: datetime | None = None
    """Created before."""
    limit: int = 50


class Stored(Protocol):
    """What an analysis reads of a comparison: the store, or logs that are being imported."""

    def answers(self, comparison_id: str, *, arm: ArmName, run: int = 0) -> Iterator[Answer]: ...

    def scores(self, comparison_id: str) -> Iterator[Score]: ...

    def looks(self, comparison_id: str) -> Sequence[Look]: ...

    def observations(self, comparison_id: str) -> Sequence[Observation]: ...


Renderer = Callable[[Report], bytes]
"""Draws a report: the same report gives the same bytes."""


class Clock(Protocol):
    """Time as an argument."""

    def now(self) -> datetime:
        """Aware UTC."""

    def monotonic_s(self) -> float: ...


class Progress(Protocol):
    """Told what a run does, to show it."""

    def started(
        self, comparison: Comparison, *, totals: Mapping[ArmName, int], done: Mapping[ArmName, int]
    ) -> None: ...

    def answered(self, arm: ArmName, reply: Reply) -> None: ...

    def waiting(self, arm: ArmName, seconds: float) -> None:
        """An arm's server asks to wait before one of its requests is sent again."""

    def phase(self, text: str) -> None:
        """A step that is not counted, as "scoring"."""

    def finished(self) -> None: ...

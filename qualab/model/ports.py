"""What the use cases need from outside, as Protocols. Adapters implement them, `bootstrap` joins them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from qualab.model.comparison import Analysis, Comparison, Look, SealedAnalysis, SignOff
from qualab.model.engine import Counters, Engine, Observation
from qualab.model.items import (
    Answer,
    Item,
    ItemHead,
    Outcome,
    OutcomeFilter,
    Reply,
    Request,
    Score,
    ScoreFlip,
)
from qualab.model.names import Api, ArmName, ComparisonStatus, Verdict
from qualab.model.plan import RequestPolicy
from qualab.model.registry import (
    NEWEST_FIRST,
    AuditEntry,
    Claim,
    ComparisonSummary,
    HostLease,
    ListOrder,
    Page,
    Submission,
    SubmissionStatus,
    Token,
)
from qualab.model.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """What a user may set about tasks; lm-eval's names and meanings."""

    names: tuple[str, ...]
    """Task, group and suite names."""
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
        ...

    def aggregate(self, values: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, float]]:
        """Task and group values by lm-eval's aggregation: {task: {"metric,filter": per-item values}} in,
        {task or group: {"metric,filter": value}} out. A metric without items is left out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointInfo:
    """What a check of an endpoint found."""

    url: str
    tokenizes: bool
    """Whether it offers a /tokenize route."""


class Endpoint(Protocol):
    """One arm's OpenAI-compatible server."""

    @property
    def url(self) -> str: ...

    async def inspect(self, *, model: str) -> EndpointInfo:
        """Raises EndpointUnreachable, EndpointMisconfigured (path, key, model name)."""
        ...

    async def engine(self, *, model: str) -> Engine:
        """What the engine says of its configuration, and its counters; what is closed stays empty.

        Raises EndpointUnreachable where that cannot be told from a server that is too busy to answer.
        """
        ...

    async def counters(self) -> Counters | None:
        """The engine's counters now; None where they are closed."""
        ...

    async def settings(self, api: Api) -> frozenset[str] | None:
        """Names that a request on this route may have, as the server tells; None where it does not."""
        ...

    async def ask(self, request: Request, body: bytes, *, on_wait: Callable[[float], None] | None = None) -> Reply:
        """One request with its attempts. Never raises for what the server does: that is a Reply's status.

        `on_wait` is told each pause, in seconds, that the server asks for.
        """
        ...

    async def tokenize(self, texts: Sequence[str], *, model: str) -> list[list[int]]:
        """Token ids by the server's own tokenizer, without special tokens. Raises EndpointMisconfigured."""
        ...


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

    # the two vocabularies share words: a filter by "running" finds either
    status: ComparisonStatus | SubmissionStatus | None = None
    verdict: Verdict | None = None
    label: str | None = None
    model: str | None = None
    since: datetime | None = None
    """Created at or after."""
    until: datetime | None = None
    """Created before."""
    limit: int = 50


class Stored(Protocol):
    """What an analysis reads of a comparison."""

    def answers(self, comparison_id: str, *, arm: ArmName, run: int = 0) -> Iterator[Answer]: ...

    def scores(self, comparison_id: str) -> Iterator[Score]: ...

    def looks(self, comparison_id: str) -> Sequence[Look]: ...

    def observations(self, comparison_id: str) -> Sequence[Observation]: ...


class Store(Protocol):
    """Where comparisons live. Each method is one transaction. Errors are StoreError's subclasses."""

    def create(self, comparison: Comparison, items: Iterable[Item]) -> None:
        """Stores the plan and every item with its requests, or nothing."""
        ...

    def put_whole(
        self,
        comparison: Comparison,
        items: Iterable[Item],
        answers: Iterable[Answer],
        scores: Iterable[Score],
        analysis: Callable[[], Analysis],
        *,
        now: datetime,
    ) -> Analysis:
        """Stores a comparison that is finished already, or nothing of it; returns its analysis.

        Items, answers and scores are each read once, in this order, and `analysis` is called after them.
        """
        ...

    def get(self, comparison_id: str) -> Comparison:
        """By id or by an unambiguous beginning of one. Raises ComparisonNotFound."""
        ...

    def list(self, wanted: ComparisonFilter) -> list[Comparison]:
        """Newest first."""
        ...

    def items(self, comparison_id: str, *, positions: Collection[int] | None = None) -> Iterator[Item]:
        """In order of position, with their requests; all of them, or those at these positions."""
        ...

    def heads(self, comparison_id: str, *, positions: Collection[int]) -> Iterator[ItemHead]:
        """The same without what items hold: cheap for thousands."""
        ...

    def n_requests(self, comparison_id: str) -> int:
        """How many requests its items have, each counted once."""
        ...

    def claim(self, comparison_id: str, *, runner: str, now: datetime, stale_after_s: float) -> None:
        """Takes the right to run, unless a living runner has it: then ComparisonBusy."""
        ...

    def heartbeat(self, comparison_id: str, *, runner: str, now: datetime) -> None:
        """Raises ComparisonBusy when another runner has taken over."""
        ...

    def release(self, comparison_id: str, *, runner: str) -> None: ...

    def runners(self, comparison_ids: Sequence[str], *, now: datetime, stale_after_s: float) -> dict[str, Claim]:
        """The claims of living runners, by the id of the comparison; nothing is claimed."""
        ...

    def set_status(self, comparison_id: str, status: ComparisonStatus, *, now: datetime, stop_reason: str = "") -> None:
        """Any status but FINISHED takes back the verdict and the time of finishing; the first start stays."""
        ...

    def add_answers(self, comparison_id: str, answers: Sequence[Answer]) -> int:
        """Commits new answers and returns how many were there already (counted as duplicates, not stored)."""
        ...

    def answered(self, comparison_id: str, *, run: int = 0) -> set[tuple[ArmName, int, int, int]]:
        """(arm, position, choice, repeat) of every stored answer of a run."""
        ...

    def n_answered(self, comparison_id: str) -> Mapping[ArmName, int]:
        """How many requests of each arm came back, the noise floor's not counted: cheap enough to ask every second."""
        ...

    def n_unanswered(self, comparison_id: str) -> Mapping[ArmName, int]:
        """How many of these came back without an answer; likewise cheap."""
        ...

    def answers(
        self, comparison_id: str, *, arm: ArmName, run: int = 0, positions: Collection[int] | None = None
    ) -> Iterator[Answer]:
        """In order of (position, choice, repeat). Runs of the noise floor have the baseline alone.

        `positions`: those of these items alone; of the comparison itself only, `run` 0.
        """
        ...

    def drop_failures(self, comparison_id: str, *, from_position: int = 0) -> int:
        """Deletes answers whose status is a failure of the endpoint, so that they are asked again.

        `from_position` is of the comparison itself; of the noise floor's runs, all failures go.
        """
        ...

    def put_scores(self, comparison_id: str, scores: Iterable[Score]) -> None:
        """Replaces the comparison's scores. Outcomes, which came of the former ones, go."""
        ...

    def scores(self, comparison_id: str) -> Iterator[Score]:
        """In order of (arm, position, repeat, metric)."""
        ...

    def flips(self, comparison_id: str, *, metrics: Collection[str]) -> Iterator[ScoreFlip]:
        """Scores of these metrics (lm-eval's keys) that the arms have and that differ between them.

        In order of (position, repeat, metric).
        """
        ...

    def put_outcomes(self, comparison_id: str, outcomes: Iterable[Outcome]) -> None:
        """Replaces the comparison's outcomes. `Registry.outcomes` reads them."""
        ...

    def add_look(self, comparison_id: str, look: Look, *, now: datetime) -> None:
        """Stores the next look. Raises StoreError where its number is not the one after the last."""
        ...

    def looks(self, comparison_id: str) -> Sequence[Look]:
        """In order of their numbers."""
        ...

    def add_observation(self, comparison_id: str, observation: Observation) -> None:
        """Stores what was seen of an engine."""
        ...

    def observations(self, comparison_id: str) -> Sequence[Observation]:
        """In the order in which they were made."""
        ...

    def put_analysis(self, analysis: Analysis, *, now: datetime) -> None:
        """Stores an analysis. One under the comparison's own plan marks it FINISHED and gives it its verdict; one under
        another plan stands beside it."""
        ...

    def analysis(self, comparison_id: str, *, plan_hash: str | None = None) -> Analysis | None:
        """The newest analysis under a plan, the comparison's own by default."""
        ...

    def plan_text(self, comparison_id: str) -> str:
        """The plan's canonical JSON as it was stored, perhaps by a version with other fields. Its hash names it."""
        ...

    def seals(self, comparison_id: str) -> Sequence[SealedAnalysis]:
        """Every stored analysis with its seal, the oldest first."""
        ...

    def plan_hashes(self, comparison_id: str) -> Sequence[str]:
        """Of every analysis, each once, the oldest first."""
        ...


class Registry(Protocol):
    """What the service keeps beside comparisons, in the same database. Each method is one transaction, its audit entry
    in it. Ids are whole ones. Pages hold at least one entry. Errors are StoreError's subclasses, or named."""

    def page(
        self, wanted: ComparisonFilter, *, order: ListOrder = NEWEST_FIRST, cursor: str | None = None
    ) -> Page[ComparisonSummary]:
        """Comparisons, and submissions that have not become one, `wanted.limit` a page. Texts are in the database's own
        order of them. Raises InvalidValue for a bad cursor, as of a list in another order."""
        ...

    def summary(self, comparison_id: str) -> ComparisonSummary:
        """Of a comparison or a submission. Raises ComparisonNotFound."""
        ...

    def about(self, comparison_id: str) -> tuple[ComparisonSummary, Submission | None]:
        """The summary, and the submission that it came of. Raises ComparisonNotFound."""
        ...

    def abouts(self, comparison_ids: Sequence[str]) -> Mapping[str, tuple[ComparisonSummary, Submission | None]]:
        """The same of several by their ids, without those that are not there."""
        ...

    def submit(
        self, submission: Submission, *, entry: AuditEntry, key: str = "", body_hash: str = ""
    ) -> tuple[Submission, bool]:
        """Stores it, and says True; with an idempotency key that was used before, gives what was stored then, and
        False. Raises KeyReused where that key came with another body, or from another token."""
        ...

    def submission(self, comparison_id: str) -> Submission | None: ...

    def submissions(self, *statuses: SubmissionStatus) -> Sequence[Submission]:
        """Those with one of these statuses, oldest first."""
        ...

    def set_submission(
        self,
        comparison_id: str,
        status: SubmissionStatus,
        *,
        entry: AuditEntry | None = None,
        error: Mapping[str, str] | None = None,
        version: int | None = None,
    ) -> Submission:
        """The former error gives way to the one given, or to none. Returns what is stored now. Raises
        ComparisonNotFound; VersionConflict where `version` is given and not the stored one."""
        ...

    def take_over(self, comparison_id: str, *, version: int) -> Submission:
        """From a worker that was lost: QUEUED again. It counts in `takeovers`, unless there are other answers (the
        noise floor's, too) than at the last; then that is 0. Returns what is stored now. Raises ComparisonNotFound;
        VersionConflict where `version` is not the stored one."""
        ...

    def delete(
        self,
        comparison_id: str,
        *,
        entry: AuditEntry,
        stale_after_s: float,
        seen: tuple[ComparisonSummary, Submission | None] | None = None,
    ) -> None:
        """Everything of a comparison, and its submission. Raises ComparisonNotFound; VersionConflict where it is not
        as it was `seen` (see `about`); ComparisonSignedOff for one that was signed off; ComparisonBusy for one that a
        runner holds who lives (see `Store.claim`) at the entry's time, whose submission is QUEUED or RUNNING, or that
        has a lease which is not stale."""
        ...

    def lease_hosts(
        self,
        comparison_id: str,
        slots: Mapping[str, int],
        *,
        runner: str,
        limit: int,
        is_exclusive: bool,
        now: datetime,
        stale_after_s: float,
        reserved: Sequence[HostLease] = (),
    ) -> bool:
        """Takes the right to send to hosts, `slots` requests in flight at each: all of them (True), or none (False).

        A comparison gets a host where the slots of all comparisons there stay within `limit`, and where neither it nor
        another one there is exclusive. A lease that was not renewed for `stale_after_s` falls away. A comparison that
        has leases exchanges them for these, whoever ran it before. What is `reserved` for others counts as if they had
        it. Raises InvalidValue for more slots than the limit.
        """
        ...

    def renew_hosts(self, comparison_id: str, *, runner: str, now: datetime) -> bool:
        """Keeps the leases; False where the runner has none (any more)."""
        ...

    def release_hosts(self, comparison_id: str, *, runner: str) -> None:
        """Gives the runner's leases back; nothing happens where it has none."""
        ...

    def now(self) -> datetime:
        """By the clock of the database's machine, which all that share it can go by."""
        ...

    def see_worker(self, runner: str, *, now: datetime) -> None:
        """Notes that a worker lives."""
        ...

    def drop_worker(self, runner: str) -> None:
        """A worker has ended. Nothing happens where it is not known."""
        ...

    def workers(self, *, now: datetime, stale_after_s: float) -> Sequence[str]:
        """Runners of the workers that live, the oldest first: heard of within `stale_after_s`, and, on this machine,
        with a process that is there."""
        ...

    def has_outcomes(self, comparison_id: str) -> bool: ...

    def outcomes(
        self,
        comparison_id: str,
        wanted: OutcomeFilter,
        *,
        cursor: str | None = None,
        limit: int = 50,
        is_backward: bool = False,
    ) -> Page[Outcome]:
        """In order of (position, repeat), behind the cursor; `is_backward`: what is before it, the nearest first."""
        ...

    def pair(self, comparison_id: str, position: int) -> tuple[Item, Sequence[Answer], Sequence[Score]]:
        """One item with both arms' answers (not the noise floor's) and scores, in the store's order. Raises
        ItemNotFound."""
        ...

    def add_token(self, token: Token, *, entry: AuditEntry) -> None: ...

    def token(self, token_id: str) -> Token | None: ...

    def tokens(self) -> Sequence[Token]:
        """Newest first, the revoked and the expired too."""
        ...

    def revoke_token(self, token_id: str, *, entry: AuditEntry) -> None:
        """From the entry's time on. Nothing happens to one that is revoked already. Raises TokenNotFound."""
        ...

    def counts(self) -> Mapping[str, int]:
        """How many comparisons there are by status, and submissions that have not become one by theirs."""
        ...

    def note(self, entry: AuditEntry) -> None:
        """The record of a change that is no method here, as an analysis that was stored."""
        ...

    def audit(self, *, cursor: str | None = None, limit: int = 50) -> Page[AuditEntry]:
        """Newest first."""
        ...

    def recorded(self, subject: str, action: str) -> Sequence[AuditEntry]:
        """What the record holds of one action on one subject, the oldest first."""
        ...

    def sign_off(self, signoff: SignOff, *, entry: AuditEntry) -> None:
        """Adds it. Raises ComparisonNotFound."""
        ...

    def signoffs(self, comparison_id: str) -> Sequence[SignOff]:
        """In the order in which they were made."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What the queue hands to one worker: a submission as it stood when it was put into the queue."""

    comparison_id: str
    version: int
    """The submission's. One that has changed since is not meant by this delivery."""
    turn: int = 0
    """How often it was put off, because a host that it needs was taken."""
    retry_failed: bool = False
    worker: str = ""
    """The runner of the worker that has it; empty while it waits."""


class Queue(Protocol):
    """A durable queue. Errors are StoreError's subclasses."""

    def put(self, delivery: Delivery, *, delay_s: float = 0.0) -> None:
        """Once for each comparison, version and turn, however often it is called. It is handed out after the delay."""
        ...

    def held(self) -> Sequence[Delivery]:
        """What waits, and what a worker has, living or not; nothing that has come to its end."""
        ...

    def drop(self, delivery: Delivery) -> None:
        """Takes it out. Whoever works at it is not told."""
        ...

    def forget_ended(self) -> None:
        """Nothing is kept of what has come to its end: that it is not handed out twice is the submission's affair."""
        ...


class Jobs(Protocol):
    """The workers' queue. What a submission's row says holds: one that is QUEUED there and not here, because a process
    ended in between, is taken up by the next worker that starts."""

    def enqueue(self, comparison_id: str) -> None:
        """Once, however often it is called. A submission that has run goes on where it ended."""
        ...

    def cancel(self, comparison_id: str) -> None:
        """Ends it where it waits or runs; does nothing for what has ended."""
        ...

    def resume(self, comparison_id: str, *, retry_failed: bool = False) -> None:
        """Enqueues it again after it has ended."""
        ...

    def workers(self) -> int:
        """Workers that were seen alive lately."""
        ...


class Secrets(Protocol):
    """Keys behind references: "env:NAME", "file:/path". What they lead to is never stored, logged or shown."""

    def check(self, reference: str) -> None:
        """Raises SecretForbidden, which does not repeat what was given, for what is no reference that may be used."""
        ...

    def read(self, reference: str) -> str:
        """Raises SecretForbidden, also where nothing is found."""
        ...


class Renderer(Protocol):
    """Draws a report: the same report gives the same bytes."""

    def __call__(self, report: Report) -> bytes: ...


class Clock(Protocol):
    """Time as an argument."""

    def now(self) -> datetime:
        """Aware UTC."""
        ...

    def monotonic_s(self) -> float: ...


class Progress(Protocol):
    """Told what a run does, to show it."""

    def started(
        self, comparison: Comparison, *, totals: Mapping[ArmName, int], done: Mapping[ArmName, int]
    ) -> None: ...

    def answered(self, arm: ArmName, reply: Reply) -> None: ...

    def waiting(self, arm: ArmName, seconds: float) -> None:
        """An arm's server asks to wait before one of its requests is sent again."""
        ...

    def phase(self, text: str) -> None:
        """A step that is not counted, as "scoring"."""
        ...

    def finished(self) -> None: ...

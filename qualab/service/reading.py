"""What REST and pages show of stored comparisons, and how far one under way is."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

from qualab.analysis.flips import have_outcomes
from qualab.errors import ComparisonNotFound, NotYet
from qualab.model.canonical import body_hash, canonical_json, encode_body, sha256
from qualab.model.comparison import Analysis, Comparison
from qualab.model.items import JsonObject, Outcome, OutcomeFilter, Reply, Score
from qualab.model.names import ArmName, ComparisonStatus, Verdict
from qualab.model.reason import Reason
from qualab.model.registry import Page
from qualab.service.context import Context

RATE_OVER = 10
"""Looks that the rate is taken over."""
RATE_WITHIN_S = 60.0
"""Older looks say nothing of what it is lately."""

PHASES = {
    ComparisonStatus.QUEUED: "waiting for a worker",
    ComparisonStatus.PLANNED: "preparing",
    ComparisonStatus.RUNNING: "asking",
    ComparisonStatus.ANSWERED: "scoring and analysing",
}
"""What a comparison does in a status; the others say it themselves."""

COUNTED = (ComparisonStatus.RUNNING, ComparisonStatus.ANSWERED)
"""Statuses of a comparison that is asking or scoring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a comparison is."""

    id: str
    status: ComparisonStatus
    phase: str
    answered: dict[ArmName, int]
    unanswered: dict[ArmName, int]
    """Requests that came back without an answer."""
    n_requests: int | None
    """Of each arm; None while there is no plan."""
    rate: float | None
    """Answers a second of both arms, lately; None before the second look."""
    eta_s: float | None
    """Seconds until every request has its answer, at that rate; None while that is not known."""
    verdict: Verdict | None
    stop_reason: Reason | None
    has_ended: bool

    @property
    def mark(self) -> str:
        """Id of an event: the same for the same state, whichever process reads it."""
        return sha256(canonical_json([self.status, self.answered, self.unanswered, self.verdict, self.has_ended]))[:16]


class Follower:
    """Follow the progress of one comparison. Threads may share it."""

    def __init__(self, context: Context, comparison_id: str) -> None:
        self._context = context
        self._id = comparison_id
        self._n_requests: int | None = None
        self._looks: deque[tuple[float, int]] = deque(maxlen=RATE_OVER)
        self._lock = Lock()

    def look(self) -> Progress:
        """Return the progress now. Raises ComparisonNotFound, StoreError."""
        store, summary = self._context.store, self._context.store.summary(self._id)
        came_back: Mapping[ArmName, int] = dict.fromkeys(ArmName, 0)
        unanswered = came_back
        if summary.plan_hash:
            if self._n_requests is None:
                self._n_requests = store.get(self._id).plan.sampling.repeats * store.n_requests(self._id)
            unanswered = store.n_unanswered(self._id)  # before the others, of which they are a part
            came_back = store.n_answered(self._id)
        phase = PHASES.get(summary.status, summary.status.value)
        if summary.status is ComparisonStatus.RUNNING and summary.started_at is None:
            phase = PHASES[ComparisonStatus.PLANNED]
        with self._lock:
            rate = self._rate_with(sum(came_back.values()))
        eta_s = None
        if self._n_requests is not None and rate and rate > 0.0:
            left = len(ArmName) * self._n_requests - sum(came_back.values())
            eta_s = round(left / rate, 1) if left > 0 else None
        return Progress(
            id=self._id,
            status=summary.status,
            phase=phase,
            answered={arm: came_back[arm] - unanswered[arm] for arm in ArmName},
            unanswered=dict(unanswered),
            n_requests=self._n_requests,
            rate=rate,
            eta_s=eta_s,
            verdict=summary.verdict,
            stop_reason=summary.stop_reason,
            has_ended=summary.status.has_ended,
        )

    def _rate_with(self, n_came_back: int) -> float | None:
        now = self._context.services.clock.monotonic_s()
        while self._looks and now - self._looks[0][0] > RATE_WITHIN_S:
            self._looks.popleft()
        self._looks.append((now, n_came_back))
        then, before = self._looks[0]
        return round((n_came_back - before) / (now - then), 2) if now > then else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBody:
    """The bytes that an arm was sent for one answer."""

    choice: int
    repeat: int
    route: str
    body: str
    sha256_begins: str
    """Hexadecimal; as it stands with the answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDetail:
    """What one arm said."""

    arm: ArmName
    choice: int
    repeat: int
    request_hash: str
    """Hexadecimal: how the SHA-256 of the body that was sent begins."""
    reply: Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDetail:
    """One item with all that became of it."""

    position: int
    task: str
    doc_id: int
    kind: str
    doc: JsonObject
    target: str
    requests: tuple[RequestBody, ...]
    answers: tuple[AnswerDetail, ...]
    scores: tuple[Score, ...]


def comparison_of(context: Context, comparison_id: str) -> Comparison:
    """Raises ComparisonNotFound, NotYet where it has no plan yet; the beginning of an id is none."""
    summary = context.store.summary(comparison_id)
    if not summary.plan_hash:
        raise NotYet(
            f"Comparison {comparison_id} is {summary.status.value}: its plan is not drawn up yet",
            hint="Follow its events",
        )
    return context.store.get(comparison_id)


def analysis_of(context: Context, comparison_id: str, *, plan_hash: str | None = None) -> Analysis:
    """Read an analysis, under its own plan unless another is named. Raises as `comparison_of`, NotYet."""
    found = comparison_of(context, comparison_id)
    analysis = context.store.analysis(found.id, plan_hash=plan_hash)
    if analysis is None and plan_hash is not None:
        raise ComparisonNotFound(
            f"Comparison {comparison_id} has no analysis under that plan", hint="List its analyses for their hashes"
        )
    if analysis is None:
        raise NotYet(f"Comparison {comparison_id} is {found.status.value}: not analysed yet", hint="Follow its events")
    return analysis


def outcomes_of(
    context: Context, comparison_id: str, request: OutcomeFilter, *, cursor: str | None, limit: int
) -> Page[Outcome]:
    """Raises as `comparison_of`, NotYet where nothing is scored, InvalidValue for a cursor that is none."""
    with suppress(ComparisonNotFound):  # one transaction, where there is something to show
        page = context.store.outcomes(comparison_id, request, cursor=cursor, limit=limit)
        if page.entries:
            return page
    found = comparison_of(context, comparison_id)
    if not have_outcomes(context.store, found):
        raise NotYet(
            f"Comparison {found.id} is {found.status.value}: its items are not scored yet", hint="Follow its events"
        )
    return context.store.outcomes(found.id, request, cursor=cursor, limit=limit)


def item_of(context: Context, comparison_id: str, position: int) -> ItemDetail:
    """Raises as `comparison_of`, ItemNotFound."""
    found = comparison_of(context, comparison_id)
    item, answers, scores = context.store.pair(found.id, position)
    requests = []
    for repeat in range(found.plan.sampling.repeats):
        for request in item.requests:
            body = encode_body(request.payload, seed=found.plan.sampling.seed + repeat)
            requests.append(
                RequestBody(
                    choice=request.choice,
                    repeat=repeat,
                    route=request.api.value,
                    body=body.decode(),
                    sha256_begins=body_hash(body).hex(),
                )
            )
    return ItemDetail(
        position=item.position,
        task=item.task,
        doc_id=item.doc_id,
        kind=item.kind.value,
        doc=item.doc,
        target=item.target,
        requests=tuple(requests),
        answers=tuple(
            AnswerDetail(
                arm=one.arm,
                choice=one.choice,
                repeat=one.repeat,
                request_hash=one.request_hash.hex(),
                reply=one.reply,
            )
            for one in answers
        ),
        scores=tuple(scores),
    )

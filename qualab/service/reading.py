"""Read what REST and pages show of stored comparisons, and how far one under way is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import product
from threading import Lock

from starlette.concurrency import run_in_threadpool

from qualab.analysis.audit import ArmTokens, scored_parts
from qualab.analysis.flips import have_outcomes
from qualab.errors import ComparisonNotFound, QualabError, StoreError, WrongState
from qualab.model.audit import TokenPieces, unpack_ids
from qualab.model.canonical import body_hash, canonical_json, encode_body, plain, sha256
from qualab.model.comparison import Analysis, Comparison
from qualab.model.items import Answer, Item, JsonObject, Outcome, OutcomeFilter, Reply, Request, Score
from qualab.model.names import (
    UNEXPECTED,
    WORST_FIRST,
    AnswerStatus,
    ArmName,
    AuditPart,
    ComparisonStatus,
    Language,
    RequestKind,
    Verdict,
    exit_code,
)
from qualab.model.reason import Reason
from qualab.model.registry import ComparisonSummary, Page
from qualab.model.report import BoxLine, GateResult
from qualab.report.box import box_of
from qualab.run.gate import gate_result, unfinished
from qualab.service.context import Context

log = logging.getLogger("qualab.service")
RATE_OVER, RATE_WITHIN_S = 10, 60.0
"""Looks that a rate is taken over at most, and their age."""

PHASES = {
    ComparisonStatus.QUEUED: "waiting for a worker",
    ComparisonStatus.PLANNED: "preparing",
    ComparisonStatus.RUNNING: "asking",
    ComparisonStatus.ANSWERED: "scoring and analysing",
}
"""Phases of statuses that do not name them."""
COUNTED = (ComparisonStatus.RUNNING, ComparisonStatus.ANSWERED)


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
    """Requests of each arm; None while there is no plan."""
    rate: float | None
    """Answers a second of both arms, lately; None at first."""
    eta_s: float | None
    """Seconds to the last answer at that rate; None where unknown."""
    verdict: Verdict | None
    stop_reason: Reason | None
    has_ended: bool

    @property
    def mark(self) -> str:
        """Id of an event: the same for the same state, whichever process reads it."""
        return sha256(canonical_json([self.status, self.answered, self.unanswered, self.verdict, self.has_ended]))[:16]


class Follower:
    """Follow the progress of one comparison, for any number of clients. Threads may share it."""

    def __init__(self, context: Context, comparison_id: str) -> None:
        self._context = context
        self._id = comparison_id
        self._n_requests: int | None = None
        self._looks: deque[tuple[float, int]] = deque(maxlen=RATE_OVER)
        self._lock = Lock()
        self._turn = asyncio.Lock()
        self._latest: Progress | None = None
        self._read_at_s = float("-inf")

    async def latest(self) -> Progress | None:
        """Return the progress, read at most once an interval; None where there is no such comparison.

        Raises StoreError where it could never be read.
        """
        async with self._turn:
            if time.monotonic() - self._read_at_s >= self._context.settings.poll_s:
                try:
                    self._latest = await run_in_threadpool(self.look)
                except ComparisonNotFound:
                    self._latest = None
                except StoreError as error:  # the database may come back
                    if self._latest is None:
                        raise
                    log.warning("progress: %s", error.message)
                self._read_at_s = time.monotonic()
        return self._latest

    def look(self) -> Progress:
        """Return the progress now. Raises ComparisonNotFound, StoreError."""
        store, summary = self._context.store, self._context.store.summary(self._id)
        came_back: Mapping[ArmName, int] = dict.fromkeys(ArmName, 0)
        unanswered = came_back
        if summary.plan_hash:
            if self._n_requests is None:
                self._n_requests = store.get(self._id).plan.sampling.repeats * store.n_requests(self._id)
            lost = [status for status in AnswerStatus if not status.is_answer]
            unanswered = store.n_answered(self._id, lost)  # before the others, of which they are a part
            came_back = store.n_answered(self._id)
        is_prepared = summary.status is not ComparisonStatus.RUNNING or summary.started_at is not None
        phase = summary.status if is_prepared else ComparisonStatus.PLANNED
        with self._lock:
            rate = self._rate_with(sum(came_back.values()))
        eta_s = None
        if self._n_requests is not None and rate and rate > 0.0:
            left = len(ArmName) * self._n_requests - sum(came_back.values())
            eta_s = round(left / rate, 1) if left > 0 else None
        return Progress(
            id=self._id,
            status=summary.status,
            phase=PHASES.get(phase, phase.value),
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
    """The bytes that both arms were sent for one answer."""

    choice: int
    repeat: int
    route: str
    body: str
    sha256_begins: str
    """Hexadecimal, as `request_hash` of the answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDetail:
    """Answer of one arm."""

    arm: ArmName
    choice: int
    repeat: int
    request_hash: str
    """Hexadecimal: the first 16 bytes of the SHA-256 of the body that was sent."""
    reply: Reply
    token_ids: tuple[int, ...] | None
    """Ids as generated; None where the server does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedToken:
    """A token as the baseline scores it, in nats."""

    text: str
    """Text as the engine gives it, also for a token that holds a part of a character alone."""
    logprob: float
    gap: float
    """How far it lies below the model's choice."""
    rank: int
    choice: str
    """The model's choice in its place; empty where not known."""
    is_foreign: bool
    """Greedy: more than tau below the choice. Sampled: so rare that a lossless sampler all but never draws it."""
    is_end: bool
    """True for the end of an answer that stopped where the other arm's went on; its numbers are bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedAnswer:
    """An answer of the token audit."""

    part: AuditPart
    arm: ArmName
    status: AnswerStatus
    finish_reason: str
    text: str | None
    n_tokens: int
    """0 where the tokens are not known."""
    tokens: tuple[AuditedToken, ...]
    """Those that were scored: all, the first ones, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDetail:
    """One item with all that became of it."""

    position: int
    task: str
    doc_id: int
    kind: RequestKind
    doc: JsonObject
    target: str
    requests: tuple[RequestBody, ...]
    answers: tuple[AnswerDetail, ...]
    scores: tuple[Score, ...]
    audited: tuple[AuditedAnswer, ...]
    """Greedy, sampled and structured answers of both arms, where they are in the token audit."""


def comparison_of(context: Context, comparison_id: str) -> Comparison:
    """Read a comparison by its whole id. Raises ComparisonNotFound, WrongState where it has no plan yet."""
    summary = context.store.summary(comparison_id)
    if not summary.plan_hash:
        raise _not_yet(summary, "its plan is not drawn up yet")
    return context.store.get(comparison_id)


def analysis_of(context: Context, comparison_id: str, *, plan_hash: str | None = None) -> Analysis:
    """Read an analysis, under its own plan unless another is named. Raises as `comparison_of`."""
    comparison = comparison_of(context, comparison_id)
    analysis = context.store.analysis(comparison_id, plan_hash=plan_hash)
    if analysis is None and plan_hash is not None:
        raise ComparisonNotFound(
            f"Comparison {comparison_id} has no analysis under that plan", hint="List its analyses for their hashes"
        )
    if analysis is None:
        raise _not_yet(comparison, "not analysed yet")
    return analysis


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDetail:
    """What `qualab gate` says of a comparison now, and would end with."""

    id: str
    label: str
    model: str
    plan_hash: str
    status: ComparisonStatus
    has_ended: bool
    exit_code: int | None
    """None while it is under way."""
    verdict: Verdict | None
    reasons: tuple[Reason, ...]
    caveats: tuple[Reason, ...]
    box: tuple[BoxLine, ...]
    error: Mapping[str, str]
    """Code, message and hint where it has ended without a verdict."""


def gated(context: Context, comparison_id: str, language: Language) -> tuple[GateDetail, GateResult | QualabError]:
    """Read what the gate says: the result, or why there is none. Raises ComparisonNotFound."""
    store, state = context.store, context.store.summary(comparison_id)
    analysis = store.analysis(comparison_id) if state.verdict else None
    if analysis:
        box = box_of(store, comparison_id, language)
        result: GateResult | QualabError = replace(gate_result(state, analysis), box=box)
        code: int | None = exit_code(analysis.verdict)
    else:
        result, box = unfinished(state) if state.has_ended else _not_yet(state, "no verdict yet"), ()
        code = exit_code(result) if state.has_ended else None
    error = result if isinstance(result, QualabError) and state.has_ended else None
    detail = GateDetail(
        **{name: getattr(state, name) for name in ("id", "label", "model", "plan_hash", "status", "has_ended")},
        exit_code=code,
        verdict=state.verdict,
        reasons=analysis.reasons if analysis else (),
        caveats=analysis.caveats if analysis else (),
        box=box,
        error={"code": error.code, "message": error.message, "hint": error.hint} if error else {},
    )
    return detail, result


def message_of(context: Context, comparison_id: str, *, now: datetime) -> JsonObject:
    """Write what a webhook tells of an end; of several candidates the worst, as `qualab gate --latest` does.

    Nothing of items or answers is in it.
    """
    store, state = context.store, context.store.summary(comparison_id)
    group = store.get(comparison_id).plan.group if state.plan_hash else None
    ids = group.ids if group else [comparison_id]
    known = store.summaries(ids)
    each = [gated(context, own, Language.ENGLISH)[0] for own in ids if own in known]
    codes = {own.id: UNEXPECTED if own.exit_code is None else own.exit_code for own in each}
    worst = min(each, key=lambda own: WORST_FIRST.index(codes[own.id]))
    data = {name: getattr(worst, name) for name in ("id", "label", "model", "status", "verdict")}
    data |= {"exit_code": codes[worst.id], "box": [plain(line) for line in worst.box]}
    data |= {"error": worst.error.get("code", ""), "url": f"{context.settings.base_url}/comparisons/{worst.id}"}
    if group:
        data["candidates"] = [{"id": own.id, "verdict": own.verdict, "exit_code": codes[own.id]} for own in each]
    return {"type": "comparison.ended", "timestamp": state.finished_at or now, "data": data}


def outcomes_of(
    context: Context, comparison_id: str, request: OutcomeFilter, *, cursor: str | None, limit: int
) -> Page[Outcome]:
    """Read a page of outcomes. Raises as `comparison_of`, WrongState where nothing is scored, InvalidValue."""
    if request.foreign is not None:
        request = located(context, comparison_of(context, comparison_id), request)
    read = partial(context.store.outcomes, comparison_id, request, cursor=cursor, limit=limit)
    with suppress(ComparisonNotFound):  # one transaction, where there is something to show
        page = read()
        if page.entries:
            return page
    comparison = comparison_of(context, comparison_id)
    if not have_outcomes(context.store, comparison):
        raise _not_yet(comparison, "its items are not scored yet")
    return read()


def _not_yet(comparison: Comparison | ComparisonSummary, why: str) -> WrongState:
    message = f"Comparison {comparison.id} is {comparison.status.value}: {why}"
    return WrongState(message, hint="Follow its events", code="not-yet")


def bodies_of(comparison: Comparison, item: Item) -> Iterator[tuple[Request, int, bytes]]:
    """Yield the requests of an item by choice and repeat, with the repeat and the bytes that were sent."""
    sampling = comparison.plan.sampling
    for request in item.requests:
        for repeat in range(sampling.repeats):
            yield request, repeat, encode_body(request.payload, seed=sampling.seed + repeat)


def item_of(context: Context, comparison_id: str, position: int) -> ItemDetail:
    """Read an item with its requests, answers and scores. Raises as `comparison_of`, ItemNotFound."""
    comparison = comparison_of(context, comparison_id)
    item, answers, scores = context.store.pair(comparison_id, position)
    requests = (
        RequestBody(
            choice=request.choice,
            repeat=repeat,
            route=request.api.value,
            body=body.decode(),
            sha256_begins=body_hash(body).hex(),
        )
        for request, repeat, body in bodies_of(comparison, item)
    )
    names = ("arm", "choice", "repeat", "reply")
    details = (
        AnswerDetail(
            **{name: getattr(answer, name) for name in names},
            request_hash=answer.request_hash.hex(),
            token_ids=unpack_ids(ids) if (ids := answer.reply.token_ids) else None,
        )
        for answer in answers
    )
    own = {name: getattr(item, name) for name in ("position", "task", "doc_id", "kind", "doc", "target")}
    audited = tuple(audited_of(context, comparison, position, answers))
    return ItemDetail(**own, requests=tuple(requests), answers=tuple(details), scores=tuple(scores), audited=audited)


def audited_of(
    context: Context, comparison: Comparison, position: int, answers: Sequence[Answer]
) -> Iterator[AuditedAnswer]:
    """Yield an item's answers in the token audit by part and arm; `answers` have the texts of greedy ones."""
    store = context.store
    texts = {answer.arm: answer.reply.text for answer in answers if (answer.choice, answer.repeat) == (0, 0)}
    stored = {(one.part, one.arm): one for one in store.scored(comparison.id, positions=[position])}
    if not stored:
        return
    scored = scored_parts(store, comparison, positions=[position], with_pieces=True)
    for key in product(AuditPart, ArmName):
        if answer := stored.get(key):
            yield AuditedAnswer(
                part=answer.part,
                arm=answer.arm,
                status=answer.status,
                finish_reason=answer.finish_reason,
                text=texts.get(answer.arm) if answer.part is AuditPart.GREEDY else answer.text,
                n_tokens=len(unpack_ids(answer.token_ids)),
                tokens=tuple(_audited_tokens(scored[key])) if key in scored else (),
            )


def located(context: Context, comparison: Comparison, request: OutcomeFilter) -> OutcomeFilter:
    """Put the positions of items with foreign tokens, or of audited ones without, into a filter that asks for them."""
    if request.foreign is None:
        return request
    found: dict[int, bool] = {}
    for own in scored_parts(context.store, comparison).values():
        for position, has_foreign in own.any_foreign().items():
            found[position] = found.get(position, False) or has_foreign
    positions = tuple(position for position, has_foreign in found.items() if has_foreign is request.foreign)
    return replace(request, positions=positions)


def _audited_tokens(own: ArmTokens) -> Iterator[AuditedToken]:
    (answer,), tokens = own.answers, own.tokens
    pieces, n_ids = answer.pieces or TokenPieces(texts=()), len(unpack_ids(answer.token_ids))
    columns = tokens.gaps.tolist(), (tokens.top - tokens.gaps).tolist(), tokens.ranks.tolist(), own.is_foreign.tolist()
    for index, (gap, logprob, rank, is_foreign) in enumerate(zip(*columns, strict=True)):
        text = pieces.texts[index] if index < len(pieces.texts) else ""
        yield AuditedToken(
            text=text,
            logprob=logprob,
            gap=gap,
            rank=rank,
            choice=pieces.choices.get(index, text if rank == 1 else ""),
            is_foreign=is_foreign,
            is_end=index >= n_ids,
        )

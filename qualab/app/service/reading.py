"""What is read of a comparison over the service: plain values, which every edge shows as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from qualab.app.differences import Difference, differences
from qualab.app.frozen import FrozenPlan, to_document
from qualab.app.outcomes import have_outcomes
from qualab.app.service.desk import Desk
from qualab.domain.canonical import body_hash, canonical_json, encode_body, sha256
from qualab.domain.comparison import Analysis, Comparison, MetricResult
from qualab.domain.engine import Engine
from qualab.domain.items import Answer, Item, JsonObject, Reply, Score
from qualab.domain.lookup import not_found
from qualab.domain.names import ArmName, ComparisonStatus, Verdict
from qualab.domain.observations import engines_seen, pins_seen
from qualab.domain.outcomes import Outcome, OutcomeFilter
from qualab.domain.paging import Page
from qualab.domain.pins import PinFound
from qualab.domain.submissions import ComparisonSummary, Submission, SubmissionStatus
from qualab.domain.treatment import Treatment
from qualab.errors import ComparisonNotFound, ItemNotFound, NotYet

ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")
HASH = re.compile(r"[0-9a-f]{64}")
MOST_POSITION = 2**31 - 1
ENDED = frozenset(
    {ComparisonStatus.FINISHED, SubmissionStatus.DONE, SubmissionStatus.FAILED, SubmissionStatus.CANCELLED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """A comparison with the request that it came of; None for one that was started at a command line."""

    summary: ComparisonSummary
    submission: Submission | None

    @property
    def version(self) -> int:
        """Of what may change; 0 where nothing can be asked for."""
        return self.submission.version if self.submission else 0

    @property
    def has_ended(self) -> bool:
        """Whether nothing is under way or waits to be."""
        if self.submission is not None:
            return self.submission.status in ENDED
        return self.summary.status in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictOf:
    """What CI polls."""

    id: str
    status: ComparisonStatus | SubmissionStatus
    has_ended: bool
    """Nothing more comes, unless it is taken up again."""
    verdict: Verdict | None
    plan_hash: str
    label: str
    model: str
    finished_at: datetime | None
    stop_reason: str
    error: Mapping[str, str]
    """What kept it from running: code, message, hint; empty otherwise."""


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
class AnswerSeen:
    """What one arm said."""

    arm: ArmName
    choice: int
    repeat: int
    request_hash: str
    """Hexadecimal: how the SHA-256 of the body that was sent begins."""
    reply: Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemSeen:
    """One item with all that became of it."""

    position: int
    task: str
    doc_id: int
    kind: str
    doc: JsonObject
    target: str
    requests: tuple[RequestBody, ...]
    answers: tuple[AnswerSeen, ...]
    scores: tuple[Score, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightSeen:
    """What both arms said of themselves before the first item."""

    engines: dict[ArmName, Engine]
    differences: tuple[Difference, ...]
    pins: tuple[PinFound, ...]
    error: Mapping[str, str]
    """What stopped the comparison there, or later; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOf:
    """The result table, and what stands around it."""

    comparison_id: str
    plan_hash: str
    verdict: Verdict
    reasons: tuple[str, ...]
    caveats: tuple[str, ...]
    metrics: tuple[MetricResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisNamed:
    """One stored analysis."""

    plan_hash: str
    is_own_plan: bool
    """False: its plan was made after the data."""
    verdict: Verdict
    hash: str
    """SHA-256 of its canonical JSON."""


def about(desk: Desk, comparison_id: str) -> About:
    """Raises ComparisonNotFound; the beginning of an id is none."""
    summary, submission = desk.registry.about(known_id(comparison_id))
    return About(summary=summary, submission=submission)


def known_id(comparison_id: str) -> str:
    """The id, if it can be one. Raises ComparisonNotFound: what no id looks like is not looked for."""
    if not ID.fullmatch(comparison_id):
        raise not_found(comparison_id[:50])
    return comparison_id


def verdicts_of(desk: Desk, comparison_ids: Sequence[str]) -> dict[str, VerdictOf]:
    """By id, each from one row, without its analysis; those that are not there are left out."""
    found = desk.registry.abouts([one for one in comparison_ids if ID.fullmatch(one)])
    return {key: _verdict(About(summary=summary, submission=sent)) for key, (summary, sent) in found.items()}


def _verdict(found: About) -> VerdictOf:
    summary = found.summary
    return VerdictOf(
        id=summary.id,
        status=summary.status,
        has_ended=found.has_ended,
        verdict=summary.verdict,
        plan_hash=summary.plan_hash,
        label=summary.label,
        model=summary.model,
        finished_at=summary.finished_at,
        stop_reason=summary.stop_reason,
        error=found.submission.error if found.submission else {},
    )


def comparison_of(desk: Desk, comparison_id: str) -> Comparison:
    """Raises ComparisonNotFound, NotYet where it has no plan yet."""
    try:
        found = desk.services.store.get(known_id(comparison_id))
    except ComparisonNotFound:
        status = about(desk, comparison_id).summary.status
        raise NotYet(
            f"Comparison {comparison_id} is {status.value}: its plan is not drawn up yet", hint="Follow its events"
        ) from None
    if found.id != comparison_id:
        raise not_found(comparison_id)
    return found


def plan_document(desk: Desk, comparison_id: str) -> JsonObject:
    """The plan, as in a plan file. Raises as `comparison_of`."""
    found = comparison_of(desk, comparison_id)
    frozen = FrozenPlan(plan=found.plan, plan_hash=found.plan_hash, frozen_at=found.created_at, settings={})
    document = to_document(frozen, {})
    return {name: document[name] for name in ("qualab_plan", "hash", "frozen_at", "plan")}


def analysis_of(desk: Desk, comparison_id: str, *, plan_hash: str | None = None) -> Analysis:
    """Under its own plan unless another is named. Raises as `comparison_of`, NotYet."""
    found = comparison_of(desk, comparison_id)
    can_be = plan_hash is None or HASH.fullmatch(plan_hash)
    analysis = desk.services.store.analysis(found.id, plan_hash=plan_hash) if can_be else None
    if analysis is None and plan_hash is not None:
        raise ComparisonNotFound(
            f"Comparison {comparison_id} has no analysis under that plan", hint="List its analyses for their hashes"
        )
    if analysis is None:
        raise NotYet(f"Comparison {comparison_id} is {found.status.value}: not analysed yet", hint="Follow its events")
    return analysis


def metrics_of(desk: Desk, comparison_id: str) -> MetricsOf:
    """Raises as `analysis_of`."""
    found = analysis_of(desk, comparison_id)
    return MetricsOf(
        comparison_id=found.comparison_id,
        plan_hash=found.plan_hash,
        verdict=found.verdict,
        reasons=found.reasons,
        caveats=found.caveats,
        metrics=found.metrics,
    )


def acceptance_of(desk: Desk, comparison_id: str) -> Treatment:
    """What the drafter did. Raises as `analysis_of`."""
    found = analysis_of(desk, comparison_id).treatment
    if found is None:
        raise NotYet(f"The analysis of {comparison_id} did not look into engines", hint="Analyse it again")
    return found


def analyses_of(desk: Desk, comparison_id: str) -> tuple[AnalysisNamed, ...]:
    """The oldest first. Raises as `comparison_of`."""
    found, store = comparison_of(desk, comparison_id), desk.services.store
    kept = (store.analysis(found.id, plan_hash=one) for one in store.plan_hashes(found.id))
    return tuple(named(one, found) for one in kept if one is not None)


def named(analysis: Analysis, comparison: Comparison) -> AnalysisNamed:
    """An analysis by what tells it from others."""
    return AnalysisNamed(
        plan_hash=analysis.plan_hash,
        is_own_plan=analysis.plan_hash == comparison.plan_hash,
        verdict=analysis.verdict,
        hash=sha256(canonical_json(analysis)),
    )


def preflight_of(desk: Desk, comparison_id: str) -> PreflightSeen:
    """As last seen. Raises ComparisonNotFound."""
    found = about(desk, comparison_id)
    has_plan = bool(found.summary.plan_hash)
    seen = desk.services.store.observations(comparison_id) if has_plan else ()
    engines = engines_seen(seen)
    both = [engines[arm] for arm in ArmName if arm in engines]
    return PreflightSeen(
        engines=engines,
        differences=tuple(differences(*both)) if len(both) == len(ArmName) else (),
        pins=pins_seen(seen),
        error=found.submission.error if found.submission else {},
    )


def outcomes_of(
    desk: Desk, comparison_id: str, wanted: OutcomeFilter, *, cursor: str | None, limit: int
) -> Page[Outcome]:
    """Raises as `comparison_of`, NotYet where nothing is scored, InvalidValue for a cursor that is none."""
    with suppress(ComparisonNotFound):  # one transaction, where there is something to show
        page = desk.registry.outcomes(known_id(comparison_id), wanted, cursor=cursor, limit=limit)
        if page.entries:
            return page
    found = comparison_of(desk, comparison_id)
    if not have_outcomes(desk.services.store, desk.registry, found):
        raise NotYet(
            f"Comparison {found.id} is {found.status.value}: its items are not scored yet", hint="Follow its events"
        )
    return desk.registry.outcomes(found.id, wanted, cursor=cursor, limit=limit)


def item_of(desk: Desk, comparison_id: str, position: int) -> ItemSeen:
    """Raises as `comparison_of`, ItemNotFound."""
    found = comparison_of(desk, comparison_id)
    if not 0 <= position <= MOST_POSITION:
        raise ItemNotFound(f"Comparison {found.id} has no item {position}", hint="Positions count from 0")
    item, answers, scores = desk.registry.pair(found.id, position)
    return ItemSeen(
        position=item.position,
        task=item.task,
        doc_id=item.doc_id,
        kind=item.kind.value,
        doc=item.doc,
        target=item.target,
        requests=_bodies(item, found),
        answers=tuple(map(_answer, answers)),
        scores=tuple(scores),
    )


def _answer(one: Answer) -> AnswerSeen:
    return AnswerSeen(
        arm=one.arm, choice=one.choice, repeat=one.repeat, request_hash=one.request_hash.hex(), reply=one.reply
    )


def _bodies(item: Item, comparison: Comparison) -> tuple[RequestBody, ...]:
    sampling = comparison.plan.sampling
    return tuple(
        _body(request.choice, repeat, request.api.value, encode_body(request.payload, seed=sampling.seed + repeat))
        for repeat in range(sampling.repeats)
        for request in item.requests
    )


def _body(choice: int, repeat: int, route: str, body: bytes) -> RequestBody:
    return RequestBody(
        choice=choice, repeat=repeat, route=route, body=body.decode(), sha256_begins=body_hash(body).hex()
    )

"""/v1: comparisons from request to report, plans, and the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from typing import Annotated, Generic, Literal, TypeVar

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import AwareDatetime, Field
from starlette.responses import StreamingResponse

from qualab import bootstrap
from qualab.errors import InvalidValue, VersionConflict
from qualab.model.canonical import plain
from qualab.model.comparison import Analysis, SignOff
from qualab.model.engine import Treatment
from qualab.model.items import Change, JsonObject, Outcome, OutcomeFilter
from qualab.model.names import ComparisonStatus, Language, ReportFormat, Verdict
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import (
    AuditEntry,
    ComparisonSummary,
    ListOrder,
    MetricsSummary,
    Page,
    VerdictSummary,
)
from qualab.model.wording import storable_text
from qualab.report.model import report_model
from qualab.run.sign import sign_off
from qualab.run.verify import Verification, verify
from qualab.service import requests
from qualab.service.api import openapi
from qualab.service.api.answers import (
    REVALIDATE,
    TAG,
    PageQuery,
    answer,
    encoded,
    etag_of,
    page_answer,
    tagged,
)
from qualab.service.api.openapi import answers, body, problems, shows
from qualab.service.api.state import (
    ADMINISTER,
    READ,
    Admin,
    Body,
    BodyOrNothing,
    ContextDep,
    Reader,
    Runner,
    actor,
    slowly,
    state_of,
)
from qualab.service.context import Context
from qualab.service.reading import (
    AnalysisSummary,
    ItemDetail,
    PreflightDetail,
    acceptance_of,
    analyses_of,
    analysis_of,
    comparison_of,
    item_of,
    metrics_of,
    outcomes_of,
    plan_document,
    preflight_of,
    summary_of,
    verdict_of,
)

router = APIRouter(prefix="/v1")
COMPARISON = "/comparisons/{comparison_id}"
T = TypeVar("T")
IfMatch = Annotated[str | None, Header(description="The ETag of what was read: a change of anything newer is refused")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOut:
    """The request that a comparison came from."""

    version: int
    created_by: str
    error: dict[str, str]
    experiment: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOut(ComparisonSummary):
    """A comparison with the request that it came from."""

    has_ended: bool
    request: RequestOut | None
    """None for a comparison that was started at a command line."""

    @classmethod
    def of(cls, context: Context, summary: ComparisonSummary) -> ComparisonOut:
        """Join a summary with its request."""
        experiment, request = context.services.store.request(summary.id), None
        if experiment is not None:
            request = RequestOut(
                version=summary.version,
                created_by=summary.created_by,
                error=dict(summary.error),
                experiment=experiment,
            )
        values = {one.name: getattr(summary, one.name) for one in fields(ComparisonSummary)}
        return cls(**values, has_ended=summary.status.has_ended, request=request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries(Generic[T]):
    """A list without pages, the oldest entry first."""

    entries: tuple[T, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument:
    """A plan, as in a file of `qualab plan`."""

    qualab_plan: int
    hash: str
    frozen_at: datetime
    plan: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComputed:
    """What items can prove, and the plan frozen."""

    plan_hash: str
    document: JsonObject | None
    """The content of a plan file, to run; None where no model is named."""
    planning: JsonObject
    """As `qualab plan --format json`."""


Sort = Literal["-created", "label", "verdict"]


class ComparisonQuery(PageQuery):
    """Filters of the list of comparisons."""

    status: str | None = Field(None, description="As queued, running, finished")
    verdict: Verdict | None = None
    model: str | None = None
    label: str | None = None
    since: AwareDatetime | None = Field(None, description="Created at or after")
    until: AwareDatetime | None = Field(None, description="Created before")
    sort: Sort = Field("-created", description="Newest first, or by label or verdict")


class ItemQuery(PageQuery):
    """Filters of the list of items."""

    task: str | None = None
    flipped: bool | None = Field(None, description="Whether the score differs between the arms")
    change: Change | None = None
    missing: bool | None = Field(None, description="Whether an arm has no score")
    different_text: bool | None = Field(None, description="Whether both answered, and not the same")
    min_length: int | None = Field(None, ge=0, lt=2**31, description="Characters of the longer answer")
    max_length: int | None = Field(None, ge=0, lt=2**31)


@router.post(
    "/comparisons",
    tags=["comparisons"],
    **answers(
        ComparisonOut,
        "Queued, or what the same Idempotency-Key has queued before",
        *(400, 413, 415),
        status=202,
        headers=("Location", "ETag"),
    ),
    **body(openapi.experiment_schema(), openapi.EXPERIMENT),
)
async def create(
    request: Request,
    context: ContextDep,
    caller: Runner,
    document: Body,
    idempotency_key: Annotated[str, Header(description="The same key and body: the same comparison")] = "",
) -> Response:
    """Ask for a comparison. Its plan is computed first: a margin that it cannot prove needs accept_underpowered."""

    def job() -> Response:
        created = requests.submit(context, document, by=actor(request, caller), key=idempotency_key)
        return _comparison(request, context, created, status=202, Location=f"/v1/comparisons/{created}")

    return await slowly(request, job)


@router.get("/comparisons", dependencies=READ, tags=["comparisons"], **shows(Page[ComparisonSummary]))
def list_comparisons(request: Request, context: ContextDep, query: Annotated[ComparisonQuery, Query()]) -> Response:
    """List comparisons; newest first among equals."""
    wanted = ComparisonFilter(
        status=read_status(query.status),
        verdict=query.verdict,
        model=None if query.model is None else storable_text(query.model),
        label=None if query.label is None else storable_text(query.label),
        since=query.since,
        until=query.until,
        limit=query.limit,
    )
    return page_answer(request, context.registry.page(wanted, order=ListOrder(query.sort), cursor=query.cursor))


@router.get(COMPARISON, dependencies=READ, tags=["comparisons"], **shows(ComparisonOut, 404))
def read(request: Request, context: ContextDep, comparison_id: str) -> Response:
    """One comparison, with the request that it came from."""
    return _comparison(request, context, comparison_id)


@router.delete(
    COMPARISON,
    status_code=204,
    responses=problems(404, 409, 412) | {204: {"description": "Deleted, with all its answers"}},
    tags=["comparisons"],
)
def delete(
    request: Request, context: ContextDep, caller: Runner, comparison_id: str, if_match: IfMatch = None
) -> Response:
    """Delete a comparison and everything of it. What is under way is cancelled first; what is signed off stays."""
    seen = _seen(context, comparison_id, if_match)
    requests.delete(context, comparison_id, by=actor(request, caller), seen=seen)
    return Response(status_code=204)


@router.post(COMPARISON + "/cancel", tags=["comparisons"], **answers(ComparisonOut, "Cancelled", 404, 409, 412))
def cancel(
    request: Request, context: ContextDep, caller: Runner, comparison_id: str, if_match: IfMatch = None
) -> Response:
    """Cancel what is queued or running. Everything answered stays, and it can be resumed."""
    seen = _seen(context, comparison_id, if_match)
    requests.cancel(context, comparison_id, by=actor(request, caller), seen=seen)
    return _comparison(request, context, comparison_id)


RETRY_FAILED = {"type": "object", "properties": {"retry_failed": {"type": "boolean"}}, "additionalProperties": False}


@router.post(
    COMPARISON + "/resume",
    tags=["comparisons"],
    **answers(ComparisonOut, "Queued again", *(400, 404, 409, 412, 413, 415), status=202),
    **body(RETRY_FAILED, {"retry_failed": True}, required=False),
)
def resume(
    request: Request,
    context: ContextDep,
    caller: Runner,
    comparison_id: str,
    document: BodyOrNothing,
    if_match: IfMatch = None,
) -> Response:
    """Resume what was cancelled, stopped or failed; only what is missing is asked."""
    retry_failed = document.pop("retry_failed", False)
    if document or not isinstance(retry_failed, bool):
        raise InvalidValue(
            "The body may hold retry_failed alone",
            hint="Send true or false, or nothing",
            fields={"retry_failed": "must be true or false"} | {name[:60]: "is unknown here" for name in document},
        )
    seen = _seen(context, comparison_id, if_match)
    requests.resume(context, comparison_id, by=actor(request, caller), retry_failed=retry_failed, seen=seen)
    return _comparison(request, context, comparison_id, status=202)


@router.get(COMPARISON + "/verdict", dependencies=READ, tags=["comparisons"], **shows(VerdictSummary, 404))
def verdict(request: Request, context: ContextDep, comparison_id: str) -> Response:
    """The verdict, small enough to poll."""
    return answer(request, verdict_of(context, comparison_id))


@router.get(COMPARISON + "/metrics", dependencies=READ, tags=["comparisons"], **shows(MetricsSummary, 404, 409))
def metrics(request: Request, context: ContextDep, comparison_id: str) -> Response:
    """The result table with the verdict's reasons and caveats."""
    return answer(request, metrics_of(context, comparison_id))


@router.get(COMPARISON + "/preflight", dependencies=READ, tags=["comparisons"], **shows(PreflightDetail, 404))
def preflight(request: Request, context: ContextDep, comparison_id: str) -> Response:
    """What both engines reported, where they differ, and what was pinned."""
    return answer(request, preflight_of(context, comparison_id))


@router.get(COMPARISON + "/acceptance", dependencies=READ, tags=["comparisons"], **shows(Treatment, 404, 409))
def acceptance(request: Request, context: ContextDep, comparison_id: str) -> Response:
    """What the drafter did, task by task."""
    return answer(request, acceptance_of(context, comparison_id))


@router.get(COMPARISON + "/plan", dependencies=READ, tags=["comparisons"], **shows(PlanDocument, 404, 409))
def plan(request: Request, context: ContextDep, comparison_id: str) -> Response:
    """The plan, frozen before the first request."""
    return answer(request, plan_document(context, comparison_id))


def _comparison(
    request: Request, context: Context, comparison_id: str, *, status: int = 200, **headers: str
) -> Response:
    shown = encoded(ComparisonOut.of(context, summary_of(context, comparison_id)))
    if request.method == "GET":
        return tagged(request, shown)
    all_headers = {"ETag": etag_of(shown), **REVALIDATE, **headers}
    return Response(shown, status, headers=all_headers, media_type="application/json")


def _seen(context: Context, comparison_id: str, if_match: str | None) -> ComparisonSummary | None:
    """The comparison that If-Match stands for; None where any will do. Raises VersionConflict."""
    if if_match is None or if_match.strip() == "*":
        return None
    summary = summary_of(context, comparison_id)
    if etag_of(encoded(ComparisonOut.of(context, summary))) not in TAG.findall(if_match):
        raise VersionConflict(
            f"Comparison {comparison_id} has changed since it was read",
            hint="Read it again, and send its ETag in If-Match",
        )
    return summary


def read_status(text: str | None) -> ComparisonStatus | None:
    """Read a status filter. Raises InvalidValue."""
    if text is None or text in tuple(ComparisonStatus):
        return None if text is None else ComparisonStatus(text)
    known = ", ".join(ComparisonStatus)
    raise InvalidValue("Unknown status", hint=f"One of {known}", fields={"status": f"must be one of {known}"})


@router.get(
    COMPARISON + "/events",
    tags=["events"],
    dependencies=READ,
    response_class=StreamingResponse,
    responses=problems(404)
    | {
        200: {
            "description": "`progress` for each change; `end` when nothing more comes; comments as heartbeats",
            "content": {"text/event-stream": {"schema": {"type": "string"}, "example": openapi.EVENT}},
        },
        204: {"description": "The end was seen: there is nothing to ask again for"},
    },
)
async def events(
    request: Request,
    comparison_id: str,
    last_event_id: Annotated[str, Header(description="The last event seen, which is not sent again")] = "",
) -> Response:
    """Follow a comparison: answers by arm, rate, phase, status, verdict."""
    return await state_of(request).events.follow(comparison_id, last_event_id)


@router.get(COMPARISON + "/items", tags=["items"], dependencies=READ, **shows(Page[Outcome], 404, 409))
def items(request: Request, context: ContextDep, comparison_id: str, query: Annotated[ItemQuery, Query()]) -> Response:
    """The items in order of position, as scored: both arms' scores, and whether the texts differ."""
    wanted = OutcomeFilter(
        task=None if query.task is None else storable_text(query.task),
        flipped=query.flipped,
        change=query.change,
        missing=query.missing,
        different_text=query.different_text,
        min_length=query.min_length,
        max_length=query.max_length,
    )
    return page_answer(request, outcomes_of(context, comparison_id, wanted, cursor=query.cursor, limit=query.limit))


@router.get(COMPARISON + "/items/{position}", tags=["items"], dependencies=READ, **shows(ItemDetail, 404, 409))
def item(request: Request, context: ContextDep, comparison_id: str, position: int) -> Response:
    """One item with the requests as they were sent, both arms' answers, and their scores."""
    return answer(request, item_of(context, comparison_id, position))


@router.post(
    COMPARISON + "/analyses",
    tags=["analyses"],
    **answers(
        requests.NewAnalysis,
        "Analysed again",
        *(400, 404, 409, 413, 415),
        status=201,
        headers=("Location", "ETag"),
    ),
    **body(openapi.rule_schema(), {"margin": 0.03}, required=False),
)
async def analyse(
    request: Request, context: ContextDep, caller: Runner, comparison_id: str, document: BodyOrNothing
) -> Response:
    """Analyse the stored answers again; with another rule than the plan's it is marked as made after the data."""

    def job() -> Response:
        found = requests.analyse_again(context, comparison_id, document, by=actor(request, caller))
        headers = {"Location": f"/v1/comparisons/{comparison_id}/analyses/{found.name.plan_hash}"}
        return Response(encoded(found), 201, headers=headers | REVALIDATE, media_type="application/json")

    return await slowly(request, job)


@router.get(COMPARISON + "/analyses", tags=["analyses"], dependencies=READ, **shows(Entries[AnalysisSummary], 404, 409))
def analyses(request: Request, context: ContextDep, comparison_id: str) -> Response:
    """The stored analyses, the oldest first."""
    return answer(request, Entries(entries=analyses_of(context, comparison_id)))


@router.get(COMPARISON + "/analyses/{plan_hash}", tags=["analyses"], dependencies=READ, **shows(Analysis, 404, 409))
def analysis(request: Request, context: ContextDep, comparison_id: str, plan_hash: str) -> Response:
    """One analysis, whole."""
    return answer(request, analysis_of(context, comparison_id, plan_hash=plan_hash))


REPORT_TYPES: Mapping[ReportFormat, tuple[str, object]] = {
    ReportFormat.PDF: ("application/pdf", "%PDF-1.7 ..."),
    ReportFormat.HTML: ("text/html; charset=utf-8", '<!doctype html><html lang="en">...</html>'),
    ReportFormat.MARKDOWN: ("text/markdown; charset=utf-8", "# Drafter off or on: m\n..."),
    ReportFormat.JSON: ("application/json", {"comparison_id": openapi.ID, "headline": "...", "sections": []}),
}
"""Media types, and an example of each."""
SANDBOX = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; frame-ancestors 'none'"
)
"""Nothing runs in a report, and nothing is fetched."""
REPORT_CONTENT = {
    media_type.partition(";")[0]: {
        "schema": {"type": "string"} if isinstance(shown, str) else {"type": "object"},
        "example": shown,
    }
    for media_type, shown in REPORT_TYPES.values()
}


@router.get(
    COMPARISON + "/report",
    dependencies=READ,
    response_class=Response,
    responses=problems(404, 409)
    | {
        200: {"description": "The file", "content": REPORT_CONTENT, "headers": {"ETag": openapi.HEADERS["ETag"]}},
        304: {"description": "The client has it", "headers": {"ETag": openapi.HEADERS["ETag"]}},
    },
    tags=["comparisons"],
)
async def report(
    request: Request,
    context: ContextDep,
    comparison_id: str,
    report_format: Annotated[ReportFormat, Query(alias="format")] = ReportFormat.PDF,
    lang: Language = Language.ENGLISH,
) -> Response:
    """The report of an analysed comparison, as `qualab report` writes it."""

    def job() -> bytes:
        found = analysis_of(context, comparison_id)
        model = report_model(context.services.store, context.registry, found.comparison_id, lang)
        return bootstrap.renderer(report_format)(model)

    headers = {
        "Content-Disposition": f'inline; filename="qualab-{comparison_id}.{report_format}"',
        "Content-Security-Policy": SANDBOX,
    }
    file = await slowly(request, job)
    return tagged(request, file, headers=headers, media_type=REPORT_TYPES[report_format][0])


SIGN_OFF_FIELDS = ("signed_by", "note", "override")
SIGN_OFF_SCHEMA = {
    "title": "SignOffRequest",
    "type": "object",
    "properties": {name: {"type": "string"} for name in SIGN_OFF_FIELDS},
    "required": ["signed_by"],
    "additionalProperties": False,
}


@router.post(
    COMPARISON + "/signoffs",
    tags=["sign-off"],
    **answers(SignOff, "Signed off", *(400, 404, 409, 413, 415), status=201),
    **body(SIGN_OFF_SCHEMA, {"signed_by": "Kim Minji", "note": "release 12"}),
)
def sign(request: Request, context: ContextDep, caller: Admin, comparison_id: str, document: Body) -> Response:
    """Accept the verdict. Refused where something stands in the way, unless `override` gives a reason."""
    wrong = {name[:60]: "is unknown here" for name in sorted(set(document) - set(SIGN_OFF_FIELDS))}
    given = {name: document.get(name, "") for name in SIGN_OFF_FIELDS}
    wrong |= {name: "must be a string" for name, value in given.items() if not isinstance(value, str)}
    if wrong:
        raise InvalidValue(
            "The body has invalid fields", hint=f"Send strings: {', '.join(SIGN_OFF_FIELDS)}", fields=wrong
        )
    by = actor(request, caller)
    found, store = comparison_of(context, comparison_id), context.services.store
    signed = sign_off(store, context.registry, found.id, who=by.who, at=by.at, details=by.details, **given)
    return Response(encoded(signed), 201, headers=REVALIDATE, media_type="application/json")


@router.get(COMPARISON + "/signoffs", tags=["sign-off"], dependencies=READ, **shows(Entries[SignOff], 404, 409))
def signoffs(request: Request, context: ContextDep, comparison_id: str) -> Response:
    """Who accepted which verdict, the oldest first."""
    found = comparison_of(context, comparison_id)
    return answer(request, Entries(entries=tuple(context.registry.signoffs(found.id))))


@router.post(
    COMPARISON + "/verification",
    tags=["sign-off"],
    dependencies=ADMINISTER,
    **answers(Verification, "What was checked", 404, 409),
)
async def verification(request: Request, context: ContextDep, comparison_id: str) -> Response:
    """Recompute hashes, scores and the analysis from what is stored, and tell whether anything was altered."""
    job = partial(verify, context.services, context.registry, comparison_of(context, comparison_id).id)
    found = await slowly(request, job)
    return Response(encoded(found), headers=REVALIDATE, media_type="application/json")


@router.post(
    "/plans",
    tags=["plans"],
    **answers(PlanComputed, "What the items can prove", *(400, 404, 413, 415)),
    **body(openapi.plans_schema(), openapi.PLAN_REQUEST),
)
async def compute_plan(request: Request, context: ContextDep, caller: Reader, document: Body) -> Response:
    """Power, provable margins, and the items that the margins need. Nothing is stored, and no endpoint is asked."""

    def job() -> Response:
        found = requests.compute_plan(context, document, caller=caller)
        shown = PlanComputed(plan_hash=found.plan_hash, document=found.document, planning=plain(found.planning))
        return answer(request, shown)

    return await slowly(request, job)


@router.get("/audit", tags=["audit"], dependencies=ADMINISTER, **shows(Page[AuditEntry]))
def audit(request: Request, context: ContextDep, query: Annotated[PageQuery, Query()]) -> Response:
    """Every change, newest first."""
    return page_answer(request, context.registry.audit(cursor=query.cursor, limit=query.limit))

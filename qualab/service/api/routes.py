"""/v1: comparisons from request to report, plans, and the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Literal
from urllib.parse import urlsplit

import orjson
from fastapi import APIRouter, Header, Query, Response
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from qualab import bootstrap
from qualab.analysis.drafter import Difference, differences
from qualab.errors import ComparisonNotFound, QualabError, VersionConflict, WrongState
from qualab.model.bank import Bank
from qualab.model.canonical import plain
from qualab.model.comparison import Analysis, SignOff
from qualab.model.engine import Engine, Treatment, engines_seen, pins_seen
from qualab.model.items import Change, JsonObject, Outcome, OutcomeFilter
from qualab.model.names import ArmName, ComparisonStatus, Language, ReportFormat, Verdict
from qualab.model.plan import PinFound
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import AuditEntry, ComparisonSummary, ListOrder, Page, Webhook
from qualab.model.speed import Advice, Capacity, Limits, Payoff, Speed
from qualab.model.wording import storable_text
from qualab.report.gate import junit, junit_of_error
from qualab.report.group import RankedGroup, ranked_group
from qualab.report.model import report_model
from qualab.run.bank import add_bank
from qualab.run.prepare import FrozenPlan, to_document
from qualab.run.sign import sign_off
from qualab.run.stored import payoff_in
from qualab.run.verify import Verification, verify
from qualab.service import reading, requests
from qualab.service.api.answers import TAG, answer, encoded, etag_of, tagged
from qualab.service.api.openapi import BODY, ETAG, EXPERIMENT, PLAN_REQUEST, answers, body, problems, shows
from qualab.service.api.state import Admin, Body, BodyOrNothing, Call, Reader, Runner
from qualab.service.context import validated

router = APIRouter(prefix="/v1")
COMPARISON = "/comparisons/{comparison_id}"
IfMatch = Annotated[str | None, Header(description="The ETag of what was read: a change of anything newer is refused")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument:
    """A plan, as in a file of `qualab plan`."""

    qualab_plan: int
    hash: str
    frozen_at: datetime
    plan: JsonObject


Text = Annotated[str, BeforeValidator(lambda text: storable_text(text) if isinstance(text, str) else text)]
Length = Annotated[int, Field(ge=0, lt=2**31)]


class PageQuery(BaseModel):
    """The parameters of every list. Unknown ones are refused: a misspelled filter would show everything."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(50, ge=1, le=200, description="Entries per page")
    cursor: str | None = Field(None, max_length=2_000, description="`next_cursor` of the previous page")


class ComparisonQuery(PageQuery):
    """Filters of the list of comparisons."""

    status: ComparisonStatus | None = Field(None, description="As queued, running, finished")
    verdict: Verdict | None = None
    model: Text | None = None
    label: Text | None = None
    group: Text | None = Field(None, description="Candidates that were compared in one run")
    since: AwareDatetime | None = Field(None, description="Created at or after")
    until: AwareDatetime | None = Field(None, description="Created before")
    sort: ListOrder = Field(ListOrder.NEWEST, description="Newest first, or by label or verdict")

    def filter(self) -> ComparisonFilter:
        return ComparisonFilter(**self.model_dump(exclude={"sort", "cursor"}))


class ItemQuery(PageQuery):
    """Filters of the list of items."""

    task: Text | None = None
    flipped: bool | None = Field(None, description="Whether the score differs between the arms")
    change: Change | None = None
    missing: bool | None = Field(None, description="Whether an arm has no score")
    different_text: bool | None = Field(None, description="Whether both answered, and not the same")
    foreign: bool | None = Field(None, description="Whether audited answers of it have a foreign token")
    text: Annotated[Text, Field(min_length=1, max_length=200)] | None = Field(
        None, description="A text in the document, the right answer or an answer of the arms, in any case"
    )
    min_length: Length | None = Field(None, description="Characters of the longer answer")
    max_length: Length | None = None

    def filter(self) -> OutcomeFilter:
        return OutcomeFilter(**self.model_dump(include=set(OutcomeFilter.__dataclass_fields__)))


class ResumeRequest(BaseModel):
    """How a comparison is resumed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    retry_failed: bool = False


class SignOffRequest(BaseModel):
    """Who accepts a verdict."""

    model_config = ConfigDict(extra="forbid", strict=True)

    signed_by: str
    note: str = ""
    override: str = ""


class BankRequest(BaseModel):
    """Whose baseline is banked, and under which name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    comparison_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightDetail:
    """Show what both arms said of themselves before the first item."""

    engines: dict[ArmName, Engine]
    differences: tuple[Difference, ...]
    pins: tuple[PinFound, ...]
    error: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsDetail:
    """Show what was found of limits, and of the KV cache; None where nothing was."""

    limits: Limits | None
    capacity: Capacity | None


Wait = Annotated[float, Query(ge=0, description="Seconds to wait for the end; the operator allows 60, or what he sets")]
EXIT_CODE = {"Qualab-Exit-Code": {"description": "As `qualab gate` would end", "schema": {"type": "integer"}}}


# from a request to its end


@router.get(COMPARISON + "/verdict", tags=["comparisons"], **shows(ComparisonSummary, 404))
async def verdict(call: Reader, comparison_id: str, wait: Wait = 0.0) -> Response:
    """Read a comparison without its request, small enough to poll."""
    await call.state.events.wait(call.request, comparison_id, wait)
    return answer(call.request, await call.state.polls.summary(comparison_id))


@router.get(
    COMPARISON + "/gate",
    tags=["comparisons"],
    response_model=reading.GateDetail,
    responses=problems(404)
    | {200: {"headers": ETAG | EXIT_CODE}, 304: {"headers": ETAG | EXIT_CODE}}
    | {202: {"description": "It is under way: ask again", "model": reading.GateDetail, "headers": ETAG}},
)
async def gate(call: Reader, comparison_id: str, wait: Wait = 0.0, lang: Language = Language.ENGLISH) -> Response:
    """Read what `qualab gate` says and ends with, once the comparison has ended."""
    await call.state.events.wait(call.request, comparison_id, wait)
    state = await call.state.polls.summary(comparison_id)
    job = partial(reading.gated, call.context, comparison_id, lang)
    detail, _ = await (call.slowly(job) if state.has_ended else run_in_threadpool(job))
    if detail.exit_code is None:
        return answer(call.request, detail, 202)
    return answer(call.request, detail, 200, **{"Qualab-Exit-Code": str(detail.exit_code)})


@router.get(COMPARISON + "/webhook", tags=["comparisons"], **shows(Webhook, 404))
def webhook(call: Reader, comparison_id: str) -> Response:
    """Read whether the webhook that was asked for was delivered, and what the last try came to."""
    stored = call.context.store.webhook(call.context.store.summary(comparison_id).id)
    if stored is None:
        hint = "Send webhook: URL with the request for a comparison"
        raise ComparisonNotFound(f"Comparison {comparison_id} has no webhook", hint=hint)
    parts = urlsplit(stored.url)  # the rest may be secret
    return answer(call.request, replace(stored, url=f"{parts.scheme}://{parts.netloc}/..."))


@router.post(
    "/comparisons",
    tags=["comparisons"],
    **answers(ComparisonSummary, "Queued, or queued before with the same Idempotency-Key", *BODY, status=202),
    **body("Experiment", EXPERIMENT),
)
async def create(
    call: Runner,
    document: Body,
    idempotency_key: Annotated[str, Header(description="The same key and body: the same comparison")] = "",
) -> Response:
    """Ask for a comparison. Its plan is computed first: a margin that it cannot prove needs accept_underpowered."""

    def job() -> Response:
        created = requests.submit(call.context, document, by=call.by, key=idempotency_key)
        return answer(call.request, _comparison(call, created), 202, Location=f"/v1/comparisons/{created}")

    return await call.slowly(job)


@router.get("/comparisons", tags=["comparisons"], **shows(Page[ComparisonSummary]))
def list_comparisons(call: Reader, query: Annotated[ComparisonQuery, Query()]) -> Response:
    """List comparisons; newest first among equals."""
    return answer(call.request, call.context.store.page(query.filter(), order=query.sort, cursor=query.cursor))


@router.get(COMPARISON, tags=["comparisons"], **shows(ComparisonSummary, 404))
def read(call: Reader, comparison_id: str) -> Response:
    """Read a comparison with the request that it came from."""
    return answer(call.request, _comparison(call, comparison_id))


@router.delete(
    COMPARISON,
    status_code=204,
    responses=problems(404, 409, 412) | {204: {"description": "Deleted, with all its answers"}},
    tags=["comparisons"],
)
def delete(call: Runner, comparison_id: str, if_match: IfMatch = None) -> Response:
    """Delete a comparison and everything of it. What is under way is cancelled first; what is signed off stays."""
    summary, context = matching(call, comparison_id, if_match), call.context
    context.store.delete(
        comparison_id,
        entry=call.by.entry("comparison.delete", comparison_id),
        stale_after_s=context.services.heartbeat.stale_after_s,
        version=None if if_match in (None, "*") else summary.version,
    )
    return Response(status_code=204)


@router.post(COMPARISON + "/cancel", tags=["comparisons"], **answers(ComparisonSummary, "Cancelled", 404, 409, 412))
def cancel(call: Runner, comparison_id: str, if_match: IfMatch = None) -> Response:
    """Cancel what is queued or running, of a group all. Everything answered stays, and it can be resumed."""
    requests.cancel(call.context, matching(call, comparison_id, if_match), by=call.by)
    return answer(call.request, _comparison(call, comparison_id))


@router.post(
    COMPARISON + "/resume",
    tags=["comparisons"],
    **answers(ComparisonSummary, "Queued again", *BODY, 404, 409, 412, status=202),
    **body(ResumeRequest, {"retry_failed": True}, required=False),
)
def resume(call: Runner, comparison_id: str, document: BodyOrNothing, if_match: IfMatch = None) -> Response:
    """Resume what was cancelled, stopped or failed, of a group all; only what is missing is asked."""
    how, summary = validated(ResumeRequest, document), matching(call, comparison_id, if_match)
    requests.resume(call.context, summary, by=call.by, retry_failed=how.retry_failed)
    return answer(call.request, _comparison(call, comparison_id), 202)


def _comparison(call: Call, comparison_id: str) -> ComparisonSummary:
    store = call.context.store
    return replace(store.summary(comparison_id), experiment=store.request(comparison_id))


def matching(call: Call, comparison_id: str, if_match: str | None) -> ComparisonSummary:
    """Read what is to be changed. Raises VersionConflict where it is not what If-Match stands for."""
    summary = _comparison(call, comparison_id)
    if if_match not in (None, "*") and etag_of(encoded(summary)) not in TAG.findall(if_match or ""):
        raise VersionConflict(
            f"Comparison {comparison_id} has changed since it was read",
            hint="Read it again, and send its ETag in If-Match",
        )
    return summary


@router.get("/groups/{group_id}", tags=["comparisons"], **shows(RankedGroup, 404))
def group(call: Reader, group_id: str) -> Response:
    """Rank the candidates that were compared with one baseline in one run, the best first."""
    context = call.context
    return answer(call.request, ranked_group(context.store, group_id, now=context.services.clock.now()))


# what came of it


@router.get(COMPARISON + "/metrics", tags=["comparisons"], **shows(Analysis, 404, 409))
def metrics(call: Reader, comparison_id: str) -> Response:
    """Read the analysis under the comparison's own plan: the verdict with its reasons and caveats, a row per metric."""
    return answer(call.request, reading.analysis_of(call.context, comparison_id))


@router.get(COMPARISON + "/preflight", tags=["comparisons"], **shows(PreflightDetail, 404))
def preflight(call: Reader, comparison_id: str) -> Response:
    """Read what both engines reported, where they differ, and what was pinned."""
    store = call.context.store
    error, observations = store.summary(comparison_id).error, store.observations(comparison_id)
    engines = engines_seen(observations)
    both = [engines[arm] for arm in ArmName if arm in engines]
    differ = tuple(differences(*both)) if len(both) == len(ArmName) else ()
    pins = pins_seen(observations)
    return answer(call.request, PreflightDetail(engines=engines, differences=differ, pins=pins, error=error))


@router.get(COMPARISON + "/acceptance", tags=["comparisons"], **shows(Treatment, 404, 409))
def acceptance(call: Reader, comparison_id: str) -> Response:
    """Read what the drafter did, task by task."""
    treatment = reading.analysis_of(call.context, comparison_id).treatment
    if treatment is None:
        message = f"The analysis of {comparison_id} did not look into engines"
        raise WrongState(message, hint="Analyse it again", code="not-yet")
    return answer(call.request, treatment)


@router.get(COMPARISON + "/speed", tags=["comparisons"], **shows(Speed, 404, 409))
def speed(call: Reader, comparison_id: str) -> Response:
    """Read both arms' speed by kind of work, length and load, with the ratios."""
    return answer(call.request, _payoff(call, comparison_id, "speed").speed)


@router.get(COMPARISON + "/limits", tags=["comparisons"], **shows(LimitsDetail, 404, 409))
def limits(call: Reader, comparison_id: str) -> Response:
    """Read the room in both arms' KV caches, and the longest prompts that they answer rightly."""
    payoff = _payoff(call, comparison_id, "limits")
    return answer(call.request, LimitsDetail(limits=payoff.limits, capacity=payoff.capacity))


@router.get(COMPARISON + "/advice", tags=["comparisons"], **shows(Advice, 404, 409))
def advice(call: Reader, comparison_id: str) -> Response:
    """Read where to turn the drafter on: routes by kind of work, length and load; the first that matches counts."""
    return answer(call.request, _payoff(call, comparison_id, "advice").advice)


def _payoff(call: Call, comparison_id: str, part: str) -> Payoff:
    reading.comparison_of(call.context, comparison_id)  # a beginning of its id is none
    return payoff_in(call.context.store, comparison_id, part)


@router.get(COMPARISON + "/plan", tags=["comparisons"], **shows(PlanDocument, 404, 409))
def plan(call: Reader, comparison_id: str) -> Response:
    """Read the plan, frozen before the first request."""
    own = reading.comparison_of(call.context, comparison_id)
    frozen = FrozenPlan(plan=own.plan, plan_hash=own.plan_hash, frozen_at=own.created_at, settings={})
    document = to_document(frozen, {})
    return answer(call.request, {name: document[name] for name in PlanDocument.__dataclass_fields__})


EVENT = 'id: 3b1f0c2d4e5a6978\nevent: progress\ndata: {"id":"20260102-030405-0a1b2c3d","status":"running"}\n\n'


@router.get(
    COMPARISON + "/events",
    tags=["events"],
    response_class=StreamingResponse,
    responses=problems(404)
    | {
        200: {
            "description": "`progress` for each change; `end` when nothing more comes; comments as heartbeats",
            "content": {"text/event-stream": {"schema": {"type": "string"}, "example": EVENT}},
        },
        204: {"description": "The end was seen: there is nothing to ask again for"},
    },
)
async def events(
    call: Reader,
    comparison_id: str,
    last_event_id: Annotated[str, Header(description="The last event seen, which is not sent again")] = "",
) -> Response:
    """Follow a comparison: answers by arm, rate, phase, status, verdict."""
    return await call.state.events.follow(comparison_id, last_event_id)


@router.get(COMPARISON + "/items", tags=["items"], **shows(Page[Outcome], 404, 409))
def items(call: Reader, comparison_id: str, query: Annotated[ItemQuery, Query()]) -> Response:
    """List the items in order of position: both arms' scores, and whether the texts differ."""
    page = reading.outcomes_of(call.context, comparison_id, query.filter(), cursor=query.cursor, limit=query.limit)
    return answer(call.request, page)


@router.get(COMPARISON + "/items/{position}", tags=["items"], **shows(reading.ItemDetail, 404, 409))
def item(call: Reader, comparison_id: str, position: int) -> Response:
    """Read an item with the requests as they were sent, both arms' answers, and their scores."""
    detail = plain(reading.item_of(call.context, comparison_id, position))
    return tagged(call.request, orjson.dumps(detail))  # what looks like a reason in a document stays as it is


# analyses and reports


@router.post(
    COMPARISON + "/analyses",
    tags=["analyses"],
    **answers(requests.NewAnalysis, "Analysed again", *BODY, 404, 409, status=201),
    **body("Rule", {"margin": 0.03}, required=False),
)
async def analyse(call: Runner, comparison_id: str, document: BodyOrNothing) -> Response:
    """Analyse the stored answers again; with another rule than the plan's it is marked as made after the data."""

    def job() -> Response:
        again = requests.analyse_again(call.context, comparison_id, document, by=call.by)
        location = f"/v1/comparisons/{comparison_id}/analyses/{again.name.plan_hash}"
        return answer(call.request, again, 201, Location=location)

    return await call.slowly(job)


@router.get(COMPARISON + "/analyses", tags=["analyses"], **shows(Page[requests.AnalysisSummary], 404, 409))
def analyses(call: Reader, comparison_id: str) -> Response:
    """List the stored analyses, the oldest first."""
    comparison, store = reading.comparison_of(call.context, comparison_id), call.context.store
    stored = (store.analysis(comparison.id, plan_hash=name) for name in store.plan_hashes(comparison.id))
    entries = tuple(requests.summary_of(analysis, comparison) for analysis in stored if analysis is not None)
    return answer(call.request, Page(entries=entries, next_cursor=None))


@router.get(COMPARISON + "/analyses/{plan_hash}", tags=["analyses"], **shows(Analysis, 404, 409))
def analysis(call: Reader, comparison_id: str, plan_hash: str) -> Response:
    """Read one analysis, whole."""
    return answer(call.request, reading.analysis_of(call.context, comparison_id, plan_hash=plan_hash))


REPORT_TYPES: Mapping[ReportFormat, str] = {
    ReportFormat.PDF: "application/pdf",
    ReportFormat.HTML: "text/html; charset=utf-8",
    ReportFormat.MARKDOWN: "text/markdown; charset=utf-8",
    ReportFormat.JSON: "application/json",
}
JUNIT = "application/xml"
SANDBOX = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; frame-ancestors 'none'"
)
"""Nothing runs in a report, and nothing is fetched."""


@router.get(
    COMPARISON + "/report",
    response_class=Response,
    responses=problems(404, 409)
    | {
        200: {
            "description": "The file",
            "content": {media_type.partition(";")[0]: {} for media_type in (*REPORT_TYPES.values(), JUNIT)},
            "headers": ETAG,
        },
        304: {"headers": ETAG},
    },
    tags=["comparisons"],
)
async def report(
    call: Reader,
    comparison_id: str,
    report_format: Annotated[ReportFormat | Literal["junit"], Query(alias="format")] = ReportFormat.PDF,
    lang: Language = Language.ENGLISH,
) -> Response:
    """Draw the report of an analysed comparison, as `qualab report` writes it; JUnit as `qualab gate` does."""
    if report_format == "junit":
        return await call.slowly(partial(_junit, call, comparison_id, lang))

    def job() -> bytes:
        reading.analysis_of(call.context, comparison_id)  # raises where there is none yet
        model = report_model(call.context.store, comparison_id, lang)
        return bootstrap.renderer(report_format)(model)

    headers = {
        "Content-Disposition": f'inline; filename="qualab-{comparison_id}.{report_format}"',
        "Content-Security-Policy": SANDBOX,
    }
    return tagged(call.request, await call.slowly(job), headers=headers, media_type=REPORT_TYPES[report_format])


def _junit(call: Call, comparison_id: str, lang: Language) -> Response:
    """Raises WrongState while the comparison is under way."""
    detail, result = reading.gated(call.context, comparison_id, lang)
    if isinstance(result, QualabError):
        if detail.exit_code is None:
            raise result
        xml = junit_of_error(comparison_id, code=result.code, message=f"{result.message}. {result.hint}")
    else:
        xml = junit(result)
    return tagged(call.request, xml, headers={"Qualab-Exit-Code": str(detail.exit_code)}, media_type=JUNIT)


# sign-off and audit


@router.post(
    COMPARISON + "/signoffs",
    tags=["sign-off"],
    **answers(SignOff, "Signed off", *BODY, 404, 409, status=201),
    **body(SignOffRequest, {"signed_by": "Kim Minji", "note": "release 12"}),
)
def sign(call: Admin, comparison_id: str, document: Body) -> Response:
    """Accept the verdict. Refused where something stands in the way, unless `override` gives a reason."""
    given, by = validated(SignOffRequest, document).model_dump(), call.by
    reading.comparison_of(call.context, comparison_id)  # a beginning of its id is none
    signed = sign_off(call.context.store, comparison_id, who=by.who, at=by.at, details=by.details, **given)
    return answer(call.request, signed, 201)


@router.get(COMPARISON + "/signoffs", tags=["sign-off"], **shows(Page[SignOff], 404, 409))
def signoffs(call: Reader, comparison_id: str) -> Response:
    """List who accepted which verdict, the oldest first."""
    reading.comparison_of(call.context, comparison_id)
    return answer(call.request, Page(entries=tuple(call.context.store.signoffs(comparison_id)), next_cursor=None))


@router.post(COMPARISON + "/verification", tags=["sign-off"], **answers(Verification, "What was checked", 404, 409))
async def verification(call: Admin, comparison_id: str) -> Response:
    """Recompute hashes, scores and the analysis from what is stored, and tell whether anything was altered."""

    def job() -> Verification:
        reading.comparison_of(call.context, comparison_id)
        return verify(call.context.services, comparison_id)

    return answer(call.request, await call.slowly(job))


# banked baselines


@router.get("/baselines", tags=["baselines"], **shows(Page[Bank]))
def banks(call: Reader) -> Response:
    """List banked baselines by name."""
    return answer(call.request, Page(entries=tuple(call.context.store.banks()), next_cursor=None))


@router.post(
    "/baselines",
    tags=["baselines"],
    **answers(Bank, "Banked", *BODY, 404, 409, status=201),
    **body(BankRequest, {"name": "nightly", "comparison_id": "20260102-030405-0a1b2c3d"}),
)
def bank(call: Runner, document: Body) -> Response:
    """Bank the baseline of a finished comparison that measured its noise; it is kept meanwhile."""
    given, by = validated(BankRequest, document), call.by
    reading.comparison_of(call.context, given.comparison_id)  # a beginning of its id is none
    banked = add_bank(call.context.store, given.name, given.comparison_id, who=by.who, now=by.at, details=by.details)
    return answer(call.request, banked, 201, Location=f"/v1/baselines/{banked.name}")


@router.get("/baselines/{name}", tags=["baselines"], **shows(Bank, 404))
def read_bank(call: Reader, name: str) -> Response:
    """Read a banked baseline: comparison, plan, engine, pins, and how much two of its runs differ."""
    return answer(call.request, call.context.store.bank(name))


@router.delete(
    "/baselines/{name}",
    status_code=204,
    responses=problems(404) | {204: {"description": "Banked no more"}},
    tags=["baselines"],
)
def drop_bank(call: Runner, name: str) -> Response:
    """Forget a bank. Its comparison stays, and so do the copies that others took."""
    call.context.store.drop_bank(name, entry=call.by.entry("baseline.drop", name))
    return Response(status_code=204)


@router.post(
    "/plans",
    tags=["plans"],
    **answers(requests.PlanComputed, "What the items can prove", *BODY, 404),
    **body("PlanRequest", PLAN_REQUEST),
)
async def compute_plan(call: Reader, document: Body) -> Response:
    """Compute power, provable margins and the items needed. Nothing is stored, and no endpoint is asked."""

    job = partial(requests.compute_plan, call.context, document, caller=call.by.caller)
    return answer(call.request, await call.slowly(job))


@router.get("/audit", tags=["audit"], **shows(Page[AuditEntry]))
def audit(call: Admin, query: Annotated[PageQuery, Query()]) -> Response:
    """List every change, newest first."""
    return answer(call.request, call.context.store.audit(cursor=query.cursor, limit=query.limit))

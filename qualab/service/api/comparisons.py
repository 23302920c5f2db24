"""/v1/comparisons: asked for, listed, read, cancelled, taken up again, deleted."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import AwareDatetime, Field

from qualab.errors import InvalidValue, VersionConflict
from qualab.model.engine import Treatment
from qualab.model.names import ComparisonStatus, Verdict
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import ORDERS, SubmissionStatus, not_found
from qualab.model.wording import storable_text
from qualab.service import requests as changing
from qualab.service.api import samples
from qualab.service.api.answers import REVALIDATE, TAG, Paged, answer, encoded, etag_of, page_answer, tagged
from qualab.service.api.docs import HEADERS, body, example, experiment_schema, problems, shows
from qualab.service.api.shapes import ComparisonOut, ComparisonPage, PlanDocument
from qualab.service.api.state import READ, Body, BodyOrNothing, Runner, TheDesk, by, slowly, state_of
from qualab.service.desk import Desk
from qualab.service.reading import (
    About,
    MetricsOf,
    PreflightSeen,
    VerdictOf,
    about,
    acceptance_of,
    metrics_of,
    plan_document,
    preflight_of,
)
from qualab.service.requests import submit

router = APIRouter(prefix="/v1/comparisons", tags=["comparisons"])
IfMatch = Annotated[str | None, Header(description="The ETag of what was read: a change of anything newer is refused")]
RETRY_FAILED = {"type": "object", "properties": {"retry_failed": {"type": "boolean"}}, "additionalProperties": False}


Sort = Literal["created", "-created", "label", "-label", "model", "-model", "status", "-status", "verdict", "-verdict"]
MOST_OF_A_CURSOR = 2_000
"""Those of an order by a text hold one."""


class Listed(Paged):
    """What a list of comparisons may be asked for."""

    status: str | None = Field(None, description="As queued, running, finished")
    verdict: Verdict | None = None
    model: str | None = None
    label: str | None = None
    since: AwareDatetime | None = Field(None, description="Created at or after")
    until: AwareDatetime | None = Field(None, description="Created before")
    sort: Sort = Field("-created", description="What they are ordered by; behind `-` the other way round")
    cursor: str | None = Field(None, max_length=MOST_OF_A_CURSOR, description="`next_cursor` of the page before")


@router.post(
    "",
    status_code=202,
    response_model=ComparisonOut,
    responses=problems(400, 413, 415)
    | example(
        samples.COMPARISON,
        status=202,
        text="Queued, or what the same Idempotency-Key has queued before",
        headers={"Location": {"description": "The comparison", "schema": {"type": "string"}}, "ETag": HEADERS["ETag"]},
    ),
    openapi_extra=body(experiment_schema(), samples.EXPERIMENT),
)
async def create(
    request: Request,
    desk: TheDesk,
    caller: Runner,
    document: Body,
    idempotency_key: Annotated[str, Header(description="The same key and body: the same comparison")] = "",
) -> Response:
    """Ask for a comparison. Its plan is computed first: a margin that it cannot prove needs accept_underpowered."""

    def job() -> Response:
        found, _ = submit(desk, document, by=by(request, caller), key=idempotency_key)
        return _shown(desk, found.id, status=202, Location=f"/v1/comparisons/{found.id}")

    return await slowly(request, job)


@router.get("", dependencies=READ, **shows(ComparisonPage, samples.COMPARISONS))
def list_comparisons(request: Request, desk: TheDesk, asked: Annotated[Listed, Query()]) -> Response:
    """List comparisons with requests that have not become one; newest first, and so what is equal in another order."""
    wanted = ComparisonFilter(
        status=read_status(asked.status),
        verdict=asked.verdict,
        model=None if asked.model is None else storable_text(asked.model),
        label=None if asked.label is None else storable_text(asked.label),
        since=asked.since,
        until=asked.until,
        limit=asked.limit,
    )
    return page_answer(request, desk.registry.page(wanted, order=ORDERS[asked.sort], cursor=asked.cursor))


@router.get("/{comparison_id}", dependencies=READ, **shows(ComparisonOut, samples.COMPARISON, 404))
def read(request: Request, desk: TheDesk, comparison_id: str) -> Response:
    """One comparison, with the request that it came of."""
    shown = encoded(ComparisonOut.of(about(desk, comparison_id)))
    return tagged(request, shown, etag_of(shown))


@router.delete(
    "/{comparison_id}",
    status_code=204,
    responses=problems(404, 409, 412) | {204: {"description": "Deleted, with all its answers"}},
)
def delete(request: Request, desk: TheDesk, caller: Runner, comparison_id: str, if_match: IfMatch = None) -> Response:
    """Delete a comparison and everything of it. What is under way is cancelled first; what is signed off stays."""
    seen = _seen(desk, comparison_id, if_match)
    changing.delete(desk, comparison_id, by=by(request, caller), seen=seen)
    state_of(request).verdicts.drop(comparison_id)
    return Response(status_code=204)


@router.post(
    "/{comparison_id}/cancel",
    response_model=ComparisonOut,
    responses=problems(404, 409, 412) | example(samples.COMPARISON, text="Cancelled"),
)
def cancel(request: Request, desk: TheDesk, caller: Runner, comparison_id: str, if_match: IfMatch = None) -> Response:
    """Cancel what is queued or running. Everything answered stays, and it can be taken up again."""
    version = _version(desk, comparison_id, if_match)
    changing.cancel(desk, comparison_id, by=by(request, caller), version=version)
    return _shown(desk, comparison_id)


@router.post(
    "/{comparison_id}/resume",
    status_code=202,
    response_model=ComparisonOut,
    responses=problems(400, 404, 409, 412, 413, 415) | example(samples.COMPARISON, status=202, text="Queued again"),
    openapi_extra=body(RETRY_FAILED, {"retry_failed": True}, required=False),
)
def resume(
    request: Request,
    desk: TheDesk,
    caller: Runner,
    comparison_id: str,
    document: BodyOrNothing,
    if_match: IfMatch = None,
) -> Response:
    """Take up again what was cancelled, stopped or failed; only what is missing is asked."""
    retry_failed = document.pop("retry_failed", False)
    if document or not isinstance(retry_failed, bool):
        raise InvalidValue(
            "The body may hold retry_failed alone",
            hint="Send true or false, or nothing",
            fields={"retry_failed": "must be true or false"} | {name[:60]: "is unknown here" for name in document},
        )
    version = _version(desk, comparison_id, if_match)
    changing.resume(desk, comparison_id, by=by(request, caller), retry_failed=retry_failed, version=version)
    state_of(request).verdicts.drop(comparison_id)
    return _shown(desk, comparison_id, status=202)


@router.get("/{comparison_id}/verdict", dependencies=READ, **shows(VerdictOf, samples.VERDICT, 404))
async def verdict(request: Request, comparison_id: str) -> Response:
    """What CI polls: small, and answered from memory once it is final."""
    kept = state_of(request).verdicts.get(comparison_id)
    if kept is None:
        found = await state_of(request).reads.get(comparison_id)
        if found is None:
            raise not_found(comparison_id[:50])
        shown = encoded(found)
        kept = shown, etag_of(shown)
        if found.status is ComparisonStatus.FINISHED and found.has_ended:
            state_of(request).verdicts.put(comparison_id, *kept)
    return tagged(request, *kept)


def verdict_route() -> APIRoute:
    """The route of `verdict`."""
    return next(one for one in router.routes if isinstance(one, APIRoute) and one.endpoint is verdict)


@router.get("/{comparison_id}/metrics", dependencies=READ, **shows(MetricsOf, samples.METRICS, 404, 409))
def metrics(request: Request, desk: TheDesk, comparison_id: str) -> Response:
    """The result table with the verdict's reasons and caveats."""
    return answer(request, metrics_of(desk, comparison_id))


@router.get("/{comparison_id}/preflight", dependencies=READ, **shows(PreflightSeen, samples.PREFLIGHT, 404))
def preflight(request: Request, desk: TheDesk, comparison_id: str) -> Response:
    """What both engines said of themselves, where they differ, and what was pinned."""
    return answer(request, preflight_of(desk, comparison_id))


@router.get("/{comparison_id}/acceptance", dependencies=READ, **shows(Treatment, samples.ACCEPTANCE, 404, 409))
def acceptance(request: Request, desk: TheDesk, comparison_id: str) -> Response:
    """What the drafter did, task by task."""
    return answer(request, acceptance_of(desk, comparison_id))


@router.get("/{comparison_id}/plan", dependencies=READ, **shows(PlanDocument, samples.PLAN, 404, 409))
def plan(request: Request, desk: TheDesk, comparison_id: str) -> Response:
    """The plan, frozen before the first request."""
    return answer(request, plan_document(desk, comparison_id))


def _shown(desk: Desk, comparison_id: str, *, status: int = 200, **headers: str) -> Response:
    shown = encoded(ComparisonOut.of(about(desk, comparison_id)))
    said = {"ETag": etag_of(shown), **REVALIDATE, **headers}
    return Response(shown, status, headers=said, media_type="application/json")


def _seen(desk: Desk, comparison_id: str, if_match: str | None) -> About | None:
    """What If-Match stands for, so that nothing changes unseen until then. Raises VersionConflict."""
    if if_match is None or if_match.strip() == "*":
        return None
    found = about(desk, comparison_id)
    if etag_of(encoded(ComparisonOut.of(found))) not in TAG.findall(if_match):
        raise VersionConflict(
            f"Comparison {comparison_id} has changed since it was read",
            hint="Read it again, and send its ETag in If-Match",
        )
    return found


def _version(desk: Desk, comparison_id: str, if_match: str | None) -> int | None:
    """Of the submission that If-Match stands for. Raises VersionConflict."""
    found = _seen(desk, comparison_id, if_match)
    return found.version if found and found.submission else None


def read_status(text: str | None) -> ComparisonStatus | SubmissionStatus | None:
    """Raises InvalidValue for what is none."""
    if text is None:
        return None
    for kind in (ComparisonStatus, SubmissionStatus):
        if text in tuple(kind):
            return kind(text)
    known = ", ".join(dict.fromkeys([*ComparisonStatus, *SubmissionStatus]))
    raise InvalidValue(
        "status is none that there is", hint=f"One of {known}", fields={"status": f"must be one of {known}"}
    )

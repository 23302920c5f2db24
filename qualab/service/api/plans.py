"""/v1/plans: what items can prove, before anything is asked."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from qualab.model.canonical import plain
from qualab.report.words import ENGLISH
from qualab.service.api import samples
from qualab.service.api.answers import answer
from qualab.service.api.docs import body, example, plans_schema, problems
from qualab.service.api.shapes import PlanComputed
from qualab.service.api.state import Body, Reader, TheDesk, slowly
from qualab.service.requests import compute_plan

router = APIRouter(prefix="/v1/plans", tags=["plans"])


@router.post(
    "",
    response_model=PlanComputed,
    responses=problems(400, 404, 413, 415) | example(samples.PLANNED),
    openapi_extra=body(plans_schema(), samples.PLAN_REQUEST),
)
async def compute(request: Request, desk: TheDesk, caller: Reader, document: Body) -> Response:
    """Power, provable margins, and the items that the margins need. Nothing is stored, and no endpoint is asked."""

    def job() -> Response:
        found = compute_plan(desk, document, caller=caller)
        shown = PlanComputed(
            plan_hash=found.plan_hash,
            document=found.document,
            planning=plain(found.planning) | {"caveats": ENGLISH.reasons(found.planning.caveats)},
        )
        return answer(request, shown)

    return await slowly(request, job)

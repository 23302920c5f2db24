"""/v1/comparisons/{id}/analyses: stored ones, and new ones of the same answers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from qualab.model.comparison import Analysis
from qualab.service.api import samples
from qualab.service.api.answers import REVALIDATE, answer, encoded
from qualab.service.api.docs import HEADERS, RULE_SCHEMA, body, example, problems, shows
from qualab.service.api.shapes import AnalysisList
from qualab.service.api.state import READ, BodyOrNothing, Runner, TheDesk, by, slowly
from qualab.service.reading import analyses_of, analysis_of
from qualab.service.requests import AnalysedAgain, analyse_again

router = APIRouter(prefix="/v1/comparisons/{comparison_id}/analyses", tags=["analyses"])


@router.post(
    "",
    status_code=201,
    response_model=AnalysedAgain,
    responses=problems(400, 404, 409, 413, 415)
    | example(
        samples.ANALYSED,
        status=201,
        text="Analysed again",
        headers={"Location": {"description": "The analysis", "schema": {"type": "string"}}, "ETag": HEADERS["ETag"]},
    ),
    openapi_extra=body(RULE_SCHEMA, {"margin": 0.03}, required=False),
)
async def create(
    request: Request, desk: TheDesk, caller: Runner, comparison_id: str, document: BodyOrNothing
) -> Response:
    """Analyse the stored answers again; with another rule than the plan's it is marked as made after the data."""

    def job() -> Response:
        found = analyse_again(desk, comparison_id, document, by=by(request, caller))
        headers = {"Location": f"/v1/comparisons/{comparison_id}/analyses/{found.name.plan_hash}"}
        return Response(encoded(found), 201, headers=headers | REVALIDATE, media_type="application/json")

    return await slowly(request, job)


@router.get("", dependencies=READ, **shows(AnalysisList, samples.ANALYSES, 404, 409))
def analyses(request: Request, desk: TheDesk, comparison_id: str) -> Response:
    """The stored analyses, the oldest first."""
    return answer(request, AnalysisList(entries=analyses_of(desk, comparison_id)))


@router.get("/{plan_hash}", dependencies=READ, **shows(Analysis, samples.ANALYSIS, 404, 409))
def analysis(request: Request, desk: TheDesk, comparison_id: str, plan_hash: str) -> Response:
    """One analysis, whole."""
    return answer(request, analysis_of(desk, comparison_id, plan_hash=plan_hash))

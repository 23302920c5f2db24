"""/v1/comparisons/{id}/report: the report as a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from qualab import bootstrap
from qualab.model.names import Language, ReportFormat
from qualab.service.api import samples
from qualab.service.api.answers import etag_of, tagged
from qualab.service.api.docs import HEADERS, problems
from qualab.service.api.state import READ, TheDesk, slowly, state_of
from qualab.service.reading import analysis_of

router = APIRouter(prefix="/v1/comparisons/{comparison_id}/report", tags=["comparisons"])
TYPES: Mapping[ReportFormat, str] = {
    ReportFormat.PDF: "application/pdf",
    ReportFormat.HTML: "text/html; charset=utf-8",
    ReportFormat.MARKDOWN: "text/markdown; charset=utf-8",
    ReportFormat.JSON: "application/json",
}
ALONE = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; frame-ancestors 'none'"
"""Nothing runs in a report, and nothing is fetched."""


def _described() -> dict[str, Any]:
    of_file: dict[str, Any] = {"schema": {"type": "string"}}
    content = {
        "application/pdf": {"schema": {"type": "string", "format": "binary"}, "example": "%PDF-1.7 ..."},
        "text/html": {**of_file, "example": '<!doctype html><html lang="en">...</html>'},
        "text/markdown": {**of_file, "example": "# Drafter off or on: m\n..."},
        "application/json": {"schema": {"type": "object"}, "example": samples.REPORT},
    }
    return {"description": "The file", "content": content, "headers": {"ETag": HEADERS["ETag"]}}


@router.get(
    "",
    dependencies=READ,
    response_class=Response,
    responses=problems(404, 409)
    | {200: _described(), 304: {"description": "The client has it", "headers": {"ETag": HEADERS["ETag"]}}},
)
async def report(
    request: Request,
    desk: TheDesk,
    comparison_id: str,
    report_format: Annotated[ReportFormat, Query(alias="format")] = ReportFormat.PDF,
    lang: Language = Language.ENGLISH,
) -> Response:
    """The report of an analysed comparison, as `qualab report` writes it."""

    def job() -> bytes:
        found = analysis_of(desk, comparison_id)
        model = state_of(request).reports.get(found.comparison_id, lang)
        return bootstrap.renderer(report_format)(model)

    body = await slowly(request, job)
    headers = {
        "Content-Disposition": f'inline; filename="qualab-{comparison_id}.{report_format}"',
        "Content-Security-Policy": ALONE,
    }
    return tagged(request, body, etag_of(body), headers=headers, media_type=TYPES[report_format])

"""/v1/audit: who changed what, and when."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from qualab.service.api import samples
from qualab.service.api.answers import Paged, page_answer
from qualab.service.api.docs import shows
from qualab.service.api.shapes import AuditPage
from qualab.service.api.state import ADMINISTER, TheDesk

router = APIRouter(prefix="/v1/audit", tags=["audit"])


@router.get("", dependencies=ADMINISTER, **shows(AuditPage, samples.AUDIT))
def audit(request: Request, desk: TheDesk, asked: Annotated[Paged, Query()]) -> Response:
    """Every change, newest first."""
    return page_answer(request, desk.registry.audit(cursor=asked.cursor, limit=asked.limit))

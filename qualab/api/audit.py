"""/v1/audit: who changed what, and when."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from qualab.api import samples
from qualab.api.answers import page_answer
from qualab.api.docs import shows
from qualab.api.paging import Paged
from qualab.api.shapes import AuditPage
from qualab.api.state import ADMINISTER, TheDesk

router = APIRouter(prefix="/v1/audit", tags=["audit"])


@router.get("", dependencies=ADMINISTER, **shows(AuditPage, samples.AUDIT))
def audit(request: Request, desk: TheDesk, asked: Annotated[Paged, Query()]) -> Response:
    """Every change, newest first."""
    return page_answer(request, desk.registry.audit(cursor=asked.cursor, limit=asked.limit))

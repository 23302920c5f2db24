"""/v1/comparisons/{id}/items: what became of each item in both arms."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from qualab.model.items import Change, OutcomeFilter
from qualab.model.wording import storable_text
from qualab.service.api import samples
from qualab.service.api.answers import Paged, answer, page_answer
from qualab.service.api.docs import shows
from qualab.service.api.shapes import OutcomePage
from qualab.service.api.state import READ, TheDesk
from qualab.service.reading import ItemSeen, item_of, outcomes_of

router = APIRouter(prefix="/v1/comparisons/{comparison_id}/items", tags=["items"])
MOST = 2**31 - 1


class Listed(Paged):
    """What a list of items may be asked for."""

    task: str | None = None
    flipped: bool | None = Field(None, description="Whether the score differs between the arms")
    change: Change | None = None
    missing: bool | None = Field(None, description="Whether an arm has no score")
    different_text: bool | None = Field(None, description="Whether both answered, and not the same")
    min_length: int | None = Field(None, ge=0, le=MOST, description="Characters of the longer answer")
    max_length: int | None = Field(None, ge=0, le=MOST)


@router.get("", dependencies=READ, **shows(OutcomePage, samples.OUTCOMES, 404, 409))
def items(request: Request, desk: TheDesk, comparison_id: str, asked: Annotated[Listed, Query()]) -> Response:
    """The items in order of position, as scored: both arms' scores, and whether the texts differ."""
    wanted = OutcomeFilter(
        task=None if asked.task is None else storable_text(asked.task),
        flipped=asked.flipped,
        change=asked.change,
        missing=asked.missing,
        different_text=asked.different_text,
        min_length=asked.min_length,
        max_length=asked.max_length,
    )
    return page_answer(request, outcomes_of(desk, comparison_id, wanted, cursor=asked.cursor, limit=asked.limit))


@router.get("/{position}", dependencies=READ, **shows(ItemSeen, samples.ITEM, 404, 409))
def item(request: Request, desk: TheDesk, comparison_id: str, position: int) -> Response:
    """One item with the requests as they were sent, both arms' answers, and their scores."""
    return answer(request, item_of(desk, comparison_id, position))

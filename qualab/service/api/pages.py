"""Web pages for people: comparisons, one of them, its items, one item, the plan calculator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field, model_validator
from starlette.concurrency import run_in_threadpool

from qualab import bootstrap
from qualab.model.names import ComparisonStatus, Objective, Verdict
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import NEWEST_FIRST, ORDERS, SubmissionStatus
from qualab.model.wording import storable_text
from qualab.service.api.answers import etag_of, tagged
from qualab.service.api.comparisons import MOST_OF_A_CURSOR, Sort, read_status
from qualab.service.api.html import PageRoute, language_of, page
from qualab.service.api.items import MOST
from qualab.service.api.problems import HttpProblem
from qualab.service.api.state import READ, TheDesk, slowly, state_of
from qualab.service.viewing.comparison import comparison_page
from qualab.service.viewing.items import SHOWS, Browsed, item_page, items_page
from qualab.service.viewing.listing import list_page
from qualab.service.viewing.power import MOST_ITEMS, Asked, power_page
from qualab.service.words import Wording

router = APIRouter(route_class=PageRoute, include_in_schema=False)
STATUSES = tuple(dict.fromkeys([*map(str, SubmissionStatus), *map(str, ComparisonStatus)]))
Show = Literal["all", "flipped", "losses", "gains", "missing", "different"]


class Form(BaseModel):
    """What a form sends; a field that is left empty says nothing."""

    @model_validator(mode="before")
    @classmethod
    def _said(cls, found: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in found.items() if value != ""}


class Listed(Form):
    """Which comparisons."""

    status: str = ""
    verdict: Verdict | None = None
    label: str = ""
    model: str = ""
    sort: Sort = "-created"
    cursor: str | None = Field(None, max_length=MOST_OF_A_CURSOR)

    def query(self, **more: str | None) -> str:
        """The same as part of a URL, without the cursor."""
        said = {"status": self.status, "verdict": self.verdict, "label": self.label, "model": self.model}
        sort = {} if self.sort == NEWEST_FIRST.name else {"sort": self.sort}
        return urlencode({name: value for name, value in {**said, **sort, **more}.items() if value})

    def filter(self) -> ComparisonFilter:
        """For the registry."""
        return ComparisonFilter(
            status=read_status(self.status or None),
            verdict=self.verdict,
            label=storable_text(self.label) or None,
            model=storable_text(self.model) or None,
            limit=50,
        )


class Items(Form):
    """Which items."""

    show: Show = "all"
    task: str = ""
    min_length: int | None = Field(None, ge=0, le=MOST)
    max_length: int | None = Field(None, ge=0, le=MOST)
    cursor: str | None = Field(None, max_length=500)

    def browsed(self) -> Browsed:
        """Without the page."""
        return Browsed(show=self.show, task=self.task, min_length=self.min_length, max_length=self.max_length)


class Around(Items):
    """Among which items one stands: the flips, unless something is said."""

    show: Show = "flipped"
    extract: bool = False


class Power(Form):
    """What the calculator is asked, in percent."""

    items: int = Field(1_319, ge=1, le=MOST_ITEMS)
    discordance: float = Field(5.0, ge=0.1, le=50.0)
    margin: float = Field(2.0, ge=0.25, le=20.0)
    alpha: float = Field(5.0, ge=0.1, le=20.0)
    power: float = Field(80.0, ge=50.0, le=99.0)
    missing: float = Field(0.0, ge=0.0, le=10.0)
    objective: Objective = Objective.EQUIVALENCE

    def asked(self) -> Asked:
        """In fractions."""
        shares = {name: getattr(self, name) / 100.0 for name in ("discordance", "margin", "alpha", "power", "missing")}
        return Asked(items=self.items, objective=self.objective, **shares)


def words_of(request: Request) -> Wording:
    """In the reader's language."""
    return Wording(language=language_of(request))


@router.get("/", dependencies=READ)
def listing(request: Request, desk: TheDesk, asked: Annotated[Listed, Query()]) -> Response:
    """All comparisons."""
    look = state_of(request).followers.look
    view = list_page(desk, look, asked.filter(), words_of(request), order=ORDERS[asked.sort], cursor=asked.cursor)
    return page(request, "list", view=view, asked=asked, statuses=STATUSES, verdicts=tuple(Verdict))


@router.get("/comparisons/{comparison_id}", dependencies=READ)
async def comparison(request: Request, desk: TheDesk, comparison_id: str) -> Response:
    """One comparison."""

    def job() -> Response:
        reports = state_of(request).reports
        return page(request, "comparison", view=comparison_page(desk, reports, comparison_id, words_of(request)))

    return await slowly(request, job)


@router.get("/comparisons/{comparison_id}/items", dependencies=READ)
def items(request: Request, desk: TheDesk, comparison_id: str, asked: Annotated[Items, Query()]) -> Response:
    """The items of a comparison."""
    view = items_page(desk, comparison_id, asked.browsed(), asked.cursor, words_of(request))
    return page(request, "items", view=view, shows=tuple(SHOWS))


@router.get("/comparisons/{comparison_id}/items/{position}", dependencies=READ)
async def item(
    request: Request, desk: TheDesk, comparison_id: str, position: int, asked: Annotated[Around, Query()]
) -> Response:
    """One item; what the filters made of its answers where it is asked for."""

    def job() -> Response:
        words, browsed = words_of(request), asked.browsed()
        return page(
            request, "item", view=item_page(desk, comparison_id, position, browsed, words, extracts=asked.extract)
        )

    return await (slowly(request, job) if asked.extract else run_in_threadpool(job))


@router.get("/plan", dependencies=READ)
async def plan(request: Request, asked: Annotated[Power, Query()]) -> Response:
    """The plan calculator."""
    view = await slowly(request, partial(power_page, asked.asked(), words_of(request)))
    return page(request, "plan", view=view, asked=asked, objectives=tuple(Objective))


@router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    """What pages load."""
    found = await run_in_threadpool(bootstrap.static_file, name)
    if found is None:
        raise HttpProblem(404, "There is no such file")
    body, media_type = found
    return tagged(request, body, etag_of(body), media_type=media_type)

"""Pages across comparisons: two beside each other, and one label over time."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Response

from qualab.errors import WrongState
from qualab.model.ports import ComparisonFilter
from qualab.report.across import pair_blocks, trend_blocks
from qualab.report.box import source_of
from qualab.report.words import Words
from qualab.service.api.pages import PageRoute, page, words_of
from qualab.service.api.state import Call, Reader
from qualab.service.reading import comparison_of

router = APIRouter(route_class=PageRoute, include_in_schema=False)
MOST = 40
"""Comparisons of one label, the newest."""


@router.get("/trend")
async def trend(call: Reader, label: Annotated[str, Query(max_length=200)]) -> Response:
    """Show how the comparisons of one label went."""

    def job() -> Response:
        store, words = call.context.store, _words(call)
        sources = []
        for summary in store.page(ComparisonFilter(label=label, limit=MOST)).entries:
            with suppress(WrongState):  # not analysed yet
                sources.append(source_of(store, summary.id))
        blocks = list(trend_blocks(sources, words)) if sources else []
        title = words_of(call.request)("trend of", label=label)
        return page(call.request, "across", title=title, up="", blocks=blocks, labels={})

    return await call.slowly(job)


@router.get("/comparisons/{comparison_id}/with")
async def beside(call: Reader, comparison_id: str, other: Annotated[str, Query(max_length=200)]) -> Response:
    """Show two comparisons beside each other."""

    def job() -> Response:
        store, words = call.context.store, _words(call)
        first, second = (
            source_of(store, comparison_of(call.context, own.strip()).id) for own in (comparison_id, other)
        )
        blocks = list(pair_blocks(store, first, second, words))
        title = words_of(call.request)("two comparisons")
        return page(call.request, "across", title=title, up=comparison_id, blocks=blocks, labels={})

    return await call.slowly(job)


def _words(call: Call) -> Words:
    return Words(language=words_of(call.request).language)

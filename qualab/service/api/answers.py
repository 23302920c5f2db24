"""What every list may be asked for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from qualab.model.registry import Page
from qualab.report.words import shown

MOST_A_PAGE = 200


class Paged(BaseModel):
    """Unknown parameters are refused: a filter that is misspelled would show everything."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(50, ge=1, le=MOST_A_PAGE, description="Entries a page")
    cursor: str | None = Field(None, max_length=500, description="`next_cursor` of the page before")


TAG = re.compile(r'(?:W/)?("[^"]*")')
REVALIDATE = {"Cache-Control": "private, no-cache"}
"""A copy may be kept, and is asked for again with its ETag."""


def encoded(value: Any) -> bytes:
    """The JSON of plain values or of (nested) frozen dataclasses."""
    return orjson.dumps(shown(value))


def etag_of(body: bytes) -> str:
    """The same for the same bytes."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def tagged(
    request: Request,
    body: bytes,
    etag: str,
    *,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    """200 with the body, or 304 where the client has it."""
    said = {"ETag": etag, **REVALIDATE, **(headers or {})}
    known = request.headers.get("if-none-match")
    if known is not None and (known.strip() == "*" or etag in TAG.findall(known)):
        return Response(status_code=304, headers=said)
    return Response(body, headers=said, media_type=media_type)


def answer(request: Request, value: Any) -> Response:
    """A value that can be told by its bytes."""
    body = encoded(value)
    return tagged(request, body, etag_of(body))


def page_answer(request: Request, page: Page[Any], entries: Iterable[Any] | None = None) -> Response:
    """A page, with a Link to the next one."""
    on_page = page.entries if entries is None else tuple(entries)
    body = orjson.dumps({"entries": [shown(one) for one in on_page], "next_cursor": page.next_cursor})
    links = {}
    if page.next_cursor is not None:
        url = request.url.include_query_params(cursor=page.next_cursor)
        links["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return tagged(request, body, etag_of(body), headers=links)

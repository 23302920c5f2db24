"""Answers: JSON with an ETag, pages of lists, and errors as RFC 9457 problems."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from qualab import errors as e
from qualab.errors import QualabError
from qualab.model.registry import Page
from qualab.report.words import shown

MAX_PAGE_SIZE = 200
TAG = re.compile(r'(?:W/)?("[^"]*")')
REVALIDATE = {"Cache-Control": "private, no-cache"}
"""A copy may be kept, but must be revalidated with its ETag."""
MEDIA_TYPE = "application/problem+json"
TYPE = "urn:qualab:problem:"
RETRY_AFTER_S = 5
log = logging.getLogger("qualab.service.api")


class PageQuery(BaseModel):
    """The parameters of every list. Unknown ones are refused: a misspelled filter would show everything."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(50, ge=1, le=MAX_PAGE_SIZE, description="Entries per page")
    cursor: str | None = Field(None, max_length=2_000, description="`next_cursor` of the previous page")


def encoded(value: Any) -> bytes:
    """Encode plain values or (nested) frozen dataclasses as JSON."""
    return orjson.dumps(shown(value))


def etag_of(body: bytes) -> str:
    """Return the ETag of a body."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def tagged(
    request: Request,
    body: bytes,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    """Answer with the body and its ETag, or 304 where the client has it."""
    etag = etag_of(body)
    all_headers = {"ETag": etag, **REVALIDATE, **(headers or {})}
    known = request.headers.get("if-none-match")
    if status == 200 and known is not None and (known.strip() == "*" or etag in TAG.findall(known)):
        return Response(status_code=304, headers=all_headers)
    return Response(body, status, headers=all_headers, media_type=media_type)


def answer(request: Request, value: Any) -> Response:
    """Answer with a value as JSON."""
    return tagged(request, encoded(value))


def page_answer(request: Request, page: Page[Any]) -> Response:
    """Answer with a page, and a Link to the next one."""
    body = orjson.dumps({"entries": [shown(entry) for entry in page.entries], "next_cursor": page.next_cursor})
    links = {}
    if page.next_cursor is not None:
        url = request.url.include_query_params(cursor=page.next_cursor)
        links["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return tagged(request, body, headers=links)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One field of a request that is wrong."""

    field: str
    allowed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error (RFC 9457)."""

    type: str
    """urn:qualab:problem: and the code."""
    title: str
    status: int
    code: str
    """Stable: what programs look at."""
    detail: str
    hint: str
    """What to do about it."""
    request_id: str
    errors: list[FieldError] = field(default_factory=list)


OF_ERROR: tuple[tuple[type[QualabError], int, str], ...] = (
    (e.ComparisonNotFound, 404, "comparison_id"),
    (e.ItemNotFound, 404, "position"),
    (e.TokenNotFound, 404, ""),
    (e.VersionConflict, 412, "If-Match"),
    (e.KeyReused, 422, "Idempotency-Key"),
    (e.ComparisonBusy, 409, "comparison_id"),
    (e.ComparisonSignedOff, 409, "comparison_id"),
    (e.SignOffRefused, 409, "override"),
    (e.WrongState, 409, "comparison_id"),
    (e.NotYet, 409, "comparison_id"),
    (e.Unauthenticated, 401, "Authorization"),
    (e.Forbidden, 403, "Authorization"),
    (e.TooManyRequests, 429, "rate"),
    (e.PlanChanged, 422, "plan"),
    (e.UnknownTask, 422, "tasks"),
    (e.BrokenTask, 422, "tasks"),
    (e.DatasetUnavailable, 422, "tasks"),
    (e.BadDataFile, 422, "tasks"),
    (e.EmptyDataset, 422, "tasks"),
    (e.ScoringUnavailable, 422, "tasks"),
    (e.UsageError, 422, "body"),
    (e.InsufficientData, 422, ""),
    (e.PairDiffers, 422, ""),
    (e.StoreFull, 507, ""),
    (e.InfrastructureError, 503, ""),
    (QualabError, 500, ""),
)
"""HTTP status, and the field at fault where the error names none; empty where the request is not at fault. The first
class that fits counts."""

OF_HTTP: Mapping[int, tuple[str, str, tuple[str, str] | None]] = {
    400: ("malformed-body", "Send a JSON object", ("body", "must be a JSON object")),
    403: (
        "cross-origin",
        "Pages of other sites may not change anything here",
        ("Origin", "must be this service's own"),
    ),
    404: ("no-such-route", "The routes are in /openapi.json", ("path", "must be one of the routes in /openapi.json")),
    405: (
        "method-not-allowed",
        "The Allow header names the methods of this route",
        ("method", "must be one that the Allow header names"),
    ),
    413: ("request-too-large", "Send less", ("body", "must be smaller")),
    415: (
        "unsupported-media-type",
        "Send Content-Type: application/json",
        ("Content-Type", "must be application/json"),
    ),
    421: (
        "misdirected",
        "Use this machine's own name, or one that the operator allows with --allow-host",
        ("Host", "must be this machine's own name, or one that the operator allows"),
    ),
    500: ("internal", "This is a bug; the request id leads to it in the log", None),
}
"""Code, hint and wrong field of errors that no use case raises."""
OF_INPUT = {"extra_forbidden": "is unknown here: /openapi.json names what is known", "missing": "is needed"}
"""What is allowed, by pydantic's kind of error, where its own message does not say."""


class HttpProblem(Exception):
    """An error about the HTTP request itself."""

    def __init__(self, status: int, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})


def status_of(error: QualabError) -> int:
    """Return the HTTP status of an error."""
    return next(status for kind, status, _ in OF_ERROR if isinstance(error, kind))


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    hint: str = "",
    errors: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    request_id: str = "",
) -> Response:
    """Answer with a problem. `errors` says of each field what is allowed."""
    found = Problem(
        type=f"{TYPE}{code}",
        title=code.replace("-", " ").capitalize(),
        status=status,
        code=code,
        detail=detail,
        hint=hint,
        request_id=request_id,
        errors=[FieldError(field=name, allowed=allowed) for name, allowed in (errors or {}).items()],
    )
    return Response(orjson.dumps(found, default=str), status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def http_problem(error: HttpProblem, request_id: str) -> Response:
    """Answer with an error about the request itself."""
    code, hint, wrong = OF_HTTP[error.status]
    return problem(
        error.status,
        code,
        error.detail,
        hint=hint,
        errors=dict([wrong]) if wrong else {},
        headers=error.headers,
        request_id=request_id,
    )


def install_handlers(app: FastAPI) -> None:
    """Answer every error with a problem."""
    app.add_exception_handler(QualabError, _of_error)
    app.add_exception_handler(HttpProblem, _of_problem)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(HTTPException, _of_http)


def request_id_of(request: Request) -> str:
    """Return the id that the middleware gave the request."""
    return str(request.scope.get("qualab.request_id", "")) or secrets.token_hex(8)


def _fields(error: QualabError) -> dict[str, str]:
    """What is allowed where: as the error says, otherwise its hint or message."""
    fields = error.details.get("fields")
    if isinstance(fields, dict) and fields:
        return {str(name): str(allowed) for name, allowed in fields.items()}
    name = next(name for kind, _, name in OF_ERROR if isinstance(error, kind))
    return {name: error.hint or error.message} if name else {}


async def _of_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, QualabError)
    status, detail, hint = status_of(error), error.message, error.hint
    if isinstance(error, e.StoreError):  # where the database is, does not concern callers
        log.error("database: %s", error.message)
        detail, hint = "The database cannot be used now", "Try again in a moment"
    errors = _fields(error)
    if errors and hint.startswith("Change --"):  # a flag is not a field
        hint = f"Change {next(iter(errors))}"
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status in (429, 503):
        headers["Retry-After"] = str(error.details.get("retry_after_s", RETRY_AFTER_S))
    return problem(
        status, error.code, detail, hint=hint, errors=errors, headers=headers, request_id=request_id_of(request)
    )


async def _of_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpProblem)
    return http_problem(error, request_id_of(request))


async def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code if error.status_code in OF_HTTP else 400
    headers = {"Allow": _allowed(request)} if status == 405 else error.headers
    return http_problem(HttpProblem(status, str(error.detail), headers=headers), request_id_of(request))


def _allowed(request: Request) -> str:
    """The methods of every route that has this path."""
    here = (route for route in request.app.state.routes if route.matches(request.scope)[0] is not Match.NONE)
    methods = {name for route in here for name in route.methods}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


async def _of_validation(request: Request, error: Exception) -> Response:
    """What was given is not repeated: it may be a key in the wrong place."""
    assert isinstance(error, RequestValidationError)
    errors = {".".join(map(str, one["loc"])): OF_INPUT.get(one["type"], str(one["msg"])) for one in error.errors()}
    first = next(iter(errors), "")
    return problem(
        422,
        "invalid-request",
        f"{first}: {errors.get(first, '')}",
        hint="Change what `errors` names",
        errors=errors,
        request_id=request_id_of(request),
    )

"""Answers: JSON with an ETag, and errors as RFC 9457 problems."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from qualab import errors as e
from qualab.errors import QualabError
from qualab.model.registry import Page
from qualab.report.words import shown

TAG = re.compile(r'(?:W/)?("[^"]*")')
REVALIDATE = {"Cache-Control": "private, no-cache"}
"""A copy may be kept, but must be revalidated with its ETag."""
MEDIA_TYPE = "application/problem+json"
TYPE = "urn:qualab:problem:"
RETRY_AFTER_S = 5
log = logging.getLogger("qualab.service.api")


def encoded(value: Any) -> bytes:
    """Encode a value as JSON; reasons get their English sentences."""
    return orjson.dumps(shown(value))


def etag_of(body: bytes) -> str:
    """Return the ETag of a body."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def tagged(
    request: Request,
    body: bytes,
    status: int = 200,
    *,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    """Answer with the body and, unless it is an error, its ETag; with 304 where the client has it."""
    all_headers = dict(headers or {})
    if status < 400:
        etag = etag_of(body)
        all_headers = {"ETag": etag, **REVALIDATE, **all_headers}
        known = request.headers.get("if-none-match") if request.method == "GET" else None
        if known is not None and (known.strip() == "*" or etag in TAG.findall(known)):
            return Response(status_code=304, headers=all_headers)
    return Response(body, status, headers=all_headers, media_type=media_type)


def answer(request: Request, value: Any, status: int = 200, **headers: str) -> Response:
    """Answer with a value as JSON; with a page, and a Link to the next one."""
    if isinstance(value, Page) and value.next_cursor is not None:
        url = request.url.include_query_params(cursor=value.next_cursor)
        headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return tagged(request, encoded(value), status, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One field of a request that is wrong."""

    field: str
    allowed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    code: str
    """Stable: what programs look at."""
    detail: str
    hint: str
    request_id: str = ""
    errors: list[FieldError] = field(default_factory=list)


_TASKS = (e.UnknownTask, e.BrokenTask, e.DatasetUnavailable, e.BadDataFile, e.ScoringUnavailable)
OF_ERROR: tuple[tuple[type[QualabError] | tuple[type[QualabError], ...], int, str], ...] = (
    (e.ComparisonNotFound, 404, "comparison_id"),
    (e.ItemNotFound, 404, "position"),
    (e.BankNotFound, 404, "name"),
    (e.VersionConflict, 412, "If-Match"),
    ((e.ComparisonBusy, e.ComparisonSignedOff, e.ComparisonBanked, e.WrongState), 409, "comparison_id"),
    (e.Unauthenticated, 401, "Authorization"),
    (e.Forbidden, 403, "Authorization"),
    (e.TooManyRequests, 429, "rate"),
    (e.PlanChanged, 422, "plan"),
    (_TASKS, 422, "tasks"),
    (e.UsageError, 422, "body"),
    ((e.InsufficientData, e.PairDiffers), 422, ""),
    (e.StoreFull, 507, ""),
    (e.InfrastructureError, 503, ""),
    (QualabError, 500, ""),
)
"""HTTP status, and the field at fault where the error names none; the first class that fits counts."""
OF_HTTP: Mapping[int, tuple[str, str, str]] = {
    400: ("malformed-body", "Send a JSON object", "body"),
    403: ("cross-origin", "Pages of other sites may not change anything here", "Origin"),
    404: ("no-such-route", "The routes are in /openapi.json", "path"),
    405: ("method-not-allowed", "The Allow header names the methods of this route", "method"),
    413: ("request-too-large", "Send less", "body"),
    415: ("unsupported-media-type", "Send Content-Type: application/json", "Content-Type"),
    421: ("misdirected", "Use this machine's own name, or one that the operator allows with --allow-host", "Host"),
    500: ("internal", "This is a bug; the request id leads to it in the log", ""),
}
"""Code, hint and the part at fault of errors about the HTTP request itself."""
OF_INPUT = {"extra_forbidden": "is unknown here: /openapi.json names what is known", "missing": "is needed"}
"""Allowed values by pydantic's kind of error, where its own message does not tell."""


def problem_of(error: Exception) -> Problem:
    """Translate any error; what was sent is not repeated, for it may be a key in the wrong place."""
    if isinstance(error, RequestValidationError):
        errors = {".".join(map(str, one["loc"])): OF_INPUT.get(one["type"], str(one["msg"])) for one in error.errors()}
        name, allowed = next(iter(errors.items()))
        return _problem(422, "invalid-request", f"{name}: {allowed}", "Change what `errors` names", errors)
    if isinstance(error, HTTPException):
        status = error.status_code if error.status_code in OF_HTTP else 400
        code, hint, part = OF_HTTP[status]
        return _problem(status, code, str(error.detail), hint, {part: hint} if part else {})
    if not isinstance(error, QualabError):
        return problem_of(HTTPException(500, "Something went wrong in the service"))
    status, part = next((status, part) for kind, status, part in OF_ERROR if isinstance(error, kind))
    detail, hint, fields = error.message, error.hint, error.details.get("fields")
    if isinstance(error, e.StoreError):  # where the database is does not concern callers
        log.error("database: %s", error.message)
        detail, hint = "The database cannot be used now", "Try again in a moment"
    errors = dict(fields) if isinstance(fields, dict) and fields else {part: hint or detail} if part else {}
    if errors and hint.startswith("Change --"):  # an option of the command line is not a field
        hint = f"Change {next(iter(errors))}"
    return _problem(status, error.code, detail, hint, errors)


def _problem(status: int, code: str, detail: str, hint: str, errors: Mapping[str, str]) -> Problem:
    return Problem(
        type=f"{TYPE}{code}",
        title=code.replace("-", " ").capitalize(),
        status=status,
        code=code,
        detail=detail,
        hint=hint,
        errors=[FieldError(field=str(name), allowed=str(allowed)) for name, allowed in errors.items()],
    )


def retry_after(status: int, error: Exception) -> dict[str, str]:
    """Return the header Retry-After, where asking again may help."""
    details = error.details if isinstance(error, QualabError) else {}
    return {"Retry-After": str(details.get("retry_after_s", RETRY_AFTER_S))} if status in (429, 503) else {}


async def answer_problem(request: Request, error: Exception) -> Response:
    """Answer an error with its problem."""
    problem = problem_of(error)
    headers = retry_after(problem.status, error)
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if problem.status == 405:
        here = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
        methods = {name for route in here for name in getattr(route, "methods", ())}
        headers["Allow"] = ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))
    body = orjson.dumps(replace(problem, request_id=request.scope["qualab.request_id"]))
    return Response(body, problem.status, headers=headers, media_type=MEDIA_TYPE)

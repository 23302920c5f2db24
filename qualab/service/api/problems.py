"""Errors as RFC 9457 problems: one table from error classes to HTTP statuses."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from qualab import errors as e
from qualab.errors import QualabError
from qualab.service.api.parts import of_error, of_status

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:qualab:problem:"
RETRY_AFTER_S = 5
log = logging.getLogger("qualab.service.api")

OF_ERROR: tuple[tuple[type[QualabError], int], ...] = (
    (e.ComparisonNotFound, 404),
    (e.ItemNotFound, 404),
    (e.TokenNotFound, 404),
    (e.VersionConflict, 412),
    (e.ComparisonBusy, 409),
    (e.ComparisonSignedOff, 409),
    (e.SignOffRefused, 409),
    (e.WrongState, 409),
    (e.NotYet, 409),
    (e.Unauthenticated, 401),
    (e.Forbidden, 403),
    (e.TooManyRequests, 429),
    (e.UsageError, 422),
    (e.InsufficientData, 422),
    (e.PairDiffers, 422),
    (e.StoreFull, 507),
    (e.InfrastructureError, 503),
    (QualabError, 500),
)

OF_HTTP: Mapping[int, tuple[str, str]] = {
    400: ("malformed-body", "Send a JSON object"),
    403: ("cross-origin", "Pages of other sites may not change anything here"),
    404: ("no-such-route", "The routes are in /openapi.json"),
    405: ("method-not-allowed", "The Allow header names the methods of this route"),
    408: ("request-timeout", "Send the request faster"),
    413: ("request-too-large", "Send less"),
    415: ("unsupported-media-type", "Send Content-Type: application/json"),
    421: ("misdirected", "Use this machine's own name, or one that the operator allows with --allow-host"),
    500: ("internal", "It is a bug; the request's id leads to it in the log"),
    503: ("too-busy", "Try again in a moment"),
}
"""Codes and hints of what no use case raises."""
OF_INPUT = {"extra_forbidden": "is unknown here: /openapi.json names what is known", "missing": "is needed"}
"""What is allowed, by pydantic's kind of error, where its own message does not say."""


class HttpProblem(Exception):
    """Something about the request itself."""

    def __init__(self, status: int, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})


def status_of(error: QualabError) -> int:
    """The status of the first class in the table that fits."""
    return next(status for kind, status in OF_ERROR if isinstance(error, kind))


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
    """The response. `errors` says of each field what is allowed."""
    body: dict[str, Any] = {
        "type": f"{TYPE}{code}",
        "title": code.replace("-", " ").capitalize(),
        "status": status,
        "code": code,
        "detail": detail,
        "hint": hint,
        "errors": [{"field": field, "allowed": allowed} for field, allowed in (errors or {}).items()],
        "request_id": request_id,
    }
    content = orjson.dumps(body, default=str)
    return Response(content, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def http_problem(found: HttpProblem, request_id: str) -> Response:
    """Of what is wrong about a request itself."""
    code, hint = OF_HTTP[found.status]
    errors = of_status(found.status)
    return problem(
        found.status, code, found.detail, hint=hint, errors=errors, headers=found.headers, request_id=request_id
    )


def not_http(status: int, detail: str) -> Response:
    """Of what never becomes a request: the bytes themselves are wrong, or too many."""
    code = "headers-too-large" if status == 431 else "malformed-request"
    request_id = secrets.token_hex(8)
    return problem(
        status,
        code,
        detail,
        hint="Send shorter headers" if status == 431 else "Send HTTP/1.1",
        errors={"headers": "must be smaller"} if status == 431 else {"request": "must be HTTP/1.1"},
        headers={"X-Request-Id": request_id},
        request_id=request_id,
    )


def internal_problem(request_id: str) -> Response:
    """For what nobody expected: an id that leads to the log, and nothing else."""
    return http_problem(HttpProblem(500, "Something went wrong in the service"), request_id)


def install(app: FastAPI) -> None:
    """Every error becomes a problem."""
    app.add_exception_handler(QualabError, _of_error)
    app.add_exception_handler(HttpProblem, _of_problem)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(HTTPException, _of_http)


def request_id_of(request: Request) -> str:
    """As the front gave it."""
    return str(request.scope.get("qualab.request_id", "")) or secrets.token_hex(8)


async def _of_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, QualabError)
    status, detail, hint = status_of(error), error.message, error.hint
    if isinstance(error, e.StoreError):  # where the database is, is nothing for callers
        log.error("database: %s", error.message)
        detail, hint = "The database cannot be used now", "Try again in a moment"
    errors = of_error(error)
    if errors and hint.startswith("Change --"):  # a flag is no field
        hint = f"Change {next(iter(errors))}"
    return problem(
        status, error.code, detail, hint=hint, errors=errors, headers=_headers(error), request_id=request_id_of(request)
    )


def _headers(error: QualabError) -> dict[str, str]:
    status = status_of(error)
    if status in (429, 503):
        return {"Retry-After": str(error.details.get("retry_after_s", RETRY_AFTER_S))}
    return {"WWW-Authenticate": "Bearer"} if status == 401 else {}


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
    found = {name for route in here for name in route.methods}
    return ", ".join(sorted(found | {"HEAD"} if "GET" in found else found))


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

"""Signing in with a browser: a token becomes a cookie that no script and no other site's page gets at."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse

from qualab.errors import Unauthenticated
from qualab.model.registry import Scope
from qualab.service.api.html import SECURE, PageRoute, page, safe_path
from qualab.service.api.problems import HttpProblem
from qualab.service.api.state import COOKIE, state_of

router = APIRouter(route_class=PageRoute, include_in_schema=False)
FORM = "application/x-www-form-urlencoded"
MOST_FIELDS = 10


@router.get("/sign-in")
def form(request: Request) -> Response:
    """Asks for a token."""
    return _form(request, safe_path(request.query_params.get("next", "/")))


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Keeps a valid token in a cookie. Pages of other sites get nowhere here: see `front`."""
    said = await _said(request)
    wanted = safe_path(said.get("next", "/"))
    state = state_of(request)
    token = said.get("token", "").strip()
    try:
        caller = await run_in_threadpool(state.door.caller, token, is_local=False)
        caller.check(Scope.READ)
    except Unauthenticated:
        state.failures.take(request.client.host if request.client else "")
        return _form(request, wanted, status=401, is_wrong=True)
    response = RedirectResponse(wanted, 303, headers=SECURE)
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=_is_encrypted(request))
    return response


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """Forgets the token."""
    response = RedirectResponse("/sign-in", 303, headers=SECURE)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=_is_encrypted(request))
    return response


def _form(request: Request, wanted: str, *, status: int = 200, is_wrong: bool = False) -> Response:
    return page(request, "signin", status=status, wanted=wanted, is_wrong=is_wrong)


async def _said(request: Request) -> dict[str, str]:
    """The form's fields, each once."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM:
        raise HttpProblem(415, f"The body's type must be {FORM}")
    try:
        found = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=MOST_FIELDS)
    except ValueError:
        raise HttpProblem(400, f"The form has more than {MOST_FIELDS} fields") from None
    return {name: values[0] for name, values in found.items()}


def _is_encrypted(request: Request) -> bool:
    """Whether the browser speaks TLS, to this service or to a proxy before it. Who lies here harms nobody else."""
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", "").lower())

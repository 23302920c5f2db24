"""Web pages as answers: in the reader's language, with nothing allowed that they do not need, and errors as pages."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import RedirectResponse, Response

from qualab import bootstrap
from qualab.errors import InvalidValue, QualabError, Unauthenticated
from qualab.model.names import Language
from qualab.service.api.answers import etag_of, tagged
from qualab.service.api.problems import RETRY_AFTER_S, HttpProblem, status_of
from qualab.service.api.state import COOKIE
from qualab.service.viewing.listing import Said, Trouble, trouble
from qualab.service.words import Wording

SECURE = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "private, no-cache",
    "Vary": "Cookie, Accept-Language",
}
LANGUAGE_COOKIE = "qualab_lang"
A_YEAR_S = 365 * 86_400
NAMES = {Language.ENGLISH: "English", Language.KOREAN: "한국어"}
LOADED = ("report.css", "viewer.css", "viewer.js")


def language_of(request: Request) -> Language:
    """As the URL says, else as was chosen before, else as the browser prefers; English where nothing is said."""
    for said in (request.query_params.get("lang"), request.cookies.get(LANGUAGE_COOKIE), *_preferred(request)):
        if said in tuple(Language):
            return Language(said)
    return Language.ENGLISH


def _preferred(request: Request) -> list[str]:
    """Languages of Accept-Language without their regions, the best first."""
    wanted = []
    for place, part in enumerate(request.headers.get("accept-language", "").split(",")):
        name, _, parameters = part.partition(";")
        wanted.append((-_quality(parameters), place, name.strip().lower().partition("-")[0]))
    return [name for quality, _, name in sorted(wanted) if quality < 0.0]


def _quality(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 0.0


def page(request: Request, name: str, *, status: int = 200, **values: object) -> Response:
    """The page of this template with these values."""
    language = language_of(request)
    shared = {
        "t": Wording(language=language),
        "language": language,
        "languages": tuple(_languages(request, language)),
        "path": request.url.path,
        "here": local_part(request),
        "is_signed_in": COOKIE in request.cookies,
        "files": {name: f"/static/{name}?{_digest(name)}" for name in LOADED},
    }
    body = bootstrap.page_renderer()(name, {**shared, **values})
    if status == 200:
        response = tagged(request, body, etag_of(body), headers=SECURE, media_type="text/html")
    else:
        response = Response(body, status, headers=SECURE, media_type="text/html")
    if request.query_params.get("lang") == language:
        response.set_cookie(LANGUAGE_COOKIE, language, max_age=A_YEAR_S, httponly=True, samesite="strict")
    return response


def _languages(request: Request, own: Language) -> Iterator[Mapping[str, object]]:
    for one in Language:
        url = request.url.include_query_params(lang=one.value)
        yield {"code": one.value, "name": NAMES[one], "url": f"{url.path}?{url.query}", "is_own": one is own}


@cache
def _digest(name: str) -> str:
    """Another URL for another content: a browser may keep what it has."""
    found = bootstrap.static_file(name)
    return hashlib.sha256(found[0] if found else b"").hexdigest()[:12]


def local_part(request: Request) -> str:
    """The URL without its host."""
    return f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path


def safe_path(path: str) -> str:
    """The path of this service that is meant; the list for whatever would lead elsewhere."""
    try:
        parts = urlsplit(path)
    except ValueError:
        return "/"
    is_local = path.startswith("/") and not path.startswith("//") and not parts.scheme and not parts.netloc
    return path if is_local and path.isprintable() and "\\" not in path else "/"


class PageRoute(APIRoute):
    """A route whose errors are pages, and who leads to the door whoever may not come in."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """The route's own handler, with this around it."""
        handler = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handler(request)
            except Unauthenticated:
                wanted = quote(local_part(request), safe="")
                return RedirectResponse(f"/sign-in?next={wanted}", 303, headers=SECURE)
            except QualabError as error:
                return error_page(request, status_of(error), error.code, error.message, error.hint)
            except HttpProblem as error:
                return error_page(request, error.status, "", error.detail)
            except RequestValidationError as error:
                words = Wording(language=language_of(request))
                wrong = Trouble(title=words(f"error {InvalidValue.code}"), message=_field(error, words), hint=None)
                return page(request, "error", status=422, code=422, trouble=wrong)

        return shown


def error_page(request: Request, status: int, code: str, detail: str, hint: str = "") -> Response:
    """What went wrong, for a person."""
    said = trouble(code, detail, hint, Wording(language=language_of(request)))
    shown = page(request, "error", status=status, code=status, trouble=said)
    if status in (429, 503):
        shown.headers["Retry-After"] = str(RETRY_AFTER_S)
    return shown


def _field(error: RequestValidationError, words: Wording) -> Said:
    """What a form's field should be. What was given is not repeated."""
    first: Mapping[str, Any] = error.errors()[0]
    key = f"field {first['type']}"
    if words.has(key):
        return Said(text=f"{first['loc'][-1]}: {words(key, **first.get('ctx', {}))}", language=words.language)
    return Said(text=f"{first['loc'][-1]}: {first['msg']}", language=Language.ENGLISH)

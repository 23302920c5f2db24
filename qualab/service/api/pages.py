"""Web pages for people, in the reader's language: comparisons, items and the plan calculator."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache, partial
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse

from qualab import bootstrap
from qualab.errors import InvalidValue, QualabError, Unauthenticated
from qualab.model.names import ComparisonStatus, Language, Objective, Verdict
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import NEWEST_FIRST, ListOrder, Scope
from qualab.model.wording import storable_text
from qualab.service.api.answers import RETRY_AFTER_S, HttpProblem, status_of, tagged
from qualab.service.api.routes import Sort, read_status
from qualab.service.api.state import COOKIE, READ, ContextDep, authenticated, slowly, state_of
from qualab.service.viewing.items import SHOWS, ItemsFilter, item_page, items_page
from qualab.service.viewing.listing import comparison_page, list_page, trouble
from qualab.service.viewing.power import MOST_ITEMS, PowerQuery, power_page
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
        response = tagged(request, body, headers=SECURE, media_type="text/html")
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
                return error_page(request, 422, InvalidValue.code, _first_error(error))

        return shown


def error_page(request: Request, status: int, code: str, detail: str, hint: str = "") -> Response:
    """What went wrong, for a person."""
    said = trouble(code, detail, hint, Wording(language=language_of(request)))
    shown = page(request, "error", status=status, code=status, trouble=said)
    if status in (429, 503):
        shown.headers["Retry-After"] = str(RETRY_AFTER_S)
    return shown


def _first_error(error: RequestValidationError) -> str:
    """What was given is not repeated."""
    first: Mapping[str, Any] = error.errors()[0]
    return f"{first['loc'][-1]}: {first['msg']}"


router = APIRouter(route_class=PageRoute, include_in_schema=False)
STATUSES = tuple(ComparisonStatus)
Show = Literal["all", "flipped", "losses", "gains", "missing", "different"]


class Form(BaseModel):
    """What a form sends; a field that is left empty says nothing."""

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value != ""}


class ListForm(Form):
    """Which comparisons."""

    status: str = ""
    verdict: Verdict | None = None
    label: str = ""
    model: str = ""
    sort: Sort = "-created"
    cursor: str | None = Field(None, max_length=2_000)

    def query(self, **more: str | None) -> str:
        """The same as part of a URL, without the cursor."""
        said = {"status": self.status, "verdict": self.verdict, "label": self.label, "model": self.model}
        sort = {} if self.sort == NEWEST_FIRST else {"sort": self.sort}
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


class ItemsForm(Form):
    """Which items."""

    show: Show = "all"
    task: str = ""
    min_length: int | None = Field(None, ge=0, lt=2**31)
    max_length: int | None = Field(None, ge=0, lt=2**31)
    cursor: str | None = Field(None, max_length=500)

    def filter(self) -> ItemsFilter:
        """Without the page."""
        return ItemsFilter(show=self.show, task=self.task, min_length=self.min_length, max_length=self.max_length)


class ItemForm(ItemsForm):
    """Among which items one stands: the flips, unless something is said."""

    show: Show = "flipped"
    extract: bool = False


class PowerForm(Form):
    """What the calculator is asked, in percent."""

    items: int = Field(1_319, ge=1, le=MOST_ITEMS)
    discordance: float = Field(5.0, ge=0.1, le=50.0)
    margin: float = Field(2.0, ge=0.25, le=20.0)
    alpha: float = Field(5.0, ge=0.1, le=20.0)
    power: float = Field(80.0, ge=50.0, le=99.0)
    missing: float = Field(0.0, ge=0.0, le=10.0)
    objective: Objective = Objective.EQUIVALENCE

    def query(self) -> PowerQuery:
        """In fractions."""
        shares = {name: getattr(self, name) / 100.0 for name in ("discordance", "margin", "alpha", "power", "missing")}
        return PowerQuery(items=self.items, objective=self.objective, **shares)


def words_of(request: Request) -> Wording:
    """In the reader's language."""
    return Wording(language=language_of(request))


@router.get("/", dependencies=READ)
def listing(request: Request, context: ContextDep, form: Annotated[ListForm, Query()]) -> Response:
    """All comparisons."""
    view = list_page(
        context,
        state_of(request).follower,
        form.filter(),
        words_of(request),
        order=ListOrder(form.sort),
        cursor=form.cursor,
    )
    return page(request, "list", view=view, asked=form, statuses=STATUSES, verdicts=tuple(Verdict))


@router.get("/comparisons/{comparison_id}", dependencies=READ)
async def comparison(request: Request, context: ContextDep, comparison_id: str) -> Response:
    """One comparison."""

    def job() -> Response:
        return page(request, "comparison", view=comparison_page(context, comparison_id, words_of(request)))

    return await slowly(request, job)


@router.get("/comparisons/{comparison_id}/items", dependencies=READ)
def items(request: Request, context: ContextDep, comparison_id: str, form: Annotated[ItemsForm, Query()]) -> Response:
    """The items of a comparison."""
    view = items_page(context, comparison_id, form.filter(), form.cursor, words_of(request))
    return page(request, "items", view=view, shows=tuple(SHOWS))


@router.get("/comparisons/{comparison_id}/items/{position}", dependencies=READ)
async def item(
    request: Request, context: ContextDep, comparison_id: str, position: int, form: Annotated[ItemForm, Query()]
) -> Response:
    """One item; what the filters made of its answers where it is asked for."""

    def job() -> Response:
        words, browsed = words_of(request), form.filter()
        return page(
            request, "item", view=item_page(context, comparison_id, position, browsed, words, extracts=form.extract)
        )

    return await (slowly(request, job) if form.extract else run_in_threadpool(job))


@router.get("/plan", dependencies=READ)
async def plan(request: Request, form: Annotated[PowerForm, Query()]) -> Response:
    """The plan calculator."""
    view = await slowly(request, partial(power_page, form.query(), words_of(request)))
    return page(request, "plan", view=view, asked=form, objectives=tuple(Objective))


@router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    """What pages load."""
    found = await run_in_threadpool(bootstrap.static_file, name)
    if found is None:
        raise HttpProblem(404, "There is no such file")
    body, media_type = found
    return tagged(request, body, media_type=media_type)


FORM_TYPE = "application/x-www-form-urlencoded"
MOST_FIELDS = 10


@router.get("/sign-in")
def form(request: Request) -> Response:
    """Asks for a token."""
    return _sign_in_page(request, safe_path(request.query_params.get("next", "/")))


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Keeps a valid token in a cookie. Pages of other sites are refused by the middleware."""
    fields = await _form_fields(request)
    next_path = safe_path(fields.get("next", "/"))
    state = state_of(request)
    token = fields.get("token", "").strip()
    try:
        caller = await authenticated(state, token, is_local=False)
        caller.check(Scope.READ)
    except Unauthenticated:
        state.failures.take(request.client.host if request.client else "")
        return _sign_in_page(request, next_path, status=401, is_wrong=True)
    response = RedirectResponse(next_path, 303, headers=SECURE)
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=_is_encrypted(request))
    return response


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """Forgets the token."""
    response = RedirectResponse("/sign-in", 303, headers=SECURE)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=_is_encrypted(request))
    return response


def _sign_in_page(request: Request, next_path: str, *, status: int = 200, is_wrong: bool = False) -> Response:
    return page(request, "signin", status=status, next_path=next_path, is_wrong=is_wrong)


async def _form_fields(request: Request) -> dict[str, str]:
    """The form's fields, each once."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM_TYPE:
        raise HttpProblem(415, f"The body's type must be {FORM_TYPE}")
    try:
        found = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=MOST_FIELDS)
    except ValueError:
        raise HttpProblem(400, f"The form has more than {MOST_FIELDS} fields") from None
    return {name: values[0] for name, values in found.items()}


def _is_encrypted(request: Request) -> bool:
    """Whether the browser speaks TLS, to this service or to a proxy before it. Who lies here harms nobody else."""
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", "").lower())

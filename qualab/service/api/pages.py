"""Web pages for people, in the reader's language: comparisons, items and the plan calculator."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC
from functools import cache, partial
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from qualab.analysis.ruling import MAX_ITEMS, is_one_sided
from qualab.errors import ComparisonNotFound, InvalidValue, QualabError, RunStopped, Unauthenticated
from qualab.model.engine import AuditSeen, last_seen
from qualab.model.items import Change, OutcomeFilter
from qualab.model.names import UNDER_WAY, ArmName, ComparisonStatus, Language, Objective, RequestKind, Verdict
from qualab.model.plan import DecisionRule
from qualab.model.registry import Scope, encode_cursor
from qualab.model.report import Cell, Curve, Fact, Tone
from qualab.model.wording import count, proven, share, visible_text
from qualab.planning.power import Missing, if_any, narrowest_margin, sufficient_items
from qualab.report.group import group_table, group_title, ranked_group, speed_tables
from qualab.report.html import render_page, static_file
from qualab.report.model import report_model
from qualab.report.planning import power_curve
from qualab.report.source import verdict_cell
from qualab.report.words import Words
from qualab.run.sign import analysed, newest_seal, signoff_obstacles
from qualab.service.api import item_page
from qualab.service.api.answers import RETRY_AFTER_S, answer_problem, encoded, etag_of, problem_of, retry_after, tagged
from qualab.service.api.routes import ComparisonQuery, ItemQuery
from qualab.service.api.state import COOKIE, Call, Reader, State, address_of
from qualab.service.context import Context
from qualab.service.reading import COUNTED, Progress, audited_of, comparison_of, located, outcomes_of
from qualab.service.words import Wording
from qualab.stats.sizing import mde_beyond_noise

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
PREFERRED = re.compile(r"(?:^|,)\s*(\w+)[\w-]*\s*(?:;\s*q=(\d(?:\.\d+)?))?(?=\s*(?:,|$))")
"""A language of Accept-Language, and its quality."""


def words_of(request: Request) -> Wording:
    """Speak as the URL says, else as was chosen before, else as the browser prefers, else English."""
    preferred = PREFERRED.findall(request.headers.get("accept-language", "").lower())
    by_quality = sorted(((float(quality or 1), code) for code, quality in preferred), key=lambda one: -one[0])
    chosen = (request.query_params.get("lang"), request.cookies.get(LANGUAGE_COOKIE))
    for code in (*chosen, *(code for quality, code in by_quality if quality)):
        if code in tuple(Language):
            return Wording(language=Language(code))
    return Wording(language=Language.ENGLISH)


def page(request: Request, name: str, *, status: int = 200, **values: object) -> Response:
    """Draw a template with these values, and what every page has."""
    words = words_of(request)
    languages = []
    for language, own_name in NAMES.items():
        url = request.url.include_query_params(lang=language.value)
        languages.append((language.value, own_name, f"{url.path}?{url.query}", language is words.language))
    shared = {
        "t": words,
        "language": words.language,
        "languages": languages,
        "path": request.url.path,
        "is_signed_in": COOKIE in request.cookies,
        "files": {name: f"/static/{name}?{_digest(name)}" for name in LOADED},
        "verdict_cell": lambda verdict: verdict_cell(verdict, words),
        "change_cell": lambda change: Cell(text=words(f"change {change}"), tone=TONES[change]),
        "utc": lambda moment: f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}",
        "count": count,
        "seconds": "{:.2f} s".format,
        "visible": visible_text,
    }
    body = render_page(name, {**shared, **values})
    response = tagged(request, body, status, headers=SECURE, media_type="text/html")
    if request.query_params.get("lang") == words.language:
        response.set_cookie(LANGUAGE_COOKIE, words.language, max_age=A_YEAR_S, httponly=True, samesite="strict")
    return response


@cache
def _digest(name: str) -> str:
    """Name a version of a file in its URL, so that a browser may cache it."""
    return hashlib.sha256((static_file(name) or (b"", ""))[0]).hexdigest()[:12]


def safe_path(path: str) -> str:
    """Return a path of this service as it is, and the list's for whatever would lead elsewhere."""
    try:
        parts = urlsplit(path)
    except ValueError:
        return "/"
    is_local = path.startswith("/") and not path.startswith("//") and not parts.scheme and not parts.netloc
    return path if is_local and path.isprintable() and "\\" not in path else "/"


class PageRoute(APIRoute):
    """A route whose errors are pages; whoever is not recognized is led to the sign-in."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handler = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handler(request)
            except Unauthenticated:
                path = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
                return RedirectResponse(f"/sign-in?next={quote(path, safe='')}", 303, headers=SECURE)
            except (QualabError, HTTPException, RequestValidationError) as error:
                return error_page(request, error)

        return shown


def error_page(request: Request, error: Exception) -> Response:
    """Say what went wrong, for a person."""
    problem, words = problem_of(error), words_of(request)
    code, message = problem.code, problem.detail
    hint = "" if code == "no-such-route" else problem.hint  # it names REST's routes
    fields = ", ".join(wrong.field for wrong in problem.errors)
    if isinstance(error, RequestValidationError):
        first: Mapping[str, Any] = error.errors()[0]
        fields = f"{first['loc'][-1]}: {words.field(first['type'], first['msg'], first.get('ctx', {}))}"
        code, message, hint = InvalidValue.code, fields, ""
    values = {
        "retry_after_s": RETRY_AFTER_S,
        "max_body_bytes": request.app.state.qualab.context.settings.max_body_bytes,
        **request.path_params,
        **(error.details if isinstance(error, QualabError) else {}),
        "fields": fields,
    }
    notice = words.notice(code, message, hint, values=values)
    shown = page(request, "error", status=problem.status, code=problem.status, trouble=notice)
    shown.headers.update(retry_after(problem.status, error))
    return shown


async def answer_page_or_problem(request: Request, error: Exception) -> Response:
    """Answer an error outside the routes of pages: a browser with a page, others with a problem."""
    is_browser = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/v1")
    if is_browser and isinstance(error, HTTPException) and error.status_code == 404:
        error = HTTPException(404, "There is no page at this address")
    return error_page(request, error) if is_browser else await answer_problem(request, error)


class Form(BaseModel):
    """The fields of a form; an empty one counts as absent."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value != ""}

    def query(self, **more: object) -> str:
        """Return the form as part of a URL, without the cursor; `more` overrides its fields."""
        values = self.model_dump(mode="json", exclude={"cursor", "extract"}, exclude_defaults=True) | more
        return urlencode({name: value for name, value in values.items() if value not in ("", None)})


router = APIRouter(route_class=PageRoute, include_in_schema=False)


# comparisons


class ListForm(ComparisonQuery, Form):
    """Filters of the list of comparisons."""


COMPLETE_OR_UNASKED = (ComparisonStatus.QUEUED, ComparisonStatus.PLANNED, ComparisonStatus.FINISHED)


@router.get("/")
def listing(call: Reader, form: Annotated[ListForm, Query()]) -> Response:
    """List comparisons."""
    comparisons = call.context.store.page(form.filter(), order=form.sort, cursor=form.cursor)
    words, progress = words_of(call.request), {}
    for summary in comparisons.entries:
        if summary.status in COUNTED or (summary.plan_hash and summary.status not in COMPLETE_OR_UNASKED):
            with suppress(ComparisonNotFound):  # it was deleted just now
                now = call.state.events.follower(summary.id).look()
                progress[summary.id] = (now, answered_text(now, words), pace_text(now, words))
    return page(
        call.request,
        "list",
        entries=comparisons.entries,
        next_cursor=comparisons.next_cursor,
        progress=progress,
        moving=COUNTED,
        is_live=not all(summary.has_ended for summary in comparisons.entries),
        form=form,
        statuses=tuple(ComparisonStatus),
        may_start=call.token.scope.allows(Scope.RUN),
        verdicts=[verdict for verdict in Verdict if verdict is not Verdict.NOT_TESTED],
    )


def answered_text(progress: Progress, words: Wording) -> str:
    """Say how many requests of each arm have an answer, and how many came back without one."""
    counts = {str(arm): count(progress.answered[arm]) for arm in ArmName}
    if progress.n_requests is None:
        text = words("answers so far", **counts)
    else:
        text = words("answers of", total=count(progress.n_requests), **counts)
    lost = sum(progress.unanswered.values())
    return f"{text} · {words('without answer', n=count(lost))}" if lost else text


def pace_text(progress: Progress, words: Wording) -> str:
    """Say how fast it is, and how long it takes yet, to the precision that an estimate has."""
    if not progress.rate or progress.has_ended:
        return ""
    rate, left_s = words("live rate", rate=f"{progress.rate:,.1f}"), progress.eta_s
    if left_s is None:
        return rate
    for name, unit_s in (("hours left", 3_600.0), ("minutes left", 60.0)):
        if left_s >= 1.5 * unit_s:
            n = left_s / unit_s
            return f"{rate} · {words(name, n=f'{n:.1f}' if n < 10 else round(n))}"
    return f"{rate} · {words('seconds left', n=max(round(left_s), 1))}"


@router.get("/comparisons/{comparison_id}")
async def comparison(call: Reader, comparison_id: str) -> Response:
    """Show a comparison."""
    return await call.slowly(partial(comparison_page, call, comparison_id))


RESUMABLE = (
    ComparisonStatus.CANCELLED,
    ComparisonStatus.FAILED,
    ComparisonStatus.INTERRUPTED,
    ComparisonStatus.STOPPED,
)


def comparison_page(
    call: Call, comparison_id: str, *, refused: QualabError | None = None, fields: Mapping[str, str] | None = None
) -> Response:
    """Draw a comparison's page; where a sign-off was refused with why, and with what was typed."""
    words, store, scope = words_of(call.request), call.context.store, call.token.scope
    summary = store.summary(comparison_id)
    error, trouble, report, worst, seal, is_open, n_lost = summary.error, None, None, [], "", False, 0
    if summary.stop_reason:
        why, code = words.reason(summary.stop_reason), error.get("code", RunStopped.code)
        trouble = replace(words.notice(code, why, error.get("hint", "")), language=words.language)
    elif error.get("message"):
        trouble = words.notice(error.get("code", ""), error["message"], error.get("hint", ""))
    if summary.verdict is not None:
        report = report_model(store, summary.id, words.language)
        on_screen = tuple(section for section in report.sections if section.id != "signoff")  # for a pen
        report, worst = replace(report, sections=on_screen), item_page.worst_tokens(store, summary.id, words)
        own, analysis = analysed(store, summary.id)
        seal, is_open = newest_seal(store, own), any(signoff_obstacles(analysis, own))
        missing = analysis.suite.missing
        n_lost = missing.baseline_only + missing.candidate_only + missing.both
    problem = problem_of(refused) if refused else None
    may_run = scope.allows(Scope.RUN) and summary.is_requested
    return page(
        call.request,
        "comparison",
        status=problem.status if problem else 200,
        summary=summary,
        is_live=not summary.has_ended,
        trouble=trouble,
        report=report,
        worst=worst,
        has_items=summary.status is ComparisonStatus.FINISHED and summary.n_items > 0,
        group=store.get(summary.id).plan.group if summary.plan_hash else None,
        webhook=store.webhook(summary.id) if summary.is_requested else None,
        signoffs=store.signoffs(summary.id) if summary.plan_hash else (),
        statuses={status: words(f"status {status}") for status in ComparisonStatus},
        may_cancel=may_run and summary.status in UNDER_WAY,
        may_resume=may_run and summary.status in RESUMABLE,
        may_retry=may_run and summary.status is ComparisonStatus.FINISHED and n_lost > 0 and not summary.is_signed_off,
        may_sign=report is not None and scope.allows(Scope.ADMIN),
        etag=etag_of(encoded(replace(summary, experiment=store.request(comparison_id)))),
        seal=seal,
        needs_override=is_open,
        refused=words.notice(problem.code, problem.detail, problem.hint) if problem else None,
        fields=fields or {},
    )


@router.get("/baselines")
def baselines(call: Reader) -> Response:
    """List banked baselines."""
    return page(call.request, "baselines", banks=call.context.store.banks())


@router.get("/groups/{group_id}")
def group(call: Reader, group_id: str) -> Response:
    """Rank the candidates that were compared with one baseline in one run."""
    context, words = call.context, Words(language=words_of(call.request).language)
    ranked = ranked_group(context.store, group_id, now=context.services.clock.now())
    title, ranks = group_title(ranked, words), group_table(ranked, words)
    return page(call.request, "group", group=ranked, title=title, table=ranks, timed=list(speed_tables(ranked, words)))


# items


SHOWS: Mapping[str, Mapping[str, Any]] = {
    "all": {},
    "flipped": {"flipped": True},
    "losses": {"change": Change.LOSS},
    "gains": {"change": Change.GAIN},
    "missing": {"missing": True},
    "different": {"different_text": True},
    "foreign": {"foreign": True},
}
"""Filters by the names that the page has for them."""
TONES = {Change.SAME: Tone.PLAIN, Change.GAIN: Tone.GOOD, Change.LOSS: Tone.BAD, Change.UNKNOWN: Tone.BROKEN}
Show = Literal["all", "flipped", "losses", "gains", "missing", "different", "foreign"]


class ItemsForm(ItemQuery, Form):
    """Filters of the list of items."""

    show: Show = "all"

    def filter(self) -> OutcomeFilter:
        return replace(super().filter(), **SHOWS[self.show])

    def query(self, **more: object) -> str:
        """Return the form as part of a URL, always with `show`: its default differs between list and item."""
        return super().query(show=self.show, **more)


class ItemForm(ItemsForm):
    """The items that a page of one goes through: the flips by default."""

    show: Show = "flipped"
    extract: bool = False


@router.get("/comparisons/{comparison_id}/items")
def items(call: Reader, comparison_id: str, form: Annotated[ItemsForm, Query()]) -> Response:
    """List the items of a comparison."""
    own = comparison_of(call.context, comparison_id)
    seen = last_seen(call.context.store.observations(comparison_id), AuditSeen)
    has_audit = own.plan.audit is not None or seen is not None
    outcomes = outcomes_of(call.context, comparison_id, form.filter(), cursor=form.cursor, limit=form.limit)
    store, wanted = call.context.store, located(call.context, own, form.filter())
    numbers = {"n": count(store.n_outcomes(own.id, wanted)), "total": count(store.n_outcomes(own.id, OutcomeFilter()))}
    return page(
        call.request,
        "items",
        comparison=own,
        outcomes=outcomes,
        form=form,
        shows=SHOWS,
        has_audit=has_audit,
        numbers=numbers,
    )


@router.get("/comparisons/{comparison_id}/items/{position}")
async def item(call: Reader, comparison_id: str, position: int, form: Annotated[ItemForm, Query()]) -> Response:
    """Show an item; what the filters made of its answers where it is asked for."""
    job = partial(_item, call, comparison_id, position, form)
    return await (call.slowly(job) if form.extract else run_in_threadpool(job))


def _item(call: Call, comparison_id: str, position: int, form: ItemForm) -> Response:
    context, words = call.context, words_of(call.request)
    own = comparison_of(context, comparison_id)
    item, stored, scores = context.store.pair(comparison_id, position)
    answers = {(answer.arm, answer.choice, answer.repeat): answer for answer in stored}
    is_generation = item.kind is RequestKind.GENERATION
    extracted, trouble, filters = None, None, located(context, own, form.filter())
    if is_generation and form.extract:
        try:
            extracted = item_page.extracted_lines(context, own, item, answers, words)
        except QualabError as error:
            trouble = words.notice(error.code, error.message, error.hint, values=error.details)
    return page(
        call.request,
        "item",
        comparison=own,
        item=item,
        form=form,
        is_generation=is_generation,
        prompt=item_page.messages(item.prompts[0]) if item.prompts else (),
        document=json.dumps(item.doc, ensure_ascii=False, indent=2) if item.doc else "",
        pairs=list(item_page.pairs(own, answers, words)) if is_generation else (),
        others=item_page.others(context.store, own, item, answers, words) if is_generation else (),
        choices=() if is_generation else list(item_page.choice_lines(item, own, answers)),
        extracted=extracted,
        trouble=trouble,
        audited=item_page.audited_parts(audited_of(context, own, position, stored), words),
        shades=item_page.SHADES,
        scores=list(item_page.score_lines(item, own, scores)),
        commands=list(item_page.commands(own, item, words)),
        previous=neighbour(context, comparison_id, position, filters, is_backward=True),
        next=neighbour(context, comparison_id, position, filters, is_backward=False),
    )


def neighbour(
    context: Context, comparison_id: str, position: int, filters: OutcomeFilter, *, is_backward: bool
) -> int | None:
    """Return the position of the item before or after this one among those that are shown; None where none is."""
    cursor = encode_cursor("items", position, -1 if is_backward else 2**31)  # before or behind all its repeats
    outcomes = context.store.outcomes(comparison_id, filters, cursor=cursor, limit=1, is_backward=is_backward)
    return outcomes.entries[0].position if outcomes.entries else None


# the calculator


class PowerForm(Form):
    """Input of the calculator, in percent."""

    items: int = Field(1_319, ge=1, le=100_000)
    discordance: float = Field(5.0, ge=0.1, le=50.0)
    margin: float = Field(2.0, ge=0.25, le=20.0)
    alpha: float = Field(5.0, ge=0.1, le=20.0)
    power: float = Field(80.0, ge=50.0, le=99.0)
    missing: float = Field(0.0, ge=0.0, le=10.0)
    objective: Objective = Objective.EQUIVALENCE


@router.get("/plan")
async def plan(call: Reader, form: Annotated[PowerForm, Query()]) -> Response:
    """Show the plan calculator."""
    shares = {name: getattr(form, name) / 100.0 for name in ("margin", "alpha", "power")}
    rule = DecisionRule(objective=form.objective, **shares)
    job = partial(
        power_figures, form.items, form.discordance / 100.0, form.missing / 100.0, rule, words_of(call.request)
    )
    curve, facts, command = await call.slowly(job)
    return page(call.request, "plan", curve=curve, facts=facts, command=command, form=form, objectives=Objective)


def power_figures(
    items: int, discordance: float, missing_share: float, rule: DecisionRule, words: Wording
) -> tuple[Curve, tuple[Fact, ...], str]:
    """Compute the curve, the figures beside it, and the same as a command; empty where the command line cannot.

    `discordance` and the expected `missing_share` of each arm's answers are fractions. Raises InvalidValue.
    """
    missing, is_loss_alone, n = Missing(share=missing_share), is_one_sided(rule), count(items)
    needed = sufficient_items(discordance, rule.power, rule=rule, missing=missing)
    narrowest = narrowest_margin(items, discordance, rule.power, rule=rule, missing=missing)
    loss = if_any(lambda: mde_beyond_noise(n_items=items, noise=discordance, alpha=rule.alpha, power=rule.power))
    curve = power_curve(items, discordance, rule, words, missing=missing)
    units, none = words.units, words("no margin")
    figures = {
        "power here": units(share(curve.here[1])),
        "items needed": words("more than", n=count(MAX_ITEMS)) if needed is None else count(needed),
        "narrowest margin": none if narrowest is None else units(proven(narrowest)),
        "smallest loss": none if loss is None else units(proven(loss)),
    }
    facts = tuple(Fact(label=words(key, n=n), text=text) for key, text in figures.items())
    command = f"qualab stats power --items {items} --discordance {discordance:g} --margin {rule.margin:g}"
    is_known = not is_loss_alone and not missing_share  # to the command line, which plans equivalence of whole data
    return curve, facts, f"{command} --alpha {rule.alpha:g}" if is_known else ""


# files and signing in


@router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    """Return a file that pages load."""
    file = await run_in_threadpool(static_file, name)
    if file is None:
        raise HTTPException(404, "There is no such file")
    return tagged(request, file[0], media_type=file[1])


MOST_FIELDS = 10


@router.get("/sign-in")
def form(request: Request) -> Response:
    """Ask for a token."""
    return page(request, "signin", next_path=safe_path(request.query_params.get("next", "/")), is_wrong=False)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Keep a valid token in a cookie. Pages of other sites are refused by the middleware."""
    try:
        fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=MOST_FIELDS)
    except ValueError:
        raise HTTPException(400, f"The form has more than {MOST_FIELDS} fields") from None
    next_path, token = safe_path(fields.get("next", ["/"])[0]), fields.get("token", [""])[0].strip()
    state: State = request.app.state.qualab
    try:
        await state.authenticator.token(token, is_local=False)
    except Unauthenticated:
        state.failures.take(address_of(request))
        return page(request, "signin", status=401, next_path=next_path, is_wrong=True)
    response = RedirectResponse(next_path, 303, headers=SECURE)
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=_is_encrypted(request))
    return response


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """Forget the token."""
    response = RedirectResponse("/sign-in", 303, headers=SECURE)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=_is_encrypted(request))
    return response


def _is_encrypted(request: Request) -> bool:
    """Tell whether the browser speaks TLS, to this service or to a proxy before it. A lie here harms nobody else."""
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", "").lower())

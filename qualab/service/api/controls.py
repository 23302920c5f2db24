"""Pages that change something: each calls what its REST route calls, with the scope that the token has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Depends, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from qualab.errors import InvalidValue, QualabError, VersionConflict
from qualab.model.items import JsonObject
from qualab.model.report import Block, Bullets, Paragraph
from qualab.model.wording import pp, proven
from qualab.planning.suite import Planning
from qualab.report.source import Cells, table
from qualab.report.words import Words
from qualab.run.sign import newest_seal, sign_off
from qualab.service import reading, requests
from qualab.service.api.answers import problem_of
from qualab.service.api.pages import SECURE, PageRoute, comparison_page, page, words_of
from qualab.service.api.routes import matching
from qualab.service.api.state import Admin, Call, Runner

router = APIRouter(route_class=PageRoute, include_in_schema=False)
COMPARISON = "/comparisons/{comparison_id}"
MOST_FIELDS = 40
Fields = Mapping[str, str]


async def form_fields(request: Request) -> Fields:
    """Read a form. Raises HTTPException."""
    try:
        text = (await request.body()).decode("utf-8", "replace")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise HTTPException(400, f"The form has more than {MOST_FIELDS} fields") from None


Form = Annotated[Fields, Depends(form_fields)]


def _back(path: str) -> Response:
    return RedirectResponse(path, 303, headers=SECURE)


def _to(comparison_id: str) -> Response:
    return _back(f"/comparisons/{quote(comparison_id, safe='')}")


@router.post(COMPARISON + "/cancel")
def cancel(call: Runner, comparison_id: str) -> Response:
    """Cancel what is queued or running, of a group all."""
    requests.cancel(call.context, matching(call, comparison_id, None), by=call.by)
    return _to(comparison_id)


@router.post(COMPARISON + "/resume")
def resume(call: Runner, comparison_id: str, fields: Form) -> Response:
    """Resume as it was seen on the page; with `retry_failed` failed answers are asked again."""
    summary = matching(call, comparison_id, fields.get("etag"))
    requests.resume(call.context, summary, by=call.by, retry_failed="retry_failed" in fields)
    return _to(comparison_id)


@router.post(COMPARISON + "/sign-off")
async def sign(call: Admin, comparison_id: str, fields: Form) -> Response:
    """Accept the analysis that was seen on the page; what is refused leaves the fields as they were typed."""

    def job() -> Response:
        comparison, by = reading.comparison_of(call.context, comparison_id), call.by
        given = {name: fields.get(name, "") for name in ("signed_by", "note", "override")}
        try:
            if fields.get("seal") != newest_seal(call.context.store, comparison):
                hint = "Read the page again before you sign"
                raise VersionConflict(f"Comparison {comparison_id} was analysed anew since", hint=hint)
            sign_off(call.context.store, comparison_id, who=by.who, at=by.at, details=by.details, **given)
        except QualabError as error:
            return comparison_page(call, comparison_id, refused=error, fields=fields)
        return _to(comparison_id)

    return await call.slowly(job)


TEXTS = ("baseline", "candidate", "model", "tasks", "label")
NUMBERS = ("limit", "margin", "looks", "concurrency")
CHECKS = ("audit", "accept_underpowered")
DEFAULTS = {"tasks": "release", "margin": "2", "concurrency": "8", "audit": "on"}


@router.get("/start")
def start_form(call: Runner) -> Response:
    """Ask what is to be compared."""
    return _start_page(call, DEFAULTS)


@router.post("/start")
async def start(call: Runner, fields: Form) -> Response:
    """Show what the items can prove; start where that was seen and confirmed."""

    def job() -> Response:
        try:
            body = _experiment(fields)
            if "start" in fields:
                return _to(requests.submit(call.context, body, by=call.by, key=fields.get("key", "")))
            _, planning = requests.planned(call.context, body, by=call.by)
        except QualabError as error:
            return _start_page(call, fields, refused=error)
        return _start_page(call, fields, planned=_figures(planning, words_of(call.request)))

    return await call.slowly(job)


def _start_page(
    call: Call, fields: Fields, *, planned: Sequence[Block] = (), refused: QualabError | None = None
) -> Response:
    problem, words = problem_of(refused) if refused else None, words_of(call.request)
    return page(
        call.request,
        "start",
        status=problem.status if problem else 200,
        fields=fields,
        planned=planned,
        key=token_hex(16),
        wrong={own.field: own.allowed for own in problem.errors} if problem else {},
        trouble=words.notice(problem.code, problem.detail, problem.hint) if problem else None,
    )


def _experiment(fields: Fields) -> JsonObject:
    """Read a form's experiment. Raises InvalidValue."""
    body: dict[str, Any] = {name: fields[name].strip() for name in TEXTS if fields.get(name, "").strip()}
    for name in NUMBERS:
        if text := fields.get(name, "").strip():
            try:
                body[name] = float(text) / 100.0 if name == "margin" else int(text)
            except ValueError:
                raise InvalidValue.must_be(name, "a number") from None
    return body | {name: True for name in CHECKS if name in fields}


def _figures(planning: Planning, words: Words) -> tuple[Block, ...]:
    """Show what the items can prove, before anything is asked."""
    rows: list[Cells] = [
        {
            "metric": own.id,
            "n": (own.asked.n_items, "count"),
            "margin": words.units(pp(own.margin)),
            "planned power": (own.planned_power, "share"),
            "proven margin": None if own.provable_margin is None else words.units(proven(own.provable_margin)),
            "items needed": (own.items_needed, "count"),
        }
        for own in planning.metrics
    ]
    blocks: list[Block] = [table(words, tuple(rows[0]), rows, legends={})] if rows else []
    if planning.joint_power is not None:
        blocks.append(Paragraph(text=words("joint power", power=planning.joint_power)))
    blocks.append(Paragraph(text=words("plan requests many", n=planning.n_requests)))
    if planning.unproven:
        blocks.append(Bullets(title=words("plan not proven"), items=words.reasons(planning.unproven)))
    return tuple(blocks)

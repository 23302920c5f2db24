"""The list of comparisons, the page of one of them, and what went wrong, for a person."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from qualab.errors import ComparisonNotFound, QualabError, RunStopped
from qualab.model.comparison import SignOff
from qualab.model.names import ArmName, ComparisonStatus, Language
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import ComparisonSummary, ListOrder
from qualab.model.report import Cell, ReportModel
from qualab.model.wording import count
from qualab.report.metrics import verdict_cell
from qualab.report.model import report_model
from qualab.service.context import Context
from qualab.service.reading import COUNTED, Follower, Progress, summary_of
from qualab.service.words import Wording
from qualab.service.words.korean import in_korean


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence, and the language that it is in."""

    text: str
    language: Language


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One error."""

    title: str
    message: Sentence
    hint: Sentence | None


def trouble(code: str, message: str, hint: str, words: Wording) -> Trouble:
    """In the reader's language, as far as the sentences are known; a code that is not known is any error's."""
    known = f"error {code}" if words.has(f"error {code}") else f"error {QualabError.code}"
    return Trouble(title=words(known), message=said(message, words), hint=said(hint, words) if hint else None)


def said(text: str, words: Wording) -> Sentence:
    """In the reader's language where the sentence is known."""
    korean = in_korean(text) if words.language is Language.KOREAN else None
    return Sentence(text=korean or text, language=Language.KOREAN if korean else Language.ENGLISH)


COLUMNS = (
    ("comparison", "label"),
    ("status", ""),
    ("verdict", "verdict"),
    ("model", ""),
    ("suite", ""),
    ("items", ""),
    ("created", "-created"),
)
"""Columns, and the order that their heads lead to."""
BROKEN_OFF = (
    ComparisonStatus.STOPPED,
    ComparisonStatus.INTERRUPTED,
    ComparisonStatus.CANCELLED,
    ComparisonStatus.FAILED,
)
"""Statuses in which some answers may be there, and some are not."""
REFRESH_S = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of a column."""

    name: str
    sort: str
    """The order that it leads to; empty where there is none."""
    direction: str
    """How the list is ordered by it now, for `aria-sort`; empty where by another."""
    is_number: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """How far a comparison is: requests of both arms that came back."""

    text: str
    pace: str
    """How fast, and how long yet; empty while that is not known."""
    value: int
    most: int | None
    """None while it is not known."""
    is_moving: bool
    """Whether it is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One comparison of the list."""

    summary: ComparisonSummary
    name: str
    """Its label, or its id."""
    status: str
    verdict: Cell | None
    items: str
    """How many are planned, and of them asked where a look ended the run; empty while there is no plan."""
    created: str
    bar: Bar | None
    """None where nothing is asked."""
    why: Sentence | None
    """What kept it from its end."""
    is_live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """In the order that was asked for."""

    heads: tuple[Head, ...]
    lines: tuple[Line, ...]
    next_cursor: str | None

    @property
    def refresh_s(self) -> int:
        """When to read it again; 0 where nothing on it changes by itself."""
        return REFRESH_S if any(line.is_live for line in self.lines) else 0


def list_page(
    context: Context,
    follower: Callable[[str], Follower],
    wanted: ComparisonFilter,
    words: Wording,
    *,
    order: ListOrder,
    cursor: str | None,
) -> ListPage:
    """Raises InvalidValue for a cursor that is none."""
    page = context.registry.page(wanted, order=order, cursor=cursor)
    return ListPage(
        heads=tuple(_head(name, sort, order, words) for name, sort in COLUMNS),
        lines=tuple(_line(follower, one, words) for one in page.entries),
        next_cursor=page.next_cursor,
    )


def _head(name: str, sort: str, order: ListOrder, words: Wording) -> Head:
    is_own = sort == order
    direction = "descending" if order is ListOrder.NEWEST else "ascending"
    return Head(name=words(name), sort=sort, direction=direction if is_own else "", is_number=name == "items")


def _line(follower: Callable[[str], Follower], summary: ComparisonSummary, words: Wording) -> Line:
    is_live = not summary.status.has_ended
    is_asked = summary.status in COUNTED or (summary.status in BROKEN_OFF and summary.plan_hash)
    return Line(
        summary=summary,
        name=summary.label or summary.id,
        status=words(f"status {summary.status}"),
        verdict=None if summary.verdict is None else verdict_cell(summary.verdict, words.report),
        items=_items(summary, words),
        created=shown_time(summary.created_at),
        bar=_bar(follower, summary, words) if is_asked else None,
        why=said(summary.stop_reason, words) if summary.stop_reason else None,
        is_live=is_live,
    )


def _items(summary: ComparisonSummary, words: Wording) -> str:
    planned = count(summary.n_items) if summary.n_items else ""
    if summary.n_items_asked is None:
        return planned
    return words("items asked", n=count(summary.n_items_asked), total=planned)


def _bar(follower: Callable[[str], Follower], summary: ComparisonSummary, words: Wording) -> Bar | None:
    with suppress(ComparisonNotFound):  # it was deleted just now
        found = follower(summary.id).look()
        return Bar(
            text=_answered(found, words),
            pace=_pace(found, words),
            value=sum(found.answered.values()) + sum(found.unanswered.values()),
            most=None if found.n_requests is None else len(ArmName) * found.n_requests,
            is_moving=summary.status in COUNTED,
        )
    return None


def _answered(found: Progress, words: Wording) -> str:
    off, on = (count(found.answered[arm]) for arm in ArmName)
    if found.n_requests is None:
        answered = words("answers so far", off=off, on=on)
    else:
        answered = words("answers of", off=off, on=on, total=count(found.n_requests))
    lost = sum(found.unanswered.values())
    return f"{answered} · {words('without answer', n=count(lost))}" if lost else answered


def _pace(found: Progress, words: Wording) -> str:
    if not found.rate or found.has_ended:
        return ""
    parts = [words("live rate", rate=f"{found.rate:,.1f}")]
    if found.eta_s is not None:
        parts.append(left(found.eta_s, words))
    return " · ".join(parts)


def left(duration_s: float, words: Wording) -> str:
    """How long it takes yet, to the precision that an estimate has."""
    for name, unit_s in (("hours left", 3_600.0), ("minutes left", 60.0)):
        if duration_s >= 1.5 * unit_s:
            return words(
                name, n=f"{duration_s / unit_s:.1f}" if duration_s < 10 * unit_s else round(duration_s / unit_s)
            )
    return words("seconds left", n=max(round(duration_s), 1))


def shown_time(moment: datetime) -> str:
    """The same in every language, and it sorts as text."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"


ON_PAPER = ("signoff",)
"""Sections that people fill in with a pen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOffLine:
    """One sign-off."""

    by: str
    at: str
    verdict: Cell
    note: str
    override: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPage:
    """What is known of it by now."""

    summary: ComparisonSummary
    name: str
    status: str
    created: str
    is_live: bool
    """Whether it may change by itself."""
    trouble: Trouble | None
    """Why it ended early."""
    report: ReportModel | None
    """None while there is no analysis."""
    has_items: bool
    signed: tuple[SignOffLine, ...]
    statuses: dict[str, str]
    """Words of what it may become while somebody looks."""


def comparison_page(context: Context, comparison_id: str, words: Wording) -> ComparisonPage:
    """Raises ComparisonNotFound."""
    summary = summary_of(context, comparison_id)
    return ComparisonPage(
        summary=summary,
        name=summary.label or summary.id,
        status=words(f"status {summary.status}"),
        created=shown_time(summary.created_at),
        is_live=not summary.status.has_ended,
        trouble=_reason(summary, words),
        report=None if summary.verdict is None else _on_screen(context, summary.id, words),
        has_items=summary.status is ComparisonStatus.FINISHED,
        signed=_signed(context, summary, words),
        statuses={status: words(f"status {status}") for status in ComparisonStatus},
    )


def _reason(summary: ComparisonSummary, words: Wording) -> Trouble | None:
    """Of the request where it says one, otherwise of the run."""
    error = summary.error
    if error.get("message"):
        return trouble(error.get("code", ""), error["message"], error.get("hint", ""), words)
    reason = summary.stop_reason
    return trouble(RunStopped.code, reason, "", words) if reason else None


def _on_screen(context: Context, comparison_id: str, words: Wording) -> ReportModel:
    report = report_model(context.services.store, context.registry, comparison_id, words.language)
    return replace(report, sections=tuple(one for one in report.sections if one.id not in ON_PAPER))


def _signed(context: Context, summary: ComparisonSummary, words: Wording) -> tuple[SignOffLine, ...]:
    found = context.registry.signoffs(summary.id) if summary.plan_hash else ()
    return tuple(_signed_as(one, words) for one in found)


def _signed_as(one: SignOff, words: Wording) -> SignOffLine:
    return SignOffLine(
        by=one.signed_by,
        at=shown_time(one.signed_at),
        verdict=verdict_cell(one.verdict, words.report),
        note=one.note,
        override=one.override,
    )

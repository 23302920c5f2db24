"""What went wrong, for a person: what kind of thing by its code, what exactly, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from qualab.errors import ComparisonNotFound, QualabError
from qualab.model.names import ArmName, ComparisonStatus, Language
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import ComparisonSummary, ListOrder, SortBy
from qualab.model.report import Cell
from qualab.model.wording import count
from qualab.report.metrics import verdict_cell
from qualab.service.desk import Desk
from qualab.service.reading import COUNTED, ENDED, Progress
from qualab.service.words import Wording


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A sentence, and the language that it is in."""

    text: str
    language: Language


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One error."""

    title: str
    message: Said
    hint: Said | None


def trouble(code: str, message: str, hint: str, words: Wording) -> Trouble:
    """Name a trouble by its code, in the reader's language; what exactly and what to do are told in English."""
    known = f"error {code}" if words.has(f"error {code}") else f"error {QualabError.code}"
    return Trouble(title=words(known), message=in_english(message), hint=in_english(hint) if hint else None)


def in_english(text: str) -> Said:
    """An error's message or hint."""
    return Said(text=text, language=Language.ENGLISH)


COLUMNS = (
    ("comparison", SortBy.LABEL),
    ("status", SortBy.STATUS),
    ("verdict", SortBy.VERDICT),
    ("model", SortBy.MODEL),
    ("suite", None),
    ("items", None),
    ("created", SortBy.CREATED),
)
"""Columns, and what their heads sort by."""
ASKED = (*COUNTED, ComparisonStatus.STOPPED, ComparisonStatus.INTERRUPTED)
"""Statuses in which some answers are there, and some perhaps not."""
SOON_S, LATER_S = 1, 3
Look = Callable[[str], Progress]
"""How far a comparison is. Raises ComparisonNotFound."""


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
    why: Said | None
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
        """When to read it again; 0 where nothing on it changes by itself. What is being counted is there soon."""
        if any(line.bar is not None and line.bar.is_moving and line.bar.most is None for line in self.lines):
            return SOON_S
        return LATER_S if any(line.is_live for line in self.lines) else 0


def list_page(
    desk: Desk, look: Look, wanted: ComparisonFilter, words: Wording, *, order: ListOrder, cursor: str | None
) -> ListPage:
    """Raises InvalidValue for a cursor that is none."""
    page = desk.registry.page(wanted, order=order, cursor=cursor)
    return ListPage(
        heads=tuple(_head(name, by, order, words) for name, by in COLUMNS),
        lines=tuple(_line(look, one, words) for one in page.entries),
        next_cursor=page.next_cursor,
    )


def _head(name: str, by: SortBy | None, order: ListOrder, words: Wording) -> Head:
    """Names and words first go up, times down; the head that the list is ordered by turns it round."""
    is_own = by is order.by
    falls = not order.is_descending if is_own else by is SortBy.CREATED
    return Head(
        name=words(name),
        sort="" if by is None else ListOrder(by=by, is_descending=falls).name,
        direction="" if not is_own else "descending" if order.is_descending else "ascending",
        is_number=name == "items",
    )


def _line(look: Look, summary: ComparisonSummary, words: Wording) -> Line:
    is_live = summary.status not in ENDED
    return Line(
        summary=summary,
        name=summary.label or summary.id,
        status=words(f"status {summary.status}"),
        verdict=None if summary.verdict is None else verdict_cell(summary.verdict, words.report),
        items=_items(summary, words),
        created=shown_time(summary.created_at),
        bar=_bar(look, summary, words) if summary.status in ASKED else None,
        why=in_english(summary.stop_reason) if summary.stop_reason else None,
        is_live=is_live,
    )


def _items(summary: ComparisonSummary, words: Wording) -> str:
    planned = count(summary.n_items) if summary.n_items else ""
    if summary.n_items_asked is None:
        return planned
    return words("items asked", n=count(summary.n_items_asked), total=planned)


def _bar(look: Look, summary: ComparisonSummary, words: Wording) -> Bar | None:
    with suppress(ComparisonNotFound):  # it was deleted just now
        found = look(summary.id)
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

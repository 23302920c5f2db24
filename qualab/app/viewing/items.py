"""The pages of a comparison's items, and what stands before and after one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from qualab.app.service.desk import Desk
from qualab.app.service.reading import comparison_of, outcomes_of
from qualab.app.viewing.words import Wording
from qualab.domain.names import RequestKind
from qualab.domain.outcomes import Change, Outcome, OutcomeFilter
from qualab.domain.paging import encode_cursor
from qualab.domain.report import Cell, Tone
from qualab.domain.text import storable_text

PAGE = 50
SHOWS: Mapping[str, OutcomeFilter] = {
    "all": OutcomeFilter(),
    "flipped": OutcomeFilter(flipped=True),
    "losses": OutcomeFilter(change=Change.LOSS),
    "gains": OutcomeFilter(change=Change.GAIN),
    "missing": OutcomeFilter(missing=True),
    "different": OutcomeFilter(different_text=True),
}
"""Kinds of items."""
TONES = {Change.SAME: Tone.PLAIN, Change.GAIN: Tone.GOOD, Change.LOSS: Tone.BAD, Change.UNKNOWN: Tone.BROKEN}
_BEHIND_ALL = 2**31
"""A repeat that no item has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Browsed:
    """Which items somebody looks at."""

    show: str = "all"
    task: str = ""
    min_length: int | None = None
    max_length: int | None = None

    def filter(self) -> OutcomeFilter:
        """For the registry."""
        return replace(
            SHOWS[self.show],
            task=storable_text(self.task) or None,
            min_length=self.min_length,
            max_length=self.max_length,
        )

    def query(self, **more: str) -> str:
        """The same as part of a URL."""
        said = {"show": self.show, "task": self.task, "min_length": self.min_length, "max_length": self.max_length}
        return urlencode({name: value for name, value in said.items() if value not in ("", None)} | more)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemLine:
    """One item and repeat of the list."""

    outcome: Outcome
    change: Cell
    baseline: str
    candidate: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsPage:
    """In order of position."""

    comparison_id: str
    name: str
    tasks: tuple[str, ...]
    browsed: Browsed
    lines: tuple[ItemLine, ...]
    has_repeats: bool
    next_query: str
    """Of the next page; empty where this is the last."""
    is_first: bool


def items_page(desk: Desk, comparison_id: str, browsed: Browsed, cursor: str | None, words: Wording) -> ItemsPage:
    """Raises ComparisonNotFound, NotYet, InvalidValue for a cursor that is none."""
    comparison = comparison_of(desk, comparison_id)
    page = outcomes_of(desk, comparison_id, browsed.filter(), cursor=cursor, limit=PAGE)
    return ItemsPage(
        comparison_id=comparison.id,
        name=comparison.label or comparison.id,
        tasks=tuple(task.name for task in comparison.plan.tasks),
        browsed=browsed,
        lines=tuple(_line(one, words) for one in page.entries),
        has_repeats=comparison.plan.sampling.repeats > 1,
        next_query=browsed.query(cursor=page.next_cursor) if page.next_cursor else "",
        is_first=cursor is None,
    )


def _line(outcome: Outcome, words: Wording) -> ItemLine:
    return ItemLine(
        outcome=outcome,
        change=Cell(text=words(f"change {outcome.change}"), tone=TONES[outcome.change]),
        baseline=shown_score(outcome.baseline),
        candidate=shown_score(outcome.candidate),
        text=_text(outcome, words),
    )


def _text(outcome: Outcome, words: Wording) -> str:
    if outcome.different_text:
        return words("different text")
    is_compared = outcome.kind is RequestKind.GENERATION and outcome.change is not Change.UNKNOWN
    return words("same text" if is_compared else "not compared")


def shown_score(value: float | None) -> str:
    """As short as it is exact to six digits; a dash where there is none."""
    return "–" if value is None else f"{value:.6g}"


def neighbour(desk: Desk, comparison_id: str, position: int, browsed: Browsed, *, is_backward: bool) -> int | None:
    """The position of the item before or after this one among those that are browsed; None where there is none."""
    cursor = encode_cursor("items", position, -1 if is_backward else _BEHIND_ALL)
    page = desk.registry.outcomes(comparison_id, browsed.filter(), cursor=cursor, limit=1, is_backward=is_backward)
    return page.entries[0].position if page.entries else None

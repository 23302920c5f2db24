"""The orders of the list in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from qualab.model.registry import (
    STATUSES,
    VERDICTS,
    ComparisonSummary,
    ListOrder,
    Page,
    SortBy,
    decode_cursor,
    decode_text_cursor,
    encode_cursor,
    encode_text_cursor,
    page_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A line of the list, and where it stands among those that are equal in its order."""

    place: tuple[datetime, int, int]
    """When it was created, whether it is a submission, its number."""
    summary: ComparisonSummary

    @property
    def numbers(self) -> tuple[int, ...]:
        created_at, *rest = self.place
        return (round(created_at.timestamp() * 1e6), *rest)


def page_in_order(
    lines: Sequence[Listed], order: ListOrder, cursor: str | None, *, limit: int
) -> Page[ComparisonSummary]:
    """Raises InvalidValue for a cursor of another list."""
    ordered = sorted(
        lines, key=lambda line: line.numbers, reverse=order.by is not SortBy.CREATED or order.is_descending
    )
    if order.by is not SortBy.CREATED:
        ordered.sort(key=lambda line: _value(line, order), reverse=order.is_descending)
    if cursor is not None:
        value, numbers = _decoded(cursor, order)
        ordered = [line for line in ordered if _is_behind(line, value, numbers, order)]
    page = page_of(ordered[: limit + 1], limit, lambda line: _cursor(line, order))
    return Page(entries=tuple(line.summary for line in page.entries), next_cursor=page.next_cursor)


def _value(line: Listed, order: ListOrder) -> str | int:
    """What the order goes by."""
    summary = line.summary
    if order.by is SortBy.CREATED:
        return 0
    if order.is_by_text:
        return summary.label if order.by is SortBy.LABEL else summary.model
    if order.by is SortBy.VERDICT:
        return VERDICTS.index(summary.verdict)
    return next(place for place, statuses in enumerate(STATUSES) if summary.status in statuses)


def _is_behind(line: Listed, value: str | int, numbers: tuple[int, ...], order: ListOrder) -> bool:
    own = _value(line, order)
    if own == value:
        is_rising = order.by is SortBy.CREATED and not order.is_descending
        return line.numbers > numbers if is_rising else line.numbers < numbers
    return (own < value) is order.is_descending  # type: ignore[operator]


def _cursor(line: Listed, order: ListOrder) -> str:
    value = _value(line, order)
    if isinstance(value, str):
        return encode_text_cursor(order.cursor_kind, value, *line.numbers)
    return encode_cursor(order.cursor_kind, value, *line.numbers)


def _decoded(cursor: str, order: ListOrder) -> tuple[str | int, tuple[int, ...]]:
    if order.is_by_text:
        return decode_text_cursor(cursor, order.cursor_kind, 3)
    value, *numbers = decode_cursor(cursor, order.cursor_kind, 4)
    return value, tuple(numbers)

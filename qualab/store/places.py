"""Where comparisons and submissions stand in the orders of their list: a page of places, read from indexes.

What is equal in an order stands newest first; of the same moment submissions before comparisons, the last made first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Subquery,
    Table,
    and_,
    literal,
    or_,
    select,
    true,
    tuple_,
    union_all,
)

from qualab.model.names import ComparisonStatus, Verdict
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import (
    STATUSES,
    VERDICTS,
    ListOrder,
    SortBy,
    Status,
    SubmissionStatus,
    decode_cursor,
    decode_text_cursor,
    encode_cursor,
    encode_text_cursor,
)
from qualab.store import codes
from qualab.store.filters import matching, matching_comparisons
from qualab.store.tables import WAITING, comparison, submission

COMPARISON, SUBMISSION = 0, 1
Group = tuple[ColumnElement[bool] | None, ColumnElement[bool] | None]
"""Which comparisons and which submissions; None for none."""
_Behind = tuple[int, ...]
"""When something was created, which of both it is, its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One line of the list."""

    created_at: int
    kind: int
    key: int
    group: int = 0
    """Of those that stand one behind the other in an order by status or verdict."""
    text: str = ""
    """What an order by a text goes by."""

    def cursor(self, order: ListOrder) -> str:
        """Of what stands behind it."""
        place = (self.created_at, self.kind, self.key)
        if order.is_by_text:
            return encode_text_cursor(order.cursor_kind, self.text, *place)
        return encode_cursor(order.cursor_kind, *(place if order.by is SortBy.CREATED else (self.group, *place)))


def read_places(
    connection: Connection, wanted: ComparisonFilter, order: ListOrder, cursor: str | None, limit: int
) -> list[Place]:
    """As many as there are, up to `limit`. Raises InvalidValue for a cursor of another list."""
    if order.is_by_text:
        return _by_text(connection, wanted, order, cursor, limit)
    return list(islice(_by_group(connection, wanted, order, cursor, limit), limit))


def _by_group(
    connection: Connection, wanted: ComparisonFilter, order: ListOrder, cursor: str | None, limit: int
) -> Iterator[Place]:
    """Group behind group, each in the order of time; an order by time is one group."""
    groups, is_falling = _groups(order), order.is_descending if order.by is SortBy.CREATED else True
    first, behind = _begun(cursor, order)
    for number, group in enumerate(groups[first:], start=first):
        found = [
            Place(created_at=created_at, kind=kind, key=key, group=number)
            for kind, query in _queries(wanted, group)
            for created_at, key in connection.execute(_turned(query, kind, behind, limit, is_falling=is_falling))
        ]
        yield from sorted(found, key=lambda place: (place.created_at, place.kind, place.key), reverse=is_falling)
        behind = None


def _begun(cursor: str | None, order: ListOrder) -> tuple[int, _Behind | None]:
    """The group to begin with, and the place in it."""
    if cursor is None:
        return 0, None
    if order.by is SortBy.CREATED:
        return 0, decode_cursor(cursor, order.cursor_kind, 3)
    group, *place = decode_cursor(cursor, order.cursor_kind, 4)
    return max(group, 0), tuple(place)


def _groups(order: ListOrder) -> Sequence[Group]:
    """One behind the other."""
    if order.by is SortBy.CREATED:
        return [(true(), true())]
    found = list(map(_of_statuses, STATUSES)) if order.by is SortBy.STATUS else list(map(_of_verdict, VERDICTS))
    return found[::-1] if order.is_descending else found


def _of_statuses(statuses: tuple[Status, ...]) -> Group:
    of_comparisons = [codes.COMPARISON_STATUS.of[one] for one in statuses if isinstance(one, ComparisonStatus)]
    of_submissions = [codes.SUBMISSION.of[one] for one in statuses if isinstance(one, SubmissionStatus)]
    return (
        comparison.c.status == of_comparisons[0] if of_comparisons else None,
        submission.c.status == of_submissions[0] if of_submissions else None,
    )


def _of_verdict(verdict: Verdict | None) -> Group:
    if verdict is None:
        return comparison.c.verdict.is_(None), true()
    return comparison.c.verdict == codes.VERDICT.of[verdict], None


def _queries(wanted: ComparisonFilter, group: Group) -> Iterator[tuple[int, Select[Any]]]:
    """Times and keys of the group's comparisons, and of its submissions."""
    of_comparisons, of_submissions = group
    if of_comparisons is not None:
        query = select(comparison.c.created_at, comparison.c.key)
        yield COMPARISON, query.where(*matching_comparisons(wanted), of_comparisons)
    if of_submissions is not None and wanted.verdict is None:
        query = select(submission.c.created_at, submission.c.key)
        yield SUBMISSION, query.where(WAITING, *matching(wanted, submission, codes.SUBMISSION.of), of_submissions)


def _turned(query: Select[Any], kind: int, behind: _Behind | None, limit: int, *, is_falling: bool) -> Select[Any]:
    """The first of them behind a place, along the index of time."""
    table = submission if kind == SUBMISSION else comparison
    place = (table.c.created_at, table.c.key)
    query = query.order_by(*(column.desc() if is_falling else column for column in place)).limit(limit)
    return query if behind is None else query.where(_stands_behind(table, kind, behind, is_falling=is_falling))


def _stands_behind(table: Table, kind: int, behind: _Behind, *, is_falling: bool) -> ColumnElement[bool]:
    created_at, kind_behind, key = behind
    c = table.c
    if kind == kind_behind:
        place, known = tuple_(c.created_at, c.key), tuple_(created_at, key)
        return place < known if is_falling else place > known
    if is_falling:
        return c.created_at <= created_at if kind < kind_behind else c.created_at < created_at
    return c.created_at >= created_at if kind > kind_behind else c.created_at > created_at


def _by_text(
    connection: Connection, wanted: ComparisonFilter, order: ListOrder, cursor: str | None, limit: int
) -> list[Place]:
    """Merged by the database, whose order of texts is its own."""
    behind = None if cursor is None else decode_text_cursor(cursor, order.cursor_kind, 3)
    parts = [_texts(query, kind, order, behind, limit) for kind, query in _queries(wanted, (true(), true()))]
    all_of_them = union_all(*(select(part) for part in parts)).subquery()
    c = all_of_them.c
    falling = (c.created_at.desc(), c.kind.desc(), c.key.desc())
    query = select(all_of_them).order_by(c.text.desc() if order.is_descending else c.text, *falling).limit(limit)
    return [Place(**row._mapping) for row in connection.execute(query)]


def _texts(query: Select[Any], kind: int, order: ListOrder, behind: tuple[str, _Behind] | None, limit: int) -> Subquery:
    table = submission if kind == SUBMISSION else comparison
    text, c = table.c[order.by.value], table.c
    query = query.add_columns(literal(kind).label("kind"), text.label("text"))
    query = query.order_by(text.desc() if order.is_descending else text, c.created_at.desc(), c.key.desc()).limit(limit)
    if behind is not None:
        known, place = behind
        same = and_(text == known, _stands_behind(table, kind, place, is_falling=True))
        is_begun, is_passed = (text <= known, text < known) if order.is_descending else (text >= known, text > known)
        # the first follows from the second, and lets the index begin there
        query = query.where(is_begun, or_(is_passed, same))
    return query.subquery()

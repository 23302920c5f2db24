"""Lists of comparisons, and of submissions that have not become one, without their plans.

What is equal in an order stands newest first; of the same moment submissions before comparisons, the last made first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal,
    or_,
    select,
    tuple_,
    union_all,
)

from qualab.model.names import ComparisonStatus
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import (
    STATUSES,
    VERDICTS,
    ComparisonSummary,
    ListOrder,
    Page,
    SortBy,
    Submission,
    SubmissionStatus,
    decode_cursor,
    decode_text_cursor,
    encode_cursor,
    encode_text_cursor,
    not_found,
    page_of,
)
from qualab.store.rows import look_of, matching, submission_of
from qualab.store.tables import UtcTime, comparison, look, signoff, submission

COMPARISON, SUBMISSION = 0, 1
TABLES = {COMPARISON: comparison, SUBMISSION: submission}
WAITING = submission.c.is_planned.is_(False)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_C = comparison.c
_SUMMARIES = select(
    _C.key,
    _C.id,
    _C.status,
    _C.verdict,
    _C.label,
    _C.model,
    _C.suite,
    _C.plan_hash,
    _C.n_items,
    _C.created_at,
    _C.started_at,
    _C.finished_at,
    _C.stop_reason,
    exists().where(signoff.c.comparison_key == _C.key).label("is_signed_off"),
    select(look.c.body)
    .where(look.c.comparison_key == _C.key)
    .order_by(look.c.number.desc())
    .limit(1)
    .scalar_subquery()
    .label("last_look"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one line of the list stands."""

    rank: int | str
    """What the order goes by: a text, a number for status or verdict, 0 for the time alone."""
    created_at: datetime
    kind: int
    key: int

    def cursor(self, order: ListOrder) -> str:
        """The cursor of what stands behind it."""
        place = ((self.created_at - _EPOCH) // timedelta(microseconds=1), self.kind, self.key)
        if isinstance(self.rank, str):
            return encode_text_cursor(order.cursor_kind, self.rank, *place)
        return encode_cursor(order.cursor_kind, *(place if order.by is SortBy.CREATED else (self.rank, *place)))

    @classmethod
    def behind(cls, cursor: str, order: ListOrder) -> Place:
        """The place that a cursor was made of. Raises InvalidValue for a cursor of another list."""
        rank: int | str = 0
        if order.is_by_text:
            rank, (created_us, kind, key) = decode_text_cursor(cursor, order.cursor_kind, 3)
        elif order.by is SortBy.CREATED:
            created_us, kind, key = decode_cursor(cursor, order.cursor_kind, 3)
        else:
            rank, created_us, kind, key = decode_cursor(cursor, order.cursor_kind, 4)
        try:
            created_at = _EPOCH + timedelta(microseconds=created_us)
        except OverflowError:  # a place beyond all times
            created_at = datetime.min.replace(tzinfo=UTC) if created_us < 0 else datetime.max.replace(tzinfo=UTC)
        return cls(rank=rank, created_at=created_at, kind=kind, key=key)


def read_page(
    connection: Connection, wanted: ComparisonFilter, order: ListOrder, cursor: str | None
) -> Page[ComparisonSummary]:
    """A page of `wanted.limit`. Raises InvalidValue for a cursor of another list."""
    limit = max(wanted.limit, 1)
    behind = None if cursor is None else Place.behind(cursor, order)
    kinds = [COMPARISON] if wanted.verdict is not None else [COMPARISON, SUBMISSION]
    parts = [_places(kind, wanted, order, behind, limit + 1).subquery() for kind in kinds]
    places = union_all(*(select(part) for part in parts)).subquery()
    c = places.c
    query = select(places).order_by(*_in_order(order, c.rank, c.created_at, c.kind, c.key)).limit(limit + 1)
    rows = [Place(**row._mapping) for row in connection.execute(query)]
    page = page_of(rows, limit, lambda place: place.cursor(order))
    summaries = _summaries_at(connection, page.entries)
    entries = (summaries.get((place.kind, place.key)) for place in page.entries)
    return Page(entries=tuple(entry for entry in entries if entry is not None), next_cursor=page.next_cursor)


def _places(kind: int, wanted: ComparisonFilter, order: ListOrder, behind: Place | None, limit: int) -> Select[Any]:
    """The first places of comparisons, or of submissions, behind another."""
    table, rank, number = TABLES[kind], _rank(kind, order), literal(kind, Integer).label("kind")
    query = select(rank.label("rank"), table.c.created_at, number, table.c.key).where(*matching(wanted, table))
    if kind == SUBMISSION:
        query = query.where(WAITING)
    if behind is not None:
        query = query.where(_stands_behind(rank, kind, order, behind))
    return query.order_by(*_in_order(order, rank, table.c.created_at, table.c.key)).limit(limit)


def _in_order(order: ListOrder, rank: Any, *time: Any) -> list[Any]:
    if order.by is SortBy.CREATED:
        return [column.desc() for column in time] if order.is_descending else list(time)
    return [rank.desc() if order.is_descending else rank, *(column.desc() for column in time)]


def _rank(kind: int, order: ListOrder) -> Any:
    """What a row is ordered by before its time."""
    columns = TABLES[kind].c
    if order.is_by_text:
        return columns[order.by.value]
    if order.by is SortBy.STATUS:
        vocabulary = ComparisonStatus if kind == COMPARISON else SubmissionStatus
        ranks = {status: n for n, group in enumerate(STATUSES) for status in group if isinstance(status, vocabulary)}
        return case(*((columns.status == status, n) for status, n in ranks.items()), else_=len(STATUSES))
    if order.by is SortBy.VERDICT and kind == COMPARISON:
        ranked = [(columns.verdict == verdict, n) for n, verdict in enumerate(VERDICTS) if verdict is not None]
        return case(*ranked, else_=VERDICTS.index(None))
    return literal(VERDICTS.index(None) if order.by is SortBy.VERDICT else 0, Integer)


def _stands_behind(rank: Any, kind: int, order: ListOrder, behind: Place) -> ColumnElement[bool]:
    c = TABLES[kind].c
    falls = order.is_descending if order.by is SortBy.CREATED else True
    created_at = literal(behind.created_at, UtcTime)
    if kind == behind.kind:
        here, there = tuple_(c.created_at, c.key), tuple_(created_at, literal(behind.key))
        later: ColumnElement[bool] = here < there if falls else here > there
    elif falls:
        later = c.created_at <= created_at if kind < behind.kind else c.created_at < created_at
    else:
        later = c.created_at >= created_at if kind > behind.kind else c.created_at > created_at
    if order.by is SortBy.CREATED:
        return later
    # the first follows from the second, and lets an index begin there
    begun, passed = (
        (rank <= behind.rank, rank < behind.rank) if order.is_descending else (rank >= behind.rank, rank > behind.rank)
    )
    return and_(begun, or_(passed, later))


def _summaries_at(connection: Connection, places: Sequence[Place]) -> dict[tuple[int, int], ComparisonSummary]:
    """By kind and key."""
    keys = {kind: [place.key for place in places if place.kind == kind] for kind in TABLES}
    planned = _read_summaries(connection, _SUMMARIES.where(_C.key.in_(keys[COMPARISON])))
    waiting = connection.execute(select(submission).where(submission.c.key.in_(keys[SUBMISSION])))
    return {
        **{(COMPARISON, key): summary for key, summary in planned.items()},
        **{(SUBMISSION, row.key): submission_of(row).summary() for row in waiting},
    }


def read_abouts(
    connection: Connection, comparison_ids: Sequence[str]
) -> dict[str, tuple[ComparisonSummary, Submission | None]]:
    """Summaries and submissions by id, without those that are not there."""
    rows = connection.execute(select(submission).where(submission.c.id.in_(comparison_ids)))
    submitted = {row.id: submission_of(row) for row in rows}
    planned = _read_summaries(connection, _SUMMARIES.where(_C.id.in_(comparison_ids))).values()
    waiting = {id_: (sent.summary(), sent) for id_, sent in submitted.items()}
    return {**waiting, **{summary.id: (summary, submitted.get(summary.id)) for summary in planned}}


_WANTED = select(bindparam("wanted", type_=Text).label("id")).subquery("wanted")
_ABOUT = select(
    *_SUMMARIES.selected_columns, *(column.label(f"sent_{column.name}") for column in submission.c)
).select_from(
    _WANTED.outerjoin(submission, submission.c.id == _WANTED.c.id).outerjoin(comparison, _C.id == _WANTED.c.id)
)


def read_about(connection: Connection, comparison_id: str) -> tuple[ComparisonSummary, Submission | None]:
    """Summary and submission, in one statement. Raises ComparisonNotFound."""
    row = connection.execute(_ABOUT, {"wanted": comparison_id}).one()
    values = {name: value for name, value in row._mapping.items() if not name.startswith("sent_")}
    sent = None
    if row.sent_key is not None:
        sent = Submission(**{name: getattr(row, f"sent_{name}") for name in Submission.__dataclass_fields__})
    if row.key is not None:
        return _summary_of(values), sent
    if sent is None:
        raise not_found(comparison_id)
    return sent.summary(), sent


def count_statuses(connection: Connection) -> Counter[str]:
    """How many comparisons there are by status, and submissions that have not become one by theirs."""
    counts: Counter[str] = Counter()
    waiting = select(submission.c.status, func.count()).where(WAITING).group_by(submission.c.status)
    for query in (select(_C.status, func.count()).group_by(_C.status), waiting):
        for status, n in connection.execute(query):
            counts[status.value] += n
    return counts


def _read_summaries(connection: Connection, query: Select[Any]) -> dict[int, ComparisonSummary]:
    """By key."""
    return {row.key: _summary_of(row._mapping) for row in connection.execute(query)}


def _summary_of(values: Mapping[Any, Any]) -> ComparisonSummary:
    own = {name: value for name, value in values.items() if name not in ("key", "last_look")}
    last = look_of(values["last_look"]) if values["last_look"] else None
    asked = last.ended_at(values["n_items"]) if last else None
    return ComparisonSummary(**own | {"is_signed_off": bool(values["is_signed_off"]), "n_items_asked": asked})

"""Lists of comparisons without their plans, page by page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, exists, func, literal, or_, select, tuple_

from qualab.model.comparison import Look
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import ComparisonSummary, ListOrder, Page, decode_cursor, encode_cursor, not_found, page_of
from qualab.store.rows import conditions_of, look_of, value_of
from qualab.store.tables import UtcTime, comparison, look, signoff

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_C = comparison.c
_SUMMARIES: Select[Any] = select(
    *(_C[name] for name in ("key", "verdict_rank")),
    *(_C[name] for name in ComparisonSummary.__dataclass_fields__ if name in _C),
    exists().where(signoff.c.comparison_key == _C.key).label("is_signed_off"),
)
_RANKS: dict[ListOrder, Any] = {ListOrder.LABEL: _C.label, ListOrder.VERDICT: _C.verdict_rank}
"""The column that an order sorts by before the time."""


def read_page(
    connection: Connection, wanted: ComparisonFilter, order: ListOrder, cursor: str | None
) -> Page[ComparisonSummary]:
    """A page of `wanted.limit`. Raises InvalidValue for a cursor of another list."""
    limit, rank = max(wanted.limit, 1), _RANKS.get(order)
    query = _SUMMARIES.where(*conditions_of(wanted)).limit(limit + 1)
    query = query.order_by(*([] if rank is None else [rank]), _C.created_at.desc(), _C.key.desc())
    if cursor is not None:
        query = query.where(_is_behind(cursor, order, rank))
    name = f"comparisons {order}"

    def cursor_of(row: Row[Any]) -> str:
        own = [] if rank is None else [row._mapping[rank.name]]
        return encode_cursor(name, *own, (row.created_at - _EPOCH) // timedelta(microseconds=1), row.key)

    page = page_of(connection.execute(query).all(), limit, cursor_of)
    return Page(entries=tuple(_summaries_of(connection, page.entries)), next_cursor=page.next_cursor)


def _is_behind(cursor: str, order: ListOrder, rank: Any) -> ColumnElement[bool]:
    kinds = [] if rank is None else [str if order is ListOrder.LABEL else int]
    *own, created_us, key = decode_cursor(cursor, f"comparisons {order}", *kinds, int, int)
    try:
        created_at = _EPOCH + timedelta(microseconds=created_us)
    except OverflowError:  # a place beyond all times
        created_at = (datetime.min if created_us < 0 else datetime.max).replace(tzinfo=UTC)
    later: ColumnElement[bool] = tuple_(_C.created_at, _C.key) < tuple_(literal(created_at, UtcTime), literal(key))
    # the first condition follows from the second, and lets an index begin there
    return later if rank is None else (rank >= own[0]) & or_(rank > own[0], later)


def read_summaries(connection: Connection, comparison_ids: Sequence[str]) -> dict[str, ComparisonSummary]:
    """By id, without those that are not there."""
    rows = connection.execute(_SUMMARIES.where(_C.id.in_(comparison_ids))).all()
    return {summary.id: summary for summary in _summaries_of(connection, rows)}


def read_summary(connection: Connection, comparison_id: str) -> ComparisonSummary:
    """Raises ComparisonNotFound."""
    summaries = read_summaries(connection, [comparison_id])
    if comparison_id not in summaries:
        raise not_found(comparison_id)
    return summaries[comparison_id]


def count_statuses(connection: Connection) -> Counter[str]:
    """Count comparisons by status."""
    rows = connection.execute(select(_C.status, func.count()).group_by(_C.status))
    return Counter({status.value: n for status, n in rows})


def _summaries_of(connection: Connection, rows: Sequence[Row[Any]]) -> list[ComparisonSummary]:
    looks = select(look.c.comparison_key, look.c.body).where(look.c.comparison_key.in_([row.key for row in rows]))
    last: dict[int, Look] = {key: look_of(body) for key, body in connection.execute(looks.order_by(look.c.number))}
    return [
        value_of(
            ComparisonSummary,
            row,
            is_signed_off=bool(row.is_signed_off),
            n_items_asked=last[row.key].ended_at(row.n_items) if row.key in last else None,
        )
        for row in rows
    ]

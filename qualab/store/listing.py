"""Lists of comparisons and submissions, without their plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Row, Select, exists, func, select

from qualab.model.comparison import Look
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import ComparisonSummary, ListOrder, Page, Submission, not_found, page_of
from qualab.store import codes
from qualab.store.places import COMPARISON, SUBMISSION, Place, read_places
from qualab.store.records import read_looks_of
from qualab.store.submissions import read_submission, submission_of
from qualab.store.tables import WAITING, comparison, signoff, submission
from qualab.store.times import from_us, from_us_or_none

_C = comparison.c


@cache
def _summaries() -> Select[Any]:
    return select(
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
    )


def read_page(
    connection: Connection, wanted: ComparisonFilter, order: ListOrder, cursor: str | None
) -> Page[ComparisonSummary]:
    """Raises InvalidValue for a cursor of another list."""
    limit = max(wanted.limit, 1)
    places = page_of(
        read_places(connection, wanted, order, cursor, limit + 1), limit, lambda place: place.cursor(order)
    )
    found = _summaries_at(connection, places.entries)
    entries = (found.get((place.kind, place.key)) for place in places.entries)
    return Page(entries=tuple(one for one in entries if one is not None), next_cursor=places.next_cursor)


def _summaries_at(connection: Connection, places: Sequence[Place]) -> dict[tuple[int, int], ComparisonSummary]:
    """By kind and key."""
    keys = {kind: [place.key for place in places if place.kind == kind] for kind in (COMPARISON, SUBMISSION)}
    found: dict[tuple[int, int], ComparisonSummary] = {}
    if keys[COMPARISON]:
        rows = connection.execute(_summaries().where(_C.key.in_(keys[COMPARISON]))).all()
        found = {(COMPARISON, key): one for key, one in _summaries_of(connection, rows).items()}
    if keys[SUBMISSION]:
        for row in connection.execute(select(submission).where(submission.c.key.in_(keys[SUBMISSION]))):
            found[SUBMISSION, row.key] = submission_of(row).summary()
    return found


def read_summary(connection: Connection, comparison_id: str) -> ComparisonSummary:
    """Of a comparison or a submission. Raises ComparisonNotFound."""
    row = connection.execute(_summaries().where(_C.id == comparison_id)).one_or_none()
    if row is not None:
        return _summaries_of(connection, [row])[row.key]
    asked = connection.execute(select(submission).where(submission.c.id == comparison_id)).one_or_none()
    if asked is None:
        raise not_found(comparison_id)
    return submission_of(asked).summary()


def read_about(connection: Connection, comparison_id: str) -> tuple[ComparisonSummary, Submission | None]:
    """Summary and submission. Raises ComparisonNotFound."""
    return read_summary(connection, comparison_id), read_submission(connection, comparison_id)


def read_abouts(
    connection: Connection, comparison_ids: Sequence[str]
) -> dict[str, tuple[ComparisonSummary, Submission | None]]:
    """Summaries and submissions by id, without those that are not there."""
    asked = connection.execute(select(submission).where(submission.c.id.in_(comparison_ids)))
    sent = {one.id: one for one in map(submission_of, asked)}
    rows = connection.execute(_summaries().where(_C.id.in_(comparison_ids))).all()
    planned = _summaries_of(connection, rows).values()
    waiting = {one.id: (one.summary(), one) for one in sent.values()}
    return {**waiting, **{one.id: (one, sent.get(one.id)) for one in planned}}


def count_statuses(connection: Connection) -> Counter[str]:
    """How many comparisons there are by status, and submissions that have not become one by theirs."""
    found: Counter[str] = Counter()
    for status, n in connection.execute(select(_C.status, func.count()).group_by(_C.status)):
        found[codes.COMPARISON_STATUS.name[status].value] += n
    waiting = select(submission.c.status, func.count()).where(WAITING).group_by(submission.c.status)
    for status, n in connection.execute(waiting):
        found[codes.SUBMISSION.name[status].value] += n
    return found


def _summaries_of(connection: Connection, rows: Sequence[Row[Any]]) -> dict[int, ComparisonSummary]:
    """By key."""
    last = {key: looks[-1] for key, looks in read_looks_of(connection, [row.key for row in rows]).items()}
    return {row.key: _summary_of(row, last.get(row.key)) for row in rows}


def _summary_of(row: Row[Any], last: Look | None) -> ComparisonSummary:
    return ComparisonSummary(
        id=row.id,
        status=codes.COMPARISON_STATUS.name[row.status],
        verdict=None if row.verdict is None else codes.VERDICT.name[row.verdict],
        label=row.label,
        model=row.model,
        suite=row.suite,
        plan_hash=row.plan_hash,
        n_items=row.n_items,
        created_at=from_us(row.created_at),
        started_at=from_us_or_none(row.started_at),
        finished_at=from_us_or_none(row.finished_at),
        stop_reason=row.stop_reason,
        is_signed_off=bool(row.is_signed_off),
        n_items_asked=last.ended_at(row.n_items) if last else None,
    )

"""Lists of comparisons and submissions, without their plans.

Both are in one order: the newest first; of the same moment submissions before comparisons, each the last made first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Row, Select, Table, exists, func, select, tuple_

from qualab.adapters.store import codes
from qualab.adapters.store.filters import matching, matching_comparisons
from qualab.adapters.store.submissions import read_submission, submission_of
from qualab.adapters.store.tables import WAITING, comparison, signoff, submission
from qualab.adapters.store.times import from_us, from_us_or_none
from qualab.domain.lookup import not_found
from qualab.domain.paging import Page, decode_cursor, encode_cursor, page_of
from qualab.domain.submissions import ComparisonSummary, Submission
from qualab.ports import ComparisonFilter

_C = comparison.c
_COMPARISON, _SUBMISSION = 0, 1
_Place = tuple[int, int, int]
"""When it was created, which of both it is, its key."""
_Line = tuple[_Place, ComparisonSummary]


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


def read_page(connection: Connection, wanted: ComparisonFilter, cursor: str | None) -> Page[ComparisonSummary]:
    """Raises InvalidValue for a cursor of another list."""
    behind = None if cursor is None else decode_cursor(cursor, "comparisons", 3)
    limit = max(wanted.limit, 1)
    lines = [*_comparisons(connection, wanted, behind, limit), *_submissions(connection, wanted, behind, limit)]
    lines.sort(key=lambda line: line[0], reverse=True)
    page = page_of(lines, limit, lambda line: encode_cursor("comparisons", *line[0]))
    return Page(entries=tuple(summary for _, summary in page.entries), next_cursor=page.next_cursor)


def read_summary(connection: Connection, comparison_id: str) -> ComparisonSummary:
    """Of a comparison or a submission. Raises ComparisonNotFound."""
    row = connection.execute(_summaries().where(_C.id == comparison_id)).one_or_none()
    if row is not None:
        return _summary_of(row)
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
    planned = [_summary_of(row) for row in connection.execute(_summaries().where(_C.id.in_(comparison_ids)))]
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


def _comparisons(
    connection: Connection, wanted: ComparisonFilter, behind: tuple[int, ...] | None, limit: int
) -> Iterator[_Line]:
    query = _summaries().where(*matching_comparisons(wanted))
    for row in connection.execute(_turned(query, comparison, behind, _COMPARISON, limit)):
        yield (row.created_at, _COMPARISON, row.key), _summary_of(row)


def _submissions(
    connection: Connection, wanted: ComparisonFilter, behind: tuple[int, ...] | None, limit: int
) -> Iterable[_Line]:
    if wanted.verdict is not None:
        return
    query = select(submission).where(WAITING, *matching(wanted, submission, codes.SUBMISSION.of))
    for row in connection.execute(_turned(query, submission, behind, _SUBMISSION, limit)):
        yield (row.created_at, _SUBMISSION, row.key), submission_of(row).summary()


def _turned(query: Select[Any], table: Table, behind: tuple[int, ...] | None, kind: int, limit: int) -> Select[Any]:
    """A page of one kind, and one line more."""
    c = table.c
    query = query.order_by(c.created_at.desc(), c.key.desc()).limit(limit + 1)
    if behind is None:
        return query
    created_at, kind_behind, key = behind
    if kind == kind_behind:
        return query.where(tuple_(c.created_at, c.key) < tuple_(created_at, key))
    return query.where(c.created_at <= created_at if kind < kind_behind else c.created_at < created_at)


def _summary_of(row: Row[Any]) -> ComparisonSummary:
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
    )

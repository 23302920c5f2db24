"""What became of items in both arms: written at once, read in pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import Boolean, ColumnElement, Connection, Row, delete, exists, literal_column, not_, select, tuple_
from sqlalchemy.exc import IntegrityError

from qualab.adapters.store import codes
from qualab.adapters.store.bulk import COPIED, chunks, copy_rows
from qualab.adapters.store.known import Known, take_turn
from qualab.adapters.store.phrases import Phrases, digest_of
from qualab.adapters.store.tables import FLIPPED, outcome, phrase
from qualab.domain.lookup import impossible_outcome
from qualab.domain.outcomes import Change, Outcome, OutcomeFilter
from qualab.domain.paging import Page, decode_cursor, encode_cursor, page_of

_O = outcome.c
_FLIPPED = literal_column(FLIPPED.text, Boolean)
_MISSING = _O.change == codes.CHANGE.of[Change.UNKNOWN]


def replace_outcomes(
    connection: Connection, known: Known, outcomes: Iterable[Outcome], phrases: Phrases
) -> dict[str, int]:
    """Stores outcomes in place of the former ones and returns the ids of their tasks. Raises StoreError."""
    take_turn(connection, known.key)
    drop_outcomes(connection, known.key)
    tasks: dict[str, int] = {}
    for chunk in chunks(outcomes, COPIED):
        tasks |= phrases.ids(connection, {value.task for value in chunk} - tasks.keys())
        if not all(value.position in known.positions for value in chunk):
            raise impossible_outcome()
        try:
            copy_rows(connection, outcome, (_row_of(known.key, value, tasks) for value in chunk))
        except IntegrityError as exc:
            raise impossible_outcome() from exc
    return tasks


def drop_outcomes(connection: Connection, key: int) -> None:
    """All of a comparison's."""
    connection.execute(delete(outcome).where(_O.comparison_key == key))


def any_outcomes(connection: Connection, key: int) -> bool:
    """Whether a comparison has any."""
    return bool(connection.scalar(select(exists().where(_O.comparison_key == key))))


def read_outcomes(
    connection: Connection,
    key: int,
    wanted: OutcomeFilter,
    *,
    cursor: str | None,
    limit: int,
    is_backward: bool = False,
) -> Page[Outcome]:
    """A page in order of (position, repeat), or against it. Raises InvalidValue for a cursor of another list."""
    limit = max(limit, 1)
    order = [column.desc() if is_backward else column for column in (_O.position, _O.repeat)]
    query = (
        select(outcome, phrase.c.text.label("task_name"))
        .join(phrase, phrase.c.id == _O.task)
        .where(_O.comparison_key == key, *_conditions(wanted))
        .order_by(*order)
        .limit(limit + 1)
    )
    if cursor is not None:
        place, behind = tuple_(_O.position, _O.repeat), tuple_(*decode_cursor(cursor, "items", 2))
        query = query.where(place < behind if is_backward else place > behind)
    found = [_outcome_of(row) for row in connection.execute(query)]
    return page_of(found, limit, lambda value: encode_cursor("items", value.position, value.repeat))


def _conditions(wanted: OutcomeFilter) -> Iterator[ColumnElement[bool]]:
    if wanted.task is not None:
        yield _O.task == select(phrase.c.id).where(phrase.c.digest == digest_of(wanted.task)).scalar_subquery()
    if wanted.flipped is not None:
        yield _FLIPPED if wanted.flipped else not_(_FLIPPED)
    if wanted.change is not None:
        yield _O.change == codes.CHANGE.of[wanted.change]
    if wanted.missing is not None:
        yield _MISSING if wanted.missing else not_(_MISSING)
    if wanted.different_text is not None:
        yield _O.different_text if wanted.different_text else not_(_O.different_text)
    if wanted.min_length is not None:
        yield _O.length >= wanted.min_length
    if wanted.max_length is not None:
        yield _O.length <= wanted.max_length


def _row_of(key: int, value: Outcome, tasks: Mapping[str, int]) -> tuple[Any, ...]:
    """In the order of the table's columns."""
    baseline, candidate = value.baseline, value.candidate
    if (baseline is not None and math.isnan(baseline)) or (candidate is not None and math.isnan(candidate)):
        raise impossible_outcome()
    return (
        key,
        value.position,
        value.repeat,
        codes.KIND.of[value.kind],
        tasks[value.task],
        value.doc_id,
        value.length,
        baseline,
        candidate,
        codes.CHANGE.of[value.change],
        value.different_text,
    )


def _outcome_of(row: Row[Any]) -> Outcome:
    return Outcome(
        position=row.position,
        repeat=row.repeat,
        task=row.task_name.decode(),
        doc_id=row.doc_id,
        kind=codes.KIND.name[row.kind],
        change=codes.CHANGE.name[row.change],
        baseline=row.baseline,
        candidate=row.candidate,
        different_text=row.different_text,
        length=row.length,
    )

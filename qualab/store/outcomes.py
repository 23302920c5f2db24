"""What became of items in both arms: written at once, read in pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Select,
    bindparam,
    delete,
    exists,
    literal_column,
    not_,
    select,
    tuple_,
)
from sqlalchemy.exc import IntegrityError

from qualab.model.items import Change, Outcome, OutcomeFilter
from qualab.model.registry import Page, decode_cursor, encode_cursor, impossible_outcome, page_of
from qualab.store import codes
from qualab.store.bulk import COPIED, chunks, copy_rows
from qualab.store.known import Known, take_turn
from qualab.store.phrases import Phrases, digest_of
from qualab.store.tables import FLIPPED, outcome, phrase

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
    place = {} if cursor is None else dict(zip(("position", "repeat"), decode_cursor(cursor, "items", 2), strict=True))
    query = _page_query(wanted, is_after=bool(place), is_backward=is_backward)
    rows = connection.execute(query, {"key": key, "most": limit + 1, **place}).all()
    return page_of(
        [_outcome_of(row) for row in rows],
        limit,
        lambda value: encode_cursor("items", value.position, value.repeat),
    )


@lru_cache(maxsize=64)
def _page_query(wanted: OutcomeFilter, *, is_after: bool, is_backward: bool) -> Select[Any]:
    """Of the parameters key, most, and after a place position and repeat. Making it costs more than running it."""
    place = (_O.position, _O.repeat)
    query = (
        select(
            _O.position,
            _O.repeat,
            phrase.c.text,
            _O.doc_id,
            _O.kind,
            _O.change,
            _O.baseline,
            _O.candidate,
            _O.different_text,
            _O.length,
        )
        .join(phrase, phrase.c.id == _O.task)
        .where(_O.comparison_key == bindparam("key"), *_conditions(wanted))
        .order_by(*(column.desc() if is_backward else column for column in place))
        .limit(bindparam("most"))
    )
    if not is_after:
        return query
    here, behind = tuple_(*place), tuple_(bindparam("position"), bindparam("repeat"))
    return query.where(here < behind if is_backward else here > behind)


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


def _outcome_of(row: Sequence[Any]) -> Outcome:
    position, repeat, task, doc_id, kind, change, baseline, candidate, different_text, length = row
    return Outcome(
        position=position,
        repeat=repeat,
        task=task.decode(),
        doc_id=doc_id,
        kind=codes.KIND.name[kind],
        change=codes.CHANGE.name[change],
        baseline=baseline,
        candidate=candidate,
        different_text=different_text,
        length=length,
    )

"""Lists of comparisons and outcomes, tokens, the record of changes, sign-offs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import sqlalchemy as sa

from qualab.errors import InvalidValue, ItemNotFound, StoreError
from qualab.model.canonical import adapter, plain
from qualab.model.comparison import SignOff
from qualab.model.items import Answer, Change, Item, Outcome, OutcomeFilter, Score
from qualab.model.ports import ComparisonFilter
from qualab.model.reason import Reason
from qualab.model.registry import (
    NEWEST_FIRST,
    AuditEntry,
    ComparisonSummary,
    ListOrder,
    Page,
    Token,
    decode_cursor,
    encode_cursor,
    not_found,
    page_of,
    signed_off,
)
from qualab.store.banks import check_not_banked
from qualab.store.engine import Sessions
from qualab.store.queue import changed, check_deletable
from qualab.store.rows import (
    SCORE_ORDER,
    SCORES,
    add_entry,
    answer_of,
    append,
    conditions_of,
    fields_of,
    insert_new,
    item_of,
    look_of,
    score_of,
    value_of,
)
from qualab.store.tables import UtcTime, answer, audit, comparison, item, look, outcome, score, signoff, token

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_POSITIONS = range(2**31)
_C, _O = comparison.c, outcome.c
_LAST_LOOK = sa.select(look.c.body).where(look.c.comparison_key == _C.key).order_by(look.c.number.desc()).limit(1)
_SUMMARIES: sa.Select[Any] = sa.select(
    *(_C[name] for name in ("key", "verdict_rank")),
    *(_C[name] for name in ComparisonSummary.__dataclass_fields__ if name in _C),
    sa.exists().where(signoff.c.comparison_key == _C.key).label("is_signed_off"),
    _LAST_LOOK.scalar_subquery().label("last_look"),
)
_BY_ID = _C.id == sa.bindparam("id")
# made once: SQLAlchemy finds how it compiled them by their identity
_SUMMARY = _SUMMARIES.where(_BY_ID)
_SUMMARIES_BY_ID = _SUMMARIES.where(_C.id.in_(sa.bindparam("ids", expanding=True)))
_RANKS: dict[ListOrder, Any] = {ListOrder.LABEL: _C.label, ListOrder.VERDICT: _C.verdict_rank}
"""The column that an order sorts by before the time."""


class Registry(Sessions):
    """Each method is one transaction, its audit entry in it; threads may share it. Ids are whole ones."""

    # comparisons

    def page(
        self, filters: ComparisonFilter, *, order: ListOrder = NEWEST_FIRST, cursor: str | None = None
    ) -> Page[ComparisonSummary]:
        """Read a page of `filters.limit`, at least one. Raises InvalidValue for a cursor of another list."""
        limit, rank, name = max(filters.limit, 1), _RANKS.get(order), f"comparisons {order}"
        query = _SUMMARIES.where(*conditions_of(filters)).limit(limit + 1)
        query = query.order_by(*([] if rank is None else [rank]), _C.created_at.desc(), _C.key.desc())
        if cursor is not None:
            query = query.where(_is_behind(cursor, name, order, rank))
        with self.reading() as connection:
            rows = connection.execute(query).all()

        def cursor_of(row: sa.Row[Any]) -> str:
            own = [] if rank is None else [row._mapping[rank.name]]
            return encode_cursor(name, *own, (row.created_at - _EPOCH) // timedelta(microseconds=1), row.key)

        return page_of(rows, limit, cursor_of, _summary_of)

    def summary(self, comparison_id: str) -> ComparisonSummary:
        """Read a comparison, without its request. Raises ComparisonNotFound."""
        with self.reading() as connection:
            return _read_summary(connection, comparison_id)

    def summaries(self, ids: Sequence[str]) -> Mapping[str, ComparisonSummary]:
        """Read many comparisons at once; ids that none has are left out."""
        with self.reading() as connection:
            return {row.id: _summary_of(row) for row in connection.execute(_SUMMARIES_BY_ID, {"ids": ids})}

    def counts(self) -> Mapping[str, int]:
        """Count comparisons by status; a status that none has is left out."""
        with self.reading() as connection:
            rows = connection.execute(sa.select(_C.status, sa.func.count()).group_by(_C.status))
            return {status.value: n for status, n in rows}

    def delete(
        self, comparison_id: str, *, entry: AuditEntry, stale_after_s: float, version: int | None = None
    ) -> None:
        """Delete a comparison with everything of it.

        Raises ComparisonNotFound; VersionConflict where it is not at `version` any more; ComparisonSignedOff;
        ComparisonBanked; ComparisonBusy for one that waits for a worker, or that a living runner has.
        """
        with self.writing() as connection:
            # nobody changes it until the transaction ends
            connection.execute(sa.select(_C.key).where(_C.id == comparison_id).with_for_update())
            summary = _read_summary(connection, comparison_id)
            if version is not None and version != summary.version:
                raise changed(comparison_id)
            if summary.is_signed_off:
                raise signed_off(comparison_id)
            check_not_banked(connection, comparison_id)
            check_deletable(connection, comparison_id, now=entry.at, stale_after_s=stale_after_s)
            connection.execute(sa.delete(comparison).where(_C.id == comparison_id))
            add_entry(connection, entry)

    # outcomes and items

    def has_outcomes(self, comparison_id: str) -> bool:
        """Check whether any outcomes are stored. Raises ComparisonNotFound."""
        with self.reading_of(comparison_id) as (connection, key):
            return bool(connection.scalar(sa.select(sa.exists().where(_O.comparison_key == key))))

    def outcomes(
        self,
        comparison_id: str,
        filters: OutcomeFilter,
        *,
        cursor: str | None = None,
        limit: int = 50,
        is_backward: bool = False,
    ) -> Page[Outcome]:
        """Read a page by (position, repeat), or backward. Raises InvalidValue for a cursor of another list."""
        limit, place = max(limit, 1), (_O.position, _O.repeat)
        query = sa.select(outcome).where(*_conditions(filters)).limit(limit + 1)
        query = query.order_by(*(column.desc() if is_backward else column for column in place))
        if cursor is not None:
            here, there = sa.tuple_(*place), sa.tuple_(*decode_cursor(cursor, "items", int, int))
            query = query.where(here < there if is_backward else here > there)
        with self.reading_of(comparison_id) as (connection, key):
            rows = connection.execute(query.where(_O.comparison_key == key)).all()
        convert = partial(value_of, Outcome)
        return page_of(rows, limit, lambda row: encode_cursor("items", row.position, row.repeat), convert)

    def n_outcomes(self, comparison_id: str, filters: OutcomeFilter) -> int:
        """Count the outcomes that match."""
        with self.reading_of(comparison_id) as (connection, key):
            query = sa.select(sa.func.count()).select_from(outcome)
            return connection.scalar(query.where(_O.comparison_key == key, *_conditions(filters))) or 0

    def reruns(self, comparison_id: str, position: int) -> Sequence[Answer]:
        """Read the baseline's answers to an item in the runs of its noise floor."""
        c = answer.c
        with self.reading_of(comparison_id) as (connection, key):
            of_runs = sa.select(answer).where(c.comparison_key == key, c.position == position, c.run > 0)
            return list(map(answer_of, connection.execute(of_runs.order_by(c.run, c.repeat))))

    def pair(self, comparison_id: str, position: int) -> tuple[Item, Sequence[Answer], Sequence[Score]]:
        """Read an item with both arms' answers and scores. Raises ItemNotFound."""
        with self.reading_of(comparison_id) as (connection, key):
            is_item = item.c.comparison_key == key, item.c.position == position
            row = connection.execute(sa.select(item).where(*is_item)).one_or_none() if position in _POSITIONS else None
            if row is None:
                raise ItemNotFound(
                    f"Comparison {comparison_id} has no item at position {position}", hint="Positions count from 0"
                )
            c = answer.c
            of_arms = sa.select(answer).where(c.comparison_key == key, c.position == position, c.run == 0)
            answers = connection.execute(of_arms.order_by(c.arm, c.choice, c.repeat))
            scores = connection.execute(
                SCORES.where(score.c.comparison_key == key, score.c.position == position).order_by(*SCORE_ORDER)
            )
            return item_of(row), list(map(answer_of, answers)), list(map(score_of, scores))

    # tokens, the record of who did what, sign-offs

    def add_token(self, value: Token, *, entry: AuditEntry) -> None:
        """Add a token. Raises StoreError where the id is taken."""
        if len(value.digest) != 32:
            raise StoreError("a token's digest has 32 bytes")
        with self.writing() as connection:
            if not insert_new(connection, token, [fields_of(value)]):
                raise StoreError(f"token {value.id} exists already")
            add_entry(connection, entry)

    def token(self, token_id: str) -> Token | None:
        """Read a token; None where none has this id."""
        with self.reading() as connection:
            return _read_token(connection, token_id)

    def tokens(self) -> Sequence[Token]:
        """List tokens, newest first."""
        with self.reading() as connection:
            return [value_of(Token, row) for row in connection.execute(sa.select(token).order_by(token.c.key.desc()))]

    def revoke_token(self, token_id: str, *, entry: AuditEntry) -> None:
        """Revoke a token from the entry's time on, unless it is revoked already. Raises InvalidValue."""
        living = sa.update(token).where(token.c.id == token_id, token.c.revoked_at.is_(None))
        with self.writing() as connection:
            if connection.execute(living.values(revoked_at=entry.at)).rowcount:
                add_entry(connection, entry)
            elif _read_token(connection, token_id) is None:
                raise InvalidValue(f"There is no token '{token_id}'", hint="`qualab token list` shows what there is")

    def note(self, entry: AuditEntry) -> None:
        """Record an entry that belongs to no other change."""
        with self.writing() as connection:
            add_entry(connection, entry)

    def audit(self, *, cursor: str | None = None, limit: int = 50) -> Page[AuditEntry]:
        """Read a page of entries, newest first. Raises InvalidValue for a cursor of another list."""
        limit = max(limit, 1)
        query = sa.select(audit).order_by(audit.c.key.desc()).limit(limit + 1)
        if cursor is not None:
            query = query.where(audit.c.key < decode_cursor(cursor, "audit", int)[0])
        with self.reading() as connection:
            rows = connection.execute(query).all()
        return page_of(rows, limit, lambda row: encode_cursor("audit", row.key), partial(value_of, AuditEntry))

    def recorded(self, subject: str, action: str) -> Sequence[AuditEntry]:
        """List the entries of one subject and action, oldest first."""
        query = sa.select(audit).where(audit.c.subject == subject, audit.c.action == action).order_by(audit.c.key)
        with self.reading() as connection:
            return [value_of(AuditEntry, row) for row in connection.execute(query)]

    def sign_off(self, value: SignOff, *, entry: AuditEntry) -> None:
        """Add a sign-off. Raises ComparisonNotFound."""
        row = fields_of(value) | {"obstacles": list(map(plain, value.obstacles))}
        del row["comparison_id"]
        with self.writing_to(value.comparison_id) as (connection, key):
            append(connection, signoff, key, row)
            add_entry(connection, entry)

    def signoffs(self, comparison_id: str) -> Sequence[SignOff]:
        """List sign-offs, oldest first."""
        c = signoff.c
        with self.reading_of(comparison_id) as (connection, key):
            rows = connection.execute(sa.select(signoff).where(c.comparison_key == key).order_by(c.number))
            read, own = adapter(tuple[Reason, ...]).validate_python, {"comparison_id": comparison_id}
            return [value_of(SignOff, row, obstacles=read(row.obstacles), **own) for row in rows]


def _read_summary(connection: sa.Connection, comparison_id: str) -> ComparisonSummary:
    row = connection.execute(_SUMMARY, {"id": comparison_id}).one_or_none()
    if row is None:
        raise not_found(comparison_id)
    return _summary_of(row)


def _summary_of(row: sa.Row[Any]) -> ComparisonSummary:
    n_asked = None if row.last_look is None else look_of(row.last_look).ended_at(row.n_items)
    own = {"is_signed_off": bool(row.is_signed_off), "n_items_asked": n_asked, "experiment": None}
    return value_of(ComparisonSummary, row, **own)


def _is_behind(cursor: str, name: str, order: ListOrder, rank: Any) -> sa.ColumnElement[bool]:
    kinds = [] if rank is None else [str if order is ListOrder.LABEL else int]
    *own, created_us, key = decode_cursor(cursor, name, *kinds, int, int)
    try:
        created_at = _EPOCH + timedelta(microseconds=created_us)
    except OverflowError:  # beyond all times
        created_at = (datetime.min if created_us < 0 else datetime.max).replace(tzinfo=UTC)
    later: sa.ColumnElement[bool] = sa.tuple_(_C.created_at, _C.key) < sa.tuple_(
        sa.literal(created_at, UtcTime), sa.literal(key)
    )
    # the first condition follows from the second, and lets an index begin there
    return later if rank is None else (rank >= own[0]) & sa.or_(rank > own[0], later)


def _conditions(filters: OutcomeFilter) -> Iterator[sa.ColumnElement[bool]]:
    conditions: Mapping[str, Callable[[Any], sa.ColumnElement[bool]]] = {
        "task": _O.task.__eq__,
        "flipped": lambda is_in: _change_in(Change.GAIN, Change.LOSS, is_in=is_in),
        "change": _O.change.__eq__,
        "missing": lambda is_in: _change_in(Change.UNKNOWN, is_in=is_in),
        "different_text": _O.different_text.is_,
        "min_length": _O.length.__ge__,
        "max_length": _O.length.__le__,
        "positions": _O.position.in_,
        "text": _has_text,
    }
    for name, condition in conditions.items():
        if (value := getattr(filters, name)) is not None:
            yield condition(value)


def _has_text(text: str) -> sa.ColumnElement[bool]:
    """Match items whose document, right answer or one of both arms' answers holds a text."""
    in_item = sa.or_(*(item.c[name].icontains(text, autoescape=True) for name in ("doc", "target")))
    in_answer = sa.and_(answer.c.run == 0, answer.c.text.icontains(text, autoescape=True))
    tables = ((item, in_item), (answer, in_answer))
    return sa.or_(
        *(
            sa.exists().where(own.c.comparison_key == _O.comparison_key, own.c.position == _O.position, holds)
            for own, holds in tables
        )
    )


def _change_in(*changes: Change, is_in: bool) -> sa.ColumnElement[bool]:
    """Match these changes, or all others: named either way, so that an index serves."""
    condition: sa.ColumnElement[bool] = _O.change.in_([change for change in Change if (change in changes) is is_in])
    return condition


def _read_token(connection: sa.Connection, token_id: str) -> Token | None:
    row = connection.execute(sa.select(token).where(token.c.id == token_id)).one_or_none()
    return None if row is None else value_of(Token, row)

"""The registry over a database: each method of the port is one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    text,
    tuple_,
    update,
)

from qualab.errors import StoreError
from qualab.model.canonical import plain
from qualab.model.comparison import SignOff
from qualab.model.items import Answer, Change, Item, Outcome, OutcomeFilter, Score
from qualab.model.ports import ComparisonFilter
from qualab.model.reason import Reason
from qualab.model.registry import (
    NEWEST_FIRST,
    UNDER_WAY,
    AuditEntry,
    Claim,
    ComparisonSummary,
    HostLease,
    ListOrder,
    Page,
    Submission,
    SubmissionStatus,
    Token,
    busy,
    changed,
    check_let_go,
    check_slots,
    decode_cursor,
    encode_cursor,
    item_not_found,
    key_reused,
    may_lease,
    not_found,
    page_of,
    signed_off,
    taken,
    token_not_found,
    under_way,
    version_conflict,
)
from qualab.store import listing
from qualab.store.engine import Sessions, take_turn
from qualab.store.rows import (
    SCORE_ORDER,
    adapter,
    answer_of,
    fields_of,
    insert_new,
    item_of,
    read_claim,
    score_of,
    submission_of,
    value_of,
)
from qualab.store.runners import may_take
from qualab.store.tables import (
    answer,
    audit,
    comparison,
    host_lease,
    item,
    outcome,
    score,
    signoff,
    submission,
    token,
    worker,
)

FORGOTTEN_AFTER = timedelta(days=1)
"""How long a worker's row stays after the last that was heard of it."""
_LEASES = 7_105_314
"""PostgreSQL's advisory lock that leases are taken under; an arbitrary number. SQLite has one writer anyway."""
_L, _O, _S = host_lease.c, outcome.c, submission.c


class SqlRegistry:
    """The `Registry` in SQLite or PostgreSQL. Threads may share it. A store has one: `SqlStore.registry`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    # lists

    def page(
        self, wanted: ComparisonFilter, *, order: ListOrder = NEWEST_FIRST, cursor: str | None = None
    ) -> Page[ComparisonSummary]:
        """Comparisons, and submissions that have not become one."""
        with self._sessions.reading() as connection:
            return listing.read_page(connection, wanted, order, cursor)

    def summary(self, comparison_id: str) -> ComparisonSummary:
        """Of a comparison or a submission. Raises ComparisonNotFound."""
        return self.about(comparison_id)[0]

    def about(self, comparison_id: str) -> tuple[ComparisonSummary, Submission | None]:
        """Summary and submission, read at once."""
        with self._sessions.reading() as connection:
            return listing.read_about(connection, comparison_id)

    def abouts(self, comparison_ids: Sequence[str]) -> Mapping[str, tuple[ComparisonSummary, Submission | None]]:
        """By id."""
        with self._sessions.reading() as connection:
            return listing.read_abouts(connection, comparison_ids)

    def counts(self) -> Mapping[str, int]:
        """By status."""
        with self._sessions.reading() as connection:
            return listing.count_statuses(connection)

    # submissions

    def submit(
        self, value: Submission, *, entry: AuditEntry, key: str = "", body_hash: str = ""
    ) -> tuple[Submission, bool]:
        """Stores it once for each idempotency key. Raises KeyReused, and StoreError where the id is taken."""
        row = fields_of(value) | {"idempotency_key": key or None, "body_hash": body_hash}
        with self._sessions.writing() as connection:
            if key and (known := _submitted_with(connection, row)) is not None:
                return known, False
            if connection.scalar(select(comparison.c.key).where(comparison.c.id == value.id)) is not None:
                raise taken(value.id)
            if not insert_new(connection, submission, [row]):
                # another request came first meanwhile: with this key, or with this id
                if key and (known := _submitted_with(connection, row)) is not None:
                    return known, False
                raise taken(value.id)
            _add_entry(connection, entry)
            return submission_of(connection.execute(select(submission).where(_S.id == value.id)).one()), True

    def submission(self, comparison_id: str) -> Submission | None:
        """None where it was not submitted."""
        with self._sessions.reading() as connection:
            return _read_submission(connection, comparison_id)

    def submissions(self, *statuses: SubmissionStatus) -> Sequence[Submission]:
        """Those with one of these statuses, oldest first."""
        query = select(submission).where(_S.status.in_(statuses)).order_by(_S.created_at, _S.key)
        with self._sessions.reading() as connection:
            return [submission_of(row) for row in connection.execute(query)]

    def set_submission(
        self,
        comparison_id: str,
        status: SubmissionStatus,
        *,
        entry: AuditEntry | None = None,
        error: Mapping[str, str] | None = None,
        version: int | None = None,
    ) -> Submission:
        """What is stored now. Raises ComparisonNotFound, VersionConflict."""
        with self._sessions.writing() as connection:
            stored = _locked_submission(connection, comparison_id, version)
            takeovers = stored.takeovers if status in UNDER_WAY else 0
            values = {"status": status, "error": dict(error or {}), "takeovers": takeovers}
            if entry is not None:
                _add_entry(connection, entry)
            return _changed_submission(connection, stored, values)

    def take_over(self, comparison_id: str, *, version: int) -> Submission:
        """QUEUED again, and counted where there is no more answer. Raises ComparisonNotFound, VersionConflict."""
        with self._sessions.writing() as connection:
            stored = _locked_submission(connection, comparison_id, version)
            key = select(comparison.c.key).where(comparison.c.id == comparison_id).scalar_subquery()
            count = select(func.count()).select_from(answer).where(answer.c.comparison_key == key)
            answered = connection.execute(count).scalar_one()
            takeovers = stored.takeovers + 1 if answered == stored.answered else 0
            values = {"status": SubmissionStatus.QUEUED, "takeovers": takeovers, "answered": answered}
            return _changed_submission(connection, stored, values)

    def delete(
        self,
        comparison_id: str,
        *,
        entry: AuditEntry,
        stale_after_s: float,
        seen: tuple[ComparisonSummary, Submission | None] | None = None,
    ) -> None:
        """Everything of a comparison, and its submission. Raises ComparisonNotFound, ComparisonSignedOff and so on."""
        with self._sessions.writing() as connection:
            # nobody changes either until the transaction ends
            locked = select(comparison.c.key).where(comparison.c.id == comparison_id).with_for_update()
            key = connection.scalar(locked)
            connection.execute(select(_S.key).where(_S.id == comparison_id).with_for_update())
            if seen is not None and seen != listing.read_about(connection, comparison_id):
                raise changed(comparison_id)
            _check_deletable(connection, comparison_id, key, now=entry.at, stale_after_s=stale_after_s)
            connection.execute(delete(comparison).where(comparison.c.key == key))
            connection.execute(delete(submission).where(_S.id == comparison_id))
            connection.execute(delete(host_lease).where(_L.comparison_id == comparison_id))
            _add_entry(connection, entry)

    # hosts and workers

    def lease_hosts(
        self,
        comparison_id: str,
        slots: Mapping[str, int],
        *,
        runner: str,
        limit: int,
        is_exclusive: bool,
        now: datetime,
        stale_after_s: float,
        reserved: Sequence[HostLease] = (),
    ) -> bool:
        """Takes the right to send to all of these hosts, or to none."""
        check_slots(slots, limit)
        mine = {"comparison_id": comparison_id, "runner": runner, "is_exclusive": is_exclusive, "heartbeat_at": now}
        with self._sessions.writing() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LEASES})
            held = _read_leases(connection, _L.host.in_(list(slots)), _L.comparison_id != comparison_id)
            living = [lease for lease in held if not lease.is_stale(now, stale_after_s)]
            if not may_lease([*living, *reserved], slots, limit=limit, is_exclusive=is_exclusive):
                return False
            stale = [(lease.host, lease.comparison_id) for lease in held if lease not in living]
            connection.execute(
                delete(host_lease).where(
                    or_(_L.comparison_id == comparison_id, tuple_(_L.host, _L.comparison_id).in_(stale))
                )
            )
            if slots:
                connection.execute(
                    insert(host_lease), [{"host": host, "slots": count, **mine} for host, count in slots.items()]
                )
        return True

    def renew_hosts(self, comparison_id: str, *, runner: str, now: datetime) -> bool:
        """Keeps the leases; False where the runner has none."""
        mine = update(host_lease).where(_L.comparison_id == comparison_id, _L.runner == runner)
        with self._sessions.writing() as connection:
            return connection.execute(mine.values(heartbeat_at=now)).rowcount > 0

    def release_hosts(self, comparison_id: str, *, runner: str) -> None:
        """Gives the runner's leases back."""
        with self._sessions.writing() as connection:
            connection.execute(delete(host_lease).where(_L.comparison_id == comparison_id, _L.runner == runner))

    def now(self) -> datetime:
        """The time of the database's machine: a file is on this one."""
        with self._sessions.reading() as connection:
            if connection.dialect.name != "postgresql":
                return datetime.now(UTC)
            moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return moment.astimezone(UTC)

    def see_worker(self, runner: str, *, now: datetime) -> None:
        """Notes that it lives. One that comes sweeps out those that nobody has heard of for long."""
        beat = update(worker).where(worker.c.runner == runner).values(heartbeat_at=now)
        with self._sessions.writing() as connection:
            if connection.execute(beat).rowcount == 0:
                connection.execute(delete(worker).where(worker.c.heartbeat_at < now - FORGOTTEN_AFTER))
                connection.execute(insert(worker), {"runner": runner, "since": now, "heartbeat_at": now})

    def drop_worker(self, runner: str) -> None:
        """It has ended."""
        with self._sessions.writing() as connection:
            connection.execute(delete(worker).where(worker.c.runner == runner))

    def workers(self, *, now: datetime, stale_after_s: float) -> Sequence[str]:
        """Those that live, as far as this machine can tell, the oldest first."""
        query = select(worker).order_by(worker.c.since, worker.c.runner)
        with self._sessions.reading() as connection:
            claims = [Claim(**row._mapping) for row in connection.execute(query)]
        return [
            claim.runner for claim in claims if not may_take(claim, runner="", now=now, stale_after_s=stale_after_s)
        ]

    # outcomes and items

    def has_outcomes(self, comparison_id: str) -> bool:
        """Whether any are stored."""
        with self._sessions.reading_of(comparison_id) as (connection, key):
            return bool(connection.scalar(select(exists().where(_O.comparison_key == key))))

    def outcomes(
        self,
        comparison_id: str,
        wanted: OutcomeFilter,
        *,
        cursor: str | None = None,
        limit: int = 50,
        is_backward: bool = False,
    ) -> Page[Outcome]:
        """In order of (position, repeat), or against it. Raises InvalidValue for a cursor of another list."""
        limit, place = max(limit, 1), (_O.position, _O.repeat)
        query = select(outcome).where(*_conditions(wanted)).limit(limit + 1)
        query = query.order_by(*(column.desc() if is_backward else column for column in place))
        if cursor is not None:
            here, there = tuple_(*place), tuple_(*decode_cursor(cursor, "items", 2))
            query = query.where(here < there if is_backward else here > there)
        with self._sessions.reading_of(comparison_id) as (connection, key):
            rows = connection.execute(query.where(_O.comparison_key == key)).all()
        page = page_of(rows, limit, lambda row: encode_cursor("items", row.position, row.repeat))
        entries = tuple(value_of(Outcome, row) for row in page.entries)
        return Page(entries=entries, next_cursor=page.next_cursor)

    def pair(self, comparison_id: str, position: int) -> tuple[Item, Sequence[Answer], Sequence[Score]]:
        """One item with both arms' answers and scores. Raises ItemNotFound."""
        with self._sessions.reading_of(comparison_id) as (connection, key):
            row = connection.execute(
                select(item).where(item.c.comparison_key == key, item.c.position == literal(position, BigInteger))
            ).one_or_none()
            if row is None:
                raise item_not_found(comparison_id, position)
            c = answer.c
            mine = select(answer).where(c.comparison_key == key, c.position == position, c.run == 0)
            answers = connection.execute(mine.order_by(c.arm, c.choice, c.repeat))
            scores = connection.execute(
                select(score).where(score.c.comparison_key == key, score.c.position == position).order_by(*SCORE_ORDER)
            )
            return item_of(row), [answer_of(one) for one in answers], [score_of(one) for one in scores]

    # tokens, the record of who did what, sign-offs

    def add_token(self, value: Token, *, entry: AuditEntry) -> None:
        """Raises StoreError where the id is taken."""
        if len(value.digest) != 32:
            raise StoreError("a token's digest has 32 bytes")
        with self._sessions.writing() as connection:
            if not insert_new(connection, token, [fields_of(value)]):
                raise StoreError(f"token {value.id} exists already")
            _add_entry(connection, entry)

    def token(self, token_id: str) -> Token | None:
        """None where no token has this id."""
        with self._sessions.reading() as connection:
            return _read_token(connection, token_id)

    def tokens(self) -> Sequence[Token]:
        """Newest first."""
        with self._sessions.reading() as connection:
            return [value_of(Token, row) for row in connection.execute(select(token).order_by(token.c.key.desc()))]

    def revoke_token(self, token_id: str, *, entry: AuditEntry) -> None:
        """From the entry's time on; one that is revoked already stays as it is. Raises TokenNotFound."""
        living = update(token).where(token.c.id == token_id, token.c.revoked_at.is_(None))
        with self._sessions.writing() as connection:
            if connection.execute(living.values(revoked_at=entry.at)).rowcount:
                _add_entry(connection, entry)
            elif _read_token(connection, token_id) is None:
                raise token_not_found(token_id)

    def note(self, entry: AuditEntry) -> None:
        """An entry by itself."""
        with self._sessions.writing() as connection:
            _add_entry(connection, entry)

    def audit(self, *, cursor: str | None = None, limit: int = 50) -> Page[AuditEntry]:
        """Newest first. Raises InvalidValue for a cursor of another list."""
        limit = max(limit, 1)
        query = select(audit).order_by(audit.c.key.desc()).limit(limit + 1)
        if cursor is not None:
            query = query.where(audit.c.key < decode_cursor(cursor, "audit", 1)[0])
        with self._sessions.reading() as connection:
            page = page_of(connection.execute(query).all(), limit, lambda row: encode_cursor("audit", row.key))
        return Page(entries=tuple(value_of(AuditEntry, row) for row in page.entries), next_cursor=page.next_cursor)

    def recorded(self, subject: str, action: str) -> Sequence[AuditEntry]:
        """The oldest first."""
        query = select(audit).where(audit.c.subject == subject, audit.c.action == action).order_by(audit.c.key)
        with self._sessions.reading() as connection:
            return [value_of(AuditEntry, row) for row in connection.execute(query)]

    def sign_off(self, value: SignOff, *, entry: AuditEntry) -> None:
        """Adds it. Raises ComparisonNotFound."""
        c = signoff.c
        with self._sessions.writing_to(value.comparison_id) as (connection, key):
            take_turn(connection, key)
            last = connection.scalar(select(func.max(c.number)).where(c.comparison_key == key)) or 0
            obstacles = list(map(plain, value.obstacles))
            row = fields_of(value) | {"comparison_key": key, "number": last + 1, "obstacles": obstacles}
            del row["comparison_id"]
            connection.execute(insert(signoff), row)
            _add_entry(connection, entry)

    def signoffs(self, comparison_id: str) -> Sequence[SignOff]:
        """In the order in which they were made."""
        c = signoff.c
        with self._sessions.reading_of(comparison_id) as (connection, key):
            rows = connection.execute(select(signoff).where(c.comparison_key == key).order_by(c.number))
            return [value_of(SignOff, row, comparison_id=comparison_id, obstacles=_obstacles(row)) for row in rows]


def _obstacles(row: Row[Any]) -> tuple[Reason, ...]:
    obstacles: tuple[Reason, ...] = adapter(tuple[Reason, ...]).validate_python(row.obstacles)
    return obstacles


def _read_submission(connection: Connection, comparison_id: str) -> Submission | None:
    row = connection.execute(select(submission).where(_S.id == comparison_id)).one_or_none()
    return None if row is None else submission_of(row)


def _submitted_with(connection: Connection, row: Mapping[str, Any]) -> Submission | None:
    """What was stored with the row's key. Raises KeyReused where another request was."""
    stored = connection.execute(select(submission).where(_S.idempotency_key == row["idempotency_key"])).one_or_none()
    if stored is None:
        return None
    if (stored.body_hash, stored.created_by) != (row["body_hash"], row["created_by"]):
        raise key_reused(row["idempotency_key"])
    return submission_of(stored)


def _locked_submission(connection: Connection, comparison_id: str, version: int | None) -> Row[Any]:
    """Nobody else changes it until the transaction ends. Raises ComparisonNotFound, VersionConflict."""
    stored = connection.execute(select(submission).where(_S.id == comparison_id).with_for_update()).one_or_none()
    if stored is None:
        raise not_found(comparison_id)
    if version is not None and version != stored.version:
        raise version_conflict(comparison_id, version, stored.version)
    return stored


def _changed_submission(connection: Connection, stored: Row[Any], values: Mapping[str, Any]) -> Submission:
    mine = update(submission).where(_S.key == stored.key).values({**values, "version": stored.version + 1})
    return submission_of(connection.execute(mine.returning(submission)).one())


def _check_deletable(
    connection: Connection, comparison_id: str, key: int | None, *, now: datetime, stale_after_s: float
) -> None:
    """Raises ComparisonNotFound, ComparisonSignedOff, ComparisonBusy."""
    sent = _read_submission(connection, comparison_id)
    if key is None and sent is None:
        raise not_found(comparison_id)
    if key is not None and connection.scalar(select(exists().where(signoff.c.comparison_key == key))):
        raise signed_off(comparison_id)
    if sent is not None and sent.status in UNDER_WAY:
        raise under_way(comparison_id, sent.status)
    leases = _read_leases(connection, _L.comparison_id == comparison_id)
    check_let_go(comparison_id, leases, now=now, stale_after_s=stale_after_s)
    held = None if key is None else read_claim(connection, key)
    if not may_take(held, runner="", now=now, stale_after_s=stale_after_s):
        raise busy(comparison_id, held)


def _read_leases(connection: Connection, *conditions: ColumnElement[bool]) -> list[HostLease]:
    return [HostLease(**row._mapping) for row in connection.execute(select(host_lease).where(*conditions))]


def _conditions(wanted: OutcomeFilter) -> Iterator[ColumnElement[bool]]:
    if wanted.task is not None:
        yield _O.task == wanted.task
    if wanted.flipped is not None:
        yield _change_in(Change.GAIN, Change.LOSS, is_wanted=wanted.flipped)
    if wanted.change is not None:
        yield _O.change == wanted.change
    if wanted.missing is not None:
        yield _change_in(Change.UNKNOWN, is_wanted=wanted.missing)
    if wanted.different_text is not None:
        yield _O.different_text.is_(wanted.different_text)
    if wanted.min_length is not None:
        yield _O.length >= wanted.min_length
    if wanted.max_length is not None:
        yield _O.length <= wanted.max_length


def _change_in(*changes: Change, is_wanted: bool) -> ColumnElement[bool]:
    """The changes, or all others: named either way, so that an index serves."""
    condition: ColumnElement[bool] = _O.change.in_([one for one in Change if (one in changes) is is_wanted])
    return condition


def _read_token(connection: Connection, token_id: str) -> Token | None:
    row = connection.execute(select(token).where(token.c.id == token_id)).one_or_none()
    return None if row is None else value_of(Token, row)


def _add_entry(connection: Connection, entry: AuditEntry) -> None:
    connection.execute(insert(audit), fields_of(entry))

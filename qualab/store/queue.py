"""Decides who runs which comparison. The queue is the rows of `comparison` that are QUEUED."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Update,
    case,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    text,
    update,
)

from qualab.errors import ComparisonBusy, InvalidValue, StoreError, VersionConflict
from qualab.model.canonical import adapter
from qualab.model.items import JsonObject
from qualab.model.names import UNDER_WAY, AnswerStatus, ComparisonStatus
from qualab.model.plan import Plan
from qualab.model.reason import Reason
from qualab.model.registry import Address, AuditEntry, Claim, address_of, busy, not_found, urls_of
from qualab.store.engine import Sessions, key_of
from qualab.store.rows import add_entry, insert_new
from qualab.store.tables import answer, comparison, webhook, worker

MOST_TAKEOVERS = 3
"""Workers that may be lost in a row without one more answer, before the comparison fails."""
FORGOTTEN_AFTER = timedelta(days=1)
"""How long a worker's row stays after its last heartbeat."""
_LOCK = 7_105_314
"""PostgreSQL's advisory lock that claims are taken under; an arbitrary number. SQLite has one writer anyway."""
Addresses = set[Address]
_C = comparison.c
_QUEUED, _RUNNING, _CANCELLED = ComparisonStatus.QUEUED, ComparisonStatus.RUNNING, ComparisonStatus.CANCELLED
_IN_HAND = tuple(status for status in UNDER_WAY if status is not _QUEUED)
_LONG = ("local", "request", "plan")
_ENTRIES: Select[Any] = select(*(column for column in _C if column.name not in _LONG))
_FREE: dict[str, Any] = dict.fromkeys(("runner", "claimed_at", "heartbeat_at"))


class Queue(Sessions):
    """Claims, requests and workers. Each method is one transaction."""

    # claims

    def claim(self, comparison_id: str, *, runner: str, now: datetime, stale_after_s: float) -> bool:
        """Take the right to run a comparison; False where the runner has it already.

        A runner without a heartbeat for `stale_after_s`, or whose process on this host is gone, loses its claim.
        Raises ComparisonBusy where a living one has the comparison, or another that uses one of its endpoints;
        VersionConflict where it was changed at this moment.
        """
        with self._deciding() as connection:
            own = connection.execute(_ENTRIES.where(_C.key == key_of(connection, comparison_id))).one()
            is_own = own.runner == runner
            # a command that was killed while it held hosts does so no more
            is_exclusive = own.is_exclusive and bool(own.created_by)
            values: dict[str, Any] = {"runner": runner, "claimed_at": now, "heartbeat_at": now}
            if not is_own:
                if own.runner is not None and _lives(own, now, stale_after_s):
                    raise busy(comparison_id, _claim_of(own))
                values["is_exclusive"] = is_exclusive
                _check_endpoints(
                    connection, _addresses(_urls(own)), runner, now, stale_after_s, is_exclusive=is_exclusive
                )
                if own.status in (_QUEUED, ComparisonStatus.FAILED, _CANCELLED):
                    values |= {"status": ComparisonStatus.INTERRUPTED, "error": {}}  # no worker takes it any more
            unchanged = _change(**values).where(_C.key == own.key, _C.version == own.version)
            if not connection.execute(unchanged).rowcount:
                raise changed(comparison_id)
            return not is_own

    def hold_hosts(self, comparison_id: str, *, runner: str, now: datetime, stale_after_s: float) -> bool:
        """Keep other comparisons off the hosts of a claimed one; False where they were already.

        Raises ComparisonBusy where one that another runs uses them, or another runner has this one.
        """
        with self._deciding() as connection:
            own = connection.execute(_ENTRIES.where(_C.key == key_of(connection, comparison_id))).one()
            if own.runner != runner:
                raise busy(comparison_id, None if own.runner is None else _claim_of(own))
            addresses = _addresses(_urls(own))
            _check_endpoints(connection, addresses, runner, now, stale_after_s, is_exclusive=True)
            connection.execute(update(comparison).where(_C.key == own.key).values(is_exclusive=True))
            return not own.is_exclusive

    def free_hosts(self, comparison_id: str, *, runner: str) -> None:
        """Let other comparisons use the hosts of a claimed one again."""
        with self.writing_to(comparison_id) as (connection, key):
            connection.execute(update(comparison).where(_C.key == key, _C.runner == runner).values(is_exclusive=False))

    def check_endpoints(self, urls: Iterable[str], *, runner: str, now: datetime, stale_after_s: float) -> None:
        """Raise ComparisonBusy where a comparison that another runs uses one of these endpoints."""
        with self.reading() as connection:
            _check_endpoints(connection, _addresses(urls), runner, now, stale_after_s, is_exclusive=False)

    def heartbeat(self, comparison_id: str, *, runner: str, now: datetime) -> None:
        """Send a runner's heartbeat. Raises ComparisonBusy when another has taken over, or had."""
        with self.writing_to(comparison_id) as (connection, key):
            mine = update(comparison).where(_C.key == key, _C.runner == runner)
            if not connection.execute(mine.values(heartbeat_at=now)).rowcount:
                row = connection.execute(_ENTRIES.where(_C.key == key)).one()
                raise busy(comparison_id, None if row.runner is None else _claim_of(row))

    def release(self, comparison_id: str, *, runner: str) -> None:
        """Give the right to run back; nothing happens where another runner has it."""
        with self.writing_to(comparison_id) as (connection, key):
            connection.execute(update(comparison).where(_C.key == key, _C.runner == runner).values(_FREE))

    def runners(self, comparison_ids: Sequence[str], *, now: datetime, stale_after_s: float) -> dict[str, Claim]:
        """Map comparisons to the claims of their living runners."""
        query = _ENTRIES.where(_C.runner.is_not(None), _C.id.in_(comparison_ids))
        with self.reading() as connection:
            return {row.id: _claim_of(row) for row in connection.execute(query) if _lives(row, now, stale_after_s)}

    # requests

    def submit(
        self,
        comparison_id: str,
        request: JsonObject,
        *,
        entry: AuditEntry,
        key: str = "",
        body_hash: str = "",
        webhook_url: str = "",
        **columns: str | bool,
    ) -> str:
        """Queue a comparison, and return its id; with an idempotency key that was used before, that comparison's.

        `entry` tells who asks, and when; `columns` are baseline_url, candidate_url, model, label, is_exclusive.
        Raises InvalidValue where the key came with another body, or from another token.
        """
        row: dict[str, Any] = {"id": comparison_id, "request": request, "status": _QUEUED, **columns}
        row |= {"created_at": entry.at, "created_by": entry.who, "idempotency_key": key or None, "body_hash": body_hash}
        with self.writing() as connection:
            if key and (known := _submitted_with(connection, key, body_hash, entry.who)):
                return known
            if not insert_new(connection, comparison, [row]):
                # another request came first meanwhile: with this key, or with this id
                if key and (known := _submitted_with(connection, key, body_hash, entry.who)):
                    return known
                raise StoreError(f"comparison {comparison_id} exists already")
            if webhook_url:
                values = {"comparison_key": key_of(connection, comparison_id), "url": webhook_url}
                connection.execute(insert(webhook), values)
            add_entry(connection, entry)
        return comparison_id

    def request(self, comparison_id: str) -> JsonObject | None:
        """Read the service's request; None for a comparison of the command line. Raises ComparisonNotFound."""
        with self.reading_of(comparison_id) as (connection, key):
            request: JsonObject | None = connection.scalar(select(_C.request).where(_C.key == key))
            return request

    def cancel(self, comparison_id: str, *, entry: AuditEntry, version: int) -> None:
        """Cancel a comparison, with its group; its worker lets go of it. Raises ComparisonNotFound, VersionConflict."""
        with self._changing(comparison_id, entry, version) as (connection, key):
            connection.execute(_change(status=_CANCELLED).where(_C.key == key))
            connection.execute(_change(status=_CANCELLED).where(_others(connection, key), _C.status.in_(UNDER_WAY)))

    def requeue(self, comparison_id: str, *, entry: AuditEntry, version: int, drop_failures_from: int | None) -> None:
        """Queue it again, with its group; with `drop_failures_from`, its failed answers from there on are asked again.

        Raises ComparisonNotFound, VersionConflict.
        """
        again = _change(status=_QUEUED, verdict=None, finished_at=None, stop_reason=None, error={}, takeovers=0)
        with self._changing(comparison_id, entry, version) as (connection, key):
            connection.execute(again.where(_C.key == key))
            waits = _change(status=ComparisonStatus.PLANNED, stop_reason=None, error={})
            is_over = _C.status.in_((*UNDER_WAY, ComparisonStatus.FINISHED))
            connection.execute(waits.where(_others(connection, key), ~is_over))
            if drop_failures_from is not None:
                drop_failures(connection, key, drop_failures_from)

    # workers

    def take(self, *, runner: str, now: datetime, stale_after_s: float) -> str | None:
        """Take the next comparison for a worker that has none, RUNNING from now on; None where there is nothing to run.

        What lost its worker goes first, then what was begun, then the oldest. A comparison waits while one that runs,
        or one before it, uses one of its endpoints (where either is exclusive: one of its hosts). What lost one worker
        after another, without one more answer, fails.
        """
        with self.reading() as connection:
            if _next(connection, runner, now, stale_after_s) is None:
                return None
        with self._deciding() as connection:
            row = _next(connection, runner, now, stale_after_s)
            if row is None:
                return None
            values: dict[str, Any] = {"status": _RUNNING, "error": {}, "stop_reason": None}
            values |= {"runner": runner, "claimed_at": now, "heartbeat_at": now}
            if row.status is not _QUEUED:
                count = select(func.count()).select_from(answer).where(answer.c.comparison_key == row.key)
                n_answers = connection.execute(count).scalar_one()
                takeovers = row.takeovers + 1 if n_answers == row.takeover_answers else 0
                values |= {"takeovers": takeovers, "takeover_answers": n_answers}
                if takeovers > MOST_TAKEOVERS:
                    error = {
                        "code": "workers-lost",
                        "message": f"One worker after another was lost while it ran this, {takeovers} in a row without "
                        f"one more answer, the last one {row.runner}",
                        "hint": "Look into the workers' logs (killed for memory?), then "
                        f"POST /v1/comparisons/{row.id}/resume",
                    }
                    values = {"status": ComparisonStatus.FAILED, "takeovers": 0, "error": error, **_FREE}
                    values["stop_reason"] = Reason("stopped.workers-lost", {"n": takeovers, "runner": row.runner})
            # it may be cancelled at this moment
            unchanged = _change(**values).where(_C.key == row.key, _C.version == row.version)
            is_changed = connection.execute(unchanged).rowcount
            if is_changed and values["status"] is ComparisonStatus.FAILED:
                _fail_others(connection, row.key, values["error"])
            is_taken = is_changed and values["status"] is _RUNNING
        return str(row.id) if is_taken else None

    def hold(self, comparison_id: str, *, runner: str, now: datetime) -> bool:
        """Send a worker's heartbeat; False where the comparison was cancelled, or another worker has it."""
        mine = update(comparison).where(_C.id == comparison_id, _C.runner == runner).values(heartbeat_at=now)
        with self.writing() as connection:
            status = connection.scalar(mine.returning(_C.status))
        return status not in (None, _QUEUED, _CANCELLED)

    def give_back(self, comparison_id: str, *, runner: str) -> None:
        """Queue what a worker has, which ends; it is taken by another once this one releases it."""
        with self.writing() as connection:
            own = _change(status=_QUEUED).where(_C.id == comparison_id, _C.runner == runner)
            connection.execute(own.where(_C.status.in_(_IN_HAND)))

    def fail(self, comparison_id: str, *, runner: str, error: Mapping[str, str]) -> None:
        """Note what kept a worker from running it, or its group; a run that was STOPPED stays so."""
        stopped, failed = ComparisonStatus.STOPPED, ComparisonStatus.FAILED
        status = case((_C.status == stopped, literal(stopped, _C.status.type)), else_=literal(failed, _C.status.type))
        own = _change(error=dict(error), takeovers=0, status=status).where(_C.id == comparison_id, _C.runner == runner)
        with self.writing() as connection:
            could = own.where(_C.status.in_((*_IN_HAND, stopped, ComparisonStatus.INTERRUPTED)))
            if key := connection.scalar(could.returning(_C.key)):
                _fail_others(connection, key, error)

    def see_worker(self, runner: str, *, now: datetime) -> None:
        """Send a worker's heartbeat. A new one sweeps out those that have had none for long."""
        beat = update(worker).where(worker.c.runner == runner).values(heartbeat_at=now)
        with self.writing() as connection:
            if connection.execute(beat).rowcount == 0:
                connection.execute(delete(worker).where(worker.c.heartbeat_at < now - FORGOTTEN_AFTER))
                connection.execute(insert(worker), {"runner": runner, "since": now, "heartbeat_at": now})

    def drop_worker(self, runner: str) -> None:
        """Forget a worker, which has ended."""
        with self.writing() as connection:
            connection.execute(delete(worker).where(worker.c.runner == runner))

    def workers(self, *, now: datetime, stale_after_s: float) -> Sequence[str]:
        """List the runners of living workers, the oldest first."""
        query = select(worker).order_by(worker.c.since, worker.c.runner)
        with self.reading() as connection:
            return [row.runner for row in connection.execute(query) if _lives(row, now, stale_after_s)]

    def now(self) -> datetime:
        """Tell the time of the database's machine, which all that share it can go by: a file is on this one."""
        with self.reading() as connection:
            if connection.dialect.name != "postgresql":
                return datetime.now(UTC)
            moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return moment.astimezone(UTC)

    @contextmanager
    def _deciding(self) -> Iterator[Connection]:
        """Begin a transaction in which nobody else claims anything."""
        with self.writing() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            yield connection

    @contextmanager
    def _changing(self, comparison_id: str, entry: AuditEntry, version: int) -> Iterator[tuple[Connection, int]]:
        """Begin a change of a comparison at `version`. Raises ComparisonNotFound, VersionConflict."""
        with self.writing() as connection:
            query = select(_C.key, _C.version).where(_C.id == comparison_id).with_for_update()
            row = connection.execute(query).one_or_none()
            if row is None:
                raise not_found(comparison_id)
            if version != row.version:
                raise changed(comparison_id)
            yield connection, row.key
            add_entry(connection, entry)


def changed(comparison_id: str) -> VersionConflict:
    """Refuse a change of something that has changed since it was read."""
    return VersionConflict(f"Comparison {comparison_id} has changed since it was read", hint="Read it again")


def check_deletable(connection: Connection, comparison_id: str, *, now: datetime, stale_after_s: float) -> None:
    """Raise ComparisonBusy for what waits for a worker, or is being run."""
    row = connection.execute(_ENTRIES.where(_C.id == comparison_id)).one()
    if row.created_by and row.status in UNDER_WAY:
        raise ComparisonBusy(f"Comparison {comparison_id} is {row.status.value}", hint="Cancel it first")
    if row.runner is not None and _lives(row, now, stale_after_s):
        raise busy(comparison_id, _claim_of(row))


def drop_failures(connection: Connection, key: int, from_position: int) -> int:
    """Delete answers that are failures of the endpoint, the noise floor's at any position; return how many."""
    c = answer.c
    failed = c.status.in_([status for status in AnswerStatus if status.is_failure])
    late_or_noise = (c.position >= from_position) | (c.run > 0)
    return connection.execute(delete(answer).where(c.comparison_key == key, failed, late_or_noise)).rowcount


def _submitted_with(connection: Connection, key: str, body_hash: str, who: str) -> str | None:
    query = select(_C.id, _C.body_hash, _C.created_by).where(_C.idempotency_key == key)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    if (row.body_hash, row.created_by) != (body_hash, who):
        raise InvalidValue(
            f"the idempotency key '{key}' was used for another request",
            hint="give each request its own",
            code="idempotency-key-reused",
            fields={"Idempotency-Key": "give each request its own"},
        )
    return str(row.id)


def _change(**values: Any) -> Update:
    return update(comparison).values(version=_C.version + 1, **values)


def _others(connection: Connection, key: int) -> ColumnElement[bool]:
    """Match the other comparisons of a group where `key` is its first, which stands for all in the queue."""
    row = connection.execute(select(_C.id, _C.plan).where(_C.key == key)).one()
    group = adapter(Plan).validate_json(row.plan).group if row.plan else None
    ids = group.ids if group else []
    return _C.id.in_(ids[1:] if ids and ids[0] == row.id else [])


def _fail_others(connection: Connection, key: int, error: Mapping[str, str]) -> None:
    others = _change(status=ComparisonStatus.FAILED, error=dict(error), **_FREE)
    connection.execute(others.where(_others(connection, key), _C.status.in_(_IN_HAND)))


def _next(connection: Connection, runner: str, now: datetime, stale_after_s: float) -> Row[Any] | None:
    """Find the comparison that `runner`, which has none, is to run next."""
    is_open = or_(_C.runner.is_not(None), _C.status == _QUEUED, (_C.created_by != "") & _C.status.in_(_IN_HAND))
    rows = connection.execute(_ENTRIES.where(is_open)).all()
    in_use = [row for row in rows if row.runner not in (None, runner) and _lives(row, now, stale_after_s)]
    waiting = [row for row in rows if row.created_by and row.status in UNDER_WAY and row not in in_use]
    waiting.sort(key=lambda row: (row.status is _QUEUED, row.started_at is None, row.created_at, row.key))
    columns = _C.created_at, _C.baseline_url, _C.candidate_url
    members = select(*columns).where(_C.created_by == "", _C.created_at.in_([row.created_at for row in waiting]))
    in_groups = connection.execute(members).all() if waiting else []
    for row in waiting:
        shared = row.created_at, row.baseline_url  # by all of a group
        more = [own.candidate_url for own in in_groups if (own.created_at, own.baseline_url) == shared]
        addresses = _addresses((*_urls(row), *more))
        if not any(_disturb(addresses, row.is_exclusive, other) for other in in_use):
            return row
        in_use.append(row)
    return None


def _check_endpoints(
    connection: Connection,
    addresses: Addresses,
    runner: str,
    now: datetime,
    stale_after_s: float,
    *,
    is_exclusive: bool,
) -> None:
    for row in connection.execute(_ENTRIES.where(_C.runner.is_not(None), _C.runner != runner)):
        if _disturb(addresses, is_exclusive, row) and _lives(row, now, stale_after_s):
            raise ComparisonBusy(
                f"comparison {row.id} is being run on the same endpoints by {_claim_of(row)}",
                hint="wait for it to end: two comparisons at once would disturb each other",
                holder=row.runner,
                since=row.claimed_at,
            )


def _disturb(addresses: Addresses, is_exclusive: bool, other: Row[Any]) -> bool:
    """Check whether a comparison of these endpoints must wait for another."""
    used = _addresses(_urls(other))
    is_same_host = not {host for host, *_ in addresses}.isdisjoint(host for host, *_ in used)
    return bool(addresses & used) or (is_same_host and (is_exclusive or other.is_exclusive))


def _urls(row: Row[Any]) -> tuple[str, str]:
    return row.baseline_url, row.candidate_url


def _addresses(arms: Iterable[str]) -> Addresses:
    return {address_of(url) for arm in arms for url in urls_of(arm)}


def _claim_of(row: Row[Any]) -> Claim:
    return Claim(runner=row.runner, since=row.claimed_at, heartbeat_at=row.heartbeat_at)


def _lives(row: Row[Any], now: datetime, stale_after_s: float) -> bool:
    """Check whether a runner lives, as far as this machine can tell."""
    host, _, process = row.runner.rpartition(":")[0].rpartition(":")
    if host == socket.gethostname() and process.isdecimal() and not _is_alive(int(process)):
        return False
    return bool(now - row.heartbeat_at <= timedelta(seconds=stale_after_s))


def _is_alive(process: int) -> bool:
    """Check whether a process of this machine exists; on Windows, which cannot be asked, it does."""
    try:
        if os.name != "nt":
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True

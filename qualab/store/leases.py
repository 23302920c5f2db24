"""Who may send to which endpoint host."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, text, update

from qualab.model.registry import HostLease
from qualab.store.tables import host_lease
from qualab.store.times import from_us, to_us

_L = host_lease.c
_LOCK = 7_105_314
"""PostgreSQL's advisory lock that leases are taken under; an arbitrary number. SQLite has one writer anyway."""


def read_leases(connection: Connection, hosts: Iterable[str]) -> list[HostLease]:
    """Of these hosts. Until the transaction ends, nobody else takes a lease."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    return [_lease_of(row) for row in connection.execute(select(host_lease).where(_L.host.in_(list(hosts))))]


def leases_of(connection: Connection, comparison_id: str) -> list[HostLease]:
    """A comparison's."""
    return [_lease_of(row) for row in connection.execute(select(host_lease).where(_L.comparison_id == comparison_id))]


def replace_leases(connection: Connection, comparison_id: str, leases: Iterable[HostLease]) -> None:
    """A comparison's leases in place of its former ones."""
    drop_leases(connection, comparison_id)
    rows = [
        {
            "host": lease.host,
            "comparison_id": lease.comparison_id,
            "runner": lease.runner,
            "slots": lease.slots,
            "is_exclusive": lease.is_exclusive,
            "heartbeat_at": to_us(lease.heartbeat_at),
        }
        for lease in leases
    ]
    if rows:
        connection.execute(insert(host_lease), rows)


def drop_stale(connection: Connection, leases: Iterable[HostLease]) -> None:
    """Deletes leases that nobody renewed."""
    for lease in leases:
        connection.execute(
            delete(host_lease).where(
                _L.host == lease.host,
                _L.comparison_id == lease.comparison_id,
                _L.heartbeat_at == to_us(lease.heartbeat_at),
            )
        )


def renew_leases(connection: Connection, comparison_id: str, *, runner: str, now: datetime) -> bool:
    """Notes that the runner lives, and says whether it holds any."""
    mine = update(host_lease).where(_L.comparison_id == comparison_id, _L.runner == runner)
    return connection.execute(mine.values(heartbeat_at=to_us(now))).rowcount > 0


def drop_leases(connection: Connection, comparison_id: str, *, runner: str | None = None) -> None:
    """A comparison's leases, those of one runner if it is named."""
    mine = delete(host_lease).where(_L.comparison_id == comparison_id)
    connection.execute(mine if runner is None else mine.where(_L.runner == runner))


def _lease_of(row: Row[Any]) -> HostLease:
    return HostLease(
        host=row.host,
        comparison_id=row.comparison_id,
        runner=row.runner,
        slots=row.slots,
        is_exclusive=row.is_exclusive,
        heartbeat_at=from_us(row.heartbeat_at),
    )

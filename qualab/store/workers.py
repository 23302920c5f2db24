"""Workers of the service, and when each was last heard of."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, insert, select, update

from qualab.model.registry import Claim
from qualab.store.runners import may_take
from qualab.store.tables import worker
from qualab.store.times import from_us, to_us

FORGOTTEN_AFTER = timedelta(days=1)
_W = worker.c


def see_worker(connection: Connection, runner: str, *, now: datetime) -> None:
    """Notes that it lives. One that comes sweeps out those that nobody has heard of for long."""
    beat = update(worker).where(_W.runner == runner).values(heartbeat_at=to_us(now))
    if connection.execute(beat).rowcount == 0:
        connection.execute(delete(worker).where(_W.heartbeat_at < to_us(now - FORGOTTEN_AFTER)))
        connection.execute(insert(worker), {"runner": runner, "since": to_us(now), "heartbeat_at": to_us(now)})


def drop_worker(connection: Connection, runner: str) -> None:
    """It has ended."""
    connection.execute(delete(worker).where(_W.runner == runner))


def living_workers(connection: Connection, *, now: datetime, stale_after_s: float) -> list[str]:
    """As far as this machine can tell, the oldest first."""
    rows = connection.execute(select(worker).order_by(_W.since, _W.runner))
    known = [Claim(runner=row.runner, since=from_us(row.since), heartbeat_at=from_us(row.heartbeat_at)) for row in rows]
    return [one.runner for one in known if not may_take(one, runner="", now=now, stale_after_s=stale_after_s)]

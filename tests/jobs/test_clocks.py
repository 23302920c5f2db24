"""Hosts whose clocks differ: who lives is judged by the database's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from qualab import bootstrap
from qualab.errors import StoreError
from qualab.model.ports import Clock
from qualab.service.context import context_of
from qualab.service.settings import load_service
from qualab.service.worker import SharedClock, working
from qualab.settings import load

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


class Ahead(Clock):
    def now(self) -> datetime:
        return super().now() + HOUR


def test_a_shared_clock_is_carried_on_from_the_last_look_that_succeeded() -> None:
    looks = [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 2, tzinfo=UTC)]

    def read() -> datetime:
        if not looks:
            raise StoreError("away")
        return looks.pop(0)

    clock = SharedClock(read)
    assert timedelta() <= clock.now() - datetime(2026, 1, 1, tzinfo=UTC) < MINUTE
    assert clock.now() < clock.now()
    clock.look()
    with pytest.raises(StoreError):
        clock.look()
    assert timedelta() <= clock.now() - datetime(2026, 1, 1, 2, tzinfo=UTC) < MINUTE


def test_a_worker_on_postgresql_goes_by_the_clock_of_its_database(postgresql_url: str) -> None:
    settings = load(content={"db": postgresql_url}, environment=False)
    store = bootstrap.store_at(settings.db)
    services = replace(bootstrap.services_of(settings, store=store), clock=Ahead(), runner="elsewhere:1:a")
    context = context_of(services, load_service(beat_s=0.1, queue_poll_s=0.1))
    with working(context, is_shared=True) as own:
        assert abs(own.services.clock.now() - datetime.now(UTC)) < MINUTE
        assert "elsewhere:1:a" in store.workers(now=datetime.now(UTC), stale_after_s=30.0)

"""Workers that say that they live, in every store."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta

from qualab.model.ports import Registry
from tests.store.samples import NOW

ELSEWHERE = ("elsewhere:1:a", "elsewhere:2:b")


def living(registry: Registry, at_s: float) -> list[str]:
    return list(registry.workers(now=NOW + timedelta(seconds=at_s), stale_after_s=30.0))


def test_a_worker_lives_as_long_as_it_says_so(registry: Registry) -> None:
    first, second = ELSEWHERE
    registry.see_worker(second, now=NOW)
    registry.see_worker(first, now=NOW + timedelta(seconds=1))
    assert living(registry, 2) == [second, first]
    registry.see_worker(second, now=NOW + timedelta(seconds=20))
    assert living(registry, 31) == [second, first]
    assert living(registry, 32) == [second]
    assert living(registry, 51) == []
    registry.see_worker(first, now=NOW + timedelta(seconds=60))
    assert living(registry, 61) == [first]


def test_a_worker_that_ends_is_gone_at_once(registry: Registry) -> None:
    registry.see_worker(ELSEWHERE[0], now=NOW)
    registry.drop_worker(ELSEWHERE[0])
    registry.drop_worker(ELSEWHERE[0])
    assert living(registry, 1) == []


def test_a_dead_process_of_this_machine_is_not_waited_for(registry: Registry) -> None:
    host = socket.gethostname()
    here, dead = f"{host}:{os.getpid()}:a", f"{host}:{2**22 + 1}:b"
    for runner in (here, dead):
        registry.see_worker(runner, now=NOW)
    assert living(registry, 1) == [here]


def test_every_registry_tells_the_time(registry: Registry) -> None:
    found = registry.now()
    assert found.tzinfo is UTC
    assert abs(found - datetime.now(UTC)) < timedelta(minutes=1)

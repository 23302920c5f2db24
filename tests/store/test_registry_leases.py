"""What every registry does about who may send to which endpoint host."""

from __future__ import annotations

import pytest

from qualab.errors import InvalidValue
from qualab.model.ports import Registry
from qualab.model.registry import HostLease, SubmissionStatus, host_of
from tests.store.samples import NOW, after, make_entry, make_submission


def lease(
    registry: Registry,
    comparison_id: str,
    *hosts: str,
    slots: int = 4,
    limit: int = 8,
    exclusive: bool = False,
    at: float = 0,
    runner: str = "",
    reserved: int = 0,
) -> bool:
    return registry.lease_hosts(
        comparison_id,
        dict.fromkeys(hosts, slots),
        runner=runner or f"runner of {comparison_id}",
        limit=limit,
        is_exclusive=exclusive,
        now=after(at),
        stale_after_s=60,
        reserved=[waiting(host, reserved) for host in hosts if reserved],
    )


def waiting(host: str, slots: int) -> HostLease:
    """What somebody will need of a host who has it not."""
    return HostLease(host=host, comparison_id="before", runner="", slots=slots, is_exclusive=False, heartbeat_at=NOW)


def renew(registry: Registry, comparison_id: str, at: float) -> bool:
    return registry.renew_hosts(comparison_id, runner=f"runner of {comparison_id}", now=after(at))


def release(registry: Registry, comparison_id: str) -> None:
    registry.release_hosts(comparison_id, runner=f"runner of {comparison_id}")


def test_a_host_takes_comparisons_up_to_its_limit(registry: Registry) -> None:
    assert lease(registry, "a", "h")
    assert not lease(registry, "b", "h", slots=5)
    assert lease(registry, "b", "h", slots=4)
    assert not lease(registry, "c", "h", slots=1)
    assert lease(registry, "c", "h", slots=1, limit=9)


def test_each_host_has_its_own_limit(registry: Registry) -> None:
    assert lease(registry, "a", "h", slots=8)
    assert lease(registry, "b", "i", slots=8)
    assert registry.lease_hosts(
        "c",
        {"j": 1, "k": 8},
        runner="r",
        limit=8,
        is_exclusive=False,
        now=after(0),
        stale_after_s=60,
    )
    assert lease(registry, "d", "j", slots=7)
    assert not lease(registry, "e", "k", slots=1)


def test_what_is_reserved_is_left_to_others(registry: Registry) -> None:
    assert lease(registry, "a", "h", slots=2)
    assert not lease(registry, "b", "h", slots=3, reserved=4)
    assert lease(registry, "b", "h", slots=2, reserved=4)
    assert lease(registry, "before", "h", slots=4), "who it was reserved for"


def test_all_hosts_or_none(registry: Registry) -> None:
    assert lease(registry, "a", "h", slots=8)
    assert not lease(registry, "b", "h", "i", slots=8)
    assert lease(registry, "c", "i", slots=8)


def test_speed_is_measured_alone(registry: Registry) -> None:
    assert lease(registry, "quality", "h", slots=1)
    assert not lease(registry, "speed", "h", slots=1, exclusive=True)
    release(registry, "quality")
    assert lease(registry, "speed", "h", slots=1, exclusive=True)
    assert not lease(registry, "quality", "h", slots=1)
    assert not lease(registry, "other speed", "h", slots=1, exclusive=True)
    assert lease(registry, "quality", "elsewhere", slots=1)
    release(registry, "speed")
    assert lease(registry, "other speed", "h", slots=1, exclusive=True)


def test_what_is_not_renewed_falls_away(registry: Registry) -> None:
    assert lease(registry, "a", "h", slots=8)
    assert not lease(registry, "b", "h", at=60)
    assert renew(registry, "a", 50)
    assert not lease(registry, "b", "h", at=110)
    assert lease(registry, "b", "h", at=110.001)
    assert not renew(registry, "a", 111)
    assert renew(registry, "b", 111)


def test_who_takes_a_comparison_over_takes_its_hosts(registry: Registry) -> None:
    assert lease(registry, "a", "h", "i", slots=8, runner="dead")
    assert lease(registry, "a", "h", slots=6, runner="living", at=1)
    assert not registry.renew_hosts("a", runner="dead", now=after(2))
    registry.release_hosts("a", runner="dead")
    assert not lease(registry, "b", "h", slots=3, at=2)
    assert lease(registry, "b", "h", slots=2, at=2)
    assert lease(registry, "c", "i", slots=8, at=2)


def test_a_refused_exchange_keeps_what_was_held(registry: Registry) -> None:
    assert lease(registry, "a", "h", slots=4)
    assert lease(registry, "b", "h", slots=4)
    assert not lease(registry, "a", "h", slots=5)
    assert renew(registry, "a", 1)
    assert not lease(registry, "c", "h", slots=1)


def test_nothing_is_released_twice(registry: Registry) -> None:
    release(registry, "a")
    assert lease(registry, "a", "h", slots=8)
    release(registry, "a")
    release(registry, "a")
    assert not renew(registry, "a", 1)
    assert lease(registry, "b", "h", slots=8)


@pytest.mark.parametrize("slots", [0, -1, 9])
def test_slots_that_no_wait_would_bring_are_refused(registry: Registry, slots: int) -> None:
    with pytest.raises(InvalidValue, match="limit of 8"):
        lease(registry, "a", "h", slots=slots)


def test_a_deleted_submission_holds_no_host(registry: Registry) -> None:
    registry.submit(make_submission("a", status=SubmissionStatus.CANCELLED), entry=make_entry())
    assert lease(registry, "a", "h", slots=8)
    registry.delete("a", entry=make_entry(at=after(61)), stale_after_s=60)
    assert lease(registry, "b", "h", slots=8)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://gpu-1.example:8000/v1", "gpu-1.example"),
        ("https://GPU-1.example/v1", "gpu-1.example"),
        ("http://127.0.0.1:8001", "localhost"),
        ("http://[::1]:8001/v1", "localhost"),
    ],
)
def test_servers_of_one_machine_have_one_host(url: str, host: str) -> None:
    assert host_of(url) == host

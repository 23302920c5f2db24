"""Which comparison may send to which endpoint host, over all workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from qualab.errors import ComparisonBusy, InvalidValue

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLease:
    """A comparison's right to send to a host, as long as its runner renews it."""

    host: str
    comparison_id: str
    runner: str
    slots: int
    """Requests in flight, at most."""
    is_exclusive: bool
    """Whether no other comparison may send to the host meanwhile: speed is being measured."""
    heartbeat_at: datetime

    def is_stale(self, now: datetime, stale_after_s: float) -> bool:
        return now - self.heartbeat_at > timedelta(seconds=stale_after_s)


def check_let_go(comparison_id: str, leases: Iterable[HostLease], *, now: datetime, stale_after_s: float) -> None:
    """Raises ComparisonBusy where a worker still has leases of it: it may be about to store the comparison."""
    for lease in leases:
        if lease.comparison_id == comparison_id and not lease.is_stale(now, stale_after_s):
            raise ComparisonBusy(
                f"comparison {comparison_id} is still held by the worker {lease.runner}",
                hint="try again in a few seconds: a worker lets go of what was cancelled",
                holder=lease.runner,
            )


def host_of(url: str) -> str:
    """The machine that a URL names, whatever its port: what runs beside it there is disturbed, too."""
    name = urlsplit(url).hostname or url
    return LOOPBACK[0] if name in LOOPBACK else name


def may_lease(others: Iterable[HostLease], slots: Mapping[str, int], *, limit: int, is_exclusive: bool) -> bool:
    """Whether a comparison gets all of the hosts in `slots`, given the living leases of the other comparisons."""
    used = dict.fromkeys(slots, 0)
    for lease in others:
        if lease.host in used:
            if is_exclusive or lease.is_exclusive:
                return False
            used[lease.host] += lease.slots
    return all(used[host] + wanted <= limit for host, wanted in slots.items())


def check_slots(slots: Mapping[str, int], limit: int) -> None:
    """Raises InvalidValue for what no wait would bring about."""
    for host, wanted in slots.items():
        if not 1 <= wanted <= limit:
            raise InvalidValue(
                f"{wanted} requests in flight at {host} are not within the limit of {limit}",
                hint="lower the concurrency, or raise the limit of the host",
            )

"""Who may run a comparison: one runner at a time, and a dead one's place may be taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from qualab.errors import ComparisonBusy

STALE_AFTER_S = 30.0
"""A runner without a heartbeat for longer is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """How often a runner says that it lives, and how long its silence is borne."""

    every_s: float = 5.0
    stale_after_s: float = STALE_AFTER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to run, as a runner ("host:pid:nonce") holds it."""

    runner: str
    since: datetime
    heartbeat_at: datetime

    def __str__(self) -> str:
        return f"{self.runner} (since {self.since:%Y-%m-%d %H:%M:%S} UTC)"


def may_claim(
    held: Claim | None,
    *,
    runner: str,
    now: datetime,
    stale_after_s: float,
    host: str,
    is_alive: Callable[[int], bool],
) -> bool:
    """Whether a runner may take a comparison that is `held` so: nobody else has it, or who has it is gone."""
    if held is None or held.runner == runner:
        return True
    return is_gone(held, now=now, stale_after_s=stale_after_s, host=host, is_alive=is_alive)


def is_gone(held: Claim, *, now: datetime, stale_after_s: float, host: str, is_alive: Callable[[int], bool]) -> bool:
    """Whether a runner has had no heartbeat for too long, or was on `host` and its process is not alive."""
    process = process_on(host, held.runner)
    is_dead = process is not None and not is_alive(process)
    return is_dead or now - held.heartbeat_at > timedelta(seconds=stale_after_s)


def process_on(host: str, runner: str) -> int | None:
    """The process id of a runner on `host`; None for a runner elsewhere, or of another form."""
    parts = runner.rsplit(":", 2)
    if len(parts) != 3 or parts[0] != host or not parts[1].isdecimal():
        return None
    return int(parts[1])


def busy(comparison_id: str, holder: Claim | None) -> ComparisonBusy:
    """For a runner that may not run, because of the holder of the claim, or because it has lost its own."""
    if holder is None:
        return ComparisonBusy(f"comparison {comparison_id} was taken over by another runner, which has ended")
    return ComparisonBusy(
        f"comparison {comparison_id} is being run by {holder}",
        hint="wait for it to end, or stop that process, then resume",
        holder=holder.runner,
        since=holder.since,
    )

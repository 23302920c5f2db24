"""Which failures are tried again, after which pause. One policy, the same for every endpoint of a comparison."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple, TypeVar

from qualab.domain.names import AnswerStatus
from qualab.domain.plan import RequestPolicy

MAX_RETRY_AFTER_S = 120.0
"""A server that asks for a longer pause gets this one."""

TOO_MANY_REQUESTS, UNAVAILABLE = 429, 503
RETRIED = frozenset({408, 409, 425, TOO_MANY_REQUESTS})
REJECTED = frozenset({400, 413, 422})


def is_retried(status: int) -> bool:
    """Whether a request that got this HTTP status is sent again."""
    return status in RETRIED or status >= 500


def is_backpressure(status: int, retry_after: str | None, *, now: datetime) -> bool:
    """Whether a server asks to wait: it is alive, and its answer is no failed attempt."""
    return status == TOO_MANY_REQUESTS or (status == UNAVAILABLE and retry_after_s(retry_after, now=now) is not None)


def status_of(http_status: int) -> AnswerStatus:
    """What an HTTP status other than 200 makes of an answer."""
    return AnswerStatus.REJECTED if http_status in REJECTED else AnswerStatus.HTTP_ERROR


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time and chance, as arguments."""

    now: Callable[[], datetime] = _utc_now
    """Aware UTC."""
    monotonic_s: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)
    """Draws the jitter."""


class Sending(NamedTuple):
    """When and how often a request was sent. A tuple, because one is made for every request."""

    attempts: int
    latency_s: float
    sent_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An attempt without an answer."""

    status: AnswerStatus
    error: str
    retry: bool
    sending: Sending
    retry_after: str | None = None
    """The server's Retry-After header."""
    is_backpressure: bool = False
    """Whether the server only asks to wait."""


OnWait = Callable[[float], None]
"""Is told each pause that a server asks for, in seconds."""


T = TypeVar("T")


async def persist(
    attempt: Callable[[int], Awaitable[T | Failure]],
    *,
    policy: RequestPolicy,
    timing: Timing,
    on_wait: OnWait | None = None,
) -> T | Failure:
    """Calls `attempt` with 1, 2, ... until it succeeds, fails for good, or the policy's attempts are used up.

    Back-pressure uses up no attempt but the policy's time for waiting.
    """
    number, n_waits, waited_s = 1, 0, 0.0
    while True:
        outcome = await attempt(number)
        if not isinstance(outcome, Failure) or not outcome.retry:
            return outcome
        if outcome.is_backpressure:
            n_waits += 1
            pause = pause_s(outcome, attempt=n_waits, policy=policy, timing=timing)
            waited_s += outcome.sending.latency_s + pause
            if waited_s > policy.max_wait_s:
                return replace(outcome, error=f"{outcome.error} (after waiting as long as max_wait allows)")
            if on_wait:
                on_wait(pause)
        elif number < policy.max_attempts:
            pause = pause_s(outcome, attempt=number, policy=policy, timing=timing)
            number += 1
        else:
            return outcome
        await timing.sleep(pause)


def pause_s(failure: Failure, *, attempt: int, policy: RequestPolicy, timing: Timing) -> float:
    """Seconds to wait after the given attempt (from 1): exponential backoff with full jitter.

    Where the server names a time, that and a little jitter, so that clients do not come back all at once.
    """
    named_s = retry_after_s(failure.retry_after, now=timing.now())
    n_doubled = 0 if named_s is not None else min(attempt - 1, 60)
    ceiling = min(policy.max_backoff_s, policy.backoff_s * 2.0**n_doubled)
    return timing.rng.uniform(0.0, ceiling) + min(named_s or 0.0, MAX_RETRY_AFTER_S)


def retry_after_s(header: str | None, *, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for: a number, or an HTTP date. None where it says nothing usable."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        return _until(header, now)
    return seconds if 0.0 <= seconds < float("inf") else None


def _until(date: str, now: datetime) -> float | None:
    """0 for a date that has passed."""
    try:
        when = parsedate_to_datetime(date)
    except ValueError:
        return None
    return max(0.0, ((when if when.tzinfo else when.replace(tzinfo=UTC)) - now).total_seconds())

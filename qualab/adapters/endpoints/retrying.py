"""Which failures are tried again, after which pause. One policy, the same for every endpoint of a comparison."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple, TypeVar

from qualab.domain.names import AnswerStatus
from qualab.domain.plan import RequestPolicy

MAX_RETRY_AFTER_S = 120.0
"""A server that asks for a longer pause gets this one."""

RETRIED = frozenset({408, 409, 425, 429})
REJECTED = frozenset({400, 413, 422})


def is_retried(status: int) -> bool:
    """Whether a request that got this HTTP status is sent again."""
    return status in RETRIED or status >= 500


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


T = TypeVar("T")


async def persist(
    attempt: Callable[[int], Awaitable[T | Failure]], *, policy: RequestPolicy, timing: Timing
) -> T | Failure:
    """Calls `attempt` with 1, 2, ... until it succeeds, fails for good, or the policy's attempts are used up."""
    number = 1
    while True:
        outcome = await attempt(number)
        if not isinstance(outcome, Failure) or not outcome.retry or number >= policy.max_attempts:
            return outcome
        await timing.sleep(pause_s(outcome, attempt=number, policy=policy, timing=timing))
        number += 1


def pause_s(failure: Failure, *, attempt: int, policy: RequestPolicy, timing: Timing) -> float:
    """Seconds to wait after the given attempt (from 1): exponential backoff with full jitter.

    Where the server names a time, the jitter comes on top of it, so that clients do not come back all at once.
    """
    ceiling = min(policy.max_backoff_s, policy.backoff_s * 2.0 ** min(attempt - 1, 60))
    jitter = timing.rng.uniform(0.0, ceiling)
    return jitter + min(retry_after_s(failure.retry_after, now=timing.now()), MAX_RETRY_AFTER_S)


def retry_after_s(header: str | None, *, now: datetime) -> float:
    """Seconds that a Retry-After header asks for: a number, or an HTTP date. 0 where it says nothing usable."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        seconds = _until(header, now)
    return seconds if 0.0 < seconds < float("inf") else 0.0


def _until(date: str, now: datetime) -> float:
    try:
        when = parsedate_to_datetime(date)
    except ValueError:
        return 0.0
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - now).total_seconds()

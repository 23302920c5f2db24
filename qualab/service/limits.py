"""What one caller may take: requests at a steady rate, and a turn among all callers for what is long."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from qualab.errors import TooManyRequests

T = TypeVar("T")
RETRY_AFTER_S = 5
KEPT = 10_000
"""Callers; one that is forgotten has a full bucket."""


class RateLimit:
    """`rate` requests a second for each caller, `burst` at once after a pause. A rate of 0 limits nothing."""

    def __init__(self, *, rate: float, burst: int, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._monotonic_s = monotonic_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Raises TooManyRequests, with `retry_after_s`."""
        if not self._rate:
            return
        now = self._monotonic_s()
        left, since = self._left.get(caller, (float(self._burst), now))
        left = min(float(self._burst), left + (now - since) * self._rate)
        is_empty = left < 1.0
        self._left[caller] = (left if is_empty else left - 1.0, now)
        self._left.move_to_end(caller)
        if len(self._left) > KEPT:
            self._left.popitem(last=False)
        if is_empty:
            raise TooManyRequests(
                f"More than {self._rate:g} requests a second",
                hint="Ask less often",
                retry_after_s=math.ceil((1.0 - left) / self._rate),
            )


class Turns:
    """Runs jobs in a few threads: callers in turn, and of each caller one at a time."""

    def __init__(self, *, n_threads: int, most_waiting: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(n_threads, thread_name_prefix=name)
        self._n_free = n_threads
        self._most_waiting = most_waiting
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        """By caller; whose turn is next stands first."""
        self._running: set[str] = set()

    def submit(self, caller: str, job: Callable[[], T]) -> Future[T]:
        """Raises TooManyRequests where the caller has too many waiting, with `retry_after_s`."""
        future = Future[T]()
        with self._lock:
            waiting = self._waiting.setdefault(caller, deque())
            if len(waiting) >= self._most_waiting:
                raise TooManyRequests(
                    f"{self._most_waiting} plans are waiting already", hint="Try again", retry_after_s=RETRY_AFTER_S
                )
            waiting.append((future, job))
            self._begin()
        return future

    def close(self) -> None:
        """Begins nothing more."""
        with self._lock:
            for waiting in self._waiting.values():
                for future, _ in waiting:
                    future.cancel()
            self._waiting.clear()
            self._n_free = 0
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        for caller in [caller for caller in self._waiting if caller not in self._running][: self._n_free]:
            waiting = self._waiting.pop(caller)
            future, job = waiting.popleft()
            if waiting:
                self._waiting[caller] = waiting  # behind the others
            self._running.add(caller)
            self._n_free -= 1
            self._executor.submit(self._run, caller, future, job)

    def _run(self, caller: str, future: Future[Any], job: Callable[[], Any]) -> None:
        try:
            found = job()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(found)
        with self._lock:
            self._running.discard(caller)
            self._n_free += 1
            self._begin()

"""How many requests a caller may send: a bucket of tokens that fills at a steady rate."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from qualab.errors import TooManyRequests

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

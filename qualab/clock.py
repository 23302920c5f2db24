"""The real clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


class SystemClock:
    """Wall time in aware UTC and the monotonic clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()


class SharedClock(SystemClock):
    """A clock that several machines can look at, carried on by this machine's monotonic one until the next look."""

    def __init__(self, read: Callable[[], datetime]) -> None:
        self._read = read
        self.look()

    def look(self) -> None:
        """Read it again. Raises what `read` raises, and then goes on as before."""
        began_s = time.monotonic()
        seen = self._read()
        self._seen = (seen, (began_s + time.monotonic()) / 2)

    def now(self) -> datetime:
        seen, at_s = self._seen
        return seen + timedelta(seconds=time.monotonic() - at_s)

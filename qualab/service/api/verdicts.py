"""Finished verdicts as they were sent: CI polls them, and they do not change."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

FRESH_S = 300.0
"""How long a comparison that another process deletes still answers here."""
KEPT = 20_000


class VerdictCache:
    """Bodies and their ETags by comparison."""

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._kept: OrderedDict[str, tuple[float, bytes, str]] = OrderedDict()

    def get(self, comparison_id: str) -> tuple[bytes, str] | None:
        """The body and its ETag, if they are fresh."""
        kept = self._kept.get(comparison_id)
        if kept is None or self._monotonic_s() - kept[0] >= FRESH_S:
            return None
        return kept[1], kept[2]

    def put(self, comparison_id: str, body: bytes, etag: str) -> None:
        """For a verdict that is final."""
        self._kept[comparison_id] = (self._monotonic_s(), body, etag)
        self._kept.move_to_end(comparison_id)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def drop(self, comparison_id: str) -> None:
        """Forgets it."""
        self._kept.pop(comparison_id, None)

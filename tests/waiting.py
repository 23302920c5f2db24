"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_for(look: Callable[[], Any], *, within_s: float = 120.0, or_say: Callable[[], object] = lambda: "") -> Any:
    """Looks until it finds something, and returns it."""
    ends_at = time.monotonic() + within_s
    while time.monotonic() < ends_at:
        if found := look():
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {within_s:g} s: {or_say()}")

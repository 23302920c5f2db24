"""Durations as people write them: 90s, 10m, 12h, 90d, 52w."""

from __future__ import annotations

import re
from datetime import timedelta

from qualab.errors import InvalidValue

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def duration(text: str, *, option: str) -> timedelta:
    """Raises InvalidValue naming the option."""
    found = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if not found:
        raise InvalidValue(f"{option} '{text}' is no time", hint="As 90s, 10m, 12h, 90d or 52w")
    return timedelta(**{UNITS[found[2]]: int(found[1])})

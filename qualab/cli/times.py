"""Durations and moments as a command line gives them: 90s, 12h, 90d, 2w; 2026-03-04."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from qualab.errors import InvalidValue

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"(\d{1,6})([smhdw])")


def duration(text: str, *, option: str) -> timedelta:
    """How long, or how long ago. Raises InvalidValue."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InvalidValue(f"{option}: '{text}' is no duration", hint="As 90s, 30m, 12h, 90d or 2w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def moment_of(text: str, *, option: str, now: datetime) -> datetime:
    """A date or time (UTC where it names no zone), or an age before now. Raises InvalidValue."""
    if _DURATION.fullmatch(text.strip()):
        return before(now, duration(text, option=option))
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        hint = "As 2026-03-04, 2026-03-04T05:06+09:00, or an age as 12h, 90d, 2w"
        raise InvalidValue(f"{option}: '{text}' is no time", hint=hint) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def before(now: datetime, age: timedelta) -> datetime:
    """So long before now, as far back as times go."""
    try:
        return now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)

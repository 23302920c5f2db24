"""Times as the database keeps them: whole microseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from qualab.errors import StoreError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_us(moment: datetime) -> int:
    """Microseconds since 1970 UTC of an aware time."""
    if moment.tzinfo is None:
        raise StoreError(f"the time {moment} has no time zone", hint="times are aware UTC")
    return (moment - _EPOCH) // _MICROSECOND


def from_us(moment_us: int) -> datetime:
    """The aware UTC time."""
    return _EPOCH + timedelta(microseconds=moment_us)


def to_us_or_none(moment: datetime | None) -> int | None:
    """`to_us` of a time that may be missing."""
    return None if moment is None else to_us(moment)


def from_us_or_none(moment_us: int | None) -> datetime | None:
    """`from_us` of a time that may be missing."""
    return None if moment_us is None else from_us(moment_us)

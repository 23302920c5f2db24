"""Pages of long lists: what a page holds, and where the next begins."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from qualab.domain.text import storable_text
from qualab.errors import InvalidValue

T = TypeVar("T")
_LARGEST = 2**63
"""Beyond what databases count to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """One page, and the cursor of the next one."""

    entries: tuple[T, ...]
    next_cursor: str | None
    """Opaque; None where this page is the last."""


def page_of(entries: Sequence[T], limit: int, cursor_of: Callable[[T], str]) -> Page[T]:
    """The page of `limit` entries at the head of `entries`, which hold one more where there is a next page."""
    shown = tuple(entries[:limit])
    return Page(entries=shown, next_cursor=cursor_of(shown[-1]) if len(entries) > limit else None)


def encode_cursor(name: str, *place: int) -> str:
    """A cursor of the list `name` that stands behind `place`."""
    text = ",".join((name, *map(str, place)))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, name: str, n_places: int) -> tuple[int, ...]:
    """The place that the cursor stands behind. Raises InvalidValue for what is no cursor of this list."""
    try:
        named, *place = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).split(b",")
        numbers = tuple(map(int, place))
    except (ValueError, binascii.Error):
        raise _unknown() from None
    if named != name.encode() or len(numbers) != n_places or any(abs(number) >= _LARGEST for number in numbers):
        raise _unknown()
    return numbers


def encode_text_cursor(name: str, text: str, *place: int) -> str:
    """The same of a list in the order of a text."""
    packed = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    return f"{encode_cursor(name, *place)}.{packed}"


def decode_text_cursor(cursor: str, name: str, n_places: int) -> tuple[str, tuple[int, ...]]:
    """The text, and the place. Raises InvalidValue."""
    place, _, packed = cursor.partition(".")
    try:
        text = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        raise _unknown() from None
    if storable_text(text) != text:
        raise _unknown()
    return text, decode_cursor(place, name, n_places)


def _unknown() -> InvalidValue:
    hint = "give `next_cursor` of a page back as it came"
    return InvalidValue(
        "the cursor is none of this list", hint=hint, fields={"cursor": "must be `next_cursor` of a page"}
    )

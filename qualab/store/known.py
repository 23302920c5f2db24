"""Comparisons by id, and what never changes of them: key, dictionaries, positions of items."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import zstandard
from sqlalchemy import Connection, bindparam, func, select

from qualab.model.registry import not_found
from qualab.store.tables import comparison, dictionary, item
from qualab.store.texts import TextCodec

_MOST = 64
"""Comparisons that stay in memory."""
_FIND = select(comparison.c.key, comparison.c.created_at).where(comparison.c.id == bindparam("wanted"))
_FIND_KEPT = _FIND.with_for_update(read=True, key_share=True)


class Found(NamedTuple):
    """A comparison that is there. SQLite gives the key of what was deleted last to the next: the time tells them
    apart."""

    key: int
    created_at: int


class Known(NamedTuple):
    """What never changes of a comparison."""

    key: int
    codec: TextCodec
    positions: Collection[int]
    """Of its items."""


def find(connection: Connection, comparison_id: str, *, is_kept: bool = False) -> Found:
    """Raises ComparisonNotFound.

    `is_kept`: nobody deletes it before the transaction ends (SQLite has one writer at a time anyway).
    """
    row = connection.execute(_FIND_KEPT if is_kept else _FIND, {"wanted": comparison_id}).first()
    if row is None:
        raise not_found(comparison_id)
    return Found(*row)


class Knowledge:
    """What is known of comparisons that were asked for lately."""

    def __init__(self) -> None:
        self._known: dict[Found, Known] = {}

    def __call__(self, connection: Connection, found: Found) -> Known:
        known = self._known.get(found)
        if known is None:
            known = Known(found.key, _codec(connection, found.key), _positions(connection, found.key))
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[found] = known
        return known

    def forget(self) -> None:
        """For when a comparison was deleted."""
        self._known.clear()


def take_turn(connection: Connection, key: int) -> None:
    """Of two transactions that replace the same, or number what they add, the other waits until this one ends."""
    connection.execute(select(comparison.c.key).where(comparison.c.key == key).with_for_update(key_share=True))


def _codec(connection: Connection, key: int) -> TextCodec:
    """What the comparison's texts are packed with."""
    query = select(dictionary.c.script, dictionary.c.data).where(dictionary.c.comparison_key == key)
    return TextCodec({script: zstandard.decompress(data) for script, data in connection.execute(query)})


def _positions(connection: Connection, key: int) -> Collection[int]:
    """A range where there are no gaps, as in every comparison that was planned here."""
    c = item.c
    bounds = select(func.min(c.position), func.max(c.position), func.count()).where(c.comparison_key == key)
    first, last, count = connection.execute(bounds).one()
    if count == 0:
        return range(0)
    if last - first + 1 == count:
        return range(first, last + 1)
    return frozenset(connection.scalars(select(c.position).where(c.comparison_key == key)))

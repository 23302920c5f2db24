"""Transactions: how they begin, and what becomes of the drivers' errors in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, Engine

from qualab.store.engine import reading, writing
from qualab.store.failures import translated
from qualab.store.known import Found, Knowledge, Known, find
from qualab.store.location import Location
from qualab.store.phrases import Phrases

T = TypeVar("T")


class Sessions:
    """One database's transactions, and what is remembered of it. Threads may share it."""

    def __init__(self, engine: Engine, location: Location) -> None:
        self.engine = engine
        self.location = location
        self.phrases = Phrases()
        self.known = Knowledge()
        self._reader = reading(engine)
        self._writer = writing(engine)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """What reads a little: one transaction in SQLite, in PostgreSQL each statement one of its own."""
        with translated(self.location), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is committed at its end, or not at all."""
        with translated(self.location), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def reading_of(self, comparison_id: str) -> Iterator[tuple[Connection, Found]]:
        """`reading`, about a comparison. Raises ComparisonNotFound."""
        with self.reading() as connection:
            yield connection, find(connection, comparison_id)

    @contextmanager
    def writing_to(self, comparison_id: str) -> Iterator[tuple[Connection, Found]]:
        """`writing`, of a comparison that nobody deletes meanwhile. Raises ComparisonNotFound."""
        with self.writing() as connection:
            yield connection, find(connection, comparison_id, is_kept=True)

    def streamed(self, comparison_id: str, read: Callable[[Connection, Known], Iterator[T]]) -> Iterator[T]:
        """What `read` yields, in a transaction of its own. Raises ComparisonNotFound at once."""
        with self.reading_of(comparison_id) as (connection, found):
            known = self.known(connection, found)
        return self._streamed(known, read)

    def _streamed(self, known: Known, read: Callable[[Connection, Known], Iterator[T]]) -> Iterator[T]:
        with translated(self.location), self.engine.connect() as connection:
            yield from read(connection, known)

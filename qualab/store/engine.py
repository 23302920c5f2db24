"""Connections and transactions: SQLite in WAL mode with foreign keys, PostgreSQL through psycopg 3."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Row, Select, create_engine, event, select
from sqlalchemy.exc import NoSuchModuleError

from qualab.errors import StoreError
from qualab.model.registry import not_found
from qualab.store.failures import translated
from qualab.store.location import Location
from qualab.store.rows import CHUNK
from qualab.store.tables import comparison

T = TypeVar("T")
_BUSY_TIMEOUT_S = 5.0
_CONNECT_TIMEOUT_S = 5
_KEPT_OPEN, _BEYOND = 16, 4
"""Connections to PostgreSQL: as many as the service's threads stay open, for one that is closed takes long to make."""


class Sessions:
    """One database's transactions. Threads may share it."""

    def __init__(self, engine: Engine, location: Location) -> None:
        self.engine = engine
        self.location = location
        self._reader = reading(engine)
        self._writer = writing(engine)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Begins what reads a little: one transaction in SQLite, in PostgreSQL each statement one of its own."""
        with translated(self.location), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Begins a transaction that is committed at its end, or not at all."""
        with translated(self.location), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def reading_of(self, comparison_id: str) -> Iterator[tuple[Connection, int]]:
        """Begins `reading` about a comparison; yields its key, too. Raises ComparisonNotFound."""
        with self.reading() as connection:
            yield connection, key_of(connection, comparison_id)

    @contextmanager
    def writing_to(self, comparison_id: str) -> Iterator[tuple[Connection, int]]:
        """Begins `writing` of a comparison that nobody deletes meanwhile. Raises ComparisonNotFound."""
        with self.writing() as connection:
            yield connection, key_of(connection, comparison_id, is_kept=True)

    def streamed(self, query: Select[Any], convert: Callable[[Row[Any]], T]) -> Iterator[T]:
        """Yields the values of rows in a transaction of their own, a chunk in memory at a time."""
        with translated(self.location), self.engine.connect() as connection:
            for rows in connection.execution_options(yield_per=CHUNK).execute(query).partitions():
                yield from map(convert, rows)


def key_of(connection: Connection, comparison_id: str, *, is_kept: bool = False) -> int:
    """The comparison's key. Raises ComparisonNotFound.

    `is_kept`: nobody deletes it before the transaction ends (SQLite has one writer at a time anyway).
    """
    query = select(comparison.c.key).where(comparison.c.id == comparison_id)
    key: int | None = connection.scalar(query.with_for_update(read=True, key_share=True) if is_kept else query)
    if key is None:
        raise not_found(comparison_id)
    return key


def take_turn(connection: Connection, key: int) -> None:
    """Lets one of two transactions that replace the same, or number what they add, wait until the other ends."""
    connection.execute(select(comparison.c.key).where(comparison.c.key == key).with_for_update(key_share=True))


def connect(location: Location) -> Engine:
    """An engine whose transactions begin as the execution option `writes` says."""
    return _sqlite(location) if location.path is not None else _postgresql(location)


def reading(engine: Engine) -> Engine:
    """The engine for reads that are no streams. At PostgreSQL's isolation, READ COMMITTED, each statement sees a state
    of its own with a transaction around them as well as without, which spares two messages to the server."""
    return engine if engine.dialect.name == "sqlite" else engine.execution_options(isolation_level="AUTOCOMMIT")


def writing(engine: Engine) -> Engine:
    """The engine for transactions that write: SQLite's take the write lock at once, so that none fails half way."""
    return engine.execution_options(begin="BEGIN IMMEDIATE")


def keep_log(engine: Engine, *, is_new: bool) -> None:
    """Puts a SQLite file into WAL mode, which it remembers."""
    with engine.execution_options(begin="").connect() as connection:
        if is_new or connection.exec_driver_sql("PRAGMA journal_mode").scalar() != "wal":
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")


def _sqlite(location: Location) -> Engine:
    timeout = {} if "timeout" in location.url.query else {"timeout": _BUSY_TIMEOUT_S}
    engine = create_engine(location.url, connect_args=timeout, hide_parameters=True)
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _begin)
    return engine


def _set_up(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun here, not by the driver
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")


def _begin(connection: Connection) -> None:
    if begin := connection.get_execution_options().get("begin", "BEGIN"):
        connection.exec_driver_sql(begin)


def _postgresql(location: Location) -> Engine:
    timeout = {} if "connect_timeout" in location.url.query else {"connect_timeout": _CONNECT_TIMEOUT_S}
    try:
        return create_engine(
            location.url,
            connect_args=timeout,
            hide_parameters=True,
            pool_pre_ping=True,
            pool_size=_KEPT_OPEN,
            max_overflow=_BEYOND,
        )
    except (ModuleNotFoundError, NoSuchModuleError) as exc:
        raise StoreError("PostgreSQL needs the driver psycopg", hint="pip install 'qualab[postgres]'") from exc

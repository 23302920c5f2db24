"""Connections and transactions: SQLite in WAL mode with foreign keys, PostgreSQL through psycopg 3."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.exc import NoSuchModuleError

from qualab.errors import StoreError
from qualab.model.registry import not_found
from qualab.store.failures import Location, translated
from qualab.store.tables import comparison

_BUSY_TIMEOUT_S = 5.0
_CONNECT_TIMEOUT_S = 5
_POOL: dict[str, Any] = {"pool_pre_ping": True, "pool_size": 16, "max_overflow": 4}
"""PostgreSQL: as many connections as the service's threads stay open, for a new one takes long to make."""


class Sessions:
    """One database's transactions. Threads may share it."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.engine = engine = _sqlite(location) if location.path is not None else _postgresql(location)
        # at PostgreSQL's READ COMMITTED each statement sees a state of its own anyway: autocommit spares two messages
        is_sqlite = engine.dialect.name == "sqlite"
        self._reader = engine if is_sqlite else engine.execution_options(isolation_level="AUTOCOMMIT")
        # SQLite takes the write lock at once, so that no transaction fails half way
        self._writer = engine.execution_options(begin="BEGIN IMMEDIATE")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; later calls open new ones."""
        self.engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Begin a short read: one transaction in SQLite, one a statement in PostgreSQL."""
        with translated(self.location), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Begin a transaction that is committed at its end, or not at all."""
        with translated(self.location), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def reading_of(self, comparison_id: str) -> Iterator[tuple[Connection, int]]:
        """Begin `reading`, and yield the comparison's key, too. Raises ComparisonNotFound."""
        with self.reading() as connection:
            yield connection, key_of(connection, comparison_id)

    @contextmanager
    def writing_to(self, comparison_id: str) -> Iterator[tuple[Connection, int]]:
        """Begin `writing` to a comparison, which nobody can delete meanwhile. Raises ComparisonNotFound."""
        with self.writing() as connection:
            yield connection, key_of(connection, comparison_id, is_kept=True)


def key_of(connection: Connection, comparison_id: str, *, is_kept: bool = False) -> int:
    """Read a comparison's key; with `is_kept` nobody can delete it before the end. Raises ComparisonNotFound."""
    query = select(comparison.c.key).where(comparison.c.id == comparison_id)
    key: int | None = connection.scalar(query.with_for_update(read=True, key_share=True) if is_kept else query)
    if key is None:
        raise not_found(comparison_id)
    return key


def take_turn(connection: Connection, key: int) -> None:
    """Wait for other transactions that replace or number the same comparison's rows."""
    connection.execute(select(comparison.c.key).where(comparison.c.key == key).with_for_update(key_share=True))


def _sqlite(location: Location) -> Engine:
    timeout = {} if "timeout" in location.url.query else {"timeout": _BUSY_TIMEOUT_S}
    engine = create_engine(location.url, connect_args=timeout, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _set_up(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # transactions are begun here, not by the driver
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if begin := connection.get_execution_options().get("begin", "BEGIN"):
            connection.exec_driver_sql(begin)

    return engine


def _postgresql(location: Location) -> Engine:
    timeout = {} if "connect_timeout" in location.url.query else {"connect_timeout": _CONNECT_TIMEOUT_S}
    try:
        return create_engine(location.url, connect_args=timeout, hide_parameters=True, **_POOL)
    except (ModuleNotFoundError, NoSuchModuleError) as exc:
        raise StoreError("PostgreSQL needs the driver psycopg", hint="pip install 'qualab[postgres]'") from exc

"""Connections, set up the same way everywhere: SQLite in WAL mode with foreign keys, PostgreSQL through psycopg 3."""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import NoSuchModuleError

from qualab.errors import StoreError
from qualab.store.location import Location

PAGE_BYTES = 8_192
"""A row of a WITHOUT ROWID table stays in its page up to a quarter of it; answers are mostly below."""
_BUSY_TIMEOUT_S = 5.0
_CONNECT_TIMEOUT_S = 5
_KEPT_OPEN, _BEYOND = 16, 4
"""Connections to PostgreSQL: as many as the service's threads stay open, for one that is closed takes long to make."""


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
    """Puts a SQLite file into WAL mode, which it remembers; a new one gets its page size first."""
    with engine.execution_options(begin="").connect() as connection:
        if is_new:
            connection.exec_driver_sql(f"PRAGMA page_size = {PAGE_BYTES}")
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

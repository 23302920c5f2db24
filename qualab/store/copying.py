"""Copies everything from one database into another, of either kind: SQLite to PostgreSQL, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, func, select, text

from qualab.errors import InvalidValue, StoreError
from qualab.model.registry import busy
from qualab.store.bulk import COPIED, chunks, copy_rows
from qualab.store.comparisons import read_claims
from qualab.store.engine import connect, writing
from qualab.store.failures import translated
from qualab.store.location import Location, locate
from qualab.store.runners import may_take
from qualab.store.schema import migrate, read_lineage, read_revision, refuse_missing, refuse_other
from qualab.store.tables import metadata

Row = tuple[Any, ...]


@dataclass(slots=True)
class _Seen:
    """Rows of a table as they went by. Their order does not matter: databases sort texts differently."""

    count: int = 0
    total: int = 0
    """Sum of the rows' SHA-256."""

    def passing(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self.count += 1
            self.total += int.from_bytes(hashlib.sha256(repr(row).encode()).digest())
            yield row


def copy_database(
    source: str, target: str, *, migrations: Path, now: datetime, stale_after_s: float, say: Callable[[str, int], None]
) -> None:
    """Copies every row, in one transaction that is committed only if the target then holds the very same rows.

    `say` is told each table and its rows. The target is made where it is missing; whatever its tables hold refuses it.
    Raises InvalidValue, StoreError, SchemaMismatch, and ComparisonBusy where a comparison is being run.
    """
    origin, goal = locate(source), locate(target)
    if origin.url == goal.url:
        raise InvalidValue("the database would be copied into itself", hint="give another with --to")
    refuse_missing(origin)
    with _opened(origin) as reader, _opened(goal) as writer:
        lineage = read_lineage(migrations)
        refuse_other(read_revision(reader, origin), lineage, origin)
        migrate(writer, goal, migrations)
        with translated(origin), _still(reader).connect() as read:
            _refuse_running(read, now, stale_after_s)
            with translated(goal), writing(writer).begin() as write:
                _refuse_filled(write, goal)
                for table in metadata.sorted_tables:
                    say(table.name, _copy_table(read, write, table, goal))


@contextmanager
def _opened(location: Location) -> Iterator[Engine]:
    engine = connect(location)
    try:
        yield engine
    finally:
        engine.dispose()


def _still(engine: Engine) -> Engine:
    """The engine for a transaction that sees everything as it was at its beginning, as SQLite's do anyway."""
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def _refuse_running(connection: Connection, now: datetime, stale_after_s: float) -> None:
    for comparison_id, claim in read_claims(connection).items():
        if not may_take(claim, runner="", now=now, stale_after_s=stale_after_s):
            raise busy(comparison_id, claim)


def _refuse_filled(connection: Connection, location: Location) -> None:
    for table in metadata.sorted_tables:
        if connection.execute(select(table).limit(1)).first() is not None:
            raise StoreError(f"the database at {location} is not empty: {table.name} has rows", hint="give a new one")


def _copy_table(read: Connection, write: Connection, table: Table, goal: Location) -> int:
    sent, arrived = _Seen(), _Seen()
    for chunk in chunks(sent.passing(_rows(read, table)), COPIED):
        copy_rows(write, table, chunk)
    for _ in arrived.passing(_rows(write, table)):
        pass
    if sent != arrived:
        raise StoreError(f"{table.name} did not arrive as it was sent to {goal}; nothing is kept there")
    _set_sequence(write, table)
    return sent.count


def _rows(connection: Connection, table: Table) -> Iterator[Row]:
    query = select(table).order_by(*table.primary_key.columns)
    return map(tuple, connection.execution_options(yield_per=COPIED).execute(query))


def _set_sequence(connection: Connection, table: Table) -> None:
    """PostgreSQL's next key comes after the last that was copied. SQLite looks at the table."""
    column = table.autoincrement_column
    if column is None or connection.dialect.name != "postgresql":
        return
    last = connection.scalar(select(func.max(column)))
    if last is not None:
        statement = text("SELECT setval(pg_get_serial_sequence(:table, :column), :last)")
        connection.execute(statement, {"table": table.name, "column": column.name, "last": last})

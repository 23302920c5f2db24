"""Many rows at once, each database its fastest way: SQLite's executemany, PostgreSQL's arrays in one statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import ARRAY, Connection, Insert, Table, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite

T = TypeVar("T")
Row = tuple[Any, ...]

CHUNK = 1_000
"""Rows that are in memory at a time."""


def chunks(values: Iterable[T]) -> Iterator[list[T]]:
    """Lists of at most CHUNK values."""
    source = iter(values)
    while chunk := list(islice(source, CHUNK)):
        yield chunk


def insert_rows(
    connection: Connection, table: Table, rows: Sequence[Row], *, names: tuple[str, ...] = (), skip_known: bool = False
) -> int:
    """Inserts rows and returns how many; `skip_known` leaves out those whose key is there already.

    `names`: the rows' columns in the table's order, all of them by default.
    """
    if not rows:
        return 0
    names = names or tuple(table.columns.keys())
    connection = connection.execution_options(preserve_rowcount=True)
    if connection.dialect.name == "sqlite":
        return connection.exec_driver_sql(_sqlite_sql(table, names, skip_known), list(rows)).rowcount
    arrays = {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    return connection.execute(_postgresql_insert(table, names, skip_known), arrays).rowcount


@cache
def _sqlite_sql(table: Table, names: tuple[str, ...], skip_known: bool) -> str:
    statement = sqlite.insert(table)
    statement = statement.on_conflict_do_nothing() if skip_known else statement
    return str(statement.compile(dialect=sqlite.dialect(), column_keys=list(names)))


@cache
def _postgresql_insert(table: Table, names: tuple[str, ...], skip_known: bool) -> Insert:
    arrays = [func.unnest(bindparam(name, type_=ARRAY(table.columns[name].type))) for name in names]
    statement = postgresql.insert(table).from_select(list(names), select(*arrays))
    return statement.on_conflict_do_nothing() if skip_known else statement

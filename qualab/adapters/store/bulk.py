"""Many rows at once, each database its fastest way: SQLite's executemany, PostgreSQL's arrays in one statement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import ARRAY, Connection, Dialect, Insert, Table, bindparam, func, select

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
    connection = connection.execution_options(preserve_rowcount=True)
    make = _sqlite_insert if connection.dialect.name == "sqlite" else _postgresql_insert
    statement = _compiled(make, table, names or tuple(table.columns.keys()), connection.dialect)
    if skip_known:
        statement += " ON CONFLICT DO NOTHING"
    # straight to the driver: what SQLAlchemy does to each value would cost more than all the rest
    if connection.dialect.name == "sqlite":
        return connection.exec_driver_sql(statement, list(rows)).rowcount
    arrays = {str(number): list(column) for number, column in enumerate(zip(*rows, strict=True))}
    return connection.exec_driver_sql(statement, arrays).rowcount


def _sqlite_insert(table: Table, names: tuple[str, ...]) -> Insert:
    return table.insert().values({name: bindparam(str(number)) for number, name in enumerate(names)})


def _postgresql_insert(table: Table, names: tuple[str, ...]) -> Insert:
    types = [ARRAY(table.columns[name].type) for name in names]
    arrays = [func.unnest(bindparam(str(number), type_=type_)) for number, type_ in enumerate(types)]
    return table.insert().from_select(list(names), select(*arrays))


@lru_cache(maxsize=64)
def _compiled(
    make: Callable[[Table, tuple[str, ...]], Insert], table: Table, names: tuple[str, ...], dialect: Dialect
) -> str:
    return str(make(table, names).compile(dialect=dialect))

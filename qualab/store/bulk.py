"""Many rows at once, each database its fastest way: SQLite's executemany, PostgreSQL's COPY, or its arrays in one
statement where rows are few or there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Connection,
    Dialect,
    Double,
    Insert,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    bindparam,
    func,
    select,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.types import TypeEngine

T = TypeVar("T")
Row = tuple[Any, ...]

CHUNK = 1_000
"""Rows that are in memory at a time."""
COPIED = 10_000
"""The same for rows that are copied: each COPY begins with a round trip."""
_WORTH_COPYING = 100
"""Rows from which a COPY that may have to be taken back is the quicker way: rows are seldom there already."""
_COPY_TYPES: dict[type[TypeEngine[Any]], str] = {
    SmallInteger: "int2",
    Integer: "int4",
    BigInteger: "int8",
    Double: "float8",
    Boolean: "bool",
    LargeBinary: "bytea",
    Text: "text",
}


def chunks(values: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Lists of at most `size` values."""
    source = iter(values)
    while chunk := list(islice(source, size)):
        yield chunk


def copy_rows(connection: Connection, table: Table, rows: Iterable[Row], *, names: tuple[str, ...] = ()) -> None:
    """Inserts rows that are all new. `names`: the rows' columns, all of the table's in their order by default.

    PostgreSQL takes them while they are made: whatever makes them may not use the connection.
    """
    if connection.dialect.name == "sqlite":
        insert_rows(connection, table, list(rows), names=names)
        return
    columns = [table.columns[name] for name in names or table.columns.keys()]
    statement = _copy_statement(table, tuple(column.name for column in columns), connection.dialect)
    driver: Any = connection.connection.dbapi_connection
    with _sqlalchemys_errors(connection), driver.cursor() as cursor, cursor.copy(statement) as copying:
        copying.set_types([_COPY_TYPES[type(column.type)] for column in columns])
        for row in rows:
            copying.write_row(row)


def insert_rows(
    connection: Connection, table: Table, rows: Sequence[Row], *, names: tuple[str, ...] = (), skip_known: bool = False
) -> int:
    """Inserts rows and returns how many; `skip_known` leaves out those whose key is there already.

    `names`: the rows' columns in the table's order, all of them by default.
    """
    if not rows:
        return 0
    if (
        len(rows) >= _WORTH_COPYING
        and connection.dialect.name == "postgresql"
        and _are_copied(connection, table, rows, names)
    ):
        return len(rows)
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


def _are_copied(connection: Connection, table: Table, rows: Sequence[Row], names: tuple[str, ...]) -> bool:
    """False where a row is not new, or impossible: then none is inserted."""
    try:
        with connection.begin_nested():
            copy_rows(connection, table, rows, names=names)
    except IntegrityError:
        return False
    return True


def _sqlite_insert(table: Table, names: tuple[str, ...]) -> Insert:
    return table.insert().values({name: bindparam(str(number)) for number, name in enumerate(names)})


def _postgresql_insert(table: Table, names: tuple[str, ...]) -> Insert:
    types = [ARRAY(table.columns[name].type) for name in names]
    arrays = [func.unnest(bindparam(str(number), type_=type_)) for number, type_ in enumerate(types)]
    return table.insert().from_select(list(names), select(*arrays))


def _copy_statement(table: Table, names: tuple[str, ...], dialect: Dialect) -> str:
    quote = dialect.identifier_preparer.quote
    return f"COPY {quote(table.name)} ({', '.join(map(quote, names))}) FROM STDIN (FORMAT BINARY)"


@contextmanager
def _sqlalchemys_errors(connection: Connection) -> Iterator[None]:
    """What the driver raises where SQLAlchemy is not in between, as SQLAlchemy raises it."""
    driver: Any = connection.dialect.loaded_dbapi
    try:
        yield
    except driver.Error as exc:
        raise DBAPIError.instance(None, None, exc, driver.Error, hide_parameters=True) from exc


@lru_cache(maxsize=64)
def _compiled(
    make: Callable[[Table, tuple[str, ...]], Insert], table: Table, names: tuple[str, ...], dialect: Dialect
) -> str:
    return str(make(table, names).compile(dialect=dialect))

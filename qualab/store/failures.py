"""Where a database is, and what its failures mean. SQLAlchemy's and the drivers' exceptions stop here."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError, StatementError
from zstandard import ZstdError

from qualab.errors import (
    InvalidValue,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
)

_FORMS = "give a file path, sqlite:///FILE or postgresql://USER@HOST/NAME"
_FULL_BELOW_BYTES = 65_536
"""SQLite reports a full disk as an I/O error where it cannot grow its shared memory file."""
_TEXTS: Mapping[type[StoreError], tuple[str, str]] = {
    StoreFull: ("no room is left for the database at {}", "free some space, then try again"),
    StoreLocked: ("the database at {} is locked by another program", "wait for it to end, or stop it, then try again"),
    StoreReadOnly: ("the database at {} cannot be written to", "check its permissions, or choose another with --db"),
}
_SQLITE: Mapping[int, type[StoreError]] = {
    sqlite3.SQLITE_BUSY: StoreLocked,
    sqlite3.SQLITE_LOCKED: StoreLocked,
    sqlite3.SQLITE_FULL: StoreFull,
    sqlite3.SQLITE_READONLY: StoreReadOnly,
    sqlite3.SQLITE_PERM: StoreReadOnly,
}
_POSTGRESQL: Mapping[str, type[StoreError]] = {
    "53100": StoreFull,  # disk_full
    "55P03": StoreLocked,  # lock_not_available
    "40P01": StoreLocked,  # deadlock_detected
    "25006": StoreReadOnly,  # read_only_sql_transaction
    "42501": StoreReadOnly,  # insufficient_privilege
}
_UNAVAILABLE = ("57P01", "57P02", "57P03", "53300", "08")
"""admin_shutdown, crash_shutdown, cannot_connect_now, too_many_connections, and the class of connection errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A database's location; as text it has no password."""

    url: URL
    path: Path | None
    """The file of a SQLite database."""

    def __str__(self) -> str:
        if self.path is not None:
            return str(self.path)
        secret = [name for name in self.url.query if "pass" in name.lower()]
        shown = self.url.set(drivername="postgresql").difference_update_query(secret)
        return shown.render_as_string(hide_password=True)

    def without_secrets(self, text: str) -> str:
        """Blot out the password, should a driver have quoted it."""
        for password in (self.url.password, *(self.url.query.get(name) for name in ("password", "sslpassword"))):
            if isinstance(password, str) and password:
                text = text.replace(password, "***")
        return text


def locate(where: str) -> Location:
    """Read a file path, sqlite:///FILE or postgresql://USER@HOST/NAME. Raises InvalidValue."""
    if not where.strip():
        raise InvalidValue("the database has no name", hint=_FORMS)
    if "://" not in where:
        path = Path(where).expanduser()
        return Location(url=URL.create("sqlite", database=str(path)), path=path)
    try:
        url = make_url(where)
    except (ArgumentError, ValueError):  # ValueError: a port that is no number, which may be half a password
        raise InvalidValue(
            "the database URL cannot be read", hint=f"{_FORMS}; a password's special characters as %40 and so on"
        ) from None
    backend = url.get_backend_name()
    if backend == "sqlite":
        name = url.database or ""
        if name.startswith("file:"):
            name = name.removeprefix("file:").partition("?")[0]
        if name in ("", ":memory:"):
            raise InvalidValue("a database in memory would be lost", hint="give a file: sqlite:///FILE")
        return Location(url=url.set(drivername="sqlite"), path=Path(name))
    if backend not in ("postgresql", "postgres"):
        raise InvalidValue(f"'{backend}' databases are not supported", hint=_FORMS)
    if "@" in (url.host or ""):
        raise InvalidValue(
            "the database URL has more than one @", hint="write an @ in the user name or password as %40"
        )
    return Location(url=url.set(drivername="postgresql+psycopg"), path=None)


@contextmanager
def translated(location: Location) -> Iterator[None]:
    """Raise StoreError and its subclasses in place of the drivers' errors."""
    try:
        yield
    except DBAPIError as exc:
        translate = _of_sqlite if location.path is not None else _of_postgresql
        raise translate(exc, location) from exc
    except (ZstdError, ValidationError, JSONDecodeError) as exc:
        raise StoreDamaged(
            f"a row in the database at {location} is damaged, or was altered", hint="restore a copy of the database"
        ) from exc
    except (SQLAlchemyError, OverflowError) as exc:
        if isinstance(exc, StatementError) and isinstance(exc.orig, StoreError):
            raise exc.orig from None  # a column's type refused the value
        raise StoreError(f"the database at {location} failed: {location.without_secrets(str(exc))}") from exc


def failed(kind: type[StoreError], location: Location) -> StoreError:
    """Say that a database is full, locked or read-only."""
    message, hint = _TEXTS[kind]
    return kind(message.format(location), hint=hint)


def unreachable(location: Location, reason: str) -> StoreUnavailable:
    """Say that a server or file cannot be opened."""
    return StoreUnavailable(
        f"cannot open the database at {location}: {' '.join(reason.split())}",
        hint="check the path or URL given with --db",
    )


def _of_sqlite(exc: DBAPIError, location: Location) -> StoreError:
    code = getattr(exc.orig, "sqlite_errorcode", 0) & 0xFF
    kind = _SQLITE.get(code)
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and _is_full(location):
        kind = StoreFull
    elif code == sqlite3.SQLITE_CANTOPEN and _is_unwritable(location):
        kind = StoreReadOnly
    if kind is not None:
        return failed(kind, location)
    if code == sqlite3.SQLITE_CANTOPEN:
        return unreachable(location, "it is no readable file")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StoreError(
            f"{location} is not a database, or a damaged one", hint="choose another file with --db, or restore a copy"
        )
    limits = "check the disk, and what limits it (quota, ulimit -f), then try again"
    hint = limits if code == sqlite3.SQLITE_IOERR else ""
    return StoreError(f"the database at {location} failed: {exc.orig}", hint=hint)


def _of_postgresql(exc: DBAPIError, location: Location) -> StoreError:
    state: str = getattr(exc.orig, "sqlstate", None) or ""
    if state in _POSTGRESQL:
        return failed(_POSTGRESQL[state], location)
    diagnosis = getattr(exc.orig, "diag", None)
    message: str = (diagnosis and diagnosis.message_primary) or str(exc.orig)  # the rest may hold the row
    reason = location.without_secrets(message.strip().replace("\n", " "))
    if exc.connection_invalidated or not state or state.startswith(_UNAVAILABLE):
        return unreachable(location, reason)
    return StoreError(f"the database at {location} failed: {reason}")


def _is_full(location: Location) -> bool:
    try:
        return location.path is not None and shutil.disk_usage(location.path.parent).free < _FULL_BELOW_BYTES
    except OSError:
        return False


def _is_unwritable(location: Location) -> bool:
    """Check the file, and its directory, where SQLite keeps its log."""
    if location.path is None or not location.path.parent.is_dir():
        return False
    return any(not os.access(path, os.W_OK) for path in (location.path.parent, location.path) if path.exists())

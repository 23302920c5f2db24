"""Turns what SQLAlchemy and the drivers raise into qualab's own errors. Foreign exceptions stop here."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from json import JSONDecodeError

from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError
from zstandard import ZstdError

from qualab.errors import StoreDamaged, StoreError, StoreFull, StoreLocked, StoreReadOnly, StoreUnavailable
from qualab.store.location import Location

_FULL_BELOW_BYTES = 65_536
"""SQLite reports a full disk as an I/O error where it cannot grow its shared memory file."""
_LIMITS = "check the disk, and what limits it (quota, ulimit -f), then try again"
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
_UNAVAILABLE = {"57P01", "57P02", "57P03", "53300"}
"""admin_shutdown, crash_shutdown, cannot_connect_now, too_many_connections; and all of class 08."""


@contextmanager
def translated(location: Location) -> Iterator[None]:
    """Raises StoreError and its subclasses in place of the drivers' errors."""
    try:
        yield
    except DBAPIError as exc:
        driver = exc.orig
        raise (
            _of_sqlite(driver, location) if isinstance(driver, sqlite3.Error) else _of_postgresql(exc, location)
        ) from exc
    except (ZstdError, ValidationError, JSONDecodeError) as exc:
        raise StoreDamaged(
            f"a row in the database at {location} is damaged, or was altered", hint="restore a copy of the database"
        ) from exc
    except OverflowError as exc:
        raise StoreError(f"a number is too large for the database at {location}") from exc
    except SQLAlchemyError as exc:
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


def _of_sqlite(exc: sqlite3.Error, location: Location) -> StoreError:
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
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
    return StoreError(f"the database at {location} failed: {exc}", hint=_LIMITS if code == sqlite3.SQLITE_IOERR else "")


def _of_postgresql(exc: DBAPIError, location: Location) -> StoreError:
    state: str = getattr(exc.orig, "sqlstate", None) or ""
    if state in _POSTGRESQL:
        return failed(_POSTGRESQL[state], location)
    diagnosis = getattr(exc.orig, "diag", None)
    told: str = (diagnosis and diagnosis.message_primary) or str(exc.orig)  # the rest may hold the row
    reason = location.without_secrets(told.strip().replace("\n", " "))
    if exc.connection_invalidated or not state or state in _UNAVAILABLE or state.startswith("08"):
        return unreachable(location, reason)
    return StoreError(f"the database at {location} failed: {reason}")


def _is_full(location: Location) -> bool:
    try:
        return location.path is not None and shutil.disk_usage(location.path.parent).free < _FULL_BELOW_BYTES
    except OSError:
        return False


def _is_unwritable(location: Location) -> bool:
    """Check whether the file may not be written, or its directory, where SQLite keeps its log."""
    if location.path is None or not location.path.parent.is_dir():
        return False
    return any(not os.access(place, os.W_OK) for place in (location.path.parent, location.path) if place.exists())

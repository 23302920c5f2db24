"""Turns what SQLAlchemy and the drivers raise into qualab's own errors. Foreign exceptions stop here."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
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

_SQLITE_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_SQLITE_READ_ONLY = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}
_SQLITE_UNREADABLE = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}

_POSTGRESQL = {
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
        raise _failure(exc, location) from exc
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


def full(location: Location) -> StoreFull:
    """For a full disk."""
    return StoreFull(f"no room is left for the database at {location}", hint="free some space, then try again")


def locked(location: Location) -> StoreLocked:
    """For a lock that was waited for in vain."""
    return StoreLocked(
        f"the database at {location} is locked by another program",
        hint="wait for it to end, or stop it, then try again",
    )


def read_only(location: Location) -> StoreReadOnly:
    """For a file, directory or user that may not write."""
    return StoreReadOnly(
        f"the database at {location} cannot be written to", hint="check its permissions, or choose another with --db"
    )


def unreachable(location: Location, reason: str) -> StoreUnavailable:
    """For a server or file that cannot be opened."""
    return StoreUnavailable(
        f"cannot open the database at {location}: {' '.join(reason.split())}",
        hint="check the path or URL given with --db",
    )


def _failure(exc: DBAPIError, location: Location) -> StoreError:
    if isinstance(exc.orig, sqlite3.Error):
        return _of_sqlite(exc.orig, location)
    return _of_postgresql(exc, location)


def _of_sqlite(exc: sqlite3.Error, location: Location) -> StoreError:
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code in _SQLITE_LOCKED:
        return locked(location)
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(location)):
        return full(location)
    if code in _SQLITE_READ_ONLY or (code == sqlite3.SQLITE_CANTOPEN and _is_unwritable(location)):
        return read_only(location)
    if code == sqlite3.SQLITE_CANTOPEN:
        return _full_or_unopened(location)
    if code in _SQLITE_UNREADABLE:
        return StoreError(
            f"{location} is not a database, or a damaged one", hint="choose another file with --db, or restore a copy"
        )
    return StoreError(f"the database at {location} failed: {exc}", hint=_LIMITS if code == sqlite3.SQLITE_IOERR else "")


def _of_postgresql(exc: DBAPIError, location: Location) -> StoreError:
    state: str = getattr(exc.orig, "sqlstate", None) or ""
    known = _POSTGRESQL.get(state)
    makers = {StoreFull: full, StoreLocked: locked, StoreReadOnly: read_only}
    if known is not None:
        return makers[known](location)
    diagnosis = getattr(exc.orig, "diag", None)
    told: str = (diagnosis and diagnosis.message_primary) or str(exc.orig)  # the rest may hold the row
    reason = location.without_secrets(told.strip().replace("\n", " "))
    if exc.connection_invalidated or not state or state in _UNAVAILABLE or state.startswith("08"):
        return unreachable(location, reason)
    return StoreError(f"the database at {location} failed: {reason}")


def _full_or_unopened(location: Location) -> StoreError:
    if _is_full(location):
        return full(location)
    return unreachable(location, "it is no readable file")


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

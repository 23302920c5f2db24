"""Turns what DBOS and the drivers raise into qualab's own errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from qualab.adapters.jobs.library import error
from qualab.errors import StoreError, StoreUnavailable


@contextmanager
def translated() -> Iterator[None]:
    """Raises StoreError in their place, without the database's URL, which may hold a password."""
    try:
        yield
    except DBAPIError as exc:
        said = str(exc.orig).strip().splitlines()
        kind = StoreUnavailable if isinstance(exc, OperationalError | InterfaceError) else StoreError
        raise kind(f"the queue's database failed: {said[0] if said else type(exc.orig).__name__}") from exc
    except (SQLAlchemyError, error.DBOSException) as exc:
        raise StoreError(f"the queue failed: {type(exc).__name__}") from exc

"""Opens a store, making or refusing its database."""

from __future__ import annotations

import weakref
from contextlib import ExitStack, suppress
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from qualab.store.engine import connect, keep_log
from qualab.store.location import Location, locate
from qualab.store.schema import migrate, read_lineage, read_revision, refuse_missing, refuse_other
from qualab.store.sql import SqlStore


def open_store(url: str, *, migrations: Path, create: bool = True) -> SqlStore:
    """Opens the database at a file path, sqlite:///FILE or postgresql://USER@HOST/NAME.

    A SQLite file that is missing or empty is made, with the newest schema, unless `create` is False. Any other database
    must have this version's schema: SchemaMismatch. Raises StoreError for what is no database, cannot be reached ...
    """
    location = locate(url)
    if not create:
        refuse_missing(location)
    engine = connect(location)
    with ExitStack() as undone:
        undone.callback(engine.dispose)
        _settle(engine, location, migrations, create=create)
        undone.pop_all()
    store = SqlStore(engine, location)
    weakref.finalize(store, engine.dispose)  # at the end of the process, too: SQLite then puts its log into the file
    return store


def _settle(engine: Engine, location: Location, migrations: Path, *, create: bool) -> None:
    """Leaves a database of this version's schema, or raises."""
    lineage = read_lineage(migrations)
    revision = None
    if location.path is None or location.path.exists():
        revision = read_revision(engine, location)
    if revision is None and create and location.path is not None:
        migrate(engine, location, migrations)
    else:
        refuse_other(revision, lineage, location)
        if location.path is not None:
            _restore_log(engine)


def _restore_log(engine: Engine) -> None:
    """A copy may have lost WAL mode, without which readers and writers block each other."""
    with suppress(DBAPIError):  # a database that is read-only or locked is read as it is
        keep_log(engine, is_new=False)

"""New SQLite stores, quickly: copies of a file that is migrated once a process."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import tempfile
import weakref
from functools import cache, partial
from pathlib import Path

from sqlalchemy import event

from qualab.store import Store, open_store, upgrade

MIGRATIONS = Path(__file__).parents[1] / "migrations"
_folder = tempfile.TemporaryDirectory(prefix="qualab-stores-")
_numbers = itertools.count(1)
opened = partial(open_store, migrations=MIGRATIONS)


def fresh_store() -> Store:
    """Makes an empty store; its file goes with it."""
    return _temporary(new_file(_new_path()))


def new_file(path: Path) -> Path:
    """Makes an empty database."""
    return Path(shutil.copy(_template(), path))


def copy_of(store: Store) -> Store:
    """Makes a second store with the same content."""
    path = _new_path()
    assert store.location.path is not None
    with sqlite3.connect(store.location.path) as source, sqlite3.connect(path) as target:
        source.backup(target)
    source.close()
    target.close()
    return _temporary(path)


def _temporary(path: Path) -> Store:
    store = opened(str(path))
    store.close()
    event.listen(store.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    for suffix in ("", "-wal", "-shm"):
        weakref.finalize(store, Path(f"{path}{suffix}").unlink, missing_ok=True)
    return store


def _new_path() -> Path:
    return Path(_folder.name) / f"{next(_numbers)}.db"


@cache
def _template() -> Path:
    path = Path(_folder.name) / "template.db"
    upgrade(str(path), MIGRATIONS)
    return path

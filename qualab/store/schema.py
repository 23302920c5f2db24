"""Opens a database, making or refusing it, and brings its schema to this version's.

Opening only compares the two; Alembic is imported when something is to be changed.
"""

from __future__ import annotations

import errno
import re
import time
import weakref
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from qualab.errors import SchemaMismatch, StoreError, StoreFull, StoreLocked, StoreReadOnly
from qualab.store.engine import Sessions
from qualab.store.failures import Location, failed, locate, translated, unreachable
from qualab.store.store import Store

_REVISION = re.compile(r"^revision\b[^=]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_VERSION_TABLE = "alembic_version"
_UPGRADE_LOCK = 7_105_313
"""PostgreSQL's advisory lock that upgrades take turns with; an arbitrary number."""
_TURN_S = 5.0
_KINDS: dict[int, type[StoreError]] = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), StoreReadOnly),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), StoreFull),
}
"""Meanings of the operating system's errors for a file that cannot be made."""


def read_revisions(migrations: Path) -> list[str]:
    """Read the revisions without running the migrations; their files' names sort the newest last."""
    sources = (path.read_text(encoding="utf-8") for path in sorted((migrations / "versions").glob("*.py")))
    revisions = [match[1] for source in sources if (match := _REVISION.search(source))]
    if not revisions:
        raise StoreError(f"{migrations} holds no migrations", hint="reinstall qualab")
    return revisions


def open_store(url: str, *, migrations: Path) -> Store:
    """Open the database at a file path, sqlite:///FILE or postgresql://USER@HOST/NAME.

    A SQLite file that is missing or empty is made, with the newest schema. Any other database must have this
    version's schema: SchemaMismatch. Raises StoreError for what is no database, cannot be reached ...
    """
    location = locate(url)
    store = Store(location)
    weakref.finalize(store, store.engine.dispose)  # also at the end of the process: SQLite then empties its log
    path = location.path
    revision = _read_revision(store) if path is None or path.exists() else None
    if revision is None and path is not None:
        _migrate(store, migrations)
        return store
    head = _refuse_unknown(revision, migrations, location)
    if revision is None:
        raise SchemaMismatch(f"the database at {location} has no tables yet", hint="run: qualab db upgrade")
    if revision != head:
        raise SchemaMismatch(
            f"the database at {location} has the older schema {revision}, this version of qualab needs {head}",
            hint="run: qualab db upgrade",
        )
    if path is not None:
        # a copy may have lost WAL mode; one that is read-only or locked is read as it is
        with suppress(DBAPIError):
            _keep_log(store, is_new=False)
    return store


def upgrade(url: str, migrations: Path) -> None:
    """Bring a database to this version's schema, making a SQLite file where there is none. Raises SchemaMismatch."""
    with Sessions(locate(url)) as sessions:
        _migrate(sessions, migrations)


def current(url: str, migrations: Path) -> tuple[str | None, str]:
    """Read the database's revision (None where it has no schema) and the one that this version needs.

    Raises StoreError where there is no SQLite file, which connecting would make.
    """
    location = locate(url)
    if location.path is not None and not location.path.exists():
        raise StoreError(f"there is no database at {location}", hint="check the path given with --db")
    with Sessions(location) as sessions:
        return _read_revision(sessions), read_revisions(migrations)[-1]


def _migrate(sessions: Sessions, migrations: Path) -> None:
    """Upgrade to the newest schema in one transaction. A database of an unknown schema is left as it is."""
    from alembic import command  # noqa: PLC0415  costs 0.1 s, and opening an existing database does without it
    from alembic.config import Config  # noqa: PLC0415

    config, location = Config(), sessions.location
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    if location.path is not None:
        if location.path.exists():
            _refuse_unknown(_read_revision(sessions), migrations, location)
        _make_file(sessions, location.path)
    with sessions.writing() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _UPGRADE_LOCK})
        _refuse_unknown(_revision(connection, location), migrations, location)  # another may have upgraded meanwhile
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _read_revision(sessions: Sessions) -> str | None:
    with sessions.reading() as connection:
        return _revision(connection, sessions.location)


def _refuse_unknown(revision: str | None, migrations: Path, location: Location) -> str:
    revisions = read_revisions(migrations)
    if revision is not None and revision not in revisions:
        raise SchemaMismatch(
            f"the database at {location} has the schema {revision}, which this version of qualab does not know",
            hint="update qualab, or carry the data over: `qualab export` with the version that wrote it, then "
            "`qualab import` into a new database",
        )
    return revisions[-1]


def _revision(connection: Connection, location: Location) -> str | None:
    """Read the revision; None where there is no schema yet. Raises StoreError for another program's file."""
    tables = set(inspect(connection).get_table_names())
    if _VERSION_TABLE in tables:
        revision: str | None = connection.scalar(text(f"SELECT version_num FROM {_VERSION_TABLE}"))
        return revision
    if tables and connection.dialect.name == "sqlite":
        raise StoreError(f"{location} is another program's database", hint="choose another file with --db")
    return None


def _make_file(sessions: Sessions, path: Path) -> None:
    location = sessions.location
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists() or path.stat().st_size == 0
    except OSError as exc:
        kind = _KINDS.get(exc.errno or 0)
        raise (failed(kind, location) if kind else unreachable(location, exc.strerror or str(exc))) from exc
    deadline_s = time.monotonic() + _TURN_S
    while True:
        try:
            with translated(location):
                _keep_log(sessions, is_new=is_new)
            return
        except StoreLocked:  # another program makes it at this moment
            if time.monotonic() > deadline_s:
                raise
        time.sleep(0.05)


def _keep_log(sessions: Sessions, *, is_new: bool) -> None:
    """Put a SQLite file into WAL mode, which it remembers."""
    with sessions.engine.execution_options(begin="").connect() as connection:
        if is_new or connection.exec_driver_sql("PRAGMA journal_mode").scalar() != "wal":
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")

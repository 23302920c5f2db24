"""Opens a database, making or refusing it, and brings its schema to this version's.

Opening only compares the two; Alembic is imported when something is to be changed.
"""

from __future__ import annotations

import errno
import re
import time
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError

from qualab.errors import SchemaMismatch, StoreError, StoreFull, StoreLocked, StoreReadOnly
from qualab.store.engine import connect, keep_log, writing
from qualab.store.failures import failed, translated, unreachable
from qualab.store.location import Location, locate
from qualab.store.store import Store

_REVISION = re.compile(r"^revision\b[^=]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_DOWN_REVISION = re.compile(r"^down_revision\b[^=]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_UNRELEASED = re.compile(r"00\d\d|1")
"""Revisions of versions before the first release."""
_VERSION_TABLE = "alembic_version"
_UPGRADE_LOCK = 7_105_313
"""PostgreSQL's advisory lock that upgrades take turns with; an arbitrary number."""
_TURN_S = 5.0
_KINDS: dict[int, type[StoreError]] = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), StoreReadOnly),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), StoreFull),
}
"""What the operating system says of a file that cannot be made."""


def read_lineage(migrations: Path) -> tuple[str, set[str]]:
    """Reads the newest revision and all of them, without running the migrations."""
    sources = [path.read_text(encoding="utf-8") for path in sorted((migrations / "versions").glob("*.py"))]
    revisions = {found[1] for source in sources if (found := _REVISION.search(source))}
    followed = {found[1] for source in sources if (found := _DOWN_REVISION.search(source))}
    heads = revisions - followed
    if len(heads) != 1:
        raise StoreError(f"{migrations} holds {len(heads)} newest migrations, not one", hint="reinstall qualab")
    return heads.pop(), revisions


def open_store(url: str, *, migrations: Path, create: bool = True) -> Store:
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
        revision: str | None = None
        if location.path is None or location.path.exists():
            revision = read_revision(engine, location)
        if revision is None and create and location.path is not None:
            migrate(engine, location, migrations)
        else:
            _refuse_other(revision, migrations, location)
            if location.path is not None:
                # a copy may have lost WAL mode; one that is read-only or locked is read as it is
                with suppress(DBAPIError):
                    keep_log(engine, is_new=False)
        undone.pop_all()
    store = Store(engine, location)
    weakref.finalize(store, engine.dispose)  # at the end of the process, too: SQLite then puts its log into the file
    return store


def upgrade(url: str, migrations: Path) -> None:
    """Brings a database to this version's schema, making a SQLite file where there is none. Raises SchemaMismatch."""
    location = locate(url)
    engine = connect(location)
    try:
        migrate(engine, location, migrations)
    finally:
        engine.dispose()


def current(url: str, migrations: Path) -> tuple[str | None, str]:
    """The database's revision (None where it has no schema) and the one that this version needs."""
    location = locate(url)
    refuse_missing(location)
    engine = connect(location)
    try:
        return read_revision(engine, location), read_lineage(migrations)[0]
    finally:
        engine.dispose()


def migrate(engine: Engine, location: Location, migrations: Path) -> None:
    """Upgrades to the newest schema in one transaction. A database of an unknown schema is left as it is."""
    from alembic import command  # noqa: PLC0415  costs 0.1 s, and opening an existing database does without it
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    if location.path is not None:
        if location.path.exists():
            _refuse_newer(read_revision(engine, location), migrations, location)
        _make_file(engine, location.path, location)
    with translated(location), writing(engine).begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _UPGRADE_LOCK})
        _refuse_newer(_revision(connection, location), migrations, location)  # another may have upgraded meanwhile
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def read_revision(engine: Engine, location: Location) -> str | None:
    """The database's revision; None where it has no schema yet. Raises StoreError for another program's file."""
    with translated(location), engine.connect() as connection:
        return _revision(connection, location)


def refuse_missing(location: Location) -> None:
    """Raises StoreError where there is no SQLite file, which connecting would make."""
    if location.path is not None and not location.path.exists():
        raise StoreError(f"there is no database at {location}", hint="check the path given with --db")


def _refuse_other(revision: str | None, migrations: Path, location: Location) -> None:
    head = _refuse_newer(revision, migrations, location)
    if revision is None:
        raise SchemaMismatch(f"the database at {location} has no tables yet", hint="run: qualab db upgrade")
    if revision != head:
        raise SchemaMismatch(
            f"the database at {location} has the older schema {revision}, this version of qualab needs {head}",
            hint="run: qualab db upgrade",
        )


def _refuse_newer(revision: str | None, migrations: Path, location: Location) -> str:
    head, known = read_lineage(migrations)
    if revision is not None and _UNRELEASED.fullmatch(revision):
        raise SchemaMismatch(
            f"the database at {location} was written before the first release (its schema is {revision})",
            hint="run `qualab export` with the version that wrote it, then `qualab import` into a new database",
        )
    if revision is not None and revision not in known:
        raise SchemaMismatch(
            f"the database at {location} was written by a newer version of qualab (its schema is {revision})",
            hint="update qualab, or choose another database with --db",
        )
    return head


def _revision(connection: Connection, location: Location) -> str | None:
    tables = set(inspect(connection).get_table_names())
    if _VERSION_TABLE in tables:
        revision: str | None = connection.scalar(text(f"SELECT version_num FROM {_VERSION_TABLE}"))
        return revision
    if tables and connection.dialect.name == "sqlite":
        raise StoreError(f"{location} is another program's database", hint="choose another file with --db")
    return None


def _make_file(engine: Engine, path: Path, location: Location) -> None:
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
                keep_log(engine, is_new=is_new)
            return
        except StoreLocked:  # another program makes it at this moment
            if time.monotonic() > deadline_s:
                raise
        time.sleep(0.05)

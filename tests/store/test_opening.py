"""Which databases are opened, made or refused, and what is said about it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text

from qualab.errors import InvalidValue, SchemaMismatch, StoreError
from qualab.model.ports import ComparisonFilter
from qualab.store import current, open_store, upgrade
from qualab.store.engine import Sessions
from qualab.store.failures import locate
from qualab.store.schema import read_revisions
from tests.store.conftest import MIGRATIONS
from tests.store.samples import make_comparison

SECRET = "hunter2-%40secret"


def test_a_new_file_is_made_with_its_directories(tmp_path: Path) -> None:
    path = tmp_path / "새 폴더" / "deep 100%" / "q.db"
    open_store(str(path), migrations=MIGRATIONS).close()
    head = read_revisions(MIGRATIONS)[-1]
    assert current(str(path), MIGRATIONS) == (head, head)


@pytest.mark.parametrize("form", ["{path}", "sqlite:///{path}", "sqlite:///file:{path}?uri=true"])
def test_every_form_of_a_path_is_the_same_database(form: str, tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    with open_store(form.format(path=path), migrations=MIGRATIONS) as store:
        store.create(make_comparison(), [])
    with open_store(str(path), migrations=MIGRATIONS, create=False) as store:
        assert [comparison.id for comparison in store.list(ComparisonFilter())] == ["c-1"]
    assert locate(form.format(path=path)).path == path


def test_a_relative_path_and_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (locate("here.db").path, locate("~/home.db").path) == (Path("here.db"), tmp_path / "home.db")


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_an_empty_file_is_a_new_database_and_one_whose_making_was_cut_off(tmp_path: Path, is_cut_off: bool) -> None:
    path = tmp_path / "q.db"
    path.touch()
    if is_cut_off:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
    with open_store(str(path), migrations=MIGRATIONS) as store:
        assert store.list(ComparisonFilter()) == []


def test_a_missing_file_is_not_made_when_it_must_not_be(tmp_path: Path) -> None:
    path = str(tmp_path / "none" / "q.db")
    for refused in (partial(open_store, create=False), current):
        with pytest.raises(StoreError, match=r"there is no database at .*q.db"):
            refused(path, migrations=MIGRATIONS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"{}", b"x" * 4_096, b"SQLite format 3\x00" + b"\x7f" * 8_192, None])
def test_what_is_not_qualabs_is_refused_and_kept(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    if content is None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE bookmark (id INTEGER)")
    before = path.read_bytes() if content is None else content
    path.write_bytes(before)
    for refused in (open_store, upgrade):
        with pytest.raises(StoreError, match=r"notes.txt is (not a database, or a damaged one|another program's)"):
            refused(str(path), migrations=MIGRATIONS)
    assert path.read_bytes() == before


@pytest.mark.parametrize("where", [".", "file/q.db"])
def test_a_directory_or_a_path_through_a_file_is_no_database(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot open the database"):
        open_store(str(tmp_path / where), migrations=MIGRATIONS)


@pytest.mark.parametrize("where", ["", " ", "sqlite://", "sqlite:///:memory:", "mysql://u@h/d", "http://h"])
def test_what_names_no_database_is_refused(where: str) -> None:
    with pytest.raises(InvalidValue):
        open_store(where, migrations=MIGRATIONS)


def test_migrations_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere holds no migrations"):
        open_store(str(tmp_path / "q.db"), migrations=tmp_path / "nowhere")


def test_a_postgresql_database_without_tables_asks_for_an_upgrade(empty_postgresql_url: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"no tables yet.*qualab db upgrade"):
        open_store(empty_postgresql_url, migrations=MIGRATIONS)
    upgrade(empty_postgresql_url, MIGRATIONS)
    with open_store(empty_postgresql_url, migrations=MIGRATIONS) as store:
        assert store.list(ComparisonFilter()) == []


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{SECRET}@127.0.0.1:1/name",
        f"postgres://user:{SECRET}@127.0.0.1:1/name",
        f"postgresql://user@127.0.0.1:1/name?password={SECRET}",
        f"postgresql://user:{SECRET}@127.0.0.1:1/name?sslpassword={SECRET}&sslmode=disable",
        f"postgresql://user:{SECRET}@no-such-host.invalid/name",
        "postgresql://user:hunter2-@secret@127.0.0.1:1/name?connect_timeout=1",
        "postgresql://user:hunter2-/secret@127.0.0.1:1/name?connect_timeout=1",
        "postgresql://user:hunter2-#?secret@127.0.0.1:1/name?connect_timeout=1",
        f"mysql://user:{SECRET}@127.0.0.1/name",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises((StoreError, InvalidValue)) as caught:
        open_store(url, migrations=MIGRATIONS)
    assert "hunter2" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_read_at_postgresql_begins_no_transaction_and_a_write_does(postgresql_url: str) -> None:
    from psycopg.pq import TransactionStatus

    with Sessions(locate(postgresql_url)) as sessions:
        reading, writing = sessions.reading, sessions.writing
        for begin, status in (reading, TransactionStatus.IDLE), (writing, TransactionStatus.INTRANS), (reading, 0):
            with begin() as connection:
                connection.execute(text("SELECT 1"))
                assert connection.connection.driver_connection.info.transaction_status == status


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"needs the driver psycopg.*qualab\[postgres\]"):
        open_store("postgresql://u@127.0.0.1:1/n", migrations=MIGRATIONS)


def test_a_copy_that_lost_its_log_gets_it_back(sqlite_url: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    for mode in ("delete", "wal"):
        with closing(sqlite3.connect(copy)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)
        open_store(str(copy), migrations=MIGRATIONS).close()


def test_opening_and_listing_needs_no_alembic(sqlite_url: str) -> None:
    code = (
        "import sys; from pathlib import Path; from qualab.store import open_store;"
        "from qualab.model.ports import ComparisonFilter;"
        "open_store(sys.argv[1], migrations=Path(sys.argv[2])).list(ComparisonFilter());"
        "heavy = {'alembic', 'lm_eval', 'scipy', 'datasets', 'psycopg', 'numpy'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, sqlite_url, str(MIGRATIONS)], check=True, timeout=60)


def test_the_log_goes_into_the_file_when_the_process_ends(tmp_path: Path) -> None:
    code = (
        "import gc, sys; from pathlib import Path; from qualab.store import open_store;"
        "store = open_store(sys.argv[1], migrations=Path(sys.argv[2]));"
        "store.cycle = store; gc.disable(); gc.freeze()"
    )
    file = tmp_path / "kept.db"
    subprocess.run([sys.executable, "-c", code, str(file), str(MIGRATIONS)], check=True, timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.db"]

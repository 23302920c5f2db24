"""Which databases are opened, made or refused, and what is said about it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from qualab.errors import InvalidValue, SchemaMismatch, StoreError
from qualab.model.ports import ComparisonFilter
from qualab.store import current, upgrade
from qualab.store.failures import locate
from tests.fresh_store import MIGRATIONS, new_file, opened
from tests.store import samples as make

SECRET = "hunter2-%40secret"


@pytest.mark.parametrize("form", ["{path}", "sqlite:///{path}", "sqlite:///file:{path}?uri=true"])
def test_a_file_is_made_with_its_folders_and_has_many_names(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "새 폴더" / "deep 100%" / "q.db"
    with opened(form.format(path=path)) as store:
        store.create(make.comparison(), [])
    with opened(str(path)) as store:
        assert [comparison.id for comparison in store.list(ComparisonFilter())] == ["c-1"]
    assert locate(form.format(path=path)).path == path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (locate("here.db").path, locate("~/home.db").path) == (Path("here.db"), tmp_path / "home.db")


def test_an_empty_file_one_whose_making_was_cut_off_and_a_copy_without_its_log_are_opened_with_a_log(
    sqlite_url: str, tmp_path: Path
) -> None:
    empty, cut_off, copy = paths = [tmp_path / f"{name}.db" for name in ("empty", "cut-off", "copy")]
    empty.touch()
    with closing(sqlite3.connect(cut_off)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    for path in paths:
        with opened(str(path)) as store:
            assert store.list(ComparisonFilter()) == []
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",), path


def test_a_missing_file_is_not_made_when_it_must_not_be(tmp_path: Path) -> None:
    path = str(tmp_path / "none" / "q.db")
    with pytest.raises(StoreError, match=r"there is no database at .*q.db"):
        current(path, migrations=MIGRATIONS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"{}", b"x" * 4_096, b"SQLite format 3\x00" + b"\x7f" * 8_192, None])
def test_what_is_not_qualabs_is_refused_and_kept(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    if content is None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE bookmark (id INTEGER)")
    before = path.read_bytes() if content is None else content
    path.write_bytes(before)
    for refused in (opened, partial(upgrade, migrations=MIGRATIONS)):
        with pytest.raises(StoreError, match=r"notes.txt is (not a database, or a damaged one|another program's)"):
            refused(str(path))
    assert path.read_bytes() == before


def test_what_names_no_database_is_refused(tmp_path: Path) -> None:
    for where in ("", " ", "sqlite://", "sqlite:///:memory:", "mysql://u@h/d", "http://h"):
        with pytest.raises(InvalidValue):
            opened(where)
    (tmp_path / "file").touch()
    for where in (".", "file/q.db"):
        with pytest.raises(StoreError, match="cannot open the database"):
            opened(str(tmp_path / where))
    with pytest.raises(StoreError, match="nowhere holds no migrations"):
        opened(str(tmp_path / "q.db"), migrations=tmp_path / "nowhere")


def test_a_postgresql_database_without_tables_asks_for_an_upgrade(empty_postgresql_url: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"no tables yet.*qualab db upgrade"):
        opened(empty_postgresql_url)
    upgrade(empty_postgresql_url, MIGRATIONS)
    with opened(empty_postgresql_url) as store:
        assert store.list(ComparisonFilter()) == []


def test_a_password_is_never_shown() -> None:
    pytest.importorskip("psycopg")
    for url in (
        f"postgresql://user:{SECRET}@127.0.0.1:1/name",
        f"postgres://user:{SECRET}@127.0.0.1:1/name",
        f"postgresql://user@127.0.0.1:1/name?password={SECRET}",
        f"postgresql://user:{SECRET}@127.0.0.1:1/name?sslpassword={SECRET}&sslmode=disable",
        f"postgresql://user:{SECRET}@no-such-host.invalid/name",
        "postgresql://user:hunter2-@secret@127.0.0.1:1/name?connect_timeout=1",
        "postgresql://user:hunter2-/secret@127.0.0.1:1/name?connect_timeout=1",
        "postgresql://user:hunter2-#?secret@127.0.0.1:1/name?connect_timeout=1",
        f"mysql://user:{SECRET}@127.0.0.1/name",
    ):
        with pytest.raises((StoreError, InvalidValue)) as caught:
            opened(url)
        assert "hunter2" not in str(caught.value)
        assert "secret" not in str(caught.value)


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"needs the driver psycopg.*qualab\[postgres\]"):
        opened("postgresql://u@127.0.0.1:1/n")


PROGRAM = """
import gc, sys
from datetime import UTC, datetime
from pathlib import Path
from qualab.model.ports import ComparisonFilter
from qualab.store import open_store

store = open_store(sys.argv[1], migrations=Path(sys.argv[2]))
store.list(ComparisonFilter())
heavy = {'alembic', 'lm_eval', 'scipy', 'datasets', 'psycopg', 'numpy'} & set(sys.modules)
assert not heavy, heavy
store.see_worker("r", now=datetime.now(UTC))
store.cycle = store
gc.disable()
gc.freeze()
"""


def test_a_process_loads_nothing_heavy_and_its_log_goes_into_the_file_when_it_ends(tmp_path: Path) -> None:
    file = new_file(tmp_path / "kept.db")
    subprocess.run([sys.executable, "-c", PROGRAM, str(file), str(MIGRATIONS)], check=True, timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.db"]

"""The ways of backing up that docs/storage.md names, while others write."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from qualab.store import Store, open_store
from qualab.store.engine import writing
from tests.store import postgresql
from tests.store.conftest import MIGRATIONS
from tests.store.samples import BASELINE, make_answer
from tests.store.test_migrations import fill

DOCS = (Path(__file__).parents[2] / "docs" / "storage.md").read_text(encoding="utf-8")


def check(where: str, wanted: list[object]) -> None:
    with open_store(where, migrations=MIGRATIONS) as store:
        assert answers(store) == wanted
        assert len(store.tokens()) == 1


def answers(store: Store) -> list[object]:
    return list(store.answers("c-1", arm=BASELINE))


def documented(command: str) -> str:
    assert command in DOCS
    return command


@pytest.mark.parametrize("command", [".backup 'backup.db'", "VACUUM INTO 'backup-2.db'"])
def test_a_sqlite_file_is_backed_up_while_it_is_written(sqlite_url: str, tmp_path: Path, command: str) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("needs the command sqlite3")
    with open_store(sqlite_url, migrations=MIGRATIONS) as store:
        fill(store)
        store.add_answers("c-1", [make_answer(5)])  # in the log, not in the file
        before = answers(store)
        with writing(store.engine).begin() as connection:
            connection.exec_driver_sql("UPDATE comparison SET label = 'half way'")
            subprocess.run(["sqlite3", "qualab.db", documented(command)], cwd=tmp_path, check=True)
        backup = tmp_path / command.split("'")[1]
        with sqlite3.connect(backup) as copy:
            assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert copy.execute("SELECT label FROM comparison").fetchone() == ("",)
    check(str(backup), before)


def test_a_postgresql_database_is_dumped_and_restored(
    server: str, postgresql_url: str, empty_postgresql_url: str, tmp_path: Path
) -> None:
    programs = postgresql.binaries()
    assert programs is not None
    with open_store(postgresql_url, migrations=MIGRATIONS) as store:
        fill(store)
        before = answers(store)
        dump = documented("pg_dump --format=custom --file=qualab.dump").split()
        restore = documented("pg_restore --no-owner").split()
        run(programs, [*dump, f"--dbname={postgresql_url}"], tmp_path)
    run(programs, [*restore, f"--dbname={empty_postgresql_url}", "qualab.dump"], tmp_path)
    check(empty_postgresql_url, before)
    with open_store(empty_postgresql_url, migrations=MIGRATIONS) as store:  # sequences go on
        store.note(store.audit().entries[0])


def run(programs: Path, command: list[str], folder: Path) -> None:
    subprocess.run([str(programs / command[0]), *command[1:]], cwd=folder, check=True, timeout=60)

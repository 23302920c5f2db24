"""The migrations make the schema that the code describes, on both databases; backups as docs/storage.md names them."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from qualab.errors import SchemaMismatch
from qualab.store import Store, current, open_store, upgrade
from qualab.store.engine import Sessions
from qualab.store.failures import locate
from qualab.store.schema import read_revisions
from qualab.store.tables import metadata
from tests.fresh_store import MIGRATIONS, opened
from tests.house.modules import ROOT
from tests.store import postgresql
from tests.store import samples as make
from tests.store.samples import BASELINE, CANDIDATE, NOW, ask_for
from tests.store.test_answers import ENGINE

HEAD = read_revisions(MIGRATIONS)[-1]
LATER = "9999"


def test_a_comparison_can_be_read_without_qualab(url: str) -> None:
    with opened(url) as store:
        store.create(make.comparison(), make.items(2))
        store.add_answers("c-1", [make.answer(1, CANDIDATE, "정답은 3", model="org/m", reasoning="먼저")])
        store.put_scores("c-1", [make.score(1, CANDIDATE, 0.5)])
        query = """SELECT c.status, i.task, i.n_requests, a.arm, a.status AS ended, a.text, a.model, a.reasoning,
                a.finish_reason, s.metric, s.value, a.sent_at
            FROM comparison c JOIN item i ON i.comparison_key = c.key
            JOIN answer a USING (comparison_key, position) JOIN score s USING (comparison_key, position, arm)"""
        with store.engine.connect() as connection:
            *values, sent_at = connection.execute(text(query)).one()
    assert values[:8] == ["planned", "gsm8k", 1, "candidate", "ok", "정답은 3", "org/m", "먼저"]
    assert values[8:] == ["stop", make.score(1).metric, 0.5]
    assert str(sent_at)[:10] == str(make.answer(1).reply.sent_at.date())


def test_what_belongs_to_a_comparison_goes_with_it(url: str) -> None:
    with opened(url) as store:
        fill(store)
        with store.writing() as connection:
            connection.execute(text("DELETE FROM bank"))  # it keeps its comparison
            connection.execute(text("DELETE FROM comparison"))
        with store.engine.connect() as connection:
            left = {name for name in metadata.tables if connection.scalar(text(f"SELECT count(*) FROM {name}"))}
    assert left == {"token", "audit", "worker"}


def fill(store: Store) -> None:
    """A row in every table."""
    entry = make.entry()
    store.create(make.comparison(), [make.item(number, target="the same, or nearly " * 90) for number in range(200)])
    store.add_answers("c-1", [make.answer(0), make.answer(1, run=1)])
    store.put_scores("c-1", [make.score(0)])
    store.put_scored("c-1", [make.scored(0)])
    store.add_look("c-1", make.look(), now=NOW)
    store.add_observation("c-1", ENGINE)
    store.put_analysis(make.analysis(), now=NOW)
    store.put_outcomes("c-1", [make.outcome(0)])
    store.sign_off(make.signoff(), entry=entry)
    ask_for(store, "c-2", webhook_url="https://ci.example.com/hook")
    store.add_token(make.token(), entry=entry)
    store.see_worker("r", now=NOW)
    store.add_bank(make.bank(), entry=entry)
    with store.engine.connect() as connection:
        empty = [name for name in metadata.tables if not connection.scalar(text(f"SELECT count(*) FROM {name}"))]
    assert empty == []


def test_the_migrations_make_what_the_tables_describe(empty_url: str) -> None:
    def is_compared(_: object, name: str, kind: str, *__: object) -> bool:
        """Without the indexes that have a direction, of which SQLite tells too little: see test_lists."""
        return not (kind == "index" and name.startswith("comparison_by_"))

    for _ in range(2):
        upgrade(empty_url, MIGRATIONS)
    assert current(empty_url, MIGRATIONS) == (HEAD, HEAD)
    with Sessions(locate(empty_url)) as sessions, sessions.reading() as connection:
        opts = {"compare_type": True, "compare_server_default": True, "include_object": is_compared}
        assert compare_metadata(MigrationContext.configure(connection, opts=opts), metadata) == []


def test_programs_that_make_the_same_database_take_turns(empty_url: str) -> None:
    code = (
        "import sys; from tests.fresh_store import MIGRATIONS, opened, upgrade; upgrade(sys.argv[1], MIGRATIONS);"
        "assert opened(sys.argv[1]).tokens() == []"
    )
    command_line = [sys.executable, "-c", code, empty_url]
    children = [subprocess.Popen(command_line, stderr=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)]
    assert [child.communicate(timeout=60)[1] for child in children] == ["", ""]
    assert [child.returncode for child in children] == [0, 0]


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The migrations of a later version."""
    folder = Path(shutil.copytree(MIGRATIONS, tmp_path / "later 100%"))
    revision = f'from alembic import op\nrevision: str = "{LATER}"\ndown_revision: str | None = "{HEAD}"\n'
    change = "def upgrade():\n    op.execute('CREATE TABLE later (id INTEGER)')\n"
    (folder / "versions" / "later.py").write_text(revision + change)
    return folder


def test_an_older_schema_is_refused_until_it_is_upgraded_and_a_newer_one_left_as_it_is(url: str, newer: Path) -> None:
    with opened(url) as store:
        store.create(make.comparison(), make.items(2))
    with pytest.raises(SchemaMismatch, match=rf"older schema {HEAD}.* needs {LATER}.*qualab db upgrade"):
        open_store(url, migrations=newer)
    assert current(url, newer) == (HEAD, LATER)
    try:
        upgrade(url, newer)
        with open_store(url, migrations=newer) as store:
            assert len(list(store.items("c-1"))) == 2
        location = locate(url)
        before = location.path.read_bytes() if location.path else b""
        for refused in (open_store, upgrade):
            with pytest.raises(SchemaMismatch, match=rf"schema {LATER}, which .* does not know.*update qualab.*export"):
                refused(url, migrations=MIGRATIONS)
        assert (location.path.read_bytes() if location.path else b"") == before
        assert current(url, MIGRATIONS) == (LATER, HEAD)
    finally:  # the tests of PostgreSQL share a database
        with Sessions(locate(url)) as sessions, sessions.writing() as connection:
            connection.execute(text("DROP TABLE later"))
            connection.execute(text(f"UPDATE alembic_version SET version_num = '{HEAD}'"))


DOCS = (ROOT / "docs" / "storage.md").read_text(encoding="utf-8")


def content(store: Store) -> list[object]:
    assert len(store.tokens()) == 1
    return list(store.answers("c-1", arm=BASELINE))


def documented(command: str) -> str:
    assert command in DOCS
    return command


@pytest.mark.parametrize("command", [".backup 'backup.db'", "VACUUM INTO 'backup-2.db'"])
def test_a_sqlite_file_is_backed_up_while_it_is_written(sqlite_url: str, tmp_path: Path, command: str) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("needs the command sqlite3")
    with opened(sqlite_url) as store:
        fill(store)
        store.add_answers("c-1", [make.answer(5)])  # in the log, not in the file
        before = content(store)
        with store.writing() as connection:
            connection.exec_driver_sql("UPDATE comparison SET label = 'half way'")
            subprocess.run(["sqlite3", "qualab.db", documented(command)], cwd=tmp_path, check=True)
        backup = tmp_path / command.split("'")[1]
        with sqlite3.connect(backup) as copy:
            assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert copy.execute("SELECT label FROM comparison").fetchone() == ("",)
    with opened(str(backup)) as store:
        assert content(store) == before


def test_a_postgresql_database_is_dumped_and_restored(
    server: str, postgresql_url: str, empty_postgresql_url: str, tmp_path: Path
) -> None:
    def run(command: str, *more: str) -> None:
        program, *arguments = documented(command).split()
        subprocess.run([f"{programs}/{program}", *arguments, *more], cwd=tmp_path, check=True, timeout=60)

    programs = postgresql.binaries()
    with opened(postgresql_url) as store:
        fill(store)
        before = content(store)
        run("pg_dump --format=custom --file=qualab.dump", f"--dbname={postgresql_url}")
    run("pg_restore --no-owner", f"--dbname={empty_postgresql_url}", "qualab.dump")
    with opened(empty_postgresql_url) as store:
        assert content(store) == before
        store.note(store.audit().entries[0])  # sequences go on

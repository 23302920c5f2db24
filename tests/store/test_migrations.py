"""The migrations make the schema that the code describes, on both databases."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from qualab.errors import SchemaMismatch
from qualab.store import Store, current, open_store, upgrade
from qualab.store.engine import connect, writing
from qualab.store.location import locate
from qualab.store.schema import read_lineage
from qualab.store.tables import metadata
from tests.store.conftest import MIGRATIONS
from tests.store.samples import (
    CANDIDATE,
    NOW,
    ask_for,
    make_analysis,
    make_answer,
    make_comparison,
    make_entry,
    make_item,
    make_items,
    make_look,
    make_outcome,
    make_score,
    make_signoff,
    make_token,
)
from tests.store.test_observations import ENGINE

HEAD = read_lineage(MIGRATIONS)[0]
LATER = "9999"


def test_the_first_schema_has_every_table(empty_url: str) -> None:
    upgrade(empty_url, MIGRATIONS)
    upgrade(empty_url, MIGRATIONS)
    engine = connect(locate(empty_url))
    assert set(inspect(engine).get_table_names()) - {"alembic_version"} == set(metadata.tables)
    engine.dispose()
    assert current(empty_url, MIGRATIONS) == (HEAD, HEAD)


@pytest.mark.parametrize("revision", ["0001", "0017", "1"])
def test_a_database_of_before_the_first_release_says_how_to_carry_it_over(url: str, revision: str) -> None:
    stamp(url, revision)
    try:
        for refused in (open_store, upgrade):
            with pytest.raises(SchemaMismatch, match=rf"before the first release .*{revision}.*export.*import"):
                refused(url, migrations=MIGRATIONS)
    finally:
        stamp(url, HEAD)


def stamp(url: str, revision: str) -> None:
    engine = connect(locate(url))
    with writing(engine).begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    engine.dispose()


def test_a_comparison_can_be_read_without_qualab(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(2))
        store.add_answers("c-1", [make_answer(1, CANDIDATE, "정답은 3", model="org/m", reasoning="먼저")])
        store.put_scores("c-1", [make_score(1, CANDIDATE, 0.5)])
        query = """SELECT c.status, i.task, i.n_requests, a.arm, a.status AS ended, a.text, a.model, a.reasoning,
                a.finish_reason, s.metric, s.value, a.sent_at
            FROM comparison c JOIN item i ON i.comparison_key = c.key
            JOIN answer a USING (comparison_key, position) JOIN score s USING (comparison_key, position, arm)"""
        with store.engine.connect() as connection:
            *values, sent_at = connection.execute(text(query)).one()
    assert values[:8] == ["planned", "gsm8k", 1, "candidate", "ok", "정답은 3", "org/m", "먼저"]
    assert values[8:] == ["stop", make_score(1).metric, 0.5]
    assert str(sent_at)[:10] == str(make_answer(1).reply.sent_at.date())


def test_what_belongs_to_a_comparison_goes_with_it(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        fill(store)
        with writing(store.engine).begin() as connection:
            connection.execute(text("DELETE FROM comparison"))
        with store.engine.connect() as connection:
            left = {name for name in metadata.tables if connection.scalar(text(f"SELECT count(*) FROM {name}"))}
    assert left == {"token", "audit", "worker"}


def fill(store: Store) -> None:
    """A row in every table."""
    entry = make_entry()
    store.create(make_comparison(), [make_item(number, target="the same, or nearly " * 90) for number in range(200)])
    store.add_answers("c-1", [make_answer(0), make_answer(1, run=1)])
    store.put_scores("c-1", [make_score(0)])
    store.add_look("c-1", make_look(), now=NOW)
    store.add_observation("c-1", ENGINE)
    store.put_analysis(make_analysis(), now=NOW)
    store.put_outcomes("c-1", [make_outcome(0)])
    store.sign_off(make_signoff(), entry=entry)
    ask_for(store, "c-2")
    store.add_token(make_token(), entry=entry)
    store.see_worker("r", now=NOW)
    with store.engine.connect() as connection:
        empty = [name for name in metadata.tables if not connection.scalar(text(f"SELECT count(*) FROM {name}"))]
    assert empty == []


def test_the_migrations_make_what_the_tables_describe(url: str) -> None:
    engine = connect(locate(url))
    with engine.connect() as connection:
        opts = {"compare_type": True, "compare_server_default": True, "include_object": is_compared}
        context = MigrationContext.configure(connection, opts=opts)
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def is_compared(_: object, name: str, kind: str, *__: object) -> bool:
    """Without the indexes that have a direction, of which SQLite tells too little: see test_lists."""
    return not (kind == "index" and name.startswith("comparison_by_"))


def test_the_migrations_make_the_checks_that_the_tables_describe(url: str) -> None:
    engine = connect(locate(url))
    made = {table: checks(inspect(engine).get_check_constraints(table)) for table in metadata.tables}
    assert len(made["answer"]) == 8
    # the same tables made from the description, in a schema of their own, read back in the same way
    with engine.execution_options(begin="", schema_translate_map={None: "described"}).connect() as connection:
        is_sqlite = connection.dialect.name == "sqlite"
        connection.execute(text("ATTACH ':memory:' AS described" if is_sqlite else "CREATE SCHEMA described"))
        metadata.create_all(connection)
        described = inspect(connection)
        wanted = {table: checks(described.get_check_constraints(table, "described")) for table in metadata.tables}
        connection.rollback()
    assert made == wanted
    engine.dispose()


def checks(found: Iterable[Any]) -> dict[str, str]:
    return {str(check["name"]): str(check["sqltext"]) for check in found}


def test_sqlite_keeps_a_log_and_checks_foreign_keys(sqlite_url: str) -> None:
    engine = connect(locate(sqlite_url))
    with engine.connect() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(text("PRAGMA synchronous")) == 1
        assert connection.scalar(text("PRAGMA foreign_keys")) == 1
        assert connection.scalar(text("PRAGMA busy_timeout")) == 5_000
    engine.dispose()


def test_programs_that_make_the_same_database_take_turns(empty_url: str) -> None:
    code = (
        "import sys; from pathlib import Path; from qualab.store import upgrade, open_store;"
        "from qualab.model.ports import ComparisonFilter;"
        "upgrade(sys.argv[1], Path(sys.argv[2]));"
        "assert open_store(sys.argv[1], migrations=Path(sys.argv[2])).list(ComparisonFilter()) == []"
    )
    command_line = [sys.executable, "-c", code, empty_url, str(MIGRATIONS)]
    children = [subprocess.Popen(command_line, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [child.communicate(timeout=60)[1] for child in children] == ["", "", ""]
    assert [child.returncode for child in children] == [0, 0, 0]


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The migrations of a later version."""
    folder = tmp_path / "later 100%"
    (folder / "versions").mkdir(parents=True)
    for path in MIGRATIONS.rglob("*.py"):
        (folder / path.relative_to(MIGRATIONS)).write_text(path.read_text())
    (folder / "versions" / "later.py").write_text(
        "from alembic import op\n"
        f'revision: str = "{LATER}"\n'
        f'down_revision: str | None = "{HEAD}"\n'
        "def upgrade():\n    op.execute('CREATE TABLE later (id INTEGER)')\n"
    )
    return folder


def test_an_older_schema_is_refused_until_it_is_upgraded(url: str, newer: Path) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(2))
    with pytest.raises(SchemaMismatch, match=rf"older schema {HEAD}.* needs {LATER}.*qualab db upgrade"):
        open_store(url, migrations=newer)
    assert current(url, newer) == (HEAD, LATER)
    try:
        upgrade(url, newer)
        with open_store(url, migrations=newer) as store:
            assert len(list(store.items("c-1"))) == 2
    finally:
        undo(url)


def test_a_newer_schema_is_refused_and_nothing_is_written(url: str, newer: Path) -> None:
    upgrade(url, newer)
    try:
        location = locate(url)
        before = location.path.read_bytes() if location.path else b""
        for refused in (open_store, upgrade):
            with pytest.raises(SchemaMismatch, match=rf"newer version of qualab .*{LATER}.*update qualab"):
                refused(url, migrations=MIGRATIONS)
        assert (location.path.read_bytes() if location.path else b"") == before
        assert current(url, MIGRATIONS) == (LATER, HEAD)
    finally:
        undo(url)


def undo(url: str) -> None:
    """The tests of PostgreSQL share a database."""
    engine = connect(locate(url))
    with writing(engine).begin() as connection:
        connection.execute(text("DROP TABLE later"))
    engine.dispose()
    stamp(url, HEAD)

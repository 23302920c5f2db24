"""The migrations make the schema that the code describes, on both databases, forwards and backwards."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect, text

from qualab.errors import SchemaMismatch
from qualab.model.names import ArmName
from qualab.model.ports import ComparisonFilter
from qualab.store import SqlStore, codes, current, open_store, upgrade
from qualab.store.engine import connect, writing
from qualab.store.location import locate
from qualab.store.partial import FLIPPED_OUTCOMES, WAITING_SUBMISSIONS
from qualab.store.schema import read_lineage
from qualab.store.tables import metadata
from tests.store.conftest import MIGRATIONS
from tests.store.samples import (
    BASELINE,
    CANDIDATE,
    NOW,
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
    make_submission,
    make_token,
)
from tests.store.test_contract_observations import ENGINE, PINS, SEGMENT, TOKENS

HEAD = read_lineage(MIGRATIONS).head
LATER = "9999"


def downgrade(engine: Engine, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with writing(engine).begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names()) - {"alembic_version"}


def test_upgrade_downgrade_and_upgrade_again(empty_url: str) -> None:
    upgrade(empty_url, MIGRATIONS)
    engine = connect(locate(empty_url))
    assert tables(engine) == set(metadata.tables)
    downgrade(engine, "base")
    assert tables(engine) == set()
    assert current(empty_url, MIGRATIONS) == (None, HEAD)
    upgrade(empty_url, MIGRATIONS)
    assert tables(engine) == set(metadata.tables)
    assert current(empty_url, MIGRATIONS) == (HEAD, HEAD)
    engine.dispose()
    with open_store(empty_url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(2))


def test_urls_leave_the_plan_and_analyses_get_their_plan_hash(empty_url: str) -> None:
    """What 0002 does to a database of 0001, and back."""
    upgrade(empty_url, MIGRATIONS)
    engine = connect(locate(empty_url))
    plan = '{"baseline_url":"http://off/v1","candidate_url":"http://on/v1"}'
    with open_store(empty_url, migrations=MIGRATIONS) as store:
        store.create(make_comparison("old"), make_items(2))
        store.put_analysis(make_analysis("old"), now=NOW)
    downgrade(engine, "0001")
    with writing(engine).begin() as connection:
        connection.execute(text("UPDATE comparison SET plan = :plan"), {"plan": plan})
    upgrade(empty_url, MIGRATIONS)
    with engine.connect() as connection:
        found = connection.execute(
            text(
                "SELECT c.baseline_url, c.candidate_url, c.plan, a.plan_hash = c.plan_hash "
                "FROM comparison c JOIN analysis a ON a.comparison_key = c.key"
            )
        ).one()
        assert tuple(found) == ("http://off/v1", "http://on/v1", plan, True)
    engine.dispose()


def test_a_plan_of_the_first_schema_is_still_read(url: str) -> None:
    """It held the URLs, and no objective, power or margins of their own."""
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison("old"), make_items(2))
        with writing(store.engine).begin() as connection:
            plan = json.loads(connection.scalar(text("SELECT plan FROM comparison")) or "")
            for name in ("objective", "power", "margins"):
                del plan["rule"][name]
            del plan["assumptions"]
            plan |= {"baseline_url": "http://off/v1", "schema": 1}
            connection.execute(text("UPDATE comparison SET plan = :plan"), {"plan": json.dumps(plan)})
        read = store.get("old").plan
    assert (read.rule.margin, read.rule.objective, read.schema) == (1 / 3, "equivalence", 1)


def test_an_upgrade_of_the_newest_schema_changes_nothing(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(2))
    upgrade(url, MIGRATIONS)
    with open_store(url, migrations=MIGRATIONS) as store:
        assert [comparison.id for comparison in store.list(ComparisonFilter())] == ["c-1"]


def test_a_database_without_looks_keeps_what_it_holds(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(2))
        store.add_answers("c-1", [make_answer(0)])
        store.put_analysis(make_analysis(), now=NOW)
    engine = connect(locate(url))
    downgrade(engine, "0002")
    assert {"look", "noise_answer"}.isdisjoint(tables(engine))
    upgrade(url, MIGRATIONS)
    engine.dispose()
    with open_store(url, migrations=MIGRATIONS) as store:
        assert store.analysis("c-1") == make_analysis()
        assert store.answered("c-1") == {(ArmName.BASELINE, 0, 0, 0)}
        assert store.looks("c-1") == []


def test_a_database_without_pins_keeps_its_other_observations(url: str) -> None:
    """What 0006 does to a database of 0005, and back."""
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(2))
        for one in (ENGINE, PINS, SEGMENT):
            store.add_observation("c-1", one)
    engine = connect(locate(url))
    downgrade(engine, "0005")
    narrow = checks(inspect(engine).get_check_constraints("observation"))
    assert set(narrow) == {"observation_kind_check", "observation_number_check"}
    assert "2" not in narrow["observation_kind_check"]
    upgrade(url, MIGRATIONS)
    engine.dispose()
    with open_store(url, migrations=MIGRATIONS) as store:
        assert list(store.observations("c-1")) == [ENGINE, SEGMENT]
        store.add_observation("c-1", PINS)
        assert list(store.observations("c-1")) == [ENGINE, SEGMENT, PINS]


def test_a_database_without_tokens_keeps_its_other_observations(url: str) -> None:
    """What 0010 does to a database of 0009, and back."""
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(2))
        for one in (ENGINE, TOKENS, PINS):
            store.add_observation("c-1", one)
    engine = connect(locate(url))
    downgrade(engine, "0009")
    assert "3" not in checks(inspect(engine).get_check_constraints("observation"))["observation_kind_check"]
    upgrade(url, MIGRATIONS)
    engine.dispose()
    with open_store(url, migrations=MIGRATIONS) as store:
        assert list(store.observations("c-1")) == [ENGINE, PINS]
        store.add_observation("c-1", TOKENS)
        assert list(store.observations("c-1")) == [ENGINE, PINS, TOKENS]


def test_lists_show_what_plans_say_and_nothing_is_lost_on_the_way_back(url: str) -> None:
    """What 0007 does to a database of 0006, and back."""
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(2))
        store.add_answers("c-1", [make_answer(0), make_answer(1, CANDIDATE), make_answer(1, run=1)])
        store.put_scores("c-1", [make_score(0), make_score(1, CANDIDATE)])
        answers, scores = list(store.answers("c-1", arm=CANDIDATE)), list(store.scores("c-1"))
        noise = list(store.answers("c-1", arm=BASELINE, run=1))
    engine = connect(locate(url))
    downgrade(engine, "0006")
    keys = {table: inspect(engine).get_foreign_keys(table) for table in ("answer", "noise_answer", "score")}
    assert {table: len(found) for table, found in keys.items()} == {"answer": 3, "noise_answer": 3, "score": 2}
    assert "model" not in {column["name"] for column in inspect(engine).get_columns("comparison")}
    upgrade(url, MIGRATIONS)
    assert not any(inspect(engine).get_foreign_keys(table) for table in keys)
    engine.dispose()
    with open_store(url, migrations=MIGRATIONS) as store:
        found = store.registry.summary("c-1")
        assert (found.model, found.suite, found.n_items) == ("모델/7b", "custom", 3)
        assert list(store.answers("c-1", arm=CANDIDATE)) == answers
        assert list(store.answers("c-1", arm=BASELINE, run=1)) == noise
        assert list(store.scores("c-1")) == scores


@pytest.mark.parametrize("revision", sorted(file.name[:4] for file in (MIGRATIONS / "versions").glob("0*.py"))[:-1])
def test_every_migration_goes_back_and_forth_with_rows_in_every_table(url: str, revision: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        fill(store)
    engine = connect(locate(url))
    downgrade(engine, revision)
    assert current(url, MIGRATIONS) == (revision, HEAD)
    upgrade(url, MIGRATIONS)
    engine.dispose()
    with open_store(url, migrations=MIGRATIONS) as store:
        assert len(store.answered("c-1")) == 1
        assert store.registry.summary("c-1").n_items == 3
        assert len(list(store.scores("c-1"))) == 1


def fill(store: SqlStore) -> None:
    """A row in every table."""
    registry, entry = store.registry, make_entry()
    store.create(make_comparison(), [make_item(number, target="the same, or nearly " * 90) for number in range(200)])
    store.add_answers("c-1", [make_answer(0), make_answer(1, run=1)])
    store.put_scores("c-1", [make_score(0)])
    store.add_look("c-1", make_look(), now=NOW)
    store.add_observation("c-1", ENGINE)
    store.put_analysis(make_analysis(), now=NOW)
    store.put_outcomes("c-1", [make_outcome(0)])
    registry.sign_off(make_signoff(), entry=entry)
    registry.submit(make_submission("c-2"), entry=entry)
    registry.add_token(make_token(), entry=entry)
    registry.see_worker("r", now=NOW)
    hosts = {"h": 1}
    registry.lease_hosts("c-1", hosts, runner="r", limit=1, is_exclusive=True, now=NOW, stale_after_s=60)
    with store.engine.connect() as connection:
        empty = [name for name in metadata.tables if not connection.scalar(text(f"SELECT count(*) FROM {name}"))]
    assert empty == []


def test_the_migrations_make_what_the_tables_describe(url: str) -> None:
    engine = connect(locate(url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert {FLIPPED_OUTCOMES, WAITING_SUBMISSIONS} <= {
            one for table in metadata.tables.values() for one in table.indexes
        }
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_the_migrations_make_the_checks_that_the_tables_describe(url: str) -> None:
    engine = connect(locate(url))
    made = {table: checks(inspect(engine).get_check_constraints(table)) for table in metadata.tables}
    assert len(made["answer"]) == len(made["noise_answer"]) == 7
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


@pytest.mark.parametrize(
    "vocabulary",
    [value for value in vars(codes).values() if isinstance(value, codes.Codes)],
    ids=[name.lower() for name, value in vars(codes).items() if isinstance(value, codes.Codes)],
)
def test_every_member_of_a_vocabulary_has_its_code(vocabulary: codes.Codes[codes.E]) -> None:
    members = list(type(next(iter(vocabulary.of))))
    assert list(vocabulary.of) == members
    assert sorted(vocabulary.of.values()) == list(range(len(members)))
    assert all(vocabulary.name[code] is member for member, code in vocabulary.of.items())


def test_codes_keep_their_meaning() -> None:
    """Databases hold these numbers: a change here makes old ones say something else."""
    assert [codes.ARM.name[code] for code in range(2)] == ["baseline", "candidate"]
    assert [codes.KIND.name[code] for code in range(2)] == ["generation", "loglikelihood"]
    assert [codes.ANSWER_STATUS.name[code] for code in range(8)] == [
        "ok",
        "truncated",
        "no_final_answer",
        "bad_body",
        "http_error",
        "timeout",
        "connection_error",
        "rejected",
    ]
    assert [codes.COMPARISON_STATUS.name[code] for code in range(6)] == [
        "planned",
        "running",
        "interrupted",
        "stopped",
        "answered",
        "finished",
    ]
    assert [codes.VERDICT.name[code] for code in range(7)] == [
        "EQUIVALENT",
        "NON_INFERIOR",
        "REGRESSION",
        "IMPROVEMENT",
        "INCONCLUSIVE",
        "INVALID",
        "NOT_TESTED",
    ]
    assert [codes.CHANGE.name[code] for code in range(4)] == ["same", "gain", "loss", "unknown"]
    assert [codes.SUBMISSION.name[code] for code in range(5)] == ["queued", "running", "done", "failed", "cancelled"]
    assert [codes.SCOPE.name[code] for code in range(3)] == ["read", "run", "admin"]


def test_sqlite_keeps_answers_and_scores_without_a_row_id_in_a_log(sqlite_url: str) -> None:
    engine = connect(locate(sqlite_url))
    with engine.connect() as connection:
        sources = dict(connection.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'table'")).all())
        without = {name for name, source in sources.items() if "WITHOUT ROWID" in source}
        assert without == {"answer", "noise_answer", "outcome", "score"}
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
                refused(url, migrations=MIGRATIONS)  # type: ignore[operator]
        assert (location.path.read_bytes() if location.path else b"") == before
        assert current(url, MIGRATIONS) == (LATER, HEAD)
    finally:
        undo(url)


def undo(url: str) -> None:
    """The tests of PostgreSQL share a database."""
    engine = connect(locate(url))
    with writing(engine).begin() as connection:
        connection.execute(text("DROP TABLE later"))
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{HEAD}'"))
    engine.dispose()

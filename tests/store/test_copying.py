"""Everything goes from one kind of database to the other, and back, or nothing does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from qualab.errors import ComparisonBusy, InvalidValue, SchemaMismatch, StoreError
from qualab.model.items import OutcomeFilter
from qualab.model.names import ArmName
from qualab.model.ports import ComparisonFilter
from qualab.store import SqlStore, copying, open_store, upgrade
from qualab.store.engine import connect
from qualab.store.location import locate
from qualab.store.tables import metadata
from tests.store.conftest import MIGRATIONS
from tests.store.samples import (
    CANDIDATE,
    HARD_TEXTS,
    NOW,
    after,
    make_answer,
    make_comparison,
    make_entry,
    make_items,
    make_outcome,
    make_submission,
)
from tests.store.test_migrations import fill


def copy(source: str, target: str) -> dict[str, int]:
    copied: dict[str, int] = {}
    copying.copy_database(source, target, migrations=MIGRATIONS, now=after(0), stale_after_s=30, say=copied.__setitem__)
    return copied


@pytest.fixture
def filled(url: str) -> str:
    with open_store(url, migrations=MIGRATIONS) as store:
        fill(store)
        store.add_answers("c-1", [make_answer(9, CANDIDATE, said, repeat=n) for n, said in enumerate(HARD_TEXTS)])
        store.create(make_comparison("c-3"), make_items(12))
        store.put_outcomes("c-3", [make_outcome(number) for number in range(12)])
    return url


@pytest.fixture
def other_url(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A database of the other kind, without tables."""
    if url.startswith("sqlite"):
        found: str = request.getfixturevalue("empty_postgresql_url")
        return found
    return str(tmp_path / "other.db")


def content(store: SqlStore) -> dict[str, Any]:
    registry = store.registry
    return {
        "listed": store.list(ComparisonFilter()),
        "page": registry.page(ComparisonFilter()),
        "items": list(store.items("c-1")),
        "answers": [list(store.answers("c-1", arm=arm)) for arm in ArmName],
        "noise": list(store.answers("c-1", arm=ArmName.BASELINE, run=1)),
        "scores": list(store.scores("c-1")),
        "looks": store.looks("c-1"),
        "observations": store.observations("c-1"),
        "analysis": store.analysis("c-1"),
        "outcomes": registry.outcomes("c-3", OutcomeFilter()),
        "signoffs": registry.signoffs("c-1"),
        "submission": registry.submission("c-2"),
        "tokens": registry.tokens(),
        "audit": registry.audit(),
    }


def test_everything_arrives_in_the_other_kind_and_comes_back(filled: str, other_url: str, tmp_path: Path) -> None:
    with open_store(filled, migrations=MIGRATIONS) as store:
        before = content(store)
    copied = copy(filled, other_url)
    assert set(copied) == set(metadata.tables)
    assert all(copied.values())
    assert copied["outcome"] == 13
    assert copy(other_url, str(tmp_path / "back.db")) == copied
    for where in (other_url, str(tmp_path / "back.db")):
        with open_store(where, migrations=MIGRATIONS) as store:
            assert content(store) == before


def test_what_comes_after_the_copy_gets_keys_of_its_own(filled: str, other_url: str) -> None:
    copy(filled, other_url)
    with open_store(other_url, migrations=MIGRATIONS) as store:
        fill_again = replace(make_submission("c-9"), label="later")
        store.registry.submit(fill_again, entry=make_entry("later"))
        store.create(make_comparison("c-8"), make_items(2))
        store.add_answers("c-8", [make_answer(0, finish_reason="one that was not there")])
        assert store.registry.audit(limit=1).entries[0].action == "later"
        assert len(list(store.answers("c-8", arm=ArmName.BASELINE))) == 1


def test_a_database_that_holds_anything_is_no_target(filled: str, other_url: str) -> None:
    copy(filled, other_url)
    with pytest.raises(StoreError, match=r"is not empty: \w+ has rows"):
        copy(filled, other_url)
    with pytest.raises(StoreError, match="is not empty"):
        copy(other_url, filled)


def test_a_target_without_rows_is_taken(filled: str, other_url: str) -> None:
    upgrade(other_url, MIGRATIONS)
    assert copy(filled, other_url)["comparison"] == 2


def test_a_row_that_does_not_arrive_as_it_was_leaves_nothing(
    filled: str, other_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = copying.copy_rows

    def lossy(connection: Any, table: Any, rows: list[Any]) -> None:
        changed = [(*row[:-1], not row[-1]) for row in rows] if table.name == "outcome" else rows
        real(connection, table, changed)

    monkeypatch.setattr(copying, "copy_rows", lossy)
    with pytest.raises(StoreError, match="outcome did not arrive"):
        copy(filled, other_url)
    engine = connect(locate(other_url))
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM comparison")) == 0
    engine.dispose()


def test_a_database_is_not_copied_into_itself(filled: str) -> None:
    with pytest.raises(InvalidValue, match="itself"):
        copy(filled, filled)


def test_what_is_missing_or_old_is_not_copied(empty_url: str, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    with pytest.raises(StoreError, match="no database at"):
        copy(str(tmp_path / "none.db"), str(target))
    if not empty_url.startswith("postgresql"):
        return
    with pytest.raises(SchemaMismatch, match="no tables yet"):
        copy(empty_url, str(target))
    assert not target.exists()


def test_what_is_being_run_is_waited_for(filled: str, other_url: str) -> None:
    with open_store(filled, migrations=MIGRATIONS) as store:
        store.claim("c-3", runner="elsewhere:1:x", now=NOW, stale_after_s=30)
    with pytest.raises(ComparisonBusy, match="c-3 is being run by elsewhere"):
        copy(filled, other_url)
    with open_store(filled, migrations=MIGRATIONS) as store:
        store.release("c-3", runner="elsewhere:1:x")
    copy(filled, other_url)

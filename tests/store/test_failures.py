"""A full disk, a locked or read-only database, a server that goes away: one clear error, and nothing half stored."""

from __future__ import annotations

import os
import random
import resource
import sqlite3
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from qualab.errors import ComparisonNotFound, StoreError, StoreFull, StoreLocked, StoreReadOnly, StoreUnavailable
from qualab.model.items import Item
from qualab.model.names import ComparisonStatus
from qualab.model.ports import ComparisonFilter
from qualab.store import Store, open_store, upgrade
from tests.store import postgresql
from tests.store.conftest import DATABASE, MIGRATIONS, execute, url_of
from tests.store.samples import (
    BASELINE,
    NOW,
    ask_for,
    make_answer,
    make_comparison,
    make_item,
    make_items,
    make_score,
)

MEGABYTE = 1 << 20


def noise(seed: int, size: int) -> str:
    """Text that does not compress."""
    return random.Random(seed).randbytes(size).hex()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount(folder, "-t", "tmpfs", "-o", "size=1m", "tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def mount(folder: Path, *arguments: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    mounted = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a file system here: {mounted.stderr.decode().strip()}")


def fill(store: Store, first: int = 0) -> int:
    """Adds answers until something stops it; returns how many it was told are stored."""
    for number in range(first, 10_000):
        try:
            store.add_answers("c-1", [make_answer(0, text=noise(number, 4_000), repeat=number)])
        except StoreFull:
            return number
    raise AssertionError("the disk never filled up")


def test_a_full_disk_loses_nothing_that_was_committed(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(MEGABYTE // 8))
    with open_store(str(small_disk / "q.db"), migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(3))
        stored = fill(store)
        assert 10 < stored < 200
        with pytest.raises(StoreFull, match=r"no room is left for the database at .*q.db\. free some space"):
            store.add_answers("c-1", [make_answer(1, text=noise(0, 40_000))])
        assert {repeat for *_, repeat in store.answered("c-1")} == set(range(stored))
        ballast.unlink()
        assert store.add_answers("c-1", [make_answer(1, text="room again")]) == 0
    with open_store(str(small_disk / "q.db"), migrations=MIGRATIONS) as store:
        answers = list(store.answers("c-1", arm=BASELINE))
    assert [answer.reply.text for answer in answers] == [noise(number, 4_000) for number in range(stored)] + [
        "room again"
    ]


def test_a_disk_too_full_for_a_new_database_says_so(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(MEGABYTE - 8_192))
    with pytest.raises(StoreFull):
        open_store(str(small_disk / "q.db"), migrations=MIGRATIONS)
    (small_disk / "ballast").unlink()
    with open_store(str(small_disk / "q.db"), migrations=MIGRATIONS) as store:
        assert store.list(ComparisonFilter()) == []


def test_a_database_at_its_largest_size_is_full(sqlite_url: str) -> None:
    with open_store(sqlite_url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(3))

        @event.listens_for(store.engine, "begin")
        def _limit(connection: Any) -> None:
            connection.exec_driver_sql("PRAGMA max_page_count = 60")

        stored = fill(store)
        with pytest.raises(StoreFull):
            store.create(make_comparison("c-2"), make_items(50_000))
        assert {repeat for *_, repeat in store.answered("c-1")} == set(range(stored))
        assert [comparison.id for comparison in store.list(ComparisonFilter())] == ["c-1"]


def test_a_limit_on_the_size_of_files_is_hinted_at(sqlite_url: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_store(sqlite_url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(3))
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        try:
            with pytest.raises(StoreError, match="ulimit -f"):
                store.add_answers("c-1", [make_answer(1, text=noise(0, 400_000))])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert store.add_answers("c-1", [make_answer(1, text="room again")]) == 0


def test_a_locked_database_is_waited_for_and_then_named(sqlite_url: str) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    with open_store(f"{sqlite_url}?timeout=0.05", migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(3))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        for write in (
            lambda: store.add_answers("c-1", [make_answer(0)]),
            lambda: store.set_status("c-1", ComparisonStatus.RUNNING, now=NOW),
            lambda: store.claim("c-1", runner="r", now=NOW, stale_after_s=1),
            lambda: store.put_scores("c-1", [make_score(0)]),
            lambda: store.create(make_comparison("c-2"), []),
        ):
            with pytest.raises(StoreLocked, match=r"qualab.db is locked by another program\. wait for it to end"):
                write()
        assert store.get("c-1").status is ComparisonStatus.PLANNED  # readers go on
        other.execute("COMMIT")
        other.close()
        assert store.add_answers("c-1", [make_answer(0)]) == 0


def test_a_database_that_is_locked_altogether_cannot_be_opened(sqlite_url: str) -> None:
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreLocked):
        open_store(f"{sqlite_url}?timeout=0.05", migrations=MIGRATIONS)
    other.close()
    open_store(sqlite_url, migrations=MIGRATIONS).close()


def test_a_database_opened_read_only_is_read_and_not_written(sqlite_url: str) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    with open_store(sqlite_url, migrations=MIGRATIONS) as writer:
        writer.create(make_comparison(), make_items(3))
        with open_store(f"sqlite:///file:{path}?mode=ro&uri=true", migrations=MIGRATIONS) as reader:
            assert [item.position for item in reader.items("c-1")] == [0, 1, 2]
            with pytest.raises(StoreReadOnly, match=r"qualab.db cannot be written to\. check its permissions"):
                reader.add_answers("c-1", [make_answer(0)])
            with pytest.raises(StoreReadOnly):
                reader.create(make_comparison("c-2"), [])
        assert writer.answered("c-1") == set()


def test_a_read_only_file_system_is_named(sqlite_url: str, tmp_path: Path) -> None:
    with open_store(sqlite_url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(3))
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, "-t", "tmpfs", "-o", "size=1m", "tmpfs")
    try:
        (folder / "q.db").write_bytes(Path(sqlite_url.removeprefix("sqlite:///")).read_bytes())
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        with pytest.raises(StoreReadOnly, match=r"q.db cannot be written to"):
            open_store(str(folder / "q.db"), migrations=MIGRATIONS)
        with pytest.raises(StoreReadOnly, match=r"new.db cannot be written to"):
            open_store(str(folder / "new.db"), migrations=MIGRATIONS)
        with pytest.raises(StoreReadOnly, match=r"new.db cannot be written to"):
            open_store(str(folder / "new" / "new.db"), migrations=MIGRATIONS)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_damaged_database_is_named(sqlite_url: str) -> None:
    with open_store(sqlite_url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(2_000))
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    content = bytearray(path.read_bytes())
    content[30 * 8_192 :] = b"\x55" * (len(content) - 30 * 8_192)
    path.write_bytes(content)
    with open_store(sqlite_url, migrations=MIGRATIONS) as store, pytest.raises(StoreError, match="a damaged one"):
        list(store.items("c-1"))


def test_a_number_beyond_any_database_is_refused(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(1))
        with pytest.raises(StoreError):
            store.add_answers("c-1", [make_answer(0, prompt_tokens=10**30)])
        assert store.answered("c-1") == set()
        assert store.add_answers("c-1", [make_answer(0)]) == 0


def test_errors_hold_no_answers(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(1))
        with pytest.raises(StoreError) as caught:
            store.add_answers("c-1", [make_answer(0, attempts=0, system_fingerprint="quite private")])
        assert "private" not in "".join(str(error) for error in (caught.value, caught.value.__cause__))


def test_a_locked_postgresql_table_is_named(postgresql_url: str) -> None:
    import psycopg

    with open_store(f"{postgresql_url}&options=-c%20lock_timeout%3D100", migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(1))
        with psycopg.connect(postgresql_url.replace("postgresql+psycopg", "postgresql")) as other:
            other.execute("LOCK TABLE answer IN EXCLUSIVE MODE")
            with pytest.raises(StoreLocked):
                store.add_answers("c-1", [make_answer(0)])
        assert store.add_answers("c-1", [make_answer(0)]) == 0


def test_a_read_only_postgresql_session_is_named(postgresql_url: str) -> None:
    with open_store(postgresql_url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(1))
    url = f"{postgresql_url}&options=-c%20default_transaction_read_only%3Don"
    with open_store(url, migrations=MIGRATIONS) as store:
        assert len(list(store.items("c-1"))) == 1
        with pytest.raises(StoreReadOnly):
            store.add_answers("c-1", [make_answer(0)])


def test_a_postgresql_user_without_rights_is_named(server: str, postgresql_url: str) -> None:
    execute(server, "DROP ROLE IF EXISTS guest")
    execute(server, "CREATE ROLE guest LOGIN")
    execute(server, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest", database=DATABASE)
    try:
        with open_store(postgresql_url.replace("qualab@", "guest@"), migrations=MIGRATIONS) as store:
            assert store.list(ComparisonFilter()) == []
            with pytest.raises(StoreReadOnly):
                store.create(make_comparison(), [])
    finally:
        execute(server, "DROP OWNED BY guest", database=DATABASE)
        execute(server, "DROP ROLE guest")


def test_a_postgresql_server_that_goes_away_is_named_and_may_come_back(server: str, postgresql_url: str) -> None:
    with open_store(postgresql_url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(20_000))
        half_way = store.items("c-1")
        assert next(half_way).position == 0
        execute(server, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{DATABASE}'")
        with pytest.raises(StoreError, match="cannot open the database at postgresql"):
            list(half_way)
        assert store.add_answers("c-1", [make_answer(0)]) == 0


@pytest.fixture(scope="module")
def own_server() -> Iterator[str]:
    """A server to stop and start."""
    if postgresql.binaries() is None:
        pytest.skip(f"needs PostgreSQL {postgresql.OLDEST} or newer")
    with postgresql.running() as folder:
        execute(folder, "CREATE DATABASE own")
        upgrade(url_of(folder, "own"), MIGRATIONS)
        yield folder


@contextmanager
def stopped(folder: str) -> Iterator[None]:
    postgresql.stop(folder)
    try:
        yield
    finally:
        postgresql.start(folder)


def test_a_server_that_is_away_is_named_by_everything_and_work_goes_on_when_it_is_back(own_server: str) -> None:
    with open_store(url_of(own_server, "own"), migrations=MIGRATIONS) as store:
        store.create(make_comparison("away"), make_items(3))
        uses = (
            lambda: store.add_answers("away", [make_answer(0)]),
            lambda: store.get("away"),
            lambda: list(store.items("away")),
            lambda: store.heartbeat("away", runner="r", now=NOW),
            lambda: store.page(ComparisonFilter()),
            lambda: store.pair("away", 0),
            lambda: ask_for(store, "new"),
        )
        with ThreadPoolExecutor(4) as threads:  # so that several connections wait in the pool
            list(threads.map(lambda _: store.get("away"), range(16)))
        with stopped(own_server):
            for use in uses:
                with pytest.raises(StoreUnavailable, match="cannot open the database at postgresql"):
                    use()
            with pytest.raises(StoreUnavailable):
                open_store(url_of(own_server, "own"), migrations=MIGRATIONS)
        with ThreadPoolExecutor(4) as threads:
            assert {found.id for found in threads.map(lambda _: store.get("away"), range(16))} == {"away"}
        assert store.add_answers("away", [make_answer(0)]) == 0
        assert ask_for(store, "new") == "new"


def test_a_server_that_goes_away_half_way_leaves_nothing(own_server: str) -> None:
    def items() -> Iterator[Item]:
        yield from make_items(5_000)
        postgresql.stop(own_server)
        yield from (make_item(position) for position in range(5_000, 50_000))

    with open_store(url_of(own_server, "own"), migrations=MIGRATIONS) as store:
        try:
            with pytest.raises(StoreUnavailable):
                store.create(make_comparison("half"), items())
        finally:
            postgresql.start(own_server)
        with pytest.raises(ComparisonNotFound):
            store.get("half")
        store.create(make_comparison("half"), make_items(3))
        assert len(list(store.items("half"))) == 3


def test_a_server_without_a_connection_left_is_named(own_server: str) -> None:
    postgresql.stop(own_server)
    postgresql.start(own_server, "max_connections=2", "superuser_reserved_connections=0", "max_wal_senders=0")
    url = url_of(own_server, "own")
    try:
        with open_store(url, migrations=MIGRATIONS) as one, open_store(url, migrations=MIGRATIONS) as other:
            with one.engine.connect(), other.engine.connect(), pytest.raises(StoreUnavailable, match="too many"):
                other.list(ComparisonFilter())
            assert isinstance(other.list(ComparisonFilter()), list)
    finally:
        postgresql.stop(own_server)
        postgresql.start(own_server)

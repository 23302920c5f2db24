"""Failures of disks, locks and servers; drivers' errors, times and texts as they are stored."""

from __future__ import annotations

import os
import random
import resource
import sqlite3
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sqlalchemy import Dialect
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import dialect as postgresql_dialect
from sqlalchemy.exc import OperationalError

from qualab.errors import ComparisonNotFound, StoreError, StoreFull, StoreLocked, StoreReadOnly, StoreUnavailable
from qualab.model.items import Item
from qualab.model.names import ComparisonStatus
from qualab.model.ports import ComparisonFilter
from qualab.model.wording import storable_text
from qualab.store import Store, failures, open_store, upgrade
from qualab.store.failures import locate, translated
from qualab.store.tables import ExactText, PlainText, UtcTime
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
    open_store(str(small_disk / "q.db"), migrations=MIGRATIONS).close()


@pytest.fixture
def store(sqlite_url: str) -> Iterator[Store]:
    with open_store(f"{sqlite_url}?timeout=0.05", migrations=MIGRATIONS) as opened:
        opened.create(make_comparison(), make_items(3))
        yield opened


@pytest.fixture
def path(sqlite_url: str) -> Path:
    return Path(sqlite_url.removeprefix("sqlite:///"))


def test_a_limit_on_the_size_of_files_is_hinted_at(store: Store) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(StoreError, match="ulimit -f"):
            store.add_answers("c-1", [make_answer(1, text=noise(0, 400_000))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.add_answers("c-1", [make_answer(1, text="room again")]) == 0


def test_a_locked_database_is_waited_for_and_then_named(store: Store, path: Path) -> None:
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


def test_a_database_that_is_locked_altogether_cannot_be_opened(sqlite_url: str, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreLocked):
        open_store(f"{sqlite_url}?timeout=0.05", migrations=MIGRATIONS)
    other.close()
    open_store(sqlite_url, migrations=MIGRATIONS).close()


def test_a_database_opened_read_only_is_read_and_not_written(store: Store, path: Path) -> None:
    with open_store(f"sqlite:///file:{path}?mode=ro&uri=true", migrations=MIGRATIONS) as reader:
        assert [item.position for item in reader.items("c-1")] == [0, 1, 2]
        with pytest.raises(StoreReadOnly, match=r"qualab.db cannot be written to\. check its permissions"):
            reader.add_answers("c-1", [make_answer(0)])
    assert store.answered("c-1") == set()


def test_a_read_only_file_system_is_named(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, "-t", "tmpfs", "-o", "size=1m", "tmpfs")
    try:
        (folder / "q.db").write_bytes(path.read_bytes())
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        for name in ("q.db", "new.db", "new/new.db"):
            with pytest.raises(StoreReadOnly, match=rf"{name} cannot be written to"):
                open_store(str(folder / name), migrations=MIGRATIONS)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_damaged_database_is_named(sqlite_url: str, path: Path) -> None:
    with open_store(sqlite_url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(2_000))
    content = bytearray(path.read_bytes())
    content[30 * 8_192 :] = b"\x55" * (len(content) - 30 * 8_192)
    path.write_bytes(content)
    with open_store(sqlite_url, migrations=MIGRATIONS) as store, pytest.raises(StoreError, match="a damaged one"):
        list(store.items("c-1"))


@pytest.mark.parametrize("changes", [{"prompt_tokens": 10**30}, {"attempts": 0}], ids=["too large", "impossible"])
def test_what_no_database_can_hold_is_refused_and_not_quoted(url: str, changes: dict[str, int]) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(1))
        with pytest.raises(StoreError) as caught:
            store.add_answers("c-1", [make_answer(0, system_fingerprint="quite private", **changes)])
        assert "private" not in "".join(str(error) for error in (caught.value, caught.value.__cause__))
        assert store.answered("c-1") == set()
        assert store.add_answers("c-1", [make_answer(0)]) == 0


LOCKED, READ_ONLY = "options=-c%20lock_timeout%3D100", "options=-c%20default_transaction_read_only%3Don"


@pytest.mark.parametrize(("option", "expected"), [(LOCKED, StoreLocked), (READ_ONLY, StoreReadOnly)])
def test_a_postgresql_database_that_cannot_be_written_is_read(
    postgresql_url: str, option: str, expected: type[StoreError]
) -> None:
    import psycopg

    with open_store(postgresql_url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(1))
    with (
        open_store(f"{postgresql_url}&{option}", migrations=MIGRATIONS) as store,
        psycopg.connect(postgresql_url) as other,
    ):
        other.execute("LOCK TABLE answer IN EXCLUSIVE MODE")
        with pytest.raises(expected):
            store.add_answers("c-1", [make_answer(0)])
        assert len(list(store.items("c-1"))) == 1


def test_a_postgresql_server_that_goes_away_is_named_and_may_come_back(server: str, postgresql_url: str) -> None:
    with open_store(postgresql_url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(8_000))
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


def test_a_drivers_reason_is_said_in_one_line_without_tabs() -> None:
    reason = "Connection refused\n\tIs the server running?"
    said = failures.unreachable(locate("postgresql://me@db/q"), reason).message
    assert said == "cannot open the database at postgresql://me@db/q: Connection refused Is the server running?"


@given(moment=st.datetimes(timezones=st.timezones()))
@pytest.mark.parametrize("dialect", [sqlite.dialect(), postgresql_dialect()], ids=["sqlite", "postgresql"])
def test_a_time_comes_back_to_the_microsecond(dialect: Dialect, moment: datetime) -> None:
    assume(datetime.min.replace(tzinfo=UTC) + timedelta(days=2) < moment < datetime.max.replace(tzinfo=UTC))
    stored = UtcTime().process_bind_param(moment, dialect)
    read = UtcTime().process_result_value(stored, dialect)
    assert (read, read and read.tzinfo) == (moment.astimezone(UTC), UTC)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(StoreError, match="has no time zone"):
        UtcTime().process_bind_param(datetime(2026, 1, 1), sqlite.dialect())


@given(text=st.text(alphabet=st.characters(categories=("Lu", "Lo"), include_characters="\x00␀0\n🧪")))
def test_an_exact_text_comes_back_and_is_stored_without_nul(text: str) -> None:
    stored = ExactText().process_bind_param(text, sqlite.dialect())
    assert stored is not None
    assert "\x00" not in stored
    assert ExactText().process_result_value(stored, sqlite.dialect()) == text


@pytest.mark.parametrize(
    ("code", "free_bytes", "expected"),
    [
        (sqlite3.SQLITE_FULL, 10**9, StoreFull),
        (sqlite3.SQLITE_IOERR_WRITE, 0, StoreFull),
        (sqlite3.SQLITE_IOERR_SHMSIZE, 4_096, StoreFull),
        (sqlite3.SQLITE_CANTOPEN, 0, StoreFull),
        (sqlite3.SQLITE_IOERR_WRITE, 10**9, StoreError),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, 10**9, StoreLocked),
        (sqlite3.SQLITE_LOCKED_SHAREDCACHE, 10**9, StoreLocked),
        (sqlite3.SQLITE_READONLY_DIRECTORY, 10**9, StoreReadOnly),
        (sqlite3.SQLITE_CANTOPEN, 10**9, StoreUnavailable),
    ],
)
def test_an_error_code_of_sqlite_means_the_same_everywhere(
    code: int, free_bytes: int, expected: type[StoreError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures.shutil, "disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    error = sqlite3.OperationalError("as the driver says it")
    error.sqlite_errorcode = code
    with pytest.raises(StoreError) as caught, translated(locate(str(tmp_path / "q.db"))):
        raise OperationalError("SELECT 1", {}, error)
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("53100", StoreFull),
        ("40P01", StoreLocked),
        ("42501", StoreReadOnly),
        ("57P01", StoreUnavailable),
        ("08006", StoreUnavailable),
        ("22P02", StoreError),
    ],
)
def test_a_state_of_postgresql_means_the_same_everywhere(state: str, expected: type[StoreError]) -> None:
    error = Exception("as the driver says it")
    error.sqlstate = state  # type: ignore[attr-defined]
    with pytest.raises(StoreError) as caught, translated(locate("postgresql://u@h/d")):
        raise OperationalError("SELECT 1", {}, error)
    assert type(caught.value) is expected


@pytest.mark.parametrize("url", ["postgresql://u:s3cret@h/d", "postgresql://u@h/d?password=s3cret"])
def test_a_password_that_a_driver_quotes_is_blotted_out(url: str) -> None:
    assert locate(url).without_secrets('no such thing as "s3cret"') == 'no such thing as "***"'
    assert "s3cret" not in str(locate(url))
    assert str(locate("postgresql://me:secret@db/q")) == "postgresql://me:***@db/q"


@pytest.mark.parametrize(("text", "stored"), [("a\x00b", "a\ufffdb"), ("\ud800", "\ufffd"), ("정답 🧪", "정답 🧪")])
def test_a_text_that_postgresql_cannot_hold_is_mended(text: str, stored: str) -> None:
    assert PlainText().process_bind_param(text, postgresql_dialect()) == storable_text(text) == stored

"""Failures of disks, locks and servers; drivers' errors, times and texts as they are stored."""

from __future__ import annotations

import os
import random
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import OperationalError

from qualab.errors import ComparisonNotFound, StoreError, StoreFull, StoreLocked, StoreReadOnly, StoreUnavailable
from qualab.model.items import Item
from qualab.model.names import ComparisonStatus
from qualab.model.ports import ComparisonFilter
from qualab.store import Store, failures
from qualab.store.failures import locate, translated
from tests.fresh_store import opened
from tests.store import postgresql
from tests.store import samples as make
from tests.store.postgresql import DATABASE, execute, stopped
from tests.store.samples import BASELINE, NOW, ask_for

MEGABYTE = 1 << 20


def noise(seed: int, size: int) -> str:
    """Text that does not compress."""
    return random.Random(seed).randbytes(size).hex()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a file system here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(store: Store, first: int = 0) -> int:
    """Adds answers until something stops it; returns how many it was told are stored."""
    for number in range(first, 10_000):
        try:
            store.add_answers("c-1", [make.answer(0, text=noise(number, 4_000), repeat=number)])
        except StoreFull:
            return number
    raise AssertionError("the disk never filled up")


def test_a_full_disk_loses_nothing_that_was_committed(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(MEGABYTE - 8_192))
    with pytest.raises(StoreFull):
        opened(str(small_disk / "q.db"))
    ballast.write_bytes(bytes(MEGABYTE // 8))
    with opened(str(small_disk / "q.db")) as store:
        store.create(make.comparison(), make.items(3))
        stored = fill(store)
        assert 10 < stored < 200
        with pytest.raises(StoreFull, match=r"no room is left for the database at .*q.db\. free some space"):
            store.add_answers("c-1", [make.answer(1, text=noise(0, 40_000))])
        assert {repeat for *_, repeat in store.answered("c-1")} == set(range(stored))
        ballast.unlink()
        assert store.add_answers("c-1", [make.answer(1, text="room again")]) == 0
    with opened(str(small_disk / "q.db")) as store:
        texts = [answer.reply.text for answer in store.answers("c-1", arm=BASELINE)]
    assert texts == [*(noise(number, 4_000) for number in range(stored)), "room again"]


@pytest.fixture
def store(sqlite_url: str) -> Iterator[Store]:
    with opened(f"{sqlite_url}?timeout=0.05") as store:
        store.create(make.comparison(), make.items(3))
        yield store


@pytest.fixture
def path(sqlite_url: str) -> Path:
    return Path(sqlite_url.removeprefix("sqlite:///"))


def test_a_limit_on_the_size_of_files_is_hinted_at(store: Store) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(StoreError, match="ulimit -f"):
            store.add_answers("c-1", [make.answer(1, text=noise(0, 400_000))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.add_answers("c-1", [make.answer(1, text="room again")]) == 0


def test_a_locked_database_is_waited_for_and_then_named(store: Store, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for write in (
        lambda: store.add_answers("c-1", [make.answer(0)]),
        lambda: store.set_status("c-1", ComparisonStatus.RUNNING, now=NOW),
        lambda: store.claim("c-1", runner="r", now=NOW, stale_after_s=1),
        lambda: store.put_scores("c-1", [make.score(0)]),
        lambda: store.create(make.comparison("c-2"), []),
    ):
        with pytest.raises(StoreLocked, match=r"qualab.db is locked by another program\. wait for it to end"):
            write()
    assert store.get("c-1").status is ComparisonStatus.PLANNED  # readers go on
    other.execute("COMMIT")
    other.close()
    assert store.add_answers("c-1", [make.answer(0)]) == 0


def test_a_database_that_is_locked_altogether_cannot_be_opened(sqlite_url: str, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreLocked):
        opened(f"{sqlite_url}?timeout=0.05")
    other.close()
    opened(sqlite_url).close()


def test_a_database_opened_read_only_is_read_and_not_written(store: Store, path: Path) -> None:
    with opened(f"sqlite:///file:{path}?mode=ro&uri=true") as reader:
        assert [item.position for item in reader.items("c-1")] == [0, 1, 2]
        with pytest.raises(StoreReadOnly, match=r"qualab.db cannot be written to\. check its permissions"):
            reader.add_answers("c-1", [make.answer(0)])
    assert store.answered("c-1") == set()


def test_a_read_only_file_system_is_named(path: Path, small_disk: Path) -> None:
    shutil.copy(path, small_disk / "q.db")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for name in ("q.db", "new.db", "new/new.db"):
        with pytest.raises(StoreReadOnly, match=rf"{name} cannot be written to"):
            opened(str(small_disk / name))


def test_a_damaged_database_is_named(sqlite_url: str, path: Path) -> None:
    with opened(sqlite_url) as store:
        store.create(make.comparison(), make.items(2_000))
    content = bytearray(path.read_bytes())
    content[30 * 8_192 :] = b"\x55" * (len(content) - 30 * 8_192)
    path.write_bytes(content)
    with opened(sqlite_url) as store, pytest.raises(StoreError, match="a damaged one"):
        list(store.items("c-1"))


@pytest.mark.parametrize("changes", [{"prompt_tokens": 10**30}, {"attempts": 0}], ids=["too large", "impossible"])
def test_what_no_database_can_hold_is_refused_and_not_quoted(url: str, changes: dict[str, int]) -> None:
    with opened(url) as store:
        store.create(make.comparison(), make.items(1))
        with pytest.raises(StoreError) as caught:
            store.add_answers("c-1", [make.answer(0, system_fingerprint="quite private", **changes)])
        assert "private" not in "".join(str(error) for error in (caught.value, caught.value.__cause__))
        assert store.answered("c-1") == set()
        assert store.add_answers("c-1", [make.answer(0)]) == 0


LOCKED, READ_ONLY = "options=-c%20lock_timeout%3D100", "options=-c%20default_transaction_read_only%3Don"


@pytest.mark.parametrize(("option", "expected"), [(LOCKED, StoreLocked), (READ_ONLY, StoreReadOnly)])
def test_a_postgresql_database_that_cannot_be_written_is_read(
    postgresql_url: str, option: str, expected: type[StoreError]
) -> None:
    import psycopg

    with opened(postgresql_url) as store:
        store.create(make.comparison(), make.items(1))
    with opened(f"{postgresql_url}&{option}") as store, psycopg.connect(postgresql_url) as other:
        other.execute("LOCK TABLE answer IN EXCLUSIVE MODE")
        with pytest.raises(expected):
            store.add_answers("c-1", [make.answer(0)])
        assert len(list(store.items("c-1"))) == 1


def test_a_postgresql_server_that_goes_away_is_named_and_may_come_back(server: str, postgresql_url: str) -> None:
    with opened(postgresql_url) as store:
        store.create(make.comparison(), make.items(8_000))
        half_way = store.items("c-1")
        assert next(half_way).position == 0
        execute(server, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{DATABASE}'")
        with pytest.raises(StoreError, match="cannot open the database at postgresql"):
            list(half_way)
        assert store.add_answers("c-1", [make.answer(0)]) == 0


def test_a_server_that_is_away_is_named_by_everything_and_work_goes_on_after_it(
    server: str, postgresql_url: str
) -> None:
    with opened(postgresql_url) as store:
        store.create(make.comparison("away"), make.items(3))
        uses = (
            lambda: store.add_answers("away", [make.answer(0)]),
            lambda: store.get("away"),
            lambda: list(store.items("away")),
            lambda: store.heartbeat("away", runner="r", now=NOW),
            lambda: store.page(ComparisonFilter()),
            lambda: store.pair("away", 0),
            lambda: ask_for(store, "new"),
        )
        with ThreadPoolExecutor(4) as threads:  # so that several connections wait in the pool
            list(threads.map(lambda _: store.get("away"), range(16)))
        with stopped(server):
            for use in uses:
                with pytest.raises(StoreUnavailable, match="cannot open the database at postgresql"):
                    use()
            with pytest.raises(StoreUnavailable):
                opened(postgresql_url)
        with ThreadPoolExecutor(4) as threads:
            assert {found.id for found in threads.map(lambda _: store.get("away"), range(16))} == {"away"}
        assert store.add_answers("away", [make.answer(0)]) == 0
        assert ask_for(store, "new") == "new"


def test_a_server_that_goes_away_half_way_leaves_nothing(server: str, postgresql_url: str) -> None:
    def items() -> Iterator[Item]:
        yield from make.items(5_000)
        stack.enter_context(stopped(server))
        yield from (make.item(position) for position in range(5_000, 50_000))

    with opened(postgresql_url) as store:
        with ExitStack() as stack, pytest.raises(StoreUnavailable):
            store.create(make.comparison("half"), items())
        with pytest.raises(ComparisonNotFound):
            store.get("half")
        store.create(make.comparison("half"), make.items(3))
        assert len(list(store.items("half"))) == 3


def test_a_server_without_a_connection_left_is_named(server: str, postgresql_url: str) -> None:
    few = ("max_connections=2", "superuser_reserved_connections=0", "max_wal_senders=0")
    postgresql.stop(server)
    postgresql.start(server, *few)
    with opened(postgresql_url) as one, opened(postgresql_url) as other:
        with one.engine.connect(), other.engine.connect(), pytest.raises(StoreUnavailable, match="too many"):
            other.list(ComparisonFilter())
        assert other.list(ComparisonFilter()) == []
    with stopped(server):
        pass


SQLITE_CODES = (
    (sqlite3.SQLITE_FULL, 10**9, StoreFull),
    (sqlite3.SQLITE_IOERR_WRITE, 0, StoreFull),
    (sqlite3.SQLITE_IOERR_SHMSIZE, 4_096, StoreFull),
    (sqlite3.SQLITE_CANTOPEN, 0, StoreFull),
    (sqlite3.SQLITE_IOERR_WRITE, 10**9, StoreError),
    (sqlite3.SQLITE_BUSY_SNAPSHOT, 10**9, StoreLocked),
    (sqlite3.SQLITE_LOCKED_SHAREDCACHE, 10**9, StoreLocked),
    (sqlite3.SQLITE_READONLY_DIRECTORY, 10**9, StoreReadOnly),
    (sqlite3.SQLITE_CANTOPEN, 10**9, StoreUnavailable),
)
POSTGRESQL_STATES = {"53100": StoreFull, "40P01": StoreLocked, "42501": StoreReadOnly, "22P02": StoreError}
POSTGRESQL_STATES |= dict.fromkeys(("57P01", "08006"), StoreUnavailable)


def raised_for(location: str, **codes: object) -> type[StoreError]:
    error = sqlite3.OperationalError("as the driver says it")
    vars(error).update(codes)
    with pytest.raises(StoreError) as caught, translated(locate(location)):
        raise OperationalError("SELECT 1", {}, error)
    return type(caught.value)


def test_a_drivers_code_means_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for code, free_bytes, expected in SQLITE_CODES:
        monkeypatch.setattr(failures.shutil, "disk_usage", lambda _, free=free_bytes: SimpleNamespace(free=free))
        assert raised_for(str(tmp_path / "q.db"), sqlite_errorcode=code) is expected, (code, free_bytes)
    for state, expected in POSTGRESQL_STATES.items():
        assert raised_for("postgresql://u@h/d", sqlstate=state) is expected, state


def test_a_drivers_reason_is_said_in_one_line_with_passwords_blotted_out() -> None:
    for url in ("postgresql://u:s3cret@h/d", "postgresql://u@h/d?password=s3cret"):
        assert locate(url).without_secrets('no such thing as "s3cret"') == 'no such thing as "***"'
        assert "s3cret" not in str(locate(url))
    assert str(locate("postgresql://me:secret@db/q")) == "postgresql://me:***@db/q"
    said = failures.unreachable(locate("postgresql://me@db/q"), "Connection refused\n\tIs it running?").message
    assert said == "cannot open the database at postgresql://me@db/q: Connection refused Is it running?"

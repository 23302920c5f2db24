"""Several threads and stores write to one database at once; kill -9 loses nothing that was committed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sqlalchemy import text

from qualab.errors import ComparisonBusy, ComparisonNotFound, QualabError, VersionConflict
from qualab.model.items import Score
from qualab.model.names import ArmName
from qualab.model.ports import ComparisonFilter
from qualab.store import Store
from tests.fresh_store import opened
from tests.house.modules import ROOT
from tests.store import samples as make
from tests.store.samples import BASELINE, CANDIDATE, NOW, T, after, ask_for
from tests.store.writer import BATCH, text_of

ROUNDS = 40
Two = tuple[Store, Store]


@pytest.fixture
def two(url: str) -> Iterator[Two]:
    """Two stores on one database."""
    with opened(url) as one, opened(url) as other:
        yield one, other


def at_once(two: Two, job: Callable[[Store, int], T], n_jobs: int = 8) -> list[T]:
    """Results of jobs in four threads, of which every second uses the other store."""
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda number: job(two[number % 2], number), range(n_jobs)))


def n_accepted(two: Two, job: Callable[[Store, int], object], refused: type[QualabError]) -> int:
    def accept(store: Store, number: int) -> bool:
        with suppress(refused):
            job(store, number)
            return True
        return False

    return sum(at_once(two, accept))


@pytest.mark.parametrize("is_one", [True, False])
def test_threads_share_a_store_and_stores_a_database(two: Two, is_one: bool) -> None:
    def write(store: Store, first: int) -> int:
        duplicates = 0
        for position in range(first, 2 * ROUNDS, 2):
            for arm in ArmName:
                own, shared = make.answer(position, arm, str(position)), make.answer(0, repeat=position)
                duplicates += store.add_answers("c-1", [shared, own])
        return duplicates

    store = two[0]
    store.create(make.comparison(), make.items(2 * ROUNDS))
    duplicates = sum(at_once((store, store) if is_one else two, write, 2))
    for arm in ArmName:
        answers = [answer for answer in store.answers("c-1", arm=arm) if answer.repeat == 0]
        assert [answer.reply.text for answer in answers[1:]] == [str(number) for number in range(1, 2 * ROUNDS)]
    assert store.get("c-1").duplicates == duplicates


def test_of_several_claims_or_changes_of_one_version_one_is_made(two: Two) -> None:
    def claim(store: Store, number: int) -> None:
        store.claim("c-1", runner=f"host-{number}:1:x", now=NOW, stale_after_s=60)

    two[0].create(make.comparison(), [])
    assert n_accepted(two, claim, ComparisonBusy) == 1
    ask_for(two[0], "c-2")
    cancelled = n_accepted(two, lambda store, _: store.cancel("c-2", entry=make.entry(), version=1), VersionConflict)
    assert cancelled == 1


def test_of_several_workers_that_take_at_once_each_gets_what_no_other_uses(two: Two) -> None:
    def take(store: Store, number: int) -> str | None:
        return store.take(runner=f"w{number}:1:x", now=after(9), stale_after_s=60)

    for number in range(6):
        ask_for(two[0], f"c-{number}", at=after(number), baseline_url=f"http://h:{8000 + number // 2}/v1")
    assert sorted(filter(None, at_once(two, take, 12))) == ["c-0", "c-2", "c-4"]


def test_of_several_requests_with_one_key_one_is_stored(two: Two) -> None:
    ids = at_once(two, lambda store, number: ask_for(store, f"c-{number}", key="k", body_hash="b"))
    assert len(set(ids)) == len(two[0].audit().entries) == 1
    assert two[0].counts() == {"queued": 1}


def test_what_is_cancelled_while_it_is_taken_stays_cancelled(two: Two) -> None:
    ids = [ask_for(two[0], f"c-{number:02}", at=after(number)) for number in range(20)]

    def change(store: Store, number: int) -> None:
        if number == 0:
            for runner in range(40):
                store.take(runner=f"w{runner}:1:x", now=after(99), stale_after_s=60)
            return
        for comparison_id in reversed(ids):
            for version in (1, 2):
                with suppress(VersionConflict):
                    store.cancel(comparison_id, entry=make.entry(), version=version)

    at_once(two, change, 2)
    assert two[0].counts() == {"cancelled": 20}


def test_sign_offs_at_once_are_all_kept(two: Two) -> None:
    two[0].create(make.comparison(), [])
    at_once(two, lambda store, _: store.sign_off(make.signoff(), entry=make.entry()))
    assert len(two[0].signoffs("c-1")) == 8


def test_what_is_deleted_while_answers_come_leaves_nothing(two: Two) -> None:
    def change(store: Store, number: int) -> bool:
        if number == 0:
            with suppress(ComparisonNotFound):
                for repeat in range(10_000):
                    store.add_answers("c-1", [make.answer(1, repeat=repeat)])
                return False
            return True
        while len(store.answered("c-1")) < ROUNDS // 2:
            time.sleep(0.001)
        store.delete("c-1", entry=make.entry(), stale_after_s=60)
        return True

    two[0].create(make.comparison(), make.items(2))
    assert all(at_once(two, change, 2))
    with two[0].reading() as connection:
        assert connection.scalar(text("SELECT count(*) FROM answer")) == 0


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_sqlite_is_read_while_it_is_written(two: Two) -> None:
    """A reader waits for no writer: it sees what was committed before."""
    writer, reader = two
    writer.create(make.comparison(), make.items(2))

    def look(store: Store, _: int) -> str:
        store.page(ComparisonFilter())
        list(store.items("c-1"))
        return store.get("c-1").label

    with writer.writing() as connection:
        connection.execute(text("UPDATE comparison SET label = 'new'"))
        begun_s = time.monotonic()
        assert set(at_once((reader, reader), look, 32)) == {""}
        assert time.monotonic() - begun_s < 5
    assert reader.get("c-1").label == "new"


def test_others_write_while_items_are_scored(two: Two) -> None:
    """Scores are made before the transaction begins that stores them."""
    one, other = two
    one.create(make.comparison(), make.items(2))

    def scores() -> Iterator[Score]:
        yield make.score(0)
        other.add_answers("c-1", [make.answer(0)])
        yield make.score(1)

    begun_s = time.monotonic()
    one.put_scores("c-1", scores())
    assert time.monotonic() - begun_s < 4  # SQLite would wait for five seconds, then give up
    assert len(list(one.scores("c-1"))) == 2


def kill_after(url: str, what: str, lines: int, seconds: float) -> list[str]:
    """Kills a writer some time after its first lines; returns all that it said."""
    command = [sys.executable, "-m", "tests.store.writer", url, what]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    said = [child.stdout.readline().strip() for _ in range(lines)]
    time.sleep(seconds)
    child.kill()
    return said + child.communicate(timeout=60)[0].split()


def test_a_killed_writer_loses_nothing_and_doubles_nothing(url: str) -> None:
    with opened(url) as store:
        store.create(make.comparison(), make.items(1))
    reported = 0
    for lines in (1, 2, 3):
        said = kill_after(url, "add", lines, 0.02 * lines)
        assert int(said[-1]) > reported
        reported = int(said[-1])
        with opened(url) as store:
            stored = len(store.answered("c-1")) // 2
            assert reported <= stored <= reported + BATCH
            assert stored % BATCH == 0
            for arm in (BASELINE, CANDIDATE):
                answers = list(store.answers("c-1", arm=arm))
                assert [answer.repeat for answer in answers] == list(range(stored))
                assert [answer.reply.text for answer in answers] == [text_of(number) for number in range(stored)]
            assert store.get("c-1").duplicates == 0


def test_a_creation_that_is_killed_leaves_nothing(url: str) -> None:
    assert kill_after(url, "create", 1, 0.3) == ["creating"]
    with opened(url) as store:
        assert store.list(ComparisonFilter()) == []
        store.create(make.comparison("killed"), make.items(3))
        assert len(list(store.items("killed"))) == 3

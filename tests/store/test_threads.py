"""Several threads, and several stores on one database, write at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sqlalchemy import text

from qualab.errors import ComparisonBusy, ComparisonNotFound, VersionConflict
from qualab.model.items import Score
from qualab.model.names import ArmName
from qualab.model.ports import ComparisonFilter
from qualab.store import Store, open_store
from qualab.store.engine import writing
from tests.store.conftest import MIGRATIONS
from tests.store.samples import (
    NOW,
    after,
    ask_for,
    make_answer,
    make_comparison,
    make_entry,
    make_items,
    make_score,
    make_signoff,
)

ROUNDS = 40


def write(store: Store, first: int) -> int:
    """Adds answers to every second position from `first`, and to one place that everybody wants."""
    duplicates = 0
    for position in range(first, 2 * ROUNDS, 2):
        for arm in ArmName:
            mine = make_answer(position, arm, str(position))
            duplicates += store.add_answers("c-1", [make_answer(0, repeat=position), mine])
    return duplicates


@pytest.mark.parametrize("is_one", [True, False])
def test_threads_share_a_store_and_stores_a_database(url: str, is_one: bool) -> None:
    with open_store(url, migrations=MIGRATIONS) as one, open_store(url, migrations=MIGRATIONS) as other:
        one.create(make_comparison(), make_items(2 * ROUNDS))
        with ThreadPoolExecutor(2) as threads:
            duplicates = sum(threads.map(write, (one, one if is_one else other), (0, 1)))
        for arm in ArmName:
            answers = [answer for answer in one.answers("c-1", arm=arm) if answer.repeat == 0]
            assert [answer.reply.text for answer in answers[1:]] == [str(number) for number in range(1, 2 * ROUNDS)]
        assert one.get("c-1").duplicates == duplicates


def test_of_several_runners_that_claim_at_once_one_gets_it(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), [])

        def claim(number: int) -> bool:
            try:
                store.claim("c-1", runner=f"host-{number}:1:x", now=NOW, stale_after_s=60)
            except ComparisonBusy:
                return False
            return True

        with ThreadPoolExecutor(4) as threads:
            assert sum(threads.map(claim, range(8))) == 1


def test_of_several_workers_that_take_at_once_each_gets_what_no_other_uses(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as one, open_store(url, migrations=MIGRATIONS) as other:
        for number in range(6):
            ask_for(one, f"c-{number}", at=after(number), baseline=f"http://h:{8000 + number // 2}/v1")

        def take(number: int) -> str | None:
            return (one, other)[number % 2].take(runner=f"w{number}:1:x", now=after(9), stale_after_s=60)

        with ThreadPoolExecutor(4) as threads:
            taken = list(threads.map(take, range(12)))
        assert sorted(filter(None, taken)) == ["c-0", "c-2", "c-4"]


def test_of_several_requests_with_one_key_one_is_stored(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as one, open_store(url, migrations=MIGRATIONS) as other:

        def submit(number: int) -> str:
            return ask_for((one, other)[number % 2], f"c-{number}", key="k", body_hash="b")

        with ThreadPoolExecutor(4) as threads:
            assert len(set(threads.map(submit, range(8)))) == 1
        assert one.counts() == {"queued": 1}
        assert len(one.audit().entries) == 1


def test_of_several_changes_of_one_version_one_is_made(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        ask_for(store)

        def cancel(_: int) -> bool:
            try:
                store.cancel("c-1", entry=make_entry(), version=1)
            except VersionConflict:
                return False
            return True

        with ThreadPoolExecutor(4) as threads:
            assert sum(threads.map(cancel, range(8))) == 1


def test_what_is_cancelled_while_it_is_taken_stays_cancelled(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as one, open_store(url, migrations=MIGRATIONS) as other:
        ids = [ask_for(one, f"c-{number:02}", at=after(number)) for number in range(20)]

        def take(_: int) -> None:
            for number in range(40):
                one.take(runner=f"w{number}:1:x", now=after(99), stale_after_s=60)

        def cancel(_: int) -> None:
            for comparison_id in reversed(ids):
                for version in (1, 2):
                    with suppress(VersionConflict):
                        other.cancel(comparison_id, entry=make_entry(), version=version)

        with ThreadPoolExecutor(2) as threads:
            for job in [threads.submit(take, 0), threads.submit(cancel, 0)]:
                job.result()
        assert one.counts() == {"cancelled": 20}


def test_sign_offs_at_once_are_all_kept(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), [])
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: store.sign_off(make_signoff(), entry=make_entry()), range(8)))
        assert len(store.signoffs("c-1")) == 8


def test_what_is_deleted_while_answers_come_leaves_nothing(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as one, open_store(url, migrations=MIGRATIONS) as other:
        one.create(make_comparison(), make_items(2 * ROUNDS))

        def add(_: int) -> bool:
            with suppress(ComparisonNotFound):
                for repeat in range(10_000):
                    one.add_answers("c-1", [make_answer(1, repeat=repeat)])
                return False
            return True

        def delete(_: int) -> bool:
            while len(other.answered("c-1")) < ROUNDS // 2:
                time.sleep(0.001)
            other.delete("c-1", entry=make_entry(), stale_after_s=60)
            return True

        with ThreadPoolExecutor(2) as threads:
            assert all(job.result() for job in [threads.submit(add, 0), threads.submit(delete, 0)])
        with one.engine.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM answer")) == 0


def test_sqlite_is_read_while_it_is_written(sqlite_url: str) -> None:
    """A reader waits for no writer: it sees what was committed before."""
    with open_store(sqlite_url, migrations=MIGRATIONS) as one, open_store(sqlite_url, migrations=MIGRATIONS) as other:
        one.create(make_comparison(), make_items(2))
        with writing(one.engine).begin() as connection:
            connection.execute(text("UPDATE comparison SET label = 'new'"))

            def look(_: int) -> str:
                other.page(ComparisonFilter())
                list(other.items("c-1"))
                return other.get("c-1").label

            begun_s = time.monotonic()
            with ThreadPoolExecutor(8) as threads:
                assert set(threads.map(look, range(32))) == {""}
            assert time.monotonic() - begun_s < 5
        assert other.get("c-1").label == "new"


def test_others_write_while_items_are_scored(url: str) -> None:
    """Scores are made before the transaction begins that stores them."""
    with open_store(url, migrations=MIGRATIONS) as one, open_store(url, migrations=MIGRATIONS) as other:
        one.create(make_comparison(), make_items(2))

        def scores() -> Iterator[Score]:
            yield make_score(0)
            other.add_answers("c-1", [make_answer(0)])
            yield make_score(1)

        begun_s = time.monotonic()
        one.put_scores("c-1", scores())
        assert time.monotonic() - begun_s < 4  # SQLite would wait for five seconds, then give up
        assert len(list(one.scores("c-1"))) == 2

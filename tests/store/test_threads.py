"""Several threads, and several stores on one database, write at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from qualab.adapters.store import SqlStore, open_store
from qualab.domain.names import ArmName
from qualab.errors import ComparisonBusy
from tests.store.conftest import MIGRATIONS
from tests.store.samples import BASELINE, CANDIDATE, NOW, make_answer, make_comparison, make_items

ROUNDS = 40


def text_of(position: int, arm: ArmName) -> str:
    return f"answer to {position}, " + ("in both arms the same, as far as here" if arm is BASELINE else "in both arms")


def write(store: SqlStore, first: int) -> int:
    """Adds answers to every second position from `first`, and to one place that everybody wants."""
    duplicates = 0
    for position in range(first, 2 * ROUNDS, 2):
        for arm in ArmName:
            fingerprint = f"fp {position % 5}"
            mine = make_answer(position, arm, text_of(position, arm), system_fingerprint=fingerprint)
            duplicates += store.add_answers("c-1", [make_answer(0, repeat=position), mine])
    return duplicates


def check(store: SqlStore, duplicates: int) -> None:
    for arm in ArmName:
        answers = [answer for answer in store.answers("c-1", arm=arm) if answer.repeat == 0]
        assert [answer.position for answer in answers] == list(range(2 * ROUNDS))
        for answer in answers[1:]:
            assert answer.reply.text == text_of(answer.position, arm)
            assert answer.reply.system_fingerprint == f"fp {answer.position % 5}"
    assert store.get("c-1").duplicates == duplicates


def test_threads_share_a_store(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(2 * ROUNDS))
        with ThreadPoolExecutor(2) as threads:
            duplicates = sum(threads.map(lambda first: write(store, first), (0, 1)))
        check(store, duplicates)


def test_stores_share_a_database(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as one, open_store(url, migrations=MIGRATIONS) as other:
        one.create(make_comparison(), make_items(2 * ROUNDS))
        with ThreadPoolExecutor(2) as threads:
            duplicates = sum(threads.map(write, (one, other), (0, 1)))
        check(one, duplicates)


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


def test_the_arms_answers_may_come_from_two_threads(url: str) -> None:
    text = "the very same text in both arms, whoever comes first"
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(2 * ROUNDS))

        def add(arm: ArmName) -> None:
            for position in range(2 * ROUNDS):
                store.add_answers("c-1", [make_answer(position, arm, text)])

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(add, (BASELINE, CANDIDATE)))
        for arm in ArmName:
            assert {answer.reply.text for answer in store.answers("c-1", arm=arm)} == {text}

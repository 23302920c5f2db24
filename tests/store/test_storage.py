"""What lies in the tables: compact rows, texts stored once where both arms say the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from sqlalchemy import text

from qualab.model.items import Prompt
from qualab.model.names import ArmName
from qualab.store import SqlStore, open_store, upgrade
from qualab.store.engine import connect
from qualab.store.location import locate
from tests.store.conftest import MIGRATIONS
from tests.store.samples import BASELINE, CANDIDATE, make_answer, make_comparison, make_item, make_items, make_score
from tests.store.test_texts import ENGLISH, KOREAN, sentence


def lengths(store: SqlStore, arm: ArmName) -> list[int]:
    query = "SELECT length(text) FROM answer WHERE arm = :arm ORDER BY position"
    with store.engine.connect() as connection:
        return list(connection.scalars(text(query), {"arm": list(ArmName).index(arm)}))


@pytest.mark.parametrize("first", [BASELINE, CANDIDATE])
def test_the_arm_that_comes_second_stores_only_what_differs(url: str, first: ArmName) -> None:
    second = CANDIDATE if first is BASELINE else BASELINE
    long = sentence(ENGLISH, random.Random(1), 60)
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(3))
        store.add_answers("c-1", [make_answer(position, first, long) for position in range(3)])
        store.add_answers("c-1", [make_answer(0, second, long), make_answer(1, second, "B")])
        store.add_answers("c-1", [make_answer(2, second, long + " but then it went on")])
        whole, *_ = lengths(store, first)
        same, short, longer = lengths(store, second)
        assert whole > 50
        assert same <= 4
        assert short == 2
        assert longer < whole / 2


def test_both_arms_of_one_call_share_as_well(url: str) -> None:
    long = sentence(KOREAN, random.Random(1), 60)
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(1))
        store.add_answers("c-1", [make_answer(0, CANDIDATE, long), make_answer(0, BASELINE, long)])
        assert sorted(lengths(store, BASELINE) + lengths(store, CANDIDATE))[0] <= 4


def test_texts_are_packed_with_dictionaries_of_the_comparison(url: str) -> None:
    rng = random.Random(4)
    items = [
        make_item(position, prompts=(Prompt(text=sentence([ENGLISH, KOREAN][position % 2], rng)),))
        for position in range(400)
    ]
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison("plain"), make_items(2))
        store.create(make_comparison(), items)
        texts = [sentence(ENGLISH, rng), sentence(KOREAN, rng)]
        for comparison_id in ("plain", "c-1"):
            store.add_answers(comparison_id, [make_answer(position, text=said) for position, said in enumerate(texts)])
        query = (
            "SELECT length(text) FROM answer JOIN comparison ON key = comparison_key WHERE id = :id ORDER BY position"
        )
        with store.engine.connect() as connection:
            plain, trained = (list(connection.scalars(text(query), {"id": name})) for name in ("plain", "c-1"))
            assert connection.scalar(text("SELECT count(*) FROM dictionary")) == 2
        assert all(small < 0.6 * large for small, large in zip(trained, plain, strict=True))
    with open_store(url, migrations=MIGRATIONS) as store:
        assert [answer.reply.text for answer in store.answers("c-1", arm=BASELINE)] == texts


def test_what_recurs_is_stored_once(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(50))
        for position in range(50):
            store.add_answers("c-1", [make_answer(position, system_fingerprint=f"fp {position % 2}")])
        store.put_scores("c-1", [make_score(position) for position in range(50)])
        with store.engine.connect() as connection:
            phrases = {raw.decode() for raw in connection.scalars(text("SELECT text FROM phrase"))}
        assert phrases == {"stop", "fp 0", "fp 1", "exact_match,strict-match"}


def test_an_answer_without_text_takes_under_a_hundred_bytes(sqlite_url: str) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with open_store(sqlite_url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(1_000))
    before = path.stat().st_size
    with open_store(sqlite_url, migrations=MIGRATIONS) as store:
        for arm in ArmName:
            answers = [
                make_answer(position, arm, None, choice=choice, loglikelihood=-position / 7, is_greedy=False)
                for position in range(1_000)
                for choice in range(4)
            ]
            store.add_answers("c-1", answers)
    assert (path.stat().st_size - before) / 8_000 < 100


def test_postgresql_looks_rows_up_by_their_whole_key_before_it_has_statistics(empty_postgresql_url: str) -> None:
    """Otherwise each row of one arm looks through all of the other's: minutes for ten thousand items."""
    count, shared = 600, "a text that begins alike in both arms and in the noise floor, to "
    upgrade(empty_postgresql_url, MIGRATIONS)
    with open_store(empty_postgresql_url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(count))
        runs = [(BASELINE, 0), (CANDIDATE, 0), (BASELINE, 1)]
        for arm, run in runs:
            said = f"{shared}{arm}{run}"
            store.add_answers("c-1", [make_answer(number, arm, said, run=run) for number in range(count)])
        for arm, value in ((BASELINE, 0.0), (CANDIDATE, 1.0)):
            scores = [make_score(number, arm, value) for number in range(count)]
            store.put_scores("c-1", [*store.scores("c-1"), *scores])
    before = rows_looked_at(empty_postgresql_url)
    with open_store(empty_postgresql_url, migrations=MIGRATIONS) as store:
        for arm, run in runs:
            assert len(list(store.answers("c-1", arm=arm, run=run))) == count
        assert len(list(store.flips("c-1", metrics=[make_score(0).metric]))) == count
    assert rows_looked_at(empty_postgresql_url) - before < 12 * count


def rows_looked_at(url: str) -> int:
    """Through indexes, by connections that have ended."""
    engine = connect(locate(url))
    query = text("SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname IN ('answer', 'score')")
    with engine.connect() as connection:
        found = int(connection.scalar(query) or 0)
    engine.dispose()
    return found

"""What every store does with a comparison that is finished when it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from qualab.errors import StoreError
from qualab.model.comparison import Analysis
from qualab.model.items import Answer
from qualab.model.names import ComparisonStatus
from qualab.model.ports import ComparisonFilter
from qualab.store import Store
from tests.store.samples import BASELINE, CANDIDATE, NOW, make_analysis, make_answer, make_comparison, make_items
from tests.store.samples import make_score as score


def answers() -> list[Answer]:
    return [make_answer(position, arm) for arm in (BASELINE, CANDIDATE) for position in range(3)]


def put(store: Store, analysis: Callable[[], Analysis] = make_analysis, **changes: object) -> Analysis:
    parts = {"items": make_items(3), "answers": answers(), "scores": [score(0), score(1, CANDIDATE)], **changes}
    return store.put_whole(make_comparison(), *parts.values(), analysis, now=NOW)  # type: ignore[arg-type]


def test_all_of_it_is_there_and_it_is_finished(store: Store) -> None:
    found = put(store)
    comparison = store.get("c-1")
    assert (comparison.status, comparison.verdict, comparison.finished_at) == (
        ComparisonStatus.FINISHED,
        found.verdict,
        NOW,
    )
    assert list(store.items("c-1")) == list(make_items(3))
    assert [answer for arm in (BASELINE, CANDIDATE) for answer in store.answers("c-1", arm=arm)] == answers()
    assert list(store.scores("c-1")) == [score(0), score(1, CANDIDATE)]
    assert store.analysis("c-1") == found == make_analysis()


def test_the_analysis_is_made_after_everything_was_read(store: Store) -> None:
    read: list[Answer] = []

    def seen() -> Iterator[Answer]:
        for answer in answers():
            read.append(answer)
            yield answer

    def analyse() -> Analysis:
        assert len(read) == 6
        return make_analysis()

    put(store, analyse, answers=seen())


def fails() -> Analysis:
    raise RuntimeError


def breaks() -> Iterator[Answer]:
    yield from answers()
    raise RuntimeError


@pytest.mark.parametrize("part", ["answers", "analysis"])
def test_where_a_part_fails_nothing_is_there(store: Store, part: str) -> None:
    with pytest.raises(RuntimeError):
        put(store, fails) if part == "analysis" else put(store, answers=breaks())
    assert store.list(ComparisonFilter()) == []
    put(store)


def test_an_answer_to_no_item_leaves_nothing(store: Store) -> None:
    with pytest.raises(StoreError):
        put(store, answers=[make_answer(99)])
    assert store.list(ComparisonFilter()) == []


def test_an_id_comes_once(store: Store) -> None:
    put(store)
    with pytest.raises(StoreError):
        put(store)


def test_it_is_listed_with_the_others(store: Store) -> None:
    store.create(make_comparison("c-0"), [])
    put(store)
    later = replace(make_comparison("c-2"), created_at=NOW)
    store.create(later, [])
    assert [one.id for one in store.list(ComparisonFilter())] == ["c-2", "c-1", "c-0"]

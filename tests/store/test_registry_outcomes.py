"""What every store does with items: what became of them, and one with all that belongs to it."""

from __future__ import annotations

from typing import Any

import pytest

from qualab.errors import InvalidValue, ItemNotFound, StoreError
from qualab.model.items import Change, Outcome, OutcomeFilter
from qualab.model.names import RequestKind
from qualab.model.registry import encode_cursor
from qualab.store import Store
from tests.store.samples import (
    BASELINE,
    CANDIDATE,
    make_answer,
    make_choices,
    make_comparison,
    make_item,
    make_items,
    make_outcome,
    make_score,
)

SAME, GAIN, LOSS, UNKNOWN = Change.SAME, Change.GAIN, Change.LOSS, Change.UNKNOWN


@pytest.fixture(autouse=True)
def _comparison(store: Store) -> None:
    store.create(make_comparison(), make_items(10))
    store.create(make_comparison("c-2"), make_items(2))


def shown(store: Store, **wanted: Any) -> list[int]:
    return [one.position for one in store.outcomes("c-1", OutcomeFilter(**wanted)).entries]


def test_outcomes_come_back_as_they_went_in_by_position_and_repeat(store: Store) -> None:
    wanted = [
        make_outcome(0, repeat=1, baseline=-5e-324, candidate=float("inf")),
        make_outcome(1, GAIN, task="kobest_과제", kind=RequestKind.LOGLIKELIHOOD, different_text=True),
        make_outcome(1, LOSS, repeat=1, length=2**31 - 1),
        make_outcome(2, UNKNOWN),
        make_outcome(2, UNKNOWN, repeat=1, baseline=None, candidate=None),
    ]
    assert not store.has_outcomes("c-1")
    store.put_outcomes("c-1", [make_outcome(5), make_outcome(6)])
    store.put_outcomes("c-1", reversed(wanted))  # in the place of the former ones
    assert list(store.outcomes("c-1", OutcomeFilter()).entries) == wanted
    assert (store.has_outcomes("c-1"), store.has_outcomes("c-2")) == (True, False)
    assert store.outcomes("c-2", OutcomeFilter()).entries == ()


def test_new_scores_take_outcomes_away(store: Store) -> None:
    for comparison_id in ("c-1", "c-2"):
        store.put_outcomes(comparison_id, [make_outcome(0)])
    store.put_scores("c-1", [make_score(0)])
    assert (store.has_outcomes("c-1"), store.has_outcomes("c-2")) == (False, True)


@pytest.mark.parametrize(
    "outcome",
    [
        make_outcome(1),
        make_outcome(10),
        make_outcome(2, repeat=-1),
        make_outcome(2, length=-1),
        make_outcome(2, baseline=None),
        make_outcome(2, UNKNOWN, baseline=1.0),
        make_outcome(2, baseline=float("nan")),
    ],
)
def test_an_outcome_that_cannot_be_leaves_what_was_there(store: Store, outcome: Outcome) -> None:
    store.put_outcomes("c-1", [make_outcome(0)])
    with pytest.raises(StoreError, match="outcome"):
        store.put_outcomes("c-1", [make_outcome(1), outcome])
    assert list(store.outcomes("c-1", OutcomeFilter()).entries) == [make_outcome(0)]


def test_outcomes_are_read_backward_from_a_place(store: Store) -> None:
    flips = {1: GAIN, 4: LOSS, 6: GAIN}
    places = [(position, repeat) for position in range(8) for repeat in range(2)]
    store.put_outcomes("c-1", [make_outcome(at, flips.get(at, SAME), repeat=repeat) for at, repeat in places])
    seen: list[tuple[int, int]] = []
    cursor: str | None = encode_cursor("items", 6, 1)
    while cursor is not None:
        page = store.outcomes("c-1", OutcomeFilter(flipped=True), cursor=cursor, limit=2, is_backward=True)
        seen += [(one.position, one.repeat) for one in page.entries]
        cursor = page.next_cursor
    assert seen == [(6, 0), (4, 1), (4, 0), (1, 1), (1, 0)]
    (last,) = store.outcomes("c-1", OutcomeFilter(), limit=1, is_backward=True).entries
    assert (last.position, last.repeat) == (7, 1)


def test_filters_hold_together_and_alone(store: Store) -> None:
    changes = (SAME, GAIN, LOSS, UNKNOWN, SAME, GAIN)
    store.put_outcomes(
        "c-1",
        [
            make_outcome(position, change, task="odd" if position % 2 else "even", different_text=position > 3)
            for position, change in enumerate(changes)
        ],
    )
    filters: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"task": "odd"}, [1, 3, 5]),
        ({"task": "od"}, []),
        ({"flipped": True}, [1, 2, 5]),
        ({"flipped": False}, [0, 3, 4]),
        ({"change": GAIN}, [1, 5]),
        ({"change": LOSS}, [2]),
        ({"missing": True}, [3]),
        ({"missing": False}, [0, 1, 2, 4, 5]),
        ({"different_text": True}, [4, 5]),
        ({"different_text": False}, [0, 1, 2, 3]),
        ({"min_length": 20}, [2, 3, 4, 5]),
        ({"max_length": 20}, [0, 1, 2]),
        ({"min_length": 20, "max_length": 30}, [2, 3]),
        ({"flipped": True, "task": "odd", "different_text": True}, [5]),
        ({"flipped": True, "missing": True}, []),
        ({"flipped": True, "change": LOSS}, [2]),
    ]
    for wanted, positions in filters:
        assert shown(store, **wanted) == positions, wanted


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6])
def test_pages_hold_everything_once(store: Store, limit: int) -> None:
    flips = [make_outcome(position, GAIN, repeat=repeat) for position in (1, 2, 7) for repeat in (0, 1)]
    store.put_outcomes("c-1", [*flips, make_outcome(3), make_outcome(9)])
    found, cursor, n_pages = [], None, 0
    while n_pages == 0 or cursor is not None:
        page = store.outcomes("c-1", OutcomeFilter(flipped=True), cursor=cursor, limit=limit)
        found.extend(page.entries)
        cursor, n_pages = page.next_cursor, n_pages + 1
    assert found == flips
    assert n_pages == -(-6 // limit)


def test_a_cursor_of_another_list_is_refused(store: Store) -> None:
    with pytest.raises(InvalidValue, match="cursor"):
        store.outcomes("c-1", OutcomeFilter(), cursor=encode_cursor("audit", 1))


def test_an_item_comes_with_its_answers_and_scores(store: Store) -> None:
    shared = "the answer begins alike in both arms, and then "
    of_one = [
        make_answer(1, BASELINE, shared + "ends"),
        make_answer(1, BASELINE, repeat=1),
        make_answer(1, CANDIDATE, shared + "does not"),
    ]
    store.add_answers("c-1", [*of_one, make_answer(0), make_answer(2), make_answer(1, run=1)])
    scores = [make_score(1), make_score(1, metric="other"), make_score(1, CANDIDATE, 0.0, detail=(False, True))]
    store.put_scores("c-1", [*scores, make_score(0), make_score(2, CANDIDATE)])
    item, answers, found = store.pair("c-1", 1)
    assert item == make_item(1)
    assert list(answers) == of_one
    assert list(found) == scores


def test_an_item_that_nobody_answered_comes_alone(store: Store) -> None:
    store.create(make_comparison("c-3"), [make_choices(7)])
    assert store.pair("c-3", 7) == (make_choices(7), [], [])


@pytest.mark.parametrize("position", [10, -1, 2**40])
def test_a_position_without_an_item(store: Store, position: int) -> None:
    with pytest.raises(ItemNotFound, match=f"position {position}"):
        store.pair("c-1", position)

"""What every store does with scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from qualab.errors import StoreError
from qualab.model.items import Score
from qualab.store import Store
from tests.store.samples import BASELINE, CANDIDATE, make_answer, make_comparison, make_items, make_score


@pytest.fixture(autouse=True)
def _comparison(store: Store) -> None:
    store.create(make_comparison(), make_items(12))


def test_no_scores_at_first(store: Store) -> None:
    assert list(store.scores("c-1")) == []


def test_scores_come_in_order_of_arm_position_repeat_and_metric(store: Store) -> None:
    wanted = [
        make_score(position, arm, repeat=repeat, metric=metric)
        for arm in (BASELINE, CANDIDATE)
        for position in (0, 2, 11)
        for repeat in (0, 10)
        for metric in ("Acc,none", "acc,none", "f1,none", "메트릭,none")
    ]
    store.put_scores("c-1", iter(wanted[::-1]))
    assert list(store.scores("c-1")) == wanted


def test_metrics_are_in_order_whichever_was_seen_first(store: Store) -> None:
    for metric in ("f1,none", "acc,none"):
        store.put_scores("c-1", [make_score(0, metric=metric)])
    store.put_scores("c-1", [make_score(0, metric="f1,none"), make_score(0, metric="acc,none")])
    assert [score.metric for score in store.scores("c-1")] == ["acc,none", "f1,none"]


@pytest.mark.parametrize("value", [0.0, 1.0, 1 / 3, 0.1 + 0.2, 5e-324, -1e308, float("inf")])
def test_a_value_keeps_every_bit(store: Store, value: float) -> None:
    store.put_scores("c-1", [make_score(0, value=value)])
    (found,) = store.scores("c-1")
    assert found.value == value
    assert isinstance(found.value, float)


@pytest.mark.parametrize(
    "detail",
    [None, (), (True, False, True), (3, "정답\x00"), ("예", None), (0.1 + 0.2, 2**70), ("\ud800",)],
)
def test_a_detail_comes_back_as_it_was(store: Store, detail: tuple[object, ...] | None) -> None:
    score = make_score(0, detail=detail)
    store.put_scores("c-1", [score])
    assert list(store.scores("c-1")) == [score]
    assert [type(value) for found in store.scores("c-1") for value in found.detail or ()] == [
        type(value) for value in detail or ()
    ]


def test_new_scores_take_the_place_of_all_the_old(store: Store) -> None:
    store.put_scores("c-1", [make_score(position) for position in range(12)])
    store.put_scores("c-1", [make_score(3, CANDIDATE, 0.0)])
    assert list(store.scores("c-1")) == [make_score(3, CANDIDATE, 0.0)]
    store.put_scores("c-1", [])
    assert list(store.scores("c-1")) == []


def test_each_comparison_has_its_own_scores(store: Store) -> None:
    store.create(make_comparison("c-2"), make_items(2))
    store.put_scores("c-1", [make_score(0)])
    store.put_scores("c-2", [make_score(1)])
    store.put_scores("c-2", [])
    assert list(store.scores("c-1")) == [make_score(0)]


def test_scores_that_break_off_leave_the_old_ones(store: Store) -> None:
    def broken() -> Iterator[Score]:
        for position in range(12):
            yield make_score(position, value=0.0)
        raise KeyboardInterrupt

    store.put_scores("c-1", [make_score(5)])
    with pytest.raises(KeyboardInterrupt):
        store.put_scores("c-1", broken())
    assert list(store.scores("c-1")) == [make_score(5)]


@pytest.mark.parametrize(
    "wrong",
    [make_score(1, value=float("nan")), make_score(99), make_score(0), make_score(1, detail=(object(),))],
    ids=["NaN", "no such item", "twice", "not JSON"],
)
def test_an_impossible_score_is_refused_and_the_old_ones_stay(store: Store, wrong: Score) -> None:
    store.put_scores("c-1", [make_score(5)])
    with pytest.raises(StoreError):
        store.put_scores("c-1", [make_score(0), wrong])
    assert list(store.scores("c-1")) == [make_score(5)]


def test_scores_can_be_made_while_answers_are_read(store: Store) -> None:
    store.add_answers("c-1", [make_answer(position, text=str(position)) for position in range(12)])
    store.put_scores(
        "c-1",
        (
            make_score(answer.position, value=float(answer.reply.text or "nan"))
            for answer in store.answers("c-1", arm=BASELINE)
        ),
    )
    assert [score.value for score in store.scores("c-1")] == [float(position) for position in range(12)]


def test_thousands_of_scores(store: Store) -> None:
    scores = [make_score(0, repeat=repeat, metric=f"m{repeat % 7},none") for repeat in range(2_500)]
    store.put_scores("c-1", scores)
    assert list(store.scores("c-1")) == scores
    store.put_scores("c-1", (replace(score, value=0.0) for score in scores))
    assert {score.value for score in store.scores("c-1")} == {0.0}


def test_flips_are_the_scores_that_differ_between_the_arms(store: Store) -> None:
    store.put_scores(
        "c-1",
        [
            make_score(5, BASELINE, metric="acc,none", value=1.0),
            make_score(5, CANDIDATE, metric="acc,none", value=0.0),
            make_score(3, BASELINE, repeat=1, metric="acc,none", value=0.25),
            make_score(3, CANDIDATE, repeat=1, metric="acc,none", value=0.5),
            make_score(3, BASELINE, metric="acc,none", value=1.0),
            make_score(3, CANDIDATE, metric="acc,none", value=1.0),
            make_score(3, BASELINE, metric="메트릭,none", value=0.0),
            make_score(3, CANDIDATE, metric="메트릭,none", value=1.0),
            make_score(3, BASELINE, metric="f1,none", value=0.0),
            make_score(3, CANDIDATE, metric="f1,none", value=1.0),
            make_score(7, BASELINE, metric="acc,none", value=0.0),
        ],
    )
    found = store.flips("c-1", metrics={"acc,none", "메트릭,none"})
    assert [(one.position, one.repeat, one.metric, one.baseline, one.candidate) for one in found] == [
        (3, 0, "메트릭,none", 0.0, 1.0),
        (3, 1, "acc,none", 0.25, 0.5),
        (5, 0, "acc,none", 1.0, 0.0),
    ]
    assert list(store.flips("c-1", metrics=())) == []

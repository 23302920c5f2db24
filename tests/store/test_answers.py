"""Answers and scores: what comes back, in which order, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from qualab.errors import StoreError
from qualab.model.items import Answer, Drafted, Score
from qualab.model.names import AnswerStatus, ArmName
from qualab.store import Store
from tests.store.samples import (
    BASELINE,
    CANDIDATE,
    HARD_TEXTS,
    NOW,
    failed,
    make_answer,
    make_comparison,
    make_items,
    make_score,
    places,
)

LOGLIKELIHOODS = (-0.1 - 0.2, -5e-324, -1.7976931348623157e308, float("-inf"), -1 / 3, 0.0, -123456789.0, 1e-5)
WHOLE = make_answer(
    3,
    CANDIDATE,
    "정답",
    choice=2,
    repeat=4,
    status=AnswerStatus.TRUNCATED,
    loglikelihood=-12.345678901234567,
    is_greedy=False,
    finish_reason="length",
    prompt_tokens=0,
    completion_tokens=2**31 - 1,
    attempts=5,
    latency_s=299.999999,
    sent_at=datetime(2031, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    system_fingerprint="b1234-한글\x00",
    error="오류: \x00 half an answer",
    reasoning_characters=12_345,
    model="org/my-model-한글",
    reasoning="먼저 \x00 생각한다. " * 99,
)
SILENT = make_answer(
    0, text=None, prompt_tokens=None, completion_tokens=None, finish_reason="", system_fingerprint="", error=""
)


@pytest.fixture(autouse=True)
def _comparison(store: Store) -> None:
    store.create(make_comparison(), make_items(12))


@pytest.mark.parametrize(
    "answers",
    [
        [WHOLE],
        [SILENT],
        [make_answer(position, text=text) for position, text in enumerate(HARD_TEXTS)],
        [
            make_answer(0, text=None, loglikelihood=value, is_greedy=True, choice=choice)
            for choice, value in enumerate(LOGLIKELIHOODS)
        ],
        [
            make_answer(position, drafted=Drafted(draft_tokens=drafts, accepted_tokens=7, rounds=rounds))
            for position, (drafts, rounds) in enumerate([(None, ()), (0, (1, 0, 3)), (12, ()), (12, (1, 0, 3))])
        ],
        [make_answer(position, text=text, run=1) for position, text in enumerate(("same", "", None))],
        [make_answer(0, text=f"answer {repeat}", repeat=repeat) for repeat in range(2_345)],
    ],
    ids=["every field", "nothing said", "texts", "log-likelihoods", "drafted", "noise floor", "thousands"],
)
def test_answers_come_back_as_they_were(store: Store, answers: list[Answer]) -> None:
    assert store.add_answers("c-1", answers) == 0
    assert list(store.answers("c-1", arm=answers[0].arm, run=answers[0].run)) == answers
    assert store.add_answers("c-1", answers) == len(answers)


def test_what_no_database_can_hold_is_mended(store: Store) -> None:
    broken = make_answer(0, text="a\ud800b", error="e\udc80", finish_reason="\ud800", latency_s=0.12345678)
    store.add_answers("c-1", [broken])
    (found,) = store.answers("c-1", arm=BASELINE)
    said = (found.reply.text, found.reply.error, found.reply.finish_reason, found.reply.latency_s)
    assert said == ("a\ufffdb", "e\ufffd", "\ufffd", 0.123457)


def test_answers_come_in_order_and_by_position(store: Store) -> None:
    wanted = [(position, choice, repeat) for position in (0, 2, 11) for choice in (0, 1, 10) for repeat in (0, 1)]
    answers = [make_answer(position, choice=choice, repeat=repeat) for position, choice, repeat in wanted]
    store.add_answers("c-1", answers[::-2])
    store.add_answers("c-1", [*answers[-2::-2], make_answer(5, CANDIDATE)])
    assert places(store.answers("c-1", arm=BASELINE)) == wanted
    assert places(store.answers("c-1", arm=CANDIDATE)) == [(5, 0, 0)]
    assert store.answered("c-1") == {(BASELINE, *place) for place in wanted} | {(CANDIDATE, 5, 0, 0)}
    assert {one.position for one in store.answers("c-1", arm=BASELINE, positions={2, 11, 7})} == {2, 11}
    assert list(store.answers("c-1", arm=BASELINE, positions=())) == list(store.items("c-1", positions=())) == []
    items = list(store.items("c-1", positions={4, 1}))
    assert [item.position for item in items] == [1, 4]
    heads = [(one.position, one.task, one.doc_id, one.kind) for one in store.heads("c-1", positions={4, 1, 99})]
    assert heads == [(item.position, item.task, item.doc_id, item.kind) for item in items]


def test_the_answers_of_each_arm_are_counted(store: Store) -> None:
    assert store.n_answered("c-1") == store.n_unanswered("c-1") == {BASELINE: 0, CANDIDATE: 0}
    store.add_answers(
        "c-1", [make_answer(0), make_answer(1, choice=1), make_answer(4, CANDIDATE), make_answer(4, run=1)]
    )
    statuses = (AnswerStatus.TIMEOUT, AnswerStatus.REJECTED, AnswerStatus.NO_FINAL_ANSWER)
    store.add_answers("c-1", [failed(position, status) for position, status in enumerate(statuses, 5)])
    assert store.n_answered("c-1") == {BASELINE: 5, CANDIDATE: 1}
    assert store.n_unanswered("c-1") == {BASELINE: 3, CANDIDATE: 0}


def test_late_duplicates_are_counted_and_change_nothing(store: Store) -> None:
    assert store.add_answers("c-1", [make_answer(0, text="first"), make_answer(1)]) == 0
    assert store.add_answers("c-1", [make_answer(0, text="second"), make_answer(2)]) == 1
    assert store.add_answers("c-1", [make_answer(3, text="a"), make_answer(3, text="b")]) == 1
    assert [answer.reply.text for answer in store.answers("c-1", arm=BASELINE)] == ["first", "18", "18", "a"]
    assert store.get("c-1").duplicates == 2
    everywhere = [make_answer(9, arm, choice=c, repeat=r) for arm in ArmName for c in (0, 1) for r in (0, 1)]
    assert store.add_answers("c-1", everywhere) == 0, "arms, choices and repeats are places of their own"
    store.create(make_comparison("c-2"), make_items(1))
    assert store.add_answers("c-2", [make_answer(0, text="two")]) == 0
    assert store.get("c-2").duplicates == 0


def test_failures_are_dropped_and_can_be_answered(store: Store) -> None:
    store.add_answers("c-1", [failed(position, status) for position, status in enumerate(AnswerStatus)])
    assert store.drop_failures("c-1") == 4
    kept = {answer.reply.status for answer in store.answers("c-1", arm=BASELINE)}
    assert kept == {status for status in AnswerStatus if not status.is_failure}
    again = [make_answer(position, text="at last") for position, status in enumerate(AnswerStatus) if status.is_failure]
    assert (store.add_answers("c-1", again), store.drop_failures("c-1")) == (0, 0)


def test_failures_before_a_position_stay_and_of_the_noise_floor_none(store: Store) -> None:
    broken = [replace(failed(position, AnswerStatus.TIMEOUT), run=run) for position in range(4) for run in (0, 1)]
    store.add_answers("c-1", [*broken, make_answer(5, run=1)])
    assert store.drop_failures("c-1", from_position=2) == 2 + 4
    assert {place[1] for place in store.answered("c-1")} == {0, 1}
    assert store.answered("c-1", run=1) == {(BASELINE, 5, 0, 0)}


def test_runs_of_the_noise_floor_are_places_of_their_own(store: Store) -> None:
    arms = [make_answer(position, arm) for position in range(3) for arm in ArmName]
    again = [make_answer(position, text=str(run), run=run) for run in (2, 1) for position in (2, 0)]
    assert (store.add_answers("c-1", [*again, *arms]), store.add_answers("c-1", again)) == (0, 4)
    assert store.answered("c-1") == {(arm, position, 0, 0) for position in range(3) for arm in ArmName}
    assert store.answered("c-1", run=1) == {(BASELINE, 0, 0, 0), (BASELINE, 2, 0, 0)}
    assert store.answered("c-1", run=3) == set()
    found = list(store.answers("c-1", arm=BASELINE, run=2))
    assert [(one.run, one.position, one.reply.text) for one in found] == [(2, 0, "2"), (2, 2, "2")]
    assert list(store.answers("c-1", arm=CANDIDATE, run=1)) == []


@pytest.mark.parametrize(
    "answer",
    [
        make_answer(99),
        make_answer(99, run=1),
        make_answer(-1),
        make_answer(0, choice=-1),
        make_answer(0, repeat=-1),
        make_answer(0, attempts=0),
        make_answer(0, latency_s=-0.5),
        replace(make_answer(0), request_hash=b"short"),
        make_answer(1, CANDIDATE, run=1),
        make_answer(1, BASELINE, run=-1),
        make_answer(0, text=None, loglikelihood=float("nan")),
    ],
)
def test_an_impossible_answer_is_refused_and_nothing_is_stored(store: Store, answer: Answer) -> None:
    with pytest.raises(StoreError, match=r"is impossible, or belongs to an item|NaN"):
        store.add_answers("c-1", [make_answer(1), answer])
    assert store.answered("c-1") == set()


def test_answers_can_be_added_while_others_are_read(store: Store) -> None:
    store.add_answers("c-1", [make_answer(position) for position in range(12)])
    for _ in range(30):
        assert next(store.answers("c-1", arm=BASELINE)).position == 0, "a reader can be left half way"
    for answer in store.answers("c-1", arm=BASELINE):
        assert store.add_answers("c-1", [make_answer(answer.position, CANDIDATE, sent_at=NOW)]) == 0
    assert len(store.answered("c-1")) == 24


# scores


def test_scores_come_in_order_of_arm_position_repeat_and_metric(store: Store) -> None:
    wanted = [
        make_score(position, arm, repeat=repeat, metric=metric)
        for arm in (BASELINE, CANDIDATE)
        for position in (0, 2, 11)
        for repeat in (0, 10)
        for metric in ("Acc,none", "acc,none", "f1,none", "메트릭,none")
    ]
    assert list(store.scores("c-1")) == []
    store.put_scores("c-1", iter(wanted[::-1]))
    assert list(store.scores("c-1")) == wanted


def test_values_and_details_come_back_as_they_were(store: Store) -> None:
    values = (0.0, 1.0, 1 / 3, 0.1 + 0.2, 5e-324, -1e308, float("inf"))
    details: list[tuple[object, ...] | None] = [
        None,
        (),
        (True, False),
        (3, "정답\x00"),
        ("예", None),
        (2**70,),
        ("\ud800",),
    ]
    scores = [make_score(n, value=values[n], detail=detail) for n, detail in enumerate(details)]
    store.put_scores("c-1", scores)
    found = list(store.scores("c-1"))
    assert found == scores
    kinds = [[type(value) for value in score.detail or ()] for score in found]
    assert kinds == [[type(value) for value in detail or ()] for detail in details]


def test_new_scores_take_the_place_of_all_the_old(store: Store) -> None:
    store.create(make_comparison("c-2"), make_items(2))
    store.put_scores("c-2", [make_score(0)])
    many = [make_score(0, repeat=repeat, metric=f"m{repeat % 7},none") for repeat in range(2_500)]
    for scores in (many, [replace(score, value=0.0) for score in many], [make_score(3, CANDIDATE, 0.0)], []):
        store.put_scores("c-1", iter(scores))
        assert list(store.scores("c-1")) == scores
    assert list(store.scores("c-2")) == [make_score(0)]


@pytest.mark.parametrize(
    "wrong",
    [make_score(1, value=float("nan")), make_score(99), make_score(0), make_score(1, detail=(object(),)), None],
    ids=["NaN", "no such item", "twice", "not JSON", "breaks off"],
)
def test_impossible_scores_are_refused_and_the_old_ones_stay(store: Store, wrong: Score | None) -> None:
    def scores() -> Iterator[Score]:
        yield make_score(0)
        if wrong is None:
            raise KeyboardInterrupt
        yield wrong

    store.put_scores("c-1", [make_score(5)])
    with pytest.raises(StoreError if wrong else KeyboardInterrupt):
        store.put_scores("c-1", scores())
    assert list(store.scores("c-1")) == [make_score(5)]


def test_flips_are_the_scores_that_differ_between_the_arms(store: Store) -> None:
    rows = [
        (5, 0, "acc,none", 1.0, 0.0),
        (3, 1, "acc,none", 0.25, 0.5),
        (3, 0, "acc,none", 1.0, 1.0),
        (3, 0, "메트릭,none", 0.0, 1.0),
        (3, 0, "f1,none", 0.0, 1.0),
    ]
    scores = [make_score(7, BASELINE, metric="acc,none", value=0.0)]
    for position, repeat, metric, *values in rows:
        for arm, value in zip(ArmName, values, strict=True):
            scores.append(make_score(position, arm, repeat=repeat, metric=metric, value=value))
    store.put_scores("c-1", scores)
    found = store.flips("c-1", metrics={"acc,none", "메트릭,none"})
    assert [(one.position, one.repeat, one.metric, one.baseline, one.candidate) for one in found] == [
        rows[3],
        rows[1],
        rows[0],
    ]
    assert list(store.flips("c-1", metrics=())) == []

"""What every store does with answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from qualab.errors import StoreError
from qualab.model.items import Answer, Drafted
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
    places,
)


@pytest.fixture(autouse=True)
def _comparison(store: Store) -> None:
    store.create(make_comparison(), make_items(12))


def test_a_comparison_without_answers_is_empty(store: Store) -> None:
    assert store.answered("c-1") == set()
    assert list(store.answers("c-1", arm=BASELINE)) == []
    assert store.add_answers("c-1", []) == 0
    assert store.drop_failures("c-1") == 0


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_a_text_comes_back_as_it_was(store: Store, text: str) -> None:
    for arm in (BASELINE, CANDIDATE):
        store.add_answers("c-1", [make_answer(0, arm, text)])
        assert [answer.reply.text for answer in store.answers("c-1", arm=arm)] == [text]


def test_no_text_is_not_an_empty_text(store: Store) -> None:
    store.add_answers("c-1", [make_answer(0, text=None), make_answer(1, text="")])
    assert [answer.reply.text for answer in store.answers("c-1", arm=BASELINE)] == [None, ""]


def test_lone_surrogates_are_replaced(store: Store) -> None:
    broken = make_answer(
        0, text="a\ud800b\udfff", error="e\udc80", finish_reason="\ud800", system_fingerprint="f\udc80"
    )
    store.add_answers("c-1", [broken])
    (found,) = store.answers("c-1", arm=BASELINE)
    assert found.reply.text == "a\ufffdb\ufffd"
    assert found.reply.error == "e\ufffd"
    assert (found.reply.finish_reason, found.reply.system_fingerprint) == ("\ufffd", "f\ufffd")


def test_every_field_comes_back(store: Store) -> None:
    answer = make_answer(
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
    store.add_answers("c-1", [answer])
    assert list(store.answers("c-1", arm=CANDIDATE)) == [answer]


def test_what_a_server_does_not_say_stays_unsaid(store: Store) -> None:
    silent = make_answer(
        0, text=None, prompt_tokens=None, completion_tokens=None, finish_reason="", system_fingerprint="", error=""
    )
    store.add_answers("c-1", [silent])
    assert list(store.answers("c-1", arm=BASELINE)) == [silent]


@pytest.mark.parametrize(
    ("fingerprint", "model"),
    [("", ""), ("fp", ""), ("", "org/m"), ("fp", "org/m"), ("f\x1fp", ""), ("f\x1fp", "org/m")],
)
def test_where_an_answer_comes_from_comes_back(store: Store, fingerprint: str, model: str) -> None:
    answer = make_answer(0, system_fingerprint=fingerprint, model=model)
    store.add_answers("c-1", [answer])
    assert list(store.answers("c-1", arm=BASELINE)) == [answer]


@pytest.mark.parametrize("drafts", [None, 0, 12])
@pytest.mark.parametrize("rounds", [(), (1, 0, 3)])
def test_what_was_drafted_comes_back(store: Store, drafts: int | None, rounds: tuple[int, ...]) -> None:
    answer = make_answer(0, drafted=Drafted(draft_tokens=drafts, accepted_tokens=7, rounds=rounds))
    store.add_answers("c-1", [answer])
    assert list(store.answers("c-1", arm=BASELINE)) == [answer]


@pytest.mark.parametrize(
    "value", [-0.1 - 0.2, -5e-324, -1.7976931348623157e308, float("-inf"), -1 / 3, 0.0, -123456789.0, 1e-5]
)
def test_a_loglikelihood_keeps_every_bit(store: Store, value: float) -> None:
    answers = [make_answer(0, text=None, loglikelihood=value, is_greedy=True, choice=choice) for choice in range(2)]
    store.add_answers("c-1", answers)
    assert [answer.reply.loglikelihood for answer in store.answers("c-1", arm=BASELINE)] == [value, value]
    assert [answer.reply.is_greedy for answer in store.answers("c-1", arm=BASELINE)] == [True, True]


def test_a_latency_is_kept_to_the_microsecond(store: Store) -> None:
    store.add_answers("c-1", [make_answer(0, latency_s=0.12345678), make_answer(1, latency_s=0.0)])
    assert [answer.reply.latency_s for answer in store.answers("c-1", arm=BASELINE)] == [0.123457, 0.0]


def test_answers_come_in_order_of_position_choice_and_repeat(store: Store) -> None:
    wanted = [(position, choice, repeat) for position in (0, 2, 11) for choice in (0, 1, 10) for repeat in (0, 1)]
    answers = [make_answer(position, choice=choice, repeat=repeat) for position, choice, repeat in wanted]
    store.add_answers("c-1", answers[::-2])
    store.add_answers("c-1", answers[-2::-2])
    store.add_answers("c-1", [make_answer(5, CANDIDATE)])
    assert places(store.answers("c-1", arm=BASELINE)) == wanted
    assert places(store.answers("c-1", arm=CANDIDATE)) == [(5, 0, 0)]


def test_answered_names_every_place(store: Store) -> None:
    store.add_answers("c-1", [make_answer(4, CANDIDATE, choice=3, repeat=2), failed(0, AnswerStatus.TIMEOUT)])
    assert store.answered("c-1") == {(CANDIDATE, 4, 3, 2), (BASELINE, 0, 0, 0)}
    assert all(arm in (BASELINE, CANDIDATE) for arm, *_ in store.answered("c-1"))


def test_the_answers_of_each_arm_are_counted(store: Store) -> None:
    assert store.n_answered("c-1") == {BASELINE: 0, CANDIDATE: 0}
    store.add_answers(
        "c-1", [make_answer(0), make_answer(1), make_answer(1, choice=1), failed(0, AnswerStatus.TIMEOUT)]
    )
    store.add_answers("c-1", [make_answer(4, CANDIDATE), make_answer(4, run=1)])
    assert store.n_answered("c-1") == {BASELINE: 3, CANDIDATE: 1}
    assert store.n_unanswered("c-1") == {BASELINE: 0, CANDIDATE: 0}
    store.add_answers("c-1", [failed(2, AnswerStatus.REJECTED), failed(3, AnswerStatus.NO_FINAL_ANSWER)])
    assert store.n_answered("c-1") == {BASELINE: 5, CANDIDATE: 1}
    assert store.n_unanswered("c-1") == {BASELINE: 2, CANDIDATE: 0}


def test_late_duplicates_are_counted_and_change_nothing(store: Store) -> None:
    assert store.add_answers("c-1", [make_answer(0, text="first"), make_answer(1)]) == 0
    assert store.add_answers("c-1", [make_answer(0, text="second"), make_answer(2)]) == 1
    assert store.add_answers("c-1", [make_answer(0, text="third"), make_answer(1, text="x")]) == 2
    assert [answer.reply.text for answer in store.answers("c-1", arm=BASELINE)] == ["first", "18", "18"]
    assert store.get("c-1").duplicates == 3


def test_of_two_answers_in_one_call_the_first_stays(store: Store) -> None:
    twice = [make_answer(3, CANDIDATE, "b"), make_answer(0, text="first"), make_answer(0, text="second")]
    assert store.add_answers("c-1", twice) == 1
    assert [answer.reply.text for answer in store.answers("c-1", arm=BASELINE)] == ["first"]
    assert store.get("c-1").duplicates == 1


def test_arms_choices_and_repeats_are_places_of_their_own(store: Store) -> None:
    answers = [make_answer(0, arm, choice=c, repeat=r) for arm in (BASELINE, CANDIDATE) for c in (0, 1) for r in (0, 1)]
    assert store.add_answers("c-1", answers) == 0
    assert len(store.answered("c-1")) == 8


def test_each_comparison_has_its_own_answers(store: Store) -> None:
    store.create(make_comparison("c-2"), make_items(1))
    store.add_answers("c-1", [make_answer(0, text="one")])
    assert store.add_answers("c-2", [make_answer(0, text="two")]) == 0
    assert [answer.reply.text for answer in store.answers("c-2", arm=BASELINE)] == ["two"]
    assert store.get("c-2").duplicates == 0


def test_failures_are_dropped_and_answers_stay(store: Store) -> None:
    answers = [failed(position, status) for position, status in enumerate(AnswerStatus)]
    store.add_answers("c-1", answers)
    store.create(make_comparison("c-2"), make_items(1))
    store.add_answers("c-2", [failed(0, AnswerStatus.TIMEOUT)])
    assert store.drop_failures("c-1") == 4
    kept = {answer.reply.status for answer in store.answers("c-1", arm=BASELINE)}
    assert kept == {status for status in AnswerStatus if not status.is_failure}
    assert len(store.answered("c-2")) == 1
    assert store.drop_failures("c-1") == 0


def test_failures_before_a_position_stay(store: Store) -> None:
    store.add_answers("c-1", [failed(position, AnswerStatus.TIMEOUT) for position in range(4)])
    assert store.drop_failures("c-1", from_position=2) == 2
    assert {place[1] for place in store.answered("c-1")} == {0, 1}


def test_a_dropped_failure_can_be_answered(store: Store) -> None:
    store.add_answers("c-1", [failed(0, AnswerStatus.CONNECTION_ERROR)])
    store.drop_failures("c-1")
    assert store.add_answers("c-1", [make_answer(0, text="at last")]) == 0
    assert [answer.reply.text for answer in store.answers("c-1", arm=BASELINE)] == ["at last"]


@pytest.mark.parametrize("first", [BASELINE, CANDIDATE])
def test_texts_that_the_arms_share_come_back_in_both(store: Store, first: object) -> None:
    base = "그녀는 알을 열여섯 개 가지고 있다. She sells nine of them for 2 dollars each. #### 18"
    texts = [(base, base), (base, base[:30] + "다르다"), (base, base + "!"), (base[:50], base), (base, "x" + base)]
    arms = (BASELINE, CANDIDATE) if first is BASELINE else (CANDIDATE, BASELINE)
    for position, pair in enumerate(texts):
        for arm, text in zip(arms, pair, strict=True):
            store.add_answers("c-1", [make_answer(position, arm, text)])
    for number, arm in enumerate(arms):
        assert [answer.reply.text for answer in store.answers("c-1", arm=arm)] == [pair[number] for pair in texts]


def test_both_arms_of_one_call_can_share_texts(store: Store) -> None:
    texts = [f"The answer to number {position} is the same in both arms, isn't it?" for position in range(12)]
    answers = [make_answer(position, arm, text) for position, text in enumerate(texts) for arm in (CANDIDATE, BASELINE)]
    assert store.add_answers("c-1", answers) == 0
    for arm in (BASELINE, CANDIDATE):
        assert [answer.reply.text for answer in store.answers("c-1", arm=arm)] == texts


def test_a_text_outlives_the_failure_that_said_the_same(store: Store) -> None:
    text = "half an answer, cut off by the connection before its end"
    broken = make_answer(0, BASELINE, text, status=AnswerStatus.BAD_BODY, error="no end")
    store.add_answers("c-1", [broken])
    store.add_answers("c-1", [make_answer(0, CANDIDATE, text)])
    assert store.drop_failures("c-1") == 1
    assert [answer.reply.text for answer in store.answers("c-1", arm=CANDIDATE)] == [text]


def test_a_late_duplicate_lends_no_text(store: Store) -> None:
    store.add_answers("c-1", [make_answer(0, BASELINE, "what was stored at first, and stays")])
    late = "what came too late, and is not stored at all"
    store.add_answers("c-1", [make_answer(0, BASELINE, late), make_answer(0, CANDIDATE, late)])
    assert [answer.reply.text for answer in store.answers("c-1", arm=CANDIDATE)] == [late]


def test_late_duplicates_of_texts_that_the_arms_share_are_counted(store: Store) -> None:
    text = "both arms say this, and one of them says it twice, too late"
    answers = [make_answer(0, BASELINE, text), make_answer(0, CANDIDATE, text)]
    store.add_answers("c-1", answers)
    for answer in answers:
        assert store.add_answers("c-1", [answer]) == 1
    for arm in (BASELINE, CANDIDATE):
        assert [answer.reply.text for answer in store.answers("c-1", arm=arm)] == [text]


def test_thousands_of_answers_in_one_call(store: Store) -> None:
    answers = [make_answer(0, text=f"answer {repeat}", repeat=repeat) for repeat in range(2_345)]
    assert store.add_answers("c-1", answers) == 0
    assert list(store.answers("c-1", arm=BASELINE)) == answers
    assert store.add_answers("c-1", answers) == 2_345


@pytest.mark.parametrize(
    "answer",
    [
        make_answer(99),
        make_answer(-1),
        make_answer(0, choice=-1),
        make_answer(0, repeat=-1),
        make_answer(0, attempts=0),
        make_answer(0, latency_s=-0.5),
        replace(make_answer(0), request_hash=b"short"),
    ],
    ids=["no such item", "position", "choice", "repeat", "attempts", "latency", "hash"],
)
def test_an_impossible_answer_is_refused_and_nothing_is_stored(store: Store, answer: Answer) -> None:
    with pytest.raises(StoreError, match="is impossible, or belongs to an item"):
        store.add_answers("c-1", [make_answer(1), answer])
    assert store.answered("c-1") == set()


def test_nan_is_no_loglikelihood(store: Store) -> None:
    with pytest.raises(StoreError, match="NaN"):
        store.add_answers("c-1", [make_answer(0, text=None, loglikelihood=float("nan"))])
    assert store.answered("c-1") == set()


def test_a_reader_can_be_left_half_way(store: Store) -> None:
    store.add_answers("c-1", [make_answer(position) for position in range(12)])
    for _ in range(30):
        assert next(store.answers("c-1", arm=BASELINE)).position == 0
    store.add_answers("c-1", [make_answer(0, CANDIDATE)])


def test_answers_can_be_added_while_others_are_read(store: Store) -> None:
    store.add_answers("c-1", [make_answer(position) for position in range(12)])
    for answer in store.answers("c-1", arm=BASELINE):
        assert store.add_answers("c-1", [make_answer(answer.position, CANDIDATE, sent_at=NOW)]) == 0
    assert len(store.answered("c-1")) == 24


LONG = "그녀는 알을 열여섯 개 가지고 있다. She sells nine of them for 2 dollars each. #### 18"


def test_runs_of_the_noise_floor_are_places_of_their_own(store: Store) -> None:
    arms = [make_answer(position, arm, LONG) for position in range(3) for arm in (BASELINE, CANDIDATE)]
    again = [make_answer(position, text=f"{LONG}{run}", run=run) for run in (2, 1) for position in (2, 0)]
    assert store.add_answers("c-1", [*again, *arms]) == 0
    assert store.add_answers("c-1", again) == 4
    assert store.answered("c-1") == {(arm, position, 0, 0) for position in range(3) for arm in (BASELINE, CANDIDATE)}
    assert store.answered("c-1", run=1) == {(BASELINE, 0, 0, 0), (BASELINE, 2, 0, 0)}
    assert store.answered("c-1", run=3) == set()
    assert [answer.reply.text for answer in store.answers("c-1", arm=BASELINE)] == [LONG] * 3
    for run in (1, 2):
        found = list(store.answers("c-1", arm=BASELINE, run=run))
        assert [(answer.run, answer.position, answer.reply.text) for answer in found] == [
            (run, 0, f"{LONG}{run}"),
            (run, 2, f"{LONG}{run}"),
        ]
    assert list(store.answers("c-1", arm=CANDIDATE, run=1)) == []


@pytest.mark.parametrize("text", [LONG, LONG + " and more", LONG[:40], "", "x", None])
def test_a_noise_answer_comes_back_whatever_the_baseline_said(store: Store, text: str | None) -> None:
    """Its text may be packed upon the baseline's, whose own may be packed upon the candidate's."""
    for position, order in enumerate([(BASELINE, CANDIDATE), (CANDIDATE, BASELINE)]):
        for arm in order:
            store.add_answers("c-1", [make_answer(position, arm, LONG)])
    answers = [make_answer(position, text=text, run=1) for position in range(3)]
    store.add_answers("c-1", answers)
    assert list(store.answers("c-1", arm=BASELINE, run=1)) == answers


@pytest.mark.parametrize(("arm", "run"), [(CANDIDATE, 1), (BASELINE, -1), (CANDIDATE, -1)])
def test_the_noise_floor_has_no_candidate_and_counts_from_one(store: Store, arm: ArmName, run: int) -> None:
    with pytest.raises(StoreError, match="impossible"):
        store.add_answers("c-1", [make_answer(0), make_answer(1, arm, run=run)])
    assert store.answered("c-1") == set()


def test_a_noise_answer_needs_its_item(store: Store) -> None:
    with pytest.raises(StoreError, match="does not have"):
        store.add_answers("c-1", [make_answer(99, run=1)])


def test_failures_of_the_noise_floor_are_dropped_wherever_they_stand(store: Store) -> None:
    broken = [replace(failed(position, AnswerStatus.TIMEOUT), run=run) for position in range(4) for run in (0, 1)]
    store.add_answers("c-1", [*broken, make_answer(5, run=1)])
    assert store.drop_failures("c-1", from_position=2) == 2 + 4
    assert {place[1] for place in store.answered("c-1")} == {0, 1}
    assert store.answered("c-1", run=1) == {(BASELINE, 5, 0, 0)}


def test_items_and_answers_can_be_had_by_position(store: Store) -> None:
    store.add_answers("c-1", [make_answer(position, arm) for position in range(6) for arm in (BASELINE, CANDIDATE)])
    assert [item.position for item in store.items("c-1", positions={4, 1})] == [1, 4]
    assert [one.position for one in store.answers("c-1", arm=CANDIDATE, positions={4, 1})] == [1, 4]
    assert list(store.answers("c-1", arm=CANDIDATE, positions=())) == []
    assert list(store.items("c-1", positions=())) == []
    heads = list(store.heads("c-1", positions={4, 1, 99}))
    assert [(one.position, one.task, one.doc_id, one.kind) for one in heads] == [
        (item.position, item.task, item.doc_id, item.kind) for item in store.items("c-1", positions={4, 1})
    ]
    assert list(store.heads("c-1", positions=())) == []

"""Items, answers, scores, outcomes, looks and observations: what comes back, in which order, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from qualab.errors import InvalidValue, ItemNotFound, StoreError
from qualab.model.canonical import canonical_json
from qualab.model.comparison import seal_of
from qualab.model.engine import (
    Counters,
    Drafting,
    Engine,
    EngineKind,
    EngineSeen,
    FirstTokens,
    FirstTokensSeen,
    Observation,
    PairKind,
    PinsSeen,
    Segment,
    TokenizedBy,
    TokensLack,
    engines_seen,
    first_tokens_seen,
    pins_seen,
)
from qualab.model.items import Answer, Change, Drafted, Outcome, OutcomeFilter, Score
from qualab.model.names import AnswerStatus, ArmName, ComparisonStatus, LookDecision, RequestKind
from qualab.model.plan import PinFound, PinPart
from qualab.model.registry import encode_cursor
from qualab.store import Store
from tests.store.samples import (
    BASELINE,
    CANDIDATE,
    HARD_TEXTS,
    NOW,
    after,
    failed,
    make_analysis,
    make_answer,
    make_choices,
    make_comparison,
    make_item,
    make_items,
    make_look,
    make_outcome,
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
def _comparisons(store: Store) -> None:
    store.create(make_comparison(), make_items(12))
    store.create(make_comparison("c-2"), make_items(2))


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


def test_the_answers_of_each_arm_are_counted(store: Store) -> None:
    assert store.n_answered("c-1") == {BASELINE: 0, CANDIDATE: 0}
    store.add_answers(
        "c-1", [make_answer(0), make_answer(1, choice=1), make_answer(4, CANDIDATE), make_answer(4, run=1)]
    )
    statuses = (AnswerStatus.TIMEOUT, AnswerStatus.REJECTED, AnswerStatus.NO_FINAL_ANSWER)
    store.add_answers("c-1", [failed(position, status) for position, status in enumerate(statuses, 5)])
    assert store.n_answered("c-1") == {BASELINE: 5, CANDIDATE: 1}
    assert store.n_answered("c-1", statuses) == {BASELINE: 3, CANDIDATE: 0}


def test_late_duplicates_are_counted_and_change_nothing(store: Store) -> None:
    assert store.add_answers("c-1", [make_answer(0, text="first"), make_answer(1)]) == 0
    assert store.add_answers("c-1", [make_answer(0, text="second"), make_answer(2)]) == 1
    assert store.add_answers("c-1", [make_answer(3, text="a"), make_answer(3, text="b")]) == 1
    assert [answer.reply.text for answer in store.answers("c-1", arm=BASELINE)] == ["first", "18", "18", "a"]
    assert store.get("c-1").duplicates == 2
    everywhere = [make_answer(9, arm, choice=c, repeat=r) for arm in ArmName for c in (0, 1) for r in (0, 1)]
    assert store.add_answers("c-1", everywhere) == 0, "arms, choices and repeats are places of their own"
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
    found = list(store.flips("c-1", metrics={"acc,none", "메트릭,none"}))
    assert {(one.task, one.kind) for one in found} == {("gsm8k", RequestKind.GENERATION)}
    assert [(one.position, one.repeat, one.metric, one.baseline, one.candidate) for one in found] == [
        rows[3],
        rows[1],
        rows[0],
    ]
    assert list(store.flips("c-1", metrics=())) == []


SAME, GAIN, LOSS, UNKNOWN = Change.SAME, Change.GAIN, Change.LOSS, Change.UNKNOWN


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
        make_outcome(12),
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


@pytest.mark.parametrize("position", [12, -1, 2**40])
def test_a_position_without_an_item(store: Store, position: int) -> None:
    with pytest.raises(ItemNotFound, match=f"position {position}"):
        store.pair("c-1", position)


COUNTERS = Counters(
    drafting=Drafting(drafts=3, draft_tokens=9, accepted_tokens=4, accepted_at=(3, 1)),
    prompt_tokens=7,
    decode_s=1.5,
    decode_steps=5,
)
ENGINE = EngineSeen(
    tokens="0123",
    arm=ArmName.CANDIDATE,
    seen_at=NOW,
    engine=Engine(kind=EngineKind.VLLM, model_root="/모델", config={"a.b": "1"}, counters=COUNTERS),
)
SEGMENT = Segment(
    arm=ArmName.BASELINE,
    task="gsm8k",
    part=2,
    began_at=NOW,
    ended_at=NOW,
    before=COUNTERS,
    after=None,
    attempts=5,
    prompt_tokens=8,
)
PIN = PinFound(arm=ArmName.BASELINE, part=PinPart.IMAGE, values=("sha256:a", "sha256:b"), source="kubectl, pod a/b")
PINS = PinsSeen(seen_at=NOW, pins=(PIN, replace(PIN, part=PinPart.REVISION, values=("가",), source="declared")))
TOKENS = FirstTokensSeen(
    seen_at=NOW,
    by=TokenizedBy.BASELINE,
    tasks=(
        FirstTokens(task="문제", pairs=PairKind.ARMS, n_differ=7, places=((0, 0, 12), (2, 1, None), (3, 0, 0))),
        FirstTokens(task="문제", pairs=PairKind.NOISE, n_differ=0, places=()),
    ),
    lack=TokensLack.TIME,
)


def test_looks_come_back_in_their_order_and_outlive_every_status_and_analysis(store: Store) -> None:
    looks = [make_look(number) for number in range(1, 11)]
    for look in looks:
        store.add_look("c-1", look, now=NOW)
    store.put_analysis(make_analysis(), now=NOW)
    store.set_status("c-1", ComparisonStatus.RUNNING, now=NOW)
    store.put_scores("c-1", [])
    assert (list(store.looks("c-1")), list(store.looks("c-2"))) == (looks, [])


@pytest.mark.parametrize("number", [0, -1, 1, 3])
def test_a_look_follows_the_last_and_is_taken_once(store: Store, number: int) -> None:
    store.add_look("c-1", make_look(1), now=NOW)
    with pytest.raises(StoreError, match=f"look {number} of c-1 does not follow the 1 that were taken"):
        store.add_look("c-1", make_look(number, decision=LookDecision.CONTINUE), now=NOW)
    assert list(store.looks("c-1")) == [make_look(1)]


def test_observations_of_every_kind_come_back_in_their_order(store: Store) -> None:
    made: list[Observation] = [ENGINE, PINS, SEGMENT, TOKENS, PinsSeen(seen_at=NOW, pins=()), ENGINE]
    for one in made:
        store.add_observation("c-1", one)
    store.put_analysis(make_analysis(), now=NOW)
    assert (list(store.observations("c-1")), list(store.observations("c-2"))) == (made, [])


def test_the_last_that_was_seen_counts(store: Store) -> None:
    assert (first_tokens_seen(store.observations("c-1")), pins_seen([])) == (None, ())
    later = replace(ENGINE, engine=replace(ENGINE.engine, version="2"))
    tokens = replace(TOKENS, by=TokenizedBy.NAMED, lack=None)
    for one in (PINS, ENGINE, TOKENS, PinsSeen(seen_at=NOW, pins=(PIN,)), later, tokens, SEGMENT):
        store.add_observation("c-1", one)
    seen = store.observations("c-1")
    assert (pins_seen(seen), engines_seen(seen)) == ((PIN,), {ArmName.CANDIDATE: later.engine})
    assert first_tokens_seen(seen) == tokens
    assert tokens.places(PairKind.ARMS) == {(0, 0): 12, (2, 1): None, (3, 0): 0}
    assert tokens.places(PairKind.NOISE) == {}


def test_each_analysis_is_sealed_with_the_one_before_it_and_the_first_with_the_plan(store: Store) -> None:
    assert list(store.seals("c-1")) == []
    analyses = [make_analysis(), make_analysis(plan_hash="o" * 64), make_analysis()]
    store.put_analysis(make_analysis("c-2"), now=NOW)
    for number, analysis in enumerate(analyses):
        store.put_analysis(analysis, now=after(number))
    seals = list(store.seals("c-1"))
    assert [one.body for one in seals] == [canonical_json(analysis) for analysis in analyses]
    assert [one.plan_hash for one in seals] == [analysis.plan_hash for analysis in analyses]
    assert [one.previous for one in seals] == [make_comparison().plan_hash, seals[0].seal, seals[1].seal]
    assert all(one.seal == seal_of(one.body, previous=one.previous) for one in seals)
    assert len({one.seal for one in seals}) == 3
    assert store.seals("c-2")[0].previous == store.get("c-2").plan_hash

"""Items, answers, scores, outcomes, looks and observations: what comes back, in which order, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from qualab.errors import InvalidValue, ItemNotFound, StoreError
from qualab.model import engine
from qualab.model.canonical import canonical_json
from qualab.model.comparison import seal_of
from qualab.model.items import Answer, Change, Drafted, OutcomeFilter, Place, Score
from qualab.model.names import AnswerStatus, ArmName, ComparisonStatus, LookDecision, RequestKind
from qualab.model.plan import PinFound, PinPart
from qualab.model.registry import encode_cursor
from qualab.store import Store
from tests.store import samples as make
from tests.store.samples import BASELINE, CANDIDATE, NOW, after, failed, filled

LOGLIKELIHOODS = (-0.1 - 0.2, -5e-324, -1.7976931348623157e308, float("-inf"), -1 / 3, 0.0, -123456789.0, 1e-5)
HARD_TEXTS = (
    *("", " ", "42", "정답은 3번입니다. 왜냐하면 지문에서 그렇게 말하기 때문이다.", "a\x00b\x00\x00", "x" * 100_000),
    *("🧪👩‍👩‍👧‍👦 emoji, \u200b zero width", "line\r\nbreaks\u2028and\ttabs", "␀0␀\x00␀1 a␀", "café cafe\u0301"),
)
COUNTS = {"prompt_tokens": 0, "completion_tokens": 2**31 - 1, "attempts": 5, "reasoning_characters": 12_345}
TEXTS = {"system_fingerprint": "b1234-한글\x00", "error": "오류: \x00 half", "reasoning": "먼저 \x00 생각한다. " * 99}
EAST = timezone(timedelta(hours=9))
TIMES = {"latency_s": 299.999999, "sent_at": datetime(2032, 1, 1, 8, 59, 59, 999_999, tzinfo=EAST)}
LIKELY = {"loglikelihood": -12.345678901234567, "is_greedy": False, "status": AnswerStatus.TRUNCATED}
WHOLE = make.answer(3, CANDIDATE, "정답", choice=2, repeat=4, model="org/한글", **LIKELY, **COUNTS, **TEXTS, **TIMES)
SILENT = make.answer(0, text=None, prompt_tokens=None, completion_tokens=None, finish_reason="", system_fingerprint="")


@pytest.fixture(autouse=True)
def _comparisons(store: Store) -> None:
    store.create(make.comparison(), make.items(12))
    store.create(make.comparison("c-2"), make.items(2))


@pytest.mark.parametrize(
    "answers",
    [
        [WHOLE],
        [SILENT],
        [make.answer(position, text=text) for position, text in enumerate(HARD_TEXTS)],
        [
            make.answer(0, text=None, loglikelihood=value, is_greedy=True, choice=choice)
            for choice, value in enumerate(LOGLIKELIHOODS)
        ],
        [
            make.answer(position, drafted=Drafted(draft_tokens=drafts, accepted_tokens=7, rounds=rounds))
            for position, (drafts, rounds) in enumerate([(None, ()), (0, (1, 0, 3)), (12, ()), (12, (1, 0, 3))])
        ],
        [make.answer(position, text=text, run=1) for position, text in enumerate(("same", "", None))],
        [make.answer(0, text=f"answer {repeat}", repeat=repeat) for repeat in range(2_345)],
    ],
    ids=["every field", "nothing said", "texts", "log-likelihoods", "drafted", "noise floor", "thousands"],
)
def test_answers_come_back_as_they_were(store: Store, answers: list[Answer]) -> None:
    assert store.add_answers("c-1", answers) == 0
    assert list(store.answers("c-1", arm=answers[0].arm, run=answers[0].run)) == answers
    assert store.add_answers("c-1", answers) == len(answers)


def test_what_no_database_can_hold_is_mended(store: Store) -> None:
    broken = make.answer(0, text="a\ud800b", error="e\udc80", finish_reason="\ud800", latency_s=0.12345678)
    store.add_answers("c-1", [broken])
    (found,) = store.answers("c-1", arm=BASELINE)
    said = (found.reply.text, found.reply.error, found.reply.finish_reason, found.reply.latency_s)
    assert said == ("a\ufffdb", "e\ufffd", "\ufffd", 0.123457)


def test_answers_come_in_order_and_by_position(store: Store) -> None:
    def places(arm: ArmName) -> list[tuple[int, int, int]]:
        return [(one.position, one.choice, one.repeat) for one in store.answers("c-1", arm=arm)]

    wanted = [(position, choice, repeat) for position in (0, 2, 11) for choice in (0, 1, 10) for repeat in (0, 1)]
    answers = [make.answer(position, choice=choice, repeat=repeat) for position, choice, repeat in wanted]
    store.add_answers("c-1", answers[::-2])
    store.add_answers("c-1", [*answers[-2::-2], make.answer(5, CANDIDATE)])
    assert places(BASELINE) == wanted
    assert places(CANDIDATE) == [(5, 0, 0)]
    assert store.answered("c-1") == {(BASELINE, *place) for place in wanted} | {(CANDIDATE, 5, 0, 0)}
    assert {one.position for one in store.answers("c-1", arm=BASELINE, positions={2, 11, 7})} == {2, 11}
    assert list(store.answers("c-1", arm=BASELINE, positions=())) == list(store.items("c-1", positions=())) == []
    items = list(store.items("c-1", positions={4, 1}))
    assert [item.position for item in items] == [1, 4]


def test_the_answers_of_each_arm_are_counted(store: Store) -> None:
    assert store.n_answered("c-1") == {BASELINE: 0, CANDIDATE: 0}
    answers = [make.answer(0), make.answer(1, choice=1), make.answer(4, CANDIDATE), make.answer(4, run=1)]
    store.add_answers("c-1", answers)
    statuses = (AnswerStatus.TIMEOUT, AnswerStatus.REJECTED, AnswerStatus.NO_FINAL_ANSWER)
    store.add_answers("c-1", [failed(position, status) for position, status in enumerate(statuses, 5)])
    assert store.n_answered("c-1") == {BASELINE: 5, CANDIDATE: 1}
    assert store.n_answered("c-1", statuses) == {BASELINE: 3, CANDIDATE: 0}


def test_late_duplicates_are_counted_and_change_nothing(store: Store) -> None:
    assert store.add_answers("c-1", [make.answer(0, text="first"), make.answer(1)]) == 0
    assert store.add_answers("c-1", [make.answer(0, text="second"), make.answer(2)]) == 1
    assert store.add_answers("c-1", [make.answer(3, text="a"), make.answer(3, text="b")]) == 1
    assert [answer.reply.text for answer in store.answers("c-1", arm=BASELINE)] == ["first", "18", "18", "a"]
    assert store.get("c-1").duplicates == 2
    everywhere = [make.answer(9, arm, choice=c, repeat=r) for arm in ArmName for c in (0, 1) for r in (0, 1)]
    assert store.add_answers("c-1", everywhere) == 0, "arms, choices and repeats are places of their own"
    assert store.add_answers("c-2", [make.answer(0, text="two")]) == 0
    assert store.get("c-2").duplicates == 0


def test_failures_are_dropped_and_can_be_answered(store: Store) -> None:
    store.add_answers("c-1", [failed(position, status) for position, status in enumerate(AnswerStatus)])
    assert store.drop_failures("c-1") == 4
    kept = {answer.reply.status for answer in store.answers("c-1", arm=BASELINE)}
    assert kept == {status for status in AnswerStatus if not status.is_failure}
    again = [make.answer(position, text="at last") for position, status in enumerate(AnswerStatus) if status.is_failure]
    assert (store.add_answers("c-1", again), store.drop_failures("c-1")) == (0, 0)
    broken = [replace(failed(position, AnswerStatus.TIMEOUT), run=run) for position in range(2) for run in (0, 1)]
    store.add_answers("c-2", [*broken, make.answer(1, CANDIDATE), make.answer(1, run=2)])
    assert store.drop_failures("c-2", from_position=1) == 1 + 2, "of the noise floor all, whatever the position"
    assert store.answered("c-2") == {(BASELINE, 0, 0, 0), (CANDIDATE, 1, 0, 0)}
    assert store.answered("c-2", run=2) == {(BASELINE, 1, 0, 0)}


def test_runs_of_the_noise_floor_are_places_of_their_own(store: Store) -> None:
    arms = [make.answer(position, arm) for position in range(3) for arm in ArmName]
    again = [make.answer(position, text=str(run), run=run) for run in (2, 1) for position in (2, 0)]
    assert (store.add_answers("c-1", [*again, *arms]), store.add_answers("c-1", again)) == (0, 4)
    assert store.answered("c-1") == {(arm, position, 0, 0) for position in range(3) for arm in ArmName}
    assert store.answered("c-1", run=1) == {(BASELINE, 0, 0, 0), (BASELINE, 2, 0, 0)}
    assert store.answered("c-1", run=3) == set()
    found = list(store.answers("c-1", arm=BASELINE, run=2))
    assert [(one.run, one.position, one.reply.text) for one in found] == [(2, 0, "2"), (2, 2, "2")]
    assert list(store.answers("c-1", arm=CANDIDATE, run=1)) == []


NAN = float("nan")
IMPOSSIBLE = (
    *(make.answer(99), make.answer(99, run=1), make.answer(-1), make.answer(0, choice=-1), make.answer(0, repeat=-1)),
    *(make.answer(0, attempts=0), make.answer(0, latency_s=-0.5), replace(make.answer(0), request_hash=b"short")),
    *(make.answer(1, CANDIDATE, run=1), make.answer(1, run=-1), make.answer(0, text=None, loglikelihood=NAN)),
    make.answer(0, sent_at=datetime(2026, 1, 1)),
)


def test_an_impossible_answer_is_refused_and_nothing_is_stored(store: Store) -> None:
    for answer in IMPOSSIBLE:
        with pytest.raises(StoreError, match=r"is impossible, or belongs to an item|NaN|has no time zone"):
            store.add_answers("c-1", [make.answer(1), answer])
        assert store.answered("c-1") == set(), answer


def test_answers_can_be_added_while_others_are_read(store: Store) -> None:
    store.add_answers("c-1", [make.answer(position) for position in range(12)])
    for _ in range(30):
        assert next(store.answers("c-1", arm=BASELINE)).position == 0, "a reader can be left half way"
    for answer in store.answers("c-1", arm=BASELINE):
        assert store.add_answers("c-1", [make.answer(answer.position, CANDIDATE, sent_at=NOW)]) == 0
    assert len(store.answered("c-1")) == 24


def test_scores_come_in_order_of_arm_position_repeat_and_metric(store: Store) -> None:
    wanted = [
        make.score(position, arm, repeat=repeat, metric=metric)
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
    details: Any = [None, (), (True, False), (3, "정답\x00"), ("예", None), (2**70,), ("\ud800",)]
    scores = [make.score(n, value=values[n], detail=detail) for n, detail in enumerate(details)]
    store.put_scores("c-1", scores)
    found = list(store.scores("c-1"))
    assert found == scores
    kinds = [[type(value) for value in score.detail or ()] for score in found]
    assert kinds == [[type(value) for value in detail or ()] for detail in details]


def test_new_scores_take_the_place_of_all_the_old(store: Store) -> None:
    store.put_scores("c-2", [make.score(0)])
    many = [make.score(0, repeat=repeat, metric=f"m{repeat % 7},none") for repeat in range(2_500)]
    for scores in (many, [replace(score, value=0.0) for score in many], [make.score(3, CANDIDATE, 0.0)], []):
        store.put_scores("c-1", iter(scores))
        assert list(store.scores("c-1")) == scores
    assert list(store.scores("c-2")) == [make.score(0)]


def test_impossible_scores_are_refused_and_the_old_ones_stay(store: Store) -> None:
    def scores(wrong: Score | None) -> Iterator[Score]:
        yield make.score(0)
        if wrong is None:
            raise KeyboardInterrupt
        yield wrong

    store.put_scores("c-1", [make.score(5)])
    for wrong in (make.score(1, value=NAN), make.score(99), make.score(0), make.score(1, detail=(object(),)), None):
        with pytest.raises(StoreError if wrong else KeyboardInterrupt):
            store.put_scores("c-1", scores(wrong))
        assert list(store.scores("c-1")) == [make.score(5)], wrong


def test_flips_are_the_scores_that_differ_between_the_arms(store: Store) -> None:
    rows = [
        (5, 0, "acc,none", 1.0, 0.0),
        (3, 1, "acc,none", 0.25, 0.5),
        (3, 0, "acc,none", 1.0, 1.0),
        (3, 0, "메트릭,none", 0.0, 1.0),
        (3, 0, "f1,none", 0.0, 1.0),
    ]
    scores = [make.score(7, BASELINE, metric="acc,none", value=0.0)]
    for position, repeat, metric, *values in rows:
        for arm, value in zip(ArmName, values, strict=True):
            scores.append(make.score(position, arm, repeat=repeat, metric=metric, value=value))
    store.put_scores("c-1", scores)
    found = list(store.flips("c-1", metrics={"acc,none", "메트릭,none"}))
    assert {(one.task, one.kind) for one in found} == {("gsm8k", RequestKind.GENERATION)}
    shown = [(one.position, one.repeat, one.metric, one.baseline, one.candidate) for one in found]
    assert shown == [rows[3], rows[1], rows[0]]
    assert list(store.flips("c-1", metrics=())) == []


SAME, GAIN, LOSS, UNKNOWN = Change.SAME, Change.GAIN, Change.LOSS, Change.UNKNOWN


def test_outcomes_come_back_as_they_went_in_by_position_and_repeat(store: Store) -> None:
    wanted = [
        make.outcome(0, repeat=1, baseline=-5e-324, candidate=float("inf")),
        make.outcome(1, GAIN, task="kobest_과제", kind=RequestKind.LOGLIKELIHOOD, different_text=True),
        make.outcome(1, LOSS, repeat=1, length=2**31 - 1),
        make.outcome(2, UNKNOWN),
        make.outcome(2, UNKNOWN, repeat=1, baseline=None, candidate=None),
    ]
    assert not store.has_outcomes("c-1")
    store.put_outcomes("c-1", [make.outcome(5), make.outcome(6)])
    store.put_outcomes("c-1", reversed(wanted))  # in the place of the former ones
    assert list(store.outcomes("c-1", OutcomeFilter()).entries) == wanted
    assert (store.has_outcomes("c-1"), store.has_outcomes("c-2")) == (True, False)
    assert store.outcomes("c-2", OutcomeFilter()).entries == ()
    store.put_outcomes("c-2", [make.outcome(0)])
    store.put_scores("c-1", [make.score(0)])
    assert (store.has_outcomes("c-1"), store.has_outcomes("c-2")) == (False, True), "new scores take outcomes away"


NO_OUTCOMES = (
    *(make.outcome(1), make.outcome(12), make.outcome(2, repeat=-1), make.outcome(2, length=-1)),
    *(make.outcome(2, baseline=None), make.outcome(2, UNKNOWN, baseline=1.0), make.outcome(2, baseline=NAN)),
)


def test_an_outcome_that_cannot_be_leaves_what_was_there(store: Store) -> None:
    store.put_outcomes("c-1", [make.outcome(0)])
    for outcome in NO_OUTCOMES:
        with pytest.raises(StoreError, match="outcome"):
            store.put_outcomes("c-1", [make.outcome(1), outcome])
        assert list(store.outcomes("c-1", OutcomeFilter()).entries) == [make.outcome(0)], outcome


def flips_by_page(store: Store, cursor: str | None = None, **options: Any) -> list[list[Place]]:
    pages = []
    while not pages or cursor is not None:
        page = store.outcomes("c-1", OutcomeFilter(flipped=True), cursor=cursor, **options)
        pages.append([(one.position, one.repeat) for one in page.entries])
        cursor = page.next_cursor
    return pages


def test_pages_hold_everything_once_forward_and_backward(store: Store) -> None:
    changes = {1: GAIN, 4: LOSS, 6: GAIN}
    every = [(position, repeat) for position in range(8) for repeat in range(2)]
    store.put_outcomes("c-1", [make.outcome(at, changes.get(at, SAME), repeat=repeat) for at, repeat in every])
    flips = [place for place in every if place[0] in changes]
    for limit in (1, 2, 3, 5, 6):
        assert flips_by_page(store, limit=limit) == [flips[at : at + limit] for at in range(0, 6, limit)]
    backward = flips_by_page(store, encode_cursor("items", 6, 1), limit=2, is_backward=True)
    assert backward == [[(6, 0), (4, 1)], [(4, 0), (1, 1)], [(1, 0)]]
    (last,) = store.outcomes("c-1", OutcomeFilter(), limit=1, is_backward=True).entries
    assert (last.position, last.repeat) == (7, 1)
    with pytest.raises(InvalidValue, match="cursor"):
        store.outcomes("c-1", OutcomeFilter(), cursor=encode_cursor("audit", 1))


def test_filters_hold_together_and_alone(store: Store) -> None:
    rows = enumerate((SAME, GAIN, LOSS, UNKNOWN, SAME, GAIN))
    parity = ("even", "odd")
    outcomes = [make.outcome(at, change, task=parity[at % 2], different_text=at > 3) for at, change in rows]
    store.put_outcomes("c-1", outcomes)
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
        found = store.outcomes("c-1", OutcomeFilter(**wanted)).entries
        assert [one.position for one in found] == positions, wanted


def test_an_item_comes_with_its_answers_and_scores(store: Store) -> None:
    shared = "the answer begins alike in both arms, and then "
    baseline = [make.answer(1, BASELINE, shared + "ends"), make.answer(1, BASELINE, repeat=1)]
    of_one = [*baseline, make.answer(1, CANDIDATE, shared + "does not")]
    store.add_answers("c-1", [*of_one, make.answer(0), make.answer(2), make.answer(1, run=1)])
    scores = [make.score(1), make.score(1, metric="other"), make.score(1, CANDIDATE, 0.0, detail=(False, True))]
    store.put_scores("c-1", [*scores, make.score(0), make.score(2, CANDIDATE)])
    item, answers, found = store.pair("c-1", 1)
    assert item == make.item(1)
    assert list(answers) == of_one
    assert list(found) == scores
    store.create(make.comparison("c-3"), [make.choices(7)])
    assert store.pair("c-3", 7) == (make.choices(7), [], [])
    for position in (12, -1, 2**40):
        with pytest.raises(ItemNotFound, match=f"position {position}"):
            store.pair("c-1", position)


DRAFTING = engine.Drafting(drafts=3, draft_tokens=9, accepted_tokens=4, accepted_at=(3, 1))
COUNTERS = engine.Counters(drafting=DRAFTING, prompt_tokens=7, decode_s=1.5, decode_steps=5)
VLLM = engine.Engine(kind=engine.EngineKind.VLLM, model_root="/모델", config={"a.b": "1"}, counters=COUNTERS)
ENGINE = engine.EngineSeen(tokens="0123", arm=CANDIDATE, seen_at=NOW, engine=VLLM)
SEGMENT = filled(engine.Segment, task="gsm8k", part=2, began_at=NOW, ended_at=NOW, before=COUNTERS, attempts=5)
PIN = PinFound(arm=ArmName.BASELINE, part=PinPart.IMAGE, values=("sha256:a", "sha256:b"), source="kubectl, pod a/b")
PINS = engine.PinsSeen(seen_at=NOW, pins=(PIN, replace(PIN, part=PinPart.REVISION, values=("가",), source="declared")))
ARMS, NOISE = (engine.FirstTokens(task="문제", pairs=pairs, n_differ=0, places=()) for pairs in engine.PairKind)
DIFFERING = replace(ARMS, n_differ=7, places=((0, 0, 12), (2, 1, None), (3, 0, 0)))
BY, TIME = engine.TokenizedBy.BASELINE, engine.TokensLack.TIME
TOKENS = engine.FirstTokensSeen(seen_at=NOW, by=BY, tasks=(DIFFERING, NOISE), lack=TIME)


def test_looks_follow_each_other_and_outlive_every_status_and_analysis(store: Store) -> None:
    looks = [make.look(number) for number in range(1, 11)]
    for look in looks:
        store.add_look("c-1", look, now=NOW)
    store.put_analysis(make.analysis(), now=NOW)
    store.set_status("c-1", ComparisonStatus.RUNNING, now=NOW)
    store.put_scores("c-1", [])
    for number in (0, -1, 1, 10, 12):
        with pytest.raises(StoreError, match=f"look {number} of c-1 does not follow the 10 that were taken"):
            store.add_look("c-1", make.look(number, decision=LookDecision.CONTINUE), now=NOW)
    assert (list(store.looks("c-1")), list(store.looks("c-2"))) == (looks, [])


def test_observations_of_every_kind_come_back_in_their_order_and_the_last_counts(store: Store) -> None:
    later = replace(ENGINE, engine=replace(VLLM, version="2"))
    tokens = replace(TOKENS, by=engine.TokenizedBy.NAMED, lack=None)
    made = [ENGINE, PINS, SEGMENT, TOKENS, engine.PinsSeen(seen_at=NOW, pins=(PIN,)), later, tokens, SEGMENT]
    for one in made:
        store.add_observation("c-1", one)
    store.put_analysis(make.analysis(), now=NOW)
    seen = store.observations("c-1")
    assert (list(seen), list(store.observations("c-2"))) == (made, [])
    assert (engine.pins_seen(seen), engine.engines_seen(seen)) == ((PIN,), {CANDIDATE: later.engine}), "the last counts"
    assert (engine.last_seen([], engine.FirstTokensSeen), engine.pins_seen([])) == (None, ())
    assert engine.last_seen(seen, engine.FirstTokensSeen) == tokens
    assert tokens.places(engine.PairKind.ARMS) == {(0, 0): 12, (2, 1): None, (3, 0): 0}
    assert tokens.places(engine.PairKind.NOISE) == {}


def test_each_analysis_is_sealed_with_the_one_before_it_and_the_first_with_the_plan(store: Store) -> None:
    assert list(store.seals("c-1")) == []
    analyses = [make.analysis(), make.analysis(plan_hash="o" * 64), make.analysis()]
    store.put_analysis(make.analysis("c-2"), now=NOW)
    for number, analysis in enumerate(analyses):
        store.put_analysis(analysis, now=after(number))
    seals = list(store.seals("c-1"))
    assert [one.body for one in seals] == [canonical_json(analysis) for analysis in analyses]
    assert [one.plan_hash for one in seals] == [analysis.plan_hash for analysis in analyses]
    assert [one.previous for one in seals] == [make.comparison().plan_hash, seals[0].seal, seals[1].seal]
    assert all(one.seal == seal_of(one.body, previous=one.previous) for one in seals)
    assert len({one.seal for one in seals}) == 3
    assert store.seals("c-2")[0].previous == store.get("c-2").plan_hash

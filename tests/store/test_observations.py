"""What is added in order and never changed: looks, observations, sealed analyses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qualab.errors import StoreError
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
from qualab.model.names import ArmName, ComparisonStatus, LookDecision
from qualab.model.plan import PinFound, PinPart
from qualab.store import Store
from tests.store.samples import NOW, after, make_analysis, make_comparison, make_items, make_look

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


@pytest.fixture(autouse=True)
def _comparisons(store: Store) -> None:
    for comparison_id in ("c-1", "c-2"):
        store.create(make_comparison(comparison_id), make_items(3))


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

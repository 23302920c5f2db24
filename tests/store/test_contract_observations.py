"""What every store does with observations."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
from qualab.model.names import ArmName
from qualab.model.plan import PinFound, PinPart, Pins
from qualab.store import Store
from tests.store.samples import NOW, make_analysis, make_comparison, make_items, make_plan

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
def _comparison(store: Store) -> None:
    store.create(make_comparison(), make_items(3))


def test_observations_of_every_kind_come_back_as_they_were_in_their_order(store: Store) -> None:
    assert list(store.observations("c-1")) == []
    made: list[Observation] = [ENGINE, PINS, SEGMENT, TOKENS, PinsSeen(seen_at=NOW, pins=()), ENGINE]
    for one in made:
        store.add_observation("c-1", one)
    assert list(store.observations("c-1")) == made


def test_each_comparison_has_its_own_and_an_analysis_takes_none_away(store: Store) -> None:
    store.create(make_comparison("c-2"), make_items(1))
    store.add_observation("c-1", PINS)
    store.add_observation("c-2", ENGINE)
    store.put_analysis(make_analysis(), now=NOW)
    assert list(store.observations("c-1")) == [PINS]
    assert list(store.observations("c-2")) == [ENGINE]


def test_the_last_that_was_seen_counts(store: Store) -> None:
    later = replace(ENGINE, engine=replace(ENGINE.engine, version="2"))
    for one in (PINS, ENGINE, PinsSeen(seen_at=NOW, pins=(PIN,)), later, SEGMENT):
        store.add_observation("c-1", one)
    seen = store.observations("c-1")
    assert pins_seen(seen) == (PIN,)
    assert engines_seen(seen) == {ArmName.CANDIDATE: later.engine}
    assert pins_seen([]) == ()


def test_a_plan_keeps_its_pins(store: Store) -> None:
    plan = make_plan(pins=Pins(image=f"a/b@sha256:{'0' * 64}", revision="main", checkpoint_hash="sha256:1"))
    store.create(make_comparison("pinned", plan=plan), [])
    assert store.get("pinned").plan == plan


def test_the_tokens_that_were_seen_last_count(store: Store) -> None:
    assert first_tokens_seen(store.observations("c-1")) is None
    last = replace(TOKENS, by=TokenizedBy.NAMED, lack=None)
    for one in (TOKENS, last, SEGMENT):
        store.add_observation("c-1", one)
    assert first_tokens_seen(store.observations("c-1")) == last
    assert last.places(PairKind.ARMS) == {(0, 0): 12, (2, 1): None, (3, 0): 0}
    assert last.places(PairKind.NOISE) == {}

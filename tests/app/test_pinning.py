"""Pins from plan to sign-off: what is verified, what stops, what is only said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from qualab.errors import PairDiffers, RunStopped
from qualab.model.engine import Finding, pins_seen
from qualab.model.names import ArmName
from qualab.model.plan import DecisionRule, PinPart, Pins, arms_text
from qualab.model.ports import ComparisonFilter
from qualab.run.sign import signoff_obstacles
from tests.app.fakes import BASELINE, CANDIDATE, Bench, FakePins, echo_number, failure
from tests.said import english

A, B, C = ("sha256:" + digit * 64 for digit in "abc")
COMMIT, OTHER = "1" * 40, "2" * 40
IMAGE = f"vllm/vllm-openai@{A}"
PODS = {BASELINE: "serving/off", CANDIDATE: "serving/on"}
PINNED: dict[str, Any] = {"image": IMAGE, "revision": COMMIT}


def bench_of(n_items: int = 20, **pins: Any) -> Bench:
    return Bench.of(n_items, hard={1}, pins=FakePins(**pins))


def images(off: tuple[str, ...] = (A,), on: tuple[str, ...] = (A,)) -> dict[str, tuple[str, ...]]:
    return {"serving/off": off, "serving/on": on}


@pytest.mark.parametrize(
    ("pins", "unpinned"),
    [
        (Pins(), ("no image is named", "no checkpoint revision is named")),
        (Pins(image=IMAGE, revision=COMMIT), ()),
        (Pins(image=A, revision="3" * 64), ()),
        (Pins(image=f"host:5000/a/b:v1@{A}", revision="main", checkpoint_hash=B), ()),
        (Pins(image="vllm/vllm-openai:v1", revision=COMMIT), ("the image vllm/vllm-openai:v1 names no digest",)),
        (Pins(image=IMAGE, revision="main"), ("the checkpoint's revision main is a branch or a tag",)),
        (Pins(image=IMAGE, revision=COMMIT[:12]), ("the checkpoint's revision 111111111111 is a branch or a tag",)),
    ],
)
def test_what_may_be_something_else_tomorrow(pins: Pins, unpinned: tuple[str, ...]) -> None:
    assert english(pins.unpinned) == unpinned


async def test_pins_are_of_the_plan_and_declared_where_nothing_tells_and_places_are_not() -> None:
    bench = bench_of(images=images())
    runs: list[dict[str, Any]] = [{}, PINNED, PINNED | {"pods": PODS}, PINNED | {"revision": OTHER}]
    analyses = [await bench.run(**one) for one in runs]
    hashes = [one.plan_hash for one in analyses]
    assert hashes[1] == hashes[2]
    assert len(set(hashes)) == 3
    assert [one.pinning.is_pinned for one in analyses] == [False, True, True, True]
    assert {(one.arm, one.part): (one.values, one.source) for one in analyses[1].pinning.found} == {
        (arm, part): ((value,), "declared")
        for arm in ArmName
        for part, value in ((PinPart.IMAGE, IMAGE), (PinPart.REVISION, COMMIT))
    }
    assert not any("Unpinned" in caveat for caveat in english(analyses[1].caveats))


async def test_what_pods_containers_and_engines_tell_is_verified_by_them(tmp_path: Path) -> None:
    bench = bench_of(images={"serving/off": (B, A), "on": (A,)}, folder_hash=C, commit=OTHER)
    bench.baseline.model_root = bench.candidate.model_root = f"/cache/models--a--b/snapshots/{COMMIT}"
    places = {"pods": {BASELINE: "serving/off"}, "containers": {CANDIDATE: "on"}, "checkpoint": str(tmp_path)}
    analysis = await bench.run(**PINNED, **places)
    assert {(one.arm, one.part): (one.values, one.source) for one in analysis.pinning.found} == {
        (BASELINE, PinPart.IMAGE): ((B, A), "kubectl, pod serving/off"),
        (CANDIDATE, PinPart.IMAGE): ((A,), "docker, container on"),
        **{(arm, PinPart.REVISION): ((COMMIT,), "the engine") for arm in ArmName},
        **{(arm, PinPart.CHECKPOINT): ((C,), f"{tmp_path} on this machine") for arm in ArmName},
    }
    comparison = bench.store.get(analysis.comparison_id)
    assert comparison.plan.pins == Pins(image=IMAGE, revision=COMMIT, checkpoint_hash=C)
    assert pins_seen(bench.store.observations(comparison.id)) == analysis.pinning.found


async def test_an_image_that_is_not_the_plans_stops_before_anything_is_asked_or_stored() -> None:
    bench = bench_of(images=images(on=(B, C)))
    with pytest.raises(PairDiffers) as told:
        await bench.run(**PINNED, pods=PODS)
    assert f"the candidate's image is {B} (kubectl, pod serving/on), and the plan's is {A}" in told.value.message
    assert told.value.message.count("image is") == 1
    assert "Start both arms with the planned image, or make a new plan of what they run (--image)" in told.value.hint
    assert bench.baseline.bodies == []
    assert not bench.store.list(ComparisonFilter())


async def test_arms_of_two_images_and_a_revision_that_is_not_the_plans_stop() -> None:
    (stopping,) = (await bench_of(images=images(on=(B,))).look(pods=PODS)).stopping
    assert english(stopping.what) == (
        f"the image is {A} in the baseline (kubectl, pod serving/off) and {B} in the candidate "
        "(kubectl, pod serving/on)"
    )
    assert stopping.hint == "Start both arms with one image"
    assert not (await bench_of(images=images(on=(B, A))).look(pods=PODS)).stopping
    bench = bench_of()
    bench.baseline.model_root = bench.candidate.model_root = f"/cache/snapshots/{OTHER}/"
    assert [english(finding.what) for finding in (await bench.look(**PINNED)).stopping] == [
        f"the {arm}'s checkpoint revision is {OTHER} (the engine), and the plan's is {COMMIT}" for arm in PODS
    ]


async def test_what_floats_is_said_with_how_to_pin_it_and_does_not_stop() -> None:
    async def said(bench: Bench, **changes: Any) -> list[Finding]:
        return [one for one in (await bench.look(**changes)).findings if "unpinned" in english(one.what)]

    (floats,) = await said(bench_of(), image="host:5000/vllm:v1")
    assert not floats.stops
    assert english(floats.what).startswith("unpinned, never signed off: the image host:5000/vllm:v1 names no digest")
    assert "--image host:5000/vllm@sha256:DIGEST (`docker buildx imagetools inspect host:5000/vllm:v1`" in floats.hint
    assert "Name the checkpoint by its commit with --revision" in floats.hint
    (seen,) = await said(bench_of(images=images()), image="host:5000/vllm:v1", pods=PODS)
    assert f"--image host:5000/vllm@{A} is what the baseline runs" in seen.hint
    assert await said(bench_of(), **PINNED) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [(PINNED, f"and the plan's is {A}"), ({"image": "vllm/vllm-openai:latest"}, f"and was {A} when")],
)
async def test_an_image_that_has_moved_between_stop_and_resume_stops(changes: dict[str, Any], said: str) -> None:
    bench = bench_of(images=images())
    bench.candidate.answer = lambda prompt, seed: failure()
    with pytest.raises(RunStopped):
        await bench.run(pods=PODS, **changes)
    (comparison,) = bench.store.list(ComparisonFilter())
    bench.candidate.answer, bench.pins.images = echo_number, images(off=(B,), on=(B,))
    with pytest.raises(PairDiffers) as told:
        await bench.resume(comparison.id)
    assert f"the baseline's image is {B} (kubectl, pod serving/off), {said}" in told.value.message
    bench.pins.images = {"serving/new": (A,), "serving/on": (A,)}
    moved = {"pods": arms_text(PODS | {BASELINE: "serving/new"})}
    done = await bench.resume(comparison.id, local=moved, retry_failed=True)
    assert done.pinning.found[0].source == "kubectl, pod serving/new"


async def test_everything_that_keeps_a_result_from_being_signed_off() -> None:
    bench = bench_of(600)
    bench.candidate.counters = bench.baseline.counters = AsyncMock(return_value=None)  # type: ignore[method-assign]
    analysis = await bench.run(limit=600, rule=DecisionRule(allow_unobserved=True), image="vllm:latest")
    unpinned = "the image vllm:latest names no digest, no checkpoint revision is named"
    assert f"Unpinned: {unpinned}: not for sign-off." in english(analysis.caveats)
    assert not analysis.pinning.is_pinned
    comparison = bench.store.get(analysis.comparison_id)
    obstacles = ("limited to 600 items a task", unpinned, "nothing tells that the drafter ran")
    assert english(signoff_obstacles(analysis, comparison)) == obstacles
    quiet = replace(comparison, plan=replace(comparison.plan, tasks=()))
    assert english(signoff_obstacles(analysis, quiet))[-1] == "no task exercises the drafter"

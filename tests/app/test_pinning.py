"""Pins from plan to sign-off: what is verified, what stops, what is only said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qualab.errors import InvalidValue, PairDiffers, PlanChanged
from qualab.model.canonical import plan_hash
from qualab.model.comparison import Analysis
from qualab.model.engine import Finding, Preflight, pins_seen
from qualab.model.names import ComparisonStatus, Verdict
from qualab.model.plan import DecisionRule, PinPart, PinPlaces, Pins, arms_text, by_arm
from qualab.model.ports import ComparisonFilter
from qualab.run.compare import compare_again, with_rule
from qualab.run.pins import check_pins, places_of, places_text
from qualab.run.run import look_before, resume, start
from qualab.run.sign import signoff_obstacles
from tests.app.fakes import (
    BASELINE,
    CANDIDATE,
    Bench,
    FakeHarness,
    FakePins,
    FakeTasks,
    QuietProgress,
    experiment,
    failure,
)
from tests.said import english

A, B, C = ("sha256:" + digit * 64 for digit in "abc")
COMMIT, OTHER = "1" * 40, "2" * 40
IMAGE = f"vllm/vllm-openai@{A}"
PODS = {BASELINE: "serving/off", CANDIDATE: "serving/on"}
PINNED: dict[str, Any] = {"image": IMAGE, "revision": COMMIT}


def bench_of(n_items: int = 20, **pins: Any) -> Bench:
    return Bench(harness=FakeHarness(FakeTasks(n_items=n_items, hard=frozenset({1}))), pins=FakePins(**pins))


async def run(bench: Bench, **changes: Any) -> Analysis:
    return await start(bench.services, experiment(**changes), keys={}, progress=QuietProgress())


async def look(bench: Bench, **changes: Any) -> Preflight:
    return await look_before(bench.services, experiment(**changes), keys={}, progress=QuietProgress())


def images(off: tuple[str, ...] = (A,), on: tuple[str, ...] = (A,)) -> dict[str, tuple[str, ...]]:
    return {"serving/off": off, "serving/on": on}


@pytest.mark.parametrize(
    ("pins", "unpinned"),
    [
        (Pins(), ("no image is named", "no checkpoint revision is named")),
        (Pins(image=IMAGE, revision=COMMIT), ()),
        (Pins(image=A, revision="3" * 64), ()),
        (Pins(image=f"host:5000/a/b:v1@{A}", revision="main", checkpoint_hash=B), ()),
        (Pins(image="vllm/vllm-openai", revision=COMMIT), ("the image vllm/vllm-openai names no digest",)),
        (
            Pins(image="vllm/vllm-openai:v0.11.0", revision=COMMIT),
            ("the image vllm/vllm-openai:v0.11.0 names no digest",),
        ),
        (Pins(image=IMAGE, revision="main"), ("the checkpoint's revision main is a branch or a tag",)),
        (Pins(image=IMAGE, revision=COMMIT[:12]), ("the checkpoint's revision 111111111111 is a branch or a tag",)),
    ],
)
def test_what_may_be_something_else_tomorrow(pins: Pins, unpinned: tuple[str, ...]) -> None:
    assert english(pins.unpinned) == unpinned


@pytest.mark.parametrize("image", [f"a/b@{A[:-1]}", f"a/b@{A}0", f"a/b@{A.upper()}", "a/b@latest", "a b", f"a@{A}:v1"])
def test_an_image_that_is_none_is_refused(image: str) -> None:
    with pytest.raises(InvalidValue, match="is no image with a digest"):
        check_pins(image, PinPlaces())


@pytest.mark.parametrize(
    ("places", "says"),
    [
        (PinPlaces(pods={BASELINE: "off-0"}), "pods: 'off-0' of the baseline is not of the form namespace/pod"),
        (PinPlaces(pods={CANDIDATE: "a/--all"}), "of the candidate is not of the form namespace/pod"),
        (PinPlaces(containers={BASELINE: "-f"}), "containers: '-f' of the baseline"),
        (PinPlaces(pods={BASELINE: "a/b"}, containers={BASELINE: "c"}), "The baseline has a pod and a container"),
    ],
)
def test_places_that_are_none_are_refused(places: PinPlaces, says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        check_pins("", places)


def test_places_are_kept_as_text_and_read_back(tmp_path: Path) -> None:
    places = PinPlaces(checkpoint=tmp_path, pods=PODS, containers={})
    assert places_of(places_text(places)) == places
    assert places_of({}) == PinPlaces()
    assert by_arm(f" {arms_text(PODS)}, ") == PODS
    for wrong in ("off", "baseline=", "left=a"):
        with pytest.raises(ValueError, match=r"left|form"):
            by_arm(wrong)


async def test_pins_are_of_the_plan_and_places_are_not() -> None:
    bench = bench_of(images=images())
    runs = [
        {},
        PINNED,
        PINNED | {"places": PinPlaces(pods=PODS)},
        PINNED | {"revision": OTHER},
        {"revision": COMMIT, "image": f"x@{B}"},
    ]
    hashes = [(await run(bench, **one)).plan_hash for one in runs]
    assert hashes[1] == hashes[2]
    assert len(set(hashes)) == 4


async def test_an_unpinned_result_says_so_and_is_not_signed_off() -> None:
    bench = bench_of(600)
    analysis = await run(bench, image="vllm:latest")
    assert analysis.verdict is Verdict.EQUIVALENT
    sentence = "Unpinned: the image vllm:latest names no digest, no checkpoint revision is named: not for sign-off."
    assert sentence in english(analysis.caveats)
    assert analysis.pinning is not None
    assert not analysis.pinning.is_pinned
    (obstacle,) = english(signoff_obstacles(analysis, bench.store.get(analysis.comparison_id)))
    assert obstacle.startswith("unpinned: the image")


async def test_a_pinned_result_can_be_signed_off_and_is_declared_where_nothing_tells() -> None:
    bench = bench_of(600)
    analysis = await run(bench, **PINNED)
    assert analysis.pinning is not None
    assert analysis.pinning.is_pinned
    told = [(one.arm, one.part, one.values, one.source) for one in analysis.pinning.found]
    assert told == [
        (arm, part, (value,), "declared")
        for arm in (BASELINE, CANDIDATE)
        for part, value in ((PinPart.IMAGE, IMAGE), (PinPart.REVISION, COMMIT))
    ]
    assert not any("Unpinned" in caveat for caveat in english(analysis.caveats))
    comparison = bench.store.get(analysis.comparison_id)
    assert signoff_obstacles(analysis, comparison) == ()


async def test_what_pods_containers_and_engines_tell_is_verified_by_them(tmp_path: Path) -> None:
    bench = bench_of(images={"serving/off": (B, A), "on": (A,)}, folder_hash=C, commit=OTHER)
    for arm in (bench.baseline, bench.candidate):
        arm.model_root = f"/cache/models--a--b/snapshots/{COMMIT}"
    places = PinPlaces(pods={BASELINE: "serving/off"}, containers={CANDIDATE: "on"}, checkpoint=tmp_path)
    analysis = await run(bench, **PINNED, places=places)
    assert analysis.pinning is not None
    assert {(one.arm, one.part): (one.values, one.source) for one in analysis.pinning.found} == {
        (BASELINE, PinPart.IMAGE): ((B, A), "kubectl, pod serving/off"),
        (CANDIDATE, PinPart.IMAGE): ((A,), "docker, container on"),
        (BASELINE, PinPart.REVISION): ((COMMIT,), "the engine"),
        (CANDIDATE, PinPart.REVISION): ((COMMIT,), "the engine"),
        (BASELINE, PinPart.CHECKPOINT): ((C,), f"{tmp_path} on this machine"),
        (CANDIDATE, PinPart.CHECKPOINT): ((C,), f"{tmp_path} on this machine"),
    }
    comparison = bench.store.get(analysis.comparison_id)
    assert comparison.plan.pins == Pins(image=IMAGE, revision=COMMIT, checkpoint_hash=C)
    assert pins_seen(bench.store.observations(comparison.id)) == analysis.pinning.found


async def test_an_image_that_is_not_the_plans_stops_before_anything_is_asked_or_stored() -> None:
    bench = bench_of(images=images(on=(B, C)))
    with pytest.raises(PairDiffers) as told:
        await run(bench, **PINNED, places=PinPlaces(pods=PODS))
    assert f"the candidate's image is {B} (kubectl, pod serving/on), and the plan's is {A}" in told.value.message
    assert told.value.message.count("image is") == 1
    assert "Start both arms with the planned image, or make a new plan of what they run (--image)" in told.value.hint
    assert bench.baseline.bodies == []
    assert not bench.store.list(ComparisonFilter())


async def test_arms_of_two_images_stop_though_the_plan_names_none() -> None:
    found = await look(bench_of(images=images(on=(B,))), places=PinPlaces(pods=PODS))
    (stopping,) = found.stopping
    assert english(stopping.what) == (
        f"the image is {A} in the baseline (kubectl, pod serving/off) and {B} in the candidate "
        "(kubectl, pod serving/on)"
    )
    assert stopping.hint == "Start both arms with one image"
    assert not (await look(bench_of(images=images(on=(B, A))), places=PinPlaces(pods=PODS))).stopping


async def test_a_revision_of_the_engine_that_is_not_the_plans_stops() -> None:
    bench = bench_of()
    for arm in (bench.baseline, bench.candidate):
        arm.model_root = f"/cache/snapshots/{OTHER}/"
    found = await look(bench, **PINNED)
    assert [english(one.what) for one in found.stopping] == [
        f"the {arm}'s checkpoint's revision is {OTHER} (the engine), and the plan's is {COMMIT}"
        for arm in ("baseline", "candidate")
    ]


def of_pins(found: Preflight) -> list[Finding]:
    return [one for one in found.findings if "unpinned" in english(one.what)]


async def test_what_floats_is_said_with_how_to_pin_it_and_does_not_stop() -> None:
    found = await look(bench_of(), image="host:5000/vllm:v1")
    (said,) = of_pins(found)
    assert (said.stops, found.stopping) == (False, ())
    assert english(said.what).startswith("unpinned, never signed off: the image host:5000/vllm:v1 names no digest")
    assert "--image host:5000/vllm@sha256:DIGEST (`docker buildx imagetools inspect host:5000/vllm:v1`" in said.hint
    assert "Name the checkpoint by its commit with --revision" in said.hint
    seen = await look(bench_of(images=images()), image="host:5000/vllm:v1", places=PinPlaces(pods=PODS))
    assert f"--image host:5000/vllm@{A} is what the baseline runs" in of_pins(seen)[0].hint
    assert of_pins(await look(bench_of(), **PINNED)) == []


async def test_a_frozen_plans_checkpoint_is_compared_with_the_folder_here(tmp_path: Path) -> None:
    bench = bench_of(folder_hash=A)
    wanted = experiment(image=IMAGE, places=PinPlaces(checkpoint=tmp_path))
    first = await start(bench.services, wanted, keys={}, progress=QuietProgress())
    frozen = bench.store.get(first.comparison_id).plan
    assert frozen.pins.checkpoint_hash == A
    other = bench_of(folder_hash=B)
    with pytest.raises(PairDiffers, match=f"the baseline's checkpoint's hash is {B} .*, and the plan's is {A}"):
        await start(other.services, wanted, keys={}, progress=QuietProgress(), frozen=frozen)
    elsewhere = replace(wanted, places=PinPlaces())
    done = await start(other.services, elsewhere, keys={}, progress=QuietProgress(), frozen=frozen)
    assert done.plan_hash == first.plan_hash
    assert done.pinning is not None
    assert {one.source for one in done.pinning.found if one.part is PinPart.CHECKPOINT} == {"declared"}


async def stopped(bench: Bench, **changes: Any) -> str:
    """A comparison whose run ended early: its candidate failed."""
    answer, bench.candidate.answer = bench.candidate.answer, lambda prompt, seed: failure()
    with pytest.raises(Exception, match="fails"):
        await run(bench, **changes)
    bench.candidate.answer = answer
    (comparison,) = bench.store.list(ComparisonFilter())
    assert comparison.status is ComparisonStatus.STOPPED
    return str(comparison.id)


async def test_a_resumed_run_verifies_again() -> None:
    bench = bench_of(images=images())
    comparison_id = await stopped(bench, **PINNED, places=PinPlaces(pods=PODS))
    bench.pins.images["serving/off"] = (B,)
    with pytest.raises(PairDiffers, match="the baseline's image is"):
        await resume(bench.services, comparison_id, keys={}, progress=QuietProgress())
    bench.pins.images["serving/new"] = (A,)
    moved = {"pods": arms_text(PODS | {BASELINE: "serving/new"})}
    done = await resume(
        bench.services, comparison_id, keys={}, progress=QuietProgress(), local=moved, retry_failed=True
    )
    assert done.pinning is not None
    assert done.pinning.found[0].source == "kubectl, pod serving/new"


async def test_a_floating_image_that_has_moved_between_stop_and_resume_stops() -> None:
    bench = bench_of(images=images())
    comparison_id = await stopped(bench, image="vllm/vllm-openai:latest", places=PinPlaces(pods=PODS))
    bench.pins.images |= images(off=(B,), on=(B,))
    with pytest.raises(PairDiffers) as told:
        await resume(bench.services, comparison_id, keys={}, progress=QuietProgress())
    assert f"the baseline's image is {B} (kubectl, pod serving/off), and was {A} when" in told.value.message
    assert "begin a new comparison" in told.value.hint


async def test_everything_that_keeps_a_result_from_being_signed_off() -> None:
    bench = bench_of(600)
    bench.candidate.counters = bench.baseline.counters = closed  # type: ignore[method-assign]
    analysis = await run(bench, limit=600, rule=DecisionRule(allow_unobserved=True))
    comparison = bench.store.get(analysis.comparison_id)
    assert english(signoff_obstacles(analysis, comparison)) == (
        "limited to 600 items a task",
        "unpinned: no image is named, no checkpoint revision is named",
        "nothing tells that the drafter ran",
    )
    other = compare_again(bench.services, comparison.id, other=with_rule(comparison.plan, {"margin": 0.1})).analysis
    assert english(signoff_obstacles(other, comparison))[:2] == (
        "the verdict is INVALID",
        "the plan was made after the data",
    )
    quiet = replace(comparison, plan=replace(comparison.plan, tasks=()))
    assert english(signoff_obstacles(analysis, quiet))[-1] == "no task exercises the drafter"


async def closed() -> None:
    return None


async def test_a_verdict_that_does_not_pass_is_an_obstacle_and_no_noise_floor_is_none() -> None:
    bench = bench_of(10)
    analysis = await run(bench, **PINNED)
    assert any("No noise floor" in caveat for caveat in english(analysis.caveats))
    comparison = bench.store.get(analysis.comparison_id)
    assert english(signoff_obstacles(analysis, comparison)) == ("the verdict is INCONCLUSIVE",)


async def test_a_plan_with_other_pins_cannot_judge_what_was_run() -> None:
    bench = bench_of()
    analysis = await run(bench)
    plan = replace(bench.store.get(analysis.comparison_id).plan, pins=Pins(image=IMAGE, revision=COMMIT))
    assert plan_hash(plan) != analysis.plan_hash
    with pytest.raises(PlanChanged, match="pins differ"):
        compare_again(bench.services, analysis.comparison_id, other=plan)

"""Finds out what both arms are made of, and whether that is what the plan names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qualab.errors import InvalidValue
from qualab.model.engine import Engine, Finding, Preflight
from qualab.model.names import ArmName
from qualab.model.plan import (
    DECLARED,
    DIGEST,
    PinFound,
    PinPart,
    PinPlaces,
    Pins,
    arms_text,
    by_arm,
    commit_of,
    digest_of,
    snapshot_of,
)
from qualab.model.reason import Reason
from qualab.run.pin_sources import LocalPins

Say = Callable[[str], None]

_NAME = r"[a-zA-Z0-9][a-zA-Z0-9_.-]*"
_POD = re.compile(rf"{_NAME}/{_NAME}(/{_NAME})?")
_CONTAINER = re.compile(_NAME)
_ENGINES_REVISIONS = ("model_config.revision", "revision", "model_sha")
"""The revision that vLLM and SGLang were told to load, and the commit that TGI loaded."""
PINNED_REVISION = (
    "Name the checkpoint by its commit with --revision (the hub's page shows it, `git ls-remote URL BRANCH` "
    "prints it), or name its folder with --checkpoint"
)


def check_pins(image: str, places: PinPlaces) -> None:
    """Raises InvalidValue for what names no image, pod or container."""
    if re.search(r"\s", image) or ("@" in image and not digest_of(image)):
        raise InvalidValue(
            f"image: {image} is no image with a digest", hint="It ends with @sha256: and 64 lower-case hex digits"
        )
    forms = ((places.pods, _POD, "pods", "namespace/pod"), (places.containers, _CONTAINER, "containers", "NAME"))
    for names, form, setting, wanted in forms:
        for arm, name in names.items():
            if not form.fullmatch(name):
                raise InvalidValue(f"{setting}: '{name}' of the {arm} is not of the form {wanted}")
    for arm in places.pods.keys() & places.containers.keys():
        raise InvalidValue(f"The {arm} has a pod and a container", hint="Name the one that serves its URL")


def places_text(places: PinPlaces) -> dict[str, str]:
    """As kept with a comparison."""
    return {
        "checkpoint": str(places.checkpoint.resolve()) if places.checkpoint else "",
        "pods": arms_text(places.pods),
        "containers": arms_text(places.containers),
    }


def places_of(kept: Mapping[str, str]) -> PinPlaces:
    """`places_text` read back."""
    folder = kept.get("checkpoint", "")
    return PinPlaces(
        checkpoint=Path(folder) if folder else None,
        pods=by_arm(kept.get("pods", "")),
        containers=by_arm(kept.get("containers", "")),
    )


async def planned_hash(source: LocalPins, places: PinPlaces, frozen: Pins | None, *, say: Say) -> str:
    """The checkpoint's hash for a plan: the frozen plan's own, else that of the folder; empty where none is named."""
    if frozen is not None or places.checkpoint is None:
        return frozen.checkpoint_hash if frozen else ""
    return await source.checkpoint_hash(places.checkpoint, say=say)


async def find_pins(
    source: LocalPins, pins: Pins, places: PinPlaces, engines: Mapping[ArmName, Engine], *, say: Say
) -> tuple[PinFound, ...]:
    """What each of these arms is made of: verified where something tells, else as the plan declares it.

    Raises PinUnreadable.
    """
    check_pins(pins.image, places)
    images = await asyncio.gather(*(_image(source, places, arm) for arm in engines))
    folder = await _folder(source, pins, places, say=say)
    found: list[PinFound] = []
    for arm, image in zip(engines, images, strict=True):
        told = {one.part: one for one in (*_of_folder(arm, folder, places, engines), *_of_engine(arm, engines), *image)}
        found += [one for part in PinPart if (one := told.get(part) or _declared(arm, part, pins))]
    return tuple(found)


async def _image(source: LocalPins, places: PinPlaces, arm: ArmName) -> list[PinFound]:
    if pod := places.pods.get(arm):
        values, teller = await source.pod_image(pod), f"kubectl, pod {pod}"
    elif container := places.containers.get(arm):
        values, teller = await source.container_image(container), f"docker, container {container}"
    else:
        return []
    return [PinFound(arm=arm, part=PinPart.IMAGE, values=values, source=teller)]


async def _folder(source: LocalPins, pins: Pins, places: PinPlaces, *, say: Say) -> dict[PinPart, str]:
    """What the checkpoint's folder on this machine tells. It is read only where the plan has a hash to compare with."""
    if places.checkpoint is None:
        return {}
    told = {PinPart.REVISION: await asyncio.to_thread(source.revision, places.checkpoint)}
    if pins.checkpoint_hash:
        told[PinPart.CHECKPOINT] = await source.checkpoint_hash(places.checkpoint, say=say)
    return {part: value for part, value in told.items() if value}


def _of_folder(
    arm: ArmName, folder: Mapping[PinPart, str], places: PinPlaces, engines: Mapping[ArmName, Engine]
) -> Iterator[PinFound]:
    root = engines[arm].model_root
    is_named = root.startswith("/") and places.checkpoint is not None and Path(root) == places.checkpoint.resolve()
    source = f"{places.checkpoint} on this machine{', the path that the engine names' if is_named else ''}"
    for part, value in folder.items():
        yield PinFound(arm=arm, part=part, values=(value,), source=source)


def _of_engine(arm: ArmName, engines: Mapping[ArmName, Engine]) -> Iterator[PinFound]:
    engine = engines[arm]
    told = (commit_of(engine.config.get(name, "")) for name in _ENGINES_REVISIONS)
    if commit := snapshot_of(engine.model_root) or next(filter(None, told), ""):
        yield PinFound(arm=arm, part=PinPart.REVISION, values=(commit,), source="the engine")


def _declared(arm: ArmName, part: PinPart, pins: Pins) -> PinFound | None:
    value = {PinPart.IMAGE: pins.image, PinPart.REVISION: pins.revision}.get(part, pins.checkpoint_hash)
    return PinFound(arm=arm, part=part, values=(value,), source=DECLARED) if value else None


def with_pins(preflight: Preflight, pins: Pins, found: tuple[PinFound, ...]) -> Preflight:
    """The preflight with what was found about pins."""
    findings = [*preflight.findings, *pin_findings(pins, found)]
    return replace(preflight, pins=found, findings=tuple(sorted(findings, key=lambda one: not one.stops)))


def pin_findings(pins: Pins, found: Sequence[PinFound], earlier: Sequence[PinFound] = ()) -> Iterator[Finding]:
    """What is not as the plan says, or as it was when the comparison started; what floats, which does not stop."""
    before = {(one.arm, one.part): one for one in earlier if one.is_verified}
    for part in PinPart:
        verified = [one for one in found if one.part is part and one.is_verified]
        if planned := pins.fixed(part):
            yield from (_not_planned(one, planned) for one in verified if planned not in one.values)
            continue
        if len(verified) == len(ArmName) and verified[0].is_other_than(verified[1]):
            yield _arms_differ(*verified)
        for one in verified:
            if (then := before.get((one.arm, part))) and one.is_other_than(then):
                yield _has_changed(one, then)
    if pins.unpinned:
        what = Reason("preflight.unpinned", {"parts": pins.unpinned})
        yield Finding(stops=False, what=what, hint=". ".join(_ways_to_pin(pins, found)))


def _not_planned(one: PinFound, planned: str) -> Finding:
    return Finding(
        stops=True,
        what=Reason("preflight.pin-not-planned", {**_named(one), "planned": planned}),
        hint=f"Start both arms with the planned {one.part}, or make a new plan of what they run (--{one.part})",
    )


def _named(one: PinFound) -> dict[str, object]:
    return {"arm": one.arm, "part": one.part, "value": one.values[0], "source": one.source}


def _arms_differ(baseline: PinFound, candidate: PinFound) -> Finding:
    values = {"part": baseline.part, "baseline": baseline.values[0], "baseline_source": baseline.source}
    values |= {"candidate": candidate.values[0], "candidate_source": candidate.source}
    return Finding(
        stops=True,
        what=Reason("preflight.pins-differ", values),
        hint=f"Start both arms with one {baseline.part}",
    )


def _has_changed(now: PinFound, then: PinFound) -> Finding:
    return Finding(
        stops=True,
        what=Reason("preflight.pin-changed", {**_named(now), "before": then.values[0]}),
        hint="Start it as it was, or begin a new comparison",
    )


def _ways_to_pin(pins: Pins, found: Sequence[PinFound]) -> Iterator[str]:
    if not pins.fixed(PinPart.IMAGE):
        name = re.sub(r":[^:/]*$", "", pins.image.partition("@")[0]) or "NAME"
        seen = next((one for one in found if one.part is PinPart.IMAGE and DIGEST.fullmatch(one.values[0])), None)
        if seen:
            yield f"Name the image by its digest: --image {name}@{seen.values[0]} is what the {seen.arm} runs"
        else:
            finds = f"`docker buildx imagetools inspect {pins.image or 'NAME:TAG'}` prints the digest"
            yield f"Name the image as --image {name}@sha256:DIGEST ({finds})"
    if not pins.fixed(PinPart.REVISION) and not pins.checkpoint_hash:
        yield PINNED_REVISION

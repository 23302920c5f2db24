"""What both arms are made of, by names that cannot move: the image's digest, the checkpoint's revision or hash."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from qualab.domain.names import ArmName

DECLARED = "declared"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}(?![0-9a-f])|sha512:[0-9a-f]{128}(?![0-9a-f])")
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})(?:/|$)")


class PinPart(StrEnum):
    IMAGE = "image"
    REVISION = "revision"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """What a plan says that both arms run. Empty is not said."""

    image: str = ""
    """As "registry/name@sha256:...". A name with a tag alone may be another image tomorrow."""
    revision: str = ""
    """The checkpoint's commit. A branch or a tag may move."""
    checkpoint_hash: str = ""
    """Of the checkpoint's folder, as "sha256:..."."""

    def fixed(self, part: PinPart) -> str:
        """The digest, commit or hash that the plan names; empty where it names none, or something that may move."""
        if part is PinPart.IMAGE:
            return digest_of(self.image)
        if part is PinPart.REVISION:
            return commit_of(self.revision)
        return self.checkpoint_hash

    @property
    def unpinned(self) -> tuple[str, ...]:
        """What may be something else tomorrow, a phrase each; empty where everything is pinned."""
        found = []
        if not self.fixed(PinPart.IMAGE):
            found.append(f"the image {self.image} names no digest" if self.image else "no image is named")
        if not self.fixed(PinPart.REVISION) and not self.checkpoint_hash:
            floats = f"the checkpoint's revision {self.revision} is a branch or a tag"
            found.append(floats if self.revision else "no checkpoint revision is named")
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinFound:
    """One part of one arm, as it was found."""

    arm: ArmName
    part: PinPart
    values: tuple[str, ...]
    """Every name under which it is known (an image has its index's digest and its own), the most telling first."""
    source: str
    """Who said so, as "kubectl"; "declared" where only the plan does."""

    @property
    def is_verified(self) -> bool:
        return self.source != DECLARED

    def is_other_than(self, other: PinFound) -> bool:
        """Whether the two share no name."""
        return set(self.values).isdisjoint(other.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinning:
    """Whether a comparison can be repeated with the same servers, and who says so."""

    is_pinned: bool
    unpinned: tuple[str, ...]
    """What may be something else tomorrow, a phrase each."""
    found: tuple[PinFound, ...]
    """By arm, as last found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPlaces:
    """Where the arms run, as far as it is known: what their pins are verified by."""

    checkpoint: Path | None = None
    """The checkpoint's folder on this machine."""
    pods: Mapping[ArmName, str] = field(default_factory=dict)
    """Kubernetes pods as "namespace/pod", or "namespace/pod/container"."""
    containers: Mapping[ArmName, str] = field(default_factory=dict)
    """Containers of this machine's Docker, by name or id."""


def digest_of(image: str) -> str:
    """The digest that an image's reference ends with; empty where it has none."""
    found = DIGEST.search(image)
    return found[0] if found and image.endswith(found[0]) else ""


def commit_of(revision: str) -> str:
    """A whole commit; empty for everything that may move, an abbreviated commit too."""
    return revision if COMMIT.fullmatch(revision) else ""


def snapshot_of(path: str) -> str:
    """The commit in the path of a Hugging Face snapshot; empty for other paths."""
    found = _SNAPSHOT.search(path)
    return found[1] if found else ""


def arms_text(by_arm: Mapping[ArmName, str]) -> str:
    """As "baseline=a,candidate=b"."""
    return ",".join(f"{arm}={name}" for arm, name in by_arm.items())


def by_arm(text: str) -> dict[ArmName, str]:
    """`arms_text` read back. Raises ValueError for another form, or another arm."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    arms = set(ArmName)
    if wrong := [name for name, equals, value in pairs if name.strip() not in arms or not equals or not value.strip()]:
        raise ValueError(f"'{wrong[0]}' is not of the form baseline=NAME,candidate=NAME")
    return {ArmName(name.strip()): value.strip() for name, _, value in pairs}

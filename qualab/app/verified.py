"""What verification looks at, and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qualab.app.services import Services
from qualab.domain.comparison import Comparison
from qualab.domain.items import Item
from qualab.domain.seals import SealedAnalysis
from qualab.ports import Registry, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    is_ok: bool | None
    """None where it could not be looked at."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """All that was looked at."""

    comparison_id: str
    checks: tuple[Check, ...]
    seal: str
    """Of the newest analysis under the comparison's own plan: compare it with one that was written down elsewhere."""
    is_altered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What is looked at."""

    services: Services
    registry: Registry
    comparison: Comparison
    items: Sequence[Item]
    seals: Sequence[SealedAnalysis]
    local: Mapping[str, str] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return self.services.store

    @property
    def own_seals(self) -> list[SealedAnalysis]:
        return [one for one in self.seals if one.plan_hash == self.comparison.plan_hash]


def checked(name: str, is_ok: bool, right: str, wrong: str) -> Check:
    """A thing that could be looked at."""
    return Check(name=name, is_ok=is_ok, detail=right if is_ok else wrong)

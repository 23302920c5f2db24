"""What is lost where the arms are asked one after the other, and said wherever a result is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from qualab.model.engine import EngineSeen, Observation
from qualab.model.names import ArmName
from qualab.model.plan import Plan
from qualab.model.reason import Reason


def lost_interleaving(plan: Plan, observations: Iterable[Observation] = ()) -> Iterator[Reason]:
    """A caveat for a reader of a plan or a result, and one on how far apart the arms were; none where interleaved."""
    if not plan.sequential:
        return
    yield Reason("arm-by-arm")
    baseline, candidate = (_first_seen(observations, arm) for arm in ArmName)
    if baseline and candidate:
        yield Reason("turn-began", {"seconds": (candidate - baseline).total_seconds()})


def _first_seen(observations: Iterable[Observation], arm: ArmName) -> datetime | None:
    return next((one.seen_at for one in observations if isinstance(one, EngineSeen) and one.arm is arm), None)

"""What is lost where the arms are asked one after the other, and said wherever a result is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from qualab.model.engine import EngineSeen, Observation
from qualab.model.names import ArmName
from qualab.model.plan import Plan

NOT_INTERLEAVED = "the arms were asked one after the other"
"""Why such a comparison is never signed off."""
LOST = (
    "Arm by arm: the candidate is asked after the baseline and not along with it, so that whatever else changes "
    "meanwhile (load, drivers, clocks) counts as the drafter's: not for sign-off."
)


def lost_interleaving(plan: Plan, observations: Iterable[Observation] = ()) -> Iterator[str]:
    """A sentence for a reader of a plan or a result, and one on how far apart the arms were; none where interleaved."""
    if not plan.sequential:
        return
    yield LOST
    baseline, candidate = (_first_seen(observations, arm) for arm in ArmName)
    if baseline and candidate:
        yield f"The candidate's turn began {_apart((candidate - baseline).total_seconds())} after the baseline's."


def _first_seen(observations: Iterable[Observation], arm: ArmName) -> datetime | None:
    return next((one.seen_at for one in observations if isinstance(one, EngineSeen) and one.arm is arm), None)


def _apart(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"

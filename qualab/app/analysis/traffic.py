"""Engines that started anew, and requests on them that were not this run's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qualab.app.analysis.seen import Seen
from qualab.domain.comparison import ArmSummary
from qualab.domain.engine import Counters
from qualab.domain.names import ArmName
from qualab.domain.observations import EngineSeen, Observation, Segment


def restarted(observations: Sequence[Observation]) -> Iterator[EngineSeen | Segment]:
    """The segments during which, or between which, an engine started anew; and the resumptions that found one anew.

    Counters that could not be read now and then are passed over: the next ones that could show the same.
    """
    last: dict[ArmName, Counters] = {}
    for one in observations:
        if not isinstance(one, EngineSeen | Segment):
            continue
        is_new = False
        for now in (one.engine.counters,) if isinstance(one, EngineSeen) else (one.before, one.after):
            if now is not None:
                is_new |= one.arm in last and now.has_restarted_since(last[one.arm])
                last[one.arm] = now
        if is_new:
            yield one


def restart_troubles(seen: Seen) -> Iterator[str]:
    """What makes the comparison INVALID."""
    for one in restarted(seen.observations):
        if isinstance(one, Segment):
            yield (
                f"{one.task}: the {one.arm}'s engine started anew while it was asked, or several take turns behind "
                "its URL"
            )


def traffic_notes(seen: Seen) -> Iterator[str]:
    """What a person should know."""
    for one in restarted(seen.observations):
        if isinstance(one, EngineSeen):
            yield f"The {one.arm}'s engine was started anew before the run went on at {one.seen_at:%Y-%m-%d %H:%M}."
    for arm in seen.arms:
        segments = [one for one in seen.segments if one.arm is arm.arm and not one.has_restarted]
        if n_requests := _foreign_requests(seen, segments):
            yield (
                f"The {arm.arm}'s engine finished {n_requests} requests that were not this run's: what its counters "
                "say of drafting is theirs too."
            )
        elif n_tokens := _foreign_tokens(seen, arm, segments):
            yield f"The {arm.arm}'s engine read {n_tokens} prompt tokens that were not this run's."


def _foreign_requests(seen: Seen, segments: Sequence[Segment]) -> int:
    """Requests that the engine finished and nobody here sent, over the run as a whole: engines count late.

    An interrupted run leaves as many behind as were in flight.
    """
    total = 0
    for one in segments:
        before, after = (counters.finished_requests if counters else None for counters in (one.before, one.after))
        if before is not None and after is not None:
            total += after - before - one.attempts
    interruptions = seen.n_starts(segments[0].arm) - 1 if segments else 0
    return max(0, total - max(0, interruptions) * seen.plan.policy.concurrency)


def _foreign_tokens(seen: Seen, arm: ArmSummary, segments: Sequence[Segment]) -> int:
    """Prompt tokens, where the engine counts no requests. Only where every request was answered at once and told."""
    is_clean = arm.retries == 0 and arm.n_answers == arm.n_requests and seen.n_starts(arm.arm) == 1
    total = 0
    for one in segments:
        if one.before and one.after and one.after.finished_requests is None and one.prompt_tokens:
            before, after = one.before.prompt_tokens, one.after.prompt_tokens
            total += 0 if before is None or after is None else after - before - one.prompt_tokens
    return max(0, total) if is_clean else 0

"""What a draft round costs beyond a step of the model alone, estimated from what both engines counted in a task."""

from __future__ import annotations

from dataclasses import dataclass

from qualab.app.analysis.seen import BASELINE, CANDIDATE, Seen
from qualab.domain.names import ArmName
from qualab.domain.observations import Segment

ENOUGH_STEPS = 30
"""Steps of the baseline, and rounds of the candidate, from which on their mean time means something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Decoding between the first tokens of some requests and their last."""

    seconds: float
    """Summed over requests."""
    steps: int
    rounds: int
    """Steps that verified draft tokens."""


def round_cost(seen: Seen, task: str) -> float | None:
    """In steps of the baseline: draft cost and overhead together; None where the engines do not tell enough.

    The time that the candidate's steps took beyond as many of the baseline's, shared by its rounds: looking for draft
    tokens and finding none counts too. Both arms have the same requests in flight, so that the estimate holds at this
    run's concurrency.
    """
    baseline, candidate = _decoded(seen, BASELINE, task), _decoded(seen, CANDIDATE, task)
    if baseline.steps < ENOUGH_STEPS or candidate.rounds < ENOUGH_STEPS or not baseline.seconds:
        return None
    step_s = baseline.seconds / baseline.steps
    return (candidate.seconds / step_s - candidate.steps) / candidate.rounds


def _decoded(seen: Seen, arm: ArmName, task: str) -> Decoded:
    parts = [part for one in seen.segments_of(arm, task) if (part := _in(one))]
    return Decoded(
        seconds=sum(part.seconds for part in parts),
        steps=sum(part.steps for part in parts),
        rounds=sum(part.rounds for part in parts),
    )


def _in(segment: Segment) -> Decoded | None:
    before, after = segment.before, segment.after
    if segment.has_restarted or not before or not after or before.decode_s is None or after.decode_s is None:
        return None
    steps = _steps(segment)
    rounds = segment.drafting.drafts if segment.drafting else 0
    return None if steps is None else Decoded(seconds=after.decode_s - before.decode_s, steps=steps, rounds=rounds)


def _steps(segment: Segment) -> int | None:
    """As counted; else every token but a request's first has a step of its own, unless it was drafted.

    An answer may end within a round, whose accepted tokens are counted all the same: there are never fewer steps than
    rounds.
    """
    before, after = segment.before, segment.after
    assert before is not None
    assert after is not None
    if before.decode_steps is not None and after.decode_steps is not None:
        return after.decode_steps - before.decode_steps
    if before.generated_tokens is None or after.generated_tokens is None:
        return None
    rounds, accepted = (one.drafts, one.accepted_tokens) if (one := segment.drafting) else (0, 0)
    return max(rounds, after.generated_tokens - before.generated_tokens - segment.attempts - accepted)

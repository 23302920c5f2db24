"""Did the candidate's drafter do its work, in every task, at every length and to the end?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qualab.app.analysis.seen import BASELINE, CANDIDATE, Seen, drafted_in
from qualab.domain.engine import DraftSource, Engine, EngineKind
from qualab.domain.observations import Segment
from qualab.domain.treatment import LengthBin, TaskDrafting

SMALLEST_BIN = 10
"""Answers to prompts of a length, from which on not one draft token among them means something."""
SMALLEST_ROOM = 32
"""Tokens that could have been drafted in a task, from which on not one draft token means something."""
ENOUGH_DRAFTED = 100
"""Draft tokens of a task, from which on the share of them that was accepted means something."""
ENOUGH_EXPECTED = 30.0
"""Rounds that a part of a task would have at the rate of its other parts, from which on none at all is no chance."""
CLOSED = "/metrics is closed, and answers do not tell"
UNTOLD = "/metrics is open but tells nothing of drafting, and answers do not tell"
IN_EVERY_TASK = (
    "every task that generates has to show the drafter at work (one that looks up its tokens in the prompt may find "
    "nothing here: leave such a task out)"
)


def drafter_troubles(seen: Seen, tasks: Sequence[TaskDrafting], bins: Sequence[LengthBin]) -> Iterator[str]:
    """What makes the comparison INVALID."""
    yield from _baseline_troubles(seen)
    if undrafting := seen.undrafting:
        yield f"the candidate's engine counts no drafts in {', '.join(undrafting)}: it has no drafter"
    elif any(one.least_drafted is not None for one in tasks):
        yield from _idle_tasks(seen, tasks)
        for one in tasks:
            yield from _idle_parts(seen, one.task)
    elif tasks and not seen.plan.rule.allow_unobserved and not all(seen.is_lost(one.task) for one in tasks):
        yield (
            f"whether the drafter ran is not observable: {unread(seen.engines.get(CANDIDATE))} (a plan may allow that "
            "with allow_unobserved)"
        )
    for one in tasks:
        if not is_small(one):
            yield from _unaccepted(one, seen.plan.rule.min_accepted_share)
    yield from _idle_lengths(bins)


def unread(engine: Engine | None) -> str:
    """Why nothing tells what an engine drafted."""
    return UNTOLD if engine and engine.has_metrics else CLOSED


def drafter_notes(seen: Seen, tasks: Sequence[TaskDrafting], bins: Sequence[LengthBin]) -> Iterator[str]:
    """What a person should know."""
    for one in tasks:
        yield from _task_notes(seen, one)
    yield from _source_notes(seen)
    if tasks and not bins and any(one.least_drafted for one in tasks):
        is_vllm = CANDIDATE in seen.engines and seen.engines[CANDIDATE].kind is EngineKind.VLLM
        how = " (vLLM: --per-request-spec-decode-metrics summary)" if is_vllm else ""
        yield f"Whether the drafter stops beyond a length of prompt is not observable: answers do not tell{how}."


def is_small(one: TaskDrafting) -> bool:
    """Whether too little was drafted in a task to judge what was accepted."""
    return not one.draft_tokens or one.draft_tokens < ENOUGH_DRAFTED


def _source_notes(seen: Seen) -> Iterator[str]:
    sources = {one.after.source for one in seen.segments if one.arm is CANDIDATE and one.after}
    if DraftSource.GAUGES in sources:
        yield (
            "The candidate's engine counts no rounds: rounds, draft tokens and accepted tokens are estimated from its "
            "mean acceptance lengths."
        )
    if DraftSource.STATISTICS in sources:
        yield (
            "The candidate's engine tells its iterations once: those that another reader took, or that were too many "
            "to be kept, are missing here."
        )


def _baseline_troubles(seen: Seen) -> Iterator[str]:
    engine = seen.engines.get(BASELINE)
    if engine and engine.drafter:
        yield f"the baseline is configured with a drafter ({engine.drafter})"
    if seen.tasks and not seen.knows_baseline and not seen.plan.rule.allow_unobserved:
        yield (
            f"whether the baseline drafts is not observable: {unread(engine)} (a plan may allow that with "
            "allow_unobserved)"
        )
    for task in seen.tasks:
        baseline = drafted_in(seen, BASELINE, task)
        if baseline and baseline.least_drafted:
            yield f"{task}: the baseline drafted {baseline.least_drafted} tokens: a drafter is on there"


def _idle_tasks(seen: Seen, tasks: Sequence[TaskDrafting]) -> Iterator[str]:
    idle = [one for one in tasks if one.least_drafted == 0 and _is_mostly_observed(seen, one)]
    if not any(one.least_drafted for one in tasks):
        if any(_room(seen, one) for one in idle):
            n_answers = sum(one.n_answers for one in idle)
            yield f"the candidate drafted nothing in {n_answers} answers: its drafter is dead, or off"
        return
    for one in idle:
        if _room(seen, one) >= SMALLEST_ROOM:
            yield (
                f"{one.task}: the candidate drafted nothing in {one.n_answers} answers, while it did in other tasks: "
                f"{IN_EVERY_TASK}"
            )


def _is_mostly_observed(seen: Seen, one: TaskDrafting) -> bool:
    """Whether what is known of a task covers most of it: a run that was killed leaves a stretch without counters."""
    if seen.answers.tell(CANDIDATE):
        return True
    known = [segment for segment in seen.segments_of(CANDIDATE, one.task) if segment.drafting is not None]
    return 2 * sum(segment.attempts for segment in known) >= one.n_answers


def _room(seen: Seen, one: TaskDrafting) -> int:
    return seen.answers.tasks[CANDIDATE, one.task].room


def _idle_parts(seen: Seen, task: str) -> Iterator[str]:
    """Parts of a task without a round, where the rest of it lets many be expected."""
    known = [one for one in seen.segments_of(CANDIDATE, task) if one.drafting is not None]
    for one in known:
        if _rounds(one) == 0:
            others = [other for other in known if other is not one]
            asked = sum(other.attempts for other in others)
            expected = one.attempts * sum(map(_rounds, others)) / asked if asked else 0.0
            if expected >= ENOUGH_EXPECTED:
                yield (
                    f"{task}: the candidate drafted nothing in {one.attempts} answers from "
                    f"{one.began_at:%H:%M:%S} on, while it did in the task's others"
                )


def _rounds(segment: Segment) -> int:
    """Accepted tokens where every step may be a round."""
    if not segment.drafting:
        return 0
    return segment.drafting.accepted_tokens if segment.drafting.draft_tokens is None else segment.drafting.drafts


def _unaccepted(one: TaskDrafting, floor: float) -> Iterator[str]:
    if one.accepted_tokens == 0:
        yield f"{one.task}: none of {one.draft_tokens} draft tokens was accepted: the drafter does not fit the model"
    elif one.accepted_share is not None and one.accepted_share < floor:
        yield (
            f"{one.task}: {100 * one.accepted_share:.1f} % of the draft tokens were accepted, "
            f"less than the plan's floor of {100 * floor:g} %"
        )


def _idle_lengths(bins: Sequence[LengthBin]) -> Iterator[str]:
    """Prompt lengths from which on nothing was drafted any more, where shorter ones had drafts."""
    alive = [number for number, one in enumerate(bins) if one.draft_tokens or one.accepted_tokens]
    beyond = bins[alive[-1] + 1 :] if alive else ()
    n_answers = sum(one.n_answers for one in beyond)
    if n_answers >= SMALLEST_BIN:
        length = beyond[0].from_tokens
        yield f"the candidate drafted nothing for prompts of {length} tokens or more ({n_answers} answers)"


def _task_notes(seen: Seen, one: TaskDrafting) -> Iterator[str]:
    if one.least_drafted is None:
        why = " any more: the run was interrupted" if seen.is_lost(one.task) else ""
        yield f"{one.task}: what was drafted is not observable{why}."
    elif one.least_drafted == 0 and _room(seen, one) < SMALLEST_ROOM:
        yield f"{one.task}: nothing was drafted; its answers are too short for a drafter to be exercised."
    elif one.draft_tokens and is_small(one):
        yield f"{one.task}: {one.draft_tokens} draft tokens are too few to judge how many are accepted."
    if one.zero_share is not None and one.zero_share > 0.5:
        yield (
            f"{one.task}: {100 * one.zero_share:.0f} % of the rounds accepted no draft token: each cost a draft and "
            "gained nothing, which shows in the tail of the latencies."
        )
    if one.break_even_margin is not None and one.break_even_margin <= 0.0:
        costs = "the plan's costs" if seen.plan.drafter_costs else "this run's step times"
        yield (
            f"{one.task}: a round yields {one.mean_length:.2f} tokens, no more than the "
            f"{(one.mean_length or 0.0) - one.break_even_margin:.2f} at which drafting begins to pay (by {costs})."
        )

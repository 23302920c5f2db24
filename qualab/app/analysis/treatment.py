"""From what engines and answers said: did the candidate draft, did the baseline not, and was nothing else different?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from statistics import fmean

from qualab.app.differences import differences
from qualab.app.drafting import DraftedAnswers, DraftingCount
from qualab.domain.comparison import ArmSummary
from qualab.domain.engine import Drafting, Engine
from qualab.domain.names import ArmName, RequestKind
from qualab.domain.observations import Observation, Segment, engines_seen
from qualab.domain.plan import Plan
from qualab.domain.treatment import EngineSummary, LengthBin, TaskDrafting, Treatment
from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.acceptance import Acceptance, acceptance, histogram_of_survival

BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE
SMALLEST_BIN = 10
"""Answers to prompts of a length, from which on not one draft token among them means something."""
NOT_OBSERVABLE = (
    "whether the drafter ran is not observable: neither open /metrics nor answers tell (a plan may allow that with "
    "allow_unobserved)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that was seen of the engines."""

    plan: Plan
    segments: Sequence[Segment]
    engines: Mapping[ArmName, Engine]
    """As last seen."""
    answers: DraftedAnswers
    arms: Sequence[ArmSummary]

    @property
    def tasks(self) -> list[str]:
        """Tasks that generate and were answered by the candidate."""
        names = [task.name for task in self.plan.tasks if task.kind is RequestKind.GENERATION]
        return [name for name in names if self.answers.tasks[CANDIDATE, name].n_answers]

    def segments_of(self, arm: ArmName, task: str) -> list[Segment]:
        return [one for one in self.segments if one.arm is arm and one.task == task]


def treatment_of(
    plan: Plan, observations: Sequence[Observation], answers: DraftedAnswers, arms: Sequence[ArmSummary]
) -> Treatment:
    """The treatment as a whole. Log-likelihood tasks play no part in it: they draft nothing."""
    seen = Seen(
        plan=plan,
        segments=[one for one in observations if isinstance(one, Segment)],
        engines=engines_seen(observations),
        answers=answers,
        arms=arms,
    )
    tasks = tuple(_task(seen, name) for name in seen.tasks)
    is_observed = any(task.draft_tokens is not None for task in tasks)
    bins = tuple(_bins(answers))
    return Treatment(
        is_observed=is_observed,
        engines=tuple(_summary(arm, engine) for arm, engine in sorted(seen.engines.items())),
        tasks=tasks,
        bins=bins,
        troubles=tuple(_troubles(seen, tasks, bins)),
        notes=tuple(_notes(seen, tasks)),
    )


def _summary(arm: ArmName, engine: Engine) -> EngineSummary:
    return EngineSummary(
        arm=arm,
        kind=engine.kind,
        version=engine.version,
        model_root=engine.model_root,
        max_model_len=engine.max_model_len,
        kv_cache_tokens=engine.kv_cache_tokens,
        drafter=engine.drafter,
    )


def drafted_in(seen: Seen, arm: ArmName, task: str) -> Drafting | None:
    """What an arm drafted in a task: as its counters say, else as its answers do; None where neither tells."""
    parts = [one.drafting for one in seen.segments_of(arm, task)]
    if known := [part for part in parts if part is not None]:
        return reduce(add, known)
    count = seen.answers.tasks[arm, task]
    return Drafting(draft_tokens=count.draft_tokens, accepted_tokens=count.accepted_tokens) if count.n_told else None


def _task(seen: Seen, name: str) -> TaskDrafting:
    count = seen.answers.tasks[CANDIDATE, name]
    drafting = drafted_in(seen, CANDIDATE, name)
    rounds = _rounds(drafting, count)
    return TaskDrafting(
        task=name,
        n_answers=count.n_answers,
        rounds=sum(rounds.histogram) if rounds else (drafting.drafts or None) if drafting else None,
        draft_tokens=drafting.draft_tokens if drafting else None,
        accepted_tokens=drafting.accepted_tokens if drafting else None,
        accepted_share=drafting.accepted_tokens / drafting.draft_tokens if drafting and drafting.draft_tokens else None,
        mean_length=rounds.mean_length if rounds else _mean_length(drafting),
        median_length=rounds.median_length if rounds else None,
        p10_length=rounds.p10_length if rounds else None,
        zero_share=rounds.zero_share if rounds else None,
        histogram=rounds.histogram if rounds else (),
        request_mean_length=fmean(count.lengths) if count.lengths else None,
        first_third=_length_in(seen, name, part=0),
        last_third=_length_in(seen, name, part=2),
    )


def _rounds(drafting: Drafting | None, count: DraftingCount) -> Acceptance | None:
    try:
        if drafting and drafting.accepted_at:
            return acceptance(histogram_of_survival(drafting.drafts, drafting.accepted_at))
        return acceptance(count.rounds)
    except (InsufficientData, InvalidValue):
        return None


def _mean_length(drafting: Drafting | None) -> float | None:
    return 1.0 + drafting.accepted_tokens / drafting.drafts if drafting and drafting.drafts else None


def _length_in(seen: Seen, task: str, *, part: int) -> float | None:
    """Mean length in a third of a task's items; None where the task was not parted."""
    segments = seen.segments_of(CANDIDATE, task)
    if max((one.part for one in segments), default=0) == 0:
        return None
    known = [one.drafting for one in segments if one.part == part and one.drafting]
    return _mean_length(reduce(add, known)) if known else None


def _bins(answers: DraftedAnswers) -> Iterator[LengthBin]:
    for bits, count in sorted(answers.bins.items()):
        if count.n_told:
            yield LengthBin(
                from_tokens=2 ** (bits - 1),
                to_tokens=2**bits - 1,
                n_answers=count.n_told,
                draft_tokens=count.draft_tokens,
                accepted_tokens=count.accepted_tokens,
            )


def _troubles(seen: Seen, tasks: Sequence[TaskDrafting], bins: Sequence[LengthBin]) -> Iterator[str]:
    yield from _engine_troubles(seen)
    for task in seen.tasks:
        baseline = drafted_in(seen, BASELINE, task)
        if baseline and baseline.draft_tokens:
            yield f"{task}: the baseline drafted {baseline.draft_tokens} tokens: a drafter is on there"
    for one in tasks:
        if one.draft_tokens or _is_mostly_observed(seen, one):
            yield from _drafter_troubles(one, seen.plan.rule.min_accepted_share)
    if tasks and all(one.draft_tokens is None for one in tasks) and not seen.plan.rule.allow_unobserved:
        yield NOT_OBSERVABLE
    yield from _dead_lengths(bins)


def _is_mostly_observed(seen: Seen, one: TaskDrafting) -> bool:
    """Whether what is known of a task covers most of it: a run that was killed leaves a stretch without counters."""
    sent = sum(segment.attempts for segment in seen.segments_of(CANDIDATE, one.task) if segment.drafting is not None)
    told = seen.answers.tasks[CANDIDATE, one.task].n_told
    return 2 * max(sent, told) >= one.n_answers


def _drafter_troubles(one: TaskDrafting, floor: float) -> Iterator[str]:
    if one.draft_tokens == 0:
        yield f"{one.task}: the candidate drafted nothing in {one.n_answers} answers"
    elif one.accepted_share is not None and one.accepted_share < floor:
        yield (
            f"{one.task}: {100 * one.accepted_share:.1f} % of the draft tokens were accepted, "
            f"less than the plan's floor of {100 * floor:g} %"
        )


def _engine_troubles(seen: Seen) -> Iterator[str]:
    if len(seen.engines) == len(ArmName):
        for one in differences(seen.engines[BASELINE], seen.engines[CANDIDATE]):
            if not one.follows:
                yield f"the engines differ in {one.name}: {one.baseline} and {one.candidate}"
    for segment in seen.segments:
        if segment.has_restarted:
            yield f"{segment.task}: the {segment.arm}'s engine started anew while it was asked"
    for arm in seen.arms:
        if len(arm.fingerprints) > 1:
            shown = ", ".join(sorted(arm.fingerprints))
            yield f"the {arm.arm}'s answers come from {len(arm.fingerprints)} different engines ({shown})"


def _dead_lengths(bins: Sequence[LengthBin]) -> Iterator[str]:
    """Prompt lengths from which on nothing was drafted any more, where shorter ones had drafts."""
    alive = [number for number, one in enumerate(bins) if one.draft_tokens]
    beyond = bins[alive[-1] + 1 :] if alive else ()
    n_answers = sum(one.n_answers for one in beyond)
    if n_answers >= SMALLEST_BIN:
        length = beyond[0].from_tokens
        yield f"the candidate drafted nothing for prompts of {length} tokens or more ({n_answers} answers)"


def _notes(seen: Seen, tasks: Sequence[TaskDrafting]) -> Iterator[str]:
    if not tasks:
        yield "No task of this comparison generates: no drafter was exercised."
    if not seen.engines:
        yield "What the engines are was not recorded."
    for task in tasks:
        if task.draft_tokens is None:
            yield f"{task.task}: what was drafted is not observable."
    for segment in seen.segments:
        if foreign := _foreign(segment):
            yield f"{segment.task}: the {segment.arm}'s engine finished {foreign} requests that were not this run's."


def _foreign(segment: Segment) -> int:
    """Requests that the engine finished and nobody here sent."""
    before, after = segment.before, segment.after
    if segment.has_restarted or not before or not after:
        return 0
    if before.finished_requests is None or after.finished_requests is None:
        return 0
    return max(0, after.finished_requests - before.finished_requests - segment.attempts)

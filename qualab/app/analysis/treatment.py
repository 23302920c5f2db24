"""From what engines and answers said: did the candidate draft, did the baseline not, and was nothing else different?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add
from statistics import fmean

from qualab.app.analysis.drafter_signs import drafter_notes, drafter_troubles
from qualab.app.analysis.seen import BASELINE, CANDIDATE, Seen, drafted_in
from qualab.app.analysis.step_times import round_cost
from qualab.app.analysis.traffic import restart_troubles, traffic_notes
from qualab.app.differences import differences
from qualab.app.drafting import DraftedAnswers, DraftingCount
from qualab.domain.comparison import ArmSummary
from qualab.domain.engine import TELLS_IN_PART, Drafting, EngineKind
from qualab.domain.names import ArmName
from qualab.domain.observations import Observation, model_names
from qualab.domain.plan import Plan
from qualab.domain.treatment import EngineSummary, LengthBin, TaskDrafting, Treatment
from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.acceptance import Acceptance, acceptance, break_even_length, histogram_of_survival


def treatment_of(
    plan: Plan, observations: Sequence[Observation], answers: DraftedAnswers, arms: Sequence[ArmSummary]
) -> Treatment:
    """The treatment as a whole. Log-likelihood tasks play no part in it: they draft nothing."""
    seen = Seen(plan=plan, observations=observations, answers=answers, arms=arms)
    break_even = _break_even(plan)
    tasks = tuple(_task(seen, name, break_even) for name in seen.tasks)
    is_observed = any(task.least_drafted is not None for task in tasks)
    bins = tuple(_bins(answers))
    return Treatment(
        is_observed=is_observed,
        engines=tuple(EngineSummary.of(arm, engine) for arm, engine in sorted(seen.engines.items())),
        tasks=tasks,
        bins=bins,
        troubles=tuple(_troubles(seen, tasks, bins)),
        notes=tuple(_notes(seen, tasks, bins)),
        break_even_length=break_even,
    )


def _break_even(plan: Plan) -> float | None:
    costs = plan.drafter_costs
    return break_even_length(draft_cost=costs.draft, overhead=costs.overhead) if costs else None


def _task(seen: Seen, name: str, break_even: float | None) -> TaskDrafting:
    count = seen.answers.tasks[CANDIDATE, name]
    drafting = drafted_in(seen, CANDIDATE, name)
    rounds = _rounds(drafting, count)
    mean_length = rounds.mean_length if rounds else _mean_length(drafting)
    cost = round_cost(seen, name)
    length = 1.0 + cost if break_even is None and cost is not None else break_even
    return TaskDrafting(
        task=name,
        n_answers=count.n_answers,
        rounds=sum(rounds.histogram) if rounds else (drafting.drafts or None) if drafting else None,
        draft_tokens=drafting.draft_tokens if drafting else None,
        accepted_tokens=drafting.accepted_tokens if drafting else None,
        accepted_share=drafting.accepted_tokens / drafting.draft_tokens if drafting and drafting.draft_tokens else None,
        mean_length=mean_length,
        median_length=rounds.median_length if rounds else None,
        p10_length=rounds.p10_length if rounds else None,
        zero_share=rounds.zero_share if rounds else None,
        histogram=rounds.histogram if rounds else (),
        request_mean_length=fmean(count.lengths) if count.lengths else None,
        first_third=_length_in(seen, name, part=0),
        last_third=_length_in(seen, name, part=2),
        break_even_margin=None if mean_length is None or length is None else mean_length - length,
        round_cost=cost,
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
    if answers.tell(CANDIDATE):
        for bits, count in sorted(answers.bins.items()):
            yield LengthBin(
                from_tokens=2 ** (bits - 1),
                to_tokens=2**bits - 1,
                n_answers=count.n_answers,
                draft_tokens=count.draft_tokens,
                accepted_tokens=count.accepted_tokens,
            )


def _troubles(seen: Seen, tasks: Sequence[TaskDrafting], bins: Sequence[LengthBin]) -> Iterator[str]:
    yield from _engine_troubles(seen)
    yield from drafter_troubles(seen, tasks, bins)


def _engine_troubles(seen: Seen) -> Iterator[str]:
    if len(seen.engines) == len(ArmName):
        for one in differences(seen.engines[BASELINE], seen.engines[CANDIDATE]):
            if not one.follows:
                yield f"the engines differ in {one.name}: {one.baseline} and {one.candidate}"
    yield from restart_troubles(seen)
    for arm in seen.arms:
        if len(arm.fingerprints) > 1:
            shown = ", ".join(sorted(arm.fingerprints))
            yield f"the {arm.arm}'s answers come from {len(arm.fingerprints)} different engines ({shown})"
        yield from _other_models(seen, arm)


def _other_models(seen: Seen, arm: ArmSummary) -> Iterator[str]:
    """Answers of another model than the one that was asked, as a router's fallback gives them."""
    asked = seen.plan.sampling.model
    known = {asked, *model_names(seen.observations, arm.arm)}
    for model, n_answers in arm.models.items():
        if model not in known:
            yield (
                f"{n_answers} of {arm.n_answers} answers of the {arm.arm} come from {model}, and {asked} was asked: "
                "another model answers"
            )


def _notes(seen: Seen, tasks: Sequence[TaskDrafting], bins: Sequence[LengthBin]) -> Iterator[str]:
    if not tasks:
        yield "No task of this comparison generates: no drafter was exercised."
    if not seen.engines:
        yield "What the engines are was not recorded."
    if closed := [arm for arm, engine in seen.engines.items() if not engine.config]:
        how = " (vLLM: VLLM_SERVER_DEV_MODE=1)" if seen.engines[closed[0]].kind is EngineKind.VLLM else ""
        yield (
            f"The engine's configuration is not open in the {' and the '.join(sorted(closed))}{how}: names, versions "
            "and models alone were compared."
        )
    for kind in sorted({engine.kind for engine in seen.engines.values()} & TELLS_IN_PART):
        yield f"{kind} tells a part of its configuration: what it does not tell was not compared."
    yield from drafter_notes(seen, tasks, bins)
    yield from traffic_notes(seen)

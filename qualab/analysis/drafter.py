"""Everything that was seen of the engines of a comparison, and what an arm drafted in a task."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import reduce
from operator import add
from statistics import fmean

from qualab.errors import InsufficientData, InvalidValue
from qualab.model.comparison import ArmSummary
from qualab.model.engine import (
    TELLS_IN_PART,
    Counters,
    Drafting,
    DraftSource,
    Engine,
    EngineKind,
    EngineSeen,
    EngineSummary,
    LengthBin,
    Observation,
    Segment,
    TaskDrafting,
    Treatment,
    engines_seen,
    model_names,
)
from qualab.model.items import Answer, Drafted, Reply
from qualab.model.names import ArmName, RequestKind
from qualab.model.plan import Plan
from qualab.model.reason import Reason, of
from qualab.stats.acceptance import Acceptance, acceptance, break_even_length, histogram_of_survival

BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that was seen of the engines."""

    plan: Plan
    observations: Sequence[Observation]
    """In the order in which they were made."""
    answers: DraftedAnswers
    arms: Sequence[ArmSummary]

    @property
    def engines(self) -> Mapping[ArmName, Engine]:
        """As last seen."""
        return engines_seen(self.observations)

    @property
    def segments(self) -> list[Segment]:
        return [one for one in self.observations if isinstance(one, Segment)]

    @property
    def tasks(self) -> list[str]:
        """Tasks that generate and were answered by the candidate."""
        names = [task.name for task in self.plan.tasks if task.kind is RequestKind.GENERATION]
        return [name for name in names if self.answers.tasks[CANDIDATE, name].n_answers]

    def segments_of(self, arm: ArmName, task: str) -> list[Segment]:
        return [one for one in self.segments if one.arm is arm and one.task == task]

    def n_starts(self, arm: ArmName) -> int:
        """Times that the run was started or resumed."""
        return sum(isinstance(one, EngineSeen) and one.arm is arm for one in self.observations)

    @property
    def undrafting(self) -> list[str]:
        """Tasks in which the candidate's engine counted, but counted no drafts: it had no drafter then."""
        if self.answers.tell(CANDIDATE):
            return []
        return [
            name
            for name in self.tasks
            if any(
                one.after and one.after.tells_drafting and one.after.drafting is None
                for one in self.segments_of(CANDIDATE, name)
            )
        ]

    def is_lost(self, task: str) -> bool:
        """Whether an interruption took away what the candidate's counters said of a task."""
        engine = self.engines.get(CANDIDATE)
        counts = engine is not None and engine.counters is not None and engine.counters.drafting is not None
        return counts and not self.segments_of(CANDIDATE, task) and self.n_starts(CANDIDATE) > 1

    @property
    def knows_baseline(self) -> bool:
        """Whether anything tells that the baseline drafts, or does not."""
        counted = [one for one in self.segments if one.after]
        if any(one.arm is BASELINE and one.after and one.after.tells_drafting for one in counted):
            return True
        engine, candidate = self.engines.get(BASELINE), self.engines.get(CANDIDATE)
        if self.answers.tell(BASELINE) or engine is None:
            return self.answers.tell(BASELINE)
        if engine.tells_drafter or (engine.counters and engine.counters.tells_drafting):
            return True
        if engine.kind is EngineKind.LLAMA_CPP and self.answers.tell(CANDIDATE):
            return True
        return any(one.arm is BASELINE for one in counted) and tells_where_other_is_silent(
            engine, candidate, [one.after for one in counted if one.arm is CANDIDATE and one.after]
        )


def tells_where_other_is_silent(baseline: Engine, candidate: Engine | None, counters: Sequence[Counters]) -> bool:
    """Whether the baseline's open metrics, silent of drafting, mean that it has no drafter.

    They do where the candidate's, of the same engine and version, tell of it: SGLang and TensorRT-LLM have such series
    with a drafter alone.
    """
    is_same = candidate and (baseline.kind, baseline.version) == (candidate.kind, candidate.version)
    return bool(is_same) and baseline.kind is not EngineKind.UNKNOWN and any(one.drafting for one in counters)


def drafted_in(seen: Seen, arm: ArmName, task: str) -> Drafting | None:
    """What an arm drafted in a task: as its counters say, else as its answers do; None where neither tells."""
    parts = [one.drafting for one in seen.segments_of(arm, task)]
    if known := [part for part in parts if part is not None]:
        return reduce(add, known)
    if not seen.answers.tell(arm):
        return None
    count = seen.answers.tasks[arm, task]
    return Drafting(draft_tokens=count.draft_tokens, accepted_tokens=count.accepted_tokens)


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


def restart_troubles(seen: Seen) -> Iterator[Reason]:
    """What makes the comparison INVALID."""
    for one in restarted(seen.observations):
        if isinstance(one, Segment):
            yield of(one.task, Reason("restarted", {"arm": one.arm}))


def traffic_notes(seen: Seen) -> Iterator[Reason]:
    """What a person should know."""
    for one in restarted(seen.observations):
        if isinstance(one, EngineSeen):
            yield Reason("restarted-between", {"arm": one.arm, "time": f"{one.seen_at:%Y-%m-%d %H:%M}"})
    for arm in seen.arms:
        segments = [one for one in seen.segments if one.arm is arm.arm and not one.has_restarted]
        if n_requests := _foreign_requests(seen, segments):
            yield Reason("foreign-requests", {"arm": arm.arm, "n": n_requests})
        elif n_tokens := _foreign_tokens(seen, arm, segments):
            yield Reason("foreign-tokens", {"arm": arm.arm, "n": n_tokens})


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


SMALLEST_BIN = 10
"""Answers to prompts of a length, from which on not one draft token among them means something."""
SMALLEST_ROOM = 32
"""Tokens that could have been drafted in a task, from which on not one draft token means something."""
ENOUGH_DRAFTED = 100
"""Draft tokens of a task, from which on the share of them that was accepted means something."""
ENOUGH_EXPECTED = 30.0
"""Rounds that a part of a task would have at the rate of its other parts, from which on none at all is no chance."""


def drafter_troubles(seen: Seen, tasks: Sequence[TaskDrafting], bins: Sequence[LengthBin]) -> Iterator[Reason]:
    """What makes the comparison INVALID."""
    yield from _baseline_troubles(seen)
    if undrafting := seen.undrafting:
        yield Reason("no-drafter", {"tasks": tuple(undrafting)})
    elif any(one.least_drafted is not None for one in tasks):
        yield from _idle_tasks(seen, tasks)
        for one in tasks:
            yield from _idle_parts(seen, one.task)
    elif tasks and not seen.plan.rule.allow_unobserved and not all(seen.is_lost(one.task) for one in tasks):
        yield Reason("drafter-unobserved", {"why": unread(seen.engines.get(CANDIDATE))})
    for one in tasks:
        if not is_small(one):
            yield from _unaccepted(one, seen.plan.rule.min_accepted_share)
    yield from _idle_lengths(bins)


def unread(engine: Engine | None) -> Reason:
    """Why nothing tells what an engine drafted."""
    return Reason("metrics-silent" if engine and engine.has_metrics else "metrics-closed")


def drafter_notes(seen: Seen, tasks: Sequence[TaskDrafting], bins: Sequence[LengthBin]) -> Iterator[Reason]:
    """What a person should know."""
    for one in tasks:
        yield from _task_notes(seen, one)
    yield from _source_notes(seen)
    if tasks and not bins and any(one.least_drafted for one in tasks):
        is_vllm = CANDIDATE in seen.engines and seen.engines[CANDIDATE].kind is EngineKind.VLLM
        yield Reason("lengths-unobserved.vllm" if is_vllm else "lengths-unobserved")


def is_small(one: TaskDrafting) -> bool:
    """Whether too little was drafted in a task to judge what was accepted."""
    return not one.draft_tokens or one.draft_tokens < ENOUGH_DRAFTED


def _source_notes(seen: Seen) -> Iterator[Reason]:
    sources = {one.after.source for one in seen.segments if one.arm is CANDIDATE and one.after}
    if DraftSource.GAUGES in sources:
        yield Reason("no-rounds-counted")
    if DraftSource.STATISTICS in sources:
        yield Reason("iterations-told-once")


def _baseline_troubles(seen: Seen) -> Iterator[Reason]:
    engine = seen.engines.get(BASELINE)
    if engine and engine.drafter:
        yield Reason("baseline-has-drafter", {"drafter": engine.drafter})
    if seen.tasks and not seen.knows_baseline and not seen.plan.rule.allow_unobserved:
        yield Reason("baseline-unobserved", {"why": unread(engine)})
    for task in seen.tasks:
        baseline = drafted_in(seen, BASELINE, task)
        if baseline and baseline.least_drafted:
            yield of(task, Reason("baseline-drafted", {"n": baseline.least_drafted}))


def _idle_tasks(seen: Seen, tasks: Sequence[TaskDrafting]) -> Iterator[Reason]:
    idle = [one for one in tasks if one.least_drafted == 0 and _is_mostly_observed(seen, one)]
    if not any(one.least_drafted for one in tasks):
        if any(_room(seen, one) for one in idle):
            n_answers = sum(one.n_answers for one in idle)
            yield Reason("drafter-dead", {"n": n_answers})
        return
    for one in idle:
        if _room(seen, one) >= SMALLEST_ROOM:
            yield of(one.task, Reason("task-undrafted", {"n": one.n_answers}))


def _is_mostly_observed(seen: Seen, one: TaskDrafting) -> bool:
    """Whether what is known of a task covers most of it: a run that was killed leaves a stretch without counters."""
    if seen.answers.tell(CANDIDATE):
        return True
    known = [segment for segment in seen.segments_of(CANDIDATE, one.task) if segment.drafting is not None]
    return 2 * sum(segment.attempts for segment in known) >= one.n_answers


def _room(seen: Seen, one: TaskDrafting) -> int:
    return seen.answers.tasks[CANDIDATE, one.task].room


def _idle_parts(seen: Seen, task: str) -> Iterator[Reason]:
    """Parts of a task without a round, where the rest of it lets many be expected."""
    known = [one for one in seen.segments_of(CANDIDATE, task) if one.drafting is not None]
    for one in known:
        if _rounds(one) == 0:
            others = [other for other in known if other is not one]
            asked = sum(other.attempts for other in others)
            expected = one.attempts * sum(map(_rounds, others)) / asked if asked else 0.0
            if expected >= ENOUGH_EXPECTED:
                yield of(task, Reason("part-undrafted", {"n": one.attempts, "time": f"{one.began_at:%H:%M:%S}"}))


def _rounds(segment: Segment) -> int:
    """Accepted tokens where every step may be a round."""
    if not segment.drafting:
        return 0
    return segment.drafting.accepted_tokens if segment.drafting.draft_tokens is None else segment.drafting.drafts


def _unaccepted(one: TaskDrafting, floor: float) -> Iterator[Reason]:
    if one.accepted_tokens == 0:
        yield of(one.task, Reason("none-accepted", {"n": one.draft_tokens}))
    elif one.accepted_share is not None and one.accepted_share < floor:
        yield of(one.task, Reason("few-accepted", {"share": one.accepted_share, "floor": floor}))


def _idle_lengths(bins: Sequence[LengthBin]) -> Iterator[Reason]:
    """Prompt lengths from which on nothing was drafted any more, where shorter ones had drafts."""
    alive = [number for number, one in enumerate(bins) if one.draft_tokens or one.accepted_tokens]
    beyond = bins[alive[-1] + 1 :] if alive else ()
    n_answers = sum(one.n_answers for one in beyond)
    if n_answers >= SMALLEST_BIN:
        yield Reason("long-undrafted", {"length": beyond[0].from_tokens, "n": n_answers})


def _task_notes(seen: Seen, one: TaskDrafting) -> Iterator[Reason]:
    if one.least_drafted is None:
        yield of(one.task, Reason("task-interrupted" if seen.is_lost(one.task) else "task-unobserved"))
    elif one.least_drafted == 0 and _room(seen, one) < SMALLEST_ROOM:
        yield of(one.task, Reason("answers-too-short"))
    elif one.draft_tokens and is_small(one):
        yield of(one.task, Reason("few-drafted", {"n": one.draft_tokens}))
    if one.zero_share is not None and one.zero_share > 0.5:
        yield of(one.task, Reason("rounds-in-vain", {"share": one.zero_share}))
    if one.break_even_margin is not None and one.break_even_margin <= 0.0:
        length = one.mean_length or 0.0
        code = "below-break-even.plan" if seen.plan.drafter_costs else "below-break-even.run"
        yield of(one.task, Reason(code, {"length": length, "break_even": length - one.break_even_margin}))


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
    rounds = _treatment_rounds(drafting, count)
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


def _treatment_rounds(drafting: Drafting | None, count: DraftingCount) -> Acceptance | None:
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


def _troubles(seen: Seen, tasks: Sequence[TaskDrafting], bins: Sequence[LengthBin]) -> Iterator[Reason]:
    yield from _engine_troubles(seen)
    yield from drafter_troubles(seen, tasks, bins)


def _engine_troubles(seen: Seen) -> Iterator[Reason]:
    if len(seen.engines) == len(ArmName):
        for one in differences(seen.engines[BASELINE], seen.engines[CANDIDATE]):
            if not one.follows:
                values = {"setting": one.name, "baseline": one.baseline, "candidate": one.candidate}
                yield Reason("engines-differ", values)
    yield from restart_troubles(seen)
    for arm in seen.arms:
        if len(arm.fingerprints) > 1:
            fingerprints = tuple(sorted(arm.fingerprints))
            yield Reason("many-engines", {"arm": arm.arm, "n": len(fingerprints), "fingerprints": fingerprints})
        yield from _other_models(seen, arm)


def _other_models(seen: Seen, arm: ArmSummary) -> Iterator[Reason]:
    """Answers of another model than the one that was asked, as a router's fallback gives them."""
    asked = seen.plan.sampling.model
    known = {asked, *model_names(seen.observations, arm.arm)}
    for model, n_answers in arm.models.items():
        if model not in known:
            numbers = {"arm": arm.arm, "n": n_answers, "total": arm.n_answers}
            yield Reason("other-model", {**numbers, "model": model, "asked": asked})


def _notes(seen: Seen, tasks: Sequence[TaskDrafting], bins: Sequence[LengthBin]) -> Iterator[Reason]:
    if not tasks:
        yield Reason("nothing-generates")
    if not seen.engines:
        yield Reason("engines-unrecorded")
    if closed := [arm for arm, engine in seen.engines.items() if not engine.config]:
        is_vllm = seen.engines[closed[0]].kind is EngineKind.VLLM
        code = "configuration-closed.vllm" if is_vllm else "configuration-closed"
        yield Reason(code, {"arms": tuple(sorted(closed))})
    for kind in sorted({engine.kind for engine in seen.engines.values()} & TELLS_IN_PART):
        yield Reason("configuration-in-part", {"engine": kind})
    yield from drafter_notes(seen, tasks, bins)
    yield from traffic_notes(seen)


ABSENT = "(absent)"

FOLLOWS = {
    "speculative_config.*": Reason("follows.drafter"),
    "speculative_config": Reason("follows.drafter"),
    "cache_config.num_gpu_blocks": Reason("follows.less-room"),
    "cache_config.kv_cache_size_tokens": Reason("follows.less-room"),
    "cache_config.kv_cache_max_concurrency": Reason("follows.less-room"),
    "cache_config.kv_cache_memory_bytes": Reason("follows.less-room"),
    "scheduler_config.max_num_scheduled_tokens": Reason("follows.draft-room"),
    "scheduler_config.async_scheduling": Reason("follows.turned-off"),
    "parallel_config.disable_nccl_for_dp_synchronization": Reason("follows.async"),
    "compilation_config.cudagraph_capture_sizes": Reason("follows.graphs"),
    "compilation_config.max_cudagraph_capture_size": Reason("follows.graphs"),
    "max_total_num_tokens": Reason("follows.less-room"),
    "max_req_input_len": Reason("follows.less-room"),
    "mem_fraction_static": Reason("follows.less-room"),
    "max_running_requests": Reason("follows.fewer-requests"),
    "disable_overlap_schedule": Reason("follows.turned-off"),
    "enable_mixed_chunk": Reason("follows.turned-off"),
    "cuda_graph_*": Reason("follows.graphs"),
    "disable_cuda_graph_padding": Reason("follows.graphs"),
    "speculative_*": Reason("follows.drafter"),
    "observability_config.per_request_spec_decode_metrics": Reason("follows.told"),
    "default_generation_settings.params.speculative*": Reason("follows.drafter"),
}
"""Settings that differ because one arm has a drafter, and why."""

NAMES_THE_PROCESS = (
    "instance_id",
    "*_config.engine_id",
    "parallel_config.*port*",
    "parallel_config.*_ip",
    "parallel_config._api_process*",
    "kv_transfer_config.kv_ip",
    "kv_transfer_config.kv_port",
    "compilation_config.local_cache_dir",
    "compilation_config.cache_dir",
    "compilation_config.compilation_time",
    "compilation_config.traced_files",
    "compilation_config.static_forward_context*",
    "vllm_env.*SHM*NAME*",
    "vllm_env.*PORT*",
    "vllm_env.*HOST*",
    "vllm_env.*_IP",
    "system_env.env_vars",
    "system_env.cpu_info",
    "host",
    "port",
    "*_port",
    "dist_init_addr",
    "random_seed",
    "base_gpu_id",
    "log_*",
    "crash_dump_folder",
    "file_storage_path",
    "startup_*",
    "*_load_time",
)
"""Settings that differ between any two processes, drafter or not. SGLang draws its seed where none is set."""

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Of a Python object among the settings, as vLLM tells `hf_overrides` of a draft model: another in each process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting that is not the same in both arms."""

    name: str
    baseline: str
    candidate: str
    follows: Reason | None
    """Why it is to be expected; None for a difference that breaks the comparison."""


def differences(baseline: Engine, candidate: Engine) -> tuple[Difference, ...]:
    """Settings that both engines tell, and tell differently, in order of name; what names a process is left out.

    A setting that only one engine tells counts where the other one tells its configuration at all.
    """
    found = [*_identity(baseline, candidate)]
    if baseline.config and candidate.config:
        for name in sorted(baseline.config.keys() | candidate.config.keys()):
            before, after = (ADDRESS.sub("", one.config.get(name, ABSENT)) for one in (baseline, candidate))
            if before != after and not _matches(name, NAMES_THE_PROCESS):
                found.append(_difference(name, before, after))
    return tuple(found)


def _identity(baseline: Engine, candidate: Engine) -> Iterator[Difference]:
    for name in ("kind", "version", "model_root", "max_model_len"):
        before, after = getattr(baseline, name), getattr(candidate, name)
        if before != after and before and after:
            yield _difference(name, str(before), str(after))


def _difference(name: str, baseline: str, candidate: str) -> Difference:
    why = next((why for pattern, why in FOLLOWS.items() if fnmatchcase(name, pattern)), None)
    return Difference(name=name, baseline=baseline, candidate=candidate, follows=why)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


UNDRAFTED = 2
"""Tokens of an answer that no drafter offers: the first comes with the prompt, and the last needs no draft."""
UNTOLD_LENGTH = 100
"""Taken for the length of an answer whose server does not count tokens."""


@dataclass(slots=True)
class DraftingCount:
    """Sums over some answers."""

    n_answers: int = 0
    n_told: int = 0
    """Those of them that say what was drafted."""
    draft_tokens: int | None = 0
    """None where an answer tells accepted tokens alone."""
    accepted_tokens: int = 0
    room: int = 0
    """Tokens that could have been drafted."""
    rounds: list[int] = field(default_factory=list)
    """Rounds with 0, 1, ... accepted tokens."""
    lengths: list[float] = field(default_factory=list)
    """Mean length of each answer that says its rounds."""

    def add(self, reply: Reply) -> None:
        self.n_answers += 1
        length = UNTOLD_LENGTH if reply.completion_tokens is None else reply.completion_tokens
        self.room += max(0, length - UNDRAFTED)
        if reply.drafted is not None:
            self._add_drafted(reply.drafted)

    def _add_drafted(self, drafted: Drafted) -> None:
        self.n_told += 1
        if self.draft_tokens is not None:
            self.draft_tokens = None if drafted.draft_tokens is None else self.draft_tokens + drafted.draft_tokens
        self.accepted_tokens += drafted.accepted_tokens
        self.rounds += [0] * (len(drafted.rounds) - len(self.rounds))
        for accepted, count in enumerate(drafted.rounds):
            self.rounds[accepted] += count
        if n_rounds := sum(drafted.rounds):
            self.lengths.append(1.0 + drafted.accepted_tokens / n_rounds)


@dataclass(slots=True)
class DraftedAnswers:
    """Counts generations that were answered, as they go by."""

    tasks: defaultdict[tuple[ArmName, str], DraftingCount] = field(default_factory=lambda: defaultdict(DraftingCount))
    bins: defaultdict[int, DraftingCount] = field(default_factory=lambda: defaultdict(DraftingCount))
    """The candidate's, by the bits of the prompt's length: 8 stands for 128 to 255 tokens."""

    def add(self, answer: Answer, task: str) -> None:
        reply = answer.reply
        if not reply.status.is_answer:
            return
        self.tasks[answer.arm, task].add(reply)
        if answer.arm is ArmName.CANDIDATE and reply.prompt_tokens:
            self.bins[reply.prompt_tokens.bit_length()].add(reply)

    def tell(self, arm: ArmName) -> bool:
        """Whether the arm's answers say what was drafted. Then one that does not say so drafted nothing.

        llama.cpp leaves `draft_n` out where it is 0.
        """
        return any(count.n_told for (of, _), count in self.tasks.items() if of is arm)

"""Whether the drafter ran, what it drafted in each task, and what else the engines of a comparison tell."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
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
from qualab.model.items import Answer, Reply
from qualab.model.names import ArmName, RequestKind
from qualab.model.plan import Plan
from qualab.model.reason import Reason, of
from qualab.stats.acceptance import Acceptance, acceptance, break_even_length, histogram_of_survival

BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE

ENOUGH_STEPS = 30
"""Steps of the baseline, and rounds of the candidate, from which on their mean time means something."""
SMALLEST_BIN = 10
"""Answers to prompts of a length, from which on not one draft token among them means something."""
SMALLEST_ROOM = 32
"""Tokens that could have been drafted in a task, from which on not one draft token means something."""
ENOUGH_DRAFTED = 100
"""Draft tokens of a task, from which on the share of them that was accepted means something."""
ENOUGH_EXPECTED = 30.0
"""Rounds that a part of a task would have at the rate of its other parts, from which on none at all is no chance."""
UNDRAFTED = 2
"""Tokens of an answer that no drafter offers: the first comes with the prompt, and the last needs no draft."""
UNTOLD_LENGTH = 100
"""Taken for the length of an answer whose server does not count tokens."""


@dataclass(slots=True)
class DraftingCount:
    """Sums over some answers."""

    n_answers: int = 0
    n_told: int = 0
    draft_tokens: int | None = 0
    accepted_tokens: int = 0
    room: int = 0
    rounds: list[int] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)

    def add(self, reply: Reply) -> None:
        """Count one answer."""
        self.n_answers += 1
        length = UNTOLD_LENGTH if reply.completion_tokens is None else reply.completion_tokens
        self.room += max(0, length - UNDRAFTED)
        if (drafted := reply.drafted) is None:
            return
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
        """Count one answer."""
        if answer.reply.status.is_answer:
            self.tasks[answer.arm, task].add(answer.reply)
            if answer.arm is CANDIDATE and answer.reply.prompt_tokens:
                self.bins[answer.reply.prompt_tokens.bit_length()].add(answer.reply)

    def tell(self, arm: ArmName) -> bool:
        """Tell whether the arm's answers say what was drafted. One that does not say so then drafted nothing.

        llama.cpp leaves `draft_n` out where it is 0.
        """
        return any(count.n_told for (of, _), count in self.tasks.items() if of is arm)


class EngineHistory:
    """Everything that was seen of the engines of a comparison."""

    def __init__(
        self, plan: Plan, observations: Sequence[Observation], answers: DraftedAnswers, arms: Sequence[ArmSummary]
    ) -> None:
        """Observations come in the order in which they were made."""
        self.plan, self.observations, self.answers, self.arms = plan, observations, answers, arms
        self.engines: Mapping[ArmName, Engine] = engines_seen(observations)
        self.segments = [one for one in observations if isinstance(one, Segment)]
        names = (task.name for task in plan.tasks if task.kind is RequestKind.GENERATION)
        self.tasks = [name for name in names if answers.tasks[CANDIDATE, name].n_answers]

    def segments_of(self, arm: ArmName, task: str) -> list[Segment]:
        """Return the stretches of one arm's task."""
        return [one for one in self.segments if one.arm is arm and one.task == task]

    def n_starts(self, arm: ArmName) -> int:
        """Count how often the run was started or resumed."""
        return sum(isinstance(one, EngineSeen) and one.arm is arm for one in self.observations)

    def is_lost(self, task: str) -> bool:
        """Tell whether an interruption took away what the candidate's counters said of a task."""
        engine = self.engines.get(CANDIDATE)
        counts = engine is not None and engine.counters is not None and engine.counters.drafting is not None
        return counts and not self.segments_of(CANDIDATE, task) and self.n_starts(CANDIDATE) > 1

    def drafting_of(self, arm: ArmName, task: str) -> Drafting | None:
        """Return what was drafted: as counters say, else as answers do; None where neither tells."""
        if known := [one.drafting for one in self.segments_of(arm, task) if one.drafting is not None]:
            return reduce(add, known)
        if not self.answers.tell(arm):
            return None
        count = self.answers.tasks[arm, task]
        return Drafting(draft_tokens=count.draft_tokens, accepted_tokens=count.accepted_tokens)

    def room(self, task: str) -> int:
        """Return the tokens of the candidate's answers that could have been drafted."""
        return self.answers.tasks[CANDIDATE, task].room


def treatment_of(
    plan: Plan, observations: Sequence[Observation], answers: DraftedAnswers, arms: Sequence[ArmSummary]
) -> Treatment:
    """Describe the treatment as a whole. Log-likelihood tasks play no part in it: they draft nothing."""
    seen, costs = EngineHistory(plan, observations, answers, arms), plan.drafter_costs
    break_even = break_even_length(draft_cost=costs.draft, overhead=costs.overhead) if costs else None
    tasks = tuple(_task(seen, name, break_even) for name in seen.tasks)
    bins = tuple(
        LengthBin(
            from_tokens=2 ** (bits - 1),
            to_tokens=2**bits - 1,
            n_answers=count.n_answers,
            draft_tokens=count.draft_tokens,
            accepted_tokens=count.accepted_tokens,
        )
        for bits, count in sorted(answers.bins.items())
        if answers.tell(CANDIDATE)
    )
    return Treatment(
        is_observed=any(task.least_drafted is not None for task in tasks),
        engines=tuple(EngineSummary.of(arm, engine) for arm, engine in sorted(seen.engines.items())),
        tasks=tasks,
        bins=bins,
        troubles=(
            *_engine_troubles(seen),
            *_baseline_troubles(seen),
            *_idle_troubles(seen, tasks),
            *_accepting_troubles(tasks, plan.rule.min_accepted_share),
            *_length_troubles(bins),
        ),
        notes=(*_engine_notes(seen, tasks), *_drafter_notes(seen, tasks, bins), *_traffic_notes(seen)),
        break_even_length=break_even,
    )


def _task(seen: EngineHistory, name: str, break_even: float | None) -> TaskDrafting:
    count = seen.answers.tasks[CANDIDATE, name]
    drafting = seen.drafting_of(CANDIDATE, name)
    rounds = _rounds(drafting, count)
    mean_length = rounds.mean_length if rounds else _mean_length(drafting)
    cost = _round_cost(seen, name)
    length = 1.0 + cost if break_even is None and cost is not None else break_even
    thirds: list[float | None] = [None, None, None]
    segments = seen.segments_of(CANDIDATE, name)
    if any(one.part for one in segments):
        for part in range(3):
            known = [one.drafting for one in segments if one.part == part and one.drafting]
            thirds[part] = _mean_length(reduce(add, known)) if known else None
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
        first_third=thirds[0],
        last_third=thirds[2],
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


def _round_cost(seen: EngineHistory, task: str) -> float | None:
    """Extra time of a round, in steps of the baseline; None where the engines do not tell enough.

    The time that the candidate's steps took beyond as many of the baseline's, shared by its rounds: looking for draft
    tokens and finding none counts too. Both arms have the same requests in flight, so that the estimate holds at this
    run's concurrency.
    """
    baseline_s, baseline_steps, _ = _decoded(seen, BASELINE, task)
    candidate_s, candidate_steps, rounds = _decoded(seen, CANDIDATE, task)
    if baseline_steps < ENOUGH_STEPS or rounds < ENOUGH_STEPS or not baseline_s:
        return None
    return (candidate_s / (baseline_s / baseline_steps) - candidate_steps) / rounds


def _decoded(seen: EngineHistory, arm: ArmName, task: str) -> tuple[float, int, int]:
    """Seconds of decoding, summed over requests, steps, and rounds: steps that verified draft tokens."""
    seconds, n_steps, n_rounds = 0.0, 0, 0
    for one in seen.segments_of(arm, task):
        before, after, steps = one.before, one.after, _steps(one)
        if steps is None or not before or not after or before.decode_s is None or after.decode_s is None:
            continue
        seconds += after.decode_s - before.decode_s
        n_steps += steps
        n_rounds += one.drafting.drafts if one.drafting else 0
    return seconds, n_steps, n_rounds


def _steps(segment: Segment) -> int | None:
    """As counted; else every token but a request's first has a step of its own, unless it was drafted.

    An answer may end within a round, whose accepted tokens are counted all the same: there are never fewer steps than
    rounds.
    """
    before, after = segment.before, segment.after
    if segment.has_restarted or not before or not after:
        return None
    if before.decode_steps is not None and after.decode_steps is not None:
        return after.decode_steps - before.decode_steps
    if before.generated_tokens is None or after.generated_tokens is None:
        return None
    rounds, accepted = (one.drafts, one.accepted_tokens) if (one := segment.drafting) else (0, 0)
    return max(rounds, after.generated_tokens - before.generated_tokens - segment.attempts - accepted)


def _restarted(observations: Sequence[Observation]) -> Iterator[EngineSeen | Segment]:
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


def _engine_troubles(seen: EngineHistory) -> Iterator[Reason]:
    if len(seen.engines) == len(ArmName):
        for one in differences(seen.engines[BASELINE], seen.engines[CANDIDATE]):
            if not one.follows:
                values = {"setting": one.name, "baseline": one.baseline, "candidate": one.candidate}
                yield Reason("engines-differ", values)
    for stretch in _restarted(seen.observations):
        if isinstance(stretch, Segment):
            yield of(stretch.task, Reason("restarted", {"arm": stretch.arm}))
    asked = seen.plan.sampling.model
    for arm in seen.arms:
        if len(arm.fingerprints) > 1:
            fingerprints = tuple(sorted(arm.fingerprints))
            yield Reason("many-engines", {"arm": arm.arm, "n": len(fingerprints), "fingerprints": fingerprints})
        known = {asked, *model_names(seen.observations, arm.arm)}
        for model, n_answers in arm.models.items():  # another model, as a router's fallback gives its answers
            if model not in known:
                numbers = {"arm": arm.arm, "n": n_answers, "total": arm.n_answers}
                yield Reason("other-model", {**numbers, "model": model, "asked": asked})


def _baseline_troubles(seen: EngineHistory) -> Iterator[Reason]:
    engine, may_be_unobserved = seen.engines.get(BASELINE), seen.plan.rule.allow_unobserved
    if engine and engine.drafter:
        yield Reason("baseline-has-drafter", {"drafter": engine.drafter})
    if seen.tasks and not may_be_unobserved and not _is_baseline_known(seen, engine):
        yield Reason("baseline-unobserved", {"why": unread(engine)})
    for task in seen.tasks:
        drafting = seen.drafting_of(BASELINE, task)
        if drafting and drafting.least_drafted:
            yield of(task, Reason("baseline-drafted", {"n": drafting.least_drafted}))


def _is_baseline_known(seen: EngineHistory, engine: Engine | None) -> bool:
    counters = {arm: [one.after for one in seen.segments if one.arm is arm and one.after] for arm in ArmName}
    if seen.answers.tell(BASELINE) or any(one.tells_drafting for one in counters[BASELINE]):
        return True
    if engine is None:
        return False
    if engine.tells_drafter or (engine.counters and engine.counters.tells_drafting):
        return True
    if engine.kind is EngineKind.LLAMA_CPP and seen.answers.tell(CANDIDATE):
        return True
    candidate = seen.engines.get(CANDIDATE)
    return bool(counters[BASELINE]) and tells_where_other_is_silent(engine, candidate, counters[CANDIDATE])


def tells_where_other_is_silent(baseline: Engine, candidate: Engine | None, counters: Sequence[Counters]) -> bool:
    """Tell whether the baseline's open metrics, silent of drafting, mean that it has no drafter.

    They do where the candidate's, of the same engine and version, tell of it: SGLang and TensorRT-LLM have such series
    with a drafter alone.
    """
    is_same = candidate and (baseline.kind, baseline.version) == (candidate.kind, candidate.version)
    return bool(is_same) and baseline.kind is not EngineKind.UNKNOWN and any(one.drafting for one in counters)


def unread(engine: Engine | None) -> Reason:
    """Say why nothing tells what an engine drafted."""
    return Reason("metrics-silent" if engine and engine.has_metrics else "metrics-closed")


def _idle_troubles(seen: EngineHistory, tasks: Sequence[TaskDrafting]) -> Iterator[Reason]:
    uncounted = tuple(
        name
        for name in seen.tasks
        if any(
            one.after and one.after.tells_drafting and one.after.drafting is None
            for one in seen.segments_of(CANDIDATE, name)
        )
    )
    if uncounted and not seen.answers.tell(CANDIDATE):  # the engine counted, but no drafts: it had no drafter then
        yield Reason("no-drafter", {"tasks": uncounted})
        return
    if all(one.least_drafted is None for one in tasks):
        if tasks and not seen.plan.rule.allow_unobserved and not all(seen.is_lost(one.task) for one in tasks):
            yield Reason("drafter-unobserved", {"why": unread(seen.engines.get(CANDIDATE))})
        return
    idle = [one for one in tasks if one.least_drafted == 0 and _is_mostly_observed(seen, one)]
    if not any(one.least_drafted for one in tasks):
        if any(seen.room(one.task) for one in idle):
            yield Reason("drafter-dead", {"n": sum(one.n_answers for one in idle)})
    else:
        for one in idle:
            if seen.room(one.task) >= SMALLEST_ROOM:
                yield of(one.task, Reason("task-undrafted", {"n": one.n_answers}))
    for one in tasks:
        yield from _idle_parts(seen, one.task)


def _is_mostly_observed(seen: EngineHistory, one: TaskDrafting) -> bool:
    """Whether what is known of a task covers most of it: a run that was killed leaves a stretch without counters."""
    known = [segment for segment in seen.segments_of(CANDIDATE, one.task) if segment.drafting is not None]
    return seen.answers.tell(CANDIDATE) or 2 * sum(segment.attempts for segment in known) >= one.n_answers


def _idle_parts(seen: EngineHistory, task: str) -> Iterator[Reason]:
    # accepted tokens where every step may be a round
    rounds = [
        (one, drafting.accepted_tokens if drafting.draft_tokens is None else drafting.drafts)
        for one in seen.segments_of(CANDIDATE, task)
        if (drafting := one.drafting) is not None
    ]
    total, n_asked = sum(n for _, n in rounds), sum(one.attempts for one, _ in rounds)
    for one, n_rounds in rounds:
        others = n_asked - one.attempts
        if n_rounds == 0 and others and one.attempts * total / others >= ENOUGH_EXPECTED:
            yield of(task, Reason("part-undrafted", {"n": one.attempts, "time": f"{one.began_at:%H:%M:%S}"}))


def _accepting_troubles(tasks: Sequence[TaskDrafting], floor: float) -> Iterator[Reason]:
    for one in tasks:
        if not one.draft_tokens or one.draft_tokens < ENOUGH_DRAFTED:
            continue
        if one.accepted_tokens == 0:
            yield of(one.task, Reason("none-accepted", {"n": one.draft_tokens}))
        elif one.accepted_share is not None and one.accepted_share < floor:
            yield of(one.task, Reason("few-accepted", {"share": one.accepted_share, "floor": floor}))


def _length_troubles(bins: Sequence[LengthBin]) -> Iterator[Reason]:
    alive = [number for number, one in enumerate(bins) if one.draft_tokens or one.accepted_tokens]
    beyond = bins[alive[-1] + 1 :] if alive else ()
    n_answers = sum(one.n_answers for one in beyond)
    if n_answers >= SMALLEST_BIN:
        yield Reason("long-undrafted", {"length": beyond[0].from_tokens, "n": n_answers})


def _engine_notes(seen: EngineHistory, tasks: Sequence[TaskDrafting]) -> Iterator[Reason]:
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


def _drafter_notes(seen: EngineHistory, tasks: Sequence[TaskDrafting], bins: Sequence[LengthBin]) -> Iterator[Reason]:
    for one in tasks:
        yield from (of(one.task, note) for note in _task_notes(seen, one))
    sources = {one.after.source for one in seen.segments if one.arm is CANDIDATE and one.after}
    if DraftSource.STATISTICS in sources:
        yield Reason("iterations-told-once")
    if not bins and any(one.least_drafted for one in tasks):
        is_vllm = CANDIDATE in seen.engines and seen.engines[CANDIDATE].kind is EngineKind.VLLM
        yield Reason("lengths-unobserved.vllm" if is_vllm else "lengths-unobserved")


def _task_notes(seen: EngineHistory, one: TaskDrafting) -> Iterator[Reason]:
    if one.least_drafted is None:
        yield Reason("task-interrupted" if seen.is_lost(one.task) else "task-unobserved")
    elif one.least_drafted == 0 and seen.room(one.task) < SMALLEST_ROOM:
        yield Reason("answers-too-short")
    elif one.draft_tokens and one.draft_tokens < ENOUGH_DRAFTED:
        yield Reason("few-drafted", {"n": one.draft_tokens})
    if one.zero_share is not None and one.zero_share > 0.5:
        yield Reason("rounds-in-vain", {"share": one.zero_share})
    if one.break_even_margin is not None and one.break_even_margin <= 0.0:
        length = one.mean_length or 0.0
        code = "below-break-even.plan" if seen.plan.drafter_costs else "below-break-even.run"
        yield Reason(code, {"length": length, "break_even": length - one.break_even_margin})


def _traffic_notes(seen: EngineHistory) -> Iterator[Reason]:
    for one in _restarted(seen.observations):
        if isinstance(one, EngineSeen):
            yield Reason("restarted-between", {"arm": one.arm, "time": f"{one.seen_at:%Y-%m-%d %H:%M}"})
    for arm in seen.arms:
        n_starts, n_requests, n_tokens = seen.n_starts(arm.arm), 0, 0
        for stretch in (one for one in seen.segments if one.arm is arm.arm and not one.has_restarted):
            before, after = stretch.before, stretch.after
            if not before or not after:
                continue
            if before.finished_requests is not None and after.finished_requests is not None:
                n_requests += after.finished_requests - before.finished_requests - stretch.attempts
            tokens = before.prompt_tokens, after.prompt_tokens
            if after.finished_requests is None and stretch.prompt_tokens and None not in tokens:
                n_tokens += (after.prompt_tokens or 0) - (before.prompt_tokens or 0) - stretch.prompt_tokens
        # over the run as a whole, since engines count late; an interruption leaves behind what was in flight
        n_requests -= max(0, n_starts - 1) * seen.plan.policy.concurrency
        # tokens tell of others only where every request was answered at once and told
        is_clean = arm.retries == 0 and arm.n_answers == arm.n_requests and n_starts == 1
        if n_requests > 0:
            yield Reason("foreign-requests", {"arm": arm.arm, "n": n_requests})
        elif n_tokens > 0 and is_clean:
            yield Reason("foreign-tokens", {"arm": arm.arm, "n": n_tokens})


def lost_interleaving(plan: Plan, observations: Iterable[Observation] = ()) -> Iterator[Reason]:
    """Name what is lost where the arms are asked one after the other; nothing where they were interleaved."""
    if not plan.sequential:
        return
    yield Reason("arm-by-arm")
    began: dict[ArmName, datetime] = {}
    for one in observations:
        if isinstance(one, EngineSeen):
            began.setdefault(one.arm, one.seen_at)
    if len(began) == len(ArmName):
        yield Reason("turn-began", {"seconds": (began[CANDIDATE] - began[BASELINE]).total_seconds()})


ABSENT = "(absent)"

FOLLOWS = {
    "follows.drafter": (
        "speculative_config.* speculative_config speculative_* default_generation_settings.params.speculative*"
    ),
    "follows.less-room": (
        "cache_config.num_gpu_blocks cache_config.kv_cache_size_tokens "
        "cache_config.kv_cache_max_concurrency cache_config.kv_cache_memory_bytes "
        "max_total_num_tokens max_req_input_len mem_fraction_static"
    ),
    "follows.draft-room": "scheduler_config.max_num_scheduled_tokens",
    "follows.turned-off": "scheduler_config.async_scheduling disable_overlap_schedule enable_mixed_chunk",
    "follows.async": "parallel_config.disable_nccl_for_dp_synchronization",
    "follows.graphs": (
        "compilation_config.cudagraph_capture_sizes "
        "compilation_config.max_cudagraph_capture_size cuda_graph_* "
        "disable_cuda_graph_padding"
    ),
    "follows.fewer-requests": "max_running_requests",
    "follows.told": "observability_config.per_request_spec_decode_metrics",
}
"""Patterns of settings that differ because one arm has a drafter, by the reason."""

NAMES_THE_PROCESS = (
    "instance_id *_config.engine_id parallel_config.*port* parallel_config.*_ip "
    "parallel_config._api_process* kv_transfer_config.kv_ip kv_transfer_config.kv_port "
    "compilation_config.local_cache_dir compilation_config.cache_dir "
    "compilation_config.compilation_time compilation_config.traced_files "
    "compilation_config.static_forward_context* vllm_env.*SHM*NAME* vllm_env.*PORT* "
    "vllm_env.*HOST* vllm_env.*_IP system_env.env_vars system_env.cpu_info host port *_port "
    "dist_init_addr random_seed base_gpu_id log_* crash_dump_folder file_storage_path startup_* "
    "*_load_time"
)
"""Patterns of settings that differ between any two processes. SGLang draws its seed where none is set."""

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
    """List the settings that both engines tell, and tell differently, in order of name; not what names a process.

    A setting that only one engine tells counts where the other one tells its configuration at all.
    """
    pairs = []
    for name in ("kind", "version", "model_root", "max_model_len"):
        before, after = getattr(baseline, name), getattr(candidate, name)
        if before and after:
            pairs.append((name, str(before), str(after)))
    if baseline.config and candidate.config:
        for name in sorted(baseline.config.keys() | candidate.config.keys()):
            if not _matches(name, NAMES_THE_PROCESS):
                before, after = (ADDRESS.sub("", one.config.get(name, ABSENT)) for one in (baseline, candidate))
                pairs.append((name, before, after))
    return tuple(
        Difference(
            name=name,
            baseline=before,
            candidate=after,
            follows=next((Reason(code) for code, patterns in FOLLOWS.items() if _matches(name, patterns)), None),
        )
        for name, before, after in pairs
        if before != after
    )


def _matches(name: str, patterns: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns.split())

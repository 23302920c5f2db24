"""Decide from the engines' counters and configurations whether the drafter ran, and what it drafted in each task."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any

from qualab.analysis.replicas import mixed_fingerprints
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

# the fewest that a finding is based on
ENOUGH_STEPS = 30
"""Steps of the baseline, and rounds of the candidate, for a mean time."""
SMALLEST_BIN = 10
"""Answers to prompts of a length, for the drafter to have stopped there."""
SMALLEST_ROOM = 32
"""Tokens that could have been drafted in a task, for the drafter not to work there."""
ENOUGH_DRAFTED = 100
"""Draft tokens of a task, for the share of accepted ones."""
ENOUGH_EXPECTED = 30.0
"""Rounds expected of a part of a task at the rate of its other parts, for it to have had none."""

UNDRAFTED = 2
"""Tokens of an answer that are never drafted: the first comes with the prompt, and the last needs no draft."""
UNTOLD_LENGTH = 100
"""Assumed length of an answer whose server does not count tokens."""


@dataclass(slots=True)
class DraftingCount:
    """Sums over some answers."""

    n_answers: int = 0
    n_told: int = 0
    drafting: Drafting = field(default_factory=Drafting)
    room: int = 0
    """Tokens that could have been drafted."""
    rounds: list[int] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)

    def add(self, reply: Reply) -> None:
        self.n_answers += 1
        length = UNTOLD_LENGTH if reply.completion_tokens is None else reply.completion_tokens
        self.room += max(0, length - UNDRAFTED)
        if (drafted := reply.drafted) is None:
            return
        self.n_told += 1
        self.drafting += Drafting(draft_tokens=drafted.draft_tokens, accepted_tokens=drafted.accepted_tokens)
        self.rounds += [0] * (len(drafted.rounds) - len(self.rounds))
        for accepted, count in enumerate(drafted.rounds):
            self.rounds[accepted] += count
        if n_rounds := sum(drafted.rounds):
            self.lengths.append(1.0 + drafted.accepted_tokens / n_rounds)


@dataclass(slots=True)
class DraftedAnswers:
    """Counts answered generations as they go by."""

    tasks: defaultdict[tuple[ArmName, str], DraftingCount] = field(default_factory=lambda: defaultdict(DraftingCount))
    bins: defaultdict[int, DraftingCount] = field(default_factory=lambda: defaultdict(DraftingCount))
    """The candidate's, by the bits of the prompt's length: 8 stands for 128 to 255 tokens."""

    def add(self, answer: Answer, task: str) -> None:
        if answer.reply.status.is_answer:
            self.tasks[answer.arm, task].add(answer.reply)
            if answer.arm is CANDIDATE and answer.reply.prompt_tokens:
                self.bins[answer.reply.prompt_tokens.bit_length()].add(answer.reply)

    def tell(self, arm: ArmName) -> bool:
        """Check that the arm's answers tell drafts: one that does not drafted nothing (llama.cpp leaves out 0)."""
        return any(count.n_told for (of, _), count in self.tasks.items() if of is arm)


class EngineHistory:
    """All observations of a comparison's engines, in order, with its counted answers."""

    def __init__(
        self, plan: Plan, observations: Sequence[Observation], answers: DraftedAnswers, arms: Sequence[ArmSummary]
    ) -> None:
        self.plan, self.observations, self.answers, self.arms = plan, observations, answers, arms
        self.engines: Mapping[ArmName, Engine] = engines_seen(observations)
        self.segments = [observation for observation in observations if isinstance(observation, Segment)]
        names = (task.name for task in plan.tasks if task.kind is RequestKind.GENERATION)
        self.tasks = [name for name in names if answers.tasks[CANDIDATE, name].n_answers]

    def segments_of(self, arm: ArmName, task: str) -> list[Segment]:
        return [segment for segment in self.segments if segment.arm is arm and segment.task == task]

    def readings(self, arm: ArmName, task: str = "") -> list[Counters]:
        """Return an arm's counters after each segment, of one task or of all."""
        own = (segment for segment in self.segments if segment.arm is arm and task in ("", segment.task))
        return [segment.after for segment in own if segment.after]

    def n_starts(self, arm: ArmName) -> int:
        return sum(isinstance(observation, EngineSeen) and observation.arm is arm for observation in self.observations)

    def is_lost(self, task: str) -> bool:
        """Check that an interruption lost the candidate's counters of a task."""
        engine = self.engines.get(CANDIDATE)
        counts = engine is not None and engine.counters is not None and engine.counters.drafting is not None
        return counts and not self.segments_of(CANDIDATE, task) and self.n_starts(CANDIDATE) > 1

    def drafting_of(self, arm: ArmName, task: str) -> Drafting | None:
        """Return what was drafted by the counters, else by the answers; None where neither tells."""
        if known := [segment.drafting for segment in self.segments_of(arm, task) if segment.drafting is not None]:
            return sum(known, Drafting())
        return self.answers.tasks[arm, task].drafting if self.answers.tell(arm) else None

    def room(self, task: str) -> int:
        return self.answers.tasks[CANDIDATE, task].room


def treatment_of(
    plan: Plan, observations: Sequence[Observation], answers: DraftedAnswers, arms: Sequence[ArmSummary]
) -> Treatment:
    """Describe the drafter's part. Log-likelihood tasks draft nothing and are left out."""
    seen, costs = EngineHistory(plan, observations, answers, arms), plan.drafter_costs
    break_even = break_even_length(draft_cost=costs.draft, overhead=costs.overhead) if costs else None
    tasks = tuple(_task(seen, name, break_even) for name in seen.tasks)
    bins = tuple(
        LengthBin(
            from_tokens=2 ** (bits - 1),
            to_tokens=2**bits - 1,
            n_answers=count.n_answers,
            draft_tokens=count.drafting.draft_tokens,
            accepted_tokens=count.drafting.accepted_tokens,
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
    rounds = rounds_of(drafting, count.rounds)
    mean_length = rounds.mean_length if rounds else round_length(drafting)
    cost = _round_cost(seen, name)
    length = 1.0 + cost if break_even is None and cost is not None else break_even
    segments = seen.segments_of(CANDIDATE, name)
    known = [(segment.part, segment.drafting) for segment in segments if segment.drafting]
    thirds = (sum((own for part, own in known if part == third), Drafting()) for third in (0, 2))
    is_split = any(segment.part for segment in segments)
    first_third, last_third = (round_length(third) if is_split else None for third in thirds)
    return TaskDrafting(
        task=name,
        n_answers=count.n_answers,
        rounds=sum(rounds.histogram) if rounds else (drafting.drafts or None) if drafting else None,
        draft_tokens=drafting.draft_tokens if drafting else None,
        accepted_tokens=drafting.accepted_tokens if drafting else None,
        accepted_share=drafting.accepted_tokens / drafting.draft_tokens if drafting and drafting.draft_tokens else None,
        mean_length=mean_length,
        **{name: getattr(rounds, name, None) for name in ("median_length", "p10_length", "zero_share")},
        histogram=rounds.histogram if rounds else (),
        request_mean_length=fmean(count.lengths) if count.lengths else None,
        first_third=first_third,
        last_third=last_third,
        break_even_margin=None if mean_length is None or length is None else mean_length - length,
        round_cost=cost,
    )


def rounds_of(drafting: Drafting | None, counted: Sequence[int] = ()) -> Acceptance | None:
    """Sum up rounds by the engine's counters, else by `counted`; None where neither tells them by accepted tokens."""
    try:
        if drafting and drafting.accepted_at:
            return acceptance(histogram_of_survival(drafting.drafts, drafting.accepted_at))
        return acceptance(counted)
    except (InsufficientData, InvalidValue):
        return None


def round_length(drafting: Drafting | None) -> float | None:
    """Compute tokens a round yields; None where no round was counted."""
    return 1.0 + drafting.accepted_tokens / drafting.drafts if drafting and drafting.drafts else None


def _round_cost(seen: EngineHistory, task: str) -> float | None:
    """Estimate a round's extra time, in steps of the baseline; None where the engines do not tell enough.

    The extra time of the candidate's steps is shared by its rounds: a search that finds no draft tokens counts too. The
    estimate holds at this run's concurrency.
    """
    baseline_s, baseline_steps, _ = _decoded(seen, BASELINE, task)
    candidate_s, candidate_steps, rounds = _decoded(seen, CANDIDATE, task)
    if baseline_steps < ENOUGH_STEPS or rounds < ENOUGH_STEPS or not baseline_s:
        return None
    return (candidate_s / (baseline_s / baseline_steps) - candidate_steps) / rounds


def _decoded(seen: EngineHistory, arm: ArmName, task: str) -> tuple[float, int, int]:
    """Return seconds of decoding over all requests, steps, and rounds (steps that verified draft tokens)."""
    seconds, n_steps, n_rounds = 0.0, 0, 0
    for segment in seen.segments_of(arm, task):
        decode_s, steps = _increase(segment, "decode_s"), _steps(segment)
        if decode_s is not None and steps is not None:
            seconds += decode_s
            n_steps += steps
            n_rounds += segment.drafting.drafts if segment.drafting else 0
    return seconds, n_steps, n_rounds


def _increase(segment: Segment, counter: str) -> Any:
    """Return what a counter grew by; None where that cannot be told."""
    before, after = (getattr(reading, counter, None) for reading in (segment.before, segment.after))
    return None if before is None or after is None or segment.has_restarted else after - before


def _steps(segment: Segment) -> int | None:
    """Return steps as counted; else every token has one but a request's first and those that were drafted.

    An answer may end within a round, whose accepted tokens are counted all the same: steps are at least the rounds.
    """
    steps: int | None = _increase(segment, "decode_steps")
    tokens: int | None = _increase(segment, "generated_tokens")
    if steps is None and tokens is not None:
        rounds, accepted = (drafting.drafts, drafting.accepted_tokens) if (drafting := segment.drafting) else (0, 0)
        return max(rounds, tokens - segment.attempts - accepted)
    return steps


def _restarted(observations: Sequence[Observation]) -> Iterator[EngineSeen | Segment]:
    """Yield segments and resumptions by which an engine had started anew; unreadable counters are passed over."""
    last: dict[ArmName, Counters] = {}
    for seen in observations:
        if not isinstance(seen, EngineSeen | Segment):
            continue
        is_new = False
        for now in (seen.engine.counters,) if isinstance(seen, EngineSeen) else (seen.before, seen.after):
            if now is not None:
                is_new |= seen.arm in last and now.has_restarted_since(last[seen.arm])
                last[seen.arm] = now
        if is_new:
            yield seen


def _engine_troubles(seen: EngineHistory) -> Iterator[Reason]:
    if len(seen.engines) == len(ArmName):
        for difference in differences(seen.engines[BASELINE], seen.engines[CANDIDATE]):
            if not difference.follows:
                values = {
                    "setting": difference.name,
                    "baseline": difference.baseline,
                    "candidate": difference.candidate,
                }
                yield Reason("engines-differ", values)
    for stretch in _restarted(seen.observations):
        if isinstance(stretch, Segment):
            yield of(stretch.task, Reason("restarted", {"arm": stretch.arm}))
    asked = seen.plan.sampling.model
    for arm in seen.arms:
        if fingerprints := mixed_fingerprints(seen.observations, arm):
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
    readings = seen.readings(BASELINE)
    if seen.answers.tell(BASELINE) or any(reading.tells_drafting for reading in readings):
        return True
    if engine is None:
        return False
    if engine.tells_drafter or (engine.counters and engine.counters.tells_drafting):
        return True
    if engine.kind is EngineKind.LLAMA_CPP and seen.answers.tell(CANDIDATE):
        return True
    candidate = seen.engines.get(CANDIDATE)
    return bool(readings) and tells_where_other_is_silent(engine, candidate, seen.readings(CANDIDATE))


def tells_where_other_is_silent(baseline: Engine, candidate: Engine | None, counters: Sequence[Counters]) -> bool:
    """Check that the baseline's open metrics, silent of drafting, mean that it has no drafter.

    They do where those of a candidate of the same engine and version tell of it: SGLang and TensorRT-LLM have such
    series with a drafter alone.
    """
    is_same = candidate and (baseline.kind, baseline.version) == (candidate.kind, candidate.version)
    return bool(is_same) and baseline.kind is not EngineKind.UNKNOWN and any(reading.drafting for reading in counters)


def unread(engine: Engine | None) -> Reason:
    """Say why nothing tells what an engine drafted."""
    return Reason("metrics-silent" if engine and engine.has_metrics else "metrics-closed")


def _idle_troubles(seen: EngineHistory, tasks: Sequence[TaskDrafting]) -> Iterator[Reason]:
    uncounted = tuple(
        name
        for name in seen.tasks
        if any(reading.tells_drafting and reading.drafting is None for reading in seen.readings(CANDIDATE, name))
    )
    if uncounted and not seen.answers.tell(CANDIDATE):  # the engine counted, but no drafts: it had no drafter then
        yield Reason("no-drafter", {"tasks": uncounted})
        return
    if all(task.least_drafted is None for task in tasks):
        if tasks and not seen.plan.rule.allow_unobserved and not all(seen.is_lost(task.task) for task in tasks):
            yield Reason("drafter-unobserved", {"why": unread(seen.engines.get(CANDIDATE))})
        return
    idle = [task for task in tasks if task.least_drafted == 0 and _is_mostly_observed(seen, task)]
    if any(task.least_drafted for task in tasks):
        for task in idle:
            if seen.room(task.task) >= SMALLEST_ROOM:
                yield of(task.task, Reason("task-undrafted", {"n": task.n_answers}))
    elif any(seen.room(task.task) for task in idle):
        yield Reason("drafter-dead", {"n": sum(task.n_answers for task in idle)})
    for task in tasks:
        yield from _idle_parts(seen, task.task)


def _is_mostly_observed(seen: EngineHistory, task: TaskDrafting) -> bool:
    """Check that counters cover most of a task: a run that was killed leaves a stretch without."""
    known = [segment for segment in seen.segments_of(CANDIDATE, task.task) if segment.drafting is not None]
    return seen.answers.tell(CANDIDATE) or 2 * sum(segment.attempts for segment in known) >= task.n_answers


def _idle_parts(seen: EngineHistory, task: str) -> Iterator[Reason]:
    # accepted tokens where every step may be a round
    rounds = [
        (segment, drafting.accepted_tokens if drafting.draft_tokens is None else drafting.drafts)
        for segment in seen.segments_of(CANDIDATE, task)
        if (drafting := segment.drafting) is not None
    ]
    total, n_asked = sum(n for _, n in rounds), sum(segment.attempts for segment, _ in rounds)
    for segment, n_rounds in rounds:
        others = n_asked - segment.attempts
        if n_rounds == 0 and others and segment.attempts * total / others >= ENOUGH_EXPECTED:
            yield of(task, Reason("part-undrafted", {"n": segment.attempts, "time": f"{segment.began_at:%H:%M:%S}"}))


def _accepting_troubles(tasks: Sequence[TaskDrafting], floor: float) -> Iterator[Reason]:
    for task in tasks:
        if (task.draft_tokens or 0) >= ENOUGH_DRAFTED and task.accepted_share is not None:
            if task.accepted_tokens == 0:
                yield of(task.task, Reason("none-accepted", {"n": task.draft_tokens}))
            elif task.accepted_share < floor:
                yield of(task.task, Reason("few-accepted", {"share": task.accepted_share, "floor": floor}))


def _length_troubles(bins: Sequence[LengthBin]) -> Iterator[Reason]:
    alive = [number for number, own in enumerate(bins) if own.draft_tokens or own.accepted_tokens]
    beyond = bins[alive[-1] + 1 :] if alive else ()
    n_answers = sum(own.n_answers for own in beyond)
    if n_answers >= SMALLEST_BIN:
        yield Reason("long-undrafted", {"length": beyond[0].from_tokens, "n": n_answers})


def _engine_notes(seen: EngineHistory, tasks: Sequence[TaskDrafting]) -> Iterator[Reason]:
    if seen.plan.tasks and not tasks:
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
    for task in tasks:
        yield from (of(task.task, note) for note in _task_notes(seen, task))
    if any(reading.source is DraftSource.STATISTICS for reading in seen.readings(CANDIDATE)):
        yield Reason("iterations-told-once")
    if not bins and any(task.least_drafted for task in tasks):
        is_vllm = CANDIDATE in seen.engines and seen.engines[CANDIDATE].kind is EngineKind.VLLM
        yield Reason("lengths-unobserved.vllm" if is_vllm else "lengths-unobserved")


def _task_notes(seen: EngineHistory, task: TaskDrafting) -> Iterator[Reason]:
    if task.least_drafted is None:
        yield Reason("task-interrupted" if seen.is_lost(task.task) else "task-unobserved")
    elif task.least_drafted == 0 and seen.room(task.task) < SMALLEST_ROOM:
        yield Reason("answers-too-short")
    elif task.draft_tokens and task.draft_tokens < ENOUGH_DRAFTED:
        yield Reason("few-drafted", {"n": task.draft_tokens})
    if task.zero_share is not None and task.zero_share > 0.5:
        yield Reason("rounds-in-vain", {"share": task.zero_share})
    if task.break_even_margin is not None and task.break_even_margin <= 0.0:
        length = task.mean_length or 0.0
        code = "below-break-even.plan" if seen.plan.drafter_costs else "below-break-even.run"
        yield Reason(code, {"length": length, "break_even": length - task.break_even_margin})


def _traffic_notes(seen: EngineHistory) -> Iterator[Reason]:
    for observation in _restarted(seen.observations):
        if isinstance(observation, EngineSeen):
            yield Reason("restarted-between", {"arm": observation.arm, "time": f"{observation.seen_at:%Y-%m-%d %H:%M}"})
    for arm in seen.arms:
        n_starts, n_requests, n_tokens = seen.n_starts(arm.arm), 0, 0
        for stretch in (segment for segment in seen.segments if segment.arm is arm.arm):
            finished, tokens = _increase(stretch, "finished_requests"), _increase(stretch, "prompt_tokens")
            is_uncounted = stretch.after is None or stretch.after.finished_requests is None
            if finished is not None:
                n_requests += finished - stretch.attempts
            elif is_uncounted and tokens is not None and stretch.prompt_tokens:
                n_tokens += tokens - stretch.prompt_tokens
        # over the run as a whole, since engines count late; an interruption leaves behind what was in flight
        n_requests -= max(0, n_starts - 1) * seen.plan.policy.concurrency
        # tokens tell of others only where every request was answered at once and told
        is_clean = arm.retries == 0 and arm.n_answers == arm.n_requests and n_starts == 1
        if n_requests > 0:
            yield Reason("foreign-requests", {"arm": arm.arm, "n": n_requests})
        elif n_tokens > 0 and is_clean:
            yield Reason("foreign-tokens", {"arm": arm.arm, "n": n_tokens})


def lost_interleaving(plan: Plan, observations: Iterable[Observation] = ()) -> Iterator[Reason]:
    """Name what is lost where the arms were asked one after the other."""
    if not plan.sequential:
        return
    yield Reason("arm-by-arm")
    began: dict[ArmName, datetime] = {}
    for observation in observations:
        if isinstance(observation, EngineSeen):
            began.setdefault(observation.arm, observation.seen_at)
    if len(began) == len(ArmName):
        yield Reason("turn-began", {"seconds": (began[CANDIDATE] - began[BASELINE]).total_seconds()})


ABSENT = "(absent)"

FOLLOWS = {
    "follows.drafter": "speculative_* default_generation_settings.params.speculative*",
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
"""Matches a Python object's address in a setting (vLLM's `hf_overrides` of a draft model): it differs by process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting that is not the same in both arms."""

    name: str
    baseline: str
    candidate: str
    follows: Reason | None
    """Why it is to be expected; None for a difference that breaks the comparison."""


def differences(baseline: Engine, candidate: Engine) -> tuple[Difference, ...]:
    """List the settings that the engines tell differently, by name, without those that name a process.

    A setting of one engine alone counts where the other tells its configuration at all.
    """
    pairs = {}
    for name in ("kind", "version", "model_root", "max_model_len"):
        before, after = getattr(baseline, name), getattr(candidate, name)
        if before and after:
            pairs[name] = (str(before), str(after))
    if baseline.config and candidate.config:
        for name in sorted(baseline.config.keys() | candidate.config.keys()):
            if not _matches(name, NAMES_THE_PROCESS):
                before, after = (ADDRESS.sub("", engine.config.get(name, ABSENT)) for engine in (baseline, candidate))
                pairs[name] = (before, after)  # SGLang's configuration has its version too
    return tuple(
        Difference(
            name=name,
            baseline=before,
            candidate=after,
            follows=next((Reason(code) for code, patterns in FOLLOWS.items() if _matches(name, patterns)), None),
        )
        for name, (before, after) in pairs.items()
        if before != after
    )


def _matches(name: str, patterns: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns.split())

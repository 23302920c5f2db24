"""Times arms over streams: work of several kinds, lengths and loads, arms in turn, until their ratio is narrow.

Every burst is stored as soon as it is over. What comes next follows from what is stored, so that a killed measurement
goes on where it was.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from qualab.analysis.speed import cell_speed, is_narrow
from qualab.errors import RunStopped, UsageError
from qualab.model.canonical import canonical_json, encode_body, sha256
from qualab.model.engine import Burst, Cell, Counters, StreamTimes, cells_of
from qualab.model.items import Prompt, Request, generation_request, sent_name
from qualab.model.names import AnswerStatus, Api, ArmName, CacheState, Work
from qualab.model.plan import SpeedPlan
from qualab.model.reason import Reason
from qualab.report.words import ENGLISH
from qualab.run.ask import own_error
from qualab.run.preflight import COUNTER_PAUSES_S
from qualab.run.prepare import Run
from qualab.run.workloads import Tokenizing, read_prompts, workload
from qualab.stats.speed import bucket_of

if TYPE_CHECKING:
    from qualab.endpoints.replicas import Endpoint
    from qualab.endpoints.streaming import Streamed

MOST_WARMUP = 10
N_STABLE, STABLE = 3, 1.1
"""Warm-up ends where the last so many repeats are this alike: the fastest over the slowest."""
MOST_REPEATED = 3
"""Repeats of a cell that stand in for those that others disturbed, or that gave nothing."""
MOST_NUMBER = 1_000
"""More than the repeats of a cell: no two cells share a prompt."""
SAY_EVERY_S = 10.0
Job = tuple[Request, bytes]
Place = tuple[Cell, bool, int]


def n_requests_of(plan: SpeedPlan, cell: Cell) -> int:
    """Count the requests of a repeat."""
    return max(plan.requests, 2 * (cell.concurrency or 0))


async def measure_speed(runs: Sequence[Run], plan: SpeedPlan) -> None:
    """Time what the plan lacks, in the arms of all runs, which share the baseline.

    Raises RunStopped where an arm gives nothing any more or takes none of the requests, and what the store raises.
    """
    first = runs[0]
    most = max(n_requests_of(plan, cell) for cell in cells_of(plan))
    policy = replace(first.plan.policy, concurrency=most, max_attempts=1)
    first.services.progress.finished()  # of what was asked before
    async with AsyncExitStack() as stack:

        async def opened(name: ArmName, run: Run, sharing: Sequence[Run]) -> _Arm:
            url, key = run.endpoints[name].url, run.services.keys.get(name)
            endpoint = await stack.enter_async_context(run.services.open_endpoint(url, policy=policy, key=key))
            stored = [await asyncio.to_thread(_bursts, own, plan, name) for own in sharing]
            places = [set(map(_place, bursts)) for bursts in stored]
            known = [burst for burst in stored[0] if all(_place(burst) in own for own in places)]
            return _Arm(name, endpoint, sharing, places, known)

        arms = [await opened(ArmName.BASELINE, first, runs)]
        arms += [await opened(ArmName.CANDIDATE, run, [run]) for run in runs]
        await _Measurement(first, plan, arms).measure()


def _bursts(run: Run, plan: SpeedPlan, arm: ArmName) -> list[Burst]:
    stored = run.services.store.observations(run.id)
    return [own for own in stored if isinstance(own, Burst) and own.plan == plan and own.arm is arm]


def _place(burst: Burst) -> Place:
    return burst.cell, burst.is_warmup, burst.repeat


@dataclass(frozen=True, slots=True)
class _Arm:
    name: ArmName
    endpoint: Endpoint
    runs: Sequence[Run]
    """Those whose comparison its bursts belong to."""
    stored: Sequence[set[Place]]
    """What is stored in each of them."""
    bursts: list[Burst]
    """What is stored in all."""

    @property
    def label(self) -> str:
        group = self.runs[0].plan.group if self.name is ArmName.CANDIDATE else None
        return group.name if group else self.name

    def of(self, cell: Cell, *, is_warmup: bool) -> list[Burst]:
        """Select a cell's bursts, by repeat."""
        return [own for own in self.bursts if own.cell == cell and own.is_warmup is is_warmup]


class _Measurement:
    def __init__(self, run: Run, plan: SpeedPlan, arms: Sequence[_Arm]) -> None:
        self.run, self.plan, self.arms = run, plan, arms
        self.cells = cells_of(plan)
        # an engine may remember the prompts of other measurements
        self.seed = int(sha256(f"{run.plan.sampling.seed} {run.id} {canonical_json(plan)}")[:8], 16)
        self.prompts = _own_prompts(run, plan)
        self.tokenize: Tokenizing | None = None
        self.clock, self.say = run.services.clock, run.services.progress.phase
        self.spent_s = sum(burst.wall_s for arm in arms for burst in arm.bursts)
        self.began_s, self.said_s = self.spent_s, self.clock.monotonic_s()

    @property
    def left_s(self) -> float:
        return self.plan.budget_s - self.spent_s

    async def measure(self) -> None:
        """Measure one cell after the other."""
        self.tokenize = await _tokenizing(self.run, self.arms[0].endpoint)
        for number, cell in enumerate(self.cells):
            await self._measure(cell, number, end_s=self.spent_s + self.left_s / (len(self.cells) - number))
        bursts = [burst for arm in self.arms for burst in arm.bursts]
        if bursts and all(stream.status is AnswerStatus.REJECTED for own in bursts for stream in own.streams):
            raise self._stopped(self.arms[0], bursts)

    async def _measure(self, cell: Cell, number: int, *, end_s: float) -> None:
        """Repeat a cell until its ratios are narrow or its share of the budget is spent."""
        n_warmed, began_s = 0, self.spent_s
        while self.left_s > 0.0 and not self._is_done(cell, end_s):
            half_s = began_s + (end_s - began_s) / 2.0
            is_warmup = not n_warmed or not self._is_warm(cell, n_warmed, is_late=self.spent_s >= half_s)
            n_warmed += is_warmup
            repeat = min(len(arm.of(cell, is_warmup=is_warmup)) for arm in self.arms)
            await self._repeat(cell, repeat, is_warmup=is_warmup)
            self._tell(cell, number, is_warmup=is_warmup)
            last = [arm.of(cell, is_warmup=is_warmup)[-1] for arm in self.arms]
            if any(
                stream.status is AnswerStatus.REJECTED for own in last if not own.n_tokens for stream in own.streams
            ):
                return  # too long for it, say
            for arm in self.arms:
                newest = arm.bursts[-MOST_REPEATED:]
                if len(newest) == MOST_REPEATED and not any(own.n_tokens for own in newest):
                    raise self._stopped(arm, newest)

    def _is_warm(self, cell: Cell, n_warmed: int, *, is_late: bool) -> bool:
        """Tell whether repeats before this one, `n_warmed` of them in this process, have become alike in each arm."""
        own = [arm.of(cell, is_warmup=True) for arm in self.arms]
        n = min(map(len, own))
        if n < self.plan.warmup or n < max(map(len, own)):
            return False
        return n_warmed >= MOST_WARMUP or is_late or all(map(_is_stable, own))

    def _is_done(self, cell: Cell, end_s: float) -> bool:
        """Tell whether a cell needs no repeat more, or may have none."""
        plan, (baseline, *candidates) = self.plan, [arm.of(cell, is_warmup=False) for arm in self.arms]
        n = min(map(len, (baseline, *candidates)))
        if n < max(map(len, (baseline, *candidates))):
            return False
        n_usable = sum(all(own[repeat].is_usable for own in (baseline, *candidates)) for repeat in range(n))
        if n_usable < plan.repeats:
            return n >= plan.repeats + MOST_REPEATED or (n_usable >= 2 and self.spent_s >= end_s)
        if n_usable >= plan.max_repeats or n >= plan.max_repeats + MOST_REPEATED or self.spent_s >= end_s:
            return True
        seed = self.run.plan.sampling.seed
        speeds = (cell_speed([*baseline, *own], cell, plan, seed=seed) for own in candidates)
        return all(is_narrow(own.ratio, plan.precision) for own in speeds)

    async def _repeat(self, cell: Cell, repeat: int, *, is_warmup: bool) -> None:
        """Give the same requests to every arm that lacks this repeat, in an order that turns round."""
        jobs = await self._jobs(cell, repeat, is_warmup=is_warmup)
        turn = repeat % len(self.arms)
        for arm in (*self.arms[turn:], *self.arms[:turn]):
            if len(arm.of(cell, is_warmup=is_warmup)) > repeat:
                continue
            began_s = self.clock.monotonic_s()
            burst = await self._burst(arm, cell, jobs, repeat=repeat, is_warmup=is_warmup)
            for run, stored in zip(arm.runs, arm.stored, strict=True):
                if _place(burst) not in stored:
                    await asyncio.to_thread(run.services.store.add_observation, run.id, burst)
            arm.bursts.append(burst)
            self.spent_s += self.clock.monotonic_s() - began_s

    async def _jobs(self, cell: Cell, repeat: int, *, is_warmup: bool) -> list[Job]:
        """Make the requests of a repeat: new ones where the prefix cache should be cold, else always the same."""
        sampling, number = self.run.plan.sampling, MOST_NUMBER * self.cells.index(cell) + 2 * repeat + is_warmup
        texts = await workload(
            cell.work,
            cell.prompt_tokens,
            n_requests_of(self.plan, cell),
            seed=self.seed,
            repeat=number if self.plan.cache is CacheState.COLD else 0,
            tokenize=self.tokenize,
            own=self.prompts,
        )
        settings = {name: value for name, value in sampling.gen_kwargs.items() if sent_name(name) != "max_tokens"}
        settings["max_gen_toks"] = self.plan.output_tokens
        is_chat = sampling.api is Api.CHAT
        system = [{"role": "system", "content": sampling.system_instruction}] if sampling.system_instruction else []
        jobs = []
        for text in texts:
            sent = json.dumps([*system, {"role": "user", "content": text}]) if is_chat else text
            prompt = Prompt(text=sent, is_chat=is_chat, gen_kwargs=settings)
            request = generation_request(prompt, sampling=sampling)
            jobs.append((request, encode_body(request.payload, seed=sampling.seed + repeat)))
        return jobs

    async def _burst(self, arm: _Arm, cell: Cell, jobs: Sequence[Job], *, repeat: int, is_warmup: bool) -> Burst:
        before = await _counters(arm.endpoint, lambda now: not now.running_requests)
        began_s = self.clock.monotonic_s()
        streamed = await self._streamed(arm.endpoint, cell, jobs, repeat)
        wall_s = self.clock.monotonic_s() - began_s
        streams = tuple(own.times for own in streamed)
        n_finished = (before.finished_requests or 0 if before else 0) + sum(own.status.is_answer for own in streams)
        after = await _counters(
            arm.endpoint, lambda now: not now.running_requests and n_finished <= (now.finished_requests or n_finished)
        )
        drafting = after.drafting_since(before) if before and after else None
        return Burst(
            arm=arm.name,
            seen_at=self.clock.now(),
            plan=self.plan,
            cell=cell,
            repeat=repeat,
            is_warmup=is_warmup,
            wall_s=wall_s,
            streams=streams,
            gaps=tuple(sorted(Counter(bucket_of(gap_s) for own in streamed for gap_s in own.gaps_s).items())),
            drafting=drafting if drafting and drafting.is_possible else None,
            n_foreign=_foreign(before, after, streams),
        )

    async def _streamed(self, endpoint: Endpoint, cell: Cell, jobs: Sequence[Job], repeat: int) -> list[Streamed]:
        """Send requests under the cell's load; arrivals are drawn alike for all arms."""
        done: list[Streamed] = []
        waiting, draws = iter(jobs), random.Random(f"{self.seed}:{cell}:{repeat}")

        async def work(most: int | None = None) -> None:
            for request, body in islice(waiting, most):
                done.append(await endpoint.stream(request, body))

        with own_error():
            async with asyncio.TaskGroup() as group:
                for _ in range(cell.concurrency or len(jobs)):
                    await asyncio.sleep(draws.expovariate(cell.rate) if cell.rate else 0.0)
                    group.create_task(work(1 if cell.rate else None))
        return done

    def _tell(self, cell: Cell, number: int, *, is_warmup: bool) -> None:
        now_s = self.clock.monotonic_s()
        if now_s - self.said_s < SAY_EVERY_S:
            return
        self.said_s = now_s
        own = {arm.label: arm.of(cell, is_warmup=is_warmup) for arm in self.arms}
        speeds = ", ".join(f"{name} {_speed(bursts):.1f} tok/s" for name, bursts in own.items())
        load = f"{cell.concurrency} at once" if cell.rate is None else f"{cell.rate:g} a second"
        repeat = f"{'warm-up' if is_warmup else 'repeat'} {max(map(len, own.values()))}"
        passed_s = self.spent_s - self.began_s
        left_s = min(self.left_s, passed_s / number * (len(self.cells) - number)) if number else self.left_s
        self.say(
            f"Speed {number + 1}/{len(self.cells)}: {cell.work}, {cell.prompt_tokens:,} tokens, {load}, {repeat}: "
            f"{speeds}; {'about' if number else 'at most'} {max(0.0, left_s) / 60.0:.0f} min left"
        )

    def _stopped(self, arm: _Arm, bursts: Sequence[Burst]) -> RunStopped:
        streams = [stream for burst in bursts for stream in burst.streams]
        why = Reason("stopped.no-answers", {"total": len(streams)})
        values = {"arm": arm.name, "url": arm.endpoint.url, "why": why, "error": streams[-1].error}
        reason = Reason("stopped.arm-fails", values)
        return RunStopped(ENGLISH.reason(reason), reason=reason)


async def _counters(endpoint: Endpoint, is_enough: Callable[[Counters], bool]) -> Counters | None:
    """Read an engine's counters, which it updates now and then, until they are enough or some time has passed."""
    for pause_s in COUNTER_PAUSES_S:
        counters = await endpoint.counters()
        if counters is None or is_enough(counters):
            return counters
        await asyncio.sleep(pause_s)
    return await endpoint.counters()


def _foreign(before: Counters | None, after: Counters | None, streams: Sequence[StreamTimes]) -> int | None:
    """Count requests of others as far as the counters tell: None where they do not, or began anew."""
    if before is None or after is None or after.has_restarted_since(before):
        return None
    running = max(before.running_requests or 0, after.running_requests or 0)
    if before.finished_requests is not None and after.finished_requests is not None:
        return max(running, after.finished_requests - before.finished_requests - len(streams))
    is_whole = all(stream.status.is_answer and stream.is_counted for stream in streams)
    if is_whole and before.generated_tokens is not None and after.generated_tokens is not None:
        # an engine may count a token of each end; llama.cpp does not count requests
        most = sum(stream.n_tokens for stream in streams) + 2 * len(streams)
        running = max(running, int(after.generated_tokens - before.generated_tokens > most))
    return running or None


def _own_prompts(run: Run, plan: SpeedPlan) -> tuple[str, ...]:
    if Work.OWN not in plan.works:
        return ()
    path = Path(run.comparison.local.get("speed_prompts", ""))
    if not path.is_file() or sha256(path.read_bytes()) != plan.prompts_hash:
        hint = "Give the file with --prompts as it was, or name other works"
        raise UsageError(f"The prompts that were to be timed are not in {path} any more", hint=hint)
    return read_prompts(path)


async def _tokenizing(run: Run, endpoint: Endpoint) -> Tokenizing | None:
    """Return what counts a prompt's tokens: the server, else a named tokenizer; None where neither does."""
    model, name = run.plan.sampling.model, run.comparison.local.get("tokenizer")
    if await endpoint.inspect(model=model):
        return partial(endpoint.tokenize, model=model)
    named = run.services.named_tokenizer(name) if name else None

    async def tokenize(texts: Sequence[str]) -> list[list[int]]:
        return named(texts) if named else []

    return tokenize if named else None


def _speed(bursts: Iterable[Burst]) -> float:
    own = list(bursts)
    return sum(burst.n_tokens for burst in own) / sum(burst.wall_s for burst in own)


def _is_stable(bursts: Sequence[Burst]) -> bool:
    speeds = [_speed([burst]) for burst in bursts[-N_STABLE:]]
    return max(speeds) <= STABLE * min(speeds)

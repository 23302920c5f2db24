"""Times arms over streams: work of several kinds, lengths and loads, arms in turn, until their ratio is narrow.

Every burst is stored as soon as it is over. What comes next follows from what is stored, so that a killed measurement
goes on where it was.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from qualab.analysis.speed import cell_speed, is_narrow
from qualab.errors import RunStopped, UsageError
from qualab.model.canonical import canonical_json, encode_body, sha256
from qualab.model.engine import Burst, Cell, Counters, StreamTimes, cells_of
from qualab.model.items import Prompt, Request, generation_request, sent_name
from qualab.model.names import Api, ArmName, CacheState, Work
from qualab.model.plan import SpeedPlan
from qualab.model.reason import Reason
from qualab.report.words import ENGLISH
from qualab.run.ask import own_error
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
PAUSES_S = (0.02, 0.1, 0.4, 1.0)
"""Engines update their counters now and then."""
SAY_EVERY_S = 10.0
Job = tuple[Request, bytes]


@dataclass(frozen=True, slots=True)
class _Arm:
    name: ArmName
    endpoint: Endpoint
    runs: Sequence[Run]
    """Those whose comparisons its bursts belong to."""
    bursts: defaultdict[tuple[Cell, bool], list[Burst]]
    """What is stored in all of them, by cell and whether it is warm-up."""


async def measure_speed(runs: Sequence[Run], plan: SpeedPlan) -> None:
    """Time what is missing in the arms of all runs, which share the baseline.

    Raises RunStopped where an arm gives nothing any more or takes none of the requests, and as the store and
    `inspect`.
    """
    first = runs[0]
    most = max(plan.requests, 2 * max(plan.concurrency, default=0))
    timeout_s = min(first.plan.policy.timeout_s, plan.budget_s)  # a server that hangs does not outlast the budget
    policy = replace(first.plan.policy, concurrency=most, max_attempts=1, timeout_s=timeout_s)
    first.services.progress.finished()  # of what was asked before
    async with AsyncExitStack() as stack:
        arms = []
        for name, own in ((ArmName.BASELINE, runs), *((ArmName.CANDIDATE, [run]) for run in runs)):
            url, key = own[0].endpoints[name].url, first.services.keys.get(name)
            endpoint = await stack.enter_async_context(first.services.open_endpoint(url, policy=policy, key=key))
            arms.append(_Arm(name, endpoint, own, await asyncio.to_thread(_bursts, own, plan, name)))
        await _Measurement(first, plan, arms).measure()


def _bursts(runs: Sequence[Run], plan: SpeedPlan, arm: ArmName) -> defaultdict[tuple[Cell, bool], list[Burst]]:
    by_run: list[dict[tuple[Cell, bool, int], Burst]] = []
    for run in runs:
        stored = (own for own in run.services.store.observations(run.id) if isinstance(own, Burst))
        own = [burst for burst in stored if burst.plan == plan and burst.arm is arm]
        by_run.append({(burst.cell, burst.is_warmup, burst.repeat): burst for burst in own})
    bursts: defaultdict[tuple[Cell, bool], list[Burst]] = defaultdict(list)
    for place, burst in by_run[0].items():
        if all(place in known for known in by_run):
            bursts[place[:2]].append(burst)
    return bursts


class _Measurement:
    def __init__(self, run: Run, plan: SpeedPlan, arms: Sequence[_Arm]) -> None:
        self.run, self.plan, self.arms, self.cells = run, plan, arms, cells_of(plan)
        self.clock, self.prompts = run.services.clock, _own_prompts(run, plan)
        self.tokenize: Tokenizing | None = None
        # an engine may remember the prompts of other measurements
        own = [run.plan.sampling.seed, run.id, *(getattr(plan, part.name) for part in fields(plan) if part.compare)]
        self.seed = int(sha256(canonical_json(own))[:8], 16)
        self.spent_s = sum(burst.wall_s for arm in arms for own in arm.bursts.values() for burst in own)
        self.began_s, self.said_s = self.spent_s, self.clock.monotonic_s()

    async def measure(self) -> None:
        """Measure one cell after the other, each within its share of what is left of the budget."""
        endpoint, model = self.arms[0].endpoint, self.run.plan.sampling.model
        if await endpoint.inspect(model=model):
            self.tokenize = partial(endpoint.tokenize, model=model)
        elif name := self.run.comparison.local.get("tokenizer"):
            named = self.run.services.named_tokenizer(name)
            self.tokenize = lambda texts: asyncio.to_thread(named, texts)
        for number, cell in enumerate(self.cells):
            share_s = (self.plan.budget_s - self.spent_s) / (len(self.cells) - number)
            await self._measure(cell, number, share_s, self.spent_s + share_s)
        for arm in self.arms:
            bursts = [burst for own in arm.bursts.values() for burst in own]
            if bursts and not any(burst.is_answered for burst in bursts):
                raise _stopped(arm, bursts)

    async def _measure(self, cell: Cell, number: int, share_s: float, end_s: float) -> None:
        """Repeat a cell until its ratios are narrow or its share of the budget is spent."""
        n_warmed, newest = 0, [list[Burst]() for _ in self.arms]
        while self.spent_s < self.plan.budget_s and not self._is_done(cell, is_late=self.spent_s >= end_s):
            is_late = self.spent_s >= end_s - share_s / 2.0
            is_warmup = not n_warmed or not self._is_warm(cell, is_late=is_late or n_warmed >= MOST_WARMUP)
            n_warmed += is_warmup
            bursts = await self._repeat(cell, is_warmup=is_warmup)
            self._tell(cell, number, is_warmup=is_warmup)
            if any(burst.is_refused for burst in bursts):  # too long for it, say
                return
            for arm, own, burst in zip(self.arms, newest, bursts, strict=True):
                own.append(burst)
                if len(own) >= MOST_REPEATED and not any(last.is_answered for last in own[-MOST_REPEATED:]):
                    raise _stopped(arm, own[-MOST_REPEATED:])

    def _is_warm(self, cell: Cell, *, is_late: bool) -> bool:
        """Tell whether enough warm-up was done, and the last repeats are alike in each arm."""
        own = [[_speed(burst) for burst in arm.bursts[cell, True]] for arm in self.arms]
        is_whole = self.plan.warmup <= min(map(len, own)) == max(map(len, own))
        newest = [speeds[-N_STABLE:] for speeds in own]
        return is_whole and (is_late or all(max(speeds) <= STABLE * min(speeds) for speeds in newest))

    def _is_done(self, cell: Cell, *, is_late: bool) -> bool:
        """Tell whether a cell needs no further repeat, or may have none."""
        plan, seed, own = self.plan, self.run.plan.sampling.seed, [arm.bursts[cell, False] for arm in self.arms]
        n = min(map(len, own))
        if n < max(map(len, own)):
            return False
        n_usable = sum(all(burst.is_usable for burst in repeat) for repeat in zip(*own, strict=True))
        if n_usable < plan.repeats:
            return n >= plan.repeats + MOST_REPEATED or (is_late and n_usable >= 2)
        if is_late or n_usable >= plan.max_repeats or n >= plan.max_repeats + MOST_REPEATED:
            return True
        pairs = ([*own[0], *candidate] for candidate in own[1:])
        return all(is_narrow(cell_speed(pair, cell, plan, seed=seed).ratio, plan.precision) for pair in pairs)

    async def _repeat(self, cell: Cell, *, is_warmup: bool) -> list[Burst]:
        """Give the same requests to every arm that lacks this repeat, in an order that turns round."""
        repeat = min(len(arm.bursts[cell, is_warmup]) for arm in self.arms)
        jobs, turn = await self._jobs(cell, 2 * repeat + is_warmup), repeat % len(self.arms)
        for arm in (*self.arms[turn:], *self.arms[:turn]):
            own = arm.bursts[cell, is_warmup]
            if len(own) == repeat:
                began_s = self.clock.monotonic_s()
                burst = await self._burst(arm, cell, jobs, repeat=repeat, is_warmup=is_warmup)
                for run in arm.runs:
                    await asyncio.to_thread(run.services.store.add_observation, run.id, burst)
                own.append(burst)
                self.spent_s += self.clock.monotonic_s() - began_s
        return [arm.bursts[cell, is_warmup][repeat] for arm in self.arms]

    async def _jobs(self, cell: Cell, number: int) -> list[Job]:
        """Make the requests of a repeat: new ones where the prefix cache should be cold, else always the same."""
        sampling, is_cold = self.run.plan.sampling, self.plan.cache is CacheState.COLD
        texts = await workload(
            cell.work,
            cell.prompt_tokens,
            max(self.plan.requests, 2 * (cell.concurrency or 0)),
            seed=self.seed,
            repeat=MOST_NUMBER * self.cells.index(cell) + number if is_cold else 0,
            tokenize=self.tokenize,
            own=self.prompts,
        )
        settings = {name: value for name, value in sampling.gen_kwargs.items() if sent_name(name) != "max_tokens"}
        settings["max_gen_toks"] = self.plan.output_tokens
        system = [{"role": "system", "content": sampling.system_instruction}] if sampling.system_instruction else []
        is_chat = sampling.api is Api.CHAT
        if is_chat:
            texts = [json.dumps([*system, {"role": "user", "content": text}]) for text in texts]
        prompts = (Prompt(text=text, is_chat=is_chat, gen_kwargs=settings) for text in texts)
        requests = [generation_request(prompt, sampling=sampling) for prompt in prompts]
        return [(request, encode_body(request.payload, seed=sampling.seed)) for request in requests]

    async def _burst(self, arm: _Arm, cell: Cell, jobs: Sequence[Job], *, repeat: int, is_warmup: bool) -> Burst:
        before = await _counters(arm.endpoint)
        began_s = self.clock.monotonic_s()
        streamed = await self._streamed(arm.endpoint, cell, jobs, repeat)
        wall_s = self.clock.monotonic_s() - began_s
        streams = tuple(own.times for own in streamed)
        n_before = before.finished_requests or 0 if before else 0
        after = await _counters(arm.endpoint, n_before + sum(own.status.is_answer for own in streams))
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

        async def work(most: int | None) -> None:
            for request, body in islice(waiting, most):
                done.append(await endpoint.stream(request, body))

        with own_error():
            async with asyncio.TaskGroup() as group:
                for _ in range(cell.concurrency or len(jobs)):
                    await asyncio.sleep(draws.expovariate(cell.rate) if cell.rate else 0.0)
                    group.create_task(work(1 if cell.rate else None))
        return done

    def _tell(self, cell: Cell, number: int, *, is_warmup: bool) -> None:
        if self.clock.monotonic_s() - self.said_s < SAY_EVERY_S:
            return
        self.said_s = self.clock.monotonic_s()
        own = [arm.bursts[cell, is_warmup] for arm in self.arms]
        speeds = " and ".join(f"{sum(map(_speed, bursts)) / len(bursts):.1f}" for bursts in own)
        load = f"{cell.concurrency} at once" if cell.rate is None else f"{cell.rate:g} a second"
        left_s = max(0.0, self.plan.budget_s - self.spent_s)
        if number:
            left_s = min(left_s, (self.spent_s - self.began_s) / number * (len(self.cells) - number))
        self.run.services.progress.phase(
            f"Speed {number + 1}/{len(self.cells)}: {cell.work}, {cell.prompt_tokens:,} tokens, {load}, "
            f"{'warm-up' if is_warmup else 'repeat'} {len(own[0])}: {speeds} tok/s a request; "
            f"{'about' if number else 'at most'} {ENGLISH.span(left_s)} left"
        )


def _own_prompts(run: Run, plan: SpeedPlan) -> tuple[str, ...]:
    if Work.OWN not in plan.works:
        return ()
    path = Path(run.comparison.local.get("speed_prompts", ""))
    if not path.is_file() or sha256(path.read_bytes()) != plan.prompts_hash:
        raise UsageError(f"{path} does not hold the prompts of the plan", hint="Give them as they were with --prompts")
    return read_prompts(path)


async def _counters(endpoint: Endpoint, n_finished: int = 0) -> Counters | None:
    """Read an engine's counters once nothing runs and so many requests have finished, or some time later."""
    for pause_s in PAUSES_S:
        counters = await endpoint.counters()
        if not counters or (not counters.running_requests and n_finished <= (counters.finished_requests or n_finished)):
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
        # llama.cpp counts no requests; an engine may count a token of each end
        n_ours = sum(stream.n_tokens for stream in streams) + 2 * len(streams)
        return max(running, int(after.generated_tokens - before.generated_tokens > n_ours))
    return running or None


def _speed(burst: Burst) -> float:
    return burst.n_tokens / max(1e-9, sum(stream.latency_s for stream in burst.streams))


def _stopped(arm: _Arm, bursts: Sequence[Burst]) -> RunStopped:
    streams = [stream for burst in bursts for stream in burst.streams]
    why = Reason("stopped.no-answers", {"total": len(streams)})
    values = {"arm": arm.name, "url": arm.endpoint.url, "why": why, "error": streams[-1].error}
    is_refused = all(burst.is_refused for burst in bursts)
    run, lengths = arm.runs[0], " --prompt-tokens LENGTHS, as long as both arms take" * is_refused
    of_all = run.plan.group.id if run.plan.group else run.id
    hint = f"Everything so far is stored. Go on with: qualab speed {of_all}{lengths}"
    return RunStopped(ENGLISH.reason(reason := Reason("stopped.arm-fails", values)), hint=hint, reason=reason)

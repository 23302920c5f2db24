"""Asks the arms every request that has no answer yet, interleaved, and records each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from qualab.app.heartbeats import beat
from qualab.app.recording import Recorder
from qualab.app.services import Run, Services
from qualab.domain.canonical import body_hash, encode_body
from qualab.domain.items import Answer, Item, Reply, Request
from qualab.domain.names import AnswerStatus, ArmName
from qualab.domain.plan import RequestPolicy, SamplingPlan
from qualab.errors import QualabError, RunStopped
from qualab.ports import Endpoint

MIN_FAILURES = 5
MIN_FAILURES_IN_A_ROW = 20
LEAD_PER_SLOT = 2
"""How far one arm may run ahead of the other: this many requests a slot."""

AnswerKey = tuple[ArmName, int, int, int]


@dataclass(frozen=True, slots=True)
class Job:
    """One request of one arm."""

    position: int
    choice: int
    repeat: int
    request: Request
    body: bytes
    digest: bytes


@dataclass(slots=True)
class Tally:
    """How one arm does, to stop a run that is going nowhere."""

    total: int
    """Requests that the plan has for this arm."""
    missing: int = 0
    missing_in_a_row: int = 0
    last_error: str = ""
    attempts: int = 0
    prompt_tokens: int = 0

    def count(self, reply: Reply) -> None:
        """Adds one reply. A reply with reasoning alone came back, so the endpoint lives."""
        self.attempts += reply.attempts
        self.prompt_tokens += reply.prompt_tokens or 0
        if reply.status.is_answer or reply.status is AnswerStatus.NO_FINAL_ANSWER:
            self.missing_in_a_row = 0
            return
        self.missing += 1
        self.missing_in_a_row += 1
        self.last_error = reply.error

    def stop_reason(self, policy: RequestPolicy) -> str:
        """Why this arm should not be asked further; empty while it may."""
        if self.missing > max(MIN_FAILURES, policy.max_failed_share * self.total):
            return f"{self.missing} of {self.total} requests got no answer, more than the plan allows"
        if self.missing_in_a_row >= max(MIN_FAILURES_IN_A_ROW, 2 * policy.concurrency):
            return f"the last {self.missing_in_a_row} requests got no answer"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A place where the asking waits until everything has come back and is stored."""

    end: int
    """The position after the last item before it."""
    then: Callable[[], Awaitable[bool]]
    """What is done there, and whether to go on."""


Pauses = Callable[[Sequence["Arm"]], Awaitable[Sequence[Pause]]]
"""The pauses of a run with these arms, in order of their ends."""


@dataclass(slots=True)
class Arm:
    """One arm during a run."""

    name: ArmName
    endpoint: Endpoint
    queue: asyncio.Queue[Job | None]
    tally: Tally
    concurrency: int = 1
    run: int = 0
    """A run of the noise floor, or 0."""


async def ask_all(services: Services, run: Run, *, pauses: Pauses | None = None) -> None:
    """Asks what is missing. Raises RunStopped when an arm fails too often, and what the store raises."""
    plan = run.comparison.plan
    done = services.store.answered(run.comparison.id)
    total = n_requests(run.items, plan.sampling)
    concurrency = plan.policy.concurrency
    arms = [arm_of(name, one, concurrency=concurrency, total=total) for name, one in run.endpoints.items()]
    recorder = Recorder(services.store, run.comparison.id)
    places = await pauses(arms) if pauses else ()
    await ask_fed(services, run, arms, recorder, feed(run, arms, done, recorder=recorder, pauses=places))


async def ask_fed(
    services: Services, run: Run, arms: Sequence[Arm], recorder: Recorder, feeding: Coroutine[Any, Any, None]
) -> None:
    """Asks what a feeder puts into the arms' queues, and records it. Raises as `ask_all`."""
    try:
        async with asyncio.TaskGroup() as group:
            beating = group.create_task(beat(services, run.comparison.id))
            await _ask_missing(run, arms, recorder, feeding)
            beating.cancel()
    except BaseExceptionGroup as errors:
        raise _first(errors) from errors
    finally:
        await recorder.flush()
    _check_not_silent(arms)


def n_requests(items: Iterable[Item], sampling: SamplingPlan) -> int:
    """Requests that one arm gets for these items."""
    return sum(len(item.requests) for item in items) * sampling.repeats


def arm_of(name: ArmName, endpoint: Endpoint, *, concurrency: int, total: int, run: int = 0) -> Arm:
    """An arm with nothing asked yet."""
    queue: asyncio.Queue[Job | None] = asyncio.Queue(LEAD_PER_SLOT * concurrency)
    return Arm(name=name, endpoint=endpoint, queue=queue, tally=Tally(total=total), concurrency=concurrency, run=run)


def jobs(item: Item, *, seed: int, repeats: int) -> Iterator[Job]:
    """Every request of an item; both arms are given the same bytes."""
    for repeat in range(repeats):
        for request in item.requests:
            body = encode_body(request.payload, seed=seed + repeat)
            yield Job(item.position, request.choice, repeat, request, body, body_hash(body))


async def feed(
    run: Run,
    arms: Sequence[Arm],
    done: set[AnswerKey],
    *,
    recorder: Recorder,
    pauses: Sequence[Pause] = (),
) -> None:
    """Hands jobs to the arms in step; which arm is given an item first alternates."""
    start, goes_on = 0, True
    for pause in pauses:
        await feed_items(run, run.items[start : pause.end], arms, done)
        start = pause.end
        await _drained(arms, recorder)
        if not (goes_on := await pause.then()):
            break
    if goes_on:
        await feed_items(run, run.items[start:], arms, done)
    await feed_ends(arms)


async def feed_ends(arms: Sequence[Arm]) -> None:
    """Tells every worker that nothing comes any more."""
    for arm in arms:
        for _ in range(arm.concurrency):
            await arm.queue.put(None)


async def _drained(arms: Sequence[Arm], recorder: Recorder) -> None:
    """Waits until every job has its answer, and every answer is stored."""
    for arm in arms:
        await arm.queue.join()
    await recorder.flush()


async def feed_items(run: Run, items: Sequence[Item], arms: Sequence[Arm], done: set[AnswerKey]) -> None:
    """Hands these items' jobs to the arms, but for those that are done."""
    sampling = run.comparison.plan.sampling
    for item in items:
        order = arms if item.position % 2 == 0 else arms[::-1]
        for job in jobs(item, seed=sampling.seed, repeats=sampling.repeats):
            for arm in order:
                if (arm.name, job.position, job.choice, job.repeat) not in done:
                    await arm.queue.put(job)


async def _ask_missing(run: Run, arms: Sequence[Arm], recorder: Recorder, feeding: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(feeding)
        for arm in arms:
            for _ in range(arm.concurrency):
                group.create_task(_work(arm, recorder, run))


async def _work(arm: Arm, recorder: Recorder, run: Run) -> None:
    policy, on_wait = run.comparison.plan.policy, partial(run.progress.waiting, arm.name)
    while (job := await arm.queue.get()) is not None:
        reply = await arm.endpoint.ask(job.request, job.body, on_wait=on_wait)
        await recorder.add(
            Answer(
                arm=arm.name,
                position=job.position,
                choice=job.choice,
                repeat=job.repeat,
                request_hash=job.digest,
                reply=reply,
                run=arm.run,
            )
        )
        arm.tally.count(reply)
        run.progress.answered(arm.name, reply)
        if reason := arm.tally.stop_reason(policy):
            raise _stopped(arm, reason)
        arm.queue.task_done()


def _check_not_silent(arms: Sequence[Arm]) -> None:
    """A resumed run asks a part of the plan: that all of it fails is for the analysis to judge."""
    for arm in arms:
        if arm.tally.missing == arm.tally.total:
            raise _stopped(arm, f"none of {arm.tally.total} requests got an answer")


def _stopped(arm: Arm, reason: str) -> RunStopped:
    return RunStopped(
        f"The {arm.name} at {arm.endpoint.url} fails: {reason}; the last error was: {arm.tally.last_error}",
        hint="Everything answered so far is stored",
    )


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended a group of tasks: our own before any other."""
    leaves = list(_leaves(errors))
    return next((error for error in leaves if isinstance(error, QualabError)), leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error

"""What goes on beside the event loop of a run: signs of life, and whatever loads, renders or scores."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from qualab.errors import QualabError, RunStopped
from qualab.model.canonical import body_hash, encode_body
from qualab.model.engine import Counters, Segment
from qualab.model.items import Answer, Item, Reply, Request
from qualab.model.names import AnswerStatus, ArmName, RequestKind
from qualab.model.plan import RequestPolicy, SamplingPlan
from qualab.model.ports import Endpoint
from qualab.run.preflight import counters_of
from qualab.run.prepare import stage_ends
from qualab.run.services import PairServices, Run, Services

if TYPE_CHECKING:
    from qualab.store import Store

T = TypeVar("T")
STOP_EVERY_S = 0.1


async def beat(services: Services, comparison_id: str) -> None:
    """Beats until it is cancelled. Raises ComparisonBusy when another process has taken over."""
    while True:
        await asyncio.sleep(services.pulse.every_s)
        await asyncio.to_thread(_beat, services, comparison_id)


@contextmanager
def kept_alive(services: Services, comparison_id: str) -> Iterator[None]:
    """Beats from a thread of its own while something else takes minutes."""
    ended = threading.Event()

    def beats() -> None:
        while not ended.wait(services.pulse.every_s):
            try:
                _beat(services, comparison_id)
            except QualabError:  # taken over, or no database: what is stored next says so
                return

    thread = threading.Thread(target=beats, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def in_thread(services: PairServices, job: Callable[[], T]) -> T:
    """Runs what uses the harness beside the event loop. A cancellation ends the harness's processes, and so the job."""
    running = asyncio.get_running_loop().run_in_executor(None, job)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            services.harness.stop()
            await asyncio.wait([running], timeout=STOP_EVERY_S)
        running.exception()  # is not missed
        raise


def _beat(services: Services, comparison_id: str) -> None:
    services.store.heartbeat(comparison_id, runner=services.runner, now=services.clock.now())


MAX_GROUP = 2_000


class Recorder:
    """Collects answers; one commit at a time takes whatever has arrived since the last."""

    def __init__(self, store: Store, comparison_id: str) -> None:
        self._store = store
        self._comparison_id = comparison_id
        self._waiting: list[Answer] = []
        self._n_added = 0
        self._n_stored = 0
        self._commit: asyncio.Future[None] | None = None

    async def add(self, answer: Answer) -> None:
        """Returns once the answer is committed, so that a kill loses no more than what is in flight.

        Raises what the store raises.
        """
        self._waiting.append(answer)
        self._n_added += 1
        number = self._n_added
        while self._n_stored < number:
            await self._commit_next()

    async def flush(self) -> None:
        """Commits everything that has arrived; a commit that a cancellation left behind is awaited first.

        Raises what the store raises; answers that it did not take wait for the next flush.
        """
        while self._commit or self._waiting:
            await self._commit_next()

    async def _commit_next(self) -> None:
        """Waits for the commit that is under way, or for a new one."""
        commit = self._commit = self._commit or asyncio.ensure_future(self._commit_group())
        try:
            await asyncio.shield(commit)
        finally:
            if commit.done() and self._commit is commit:  # another may wait for it, and have begun the next
                self._commit = None

    async def _commit_group(self) -> None:
        group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
        try:
            await asyncio.to_thread(self._store.add_answers, self._comparison_id, group)
        except BaseException:
            self._waiting = group + self._waiting
            raise
        self._n_stored += len(group)


PARTS = 3
SMALLEST_TO_PART = 30
"""Items of a task, from which on its first third can be told from its last."""


async def observation_pauses(services: Services, run: Run, arms: Sequence[Arm]) -> list[Pause]:
    """The pauses at which the engines of these arms are looked into; takes the first look."""
    observer = _Observer(services, run, arms)
    await observer.begin()
    if not any(observer.before.values()):
        return []
    looks = run.comparison.plan.looks
    ends = stage_ends(run.items, n_stages=looks.n_looks if looks else 1)
    return [
        Pause(end=stretch.end, then=partial(observer.ended, stretch)) for stretch in stretches(run.items, stages=ends)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Items of one task that are asked one after the other."""

    task: str
    part: int
    end: int


def stretches(items: Sequence[Item], *, stages: Sequence[int]) -> Iterator[Stretch]:
    """`items` task by task, generations in thirds where a task is large enough. `stages` end at these places."""
    totals, seen = Counter(item.task for item in items), Counter[str]()
    start = 0
    for stage_end in stages:
        for (task, kind), block in groupby(items[start:stage_end], key=lambda item: (item.task, item.kind)):
            members = list(block)
            total = totals[task] if kind is RequestKind.GENERATION else 0
            parts = [_part(seen[task] + place, total) for place in range(len(members))]
            seen[task] += len(members)
            for part, run_of in groupby(zip(parts, members, strict=True), key=lambda entry: entry[0]):
                *_, (_, last) = run_of
                yield Stretch(task=task, part=part, end=last.position + 1)
        start = stage_end


def _part(place: int, total: int) -> int:
    return place * PARTS // total if total >= SMALLEST_TO_PART else 0


class _Observer:
    def __init__(self, services: Services, run: Run, arms: Sequence[Arm]) -> None:
        self._services = services
        self._run = run
        self._arms = arms
        self.before: Mapping[ArmName, Counters | None] = {}
        self._sent: Mapping[ArmName, tuple[int, int]] = {}
        self._began_at = services.clock.now()

    async def begin(self) -> None:
        """Takes the counters from which the next stretch counts."""
        self.before = await counters_of(self._run.endpoints)
        self._sent = {arm.name: (arm.tally.attempts, arm.tally.prompt_tokens) for arm in self._arms}
        self._began_at = self._services.clock.now()

    async def ended(self, stretch: Stretch) -> bool:
        """Stores what the stretch that has ended did to the counters."""
        before, sent, began_at = self.before, self._sent, self._began_at
        await self.begin()
        for arm in self._arms:
            attempts, tokens = (now - then for now, then in zip(self._sent[arm.name], sent[arm.name], strict=True))
            if attempts:
                segment = Segment(
                    arm=arm.name,
                    task=stretch.task,
                    part=stretch.part,
                    began_at=began_at,
                    ended_at=self._began_at,
                    before=before[arm.name],
                    after=self.before[arm.name],
                    attempts=attempts,
                    prompt_tokens=tokens,
                )
                await asyncio.to_thread(self._services.store.add_observation, self._run.comparison.id, segment)
        return True


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

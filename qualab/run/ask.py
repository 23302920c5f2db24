"""Asks what is missing: both arms in step, every answer committed as it comes, looks and a noise floor between."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from qualab.analysis.looks import LookData, take_look
from qualab.analysis.samples import Scores, Streams, layout_of, scores_hash
from qualab.analysis.scoring import scores_of, seen_scores
from qualab.analysis.summaries import Unanswered
from qualab.errors import QualabError, RunStopped
from qualab.model.canonical import body_hash, encode_body
from qualab.model.comparison import Look
from qualab.model.engine import Counters, Segment
from qualab.model.items import Answer, Item, Reply, Request, generations, n_requests
from qualab.model.names import AnswerStatus, ArmName, LookDecision, RequestKind
from qualab.model.plan import RequestPolicy
from qualab.model.reason import Reason
from qualab.report.words import ENGLISH
from qualab.run.bank import check_sample, sample_left, sample_of, sample_run
from qualab.run.preflight import counters_of
from qualab.run.prepare import PairServices, Run, stage_ends
from qualab.run.replicas import record_replicas, replica_pauses

if TYPE_CHECKING:
    from qualab.endpoints.replicas import Endpoint

T = TypeVar("T")
AnswerKey = tuple[ArmName, int, int, int]
STOP_EVERY_S = 0.1
MAX_GROUP = 2_000
MIN_FAILURES = 5
MIN_FAILURES_IN_A_ROW = 20
LEAD_PER_SLOT = 2
"""How far one arm may run ahead of the other: this many requests a slot."""


@dataclass(frozen=True, slots=True)
class Job:
    position: int
    choice: int
    repeat: int
    request: Request
    body: bytes
    digest: bytes
    run: int = 0
    """A further run of the baseline, or 0."""


@dataclass(slots=True, kw_only=True, eq=False)
class Arm:
    name: ArmName
    endpoint: Endpoint
    total: int
    concurrency: int = 1
    missing: int = 0
    missing_in_a_row: int = 0
    last_error: str = ""
    attempts: int = 0
    prompt_tokens: int = 0
    is_asked: bool = True
    """False once it was stopped, or its comparison decided, while others are asked."""
    queue: asyncio.Queue[Job | None] = field(init=False)

    def __post_init__(self) -> None:
        self.queue = asyncio.Queue(LEAD_PER_SLOT * self.concurrency)

    def count(self, reply: Reply) -> None:
        """Add one reply. One with reasoning alone came back, so the endpoint lives."""
        self.attempts += reply.attempts
        self.prompt_tokens += reply.prompt_tokens or 0
        if reply.status.is_answer or reply.status is AnswerStatus.NO_FINAL_ANSWER:
            self.missing_in_a_row = 0
            return
        self.missing += 1
        self.missing_in_a_row += 1
        self.last_error = reply.error

    def check(self, policy: RequestPolicy) -> None:
        """Raise RunStopped where this arm fails too often to be asked further."""
        if self.missing > max(MIN_FAILURES, policy.max_failed_share * self.total):
            raise self.stopped(Reason("stopped.many-failures", {"n": self.missing, "total": self.total}))
        if self.missing_in_a_row >= max(MIN_FAILURES_IN_A_ROW, 2 * policy.concurrency):
            raise self.stopped(Reason("stopped.failures-in-a-row", {"n": self.missing_in_a_row}))

    def check_answered(self) -> None:
        """Raise RunStopped where all of the plan failed; a resumed run's part of it is for the analysis to judge."""
        if self.missing == self.total > 0:
            raise self.stopped(Reason("stopped.no-answers", {"total": self.total}))

    def stopped(self, why: Reason) -> RunStopped:
        values = {"arm": self.name, "url": self.endpoint.url, "why": why, "error": self.last_error}
        reason = Reason("stopped.arm-fails", values)
        return RunStopped(ENGLISH.reason(reason), reason=reason)


Pause = tuple[int, Callable[[], Awaitable[bool]]]
"""Before this position the asking waits until everything is stored; then this is done, and says whether to go on."""


async def ask_all(run: Run) -> None:
    """Ask what is missing of the arms. Raises RunStopped when an arm fails too often, and what the store raises."""
    arms, recorder = arms_of(run), _recorder(run)
    jobs, lacks, pauses = jobs_of_plan(run), lacking(answers_there(run)), await pauses_of(run, arms)
    await ask_in_step(run, arms, recorder, feed(run.items, arms, lacks, jobs=jobs, recorder=recorder, pauses=pauses))


def arms_of(run: Run) -> list[Arm]:
    """Make the arms that are served. Raises RunStopped where a bank's sample differed before."""
    plan, again = run.plan, run.plan.n_baseline_runs - 1
    total, more = n_requests(run.items, plan.sampling), n_requests(generations(run.items), plan.sampling) * again
    of_baseline = max(1, len(sample_left(run))) if plan.bank else total + more
    return [
        Arm(
            name=name,
            endpoint=endpoint,
            total=of_baseline if name is ArmName.BASELINE else total,
            concurrency=plan.policy.concurrency,
        )
        for name, endpoint in run.endpoints.items()
    ]


def answers_there(run: Run) -> dict[int, set[AnswerKey]]:
    """Read which answers are stored, by the baseline's run."""
    numbers = {*range(run.plan.n_baseline_runs), sample_run(run.plan)}
    return {number: run.services.store.answered(run.id, run=number) for number in numbers}


def lacking(done: Mapping[int, Container[AnswerKey]]) -> Callable[[Arm, Job | Answer], bool]:
    """Tell which arms a job is for: those that lack its answer among those that are there, by run."""
    return lambda arm, job: (
        (not job.run or arm.name is ArmName.BASELINE)
        and (arm.name, job.position, job.choice, job.repeat) not in done[job.run]
    )


def jobs_of_plan(run: Run) -> Callable[[Item], Iterator[Job]]:
    """Make an item's jobs: both arms', the baseline's further ones that are in the tests, and a bank's sample.

    The sample is asked whole before the first look.
    """
    sample, n_each = sample_left(run), _sample_share(run)

    def jobs(item: Item) -> Iterator[Job]:
        yield from _planned_jobs(run, item)
        if item.kind is RequestKind.GENERATION:
            for number in range(1, run.plan.n_baseline_runs):
                yield from _planned_jobs(run, item, number=number)
        for own in sample[item.position * n_each : (item.position + 1) * n_each]:
            yield next(_planned_jobs(run, own, number=sample_run(run.plan)))

    return jobs


def _sample_share(run: Run) -> int:
    """Items of a bank's sample that are asked with each of the run's."""
    looks = run.plan.looks
    first = stage_ends(run.items, n_stages=looks.n_looks if looks else 1)[0]
    return -(-len(sample_of(run.plan, run.items)) // max(1, first))


def _sample_pauses(run: Run) -> list[Pause]:
    async def agrees() -> bool:
        await in_thread(run.services, partial(check_sample, run))
        return True

    return [(-(-len(sample) // _sample_share(run)), agrees)] if (sample := sample_left(run)) else []


async def pauses_of(run: Run, arms: Sequence[Arm]) -> list[Pause]:
    """Plan all pauses in their order; a bank is checked before anything else is looked at."""
    ends = [end for *_, end in _stretches(run.items, stages=[len(run.items)])]
    seen = [*await observation_pauses(run, arms), *replica_pauses(run, ends)]
    return sorted([*_sample_pauses(run), *seen, *look_pauses(run)], key=lambda pause: pause[0])


async def ask_noise(run: Run) -> None:
    """Ask what is missing of the noise floor: the baseline again, in an order of its own. Raises as `ask_all`.

    Runs that are in the tests have been asked with the arms.
    """
    floor, store = run.plan.noise_floor, run.services.store
    if floor is None or run.plan.n_baseline_runs > 1:
        return
    end = looked_to(store.looks(run.id)) if run.plan.looks else len(run.items)
    items = list(generations(run.items[:end]))
    total = n_requests(items, run.plan.sampling)
    policy, key = replace(run.plan.policy, concurrency=floor.concurrency), run.services.keys.get(ArmName.BASELINE)
    async with run.services.open_endpoint(run.endpoints[ArmName.BASELINE].url, policy=policy, key=key) as endpoint:
        for number in range(1, floor.runs + 1):
            done = store.answered(run.id, run=number)
            if len(done) >= total:
                continue
            run.services.progress.phase(
                f"Noise floor, run {number} of {floor.runs}: "
                f"{total:,} requests to the baseline at concurrency {floor.concurrency}"
            )
            order = list(items)
            random.Random(f"{run.plan.sampling.seed}:noise:{number}").shuffle(order)
            arm = Arm(name=ArmName.BASELINE, endpoint=endpoint, total=total, concurrency=floor.concurrency)
            recorder, jobs = _recorder(run), partial(_planned_jobs, run, number=number)
            run.services.progress.finished()  # of the arms, or the run before
            counts = {"totals": {ArmName.BASELINE: total}, "done": {ArmName.BASELINE: len(done)}}
            run.services.progress.started(run.comparison, **counts)
            feeding = feed(order, [arm], lacking({number: done}), jobs=jobs, recorder=recorder)
            await ask_in_step(run, [arm], recorder, feeding)
            await record_replicas(run, {ArmName.BASELINE: endpoint})


async def feed(
    items: Sequence[Item],
    arms: Sequence[Arm],
    lacks: Callable[[Arm, Job], bool],
    *,
    jobs: Callable[[Item], Iterable[Job]],
    recorder: Recorder[Any],
    pauses: Sequence[Pause] = (),
) -> None:
    """Hand each job to the arms that lack its answer, in step; which arm is given an item first alternates."""
    start = 0
    for end, then in (*pauses, (len(items), None)):
        for item in items[start:end]:
            for job in jobs(item):
                for arm in [arm for arm in arms if lacks(arm, job)][:: 1 if item.position % 2 == 0 else -1]:
                    if arm.is_asked:  # still, after the others had room
                        await arm.queue.put(job)
        start = end
        if then:
            for arm in arms:
                if arm.is_asked:
                    await arm.queue.join()
            await recorder.flush()
            if not await then():
                break
    for arm in arms:
        for _ in range(arm.concurrency):
            await arm.queue.put(None)


def jobs_of(item: Item, *, seed: int, repeats: int = 1) -> Iterator[Job]:
    """Make the jobs of an item; repeat r is asked with seed + r."""
    for repeat in range(repeats):
        for request in item.requests:
            body = encode_body(request.payload, seed=seed + repeat)
            yield Job(item.position, request.choice, repeat, request, body, body_hash(body))


def _planned_jobs(run: Run, item: Item, *, number: int = 0) -> Iterator[Job]:
    jobs = jobs_of(item, seed=run.plan.sampling.seed, repeats=run.plan.sampling.repeats)
    return (replace(job, run=number) for job in jobs)


def _recorder(run: Run) -> Recorder[Answer]:
    return Recorder(partial(run.services.store.add_answers, run.id))


@contextmanager
def own_error() -> Iterator[None]:
    """Raise the first of a task group's errors in its place, qualab's own before others."""
    try:
        yield
    except BaseExceptionGroup as errors:
        error: BaseException = errors.subgroup(QualabError) or errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from errors


async def ask_in_step(
    run: Run, arms: Sequence[Arm], recorder: Recorder[Answer], feeding: Coroutine[Any, Any, None]
) -> None:
    """Ask what a feeder puts into the arms' queues, and record it, with heartbeats. Raises as `ask_all`."""
    await at_once([run], recorder, [feeding, *(work(arm, recorder.add, run) for arm in arms)])
    for arm in arms:
        arm.check_answered()


async def at_once(runs: Sequence[Run], recorder: Recorder[Any], asking: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Ask with heartbeats, and record what has arrived whatever comes of it."""
    try:
        with own_error():
            async with asyncio.TaskGroup() as group:
                beats = [group.create_task(beat(run)) for run in runs]
                async with asyncio.TaskGroup() as tasks:
                    for job in asking:
                        tasks.create_task(job)
                for beating in beats:
                    beating.cancel()
    finally:
        await recorder.flush()


async def work(arm: Arm, add: Callable[[Answer], Awaitable[None]], run: Run) -> None:
    """Ask an arm what its queue holds, and `add` each answer. Raises RunStopped where it fails too often."""
    with own_error():
        async with asyncio.TaskGroup() as workers:
            for _ in range(arm.concurrency):
                workers.create_task(_work(arm, add, run))


async def _work(arm: Arm, add: Callable[[Answer], Awaitable[None]], run: Run) -> None:
    policy, on_wait = run.plan.policy, partial(run.services.progress.waiting, arm.name)
    while (job := await arm.queue.get()) is not None:
        reply = await arm.endpoint.ask(job.request, job.body, on_wait=on_wait)
        await add(
            Answer(
                arm=arm.name,
                position=job.position,
                choice=job.choice,
                repeat=job.repeat,
                request_hash=job.digest,
                reply=reply,
                run=job.run,
            )
        )
        arm.count(reply)
        run.services.progress.answered(arm.name, reply)
        arm.check(policy)
        arm.queue.task_done()


async def beat(run: Run) -> None:
    """Send heartbeats until cancelled. Raises ComparisonBusy when another process has taken over."""
    while True:
        await asyncio.sleep(run.services.heartbeat.every_s)
        await asyncio.to_thread(_heartbeat, run)


def _heartbeat(run: Run) -> None:
    run.services.store.heartbeat(run.id, runner=run.services.runner, now=run.services.clock.now())


@contextmanager
def kept_alive(run: Run) -> Iterator[None]:
    """Send heartbeats from a thread of its own while something else takes minutes."""
    ended = threading.Event()

    def beats() -> None:
        while not ended.wait(run.services.heartbeat.every_s):
            try:
                _heartbeat(run)
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
    """Run what uses the harness beside the event loop. A cancellation ends the harness's processes, and so the job."""
    running = asyncio.get_running_loop().run_in_executor(None, job)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            services.harness.stop()
            await asyncio.wait([running], timeout=STOP_EVERY_S)
        running.exception()  # is not missed
        raise


class Recorder(Generic[T]):
    """Collects answers; one commit at a time takes whatever has arrived since the last."""

    def __init__(self, put: Callable[[Sequence[T]], object]) -> None:
        """`put` commits a group, in a thread."""
        self._put = put
        self._waiting: list[T] = []
        self._n_added = 0
        self._n_stored = 0
        self._commit: asyncio.Future[None] | None = None

    async def add(self, answer: T) -> None:
        """Return once the answer is committed: a kill loses only what is in flight. Raises what the store raises."""
        self.hold(answer)
        await self.stored()

    def hold(self, answer: T) -> None:
        """Take an answer that is committed with the next."""
        self._waiting.append(answer)
        self._n_added += 1

    async def stored(self) -> None:
        """Return once everything taken so far is committed. Raises what the store raises."""
        number = self._n_added
        while self._n_stored < number:
            await self._commit_next()

    async def flush(self) -> None:
        """Commit everything that has arrived; a commit that a cancellation left behind is awaited first.

        Raises what the store raises; answers that it did not take wait for the next flush.
        """
        while self._commit or self._waiting:
            await self._commit_next()

    async def _commit_next(self) -> None:
        commit = self._commit = self._commit or asyncio.ensure_future(self._commit_group())
        try:
            await asyncio.shield(commit)
        finally:
            if commit.done() and self._commit is commit:  # another may wait for it, and have begun the next
                self._commit = None

    async def _commit_group(self) -> None:
        group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
        try:
            await asyncio.to_thread(self._put, group)
        except BaseException:
            self._waiting = group + self._waiting
            raise
        self._n_stored += len(group)


N_PARTS = 3
SMALLEST_TO_PART = 30
"""Items of a task, from which on its first third can be told from its last."""


def _stretches(items: Sequence[Item], *, stages: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """Yield task, part and end of what is asked in one go: large tasks' generations in thirds."""
    totals, seen = Counter(item.task for item in items), Counter[str]()
    for start, end in zip((0, *stages), stages, strict=False):
        for (task, kind), block in groupby(items[start:end], key=lambda item: (item.task, item.kind)):
            total = totals[task] if kind is RequestKind.GENERATION else 0
            ends: dict[int, int] = {}
            for item in block:
                part = seen[task] * N_PARTS // total if total >= SMALLEST_TO_PART else 0
                ends[part] = item.position + 1
                seen[task] += 1
            yield from ((task, part, end) for part, end in ends.items())


async def observation_pauses(run: Run, arms: Sequence[Arm]) -> list[Pause]:
    """Plan pauses in which engines' counters are read, none where all are closed; reads them a first time."""
    clock, looks = run.services.clock, run.plan.looks

    async def look() -> tuple[datetime, Mapping[ArmName, Counters | None], Mapping[ArmName, tuple[int, int]]]:
        counters = await counters_of(run.endpoints)
        return clock.now(), counters, {arm.name: (arm.attempts, arm.prompt_tokens) for arm in arms}

    last = await look()
    if not any(last[1].values()):
        return []

    async def ended(task: str, part: int) -> bool:
        nonlocal last
        (began_at, before, sent), last = last, await look()
        for arm in arms:
            attempts, tokens = (now - then for now, then in zip(last[2][arm.name], sent[arm.name], strict=True))
            if attempts:
                segment = Segment(
                    arm=arm.name,
                    task=task,
                    part=part,
                    began_at=began_at,
                    ended_at=last[0],
                    before=before[arm.name],
                    after=last[1][arm.name],
                    attempts=attempts,
                    prompt_tokens=tokens,
                )
                await asyncio.to_thread(run.services.store.add_observation, run.id, segment)
        return True

    ends = stage_ends(run.items, n_stages=looks.n_looks if looks else 1)
    return [(end, partial(ended, task, part)) for task, part, end in _stretches(run.items, stages=ends)]


def look_pauses(run: Run) -> list[Pause]:
    """Plan a pause for each look. One that is stored is never taken again: a resumed run obeys it."""
    looks, services = run.plan.looks, run.services
    if looks is None:
        return []
    ends = stage_ends(run.items, n_stages=looks.n_looks)
    taken, again = list(services.store.looks(run.id)), range(1, run.plan.n_baseline_runs)
    scores, unanswered, unscored = Scores(), Unanswered(), list(zip((0, *ends), ends, strict=False))
    scores.again = tuple(Scores() for _ in again)

    def look(number: int) -> Look:
        with kept_alive(run):
            while looks.n_looks - len(unscored) < number:  # stage by stage, so that a resumed run reads the same scores
                stage = range(*unscored.pop(0))
                for score in seen_scores(services.store, run.id, run.tasks, run.items, unanswered.add, positions=stage):
                    scores.add(score, run.items[score.position].task)
                for further_run, further in zip(again, scores.again, strict=True):
                    answers = services.store.answers(run.id, arm=ArmName.BASELINE, run=further_run, positions=stage)
                    for score in scores_of(answers, run.tasks, run.items):
                        further.add(score, run.items[score.position].task)
            items = run.items[: ends[number - 1]]
            layout = layout_of(run.plan, items, left_out=unanswered.same_in_both)
            data = LookData(
                plan=run.plan,
                looks=looks,
                scores=scores,
                layout=layout,
                streams=Streams.of(run.comparison.plan_hash),
                number=number,
                before=taken,
            )
            return take_look(data, n_items=len(items), input_hash=scores_hash(scores, layout).hexdigest())

    async def goes_on(number: int) -> bool:
        if number > len(taken):
            new = await in_thread(services, partial(look, number))
            services.store.add_look(run.id, new, now=services.clock.now())
            taken.append(new)
            run.services.progress.phase(
                f"Look {number} of {looks.n_looks} after {new.n_items:,} of {len(run.items):,} items: {new.decision}"
            )
        return taken[number - 1].decision is LookDecision.CONTINUE

    return [(end, partial(goes_on, number)) for number, end in enumerate(ends, start=1)]


def looked_to(looks: Sequence[Look]) -> int:
    """Return the position from which on items may be asked again: none that has been looked at."""
    return looks[-1].n_items if looks else 0

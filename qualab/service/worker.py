"""What nobody attends to any more is given to another worker: of workers that are gone, and what never got there."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from qualab.errors import (
    ComparisonBusy,
    ComparisonNotFound,
    QualabError,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreReadOnly,
    VersionConflict,
    WorkersLost,
)
from qualab.model.comparison import Comparison
from qualab.model.items import Reply
from qualab.model.names import ArmName, ComparisonStatus
from qualab.model.ports import Delivery, Progress, Queue
from qualab.model.registry import UNDER_WAY, Submission, SubmissionStatus
from qualab.run.preflight import Keys
from qualab.run.run import resume, start
from qualab.service.context import ComparisonRequest, Context, take_hosts

MOST_TAKEOVERS = 3
"""In a row without one more answer: what kills its workers ends, and does not kill all of them for ever."""
HALTED = (ComparisonStatus.INTERRUPTED, ComparisonStatus.STOPPED, ComparisonStatus.FINISHED)
log = logging.getLogger("qualab.worker")


def sweep(context: Context, queue: Queue, *, living: Collection[str]) -> int:
    """Puts every submission into the queue that is neither there nor with a living worker; says how many they were.

    One whose workers are lost again and again, without an answer, fails instead. Any number of workers may do this at
    once: a submission's version lets one of them have it. Submissions are read first: one that comes to its end
    meanwhile has another version then.
    """
    submissions = context.registry.submissions(*UNDER_WAY)
    held = queue.held()
    n_found = 0
    for submission in submissions:
        its = [delivery for delivery in held if delivery.comparison_id == submission.id]
        if not _is_attended(submission, its, living):
            n_found += _again(context, queue, submission, its)
    _forget(context, queue, held, living, known={submission.id for submission in submissions})
    queue.forget_ended()
    return n_found


def _is_attended(submission: Submission, its: Sequence[Delivery], living: Collection[str]) -> bool:
    is_queued = submission.status is SubmissionStatus.QUEUED
    meant = [one for one in its if one.version in _versions(submission)]
    return any(one.worker in living if one.worker else is_queued for one in meant)


def _versions(submission: Submission) -> tuple[int, ...]:
    """Of the deliveries that it may have been taken with."""
    is_queued = submission.status is SubmissionStatus.QUEUED
    return (submission.version,) if is_queued else (submission.version - 1, submission.version)


def _again(context: Context, queue: Queue, submission: Submission, its: Sequence[Delivery]) -> bool:
    lost = next((one.worker for one in its if one.worker and one.version in _versions(submission)), "")
    changed = _taken_over(context, submission) if lost else leave(context, submission, SubmissionStatus.QUEUED)
    if changed is None:
        return False
    if changed.takeovers > MOST_TAKEOVERS:
        _give_up(context, changed, lost)
        return False
    last = max(its, key=lambda one: (one.version, one.turn), default=None)
    retry_failed = last is not None and last.retry_failed
    queue.put(Delivery(comparison_id=changed.id, version=changed.version, retry_failed=retry_failed))
    log.warning("comparison %s: %s; queued again", submission.id, f"{lost} is gone" if lost else "nobody had it")
    return True


def _taken_over(context: Context, submission: Submission) -> Submission | None:
    """None where it has changed since it was read, or is deleted."""
    with suppress(VersionConflict, ComparisonNotFound):
        return context.registry.take_over(submission.id, version=submission.version)
    return None


def _give_up(context: Context, submission: Submission, lost: str) -> None:
    error = WorkersLost(
        f"One worker after another was lost while it ran this, {submission.takeovers} in a row without one more answer"
        + (f", the last one {lost}" if lost else ""),
        hint=f"Look into the workers' logs (killed for memory?), then POST /v1/comparisons/{submission.id}/resume",
    )
    log.error("comparison %s: %s", submission.id, error.message)
    leave(context, submission, SubmissionStatus.FAILED, error=said(error))


def _forget(
    context: Context, queue: Queue, held: Sequence[Delivery], living: Collection[str], *, known: Collection[str]
) -> None:
    """What dead workers had, of comparisons that have ended: before, a worker that was only stopped may end it."""
    for one in held:
        if one.worker and one.worker not in living and one.comparison_id not in known and _is_halted(context, one):
            queue.drop(one)


def _is_halted(context: Context, one: Delivery) -> bool:
    """Whether the comparison does not look as if it ran. One that its worker left so is halted, once its claim is
    stale."""
    found = stored_of(context, one.comparison_id)
    if found is None or found.status in HALTED:
        return True
    submission = context.registry.submission(one.comparison_id)
    reason = submission.error.get("message", "") if submission else ""
    status = ComparisonStatus.STOPPED if reason else ComparisonStatus.INTERRUPTED
    services = context.services
    store, runner, now = services.store, services.runner, services.clock.now()
    with suppress(ComparisonNotFound):  # deleted meanwhile
        try:
            store.claim(found.id, runner=runner, now=now, stale_after_s=services.pulse.stale_after_s)
        except ComparisonBusy:
            return False
        if store.get(found.id).status not in HALTED:  # nobody changes it any more
            store.set_status(found.id, status, now=now, stop_reason=reason)
        store.release(found.id, runner=runner)
    return True


T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
MOST_FAILURES = 100
"""Of the database, in one run: a quarter of an hour without it, at least."""
LASTING = (SchemaMismatch, StoreFull, StoreReadOnly)
"""What waiting does not cure."""


class NullProgress:
    """A `Progress` that nobody watches: what it would say can be read from the database."""

    def started(
        self, comparison: Comparison, *, totals: Mapping[ArmName, int], done: Mapping[ArmName, int]
    ) -> None: ...

    def answered(self, arm: ArmName, reply: Reply) -> None: ...

    def waiting(self, arm: ArmName, seconds: float) -> None: ...

    def phase(self, text: str) -> None: ...

    def finished(self) -> None: ...


async def carry_out(
    context: Context, comparison_id: str, *, progress: Progress, retry_failed: bool = False, version: int | None = None
) -> bool:
    """Runs a queued submission to its end, from where it is; what kept it from that stands in its error afterwards.

    False where a host that it needs is taken: it is queued still. Does nothing for what is not queued, or, with a
    `version`, has changed since. A cancellation gives it back to the queue, unless it was the submission's own. While
    the database is away it waits; it stops without a trace where another runner has taken over.
    """
    mine = await _persistently(lambda: _taken(context, comparison_id, version))
    if not isinstance(mine, tuple):
        return mine
    submission, request = mine
    try:
        error = await _to_the_end(context, submission, request, progress, retry_failed=retry_failed)
        status = SubmissionStatus.FAILED if error else SubmissionStatus.DONE
        await _persistently(lambda: leave(context, submission, status, error=error))
    except _TakenOver:
        log.warning("comparison %s: another worker has taken over", comparison_id)
    except asyncio.CancelledError:
        with suppress(StoreError):  # a worker that finds it unattended gives it back
            leave(context, submission, SubmissionStatus.QUEUED)
        raise
    finally:
        _let_go(context, comparison_id)
    return True


def leave(
    context: Context, submission: Submission, status: SubmissionStatus, *, error: Mapping[str, str] | None = None
) -> Submission | None:
    """Changes the status; nothing where it has changed since the submission was read, or is deleted."""
    with suppress(VersionConflict, ComparisonNotFound):
        return context.registry.set_submission(submission.id, status, error=error, version=submission.version)
    return None


def said(error: QualabError) -> dict[str, str]:
    """As a submission keeps it."""
    return {"code": error.code, "message": error.message, "hint": error.hint}


def keys_of(context: Context, request: ComparisonRequest) -> Keys:
    """The keys that the references lead to, in memory only. Raises SecretForbidden."""
    return {arm: context.secrets.read(request.keys[arm]) if arm in request.keys else None for arm in ArmName}


class _TakenOver(Exception):
    """Somebody else has changed the submission."""


def _taken(context: Context, comparison_id: str, version: int | None) -> tuple[Submission, ComparisonRequest] | bool:
    """The submission, RUNNING from now on; otherwise what `carry_out` returns."""
    submission = context.registry.submission(comparison_id)
    if submission is None or submission.status is not SubmissionStatus.QUEUED:
        return True
    if version is not None and version != submission.version:
        return True
    try:
        request = context.read_document(submission.experiment)
        if not take_hosts(context, submission, request):
            return False
    except StoreError:
        raise
    except QualabError as error:
        leave(context, submission, SubmissionStatus.FAILED, error=said(error))
        return True
    running = leave(context, submission, SubmissionStatus.RUNNING)
    if running is None:
        _let_go(context, comparison_id)
    return (running, request) if running else True


async def _to_the_end(
    context: Context, submission: Submission, request: ComparisonRequest, progress: Progress, *, retry_failed: bool
) -> Mapping[str, str] | None:
    """What kept it from its end: code, message and hint; None if nothing did. Raises _TakenOver."""
    pauses = _Pauses()
    while True:
        try:
            _check_own(context, submission)
            await _run(context, submission, request, progress, retry_failed=retry_failed)
        except _TakenOver:
            raise
        except ComparisonBusy as busy:  # by a runner that may be dead, or may have taken over
            log.info("%s", busy.message)
            await asyncio.sleep(FIRST_PAUSE_S)
        except StoreError as error:
            if not await pauses.after(error):
                return said(error)
        except QualabError as error:
            return said(error)
        except Exception as error:
            log.exception("comparison %s failed unexpectedly", submission.id)
            return {"code": "error", "message": f"qualab failed: {error!r}", "hint": "This is a bug: see the log"}
        else:
            return None


async def _run(
    context: Context, submission: Submission, request: ComparisonRequest, progress: Progress, *, retry_failed: bool
) -> None:
    keys = keys_of(context, request)
    stored = stored_of(context, submission.id)
    if stored is None:
        frozen = request.frozen.plan if request.frozen else None
        await start(
            context.services,
            request.experiment,
            keys=keys,
            progress=progress,
            frozen=frozen,
            comparison_id=submission.id,
            asked_at=submission.created_at,
        )
    elif stored.status is not ComparisonStatus.FINISHED or retry_failed:
        _claim(context, submission.id)
        await resume(context.services, submission.id, keys=keys, progress=progress, retry_failed=retry_failed)


def _check_own(context: Context, submission: Submission) -> None:
    """Raises _TakenOver."""
    now = context.registry.submission(submission.id)
    if now is None or now.version != submission.version:
        raise _TakenOver


def _claim(context: Context, comparison_id: str) -> None:
    """Raises ComparisonBusy, before anything is loaded or asked."""
    services = context.services
    stale_after_s = services.pulse.stale_after_s
    services.store.claim(comparison_id, runner=services.runner, now=services.clock.now(), stale_after_s=stale_after_s)


def stored_of(context: Context, comparison_id: str) -> Comparison | None:
    """None where there is no comparison yet."""
    try:
        return context.services.store.get(comparison_id)
    except ComparisonNotFound:
        return None


def _let_go(context: Context, comparison_id: str) -> None:
    """Gives back what is held, and held no more where somebody else has it."""
    runner = context.services.runner
    with suppress(StoreError):  # it falls away by itself
        context.registry.release_hosts(comparison_id, runner=runner)
        with suppress(ComparisonNotFound):
            context.services.store.release(comparison_id, runner=runner)


class _Pauses:
    """Ever longer, while the database is away."""

    def __init__(self) -> None:
        self._n_failures = 0

    async def after(self, error: StoreError) -> bool:
        """Waits; False where that is in vain."""
        self._n_failures += 1
        if isinstance(error, LASTING) or self._n_failures > MOST_FAILURES:
            return False
        log.warning("%s", error.message)
        await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (self._n_failures - 1), LONGEST_PAUSE_S))
        return True


async def _persistently(call: Callable[[], T]) -> T:
    """Calls again where the database is away."""
    pauses = _Pauses()
    while True:
        try:
            return call()
        except StoreError as error:
            if not await pauses.after(error):
                raise


WITHOUT_END_S = 365 * 86_400.0


class Job:
    """One delivery that is being carried out, in a thread of its own."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[bool] | None = None
        self.is_ended = False

    def run(self, context: Context, runner: asyncio.Runner) -> bool:
        """False where it has to wait for a host. Raises CancelledError."""
        return runner.run(self._carry_out(context))

    def end(self) -> None:
        """From any thread: gives it back."""
        self.is_ended = True
        if self._loop is not None and self._task is not None and not self._task.done():
            with suppress(RuntimeError):  # it ends at this moment
                self._loop.call_soon_threadsafe(self._task.cancel)

    async def _carry_out(self, context: Context) -> bool:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self.is_ended:
            raise asyncio.CancelledError
        one = self.delivery
        return await carry_out(
            context, one.comparison_id, progress=NullProgress(), retry_failed=one.retry_failed, version=one.version
        )


class Worker:
    """`begin`, `watch`, then `deliver` from any thread, `close`, `leave`."""

    def __init__(
        self,
        context: Context,
        queue: Queue,
        *,
        sweep_s: float,
        host_wait_s: float,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
        set_clock: Callable[[], None] = lambda: None,
    ) -> None:
        self._context = context
        self._queue = queue
        self._sweep_s = sweep_s
        self._host_wait_s = host_wait_s
        self._new_loop = new_loop
        self._set_clock = set_clock
        self._jobs: set[Job] = set()
        self._lock = threading.Lock()
        self._is_free = threading.Lock()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="worker", daemon=True)
        self._heard_since_s: float | None = None
        self._missed_since_s: dict[Delivery, float] = {}

    def begin(self) -> None:
        """Says that it lives, which goes before everything else. Raises StoreError."""
        self._beat()

    def watch(self) -> None:
        """Looks after the queue from now on: it is there."""
        self._thread.start()

    def deliver(self, delivery: Delivery) -> None:
        """Returns when it has come to its end, was put off or given back. One runs at a time: what is delivered
        meanwhile, because the queue counts what runs a moment late, is put off."""
        job = Job(delivery)
        try:
            if not self._is_free.acquire(blocking=False):
                self._put_off(delivery)
                return
            try:
                self._run(job)
            finally:
                self._is_free.release()
        except asyncio.CancelledError:
            self._context.jobs.resume(delivery.comparison_id, retry_failed=delivery.retry_failed)
        except StoreError as error:  # whoever sweeps next finds it
            log.warning("comparison %s: %s", delivery.comparison_id, error.message)

    def close(self) -> None:
        """Gives back what is under way. What is delivered from now on is given back, too."""
        with self._lock:
            self._is_closing.set()
            jobs = list(self._jobs)
        for job in jobs:
            job.end()

    def leave(self) -> None:
        """Nothing is under way any more: nobody need wait for a sign of life."""
        if self._thread.is_alive():
            self._thread.join(10.0)
        try:
            self._context.registry.drop_worker(self._context.services.runner)
        except StoreError as error:
            log.warning("%s", error.message)

    def _run(self, job: Job) -> None:
        with self._lock:
            self._jobs.add(job)
            if self._is_closing.is_set():
                job.end()
        try:
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                if not job.run(self._context, runner):
                    self._put_off(job.delivery)
        finally:
            with self._lock:
                self._jobs.discard(job)

    def _put_off(self, delivery: Delivery) -> None:
        self._queue.put(replace(delivery, turn=delivery.turn + 1, worker=""), delay_s=self._host_wait_s)

    def _look_after(self) -> None:
        pulse, clock = self._context.services.pulse, self._context.services.clock
        next_sweep_s = clock.monotonic_s()
        while not self._is_closing.is_set():
            try:
                self._beat()
                self._check_jobs()
                if clock.monotonic_s() >= next_sweep_s:
                    self._sweep()
                    next_sweep_s = clock.monotonic_s() + self._sweep_s
            except StoreError as error:
                self._heard_since_s = None
                log.warning("%s", error.message)
            except Exception:  # it must go on saying that it lives
                log.exception("looking after the queue failed")
            self._is_closing.wait(pulse.every_s / 2)

    def _beat(self) -> None:
        self._set_clock()
        clock = self._context.services.clock
        self._context.registry.see_worker(self._context.services.runner, now=clock.now())
        if self._heard_since_s is None:
            self._heard_since_s = clock.monotonic_s()

    def _check_jobs(self) -> None:
        """Ends those that were cancelled or taken over, and those whose hosts another has."""
        with self._lock:
            jobs = list(self._jobs)
        for job in jobs:
            if not job.is_ended and not self._is_wanted(job.delivery):
                log.warning("comparison %s: cancelled, or taken over; this worker ends it", job.delivery.comparison_id)
                job.end()

    def _is_wanted(self, delivery: Delivery) -> bool:
        registry, services = self._context.registry, self._context.services
        found = registry.submission(delivery.comparison_id)
        if found is None or found.version > delivery.version + 1:
            return False
        if found.version == delivery.version:  # not taken yet
            return True
        return registry.renew_hosts(delivery.comparison_id, runner=services.runner, now=services.clock.now())

    def _sweep(self) -> None:
        services = self._context.services
        self._drop_missed()
        living = self._context.registry.workers(now=services.clock.now(), stale_after_s=self._patience_s())
        sweep(self._context, self._queue, living=living)

    def _drop_missed(self) -> None:
        """What the queue gave to this worker and never came: the database went away in between. Then nobody has it."""
        now_s = self._context.services.clock.monotonic_s()
        with self._lock:
            here = {job.delivery for job in self._jobs}
        mine = {one for one in self._queue.held() if one.worker == self._context.services.runner}
        self._missed_since_s = {one: self._missed_since_s.get(one, now_s) for one in mine - here}
        for one, since_s in self._missed_since_s.items():
            if now_s - since_s > self._context.services.pulse.stale_after_s:
                log.warning("comparison %s: the queue gave it to this worker, but it never came", one.comparison_id)
                self._queue.drop(one)

    def _patience_s(self) -> float:
        """After the database was away, all get the time to say that they live before they are given up."""
        services = self._context.services
        since_s = self._heard_since_s
        heard_s = 0.0 if since_s is None else services.clock.monotonic_s() - since_s
        stale_after_s = services.pulse.stale_after_s
        return stale_after_s if heard_s >= stale_after_s else WITHOUT_END_S

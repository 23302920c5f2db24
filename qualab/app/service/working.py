"""A worker: says that it lives, carries out what the queue hands to it, and looks after what others left behind."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from qualab.app.service.desk import Desk
from qualab.app.service.running import Unseen, carry_out
from qualab.app.service.sweeping import sweep
from qualab.errors import StoreError
from qualab.ports import Delivery, Queue

WITHOUT_END_S = 365 * 86_400.0
log = logging.getLogger("qualab.worker")


class Job:
    """One delivery that is being carried out, in a thread of its own."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[bool] | None = None
        self.is_ended = False

    def run(self, desk: Desk, runner: asyncio.Runner) -> bool:
        """False where it has to wait for a host. Raises CancelledError."""
        return runner.run(self._carry_out(desk))

    def end(self) -> None:
        """From any thread: gives it back."""
        self.is_ended = True
        if self._loop is not None and self._task is not None and not self._task.done():
            with suppress(RuntimeError):  # it ends at this moment
                self._loop.call_soon_threadsafe(self._task.cancel)

    async def _carry_out(self, desk: Desk) -> bool:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self.is_ended:
            raise asyncio.CancelledError
        one = self.delivery
        return await carry_out(
            desk, one.comparison_id, progress=Unseen(), retry_failed=one.retry_failed, version=one.version
        )


class Worker:
    """`begin`, `watch`, then `deliver` from any thread, `close`, `leave`."""

    def __init__(
        self,
        desk: Desk,
        queue: Queue,
        *,
        sweep_s: float,
        host_wait_s: float,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
        set_clock: Callable[[], None] = lambda: None,
    ) -> None:
        self._desk = desk
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
            self._desk.jobs.resume(delivery.comparison_id, retry_failed=delivery.retry_failed)
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
            self._desk.registry.drop_worker(self._desk.services.runner)
        except StoreError as error:
            log.warning("%s", error.message)

    def _run(self, job: Job) -> None:
        with self._lock:
            self._jobs.add(job)
            if self._is_closing.is_set():
                job.end()
        try:
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                if not job.run(self._desk, runner):
                    self._put_off(job.delivery)
        finally:
            with self._lock:
                self._jobs.discard(job)

    def _put_off(self, delivery: Delivery) -> None:
        self._queue.put(replace(delivery, turn=delivery.turn + 1, worker=""), delay_s=self._host_wait_s)

    def _look_after(self) -> None:
        pulse, clock = self._desk.services.pulse, self._desk.services.clock
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
        clock = self._desk.services.clock
        self._desk.registry.see_worker(self._desk.services.runner, now=clock.now())
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
        registry, services = self._desk.registry, self._desk.services
        found = registry.submission(delivery.comparison_id)
        if found is None or found.version > delivery.version + 1:
            return False
        if found.version == delivery.version:  # not taken yet
            return True
        return registry.renew_hosts(delivery.comparison_id, runner=services.runner, now=services.clock.now())

    def _sweep(self) -> None:
        services = self._desk.services
        self._drop_missed()
        living = self._desk.registry.workers(now=services.clock.now(), stale_after_s=self._patience_s())
        sweep(self._desk, self._queue, living=living)

    def _drop_missed(self) -> None:
        """What the queue gave to this worker and never came: the database went away in between. Then nobody has it."""
        now_s = self._desk.services.clock.monotonic_s()
        with self._lock:
            here = {job.delivery for job in self._jobs}
        mine = {one for one in self._queue.held() if one.worker == self._desk.services.runner}
        self._missed_since_s = {one: self._missed_since_s.get(one, now_s) for one in mine - here}
        for one, since_s in self._missed_since_s.items():
            if now_s - since_s > self._desk.services.pulse.stale_after_s:
                log.warning("comparison %s: the queue gave it to this worker, but it never came", one.comparison_id)
                self._queue.drop(one)

    def _patience_s(self) -> float:
        """After the database was away, all get the time to say that they live before they are given up."""
        services = self._desk.services
        since_s = self._heard_since_s
        heard_s = 0.0 if since_s is None else services.clock.monotonic_s() - since_s
        stale_after_s = services.pulse.stale_after_s
        return stale_after_s if heard_s >= stale_after_s else WITHOUT_END_S

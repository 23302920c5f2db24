"""Compute plans in the service: callers in turn, tasks kept for a while, and nothing waited for endlessly."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from qualab.errors import ScoringTimedOut, StillLoading, TooManyRequests
from qualab.harness.process import Harness, LoadedTasks
from qualab.model.canonical import canonical_json
from qualab.model.ports import TaskOptions
from qualab.planning.suite import Given, Pilot, Planning, plan_comparison
from qualab.run.prepare import make_plan, task_options
from qualab.settings import Settings

KEPT_S = 300.0
"""Data of the service's machine may change: then a plan is computed anew."""
TASKS_KEPT_S = 60.0
"""Loaded tasks are most of the memory."""
KEPT_TASKS = 3
KEPT_PLANS = 256
AT_ONCE = 2
MOST_WAITING = 4
"""Plans of one caller."""
NO_PLACES: Mapping[str, Any] = {
    "baseline": "",
    "candidate": "",
    "label": "",
    "checkpoint": None,
    "pods": {},
    "containers": {},
}
"""What decides nothing in a plan."""
RETRY_AFTER_S = 5
PAGES = "pages"
"""The caller who stands for all pages of items."""
T = TypeVar("T")


class Planner:
    """Compute what items can prove. Two plans are computed at once, and of each caller one."""

    def __init__(
        self,
        harness: Harness,
        *,
        timeout_s: float = 30.0,
        max_tasks: int = 250,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._harness = harness
        self._timeout_s = timeout_s
        self._max_tasks = max_tasks
        self._monotonic_s = monotonic_s
        self._lock = threading.RLock()
        self._at_once = threading.Semaphore(AT_ONCE)
        self._threads: dict[str, ThreadPoolExecutor] = {}
        """One of each caller who waits, so that none keeps another waiting."""
        self._n_waiting: Counter[str] = Counter()
        self._plans: OrderedDict[str, tuple[float, Future[Any]]] = OrderedDict()
        self._tasks: OrderedDict[str, tuple[float, LoadedTasks]] = OrderedDict()
        """By their options, with the time of loading; not those that are in use."""

    def planned(
        self,
        experiment: Settings,
        given: Given,
        pilot: Pilot | None = None,
        *,
        checkpoint_hash: str = "",
        caller: str = "",
        most_tasks: int | None = None,
    ) -> Planning:
        """Raises what loading and planning raise, TooManyTasks; StillLoading where that takes longer than may be
        waited for, or the caller has too many plans waiting."""
        plain = experiment.model_copy(update=NO_PLACES)
        options = replace(task_options(plain), most_tasks=min(self._max_tasks, most_tasks or self._max_tasks))
        key = canonical_json([plain, options, given, pilot, checkpoint_hash])

        def plan() -> Planning:
            with self._loaded(options) as tasks:
                frozen = make_plan(plain, tasks, checkpoint_hash=checkpoint_hash)
                return plan_comparison(frozen, tasks.render(), given, pilot, missing=plain.expected_missing)

        return self._result(key, caller, plan, names=experiment.tasks, timeout_s=self._timeout_s)

    def with_tasks(self, options: TaskOptions, job: Callable[[LoadedTasks], T], *, name: str, timeout_s: float) -> T:
        """What `job`, which `name` tells from others, makes of these tasks. Raises what loading and the job raise;
        StillLoading where that takes longer than this, and goes on."""
        key = canonical_json(["tasks", options, name])

        def with_loaded() -> T:
            with self._loaded(options) as tasks:
                return job(tasks)

        found = self._result(key, PAGES, with_loaded, names=options.names, timeout_s=timeout_s)
        with self._lock:
            self._plans.pop(key, None)  # a page is shown once
        return found

    def close(self) -> None:
        """Begins nothing more."""
        with self._lock:
            for thread in self._threads.values():
                thread.shutdown(wait=False, cancel_futures=True)

    def _result(self, key: str, caller: str, job: Callable[[], T], *, names: tuple[str, ...], timeout_s: float) -> T:
        try:
            return self._begun(key, caller, job).result(timeout_s)
        except TimeoutError as exc:
            raise StillLoading(
                f"The tasks {', '.join(names)} are still being loaded",
                hint="The same request succeeds in a moment",
                retry_after_s=RETRY_AFTER_S,
            ) from exc

    def _begun(self, key: str, caller: str, job: Callable[[], T]) -> Future[T]:
        with self._lock:
            now = self._monotonic_s()
            kept = self._plans.get(key)
            if kept is not None and now - kept[0] < KEPT_S and not _has_failed(kept[1]):
                return kept[1]
            if self._n_waiting[caller] > MOST_WAITING:
                raise TooManyRequests(
                    f"{MOST_WAITING} plans are waiting already", hint="Try again", retry_after_s=RETRY_AFTER_S
                )
            if caller not in self._threads:
                self._threads[caller] = ThreadPoolExecutor(1, thread_name_prefix="planning")
            self._n_waiting[caller] += 1
            future = self._threads[caller].submit(self._run, caller, job)
            self._plans[key] = (now, future)
            self._plans.move_to_end(key)
            while len(self._plans) > KEPT_PLANS:
                self._plans.popitem(last=False)
            return future

    def _run(self, caller: str, job: Callable[[], T]) -> T:
        try:
            with self._at_once:
                return job()
        finally:
            with self._lock:
                self._n_waiting[caller] -= 1
                if not self._n_waiting[caller]:
                    del self._n_waiting[caller]
                    self._threads.pop(caller).shutdown(wait=False)

    @contextmanager
    def _loaded(self, options: TaskOptions) -> Iterator[LoadedTasks]:
        """Tasks that nobody else uses meanwhile. Those of a job that failed are not kept."""
        key = canonical_json(options)
        with self._lock:
            loaded_at, tasks = self._tasks.pop(key, (0.0, None))
        if tasks is None or self._monotonic_s() - loaded_at >= TASKS_KEPT_S:
            loaded_at, tasks = self._monotonic_s(), self._harness.load(options)
        yield tasks
        with self._lock:
            self._tasks[key] = (loaded_at, tasks)
            while len(self._tasks) > KEPT_TASKS:
                self._tasks.popitem(last=False)
        timer = threading.Timer(TASKS_KEPT_S, self._drop_old)
        timer.daemon = True
        timer.start()

    def _drop_old(self) -> None:
        with self._lock:
            for key, (loaded_at, _) in list(self._tasks.items()):
                if self._monotonic_s() - loaded_at >= TASKS_KEPT_S:
                    del self._tasks[key]


def _has_failed(future: Future[Any]) -> bool:
    """Check whether another try may do better."""
    return future.done() and (future.cancelled() or not isinstance(future.exception(), ScoringTimedOut | type(None)))

"""Compute plans in the service: callers in turn, tasks kept for a while, and nothing waited for endlessly."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from qualab.errors import ScoringTimedOut, StillLoading, TooManyRequests, UsageError
from qualab.harness.process import Harness, LoadedTasks
from qualab.model.canonical import canonical_json
from qualab.model.plan import Plan
from qualab.model.ports import TaskOptions
from qualab.planning.suite import Given, Pilot, Planning, plan_comparison
from qualab.run.prepare import make_plan, task_options
from qualab.settings import Settings

KEPT_S = 300.0
"""Data of the service's machine may change: then a plan is computed anew."""
TASKS_KEPT_S = 60.0
"""Loaded tasks are most of the memory."""
KEPT_TASKS = 2
KEPT_SINGLE = 2
"""Tasks that are loaded one by one, for pages of items."""
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
MAX_TASKS = 250
PAGES = "pages"
"""The caller who stands for all pages of items."""
T = TypeVar("T")
Shelf = OrderedDict[str, tuple[float, LoadedTasks]]
"""Tasks by their options, and when they were loaded; not those that are in use."""


class Turns:
    """Run jobs in a few threads: callers in turn, and of each caller one at a time."""

    def __init__(self, *, n_threads: int, most_waiting: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(n_threads, thread_name_prefix=name)
        self._n_free = n_threads
        self._most_waiting = most_waiting
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        """By caller; whose turn is next stands first."""
        self._running: set[str] = set()

    def submit(self, caller: str, job: Callable[[], T]) -> Future[T]:
        """Raises TooManyRequests where the caller has too many waiting, with `retry_after_s`."""
        future = Future[T]()
        with self._lock:
            waiting = self._waiting.setdefault(caller, deque())
            if len(waiting) >= self._most_waiting:
                raise TooManyRequests(
                    f"{self._most_waiting} plans are waiting already", hint="Try again", retry_after_s=RETRY_AFTER_S
                )
            waiting.append((future, job))
            self._begin()
        return future

    def close(self) -> None:
        """Begins nothing more."""
        with self._lock:
            for waiting in self._waiting.values():
                for future, _ in waiting:
                    future.cancel()
            self._waiting.clear()
            self._n_free = 0
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        for caller in [caller for caller in self._waiting if caller not in self._running][: self._n_free]:
            waiting = self._waiting.pop(caller)
            future, job = waiting.popleft()
            if waiting:
                self._waiting[caller] = waiting  # behind the others
            self._running.add(caller)
            self._n_free -= 1
            self._executor.submit(self._run, caller, future, job)

    def _run(self, caller: str, future: Future[Any], job: Callable[[], Any]) -> None:
        try:
            result = job()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        with self._lock:
            self._running.discard(caller)
            self._n_free += 1
            self._begin()


class Planner:
    """Compute what items can prove. Two plans are computed at once, and of each caller one."""

    def __init__(
        self,
        harness: Harness,
        *,
        timeout_s: float = 30.0,
        max_tasks: int = MAX_TASKS,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._harness = harness
        self._timeout_s = timeout_s
        self._max_tasks = max_tasks
        self._monotonic_s = monotonic_s
        self._turns = Turns(n_threads=AT_ONCE, most_waiting=MOST_WAITING, name="planning")
        self._lock = threading.RLock()
        self._plans: OrderedDict[str, tuple[float, Future[Any]]] = OrderedDict()
        self._tasks: Shelf = OrderedDict()
        self._single: Shelf = OrderedDict()

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
            with self._loaded(options, self._tasks, KEPT_TASKS) as tasks:
                frozen = make_plan(plain, tasks, checkpoint_hash=checkpoint_hash)
                return plan_comparison(frozen, tasks.render(), given, pilot, missing=plain.expected_missing)

        future = self._begun(key, caller, plan)
        try:
            return future.result(self._timeout_s)
        except TimeoutError as exc:
            raise _still_loading(experiment.tasks) from exc
        except UsageError:  # what was missing may be there the next time
            self._forget(key, future)
            raise

    def with_tasks(self, options: TaskOptions, job: Callable[[LoadedTasks], T], *, name: str, timeout_s: float) -> T:
        """What `job`, which `name` tells from others, makes of these tasks. Raises what loading and the job raise;
        StillLoading where that takes longer than this, and goes on."""
        key = canonical_json(["tasks", options, name])

        def with_loaded() -> T:
            with self._loaded(options, self._single, KEPT_SINGLE) as tasks:
                return job(tasks)

        future = self._begun(key, PAGES, with_loaded)
        try:
            found = future.result(timeout_s)
        except TimeoutError as exc:
            raise _still_loading(options.names) from exc
        except ScoringTimedOut:  # is not tried again for a while
            raise
        except Exception:
            self._forget(key, future)
            raise
        self._forget(key, future)
        return found

    def close(self) -> None:
        """Begins nothing more."""
        self._turns.close()

    def _begun(self, key: str, caller: str, job: Callable[[], T]) -> Future[T]:
        with self._lock:
            now = self._monotonic_s()
            kept = self._plans.get(key)
            if kept is not None and now - kept[0] < KEPT_S and not _has_failed(kept[1]):
                return kept[1]
            future = self._turns.submit(caller, job)
            self._plans[key] = (now, future)
            self._plans.move_to_end(key)
            while len(self._plans) > KEPT_PLANS:
                self._plans.popitem(last=False)
            return future

    def _forget(self, key: str, future: Future[Any]) -> None:
        with self._lock:
            if key in self._plans and self._plans[key][1] is future:
                del self._plans[key]

    @contextmanager
    def _loaded(self, options: TaskOptions, shelf: Shelf, most: int) -> Iterator[LoadedTasks]:
        """Tasks that nobody else uses meanwhile. Those of a job that failed are not kept."""
        key = canonical_json(options)
        with self._lock:
            loaded_at, tasks = shelf.pop(key, (0.0, None))
        if tasks is None or self._monotonic_s() - loaded_at >= TASKS_KEPT_S:
            loaded_at, tasks = self._monotonic_s(), self._harness.load(options)
        yield tasks
        with self._lock:
            shelf[key] = (loaded_at, tasks)
            while len(shelf) > most:
                shelf.popitem(last=False)
        timer = threading.Timer(TASKS_KEPT_S, self._drop_old)
        timer.daemon = True
        timer.start()

    def _drop_old(self) -> None:
        with self._lock:
            for shelf in (self._tasks, self._single):
                for key, (loaded_at, _) in list(shelf.items()):
                    if self._monotonic_s() - loaded_at >= TASKS_KEPT_S:
                        del shelf[key]


def beliefs_of(frozen: Plan) -> Given:
    """Read what a frozen plan assumed, metric by metric."""
    assumed = frozen.assumptions
    if assumed is None:
        return Given()
    return Given(discordance=assumed.discordance, design_effect=assumed.design_effect, noise=assumed.noise)


def _has_failed(future: Future[Any]) -> bool:
    """Check whether another try may do better."""
    return future.done() and (future.cancelled() or not isinstance(future.exception(), ScoringTimedOut | type(None)))


def _still_loading(names: tuple[str, ...]) -> StillLoading:
    return StillLoading(
        f"The tasks {', '.join(names)} are still being loaded",
        hint="The same request succeeds in a moment",
        retry_after_s=RETRY_AFTER_S,
    )

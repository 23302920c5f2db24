"""Plans computed in the service: one thread loads tasks, keeps them for a while, and is not waited for endlessly."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from qualab.app.experiment import Experiment, task_options
from qualab.app.planning.beliefs import Given
from qualab.app.planning.pilot import Pilot
from qualab.app.planning.suite import Planning, plan_comparison
from qualab.domain.canonical import canonical_json
from qualab.domain.pins import PinPlaces
from qualab.domain.plan import Plan
from qualab.errors import StillLoading, UsageError
from qualab.ports import Harness, LoadedTasks, TaskOptions

KEPT_S = 300.0
"""Data of the service's machine may change: then tasks are loaded anew."""
KEPT_TASKS = 2
KEPT_SINGLE = 8
"""Tasks that are loaded one by one, for pages of items."""
KEPT_PLANS = 256
MOST_WAITING = 16
RETRY_AFTER_S = 5
T = TypeVar("T")
Shelf = OrderedDict[str, tuple[float, LoadedTasks]]
"""Tasks by their options, and when they were loaded."""


class Planner:
    """Says what items can prove. lm-eval loads one at a time, so that one thread does it all."""

    def __init__(
        self, harness: Harness, *, timeout_s: float = 30.0, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._harness = harness
        self._timeout_s = timeout_s
        self._monotonic_s = monotonic_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="planning")
        self._lock = threading.Lock()
        self._plans: OrderedDict[str, tuple[float, Future[Any]]] = OrderedDict()
        self._tasks: Shelf = OrderedDict()
        self._single: Shelf = OrderedDict()

    def planned(
        self, experiment: Experiment, given: Given, pilot: Pilot | None = None, *, checkpoint_hash: str = ""
    ) -> Planning:
        """Raises what loading and planning raise; StillLoading where that takes longer than may be waited for."""
        plain = replace(experiment, baseline="", candidate="", label="", places=PinPlaces())
        key = canonical_json([plain, given, pilot, checkpoint_hash])
        future = self._begun(key, lambda: self._plan(plain, given, pilot, checkpoint_hash))
        try:
            return future.result(self._timeout_s)
        except TimeoutError as exc:
            raise _still_loading(experiment.tasks) from exc
        except UsageError:  # what was missing may be there the next time
            self._forget(key, future)
            raise

    def with_tasks(self, options: TaskOptions, job: Callable[[LoadedTasks], T], *, timeout_s: float) -> T:
        """What `job` makes of these tasks, on the thread that loads them. Raises what loading and the job raise;
        StillLoading where loading takes longer than this, and goes on."""
        key = canonical_json(["tasks", options])
        loading = self._begun(key, lambda: self._ready(options))
        try:
            loading.result(timeout_s)
            return self._thread.submit(lambda: job(self._loaded(options, self._single, KEPT_SINGLE))).result(timeout_s)
        except TimeoutError as exc:
            raise _still_loading(options.names) from exc
        except UsageError:
            self._forget(key, loading)
            raise

    def _ready(self, options: TaskOptions) -> None:
        self._loaded(options, self._single, KEPT_SINGLE)

    def close(self) -> None:
        """Begins nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begun(self, key: str, plan: Callable[[], T]) -> Future[T]:
        with self._lock:
            now = self._monotonic_s()
            kept = self._plans.get(key)
            if kept is not None and now - kept[0] < KEPT_S and not _has_failed(kept[1]):
                return kept[1]
            if sum(not future.done() for _, future in self._plans.values()) >= MOST_WAITING:
                raise StillLoading("Too many plans are being computed", hint="Try again", retry_after_s=RETRY_AFTER_S)
            future = self._thread.submit(plan)
            self._plans[key] = (now, future)
            self._plans.move_to_end(key)
            while len(self._plans) > KEPT_PLANS:
                self._plans.popitem(last=False)
            return future

    def _forget(self, key: str, future: Future[Any]) -> None:
        with self._lock:
            if key in self._plans and self._plans[key][1] is future:
                del self._plans[key]

    def _plan(self, experiment: Experiment, given: Given, pilot: Pilot | None, checkpoint_hash: str) -> Planning:
        tasks = self._loaded(task_options(experiment), self._tasks, KEPT_TASKS)
        return plan_comparison(experiment, tasks, given, pilot, checkpoint_hash=checkpoint_hash)

    def _loaded(self, options: TaskOptions, shelf: Shelf, most: int) -> LoadedTasks:
        key, now = canonical_json(options), self._monotonic_s()
        loaded_at, tasks = shelf.pop(key, (0.0, None))
        if tasks is None or now - loaded_at >= KEPT_S:
            loaded_at, tasks = now, self._harness.load(options)
        shelf[key] = (loaded_at, tasks)
        while len(shelf) > most:
            shelf.popitem(last=False)
        return tasks


def beliefs_of(frozen: Plan) -> Given:
    """What a frozen plan assumed, metric by metric."""
    assumed = frozen.assumptions
    if assumed is None:
        return Given()
    return Given(discordance=assumed.discordance, design_effect=assumed.design_effect, noise=assumed.noise)


def _has_failed(future: Future[Any]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


def _still_loading(names: tuple[str, ...]) -> StillLoading:
    return StillLoading(
        f"The tasks {', '.join(names)} are still being loaded",
        hint="The same request succeeds in a moment",
        retry_after_s=RETRY_AFTER_S,
    )

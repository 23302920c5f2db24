"""Compute plans in the service: callers take turns, and loaded tasks are cached for a while."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from qualab.errors import InfrastructureError, ScoringTimedOut, TooManyRequests
from qualab.harness.process import Harness, LoadedTasks
from qualab.model.bank import Banked
from qualab.model.canonical import canonical_json
from qualab.model.ports import TaskOptions
from qualab.planning.suite import Given, Pilot, Planning, plan_comparison
from qualab.run.bank import with_bank
from qualab.run.prepare import make_plan, task_options
from qualab.settings import Settings

PLAN_CACHE_S = 300.0
"""How long a plan is cached: data of the service's machine may change."""
TASK_CACHE_S = 60.0
"""How long loaded tasks are cached, which take most of the memory."""
MOST_CACHED_TASKS = 3
MOST_CACHED_PLANS = 256
AT_ONCE = 2
MOST_WAITING = 4
"""Plans of one caller."""
NO_PLACES: Mapping[str, Any] = {
    **dict.fromkeys(("baseline", "candidate", "label"), ""),
    **{"checkpoint": None, "pods": {}, "containers": {}},
}
"""Settings that a plan does not depend on."""
RETRY_AFTER_S = 5


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
        self._turns: WeakValueDictionary[str, threading.Semaphore] = WeakValueDictionary()
        """One of each caller who waits, so that none keeps another waiting."""
        self._plans: OrderedDict[str, tuple[float, str, Future[Planning]]] = OrderedDict()
        """With the time of asking, and the caller."""
        self._tasks: OrderedDict[str, tuple[float, LoadedTasks]] = OrderedDict()
        """With the time of loading; not those that are in use."""

    def planned(
        self,
        experiment: Settings,
        given: Given,
        pilot: Pilot | None = None,
        *,
        checkpoint_hash: str = "",
        banked: Banked | None = None,
        caller: str = "",
    ) -> Planning:
        """Compute a plan, or return it where it is known.

        Raises what loading and planning raise; InfrastructureError where that takes too long; TooManyRequests where
        the caller has too many plans waiting.
        """
        plain = experiment.model_copy(update=NO_PLACES)
        options = replace(task_options(plain), most_tasks=self._max_tasks)
        key = canonical_json([plain, options, given, pilot, checkpoint_hash, banked])

        def plan() -> Planning:
            with self.loaded(options) as tasks:
                frozen = with_bank(make_plan(plain, tasks, checkpoint_hash=checkpoint_hash), plain, banked)
                n_candidates, missing = len(plain.candidates) or 1, plain.expected_missing
                return plan_comparison(frozen, tasks.render(), given, pilot, missing=missing, n_candidates=n_candidates)

        try:
            return self._begun(key, caller, plan).result(self._timeout_s)
        except TimeoutError as exc:
            raise InfrastructureError(
                f"The tasks {', '.join(experiment.tasks)} are still being loaded",
                hint="The same request succeeds in a moment",
                code="still-loading",
                retry_after_s=RETRY_AFTER_S,
            ) from exc

    def _begun(self, key: str, caller: str, plan: Callable[[], Planning]) -> Future[Planning]:
        with self._lock:
            now = self._monotonic_s()
            asked_at, _, known = self._plans.get(key, (0.0, "", None))
            is_lasting = known and (not known.done() or isinstance(known.exception(), ScoringTimedOut | type(None)))
            if known and is_lasting and now - asked_at < PLAN_CACHE_S:
                return known
            if sum(own == caller and not future.done() for _, own, future in self._plans.values()) > MOST_WAITING:
                raise TooManyRequests(
                    f"{MOST_WAITING} plans are waiting already", hint="Try again", retry_after_s=RETRY_AFTER_S
                )
            turn, future = self._turns.setdefault(caller, threading.Semaphore()), Future[Planning]()
            threading.Thread(target=_run, args=(future, turn, plan), daemon=True).start()
            self._plans[key] = (now, caller, future)
            self._plans.move_to_end(key)
            if len(self._plans) > MOST_CACHED_PLANS:
                self._plans.popitem(last=False)
            return future

    @contextmanager
    def loaded(self, options: TaskOptions) -> Iterator[LoadedTasks]:
        """Lend tasks that nobody else uses meanwhile. Those of a job that failed are not kept."""
        key = canonical_json(options)
        with self._at_once:
            with self._lock:
                loaded_at, tasks = self._tasks.pop(key, (0.0, None))
            if tasks is None or self._monotonic_s() - loaded_at >= TASK_CACHE_S:
                loaded_at, tasks = self._monotonic_s(), self._harness.load(options)
            yield tasks
        with self._lock:
            self._tasks[key] = (loaded_at, tasks)
            while len(self._tasks) > MOST_CACHED_TASKS:
                self._tasks.popitem(last=False)
        timer = threading.Timer(TASK_CACHE_S, self._drop_old)
        timer.daemon = True
        timer.start()

    def _drop_old(self) -> None:
        with self._lock:
            for key, (loaded_at, _) in list(self._tasks.items()):
                if self._monotonic_s() - loaded_at >= TASK_CACHE_S:
                    del self._tasks[key]


def _run(future: Future[Planning], turn: threading.Semaphore, plan: Callable[[], Planning]) -> None:
    with turn:
        try:
            future.set_result(plan())
        except BaseException as error:
            future.set_exception(error)

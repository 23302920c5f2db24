"""The queue beside the database (DBOS, which takes half a second to import), and what API and workers do with it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from qualab.bootstrap import new_loop
from qualab.clock import SharedClock
from qualab.errors import StoreError, StoreUnavailable
from qualab.harness.process import Harness
from qualab.model.ports import Clock, Delivery, Queue, Registry
from qualab.model.registry import Pulse, SubmissionStatus
from qualab.run.prepare import Services
from qualab.service.context import Context, context_of
from qualab.service.settings import ServiceSettings
from qualab.service.worker import Worker
from qualab.store.location import locate

os.environ.pop("DBOS__CLOUD", None)  # read when it is imported: the one switch that would make it call out

from dbos import (
    DBOS,
    DBOSClient,
    DBOSConfig,
    EnqueueOptions,
    WorkflowSerializationFormat,
    error,
)

logging.getLogger("dbos").addHandler(logging.NullHandler())  # instead of the console handler that it would add


@contextmanager
def translated() -> Iterator[None]:
    """Raises StoreError in their place, without the database's URL, which may hold a password."""
    try:
        yield
    except DBAPIError as exc:
        said = str(exc.orig).strip().splitlines()
        kind = StoreUnavailable if isinstance(exc, OperationalError | InterfaceError) else StoreError
        raise kind(f"the queue's database failed: {said[0] if said else type(exc.orig).__name__}") from exc
    except (SQLAlchemyError, error.DBOSException) as exc:
        raise StoreError(f"the queue failed: {type(exc).__name__}") from exc


log = logging.getLogger("qualab.worker")
APPLICATION = "qualab"
SCHEMA = "qualab_jobs"
QUEUE = "comparisons"
WORKFLOW = "carry_out"
POOL = 10
CONNECT_TIMEOUT_S = 5


@dataclass(frozen=True, kw_only=True)
class QueuePlace:
    """The database of the comparisons: the queue has a schema of its own there, or a file beside it."""

    url: URL
    path: Path | None
    """The file of a SQLite database."""

    @property
    def queue_url(self) -> str:
        """A URL that DBOS reads."""
        if self.path is None:
            return self.url.render_as_string(hide_password=False)
        beside = self.path.with_name(f"{self.path.stem}-jobs{self.path.suffix or '.db'}")
        return URL.create("sqlite", database=str(beside.absolute())).render_as_string()

    @cached_property
    def engine(self) -> Engine | None:
        """None for SQLite, whose connections DBOS sets up itself."""
        if self.path is not None:
            return None
        timeout = {} if "connect_timeout" in self.url.query else {"connect_timeout": CONNECT_TIMEOUT_S}
        return create_engine(self.url, connect_args=timeout, hide_parameters=True, pool_pre_ping=True, pool_size=POOL)


RARELY_S = 3_600.0
"""How often DBOS looks for schedules, of which there are none."""


class DbosConsumer:
    """One for a process. Workers that are gone are not DBOS's affair here: without its hosted console it would give
    work back to the same process alone."""

    def __init__(self, place: QueuePlace, *, runner: str, poll_s: float) -> None:
        self._place = place
        self._runner = runner
        self._poll_s = poll_s

    def begin(self, deliver: Callable[[Delivery], None]) -> None:
        """Makes the queue where there is none, and takes from it. Raises StoreError."""

        def carry_out(comparison_id: str, version: int, turn: int, retry_failed: bool) -> None:
            delivery = Delivery(
                comparison_id=comparison_id,
                version=version,
                turn=turn,
                retry_failed=retry_failed,
                worker=self._runner,
            )
            deliver(delivery)

        with translated():
            DBOS(config=self._config())
            DBOS.workflow(name=WORKFLOW)(carry_out)
            DBOS.launch()
            DBOS.register_queue(
                QUEUE, worker_concurrency=1, polling_interval_sec=self._poll_s, on_conflict="always_update"
            )

    def close(self, *, within_s: int) -> None:
        """Takes nothing more, and waits for what is under way. After a `begin` that failed, another may be tried."""
        DBOS.destroy(workflow_completion_timeout_sec=within_s, destroy_registry=True)

    def _config(self) -> DBOSConfig:
        return {
            "name": APPLICATION,
            "system_database_url": self._place.queue_url,
            "system_database_engine": self._place.engine,
            "dbos_system_schema": SCHEMA,
            "executor_id": self._runner,
            "application_version": "1",  # of the delivery's arguments: any qualab takes what any other has put in
            "enable_otlp": False,
            "use_listen_notify": False,
            "scheduler_polling_interval_sec": RARELY_S,
            "log_level": "WARNING",
        }


HELD = ["ENQUEUED", "DELAYED", "PENDING"]
ENDED = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]
MOST_FORGOTTEN = 1_000
"""At once."""
BEGUN, NEW = 1, 2
"""Priorities."""


class DbosQueue:
    """`qualab.model.ports.Queue`. A workflow is one delivery; its id says which, so that none is there twice."""

    def __init__(self, place: QueuePlace) -> None:
        self._client = DBOSClient(
            system_database_url=None if place.engine else place.queue_url,
            system_database_engine=place.engine,
            dbos_system_schema=SCHEMA,
            application_name=APPLICATION,
            lazy=True,
            retry_connection_errors=False,
        )

    def put(self, delivery: Delivery, *, delay_s: float = 0.0) -> None:
        """Once for each comparison, version and turn. What was begun, and was given back or taken over, goes first;
        what is put off waits in line again, so that those that wait for a host do not keep off the others."""
        options = EnqueueOptions(
            workflow_name=WORKFLOW,
            queue_name=QUEUE,
            workflow_id=key_of(delivery),
            priority=BEGUN if delivery.version > 1 and not delivery.turn else NEW,
            serialization_type=WorkflowSerializationFormat.PORTABLE,
        )
        if delay_s:
            options["delay_seconds"] = delay_s
        with translated():
            self._client.enqueue(
                options, delivery.comparison_id, delivery.version, delivery.turn, delivery.retry_failed
            )

    def held(self) -> Sequence[Delivery]:
        """What waits, and what a worker has."""
        with translated():
            found = self._client.list_workflows(queue_name=QUEUE, status=HELD, load_output=False)
        return [_delivery_of(one) for one in found]

    def drop(self, delivery: Delivery) -> None:
        """Forgets it."""
        with translated():
            self._client.delete_workflow(key_of(delivery))

    def forget_ended(self) -> None:
        """Deletes the rows of what has come to its end, a thousand at most."""
        with translated():
            found = self._client.list_workflows(
                queue_name=QUEUE, status=ENDED, limit=MOST_FORGOTTEN, load_input=False, load_output=False
            )
            if found:
                self._client.delete_workflows([one.workflow_id for one in found])

    def close(self) -> None:
        """Closes its connections."""
        self._client.destroy()


def key_of(delivery: Delivery) -> str:
    """The workflow's id."""
    return f"{delivery.comparison_id}#{delivery.version}.{delivery.turn}"


def _delivery_of(workflow: Any) -> Delivery:
    comparison_id, version, turn, retry_failed = workflow.input["args"]
    is_taken = workflow.status == "PENDING"
    return Delivery(
        comparison_id=comparison_id,
        version=version,
        turn=turn,
        retry_failed=retry_failed,
        worker=workflow.executor_id or "" if is_taken else "",
    )


class QueuedJobs:
    """`qualab.model.ports.Jobs`. A submission's row is the truth; the queue says that somebody should look at it."""

    def __init__(self, registry: Registry, queue: Queue, clock: Clock, pulse: Pulse) -> None:
        self._registry = registry
        self._queue = queue
        self._clock = clock
        self._pulse = pulse

    def enqueue(self, comparison_id: str) -> None:
        """Once, however often it is called."""
        self._put(comparison_id, retry_failed=False)

    def cancel(self, comparison_id: str) -> None:
        """Nothing is to be done: who takes it from the queue, or runs it, sees that its row has changed."""

    def resume(self, comparison_id: str, *, retry_failed: bool = False) -> None:
        """Enqueues it again."""
        self._put(comparison_id, retry_failed=retry_failed)

    def workers(self) -> int:
        """Workers that were heard of lately."""
        return len(self._registry.workers(now=self._clock.now(), stale_after_s=self._pulse.stale_after_s))

    def _put(self, comparison_id: str, *, retry_failed: bool) -> None:
        try:
            found = self._registry.submission(comparison_id)
            if found is not None and found.status is SubmissionStatus.QUEUED:
                self._queue.put(Delivery(comparison_id=found.id, version=found.version, retry_failed=retry_failed))
        except StoreError as error:  # the row says that it waits: workers look for what is not in the queue
            log.warning("comparison %s is not in the queue yet: %s", comparison_id, error.message)


END_WITHIN_S = 20
"""For what is under way, when a worker is asked to end."""


@contextmanager
def queueing_context(
    services: Services,
    registry: Registry,
    settings: ServiceSettings,
    *,
    database: str,
    works: bool,
    harness: Harness | None = None,
) -> Iterator[Context]:
    """A context whose jobs go to the queue beside the database; with `works`, a worker of this process takes them, too.

    A `harness` of the worker's own is needed where others use that of the services: a cancelled run stops its harness.
    Raises StoreError where the queue cannot be made.
    """
    place = QueuePlace(url=locate(database).url, path=locate(database).path)
    clock = SharedClock(registry.now) if works and place.path is None else None
    if clock is not None:  # workers of several hosts judge by each other's times who lives
        services = replace(services, clock=clock)
    queue = DbosQueue(place)
    jobs = QueuedJobs(registry, queue, services.clock, settings.pulse)
    context = context_of(services, registry, jobs, settings)
    try:
        if works:
            with _working(
                context, place, queue, settings, harness=harness, set_clock=clock.look if clock else lambda: None
            ):
                yield context
        else:
            yield context
    finally:
        context.planner.close()
        queue.close()


@contextmanager
def _working(
    context: Context,
    place: QueuePlace,
    queue: DbosQueue,
    settings: ServiceSettings,
    *,
    harness: Harness | None,
    set_clock: Callable[[], None],
) -> Iterator[None]:
    worker = Worker(
        replace(context, services=replace(context.services, harness=harness)) if harness else context,
        queue,
        sweep_s=settings.sweep_s,
        host_wait_s=settings.host_wait_s,
        new_loop=new_loop,
        set_clock=set_clock,
    )
    consumer = DbosConsumer(place, runner=context.services.runner, poll_s=settings.queue_poll_s)
    worker.begin()
    try:
        consumer.begin(worker.deliver)
        worker.watch()
        yield
    finally:
        worker.close()
        consumer.close(within_s=END_WITHIN_S)
        worker.leave()

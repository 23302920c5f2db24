"""The composition root of workers: a queue beside the database, and what takes from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from qualab.bootstrap import new_loop
from qualab.clock import SharedClock
from qualab.harness.process import Harness
from qualab.model.ports import Registry
from qualab.run.services import Services
from qualab.service.bootstrap import desk_of, pulse_of
from qualab.service.desk import Desk, QueuedJobs
from qualab.service.jobs import DbosConsumer, DbosQueue, QueuePlace
from qualab.service.settings import ServiceSettings
from qualab.service.worker import Worker
from qualab.store.location import locate

END_WITHIN_S = 20
"""For what is under way, when a worker is asked to end."""


@contextmanager
def queueing_desk(
    services: Services,
    registry: Registry,
    settings: ServiceSettings,
    *,
    database: str,
    works: bool,
    harness: Harness | None = None,
) -> Iterator[Desk]:
    """A desk whose jobs go to the queue beside the database; with `works`, a worker of this process takes them, too.

    A `harness` of the worker's own is needed where others use that of the services: a cancelled run stops its harness.
    Raises StoreError where the queue cannot be made.
    """
    place = QueuePlace(url=locate(database).url, path=locate(database).path)
    clock = SharedClock(registry.now) if works and place.path is None else None
    if clock is not None:  # workers of several hosts judge by each other's times who lives
        services = replace(services, clock=clock)
    queue = DbosQueue(place)
    jobs = QueuedJobs(registry, queue, services.clock, pulse_of(settings))
    desk = desk_of(services, registry, jobs, settings)
    try:
        if works:
            with _working(
                desk, place, queue, settings, harness=harness, set_clock=clock.look if clock else lambda: None
            ):
                yield desk
        else:
            yield desk
    finally:
        desk.planner.close()
        queue.close()


@contextmanager
def _working(
    desk: Desk,
    place: QueuePlace,
    queue: DbosQueue,
    settings: ServiceSettings,
    *,
    harness: Harness | None,
    set_clock: Callable[[], None],
) -> Iterator[None]:
    worker = Worker(
        replace(desk, services=replace(desk.services, harness=harness)) if harness else desk,
        queue,
        sweep_s=settings.sweep_s,
        host_wait_s=settings.host_wait_s,
        new_loop=new_loop,
        set_clock=set_clock,
    )
    consumer = DbosConsumer(place, runner=desk.services.runner, poll_s=settings.queue_poll_s)
    worker.begin()
    try:
        consumer.begin(worker.deliver)
        worker.watch()
        yield
    finally:
        worker.close()
        consumer.close(within_s=END_WITHIN_S)
        worker.leave()

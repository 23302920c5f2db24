"""Jobs by way of a durable queue that workers of other processes, and other hosts, take from."""

from __future__ import annotations

import logging

from qualab.domain.claims import Pulse
from qualab.domain.submissions import SubmissionStatus
from qualab.errors import StoreError
from qualab.ports import Clock, Delivery, Queue, Registry

log = logging.getLogger("qualab.worker")


class QueuedJobs:
    """`qualab.ports.Jobs`. A submission's row is the truth; the queue says that somebody should look at it."""

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

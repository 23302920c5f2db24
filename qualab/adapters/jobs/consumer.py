"""What takes deliveries from the queue, each exactly once, and runs each in a thread."""

from __future__ import annotations

from collections.abc import Callable

from qualab.adapters.jobs.failures import translated
from qualab.adapters.jobs.library import DBOS, DBOSConfig
from qualab.adapters.jobs.places import APPLICATION, QUEUE, SCHEMA, WORKFLOW, QueuePlace
from qualab.ports import Delivery

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

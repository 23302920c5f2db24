"""The queue, as anybody uses it who does not work: no thread, no connection before the first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qualab.adapters.jobs.failures import translated
from qualab.adapters.jobs.library import DBOSClient, EnqueueOptions, WorkflowSerializationFormat
from qualab.adapters.jobs.places import APPLICATION, QUEUE, SCHEMA, WORKFLOW, QueuePlace
from qualab.ports import Delivery

HELD = ["ENQUEUED", "DELAYED", "PENDING"]
ENDED = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]
MOST_FORGOTTEN = 1_000
"""At once."""
BEGUN, NEW = 1, 2
"""Priorities."""


class DbosQueue:
    """`qualab.ports.Queue`. A workflow is one delivery; its id says which, so that none is there twice."""

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

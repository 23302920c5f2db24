"""What nobody attends to any more is given to another worker: of workers that are gone, and what never got there."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from qualab.app.service.desk import Desk
from qualab.app.service.running import leave
from qualab.domain.submissions import Submission, SubmissionStatus
from qualab.ports import Delivery, Queue

log = logging.getLogger("qualab.worker")


def sweep(desk: Desk, queue: Queue, *, living: Collection[str]) -> int:
    """Puts every submission into the queue that is neither there nor with a living worker; says how many they were.

    Any number of workers may do this at once: a submission's version lets one of them have it. Submissions are read
    first: one that comes to its end meanwhile has another version then.
    """
    submissions = desk.registry.submissions(SubmissionStatus.QUEUED, SubmissionStatus.RUNNING)
    held = queue.held()
    n_found = 0
    for submission in submissions:
        its = [delivery for delivery in held if delivery.comparison_id == submission.id]
        if not _is_attended(submission, its, living):
            n_found += _again(desk, queue, submission, its)
    return n_found


def _is_attended(submission: Submission, its: Sequence[Delivery], living: Collection[str]) -> bool:
    if any(one.worker in living for one in its if one.worker):
        return True
    waits = any(not one.worker and one.version == submission.version for one in its)
    return waits and submission.status is SubmissionStatus.QUEUED


def _again(desk: Desk, queue: Queue, submission: Submission, its: Sequence[Delivery]) -> bool:
    changed = leave(desk, submission, SubmissionStatus.QUEUED)
    if changed is None:
        return False
    retry_failed = any(one.retry_failed for one in its)
    queue.put(Delivery(comparison_id=changed.id, version=changed.version, retry_failed=retry_failed))
    for one in its:
        queue.drop(one)
    gone = ", ".join(one.worker for one in its if one.worker)
    log.warning("comparison %s: %s; queued again", submission.id, f"its worker {gone} is gone" if gone else "lost")
    return True

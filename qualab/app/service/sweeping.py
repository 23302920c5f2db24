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
    _forget(queue, held, living, known={submission.id for submission in submissions})
    return n_found


def _is_attended(submission: Submission, its: Sequence[Delivery], living: Collection[str]) -> bool:
    is_queued = submission.status is SubmissionStatus.QUEUED
    taken = (submission.version,) if is_queued else (submission.version - 1, submission.version)
    return any(
        one.version in taken if one.worker in living else is_queued and not one.worker and one.version in taken
        for one in its
    )


def _again(desk: Desk, queue: Queue, submission: Submission, its: Sequence[Delivery]) -> bool:
    changed = leave(desk, submission, SubmissionStatus.QUEUED)
    if changed is None:
        return False
    last = max(its, key=lambda one: (one.version, one.turn), default=None)
    retry_failed = last is not None and last.retry_failed
    queue.put(Delivery(comparison_id=changed.id, version=changed.version, retry_failed=retry_failed))
    why = f"its worker {last.worker} is gone" if last and last.worker else "nobody had it"
    log.warning("comparison %s: %s; queued again", submission.id, why)
    return True


def _forget(queue: Queue, held: Sequence[Delivery], living: Collection[str], *, known: Collection[str]) -> None:
    """What dead workers had, of comparisons that have ended: before, a worker that was only stopped may end it."""
    for one in held:
        if one.worker and one.worker not in living and one.comparison_id not in known:
            queue.drop(one)

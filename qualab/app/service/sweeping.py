"""What nobody attends to any more is given to another worker: of workers that are gone, and what never got there."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress

from qualab.app.service.desk import Desk
from qualab.app.service.running import leave, said, stored_of
from qualab.domain.names import ComparisonStatus
from qualab.domain.submissions import UNDER_WAY, Submission, SubmissionStatus
from qualab.errors import ComparisonBusy, ComparisonNotFound, VersionConflict, WorkersLost
from qualab.ports import Delivery, Queue

MOST_TAKEOVERS = 3
"""In a row without one more answer: what kills its workers ends, and does not kill all of them for ever."""
HALTED = (ComparisonStatus.INTERRUPTED, ComparisonStatus.STOPPED, ComparisonStatus.FINISHED)
log = logging.getLogger("qualab.worker")


def sweep(desk: Desk, queue: Queue, *, living: Collection[str]) -> int:
    """Puts every submission into the queue that is neither there nor with a living worker; says how many they were.

    One whose workers are lost again and again, without an answer, fails instead. Any number of workers may do this at
    once: a submission's version lets one of them have it. Submissions are read first: one that comes to its end
    meanwhile has another version then.
    """
    submissions = desk.registry.submissions(*UNDER_WAY)
    held = queue.held()
    n_found = 0
    for submission in submissions:
        its = [delivery for delivery in held if delivery.comparison_id == submission.id]
        if not _is_attended(submission, its, living):
            n_found += _again(desk, queue, submission, its)
    _forget(desk, queue, held, living, known={submission.id for submission in submissions})
    queue.forget_ended()
    return n_found


def _is_attended(submission: Submission, its: Sequence[Delivery], living: Collection[str]) -> bool:
    is_queued = submission.status is SubmissionStatus.QUEUED
    meant = [one for one in its if one.version in _versions(submission)]
    return any(one.worker in living if one.worker else is_queued for one in meant)


def _versions(submission: Submission) -> tuple[int, ...]:
    """Of the deliveries that it may have been taken with."""
    is_queued = submission.status is SubmissionStatus.QUEUED
    return (submission.version,) if is_queued else (submission.version - 1, submission.version)


def _again(desk: Desk, queue: Queue, submission: Submission, its: Sequence[Delivery]) -> bool:
    lost = next((one.worker for one in its if one.worker and one.version in _versions(submission)), "")
    changed = _taken_over(desk, submission) if lost else leave(desk, submission, SubmissionStatus.QUEUED)
    if changed is None:
        return False
    if changed.takeovers > MOST_TAKEOVERS:
        _give_up(desk, changed, lost)
        return False
    last = max(its, key=lambda one: (one.version, one.turn), default=None)
    retry_failed = last is not None and last.retry_failed
    queue.put(Delivery(comparison_id=changed.id, version=changed.version, retry_failed=retry_failed))
    log.warning("comparison %s: %s; queued again", submission.id, f"{lost} is gone" if lost else "nobody had it")
    return True


def _taken_over(desk: Desk, submission: Submission) -> Submission | None:
    """None where it has changed since it was read, or is deleted."""
    with suppress(VersionConflict, ComparisonNotFound):
        return desk.registry.take_over(submission.id, version=submission.version)
    return None


def _give_up(desk: Desk, submission: Submission, lost: str) -> None:
    error = WorkersLost(
        f"One worker after another was lost while it ran this, {submission.takeovers} in a row without one more answer"
        + (f", the last one {lost}" if lost else ""),
        hint=f"Look into the workers' logs (killed for memory?), then POST /v1/comparisons/{submission.id}/resume",
    )
    log.error("comparison %s: %s", submission.id, error.message)
    leave(desk, submission, SubmissionStatus.FAILED, error=said(error))


def _forget(
    desk: Desk, queue: Queue, held: Sequence[Delivery], living: Collection[str], *, known: Collection[str]
) -> None:
    """What dead workers had, of comparisons that have ended: before, a worker that was only stopped may end it."""
    for one in held:
        if one.worker and one.worker not in living and one.comparison_id not in known and _is_halted(desk, one):
            queue.drop(one)


def _is_halted(desk: Desk, one: Delivery) -> bool:
    """Whether the comparison does not look as if it ran. One that its worker left so is halted, once its claim is
    stale."""
    found = stored_of(desk, one.comparison_id)
    if found is None or found.status in HALTED:
        return True
    submission = desk.registry.submission(one.comparison_id)
    reason = submission.error.get("message", "") if submission else ""
    status = ComparisonStatus.STOPPED if reason else ComparisonStatus.INTERRUPTED
    services = desk.services
    store, runner, now = services.store, services.runner, services.clock.now()
    with suppress(ComparisonNotFound):  # deleted meanwhile
        try:
            store.claim(found.id, runner=runner, now=now, stale_after_s=services.pulse.stale_after_s)
        except ComparisonBusy:
            return False
        if store.get(found.id).status not in HALTED:  # nobody changes it any more
            store.set_status(found.id, status, now=now, stop_reason=reason)
        store.release(found.id, runner=runner)
    return True

"""A comparison is cancelled, taken up again, deleted over the service, on record in the same transaction."""

from __future__ import annotations

from qualab.app.service.desk import By, Desk
from qualab.app.service.reading import About, about, known_id
from qualab.domain.lookup import signed_off
from qualab.domain.names import ComparisonStatus
from qualab.domain.submissions import UNDER_WAY, Submission, SubmissionStatus
from qualab.errors import VersionConflict, WrongState


def cancel(desk: Desk, comparison_id: str, *, by: By, version: int | None = None) -> Submission:
    """Ends it where it waits or runs. Raises ComparisonNotFound, WrongState, VersionConflict."""
    found = _own(about(desk, comparison_id), version)
    if found.status is SubmissionStatus.CANCELLED:
        return found
    if found.status not in UNDER_WAY:
        raise WrongState(
            f"Comparison {comparison_id} is {found.status.value}: there is nothing to cancel",
            hint="Only what is queued or running can be cancelled",
        )
    entry = by.entry("comparison.cancel", comparison_id)
    changed = desk.registry.set_submission(
        comparison_id, SubmissionStatus.CANCELLED, entry=entry, version=found.version
    )
    desk.jobs.cancel(comparison_id)
    return changed


def resume(
    desk: Desk, comparison_id: str, *, by: By, retry_failed: bool = False, version: int | None = None
) -> Submission:
    """Takes up again what was cancelled, stopped or failed. Raises ComparisonNotFound, WrongState, ComparisonSignedOff,
    VersionConflict."""
    seen = about(desk, comparison_id)
    found = _own(seen, version)
    if found.status in UNDER_WAY:
        raise WrongState(f"Comparison {comparison_id} is {found.status.value} already", hint="Follow its events")
    if seen.summary.is_signed_off:
        raise signed_off(comparison_id)
    if seen.summary.status is ComparisonStatus.FINISHED and not retry_failed:
        raise WrongState(
            f"Comparison {comparison_id} is finished", hint="Only retry_failed: true takes up a finished comparison"
        )
    entry = by.entry("comparison.resume", comparison_id, retry_failed=str(retry_failed).lower())
    changed = desk.registry.set_submission(
        comparison_id, SubmissionStatus.QUEUED, entry=entry, error={}, version=found.version
    )
    desk.jobs.resume(comparison_id, retry_failed=retry_failed)
    return changed


def delete(desk: Desk, comparison_id: str, *, by: By, seen: About | None = None) -> None:
    """As it was `seen`, if that is said. Raises ComparisonNotFound, ComparisonBusy, ComparisonSignedOff,
    VersionConflict."""
    entry = by.entry("comparison.delete", known_id(comparison_id))
    read = None if seen is None else (seen.summary, seen.submission)
    desk.registry.delete(comparison_id, entry=entry, stale_after_s=desk.services.pulse.stale_after_s, seen=read)


def _own(seen: About, version: int | None) -> Submission:
    if seen.submission is None:
        raise WrongState(
            f"Comparison {seen.summary.id} was not asked for over the service",
            hint=f"Where it was started: qualab resume {seen.summary.id}",
        )
    _check_version(seen.submission, version)
    return seen.submission


def _check_version(found: Submission, version: int | None) -> None:
    if version is not None and version != found.version:
        raise VersionConflict(
            f"Comparison {found.id} has changed since it was read", hint="Read it again, and send its ETag in If-Match"
        )

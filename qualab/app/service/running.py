"""A submission is carried out: what every kind of worker does with the id that it takes from the queue."""

from __future__ import annotations

from qualab.app.experiment import check
from qualab.app.preflight import Keys
from qualab.app.run import resume, start
from qualab.app.service.desk import Desk, Wanted
from qualab.domain.comparison import Comparison
from qualab.domain.names import ArmName, ComparisonStatus
from qualab.domain.submissions import Submission, SubmissionStatus
from qualab.errors import ComparisonBusy, ComparisonNotFound, QualabError
from qualab.ports import Progress


async def carry_out(desk: Desk, comparison_id: str, *, progress: Progress, retry_failed: bool = False) -> None:
    """Runs a submission to its end, from where it is; what kept it from that stands in its error afterwards.

    Does nothing for what was cancelled or deleted meanwhile, or what another worker has. A cancellation leaves it as it
    is, to be taken up again.
    """
    submission = desk.registry.submission(comparison_id)
    if submission is None or submission.status not in (SubmissionStatus.QUEUED, SubmissionStatus.RUNNING):
        return
    desk.registry.set_submission(comparison_id, SubmissionStatus.RUNNING)
    try:
        await _run(desk, submission, progress, retry_failed=retry_failed)
    except ComparisonBusy:  # a living worker has it
        return
    except QualabError as error:
        said = {"code": error.code, "message": error.message, "hint": error.hint}
        desk.registry.set_submission(comparison_id, SubmissionStatus.FAILED, error=said)
    else:
        desk.registry.set_submission(comparison_id, SubmissionStatus.DONE)


async def _run(desk: Desk, submission: Submission, progress: Progress, *, retry_failed: bool) -> None:
    wanted = desk.read_document(submission.experiment)
    keys = keys_of(desk, wanted)
    stored = _stored(desk, submission.id)
    if stored is None:
        check(wanted.experiment)
        frozen = wanted.frozen.plan if wanted.frozen else None
        await start(
            desk.services, wanted.experiment, keys=keys, progress=progress, frozen=frozen, comparison_id=submission.id
        )
    elif stored.status is not ComparisonStatus.FINISHED or retry_failed:
        await resume(desk.services, submission.id, keys=keys, progress=progress, retry_failed=retry_failed)


def keys_of(desk: Desk, wanted: Wanted) -> Keys:
    """The keys that the references lead to, in memory only. Raises SecretForbidden."""
    return {arm: desk.secrets.read(wanted.keys[arm]) if arm in wanted.keys else None for arm in ArmName}


def _stored(desk: Desk, comparison_id: str) -> Comparison | None:
    try:
        return desk.services.store.get(comparison_id)
    except ComparisonNotFound:
        return None

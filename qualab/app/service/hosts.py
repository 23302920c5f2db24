"""Which hosts a comparison sends to, and whether it may now: limits hold over all workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from qualab.app.experiment import Experiment
from qualab.app.service.desk import Desk, Wanted
from qualab.domain.leases import check_slots, host_of
from qualab.domain.names import ArmName
from qualab.domain.submissions import Submission, SubmissionStatus
from qualab.errors import InvalidValue

EXCLUSIVE = "exclusive"
"""The key of a request that keeps its hosts to itself."""


def slots_of(experiment: Experiment) -> Mapping[str, int]:
    """Requests in flight at each host; both arms may be on one."""
    noise = experiment.noise_floor.concurrency if experiment.noise_floor else 0
    each = experiment.policy.concurrency
    slots = Counter({host_of(experiment.candidate): each})
    slots[host_of(experiment.baseline)] += max(each, noise)
    return slots


def check_hosts(desk: Desk, experiment: Experiment) -> None:
    """Raises InvalidValue for what no wait would bring about."""
    try:
        check_slots(slots_of(experiment), desk.host_concurrency)
    except InvalidValue as exc:
        raise InvalidValue(exc.message, hint=exc.hint, fields={"concurrency": exc.message}) from exc


def take_hosts(desk: Desk, submission: Submission, wanted: Wanted) -> bool:
    """Takes all that it needs, or none. Raises InvalidValue for what no wait would bring about."""
    slots = slots_of(wanted.experiment)
    if _is_reserved(desk, submission, slots):
        return False
    services = desk.services
    return desk.registry.lease_hosts(
        submission.id,
        slots,
        runner=services.runner,
        limit=desk.host_concurrency,
        is_exclusive=wanted.is_exclusive,
        now=services.clock.now(),
        stale_after_s=services.pulse.stale_after_s,
    )


def _is_reserved(desk: Desk, submission: Submission, slots: Mapping[str, int]) -> bool:
    """Whether an older one waits to have one of the hosts to itself: later ones would keep it waiting for ever."""
    for other in desk.registry.submissions(SubmissionStatus.QUEUED):
        if other.id == submission.id:
            return False
        if other.experiment.get(EXCLUSIVE) and slots.keys() & _hosts_of(other):
            return True
    return False


def _hosts_of(submission: Submission) -> set[str]:
    return {host_of(str(submission.experiment.get(arm, ""))) for arm in ArmName}

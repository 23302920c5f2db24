"""Which hosts a comparison sends to, and whether it may now: limits hold over all workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta

from qualab.app.experiment import Experiment
from qualab.app.service.desk import Desk, Wanted
from qualab.domain.leases import HostLease, check_slots, host_of
from qualab.domain.names import ArmName
from qualab.domain.submissions import Submission, SubmissionStatus
from qualab.errors import InvalidValue, QualabError

EXCLUSIVE = "exclusive"
"""The key of a request that keeps its hosts to itself."""
OVERTAKEN_BY = timedelta(minutes=10)
"""Who came later by less may have a host first."""


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
    """Takes all that it needs, or none: what is left over by those that run and those before it. Raises InvalidValue
    for what no wait would bring about."""
    slots = slots_of(wanted.experiment)
    services = desk.services
    return desk.registry.lease_hosts(
        submission.id,
        slots,
        reserved=list(_reserved(desk, submission, slots)),
        runner=services.runner,
        limit=desk.host_concurrency,
        is_exclusive=wanted.is_exclusive,
        now=services.clock.now(),
        stale_after_s=services.pulse.stale_after_s,
    )


def _reserved(desk: Desk, submission: Submission, slots: Mapping[str, int]) -> Iterator[HostLease]:
    """What those before it will need of its hosts: smaller ones that keep coming would have them wait for ever."""
    for other in desk.registry.submissions(SubmissionStatus.QUEUED):
        if other.id == submission.id:
            return
        if slots.keys() & _hosts_of(other) and not _may_overtake(submission, other):
            yield from _needed(desk, other)


def _may_overtake(later: Submission, earlier: Submission) -> bool:
    """Who came at about the same time takes a free host at once, and does not look for who was first."""
    return not earlier.experiment.get(EXCLUSIVE) and later.created_at - earlier.created_at < OVERTAKEN_BY


def _needed(desk: Desk, waiting: Submission) -> Iterator[HostLease]:
    try:
        wanted = desk.read_document(waiting.experiment)
    except QualabError:  # it fails when its turn comes
        return
    for host, slots in slots_of(wanted.experiment).items():
        yield HostLease(
            host=host,
            comparison_id=waiting.id,
            runner="",
            slots=slots,
            is_exclusive=wanted.is_exclusive,
            heartbeat_at=waiting.created_at,
        )


def _hosts_of(submission: Submission) -> set[str]:
    return {host_of(str(submission.experiment.get(arm, ""))) for arm in ArmName}

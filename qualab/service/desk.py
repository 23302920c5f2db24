"""What the service's use cases are given, and what a request for a comparison is read into."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from qualab.errors import InvalidValue, QualabError, StoreError
from qualab.model.items import JsonObject
from qualab.model.names import ArmName
from qualab.model.ports import Clock, Delivery, Jobs, Queue, Registry, Secrets
from qualab.model.registry import AuditEntry, HostLease, Pulse, Submission, SubmissionStatus, check_slots, host_of
from qualab.run.experiment import Experiment, FrozenPlan
from qualab.run.services import Services
from qualab.service.planner import Planner


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request for a comparison, read and allowed."""

    document: JsonObject
    """What is kept of it: reading that again gives the same."""
    experiment: Experiment
    keys: Mapping[ArmName, str]
    """References; an arm without a key is left out."""
    settings: JsonObject
    """Everything that makes the plan, as a plan file keeps it."""
    frozen: FrozenPlan | None
    accept_underpowered: bool
    is_exclusive: bool = False
    """Whether nothing else may be asked of its hosts meanwhile."""


ReadDocument = Callable[[JsonObject], Wanted]
"""Raises UnknownSetting, InvalidValue, UsageError, PlanChanged, PathForbidden, SecretForbidden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The ports of the service, joined by `service_bootstrap`."""

    services: Services
    registry: Registry
    jobs: Jobs
    read_document: ReadDocument
    read_plan: ReadDocument
    """The same without endpoints or a model: for plans that are only computed."""
    read_rule: Callable[[JsonObject], Mapping[str, Any]]
    """Parts of a decision rule, as settings. Raises UnknownSetting, InvalidValue."""
    check_endpoint: Callable[[str], None]
    """Raises EndpointForbidden for a URL that may not be called."""
    secrets: Secrets
    planner: Planner
    host_concurrency: int = 64
    """Requests in flight at one host, of all comparisons of all workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class By:
    """Who asks for a change, and when: for the record."""

    who: str
    at: datetime
    details: dict[str, str] = field(default_factory=dict)

    @property
    def caller(self) -> str:
        """Tells this caller from others."""
        return self.details.get("token", self.who)

    def entry(self, action: str, subject: str, **details: str) -> AuditEntry:
        """The record of a change."""
        return AuditEntry(at=self.at, who=self.who, action=action, subject=subject, details=self.details | details)


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


log = logging.getLogger("qualab.worker")


class QueuedJobs:
    """`qualab.model.ports.Jobs`. A submission's row is the truth; the queue says that somebody should look at it."""

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

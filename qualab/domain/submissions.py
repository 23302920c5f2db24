"""What the service was asked to run: from the request to the comparison that comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from qualab.domain.items import JsonObject
from qualab.domain.names import ComparisonStatus, Verdict


class SubmissionStatus(StrEnum):
    """How far a worker has got with it. What the run itself does is the comparison's status."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNDER_WAY = (SubmissionStatus.QUEUED, SubmissionStatus.RUNNING)
"""What a worker has, or will have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSummary:
    """One line of a list: of a comparison, or of a submission that has not become one."""

    id: str
    status: ComparisonStatus | SubmissionStatus
    """A submission's only while there is no comparison."""
    verdict: Verdict | None
    label: str
    model: str
    suite: str
    """Empty while there is no plan; so is the hash."""
    plan_hash: str
    n_items: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    stop_reason: str
    is_signed_off: bool
    n_items_asked: int | None = None
    """Items that were asked where a look ended the run; None where all are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A comparison that was asked for. There is a comparison of the same id once its plan is made."""

    id: str
    """The comparison's id."""
    experiment: JsonObject
    """The settings that describe it (an experiment file's keys); secrets are references, never values."""
    label: str
    model: str
    created_at: datetime
    created_by: str
    status: SubmissionStatus = SubmissionStatus.QUEUED
    error: dict[str, str] = field(default_factory=dict)
    """code, message and hint of what kept it from running; empty otherwise."""
    version: int = 1
    """Grows with every change: the ETag of what may still change."""
    takeovers: int = 0
    """In a row, from workers that were lost and had stored no answer; 0 again once it has ended."""

    def summary(self) -> ComparisonSummary:
        """While there is no comparison."""
        return ComparisonSummary(
            id=self.id,
            status=self.status,
            verdict=None,
            label=self.label,
            model=self.model,
            suite="",
            plan_hash="",
            n_items=0,
            created_at=self.created_at,
            started_at=None,
            finished_at=None,
            stop_reason=self.error.get("message", ""),
            is_signed_off=False,
        )

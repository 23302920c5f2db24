"""What answers hold, where that is no value of the domain: for the answers and for their description."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from qualab.model.comparison import SignOff
from qualab.model.items import JsonObject, Outcome
from qualab.model.names import ComparisonStatus, Verdict
from qualab.model.registry import AuditEntry, ComparisonSummary, Submission, SubmissionStatus
from qualab.service.reading import About, AnalysisNamed

Status = ComparisonStatus | SubmissionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOut:
    """The request that a comparison came of."""

    status: SubmissionStatus
    version: int
    created_by: str
    error: dict[str, str]
    experiment: JsonObject

    @classmethod
    def of(cls, sent: Submission) -> RequestOut:
        """Of what was sent."""
        return cls(
            status=sent.status,
            version=sent.version,
            created_by=sent.created_by,
            error=sent.error,
            experiment=sent.experiment,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOut:
    """A comparison, or a request that has not become one."""

    id: str
    status: Status
    verdict: Verdict | None
    label: str
    model: str
    suite: str
    plan_hash: str
    n_items: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    stop_reason: str
    is_signed_off: bool
    n_items_asked: int | None
    """Items that were asked where a look ended the run; None where all are."""
    has_ended: bool
    request: RequestOut | None
    """None for a comparison that was started at a command line."""

    @classmethod
    def of(cls, found: About) -> ComparisonOut:
        """Of a comparison with its request."""
        one, sent = found.summary, found.submission
        request = None if sent is None else RequestOut.of(sent)
        return cls(
            id=one.id,
            status=one.status,
            verdict=one.verdict,
            label=one.label,
            model=one.model,
            suite=one.suite,
            plan_hash=one.plan_hash,
            n_items=one.n_items,
            created_at=one.created_at,
            started_at=one.started_at,
            finished_at=one.finished_at,
            stop_reason=one.stop_reason,
            is_signed_off=one.is_signed_off,
            n_items_asked=one.n_items_asked,
            has_ended=found.has_ended,
            request=request,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPage:
    """Newest first."""

    entries: tuple[ComparisonSummary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomePage:
    """In order of position and repeat."""

    entries: tuple[Outcome, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Newest first."""

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisList:
    """The oldest first."""

    entries: tuple[AnalysisNamed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOffList:
    """The oldest first."""

    entries: tuple[SignOff, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument:
    """A plan, as in a file of `qualab plan`."""

    qualab_plan: int
    hash: str
    frozen_at: datetime
    plan: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComputed:
    """What items can prove, and the plan frozen."""

    plan_hash: str
    document: JsonObject | None
    """The content of a plan file, to run; None where no model is named."""
    planning: JsonObject
    """As `qualab plan --format json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One thing that is wrong about a request."""

    field: str
    allowed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error (RFC 9457)."""

    type: str
    """urn:qualab:problem: and the code."""
    title: str
    status: int
    code: str
    """Stable: what programs look at."""
    detail: str
    hint: str
    """What to do about it."""
    request_id: str
    errors: list[FieldError] = field(default_factory=list)

"""The page of one comparison: the report's own model, with what only a page has around it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qualab.app.reporting.metrics import verdict_cell
from qualab.app.service.desk import Desk
from qualab.app.service.reading import About, about
from qualab.app.viewing.kept import Reports
from qualab.app.viewing.listing import shown_time
from qualab.app.viewing.troubles import Trouble, trouble
from qualab.app.viewing.words import Wording
from qualab.domain.names import ComparisonStatus
from qualab.domain.report import Cell, ReportModel
from qualab.domain.signoffs import SignOff
from qualab.domain.submissions import ComparisonSummary, SubmissionStatus
from qualab.errors import RunStopped

ON_PAPER = ("signoff",)
"""Sections that people fill in with a pen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """One sign-off."""

    by: str
    at: str
    verdict: Cell
    note: str
    override: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPage:
    """What is known of it by now."""

    summary: ComparisonSummary
    name: str
    status: str
    created: str
    is_live: bool
    """Whether it may change by itself."""
    trouble: Trouble | None
    """Why it ended early."""
    report: ReportModel | None
    """None while there is no analysis."""
    has_items: bool
    signed: tuple[Signed, ...]
    statuses: dict[str, str]
    """Words of what it may become while somebody looks."""


def comparison_page(desk: Desk, reports: Reports, comparison_id: str, words: Wording) -> ComparisonPage:
    """Raises ComparisonNotFound."""
    found = about(desk, comparison_id)
    summary = found.summary
    return ComparisonPage(
        summary=summary,
        name=summary.label or summary.id,
        status=words(f"status {summary.status}"),
        created=shown_time(summary.created_at),
        is_live=not found.has_ended,
        trouble=_trouble(found, words),
        report=None if summary.verdict is None else _on_screen(reports, summary.id, words),
        has_items=summary.status is ComparisonStatus.FINISHED,
        signed=_signed(desk, summary, words),
        statuses={status: words(f"status {status}") for status in (*ComparisonStatus, *SubmissionStatus)},
    )


def _trouble(found: About, words: Wording) -> Trouble | None:
    """Of the request where it says one, otherwise of the run."""
    error = found.submission.error if found.submission else {}
    if error.get("message"):
        return trouble(error.get("code", ""), error["message"], error.get("hint", ""), words)
    reason = found.summary.stop_reason
    return trouble(RunStopped.code, reason, "", words) if reason else None


def _on_screen(reports: Reports, comparison_id: str, words: Wording) -> ReportModel:
    report = reports.get(comparison_id, words.language)
    return replace(report, sections=tuple(one for one in report.sections if one.id not in ON_PAPER))


def _signed(desk: Desk, summary: ComparisonSummary, words: Wording) -> tuple[Signed, ...]:
    found = desk.registry.signoffs(summary.id) if summary.plan_hash else ()
    return tuple(_signed_as(one, words) for one in found)


def _signed_as(one: SignOff, words: Wording) -> Signed:
    return Signed(
        by=one.signed_by,
        at=shown_time(one.signed_at),
        verdict=verdict_cell(one.verdict, words.report),
        note=one.note,
        override=one.override,
    )

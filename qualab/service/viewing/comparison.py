"""Reports that were asked for lately: made once for what is stored, and again once that has changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from threading import Lock

from qualab.errors import RunStopped
from qualab.model.comparison import SignOff
from qualab.model.names import ComparisonStatus, Language
from qualab.model.registry import ComparisonSummary, SubmissionStatus
from qualab.model.report import Cell, ReportModel
from qualab.report.metrics import verdict_cell
from qualab.report.model import report_model
from qualab.run.sign import newest_seal
from qualab.service.desk import Desk
from qualab.service.reading import About, about
from qualab.service.viewing.listing import Trouble, shown_time, trouble
from qualab.service.words import Wording

MOST = 32


class Reports:
    """Report models by what they are made of. Threads may share it."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._made: OrderedDict[Hashable, ReportModel] = OrderedDict()
        self._lock = Lock()

    def get(self, comparison_id: str, language: Language) -> ReportModel:
        """As `report_model`, whose errors it raises. An analysis is never changed: its seal tells it from others."""
        key = self._key(comparison_id, language)
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key]
        made = report_model(self._desk.services.store, self._desk.registry, comparison_id, language)
        with self._lock:
            self._made[key] = made
            if len(self._made) > MOST:
                self._made.popitem(last=False)
        return made

    def _key(self, comparison_id: str, language: Language) -> Hashable:
        store = self._desk.services.store
        comparison = store.get(comparison_id)
        signed = tuple(
            (one.signed_at, one.signed_by, one.verdict) for one in self._desk.registry.signoffs(comparison.id)
        )
        n_analyses = len(store.seals(comparison.id))
        return comparison.id, comparison.created_at, newest_seal(store, comparison), n_analyses, signed, language


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

"""Deletes comparisons that are old: never one that was signed off, that runs, or that waits to be run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from qualab.domain.access import AuditEntry
from qualab.domain.claims import STALE_AFTER_S
from qualab.domain.submissions import ComparisonSummary, SubmissionStatus
from qualab.errors import ComparisonBusy, ComparisonNotFound, ComparisonSignedOff
from qualab.ports import ComparisonFilter, Registry

PAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What became of an old comparison."""

    summary: ComparisonSummary
    kept: str
    """Why it stays; empty where it is deleted, or would be."""


def prune(
    registry: Registry, *, before: datetime, label: str | None, who: str, now: datetime, dry_run: bool = False
) -> Iterator[Pruned]:
    """Deletes what was created before a time, newest first, telling each. A dry run only tells."""
    for summary in _old(registry, before, label):
        kept = _reason(summary)
        if not kept and not dry_run:
            kept = _delete(registry, summary, who=who, now=now)
        yield Pruned(summary=summary, kept=kept)


def _old(registry: Registry, before: datetime, label: str | None) -> Iterator[ComparisonSummary]:
    wanted, cursor = ComparisonFilter(until=before, label=label, limit=PAGE), None
    while True:
        page = registry.page(wanted, cursor=cursor)
        yield from page.entries
        cursor = page.next_cursor
        if cursor is None:
            return


def _reason(summary: ComparisonSummary) -> str:
    if summary.is_signed_off:
        return "signed off"
    return "waits to be run" if summary.status is SubmissionStatus.QUEUED else ""


def _delete(registry: Registry, summary: ComparisonSummary, *, who: str, now: datetime) -> str:
    details = {"created_at": summary.created_at.isoformat(), "label": summary.label}
    entry = AuditEntry(at=now, who=who, action="comparison.prune", subject=summary.id, details=details)
    try:
        registry.delete(summary.id, entry=entry, stale_after_s=STALE_AFTER_S)
    except ComparisonSignedOff:
        return "signed off"
    except ComparisonBusy:
        return "runs, or waits to be run"
    except ComparisonNotFound:
        return "was deleted meanwhile"
    return ""

"""Finds comparisons as they stand now, and deletes old ones. A killed run cannot say so itself: it still counts as
running in the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from qualab.errors import ComparisonBanked, ComparisonBusy, ComparisonNotFound, ComparisonSignedOff, QualabError
from qualab.model.comparison import Comparison
from qualab.model.names import ComparisonStatus
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import STALE_AFTER_S, AuditEntry, Claim, ComparisonSummary, busy

if TYPE_CHECKING:
    from qualab.run.prepare import Services
    from qualab.store import Store

_RUNNING, _INTERRUPTED = ComparisonStatus.RUNNING, ComparisonStatus.INTERRUPTED


def find(store: Store, comparison_id: str, *, now: datetime) -> Comparison:
    """Find one by its id or an unambiguous beginning of it, as it stands now. Raises ComparisonNotFound."""
    return as_they_stand(store, [store.get(comparison_id)], now)[0]


def find_all(store: Store, filter_: ComparisonFilter, *, now: datetime) -> list[Comparison]:
    """List comparisons newest first, as they stand now."""
    if filter_.status not in (_RUNNING, _INTERRUPTED):
        return as_they_stand(store, store.list(filter_), now)
    stored = [row for status in (_RUNNING, _INTERRUPTED) for row in store.list(replace(filter_, status=status))]
    standing = [row for row in as_they_stand(store, stored, now) if row.status is filter_.status]
    return sorted(standing, key=lambda row: row.created_at, reverse=True)[: filter_.limit]


def runner_of(store: Store, comparison_id: str, *, now: datetime, stale_after_s: float = STALE_AFTER_S) -> Claim | None:
    """Tell who runs a comparison now."""
    return store.runners([comparison_id], now=now, stale_after_s=stale_after_s).get(comparison_id)


def check_free(services: Services, comparison_id: str, *, runner: str | None = None) -> Comparison:
    """Return a comparison that `runner` may resume: the services' own, unless another is named.

    Raises ComparisonNotFound, ComparisonBusy where another runs it.
    """
    store, now, stale_after_s = services.store, services.clock.now(), services.heartbeat.stale_after_s
    comparison = store.get(comparison_id)
    holder = runner_of(store, comparison.id, now=now, stale_after_s=stale_after_s)
    if holder and holder.runner != (services.runner if runner is None else runner):
        raise busy(comparison.id, holder)
    return comparison


def as_they_stand(store: Store, stored: Sequence[Comparison], now: datetime) -> list[Comparison]:
    """Say INTERRUPTED of what nobody runs any more."""
    running = [row.id for row in stored if row.status is _RUNNING]
    alive = store.runners(running, now=now, stale_after_s=STALE_AFTER_S) if running else {}
    return [
        replace(row, status=_INTERRUPTED) if row.status is _RUNNING and row.id not in alive else row for row in stored
    ]


PAGE = 200
KEPT: Mapping[type[QualabError], str] = {
    ComparisonSignedOff: "signed off",
    ComparisonBanked: "holds a banked baseline",
    ComparisonBusy: "runs, or waits to be run",
    ComparisonNotFound: "was deleted meanwhile",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    summary: ComparisonSummary
    kept: str
    """Why it stays; empty where it is (or would be) deleted."""


def prune(
    store: Store, *, before: datetime, label: str | None, who: str, now: datetime, dry_run: bool = False
) -> Iterator[Pruned]:
    """Delete what was created before a time, newest first, telling each. A dry run only tells."""
    banked = {bank.comparison_id for bank in store.banks()}
    older, cursor = ComparisonFilter(until=before, label=label, limit=PAGE), None
    while True:
        page = store.page(older, cursor=cursor)
        for summary in page.entries:
            kept = "waits to be run" if summary.status is ComparisonStatus.QUEUED else ""
            kept = KEPT[ComparisonBanked] if summary.id in banked else kept
            kept = "signed off" if summary.is_signed_off else kept
            if not kept and not dry_run:
                details = {"created_at": summary.created_at.isoformat(), "label": summary.label}
                entry = AuditEntry(at=now, who=who, action="comparison.prune", subject=summary.id, details=details)
                try:
                    store.delete(summary.id, entry=entry, stale_after_s=STALE_AFTER_S)
                except tuple(KEPT) as error:
                    kept = KEPT[type(error)]
            yield Pruned(summary=summary, kept=kept)
        cursor = page.next_cursor
        if cursor is None:
            return


def resume_hint(comparison_id: str, *, retry_failed: bool = False) -> str:
    """Name the command that goes on."""
    flag = " --retry-failed" if retry_failed else ""
    return f"Everything answered so far is stored. Go on with: qualab resume {comparison_id}{flag}"


@contextmanager
def way_on(comparison_id: str) -> Iterator[None]:
    """Add to any error how to go on with a stored comparison."""
    try:
        yield
    except QualabError as error:
        if "Go on with: qualab" not in error.hint:
            error.hint = ". ".join(filter(None, (error.hint, f"Go on with: qualab resume {comparison_id}")))
        raise

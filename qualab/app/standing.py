"""Where comparisons stand now. A run that was killed cannot say so itself: it stands as running, and nobody runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from qualab.domain.claims import STALE_AFTER_S, Claim, busy
from qualab.domain.comparison import Comparison
from qualab.domain.names import ComparisonStatus
from qualab.ports import ComparisonFilter, Store

_RUNNING, _INTERRUPTED = ComparisonStatus.RUNNING, ComparisonStatus.INTERRUPTED


def find(store: Store, comparison_id: str, *, now: datetime) -> Comparison:
    """By id or by an unambiguous beginning of one, as it stands now. Raises ComparisonNotFound."""
    return _as_they_stand(store, [store.get(comparison_id)], now)[0]


def find_all(store: Store, wanted: ComparisonFilter, *, now: datetime) -> list[Comparison]:
    """Newest first, as they stand now."""
    if wanted.status not in (_RUNNING, _INTERRUPTED):
        return _as_they_stand(store, store.list(wanted), now)
    stored = [one for status in (_RUNNING, _INTERRUPTED) for one in store.list(replace(wanted, status=status))]
    standing = [one for one in _as_they_stand(store, stored, now) if one.status is wanted.status]
    return sorted(standing, key=lambda one: one.created_at, reverse=True)[: wanted.limit]


def runner_of(store: Store, comparison_id: str, *, now: datetime) -> Claim | None:
    """Who runs a comparison now."""
    return store.runners([comparison_id], now=now, stale_after_s=STALE_AFTER_S).get(comparison_id)


def check_free(store: Store, comparison_id: str, *, runner: str, now: datetime) -> Comparison:
    """A comparison that `runner` may resume. Raises ComparisonNotFound, and ComparisonBusy where another runs it."""
    comparison = store.get(comparison_id)
    holder = runner_of(store, comparison.id, now=now)
    if holder and holder.runner != runner:
        raise busy(comparison.id, holder)
    return comparison


def _as_they_stand(store: Store, stored: Sequence[Comparison], now: datetime) -> list[Comparison]:
    running = [one.id for one in stored if one.status is _RUNNING]
    alive = store.runners(running, now=now, stale_after_s=STALE_AFTER_S) if running else {}
    return [
        replace(one, status=_INTERRUPTED) if one.status is _RUNNING and one.id not in alive else one for one in stored
    ]

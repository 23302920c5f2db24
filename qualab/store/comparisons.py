"""Comparisons: their rows, who runs them, where they stand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Row, Select, func, insert, select, update

from qualab.errors import StoreError
from qualab.model.canonical import canonical_json
from qualab.model.comparison import Comparison
from qualab.model.names import ComparisonStatus
from qualab.model.plan import Plan
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import Claim, ambiguous, not_found
from qualab.model.wording import storable_text, valid_text
from qualab.store import codes
from qualab.store.filters import matching_comparisons
from qualab.store.payloads import to_json
from qualab.store.tables import comparison, submission
from qualab.store.times import from_us, from_us_or_none, to_us, to_us_or_none

_C = comparison.c
_NEWEST_FIRST = (_C.created_at.desc(), _C.key.desc())


def insert_comparison(connection: Connection, value: Comparison) -> int:
    """The new comparison's key. Its submission is planned now. Raises StoreError where the id is taken."""
    if connection.scalar(select(_C.key).where(_C.id == value.id)) is not None:
        raise StoreError(f"comparison {value.id} exists already")
    row = {
        "id": value.id,
        "plan_hash": value.plan_hash,
        "status": codes.COMPARISON_STATUS.of[value.status],
        "label": storable_text(value.label),
        "created_at": to_us(value.created_at),
        "started_at": to_us_or_none(value.started_at),
        "finished_at": to_us_or_none(value.finished_at),
        "verdict": None if value.verdict is None else codes.VERDICT.of[value.verdict],
        "stop_reason": storable_text(value.stop_reason),
        "duplicates": value.duplicates,
        "plan": valid_text(canonical_json(value.plan)),
        "local": to_json(value.local, of=f"comparison {value.id}"),
        "baseline_url": storable_text(value.baseline_url),
        "candidate_url": storable_text(value.candidate_url),
        "model": storable_text(value.plan.sampling.model),
        "suite": storable_text(value.plan.suite),
        "n_items": sum(task.n_items for task in value.plan.tasks),
    }
    key: int = connection.execute(insert(comparison).returning(_C.key), row).scalar_one()
    connection.execute(update(submission).where(submission.c.id == value.id).values(is_planned=True))
    return key


def plan_hash_of(connection: Connection, key: int) -> str:
    """The hash of a comparison's own plan."""
    found: str = connection.execute(select(_C.plan_hash).where(_C.key == key)).scalar_one()
    return found


def plan_text_of(connection: Connection, key: int) -> str:
    """A comparison's own plan, as it was stored."""
    found: str = connection.execute(select(_C.plan).where(_C.key == key)).scalar_one()
    return found


def get_comparison(connection: Connection, wanted: str) -> Comparison:
    """By id, or by an unambiguous beginning of one."""
    rows = connection.execute(_all().where(_C.id == wanted)).all()
    if not rows and wanted:
        begins = func.substr(_C.id, 1, len(wanted)) == wanted
        rows = connection.execute(_all().where(begins).order_by(*_NEWEST_FIRST).limit(6)).all()
    if len(rows) > 1:
        raise ambiguous(wanted, [row.id for row in rows])
    if not rows:
        raise not_found(wanted)
    return _comparison_of(rows[0])


def list_comparisons(connection: Connection, wanted: ComparisonFilter) -> list[Comparison]:
    """Newest first."""
    query = _all().order_by(*_NEWEST_FIRST).limit(max(wanted.limit, 0))
    return [_comparison_of(row) for row in connection.execute(query.where(*matching_comparisons(wanted)))]


def add_duplicates(connection: Connection, key: int, count: int) -> None:
    """Counts late answers."""
    connection.execute(update(comparison).where(_C.key == key).values(duplicates=_C.duplicates + count))


def set_status(
    connection: Connection, key: int, status: ComparisonStatus, *, now: datetime, stop_reason: str | None
) -> None:
    """Running starts the comparison once; finished ends it; anything else means that it has no verdict (any more)."""
    values: dict[str, Any] = {
        "status": codes.COMPARISON_STATUS.of[status],
        "stop_reason": _C.stop_reason if stop_reason is None else storable_text(stop_reason),
    }
    if status is ComparisonStatus.FINISHED:
        values["finished_at"] = func.coalesce(_C.finished_at, to_us(now))
    else:
        values |= {"finished_at": None, "verdict": None}
    if status is ComparisonStatus.RUNNING:
        values["started_at"] = func.coalesce(_C.started_at, to_us(now))
    connection.execute(update(comparison).where(_C.key == key).values(values))


def read_claim(connection: Connection, key: int) -> Claim | None:
    """Who runs the comparison. On PostgreSQL nobody else changes the row until the transaction ends."""
    query = select(_C.runner, _C.claimed_at, _C.heartbeat_at).where(_C.key == key).with_for_update(key_share=True)
    runner, claimed_at, heartbeat_at = connection.execute(query).one()
    if runner is None:
        return None
    return Claim(runner=runner, since=from_us(claimed_at), heartbeat_at=from_us(heartbeat_at))


def read_claims(connection: Connection, ids: Sequence[str] | None = None) -> dict[str, Claim]:
    """Who runs comparisons, or ran them last, by id; without those that are free. None: of all comparisons."""
    query = select(_C.id, _C.runner, _C.claimed_at, _C.heartbeat_at).where(_C.runner.is_not(None))
    return {
        row.id: Claim(runner=row.runner, since=from_us(row.claimed_at), heartbeat_at=from_us(row.heartbeat_at))
        for row in connection.execute(query if ids is None else query.where(_C.id.in_(ids)))
    }


def write_claim(connection: Connection, key: int, *, runner: str, now: datetime, seen: Claim | None) -> bool:
    """Takes the comparison if it is still held as `seen`, and says whether it did."""
    still = _C.runner.is_(None) if seen is None else _C.runner == seen.runner
    values = {"runner": runner, "claimed_at": to_us(now), "heartbeat_at": to_us(now)}
    return connection.execute(update(comparison).where(_C.key == key, still).values(values)).rowcount == 1


def beat(connection: Connection, key: int, *, runner: str, now: datetime) -> bool:
    """Notes that the runner lives, and says whether it still holds the comparison."""
    mine = update(comparison).where(_C.key == key, _C.runner == runner)
    return connection.execute(mine.values(heartbeat_at=to_us(now))).rowcount == 1


def drop_claim(connection: Connection, key: int, *, runner: str) -> None:
    """Frees the comparison if the runner holds it."""
    mine = update(comparison).where(_C.key == key, _C.runner == runner)
    connection.execute(mine.values(runner=None, claimed_at=None, heartbeat_at=None))


@cache
def _plans() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)


def _all() -> Select[Any]:
    return select(
        _C.id,
        _C.plan,
        _C.plan_hash,
        _C.status,
        _C.label,
        _C.created_at,
        _C.started_at,
        _C.finished_at,
        _C.verdict,
        _C.stop_reason,
        _C.duplicates,
        _C.local,
        _C.baseline_url,
        _C.candidate_url,
    )


def _comparison_of(row: Row[Any]) -> Comparison:
    return Comparison(
        id=row.id,
        plan=_plans().validate_json(row.plan),
        plan_hash=row.plan_hash,
        status=codes.COMPARISON_STATUS.name[row.status],
        label=row.label,
        created_at=from_us(row.created_at),
        started_at=from_us_or_none(row.started_at),
        finished_at=from_us_or_none(row.finished_at),
        verdict=None if row.verdict is None else codes.VERDICT.name[row.verdict],
        stop_reason=row.stop_reason,
        duplicates=row.duplicates,
        local=json.loads(row.local),
        baseline_url=row.baseline_url,
        candidate_url=row.candidate_url,
    )

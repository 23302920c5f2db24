"""Analyses of a comparison, each sealed with the one before it. Each function takes a connection and its key."""

from __future__ import annotations

from datetime import datetime
from functools import cache

from pydantic import TypeAdapter
from sqlalchemy import Connection, and_, insert, select, update

from qualab.model.canonical import canonical_json
from qualab.model.comparison import Analysis, SealedAnalysis, seal_of
from qualab.model.wording import valid_text
from qualab.store import codes
from qualab.store.tables import analysis, comparison
from qualab.store.times import to_us


def add_analysis(connection: Connection, key: int, value: Analysis, *, now: datetime) -> None:
    """Stores the analysis; its verdict becomes the comparison's where it is under the comparison's own plan."""
    body, previous = valid_text(canonical_json(value)), _last_seal(connection, key)
    row = {
        "comparison_key": key,
        "created_at": to_us(now),
        "verdict": codes.VERDICT.of[value.verdict],
        "input_hash": value.input_hash,
        "body": body,
        "plan_hash": value.plan_hash,
        "previous": previous,
        "seal": seal_of(body, previous=previous),
    }
    connection.execute(insert(analysis), row)
    own = and_(comparison.c.key == key, comparison.c.plan_hash == value.plan_hash)
    connection.execute(update(comparison).where(own).values(verdict=row["verdict"]))


def read_analysis(connection: Connection, key: int, plan_hash: str | None) -> Analysis | None:
    """The newest under a plan, the comparison's own by default."""
    of_plan = comparison.c.plan_hash if plan_hash is None else plan_hash
    newest = (
        select(analysis.c.body)
        .join(comparison, comparison.c.key == analysis.c.comparison_key)
        .where(analysis.c.comparison_key == key, analysis.c.plan_hash == of_plan)
        .order_by(analysis.c.id.desc())
        .limit(1)
    )
    body: str | None = connection.scalar(newest)
    return None if body is None else _analyses().validate_json(body)


def read_seals(connection: Connection, key: int) -> list[SealedAnalysis]:
    """Every analysis as it stands there, the oldest first."""
    c = analysis.c
    query = select(c.plan_hash, c.body, c.previous, c.seal).where(c.comparison_key == key).order_by(c.id)
    return [
        SealedAnalysis(plan_hash=plan_hash, body=body, previous=previous, seal=seal)
        for plan_hash, body, previous, seal in connection.execute(query)
    ]


def read_plan_hashes(connection: Connection, key: int) -> list[str]:
    """Of every analysis, each once, in the order of their first."""
    query = select(analysis.c.plan_hash).where(analysis.c.comparison_key == key).order_by(analysis.c.id)
    return list(dict.fromkeys(connection.scalars(query)))


def _last_seal(connection: Connection, key: int) -> str:
    """What the next analysis is sealed upon. On PostgreSQL the comparison stays locked until the transaction ends."""
    own: str = connection.execute(
        select(comparison.c.plan_hash).where(comparison.c.key == key).with_for_update()
    ).scalar_one()
    newest = select(analysis.c.seal).where(analysis.c.comparison_key == key).order_by(analysis.c.id.desc()).limit(1)
    return connection.scalar(newest) or own


@cache
def _analyses() -> TypeAdapter[Analysis]:
    return TypeAdapter(Analysis)

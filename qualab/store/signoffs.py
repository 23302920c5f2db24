"""Acceptance of verdicts by people."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Row, func, insert, select

from qualab.model.canonical import plain
from qualab.model.comparison import SignOff
from qualab.model.reason import Reason
from qualab.model.wording import storable_text
from qualab.store import codes
from qualab.store.known import take_turn
from qualab.store.payloads import to_json
from qualab.store.tables import signoff
from qualab.store.times import from_us, to_us

_S = signoff.c


def add_signoff(connection: Connection, key: int, value: SignOff) -> None:
    """After whatever was signed before."""
    take_turn(connection, key)
    last = connection.scalar(select(func.max(_S.number)).where(_S.comparison_key == key)) or 0
    row = {
        "comparison_key": key,
        "number": last + 1,
        "plan_hash": value.plan_hash,
        "analysis_hash": value.analysis_hash,
        "verdict": codes.VERDICT.of[value.verdict],
        "signed_by": storable_text(value.signed_by),
        "note": storable_text(value.note),
        "override": storable_text(value.override),
        "obstacles": to_json([plain(one) for one in value.obstacles], of="a sign-off"),
        "signed_at": to_us(value.signed_at),
    }
    connection.execute(insert(signoff), row)


def read_signoffs(connection: Connection, key: int, comparison_id: str) -> list[SignOff]:
    """In the order in which they were made."""
    rows = connection.execute(select(signoff).where(_S.comparison_key == key).order_by(_S.number))
    return [_signoff_of(row, comparison_id) for row in rows]


def _signoff_of(row: Row[Any], comparison_id: str) -> SignOff:
    return SignOff(
        comparison_id=comparison_id,
        plan_hash=row.plan_hash,
        analysis_hash=row.analysis_hash,
        verdict=codes.VERDICT.name[row.verdict],
        signed_by=row.signed_by,
        note=row.note,
        override=row.override,
        obstacles=_obstacles().validate_json(row.obstacles),
        signed_at=from_us(row.signed_at),
    )


@cache
def _obstacles() -> TypeAdapter[tuple[Reason, ...]]:
    return TypeAdapter(tuple[Reason, ...])

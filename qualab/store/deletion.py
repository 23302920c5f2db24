"""Deletes comparisons with everything that belongs to them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, exists, select

from qualab.model.registry import UNDER_WAY, busy, check_let_go, not_found, signed_off, under_way
from qualab.store.comparisons import read_claim
from qualab.store.leases import drop_leases, leases_of
from qualab.store.runners import may_take
from qualab.store.submissions import read_submission
from qualab.store.tables import (
    analysis,
    answer,
    comparison,
    dictionary,
    item,
    look,
    noise_answer,
    observation,
    outcome,
    score,
    signoff,
    submission,
)

_PARTS = (score, answer, noise_answer, outcome, look, observation, analysis, dictionary, item)
"""What has a comparison's key, in an order that leaves no row without its owner."""


def keep_still(connection: Connection, comparison_id: str) -> int | None:
    """Nobody changes comparison or submission until the transaction ends. The comparison's key, if there is one."""
    key = connection.scalar(select(comparison.c.key).where(comparison.c.id == comparison_id).with_for_update())
    connection.execute(select(submission.c.key).where(submission.c.id == comparison_id).with_for_update())
    return key


def delete_comparison(
    connection: Connection, comparison_id: str, key: int | None, *, now: datetime, stale_after_s: float
) -> None:
    """What was kept still. Raises ComparisonNotFound, ComparisonSignedOff, ComparisonBusy."""
    asked = read_submission(connection, comparison_id)
    if key is None and asked is None:
        raise not_found(comparison_id)
    if key is not None and connection.scalar(select(exists().where(signoff.c.comparison_key == key))):
        raise signed_off(comparison_id)
    if asked is not None and asked.status in UNDER_WAY:
        raise under_way(comparison_id, asked.status)
    check_let_go(comparison_id, leases_of(connection, comparison_id), now=now, stale_after_s=stale_after_s)
    if key is not None:
        held = read_claim(connection, key)
        if not may_take(held, runner="", now=now, stale_after_s=stale_after_s):
            raise busy(comparison_id, held)
        for table in _PARTS:
            connection.execute(delete(table).where(table.c.comparison_key == key))
        connection.execute(delete(comparison).where(comparison.c.key == key))
    connection.execute(delete(submission).where(submission.c.id == comparison_id))
    drop_leases(connection, comparison_id)

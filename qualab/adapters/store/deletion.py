"""Deletes comparisons with everything that belongs to them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, Row, delete, exists, select

from qualab.adapters.store import codes
from qualab.adapters.store.comparisons import read_claim
from qualab.adapters.store.leases import drop_leases
from qualab.adapters.store.runners import may_take
from qualab.adapters.store.tables import (
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
from qualab.domain.claims import busy
from qualab.domain.lookup import in_preparation, not_found, signed_off
from qualab.domain.submissions import SubmissionStatus

_PARTS = (score, answer, noise_answer, outcome, look, observation, analysis, dictionary, item)
"""What has a comparison's key, in an order that leaves no row without its owner."""


def delete_comparison(connection: Connection, comparison_id: str, *, now: datetime, stale_after_s: float) -> None:
    """Raises ComparisonNotFound, ComparisonSignedOff, ComparisonBusy."""
    key = connection.scalar(select(comparison.c.key).where(comparison.c.id == comparison_id).with_for_update())
    asked = connection.execute(
        select(submission.c.status).where(submission.c.id == comparison_id).with_for_update()
    ).one_or_none()
    if key is None and asked is None:
        raise not_found(comparison_id)
    if key is not None and connection.scalar(select(exists().where(signoff.c.comparison_key == key))):
        raise signed_off(comparison_id)
    _refuse_running(asked, comparison_id)
    if key is not None:
        held = read_claim(connection, key)
        if not may_take(held, runner="", now=now, stale_after_s=stale_after_s):
            raise busy(comparison_id, held)
        for table in _PARTS:
            connection.execute(delete(table).where(table.c.comparison_key == key))
        connection.execute(delete(comparison).where(comparison.c.key == key))
    connection.execute(delete(submission).where(submission.c.id == comparison_id))
    drop_leases(connection, comparison_id)


def _refuse_running(asked: Row[tuple[int]] | None, comparison_id: str) -> None:
    if asked is not None and asked.status == codes.SUBMISSION.of[SubmissionStatus.RUNNING]:
        raise in_preparation(comparison_id)

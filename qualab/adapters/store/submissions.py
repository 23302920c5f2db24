"""What the service was asked to run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, select, update

from qualab.adapters.store import codes
from qualab.adapters.store.bulk import insert_rows
from qualab.adapters.store.payloads import to_json
from qualab.adapters.store.tables import comparison, submission
from qualab.adapters.store.times import from_us, to_us
from qualab.domain.lookup import key_reused, not_found, taken, version_conflict
from qualab.domain.submissions import Submission, SubmissionStatus
from qualab.domain.text import storable_text

_S = submission.c


def add_submission(connection: Connection, value: Submission, *, key: str, body_hash: str) -> tuple[Submission, bool]:
    """Stores it once for each idempotency key. Raises KeyReused, and StoreError where the id is taken."""
    row = _row_of(value, key=key, body_hash=body_hash)
    if key and (known := _read_by_key(connection, row)) is not None:
        return known, False
    if connection.scalar(select(comparison.c.key).where(comparison.c.id == value.id)) is not None:
        raise taken(value.id)
    if not _insert(connection, row):
        # another request came first meanwhile: with this key, or with this id
        if key and (known := _read_by_key(connection, row)) is not None:
            return known, False
        raise taken(value.id)
    return submission_of(connection.execute(select(submission).where(_S.id == value.id)).one()), True


def read_submission(connection: Connection, comparison_id: str) -> Submission | None:
    """None where it was not submitted."""
    row = connection.execute(select(submission).where(_S.id == comparison_id)).one_or_none()
    return None if row is None else submission_of(row)


def read_submissions(connection: Connection, statuses: Sequence[SubmissionStatus]) -> list[Submission]:
    """Those with one of these statuses, oldest first."""
    wanted = [codes.SUBMISSION.of[status] for status in statuses]
    query = select(submission).where(_S.status.in_(wanted)).order_by(_S.created_at, _S.key)
    return [submission_of(row) for row in connection.execute(query)]


def change_submission(
    connection: Connection,
    comparison_id: str,
    status: SubmissionStatus,
    *,
    error: Mapping[str, str],
    version: int | None,
) -> Submission:
    """What is stored now. Raises ComparisonNotFound, VersionConflict."""
    stored = connection.scalar(select(_S.version).where(_S.id == comparison_id).with_for_update())
    if stored is None:
        raise not_found(comparison_id)
    if version is not None and version != stored:
        raise version_conflict(comparison_id, version, stored)
    values = {
        "status": codes.SUBMISSION.of[status],
        "error": to_json(dict(error), of=f"the error of {comparison_id}"),
        "version": stored + 1,
    }
    connection.execute(update(submission).where(_S.id == comparison_id).values(values))
    return submission_of(connection.execute(select(submission).where(_S.id == comparison_id)).one())


def submission_of(row: Row[Any]) -> Submission:
    """A submission from a whole row."""
    return Submission(
        id=row.id,
        experiment=json.loads(row.experiment),
        label=row.label,
        model=row.model,
        created_at=from_us(row.created_at),
        created_by=row.created_by,
        status=codes.SUBMISSION.name[row.status],
        error=json.loads(row.error),
        version=row.version,
    )


def _row_of(value: Submission, *, key: str, body_hash: str) -> dict[str, Any]:
    return {
        "id": value.id,
        "experiment": to_json(value.experiment, of=f"submission {value.id}"),
        "label": storable_text(value.label),
        "model": storable_text(value.model),
        "created_at": to_us(value.created_at),
        "created_by": storable_text(value.created_by),
        "status": codes.SUBMISSION.of[value.status],
        "error": to_json(value.error, of=f"the error of {value.id}"),
        "version": value.version,
        "is_planned": False,
        "idempotency_key": storable_text(key) or None,
        "body_hash": body_hash,
    }


def _insert(connection: Connection, row: dict[str, Any]) -> bool:
    """False where the key or the id is there already."""
    return insert_rows(connection, submission, [tuple(row.values())], names=tuple(row), skip_known=True) == 1


def _read_by_key(connection: Connection, row: Mapping[str, Any]) -> Submission | None:
    """What was stored with the row's key. Raises KeyReused where another request was."""
    found = connection.execute(select(submission).where(_S.idempotency_key == row["idempotency_key"])).one_or_none()
    if found is None:
        return None
    if (found.body_hash, found.created_by) != (row["body_hash"], row["created_by"]):
        raise key_reused(row["idempotency_key"])
    return submission_of(found)

"""What the service was asked to run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, select, update

from qualab.model.registry import (
    UNDER_WAY,
    Submission,
    SubmissionStatus,
    key_reused,
    not_found,
    taken,
    version_conflict,
)
from qualab.model.wording import storable_text
from qualab.store import codes
from qualab.store.bulk import insert_rows
from qualab.store.payloads import to_json
from qualab.store.tables import answer, comparison, noise_answer, submission
from qualab.store.times import from_us, to_us

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
    stored = _kept_still(connection, comparison_id, version)
    values = {
        "status": codes.SUBMISSION.of[status],
        "error": to_json(dict(error), of=f"the error of {comparison_id}"),
        "takeovers": stored.takeovers if status in UNDER_WAY else 0,
    }
    return _changed(connection, stored, values)


def take_over(connection: Connection, comparison_id: str, *, version: int) -> Submission:
    """QUEUED again, and counted where there is no more answer. Raises ComparisonNotFound, VersionConflict."""
    stored = _kept_still(connection, comparison_id, version)
    answered = _count_answers(connection, comparison_id)
    takeovers = stored.takeovers + 1 if answered == stored.answered else 0
    values = {"status": codes.SUBMISSION.of[SubmissionStatus.QUEUED], "takeovers": takeovers, "answered": answered}
    return _changed(connection, stored, values)


def _kept_still(connection: Connection, comparison_id: str, version: int | None) -> Row[Any]:
    """Nobody else changes it until the transaction ends. Raises ComparisonNotFound, VersionConflict."""
    columns = [_S.key, _S.version, _S.takeovers, _S.answered]
    stored = connection.execute(select(*columns).where(_S.id == comparison_id).with_for_update()).one_or_none()
    if stored is None:
        raise not_found(comparison_id)
    if version is not None and version != stored.version:
        raise version_conflict(comparison_id, version, stored.version)
    return stored


def _changed(connection: Connection, stored: Row[Any], values: Mapping[str, Any]) -> Submission:
    mine = update(submission).where(_S.key == stored.key).values({**values, "version": stored.version + 1})
    return submission_of(connection.execute(mine.returning(submission)).one())


def _count_answers(connection: Connection, comparison_id: str) -> int:
    """Of both arms and the noise floor; 0 where there is no comparison yet."""
    key = select(comparison.c.key).where(comparison.c.id == comparison_id).scalar_subquery()
    counts = (select(func.count()).where(one.c.comparison_key == key) for one in (answer, noise_answer))
    return sum(connection.execute(count).scalar_one() for count in counts)


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
        takeovers=row.takeovers,
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
        "takeovers": value.takeovers,
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

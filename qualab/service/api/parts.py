"""Which part of a request is wrong, and what is allowed there, where the error itself does not name it."""

from __future__ import annotations

from collections.abc import Mapping

from qualab import errors as e
from qualab.errors import QualabError

OF_HTTP: Mapping[int, tuple[str, str]] = {
    400: ("body", "must be a JSON object"),
    403: ("Origin", "must be this service's own"),
    404: ("path", "must be one of the routes in /openapi.json"),
    405: ("method", "must be one that the Allow header names"),
    408: ("body", "must come in time"),
    413: ("body", "must be smaller"),
    415: ("Content-Type", "must be application/json"),
    421: ("Host", "must be this machine's own name, or one that the operator allows"),
}

OF_ERROR: tuple[tuple[type[QualabError], str], ...] = (
    (e.ComparisonNotFound, "comparison_id"),
    (e.ItemNotFound, "position"),
    (e.VersionConflict, "If-Match"),
    (e.KeyReused, "Idempotency-Key"),
    (e.Unauthenticated, "Authorization"),
    (e.Forbidden, "Authorization"),
    (e.SignOffRefused, "override"),
    (e.ComparisonSignedOff, "comparison_id"),
    (e.ComparisonBusy, "comparison_id"),
    (e.WrongState, "comparison_id"),
    (e.NotYet, "comparison_id"),
    (e.PlanChanged, "plan"),
    (e.UnknownTask, "tasks"),
    (e.BrokenTask, "tasks"),
    (e.DatasetUnavailable, "tasks"),
    (e.BadDataFile, "tasks"),
    (e.EmptyDataset, "tasks"),
    (e.ScoringUnavailable, "tasks"),
    (e.TooManyRequests, "rate"),
    (e.UsageError, "body"),
)
"""What is allowed there is the error's hint, or its message where it gives none."""


def of_error(error: QualabError) -> dict[str, str]:
    """Empty for what is no fault of the request."""
    said = error.details.get("fields")
    if isinstance(said, dict) and said:
        return {str(name): str(allowed) for name, allowed in said.items()}
    field = next((name for kind, name in OF_ERROR if isinstance(error, kind)), "")
    return {field: error.hint or error.message} if field else {}


def of_status(status: int) -> dict[str, str]:
    """Empty for what is no fault of the request."""
    return dict([OF_HTTP[status]]) if status in OF_HTTP else {}

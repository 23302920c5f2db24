"""What is said when an id leads to nothing, or to several, or what is asked for does not fit what is stored."""

from __future__ import annotations

from collections.abc import Sequence

from qualab.domain.submissions import SubmissionStatus
from qualab.errors import (
    ComparisonBusy,
    ComparisonNotFound,
    ComparisonSignedOff,
    ItemNotFound,
    KeyReused,
    StoreError,
    TokenNotFound,
    VersionConflict,
)

_MOST_SHOWN = 5


def not_found(comparison_id: str) -> ComparisonNotFound:
    """For an id that no comparison has or begins with."""
    return ComparisonNotFound(f"There is no comparison '{comparison_id}'", hint="`qualab list` shows what there is")


def ambiguous(beginning: str, ids: Sequence[str]) -> ComparisonNotFound:
    """For the beginning of several ids."""
    shown = ", ".join(ids[:_MOST_SHOWN]) + (", ..." if len(ids) > _MOST_SHOWN else "")
    return ComparisonNotFound(f"'{beginning}' begins several comparisons: {shown}", hint="Give more of the id")


def not_next(comparison_id: str, number: int, n_taken: int) -> StoreError:
    """For a look that does not follow the last one: each is taken once."""
    return StoreError(f"look {number} of {comparison_id} does not follow the {n_taken} that were taken")


def taken(comparison_id: str) -> StoreError:
    """For an id that a comparison has, or that was asked for before."""
    return StoreError(f"comparison {comparison_id} exists already")


def item_not_found(comparison_id: str, position: int) -> ItemNotFound:
    """For a position without an item."""
    return ItemNotFound(f"comparison {comparison_id} has no item at position {position}")


def token_not_found(token_id: str) -> TokenNotFound:
    """For an id that no token has."""
    return TokenNotFound(f"There is no token '{token_id}'", hint="`qualab token list` shows what there is")


def key_reused(key: str) -> KeyReused:
    """For an idempotency key that stands for another request."""
    return KeyReused(f"the idempotency key '{key}' was used for another request", hint="give each request its own key")


def version_conflict(comparison_id: str, version: int, stored: int) -> VersionConflict:
    """For a change of something that has changed since it was read."""
    return VersionConflict(
        f"comparison {comparison_id} is at version {stored}, not {version}", hint="read it again", stored=stored
    )


def changed(comparison_id: str) -> VersionConflict:
    """For the deletion of something that has changed since it was read."""
    return VersionConflict(f"Comparison {comparison_id} has changed since it was read", hint="Read it again")


def signed_off(comparison_id: str) -> ComparisonSignedOff:
    """For the deletion, or another run, of a comparison that somebody accepted."""
    return ComparisonSignedOff(
        f"comparison {comparison_id} is signed off, and kept as it is", hint="start another comparison"
    )


def under_way(comparison_id: str, status: SubmissionStatus) -> ComparisonBusy:
    """For the deletion of a comparison that is to be run, or is."""
    return ComparisonBusy(f"Comparison {comparison_id} is {status.value}", hint="Cancel it first")


def impossible_outcome() -> StoreError:
    """For outcomes that cannot be stored."""
    return StoreError("an outcome comes twice, is impossible, or belongs to an item that its comparison does not have")

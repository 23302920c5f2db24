"""What is said when an id leads to no comparison, or to several, or a number does not fit."""

from __future__ import annotations

from collections.abc import Sequence

from qualab.errors import ComparisonNotFound, StoreError

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

"""What a list is narrowed to, as conditions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Table, false

from qualab.model.ports import ComparisonFilter
from qualab.model.wording import storable_text
from qualab.store import codes
from qualab.store.tables import comparison
from qualab.store.times import to_us


def matching(wanted: ComparisonFilter, table: Table, statuses: dict[Any, int]) -> Iterator[ColumnElement[bool]]:
    """The filter's conditions on what comparisons and submissions have in common."""
    if wanted.status is not None:
        # both vocabularies have "running", and mean the same by it
        codes_of_it = [code for status, code in statuses.items() if status == wanted.status]
        yield table.c.status == codes_of_it[0] if codes_of_it else false()
    if wanted.label is not None:
        yield table.c.label == storable_text(wanted.label)
    if wanted.model is not None:
        yield table.c.model == storable_text(wanted.model)
    if wanted.since is not None:
        yield table.c.created_at >= to_us(wanted.since)
    if wanted.until is not None:
        yield table.c.created_at < to_us(wanted.until)


def matching_comparisons(wanted: ComparisonFilter) -> Iterator[ColumnElement[bool]]:
    """All of the filter's conditions, on comparisons."""
    yield from matching(wanted, comparison, codes.COMPARISON_STATUS.of)
    if wanted.verdict is not None:
        yield comparison.c.verdict == codes.VERDICT.of[wanted.verdict]

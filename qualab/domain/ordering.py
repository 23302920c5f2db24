"""The orders in which comparisons are listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from qualab.domain.names import ComparisonStatus, Verdict
from qualab.domain.submissions import SubmissionStatus

Status = ComparisonStatus | SubmissionStatus


class SortBy(StrEnum):
    """What a list is ordered by."""

    CREATED = "created"
    LABEL = "label"
    MODEL = "model"
    STATUS = "status"
    VERDICT = "verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOrder:
    """One order. What is equal in it stands newest first, whichever way it runs."""

    by: SortBy = SortBy.CREATED
    is_descending: bool = True

    @property
    def name(self) -> str:
        """As in a URL: "label", or "-label" the other way."""
        return f"-{self.by}" if self.is_descending else self.by.value

    @property
    def is_by_text(self) -> bool:
        """Whether a place in it is told by a text, and not by numbers alone."""
        return self.by in (SortBy.LABEL, SortBy.MODEL)

    @property
    def cursor_kind(self) -> str:
        """What a cursor of the list in this order is of."""
        return "comparisons" if self == ListOrder() else f"comparisons {self.name}"


NEWEST_FIRST = ListOrder()
ORDERS: Mapping[str, ListOrder] = {
    order.name: order for by in SortBy for order in (ListOrder(by=by, is_descending=way) for way in (False, True))
}
"""Every order by its name."""

STATUSES: tuple[tuple[Status, ...], ...] = (
    (ComparisonStatus.RUNNING, SubmissionStatus.RUNNING),
    (ComparisonStatus.ANSWERED,),
    (ComparisonStatus.PLANNED,),
    (SubmissionStatus.QUEUED,),
    (SubmissionStatus.FAILED,),
    (ComparisonStatus.STOPPED,),
    (ComparisonStatus.INTERRUPTED,),
    (SubmissionStatus.CANCELLED,),
    (SubmissionStatus.DONE,),
    (ComparisonStatus.FINISHED,),
)
"""From what is under way over what went wrong to what is over."""

VERDICTS: tuple[Verdict | None, ...] = (
    Verdict.REGRESSION,
    Verdict.INVALID,
    Verdict.INCONCLUSIVE,
    Verdict.NOT_TESTED,
    Verdict.IMPROVEMENT,
    Verdict.NON_INFERIOR,
    Verdict.EQUIVALENT,
    None,
)
"""From what stops a release to what lets it go; last what has no verdict."""

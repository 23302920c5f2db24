"""The page of all comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from qualab.app.reporting.metrics import verdict_cell
from qualab.app.service.desk import Desk
from qualab.app.service.reading import ENDED
from qualab.app.viewing.words import Wording
from qualab.domain.names import ArmName
from qualab.domain.numbers import count
from qualab.domain.report import Cell
from qualab.domain.submissions import ComparisonSummary
from qualab.ports import ComparisonFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One comparison of the list."""

    summary: ComparisonSummary
    name: str
    """Its label, or its id."""
    status: str
    verdict: Cell | None
    created: str
    answered: str
    """How far it is; empty where nothing is under way."""
    is_live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """Newest first."""

    lines: tuple[Line, ...]
    next_cursor: str | None

    @property
    def is_live(self) -> bool:
        """Whether anything on the page may change by itself."""
        return any(line.is_live for line in self.lines)


def list_page(desk: Desk, wanted: ComparisonFilter, cursor: str | None, words: Wording) -> ListPage:
    """Raises InvalidValue for a cursor that is none."""
    page = desk.registry.page(wanted, cursor=cursor)
    return ListPage(lines=tuple(_line(desk, one, words) for one in page.entries), next_cursor=page.next_cursor)


def _line(desk: Desk, summary: ComparisonSummary, words: Wording) -> Line:
    is_live = summary.status not in ENDED
    return Line(
        summary=summary,
        name=summary.label or summary.id,
        status=words(f"status {summary.status}"),
        verdict=None if summary.verdict is None else verdict_cell(summary.verdict, words.report),
        created=shown_time(summary.created_at),
        answered=_answered(desk, summary, words) if is_live and summary.plan_hash else "",
        is_live=is_live,
    )


def _answered(desk: Desk, summary: ComparisonSummary, words: Wording) -> str:
    n = desk.services.store.n_answered(summary.id)
    return words("answers so far", off=count(n[ArmName.BASELINE]), on=count(n[ArmName.CANDIDATE]))


def shown_time(moment: datetime) -> str:
    """The same in every language, and it sorts as text."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"

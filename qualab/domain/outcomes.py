"""What became of one item in both arms: what an item browser filters by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qualab.domain.names import RequestKind


class Change(StrEnum):
    """How the candidate's score of an item stands to the baseline's, by its task's deciding metric."""

    SAME = "same"
    GAIN = "gain"
    LOSS = "loss"
    UNKNOWN = "unknown"
    """A score is missing in an arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One item and repeat."""

    position: int
    repeat: int
    task: str
    doc_id: int
    kind: RequestKind
    change: Change
    baseline: float | None
    """Its score; None where it is missing."""
    candidate: float | None
    different_text: bool
    """Whether both arms answered, and not with the same bytes. Always False for log-likelihoods."""
    length: int
    """Characters of the longer answer; 0 for log-likelihoods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeFilter:
    """Which items a page shows; every condition that is set must hold."""

    task: str | None = None
    flipped: bool | None = None
    """True: gains and losses."""
    change: Change | None = None
    missing: bool | None = None
    different_text: bool | None = None
    min_length: int | None = None
    max_length: int | None = None

"""Acceptance of a verdict by a person."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from qualab.domain.names import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOff:
    """Who accepted which verdict of which plan. Added, never changed."""

    comparison_id: str
    plan_hash: str
    analysis_hash: str
    """Of the analysis that was accepted (its seal)."""
    verdict: Verdict
    signed_by: str
    note: str
    override: str
    """The reason why it was accepted in spite of `obstacles`; empty where there were none."""
    obstacles: tuple[str, ...]
    signed_at: datetime

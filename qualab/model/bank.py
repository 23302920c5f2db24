"""A banked baseline: a reference to a finished comparison whose baseline answers may stand in for another's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from qualab.model.engine import Engine
from qualab.model.plan import BankNoise, PinFound, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    name: str
    comparison_id: str
    """The comparison that holds the answers; it cannot be deleted while it is banked."""
    plan_hash: str
    model: str
    n_runs: int
    """Baseline answers an item that count in a test (K)."""
    banked_at: datetime
    engine: Engine
    tokens: str
    """Hash of what the tokenizer made of a few prompts; empty where the engine offers none."""
    pins: tuple[PinFound, ...]
    noise: BankNoise


@dataclass(frozen=True, slots=True)
class Banked:
    """A bank with the plan under which its answers were asked."""

    bank: Bank
    plan: Plan

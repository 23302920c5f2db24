"""Who may ask the service for what, and the record of who did what."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class Scope(StrEnum):
    """What a token is good for. Each holds the ones before it."""

    READ = "read"
    RUN = "run"
    ADMIN = "admin"

    def allows(self, wanted: Scope) -> bool:
        order = tuple(Scope)
        return order.index(self) >= order.index(wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A bearer token as it is kept: its secret is random and long, so that a plain SHA-256 hides it."""

    id: str
    """Public; the part of the token before the dot."""
    name: str
    """For people and for the record of who did what."""
    digest: bytes
    """SHA-256 of the secret, 32 bytes."""
    scope: Scope
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change, written in the transaction that makes it."""

    at: datetime
    who: str
    """A token's name, "loopback", or "user@host" at a command line."""
    action: str
    """As "comparison.create", "comparison.delete", "token.revoke"."""
    subject: str
    """What it was done to: an id."""
    details: dict[str, str] = field(default_factory=dict)

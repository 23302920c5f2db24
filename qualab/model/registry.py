"""Tokens, the record of changes, lines and pages of lists, claims."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from pydantic import computed_field

from qualab.errors import ComparisonBusy, ComparisonNotFound, ComparisonSignedOff, InvalidValue
from qualab.model.items import JsonObject
from qualab.model.names import ComparisonStatus, Verdict, WebhookState
from qualab.model.reason import Reason
from qualab.model.wording import storable_text

R = TypeVar("R")
T = TypeVar("T")


class Scope(StrEnum):
    """Permissions of a token. Each scope includes the ones before it."""

    READ = "read"
    RUN = "run"
    ADMIN = "admin"

    def allows(self, needed: Scope) -> bool:
        order = tuple(Scope)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A bearer token, stored as a hash: its secret is random and long, so that a plain SHA-256 hides it."""

    id: str
    name: str
    digest: bytes
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
    subject: str
    details: dict[str, str] = field(default_factory=dict)


STALE_AFTER_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    every_s: float = 5.0
    stale_after_s: float = STALE_AFTER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A right to run, held by a runner ("host:pid:nonce")."""

    runner: str
    since: datetime
    heartbeat_at: datetime

    def __str__(self) -> str:
        return f"{self.runner} (since {self.since:%Y-%m-%d %H:%M:%S} UTC)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSummary:
    """One comparison without its plan: a line of a list, and what CI polls."""

    id: str
    status: ComparisonStatus
    verdict: Verdict | None
    label: str
    model: str
    suite: str
    plan_hash: str
    n_items: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    stop_reason: Reason | None
    is_signed_off: bool
    created_by: str = ""
    """Who asked the service for it; empty at a command line."""
    version: int = 1
    error: Mapping[str, str] = field(default_factory=dict)
    n_items_asked: int | None = None
    """Items that were asked where a look ended the run; None where all are."""
    experiment: JsonObject | None = None
    """The request to the service; only where one comparison is read, and none at a command line."""

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def has_ended(self) -> bool:
        """True where nothing more happens by itself."""
        return self.status.has_ended

    @property
    def is_requested(self) -> bool:
        """True where workers of the service run it."""
        return bool(self.created_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A message on a comparison's end, and what came of it."""

    comparison_id: str
    url: str
    version: int
    """The comparison's at the end that it tells of; 0 before."""
    state: WebhookState
    attempts: int
    last_at: datetime | None
    """When it was last sent."""
    due_at: datetime | None
    """When it is sent again at the latest; None before the end, and where nothing more is sent."""
    result: str
    """What the last try came to."""


class ListOrder(StrEnum):
    """The order of a list; equal entries stand newest first."""

    NEWEST = "-created"
    LABEL = "label"
    VERDICT = "verdict"
    """Verdicts that stop a release first, comparisons without one last."""


NEWEST_FIRST = ListOrder.NEWEST
VERDICTS = (
    Verdict.REGRESSION,
    Verdict.INVALID,
    Verdict.INCONCLUSIVE,
    Verdict.NOT_TESTED,
    Verdict.IMPROVEMENT,
    Verdict.NON_INFERIOR,
    Verdict.EQUIVALENT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    entries: tuple[T, ...]
    next_cursor: str | None


def page_of(rows: Sequence[R], limit: int, cursor_of: Callable[[R], str], convert: Callable[[R], T]) -> Page[T]:
    """Make the page of `limit` entries from `rows`, of which there is one more where there is a next page."""
    cursor = cursor_of(rows[limit - 1]) if len(rows) > limit else None
    return Page(entries=tuple(map(convert, rows[:limit])), next_cursor=cursor)


_LARGEST = 2**63


def encode_cursor(name: str, *place: int | str) -> str:
    """Name a place in the list `name`."""
    text = json.dumps([name, *place], ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, name: str, *kinds: type[int] | type[str]) -> tuple[Any, ...]:
    """Read a place in the list `name`. Raises InvalidValue for a cursor of another list."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        named, *place = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        named, place = None, []
    if (
        named != name
        or [type(value) for value in place] != [*kinds]
        or any(abs(value) >= _LARGEST if isinstance(value, int) else storable_text(value) != value for value in place)
    ):
        raise InvalidValue(
            "the cursor is none of this list",
            hint="give `next_cursor` of a page back as it came",
            fields={"cursor": "must be `next_cursor` of a page"},
        )
    return tuple(place)


def not_found(comparison_id: str) -> ComparisonNotFound:
    """Refuse an id that no comparison has or begins with."""
    return ComparisonNotFound(f"There is no comparison '{comparison_id}'", hint="`qualab list` shows what there is")


def signed_off(comparison_id: str) -> ComparisonSignedOff:
    """Refuse to delete, or run again, a comparison that somebody accepted."""
    return ComparisonSignedOff(
        f"comparison {comparison_id} is signed off, and kept as it is", hint="start another comparison"
    )


def busy(comparison_id: str, holder: Claim | None) -> ComparisonBusy:
    """Refuse a runner that may not run, or that has lost its claim."""
    if holder is None:
        return ComparisonBusy(f"comparison {comparison_id} was taken over by another runner, which has ended")
    return ComparisonBusy(
        f"comparison {comparison_id} is being run by {holder}",
        hint="wait for it to end, or stop that process, then resume",
        holder=holder.runner,
        since=holder.since,
    )


_LOOPBACK = ("localhost", "127.0.0.1", "::1")
Address = tuple[str, int | None, str]


def urls_of(text: str) -> tuple[str, ...]:
    """Split an arm's URLs: one, or its replicas' with commas between."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) or ((text,) if text else ())


def address_of(url: str) -> Address:
    """Split a URL to tell endpoints apart as they are written; localhost has one spelling."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return "localhost" if host in _LOOPBACK else host, port, parts.path.rstrip("/").removesuffix("/v1")

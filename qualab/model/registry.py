"""Who may ask the service for what, and the record of who did what."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from qualab.errors import (
    ComparisonBusy,
    ComparisonNotFound,
    ComparisonSignedOff,
    InvalidValue,
    ItemNotFound,
    KeyReused,
    StoreError,
    TokenNotFound,
    VersionConflict,
)
from qualab.model.comparison import MetricResult
from qualab.model.items import JsonObject
from qualab.model.names import ComparisonStatus, Verdict
from qualab.model.reason import Reason
from qualab.model.wording import storable_text


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


STALE_AFTER_S = 30.0
"""A runner without a heartbeat for longer is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """How often a runner says that it lives, and how long its silence is borne."""

    every_s: float = 5.0
    stale_after_s: float = STALE_AFTER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to run, as a runner ("host:pid:nonce") holds it."""

    runner: str
    since: datetime
    heartbeat_at: datetime

    def __str__(self) -> str:
        return f"{self.runner} (since {self.since:%Y-%m-%d %H:%M:%S} UTC)"


def may_claim(
    held: Claim | None,
    *,
    runner: str,
    now: datetime,
    stale_after_s: float,
    host: str,
    is_alive: Callable[[int], bool],
) -> bool:
    """Whether a runner may take a comparison that is `held` so: nobody else has it, or who has it is gone."""
    if held is None or held.runner == runner:
        return True
    return is_gone(held, now=now, stale_after_s=stale_after_s, host=host, is_alive=is_alive)


def is_gone(held: Claim, *, now: datetime, stale_after_s: float, host: str, is_alive: Callable[[int], bool]) -> bool:
    """Whether a runner has had no heartbeat for too long, or was on `host` and its process is not alive."""
    process = process_on(host, held.runner)
    is_dead = process is not None and not is_alive(process)
    return is_dead or now - held.heartbeat_at > timedelta(seconds=stale_after_s)


def process_on(host: str, runner: str) -> int | None:
    """The process id of a runner on `host`; None for a runner elsewhere, or of another form."""
    parts = runner.rsplit(":", 2)
    if len(parts) != 3 or parts[0] != host or not parts[1].isdecimal():
        return None
    return int(parts[1])


def busy(comparison_id: str, holder: Claim | None) -> ComparisonBusy:
    """For a runner that may not run, because of the holder of the claim, or because it has lost its own."""
    if holder is None:
        return ComparisonBusy(f"comparison {comparison_id} was taken over by another runner, which has ended")
    return ComparisonBusy(
        f"comparison {comparison_id} is being run by {holder}",
        hint="wait for it to end, or stop that process, then resume",
        holder=holder.runner,
        since=holder.since,
    )


LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLease:
    """A comparison's right to send to a host, as long as its runner renews it."""

    host: str
    comparison_id: str
    runner: str
    slots: int
    """Requests in flight, at most."""
    is_exclusive: bool
    """Whether no other comparison may send to the host meanwhile: speed is being measured."""
    heartbeat_at: datetime

    def is_stale(self, now: datetime, stale_after_s: float) -> bool:
        return now - self.heartbeat_at > timedelta(seconds=stale_after_s)


def check_let_go(comparison_id: str, leases: Iterable[HostLease], *, now: datetime, stale_after_s: float) -> None:
    """Raises ComparisonBusy where a worker still has leases of it: it may be about to store the comparison."""
    for lease in leases:
        if lease.comparison_id == comparison_id and not lease.is_stale(now, stale_after_s):
            raise ComparisonBusy(
                f"comparison {comparison_id} is still held by the worker {lease.runner}",
                hint="try again in a few seconds: a worker lets go of what was cancelled",
                holder=lease.runner,
            )


def host_of(url: str) -> str:
    """The machine that a URL names, whatever its port: what runs beside it there is disturbed, too."""
    name = urlsplit(url).hostname or url
    return LOOPBACK[0] if name in LOOPBACK else name


def may_lease(others: Iterable[HostLease], slots: Mapping[str, int], *, limit: int, is_exclusive: bool) -> bool:
    """Whether a comparison gets all of the hosts in `slots`, given the living leases of the other comparisons."""
    used = dict.fromkeys(slots, 0)
    for lease in others:
        if lease.host in used:
            if is_exclusive or lease.is_exclusive:
                return False
            used[lease.host] += lease.slots
    return all(used[host] + wanted <= limit for host, wanted in slots.items())


def check_slots(slots: Mapping[str, int], limit: int) -> None:
    """Raises InvalidValue for what no wait would bring about."""
    for host, wanted in slots.items():
        if not 1 <= wanted <= limit:
            raise InvalidValue(
                f"{wanted} requests in flight at {host} are not within the limit of {limit}",
                hint="lower the concurrency, or raise the limit of the host",
            )


class SubmissionStatus(StrEnum):
    """How far a worker has got with it. What the run itself does is the comparison's status."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNDER_WAY = (SubmissionStatus.QUEUED, SubmissionStatus.RUNNING)
"""What a worker has, or will have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSummary:
    """One line of a list: of a comparison, or of a submission that has not become one."""

    id: str
    status: ComparisonStatus | SubmissionStatus
    """A submission's only while there is no comparison."""
    verdict: Verdict | None
    label: str
    model: str
    suite: str
    """Empty while there is no plan; so is the hash."""
    plan_hash: str
    n_items: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    stop_reason: str
    is_signed_off: bool
    n_items_asked: int | None = None
    """Items that were asked where a look ended the run; None where all are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A comparison that was asked for. There is a comparison of the same id once its plan is made."""

    id: str
    """The comparison's id."""
    experiment: JsonObject
    """The settings that describe it (an experiment file's keys); secrets are references, never values."""
    label: str
    model: str
    created_at: datetime
    created_by: str
    status: SubmissionStatus = SubmissionStatus.QUEUED
    error: dict[str, str] = field(default_factory=dict)
    """code, message and hint of what kept it from running; empty otherwise."""
    version: int = 1
    """Grows with every change: the ETag of what may still change."""
    takeovers: int = 0
    """In a row, from workers that were lost and had stored no answer; 0 again once it has ended."""

    def summary(self) -> ComparisonSummary:
        """While there is no comparison."""
        return ComparisonSummary(
            id=self.id,
            status=self.status,
            verdict=None,
            label=self.label,
            model=self.model,
            suite="",
            plan_hash="",
            n_items=0,
            created_at=self.created_at,
            started_at=None,
            finished_at=None,
            stop_reason=self.error.get("message", ""),
            is_signed_off=False,
        )


T = TypeVar("T")
_LARGEST = 2**63
"""Beyond what databases count to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """One page, and the cursor of the next one."""

    entries: tuple[T, ...]
    next_cursor: str | None
    """Opaque; None where this page is the last."""


def page_of(entries: Sequence[T], limit: int, cursor_of: Callable[[T], str]) -> Page[T]:
    """The page of `limit` entries at the head of `entries`, which hold one more where there is a next page."""
    shown = tuple(entries[:limit])
    return Page(entries=shown, next_cursor=cursor_of(shown[-1]) if len(entries) > limit else None)


def encode_cursor(name: str, *place: int) -> str:
    """A cursor of the list `name` that stands behind `place`."""
    text = ",".join((name, *map(str, place)))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, name: str, n_places: int) -> tuple[int, ...]:
    """The place that the cursor stands behind. Raises InvalidValue for what is no cursor of this list."""
    try:
        named, *place = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).split(b",")
        numbers = tuple(map(int, place))
    except (ValueError, binascii.Error):
        raise _unknown() from None
    if named != name.encode() or len(numbers) != n_places or any(abs(number) >= _LARGEST for number in numbers):
        raise _unknown()
    return numbers


def encode_text_cursor(name: str, text: str, *place: int) -> str:
    """The same of a list in the order of a text."""
    packed = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    return f"{encode_cursor(name, *place)}.{packed}"


def decode_text_cursor(cursor: str, name: str, n_places: int) -> tuple[str, tuple[int, ...]]:
    """The text, and the place. Raises InvalidValue."""
    place, _, packed = cursor.partition(".")
    try:
        text = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        raise _unknown() from None
    if storable_text(text) != text:
        raise _unknown()
    return text, decode_cursor(place, name, n_places)


def _unknown() -> InvalidValue:
    hint = "give `next_cursor` of a page back as it came"
    return InvalidValue(
        "the cursor is none of this list", hint=hint, fields={"cursor": "must be `next_cursor` of a page"}
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictSummary:
    """A verdict as CI polls it."""

    id: str
    status: ComparisonStatus | SubmissionStatus
    has_ended: bool
    """Nothing more comes, unless it is taken up again."""
    verdict: Verdict | None
    plan_hash: str
    label: str
    model: str
    finished_at: datetime | None
    stop_reason: str
    error: Mapping[str, str]
    """What kept it from running: code, message, hint; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSummary:
    """The result table with its verdict, reasons and caveats."""

    comparison_id: str
    plan_hash: str
    verdict: Verdict
    reasons: tuple[Reason, ...]
    caveats: tuple[Reason, ...]
    metrics: tuple[MetricResult, ...]

"""What the service keeps beside comparisons, in memory: shipped, and for tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from qualab.errors import StoreError
from qualab.model.comparison import SignOff
from qualab.model.items import Answer, Change, Item, Outcome, OutcomeFilter, Score
from qualab.model.names import ArmName
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import (
    NEWEST_FIRST,
    UNDER_WAY,
    AuditEntry,
    Claim,
    ComparisonSummary,
    HostLease,
    ListOrder,
    Page,
    Submission,
    SubmissionStatus,
    Token,
    busy,
    changed,
    check_let_go,
    check_slots,
    decode_cursor,
    encode_cursor,
    item_not_found,
    key_reused,
    may_lease,
    not_found,
    page_of,
    signed_off,
    taken,
    token_not_found,
    under_way,
    version_conflict,
)
from qualab.model.wording import storable_text
from qualab.store.memory.ordering import Listed, page_in_order
from qualab.store.memory.store import Kept, MemoryStore, as_utc, is_listed, may_take, outcome_place, require_json


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submitted:
    submission: Submission
    number: int
    key: str
    body_hash: str
    answered: int = 0
    """At the last takeover."""


class MemoryRegistry:
    """`qualab.model.ports.Registry` beside a store in memory, for one process and one thread."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._submitted: dict[str, _Submitted] = {}
        self._n_submitted = 0
        self._tokens: dict[str, Token] = {}
        self._audit: list[AuditEntry] = []
        self._leases: dict[tuple[str, str], HostLease] = {}
        self._workers: dict[str, Claim] = {}

    def page(
        self, wanted: ComparisonFilter, *, order: ListOrder = NEWEST_FIRST, cursor: str | None = None
    ) -> Page[ComparisonSummary]:
        """Comparisons, and submissions that have not become one."""
        lines = [line for line in (*self._comparisons(), *self._waiting()) if _matches(line.summary, wanted)]
        return page_in_order(lines, order, cursor, limit=max(wanted.limit, 1))

    def summary(self, comparison_id: str) -> ComparisonSummary:
        """Of a comparison or a submission. Raises ComparisonNotFound."""
        if comparison_id in self._store.kept:
            return _summary_of(self._store.kept[comparison_id])
        return self._submission(comparison_id).submission.summary()

    def about(self, comparison_id: str) -> tuple[ComparisonSummary, Submission | None]:
        """Summary and submission."""
        return self.summary(comparison_id), self.submission(comparison_id)

    def abouts(self, comparison_ids: Sequence[str]) -> Mapping[str, tuple[ComparisonSummary, Submission | None]]:
        """By id."""
        there = (one for one in comparison_ids if one in self._store.kept or one in self._submitted)
        return {one: self.about(one) for one in there}

    def submit(
        self, submission: Submission, *, entry: AuditEntry, key: str = "", body_hash: str = ""
    ) -> tuple[Submission, bool]:
        """Stores it once for each idempotency key."""
        submission = _storable(submission)
        known = next((one for one in self._submitted.values() if key and one.key == key), None)
        if known is not None:
            if (known.body_hash, known.submission.created_by) != (body_hash, submission.created_by):
                raise key_reused(key)
            return known.submission, False
        if submission.id in self._submitted or submission.id in self._store.kept:
            raise taken(submission.id)
        self._n_submitted += 1
        self._submitted[submission.id] = _Submitted(
            submission=submission, number=self._n_submitted, key=key, body_hash=body_hash
        )
        self._note(entry)
        return submission, True

    def submission(self, comparison_id: str) -> Submission | None:
        """None where it was not submitted."""
        known = self._submitted.get(comparison_id)
        return None if known is None else known.submission

    def submissions(self, *statuses: SubmissionStatus) -> Sequence[Submission]:
        """Those with one of these statuses, oldest first."""
        oldest_first = sorted(self._submitted.values(), key=lambda one: (one.submission.created_at, one.number))
        return [one.submission for one in oldest_first if one.submission.status in statuses]

    def set_submission(
        self,
        comparison_id: str,
        status: SubmissionStatus,
        *,
        entry: AuditEntry | None = None,
        error: Mapping[str, str] | None = None,
        version: int | None = None,
    ) -> Submission:
        """What is stored now. Raises ComparisonNotFound, VersionConflict."""
        known = self._submission(comparison_id)
        before = known.submission
        if version not in (None, before.version):
            raise version_conflict(comparison_id, version or 0, before.version)
        after = replace(
            before,
            status=status,
            error=dict(error or {}),
            version=before.version + 1,
            takeovers=before.takeovers if status in UNDER_WAY else 0,
        )
        self._submitted[comparison_id] = replace(known, submission=after)
        if entry is not None:
            self._note(entry)
        return after

    def take_over(self, comparison_id: str, *, version: int) -> Submission:
        """What is stored now. Raises ComparisonNotFound, VersionConflict."""
        known = self._submission(comparison_id)
        kept = self._store.kept.get(comparison_id)
        answered = len(kept.answers) if kept else 0
        queued = self.set_submission(comparison_id, SubmissionStatus.QUEUED, version=version)
        takeovers = queued.takeovers + 1 if answered == known.answered else 0
        after = replace(queued, takeovers=takeovers)
        self._submitted[comparison_id] = replace(known, submission=after, answered=answered)
        return after

    def delete(
        self,
        comparison_id: str,
        *,
        entry: AuditEntry,
        stale_after_s: float,
        seen: tuple[ComparisonSummary, Submission | None] | None = None,
    ) -> None:
        """Everything of a comparison, and its submission."""
        kept, submitted = self._store.kept.get(comparison_id), self._submitted.get(comparison_id)
        if kept is None and submitted is None:
            raise not_found(comparison_id)
        if seen is not None and seen != self.about(comparison_id):
            raise changed(comparison_id)
        if kept is not None and kept.signoffs:
            raise signed_off(comparison_id)
        if submitted is not None and submitted.submission.status in UNDER_WAY:
            raise under_way(comparison_id, submitted.submission.status)
        if kept is not None and not may_take(kept.claim, runner="", now=entry.at, stale_after_s=stale_after_s):
            raise busy(comparison_id, kept.claim)
        check_let_go(comparison_id, self._leases.values(), now=entry.at, stale_after_s=stale_after_s)
        self._store.kept.pop(comparison_id, None)
        self._submitted.pop(comparison_id, None)
        self._leases = {place: lease for place, lease in self._leases.items() if lease.comparison_id != comparison_id}
        self._note(entry)

    def lease_hosts(
        self,
        comparison_id: str,
        slots: Mapping[str, int],
        *,
        runner: str,
        limit: int,
        is_exclusive: bool,
        now: datetime,
        stale_after_s: float,
        reserved: Sequence[HostLease] = (),
    ) -> bool:
        """Takes the right to send to all of these hosts, or to none."""
        check_slots(slots, limit)
        living = {
            place: lease
            for place, lease in self._leases.items()
            if lease.comparison_id != comparison_id and not lease.is_stale(now, stale_after_s)
        }
        if not may_lease([*living.values(), *reserved], slots, limit=limit, is_exclusive=is_exclusive):
            return False
        mine = [
            HostLease(
                host=host,
                comparison_id=comparison_id,
                runner=runner,
                slots=wanted,
                is_exclusive=is_exclusive,
                heartbeat_at=as_utc(now),
            )
            for host, wanted in slots.items()
        ]
        self._leases = living | {(lease.host, comparison_id): lease for lease in mine}
        return True

    def renew_hosts(self, comparison_id: str, *, runner: str, now: datetime) -> bool:
        """Keeps the leases; False where the runner has none."""
        mine = [place for place, lease in self._leases.items() if _holds(lease, comparison_id, runner)]
        for place in mine:
            self._leases[place] = replace(self._leases[place], heartbeat_at=as_utc(now))
        return bool(mine)

    def release_hosts(self, comparison_id: str, *, runner: str) -> None:
        """Gives the runner's leases back."""
        self._leases = {
            place: lease for place, lease in self._leases.items() if not _holds(lease, comparison_id, runner)
        }

    def now(self) -> datetime:
        """This machine's."""
        return datetime.now(UTC)

    def see_worker(self, runner: str, *, now: datetime) -> None:
        """Notes that it lives."""
        known = self._workers.get(runner) or Claim(runner=runner, since=as_utc(now), heartbeat_at=as_utc(now))
        self._workers[runner] = replace(known, heartbeat_at=as_utc(now))

    def drop_worker(self, runner: str) -> None:
        """It has ended."""
        self._workers.pop(runner, None)

    def workers(self, *, now: datetime, stale_after_s: float) -> Sequence[str]:
        """Those that live, the oldest first."""
        known = sorted(self._workers.values(), key=lambda one: (one.since, one.runner))
        return [one.runner for one in known if not may_take(one, runner="", now=now, stale_after_s=stale_after_s)]

    def has_outcomes(self, comparison_id: str) -> bool:
        """Whether any are stored."""
        return bool(self._store.of(comparison_id).outcomes)

    def outcomes(
        self,
        comparison_id: str,
        wanted: OutcomeFilter,
        *,
        cursor: str | None = None,
        limit: int = 50,
        is_backward: bool = False,
    ) -> Page[Outcome]:
        """In order of (position, repeat), or against it."""
        behind = None if cursor is None else decode_cursor(cursor, "items", 2)
        of_all = self._store.of(comparison_id).outcomes
        found = [one for one in of_all if _is_behind(one, behind, is_backward) and _is_shown(one, wanted)]
        if is_backward:
            found.reverse()
        limit = max(limit, 1)
        return page_of(found[: limit + 1], limit, lambda one: encode_cursor("items", *outcome_place(one)))

    def pair(self, comparison_id: str, position: int) -> tuple[Item, Sequence[Answer], Sequence[Score]]:
        """One item with both arms' answers and scores. Raises ItemNotFound."""
        kept = self._store.of(comparison_id)
        if position not in kept.items:
            raise item_not_found(comparison_id, position)
        arms = [self._store.answers(comparison_id, arm=arm) for arm in ArmName]
        answers = [answer for arm in arms for answer in arm if answer.position == position]
        return kept.items[position], answers, [score for score in kept.scores if score.position == position]

    def add_token(self, token: Token, *, entry: AuditEntry) -> None:
        """Raises StoreError where the id is taken."""
        if token.id in self._tokens:
            raise StoreError(f"token {token.id} exists already")
        if len(token.digest) != 32:
            raise StoreError("a token's digest has 32 bytes")
        self._tokens[token.id] = replace(
            token,
            name=storable_text(token.name),
            created_at=as_utc(token.created_at),
            expires_at=None if token.expires_at is None else as_utc(token.expires_at),
            revoked_at=None if token.revoked_at is None else as_utc(token.revoked_at),
        )
        self._note(entry)

    def token(self, token_id: str) -> Token | None:
        """None where no token has this id."""
        return self._tokens.get(token_id)

    def tokens(self) -> Sequence[Token]:
        """Newest first."""
        return list(reversed(self._tokens.values()))

    def revoke_token(self, token_id: str, *, entry: AuditEntry) -> None:
        """From the entry's time on. Raises TokenNotFound."""
        token = self._tokens.get(token_id)
        if token is None:
            raise token_not_found(token_id)
        if token.revoked_at is None:
            self._tokens[token_id] = replace(token, revoked_at=as_utc(entry.at))
            self._note(entry)

    def counts(self) -> Mapping[str, int]:
        """By status."""
        return Counter(line.summary.status.value for line in (*self._comparisons(), *self._waiting()))

    def note(self, entry: AuditEntry) -> None:
        """An entry by itself."""
        self._note(entry)

    def audit(self, *, cursor: str | None = None, limit: int = 50) -> Page[AuditEntry]:
        """Newest first."""
        end = len(self._audit) + 1 if cursor is None else decode_cursor(cursor, "audit", 1)[0]
        numbered = [(number, entry) for number, entry in enumerate(self._audit, start=1) if number < end]
        limit = max(limit, 1)
        page = page_of(numbered[::-1][: limit + 1], limit, lambda one: encode_cursor("audit", one[0]))
        return Page(entries=tuple(entry for _, entry in page.entries), next_cursor=page.next_cursor)

    def recorded(self, subject: str, action: str) -> Sequence[AuditEntry]:
        """The oldest first."""
        return [one for one in self._audit if (one.subject, one.action) == (storable_text(subject), action)]

    def sign_off(self, signoff: SignOff, *, entry: AuditEntry) -> None:
        """Adds it. Raises ComparisonNotFound."""
        kept = self._store.of(signoff.comparison_id)
        texts: Any = {name: storable_text(getattr(signoff, name)) for name in ("signed_by", "note", "override")}
        kept.signoffs = (*kept.signoffs, replace(signoff, signed_at=as_utc(signoff.signed_at), **texts))
        self._note(entry)

    def signoffs(self, comparison_id: str) -> Sequence[SignOff]:
        """In the order in which they were made."""
        return self._store.of(comparison_id).signoffs

    def _note(self, entry: AuditEntry) -> None:
        texts: Any = {name: storable_text(getattr(entry, name)) for name in ("who", "action", "subject")}
        self._audit.append(replace(entry, at=as_utc(entry.at), **texts))

    def _submission(self, comparison_id: str) -> _Submitted:
        if comparison_id not in self._submitted:
            raise not_found(comparison_id)
        return self._submitted[comparison_id]

    def _comparisons(self) -> list[Listed]:
        kept = self._store.kept.values()
        return [Listed(place=(one.comparison.created_at, 0, one.number), summary=_summary_of(one)) for one in kept]

    def _waiting(self) -> list[Listed]:
        waiting = [one for id_, one in self._submitted.items() if id_ not in self._store.kept]
        return [
            Listed(place=(one.submission.created_at, 1, one.number), summary=one.submission.summary())
            for one in waiting
        ]


def _summary_of(kept: Kept) -> ComparisonSummary:
    comparison = kept.comparison
    return ComparisonSummary(
        id=comparison.id,
        status=comparison.status,
        verdict=comparison.verdict,
        label=comparison.label,
        model=storable_text(comparison.plan.sampling.model),
        suite=storable_text(comparison.plan.suite),
        plan_hash=comparison.plan_hash,
        n_items=(n_items := sum(task.n_items for task in comparison.plan.tasks)),
        created_at=comparison.created_at,
        started_at=comparison.started_at,
        finished_at=comparison.finished_at,
        stop_reason=comparison.stop_reason,
        is_signed_off=bool(kept.signoffs),
        n_items_asked=kept.looks[-1].ended_at(n_items) if kept.looks else None,
    )


def _storable(submission: Submission) -> Submission:
    require_json(submission.experiment, of=f"submission {submission.id}")
    texts: Any = {name: storable_text(getattr(submission, name)) for name in ("label", "model", "created_by")}
    experiment = json.loads(json.dumps(submission.experiment))
    return replace(submission, created_at=as_utc(submission.created_at), experiment=experiment, **texts)


def _matches(summary: ComparisonSummary, wanted: ComparisonFilter) -> bool:
    return is_listed(
        wanted,
        status=summary.status,
        verdict=summary.verdict,
        label=summary.label,
        model=summary.model,
        created_at=summary.created_at,
    )


def _holds(lease: HostLease, comparison_id: str, runner: str) -> bool:
    return lease.comparison_id == comparison_id and lease.runner == runner


def _is_behind(outcome: Outcome, place: tuple[int, ...] | None, is_backward: bool) -> bool:
    if place is None:
        return True
    return outcome_place(outcome) < place if is_backward else outcome_place(outcome) > place


def _is_shown(outcome: Outcome, wanted: OutcomeFilter) -> bool:
    is_flipped = outcome.change in (Change.GAIN, Change.LOSS)
    return (
        wanted.task in (None, outcome.task)
        and wanted.flipped in (None, is_flipped)
        and wanted.change in (None, outcome.change)
        and wanted.missing in (None, outcome.change is Change.UNKNOWN)
        and wanted.different_text in (None, outcome.different_text)
        and (wanted.min_length is None or outcome.length >= wanted.min_length)
        and (wanted.max_length is None or outcome.length <= wanted.max_length)
    )

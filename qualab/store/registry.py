"""The registry over a database: each method of the port one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import func, select

from qualab.model.comparison import SignOff
from qualab.model.items import Answer, Item, Outcome, OutcomeFilter, Score
from qualab.model.names import ArmName
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import (
    NEWEST_FIRST,
    AuditEntry,
    ComparisonSummary,
    HostLease,
    ListOrder,
    Page,
    Submission,
    SubmissionStatus,
    Token,
    changed,
    check_slots,
    item_not_found,
    may_lease,
)
from qualab.store import access, deletion, leases, listing, records, signoffs, submissions, workers
from qualab.store.outcomes import any_outcomes, read_outcomes
from qualab.store.sessions import Sessions


class SqlRegistry:
    """The `Registry` in SQLite or PostgreSQL. Threads may share it. A store has one: `SqlStore.registry`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def page(
        self, wanted: ComparisonFilter, *, order: ListOrder = NEWEST_FIRST, cursor: str | None = None
    ) -> Page[ComparisonSummary]:
        """Comparisons, and submissions that have not become one."""
        with self._sessions.reading() as connection:
            return listing.read_page(connection, wanted, order, cursor)

    def summary(self, comparison_id: str) -> ComparisonSummary:
        """Of a comparison or a submission. Raises ComparisonNotFound."""
        with self._sessions.reading() as connection:
            return listing.read_summary(connection, comparison_id)

    def about(self, comparison_id: str) -> tuple[ComparisonSummary, Submission | None]:
        """Summary and submission, read at once."""
        with self._sessions.reading() as connection:
            return listing.read_about(connection, comparison_id)

    def abouts(self, comparison_ids: Sequence[str]) -> Mapping[str, tuple[ComparisonSummary, Submission | None]]:
        """By id."""
        with self._sessions.reading() as connection:
            return listing.read_abouts(connection, comparison_ids)

    def submit(
        self, submission: Submission, *, entry: AuditEntry, key: str = "", body_hash: str = ""
    ) -> tuple[Submission, bool]:
        """Stores it once for each idempotency key."""
        with self._sessions.writing() as connection:
            stored, is_new = submissions.add_submission(connection, submission, key=key, body_hash=body_hash)
            if is_new:
                access.add_entry(connection, entry)
        return stored, is_new

    def submission(self, comparison_id: str) -> Submission | None:
        """None where it was not submitted."""
        with self._sessions.reading() as connection:
            return submissions.read_submission(connection, comparison_id)

    def submissions(self, *statuses: SubmissionStatus) -> Sequence[Submission]:
        """Those with one of these statuses, oldest first."""
        with self._sessions.reading() as connection:
            return submissions.read_submissions(connection, statuses)

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
        with self._sessions.writing() as connection:
            stored = submissions.change_submission(
                connection, comparison_id, status, error=error or {}, version=version
            )
            if entry is not None:
                access.add_entry(connection, entry)
        return stored

    def take_over(self, comparison_id: str, *, version: int) -> Submission:
        """What is stored now. Raises ComparisonNotFound, VersionConflict."""
        with self._sessions.writing() as connection:
            return submissions.take_over(connection, comparison_id, version=version)

    def delete(
        self,
        comparison_id: str,
        *,
        entry: AuditEntry,
        stale_after_s: float,
        seen: tuple[ComparisonSummary, Submission | None] | None = None,
    ) -> None:
        """Everything of a comparison, and its submission."""
        with self._sessions.writing() as connection:
            key = deletion.keep_still(connection, comparison_id)
            if seen is not None and seen != listing.read_about(connection, comparison_id):
                raise changed(comparison_id)
            deletion.delete_comparison(connection, comparison_id, key, now=entry.at, stale_after_s=stale_after_s)
            access.add_entry(connection, entry)
        self._sessions.known.forget()

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
        mine = [
            HostLease(
                host=host,
                comparison_id=comparison_id,
                runner=runner,
                slots=wanted,
                is_exclusive=is_exclusive,
                heartbeat_at=now,
            )
            for host, wanted in slots.items()
        ]
        with self._sessions.writing() as connection:
            held = [lease for lease in leases.read_leases(connection, slots) if lease.comparison_id != comparison_id]
            stale = [lease for lease in held if lease.is_stale(now, stale_after_s)]
            living = [lease for lease in held if lease not in stale]
            if not may_lease([*living, *reserved], slots, limit=limit, is_exclusive=is_exclusive):
                return False
            leases.drop_stale(connection, stale)
            leases.replace_leases(connection, comparison_id, mine)
        return True

    def renew_hosts(self, comparison_id: str, *, runner: str, now: datetime) -> bool:
        """Keeps the leases; False where the runner has none."""
        with self._sessions.writing() as connection:
            return leases.renew_leases(connection, comparison_id, runner=runner, now=now)

    def release_hosts(self, comparison_id: str, *, runner: str) -> None:
        """Gives the runner's leases back."""
        with self._sessions.writing() as connection:
            leases.drop_leases(connection, comparison_id, runner=runner)

    def now(self) -> datetime:
        """A file is on this machine."""
        with self._sessions.reading() as connection:
            if connection.dialect.name != "postgresql":
                return datetime.now(UTC)
            seen: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return seen.astimezone(UTC)

    def see_worker(self, runner: str, *, now: datetime) -> None:
        """Notes that it lives."""
        with self._sessions.writing() as connection:
            workers.see_worker(connection, runner, now=now)

    def drop_worker(self, runner: str) -> None:
        """It has ended."""
        with self._sessions.writing() as connection:
            workers.drop_worker(connection, runner)

    def workers(self, *, now: datetime, stale_after_s: float) -> Sequence[str]:
        """Those that live, the oldest first."""
        with self._sessions.reading() as connection:
            return workers.living_workers(connection, now=now, stale_after_s=stale_after_s)

    def has_outcomes(self, comparison_id: str) -> bool:
        """Whether any are stored."""
        with self._sessions.reading_of(comparison_id) as (connection, (key, *_)):
            return any_outcomes(connection, key)

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
        with self._sessions.reading_of(comparison_id) as (connection, (key, *_)):
            return read_outcomes(connection, key, wanted, cursor=cursor, limit=limit, is_backward=is_backward)

    def pair(self, comparison_id: str, position: int) -> tuple[Item, Sequence[Answer], Sequence[Score]]:
        """One item with both arms' answers and scores. Raises ItemNotFound."""
        with self._sessions.reading_of(comparison_id) as (connection, found):
            key, codec, positions = self._sessions.known(connection, found)
            if position not in positions:
                raise item_not_found(comparison_id, position)
            (item,) = records.read_items(connection, key, [position])
            arms = [records.read_answers(connection, key, arm, codec, [position]) for arm in ArmName]
            answers = [answer for arm in arms for answer in arm]
            return item, answers, list(records.read_scores(connection, key, [position]))

    def add_token(self, token: Token, *, entry: AuditEntry) -> None:
        """Raises StoreError where the id is taken."""
        with self._sessions.writing() as connection:
            access.add_token(connection, token)
            access.add_entry(connection, entry)

    def token(self, token_id: str) -> Token | None:
        """None where no token has this id."""
        with self._sessions.reading() as connection:
            return access.read_token(connection, token_id)

    def tokens(self) -> Sequence[Token]:
        """Newest first."""
        with self._sessions.reading() as connection:
            return access.read_tokens(connection)

    def revoke_token(self, token_id: str, *, entry: AuditEntry) -> None:
        """From the entry's time on. Raises TokenNotFound."""
        with self._sessions.writing() as connection:
            access.revoke_token(connection, token_id, entry)

    def counts(self) -> Mapping[str, int]:
        """By status."""
        with self._sessions.reading() as connection:
            return listing.count_statuses(connection)

    def note(self, entry: AuditEntry) -> None:
        """An entry by itself."""
        with self._sessions.writing() as connection:
            access.add_entry(connection, entry)

    def audit(self, *, cursor: str | None = None, limit: int = 50) -> Page[AuditEntry]:
        """Newest first."""
        with self._sessions.reading() as connection:
            return access.read_audit(connection, cursor=cursor, limit=limit)

    def recorded(self, subject: str, action: str) -> Sequence[AuditEntry]:
        """The oldest first."""
        with self._sessions.reading() as connection:
            return access.read_recorded(connection, subject, action)

    def sign_off(self, signoff: SignOff, *, entry: AuditEntry) -> None:
        """Adds it. Raises ComparisonNotFound."""
        with self._sessions.writing_to(signoff.comparison_id) as (connection, (key, *_)):
            signoffs.add_signoff(connection, key, signoff)
            access.add_entry(connection, entry)

    def signoffs(self, comparison_id: str) -> Sequence[SignOff]:
        """In the order in which they were made."""
        with self._sessions.reading_of(comparison_id) as (connection, (key, *_)):
            return signoffs.read_signoffs(connection, key, comparison_id)

"""A submission is carried out: what every kind of worker does with what it takes from the queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from qualab.app.experiment import check
from qualab.app.preflight import Keys
from qualab.app.run import resume, start
from qualab.app.service.desk import Desk, Wanted
from qualab.app.service.hosts import take_hosts
from qualab.domain.comparison import Comparison
from qualab.domain.items import Reply
from qualab.domain.names import ArmName, ComparisonStatus
from qualab.domain.submissions import Submission, SubmissionStatus
from qualab.errors import (
    ComparisonBusy,
    ComparisonNotFound,
    QualabError,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreReadOnly,
    VersionConflict,
)
from qualab.ports import Progress

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
MOST_FAILURES = 100
"""Of the database, in one run: a quarter of an hour without it, at least."""
LASTING = (SchemaMismatch, StoreFull, StoreReadOnly)
"""What waiting does not cure."""
log = logging.getLogger("qualab.worker")


class Unseen:
    """A `Progress` that nobody watches: what it would say can be read from the database."""

    def started(
        self, comparison: Comparison, *, totals: Mapping[ArmName, int], done: Mapping[ArmName, int]
    ) -> None: ...

    def answered(self, arm: ArmName, reply: Reply) -> None: ...

    def waiting(self, arm: ArmName, seconds: float) -> None: ...

    def phase(self, text: str) -> None: ...

    def finished(self) -> None: ...


async def carry_out(
    desk: Desk, comparison_id: str, *, progress: Progress, retry_failed: bool = False, version: int | None = None
) -> bool:
    """Runs a queued submission to its end, from where it is; what kept it from that stands in its error afterwards.

    False where a host that it needs is taken: it is queued still. Does nothing for what is not queued, or, with a
    `version`, has changed since. A cancellation gives it back to the queue, unless it was the submission's own. While
    the database is away it waits; it stops without a trace where another runner has taken over.
    """
    mine = await _persistently(lambda: _taken(desk, comparison_id, version))
    if not isinstance(mine, tuple):
        return mine
    submission, wanted = mine
    try:
        error = await _to_the_end(desk, submission, wanted, progress, retry_failed=retry_failed)
        status = SubmissionStatus.FAILED if error else SubmissionStatus.DONE
        await _persistently(lambda: leave(desk, submission, status, error=error))
    except _TakenOver:
        log.warning("comparison %s: another worker has taken over", comparison_id)
    except asyncio.CancelledError:
        with suppress(StoreError):  # a worker that finds it unattended gives it back
            leave(desk, submission, SubmissionStatus.QUEUED)
        raise
    finally:
        _let_go(desk, comparison_id)
    return True


def leave(
    desk: Desk, submission: Submission, status: SubmissionStatus, *, error: Mapping[str, str] | None = None
) -> Submission | None:
    """Changes the status; nothing where it has changed since the submission was read, or is deleted."""
    with suppress(VersionConflict, ComparisonNotFound):
        return desk.registry.set_submission(submission.id, status, error=error, version=submission.version)
    return None


def said(error: QualabError) -> dict[str, str]:
    """As a submission keeps it."""
    return {"code": error.code, "message": error.message, "hint": error.hint}


def keys_of(desk: Desk, wanted: Wanted) -> Keys:
    """The keys that the references lead to, in memory only. Raises SecretForbidden."""
    return {arm: desk.secrets.read(wanted.keys[arm]) if arm in wanted.keys else None for arm in ArmName}


class _TakenOver(Exception):
    """Somebody else has changed the submission."""


def _taken(desk: Desk, comparison_id: str, version: int | None) -> tuple[Submission, Wanted] | bool:
    """The submission, RUNNING from now on; otherwise what `carry_out` returns."""
    submission = desk.registry.submission(comparison_id)
    if submission is None or submission.status is not SubmissionStatus.QUEUED:
        return True
    if version is not None and version != submission.version:
        return True
    try:
        wanted = desk.read_document(submission.experiment)
        if not take_hosts(desk, submission, wanted):
            return False
    except StoreError:
        raise
    except QualabError as error:
        leave(desk, submission, SubmissionStatus.FAILED, error=said(error))
        return True
    running = leave(desk, submission, SubmissionStatus.RUNNING)
    if running is None:
        _let_go(desk, comparison_id)
    return (running, wanted) if running else True


async def _to_the_end(
    desk: Desk, submission: Submission, wanted: Wanted, progress: Progress, *, retry_failed: bool
) -> Mapping[str, str] | None:
    """What kept it from its end: code, message and hint; None if nothing did. Raises _TakenOver."""
    pauses = _Pauses()
    while True:
        try:
            _check_own(desk, submission)
            await _run(desk, submission, wanted, progress, retry_failed=retry_failed)
        except _TakenOver:
            raise
        except ComparisonBusy as busy:  # by a runner that may be dead, or may have taken over
            log.info("%s", busy.message)
            await asyncio.sleep(FIRST_PAUSE_S)
        except StoreError as error:
            if not await pauses.after(error):
                return said(error)
        except QualabError as error:
            return said(error)
        except Exception as error:
            log.exception("comparison %s failed unexpectedly", submission.id)
            return {"code": "error", "message": f"qualab failed: {error!r}", "hint": "This is a bug: see the log"}
        else:
            return None


async def _run(desk: Desk, submission: Submission, wanted: Wanted, progress: Progress, *, retry_failed: bool) -> None:
    keys = keys_of(desk, wanted)
    stored = stored_of(desk, submission.id)
    if stored is None:
        check(wanted.experiment)
        frozen = wanted.frozen.plan if wanted.frozen else None
        await start(
            desk.services,
            wanted.experiment,
            keys=keys,
            progress=progress,
            frozen=frozen,
            comparison_id=submission.id,
            asked_at=submission.created_at,
        )
    elif stored.status is not ComparisonStatus.FINISHED or retry_failed:
        _claim(desk, submission.id)
        await resume(desk.services, submission.id, keys=keys, progress=progress, retry_failed=retry_failed)


def _check_own(desk: Desk, submission: Submission) -> None:
    """Raises _TakenOver."""
    now = desk.registry.submission(submission.id)
    if now is None or now.version != submission.version:
        raise _TakenOver


def _claim(desk: Desk, comparison_id: str) -> None:
    """Raises ComparisonBusy, before anything is loaded or asked."""
    services = desk.services
    stale_after_s = services.pulse.stale_after_s
    services.store.claim(comparison_id, runner=services.runner, now=services.clock.now(), stale_after_s=stale_after_s)


def stored_of(desk: Desk, comparison_id: str) -> Comparison | None:
    """None where there is no comparison yet."""
    try:
        return desk.services.store.get(comparison_id)
    except ComparisonNotFound:
        return None


def _let_go(desk: Desk, comparison_id: str) -> None:
    """Gives back what is held, and held no more where somebody else has it."""
    runner = desk.services.runner
    with suppress(StoreError):  # it falls away by itself
        desk.registry.release_hosts(comparison_id, runner=runner)
        with suppress(ComparisonNotFound):
            desk.services.store.release(comparison_id, runner=runner)


class _Pauses:
    """Ever longer, while the database is away."""

    def __init__(self) -> None:
        self._n_failures = 0

    async def after(self, error: StoreError) -> bool:
        """Waits; False where that is in vain."""
        self._n_failures += 1
        if isinstance(error, LASTING) or self._n_failures > MOST_FAILURES:
            return False
        log.warning("%s", error.message)
        await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (self._n_failures - 1), LONGEST_PAUSE_S))
        return True


async def _persistently(call: Callable[[], T]) -> T:
    """Calls again where the database is away."""
    pauses = _Pauses()
    while True:
        try:
            return call()
        except StoreError as error:
            if not await pauses.after(error):
                raise

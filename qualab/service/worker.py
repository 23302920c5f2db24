"""The worker: takes comparisons that are queued, one at a time, and runs each to its end.

The database is the queue: what is QUEUED waits, and a comparison whose worker died is taken by the next that looks.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count

import orjson

from qualab.bootstrap import new_loop
from qualab.errors import (
    ComparisonBusy,
    ComparisonNotFound,
    QualabError,
    RunStopped,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from qualab.harness.process import Harness
from qualab.model.names import ComparisonStatus, WebhookState
from qualab.model.ports import Clock
from qualab.model.registry import Webhook
from qualab.report.words import shown
from qualab.run.group import resume_group, start_group
from qualab.run.run import resume, start
from qualab.service.context import Context
from qualab.service.reading import message_of

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
MOST_FAILURES = 100
"""Failures of the database that one run bears: a quarter of an hour at least."""
LASTING = (SchemaMismatch, StoreFull, StoreReadOnly)
END_WITHIN_S = 20.0
MESSAGES_AT_ONCE, MOST_TRIES, LEASE_S, LONGEST_WEBHOOK_PAUSE_S, GONE = 16, 10, 60.0, 6 * 3_600.0, 410
"""Webhooks: a message whose worker dies while it sends is sent again after the lease; GONE is HTTP's status."""
FOREVER_S = 365 * 86_400.0
log = logging.getLogger("qualab.worker")


async def carry_out(context: Context, comparison_id: str) -> None:
    """Run a comparison that this runner has taken; what kept it from its end is stored as its error.

    While the database is away it waits. It stops without a trace where another runner has taken over.
    """
    services = context.services
    try:
        await _patiently(lambda: _run(context, comparison_id))
        return
    except (ComparisonBusy, ComparisonNotFound) as lost:
        log.warning("comparison %s was taken over or deleted: %s", comparison_id, lost.message)
        return
    except QualabError as failure:
        error = failure
    except Exception as failure:
        log.exception("comparison %s failed unexpectedly", comparison_id)
        error = QualabError(f"qualab failed: {failure!r}", hint="This is a bug: see the log")
    document = {"code": error.code, "message": error.message, "hint": error.hint}

    async def fail() -> None:
        services.store.fail(comparison_id, runner=services.runner, error=document)

    await _patiently(fail)


async def _run(context: Context, comparison_id: str) -> None:
    services, store = context.services, context.store
    if not store.hold(comparison_id, runner=services.runner, now=services.clock.now()):
        raise ComparisonBusy("it is another worker's, or was cancelled")
    summary, document = store.summary(comparison_id), store.request(comparison_id)
    if summary.status is ComparisonStatus.FINISHED or document is None:
        return
    request = context.read_document(document)
    services = replace(services, keys={arm: context.secrets.read(name) for arm, name in request.keys.items()})
    frozen, asked_at = request.frozen.plan if request.frozen else None, summary.created_at
    own = request.experiment
    if not own.candidates:
        if summary.plan_hash:
            await resume(services, comparison_id)
        else:
            await start(services, own, frozen=frozen, comparison_id=comparison_id, asked_at=asked_at)
        return
    first = next(iter(own.candidates))
    if summary.plan_hash:
        result = await resume_group(services, comparison_id.removesuffix(f"-{first}"))
    else:
        result = await start_group(services, own, frozen=frozen, comparison_id=comparison_id, asked_at=asked_at)
    if isinstance(stop := result.outcomes.get(first), RunStopped):  # its row is the request's
        raise stop


async def _patiently(call: Callable[[], Awaitable[None]]) -> None:
    """Call again, ever more seldom, while the database is away. Raises StoreError where that is in vain."""
    for n_failures in count():
        try:
            await call()
            break
        except StoreError as error:
            if isinstance(error, LASTING) or n_failures >= MOST_FAILURES:
                raise
            log.warning("%s", error.message)
            await asyncio.sleep(min(FIRST_PAUSE_S * 2**n_failures, LONGEST_PAUSE_S))


async def send_webhooks(context: Context, *, stale_after_s: float) -> None:
    """Send the messages that are due, a few at once. Raises StoreError."""
    now = context.services.clock.now()
    due = context.store.take_webhooks(now=now, stale_after_s=stale_after_s, lease_s=LEASE_S, limit=MESSAGES_AT_ONCE)
    await asyncio.gather(*(_send(context, webhook, now) for webhook in due))


async def _send(context: Context, webhook: Webhook, now: datetime) -> None:
    message_id = f"{webhook.comparison_id}-{webhook.version}"  # the same for each try
    try:
        message = await asyncio.to_thread(message_of, context, webhook.comparison_id, now=now)
        body = orjson.dumps(shown(message))
        status, result = await context.webhooks.send(webhook.url, body, message_id=message_id, now=now)
    except ComparisonNotFound:  # it was deleted just now
        return
    except Exception:  # the others' must be sent
        log.exception("webhook %s failed", message_id)
        status, result = 0, "qualab failed: see the log"
    state, due_at = WebhookState.DELIVERED, None
    if not 200 <= status < 300:
        is_last = status == GONE or webhook.attempts >= MOST_TRIES
        pause_s = min(context.settings.webhook_pause_s * 4.0 ** (webhook.attempts - 1), LONGEST_WEBHOOK_PAUSE_S)
        state = WebhookState.GIVEN_UP if is_last else WebhookState.WAITING
        due_at = None if is_last else context.services.clock.now() + timedelta(seconds=pause_s)
        log.warning("webhook %s, try %d: %s", message_id, webhook.attempts, result)
    context.store.settle_webhook(replace(webhook, state=state, due_at=due_at, result=result))


class SharedClock(Clock):
    """A clock that several machines can look at, carried on by this machine's monotonic one until the next look."""

    def __init__(self, read: Callable[[], datetime]) -> None:
        self._read = read
        self.look()

    def look(self) -> None:
        """Read it again. Raises what `read` raises, and then goes on as before."""
        began_s = time.monotonic()
        seen = self._read()
        self._seen = (seen, (began_s + time.monotonic()) / 2)

    def now(self) -> datetime:
        seen, at_s = self._seen
        return seen + timedelta(seconds=time.monotonic() - at_s)


class Worker:
    """Runs what is queued in one thread, and sends heartbeats from another."""

    def __init__(self, context: Context, *, set_clock: Callable[[], None] = lambda: None) -> None:
        self._context = context
        self._services, self._store = context.services, context.store
        self._set_clock = set_clock
        self._ended = threading.Event()
        self._running: tuple[str, Callable[[], object]] | None = None
        """The comparison being run, and how to cancel it from another thread."""
        self._heard_since_s: float | None = None
        """Since when the database has answered every heartbeat."""
        self._threads = [threading.Thread(target=job, daemon=True) for job in (self._work, self._watch, self._tell)]

    def begin(self) -> None:
        """Send a first heartbeat, then work. Raises StoreError."""
        self._beat()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Take nothing more, and give back what is being run."""
        self._ended.set()
        if running := self._running:
            comparison_id, cancel = running
            with suppress(StoreError):  # taken over by another worker once this one is silent
                self._store.give_back(comparison_id, runner=self._services.runner)
            with suppress(RuntimeError):  # it ends at this moment
                cancel()
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join(END_WITHIN_S)
        with suppress(StoreError):
            self._store.drop_worker(self._services.runner)

    def work(self) -> bool:
        """Run the next comparison to its end; False where there is none. Raises StoreError."""
        runner = self._services.runner
        comparison_id = self._store.take(
            runner=runner, now=self._services.clock.now(), stale_after_s=self._patience_s()
        )
        if comparison_id is None:
            return False
        try:
            with asyncio.Runner(loop_factory=new_loop) as events, suppress(asyncio.CancelledError):
                events.run(self._carry_out(comparison_id))
        finally:
            self._running = None
            with suppress(StoreError, ComparisonNotFound):  # its claim is stale soon
                self._store.release(comparison_id, runner=runner)
        return True

    async def _carry_out(self, comparison_id: str) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._running = comparison_id, partial(loop.call_soon_threadsafe, task.cancel)
        if self._ended.is_set():
            self._store.give_back(comparison_id, runner=self._services.runner)
            return
        await carry_out(self._context, comparison_id)

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                if self.work():
                    continue
            except StoreError as error:
                log.warning("%s", error.message)
            except Exception:
                log.exception("taking a comparison failed")
            self._ended.wait(self._context.settings.queue_poll_s)

    def _tell(self) -> None:
        while self._context.webhooks.is_on and not self._ended.wait(self._context.settings.queue_poll_s):
            try:
                asyncio.run(send_webhooks(self._context, stale_after_s=self._patience_s()))
            except StoreError as error:
                log.warning("%s", error.message)
            except Exception:
                log.exception("sending webhooks failed")

    def _watch(self) -> None:
        while not self._ended.wait(self._services.heartbeat.every_s / 2):
            try:
                self._beat()
                self.check()
            except StoreError as error:
                self._heard_since_s = None
                log.warning("%s", error.message)
            except Exception:  # it must go on sending heartbeats
                log.exception("a heartbeat failed")

    def _beat(self) -> None:
        self._set_clock()
        self._store.see_worker(self._services.runner, now=self._services.clock.now())
        if self._heard_since_s is None:
            self._heard_since_s = self._services.clock.monotonic_s()

    def check(self) -> None:
        """Keep what is being run, or end it where it was cancelled or taken over. Raises StoreError."""
        running, now = self._running, self._services.clock.now()
        if running and not self._store.hold(running[0], runner=self._services.runner, now=now):
            log.warning("comparison %s was cancelled, or taken over by another worker", running[0])
            with suppress(RuntimeError):  # it ends at this moment
                running[1]()

    def _patience_s(self) -> float:
        """After the database was away, every worker gets the time to send a heartbeat before it is given up."""
        stale_after_s, since_s = self._services.heartbeat.stale_after_s, self._heard_since_s
        is_heard = since_s is not None and self._services.clock.monotonic_s() - since_s >= stale_after_s
        return stale_after_s if is_heard else FOREVER_S


@contextmanager
def working(context: Context, *, is_shared: bool, harness: Harness | None = None) -> Iterator[Context]:
    """Run a worker until the end; yields its context. Raises StoreError where the database is away.

    Where the database is shared by hosts, workers judge by its clock who lives. A `harness` of the worker's own is
    needed where others use the context's: a cancelled run stops it.
    """
    services = context.services
    clock = SharedClock(services.store.now) if is_shared else None
    services = replace(services, clock=clock or services.clock, harness=harness or services.harness)
    context = replace(context, services=services)
    worker = Worker(context, set_clock=clock.look if clock else lambda: None)
    worker.begin()
    try:
        yield context
    finally:
        worker.close()

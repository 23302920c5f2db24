"""`Jobs` of one process, in a thread of their own: no queue, no worker."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from qualab.service.context import Context
from qualab.service.worker import NullProgress, carry_out

HOST_WAIT_S = 0.05
LONGEST_END_S = 30.0


class InlineJobs:
    """`qualab.model.ports.Jobs`; one comparison at a time. `begin` is called once the context is there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="jobs", daemon=True)
        self._running: dict[str, Future[None]] = {}
        self._turn = asyncio.Semaphore(1)
        self._context: Context | None = None

    def begin(self, context: Context) -> None:
        """Starts the thread."""
        self._context = context
        self._thread.start()

    def close(self) -> None:
        """Interrupts what is under way, and waits until that is stored: it can be taken up again."""
        asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result(LONGEST_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LONGEST_END_S)

    def enqueue(self, comparison_id: str) -> None:
        """Once, however often it is called."""
        running = self._running.get(comparison_id)
        if running is None or running.done():
            self._submit(comparison_id, retry_failed=False)

    def cancel(self, comparison_id: str) -> None:
        """Ends it where it waits or runs."""
        if running := self._running.get(comparison_id):
            running.cancel()

    def resume(self, comparison_id: str, *, retry_failed: bool = False) -> None:
        """Enqueues it again."""
        self._submit(comparison_id, retry_failed=retry_failed)

    def workers(self) -> int:
        """The thread."""
        return int(self._thread.is_alive())

    def _submit(self, comparison_id: str, *, retry_failed: bool) -> None:
        job = self._one(comparison_id, retry_failed=retry_failed)
        self._running[comparison_id] = asyncio.run_coroutine_threadsafe(job, self._loop)

    async def _one(self, comparison_id: str, *, retry_failed: bool) -> None:
        assert self._context is not None
        is_over = False
        while not is_over:
            async with self._turn:
                is_over = await carry_out(
                    self._context, comparison_id, progress=NullProgress(), retry_failed=retry_failed
                )
            if not is_over:
                await asyncio.sleep(HOST_WAIT_S)


async def _end_all() -> None:
    under_way = asyncio.all_tasks() - {asyncio.current_task()}
    for one in under_way:
        one.cancel()
    await asyncio.gather(*under_way, return_exceptions=True)

"""What goes on beside the event loop of a run: signs of life, and whatever loads, renders or scores."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from qualab.app.services import Services
from qualab.errors import QualabError

T = TypeVar("T")
STOP_EVERY_S = 0.1


async def beat(services: Services, comparison_id: str) -> None:
    """Beats until it is cancelled. Raises ComparisonBusy when another process has taken over."""
    while True:
        await asyncio.sleep(services.pulse.every_s)
        await asyncio.to_thread(_beat, services, comparison_id)


@contextmanager
def kept_alive(services: Services, comparison_id: str) -> Iterator[None]:
    """Beats from a thread of its own while something else takes minutes."""
    ended = threading.Event()

    def beats() -> None:
        while not ended.wait(services.pulse.every_s):
            try:
                _beat(services, comparison_id)
            except QualabError:  # taken over, or no database: what is stored next says so
                return

    thread = threading.Thread(target=beats, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def in_thread(services: Services, job: Callable[[], T]) -> T:
    """Runs what uses the harness beside the event loop. A cancellation ends the harness's processes, and so the job."""
    running = asyncio.get_running_loop().run_in_executor(None, job)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            services.harness.stop()
            await asyncio.wait([running], timeout=STOP_EVERY_S)
        running.exception()  # is not missed
        raise


def _beat(services: Services, comparison_id: str) -> None:
    services.store.heartbeat(comparison_id, runner=services.runner, now=services.clock.now())

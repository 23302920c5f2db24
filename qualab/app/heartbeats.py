"""Signs of life of a running comparison, so that no other process takes it over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from qualab.app.services import Services
from qualab.errors import QualabError


async def beat(services: Services, comparison_id: str) -> None:
    """Beats until it is cancelled. Raises ComparisonBusy when another process has taken over."""
    while True:
        await asyncio.sleep(services.pulse.every_s)
        await asyncio.to_thread(_beat, services, comparison_id)


@contextmanager
def kept_alive(services: Services, comparison_id: str) -> Iterator[None]:
    """Beats from a thread of its own while the event loop is busy with scoring, which may take minutes."""
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


def _beat(services: Services, comparison_id: str) -> None:
    services.store.heartbeat(comparison_id, runner=services.runner, now=services.clock.now())

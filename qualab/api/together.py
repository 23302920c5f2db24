"""Reads of many keys that come at the same time, done as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")


class Together(Generic[T]):
    """While one read is under way, whoever comes waits for the next, which is for all of them.

    Nothing that it gives was read before it was asked for. Of one event loop.
    """

    def __init__(self, read: Callable[[Sequence[str]], Mapping[str, T]]) -> None:
        """`read` is called in a thread; what is not there it leaves out."""
        self._read = read
        self._waiting: dict[str, asyncio.Future[T | None]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def get(self, key: str) -> T | None:
        """None where it is not there. Raises what `read` does."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = loop.create_future()
            waiting.add_done_callback(_see)
        if self._reader is None:
            self._reader = loop.create_task(self._read_on())
        return await asyncio.shield(waiting)  # others may wait for it, too

    async def _read_on(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, {}
                await self._answer(waiting)
        finally:
            self._reader = None

    async def _answer(self, waiting: Mapping[str, asyncio.Future[T | None]]) -> None:
        try:
            found = await run_in_threadpool(self._read, list(waiting))
        except Exception as error:
            for one in waiting.values():
                one.set_exception(error)
        else:
            for key, one in waiting.items():
                one.set_result(found.get(key))


def _see(waiting: asyncio.Future[T | None]) -> None:
    """An error is not complained about where whoever asked is gone."""
    if not waiting.cancelled():
        waiting.exception()

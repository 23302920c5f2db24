"""Answers on their way to the store: committed as they come, in groups while a commit is under way."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from qualab.domain.items import Answer
from qualab.ports import Store

MAX_GROUP = 2_000
PAUSE_S = 0.05
"""After a commit: answers that come fast share the next one, and what a kill can lose stays this small."""


class Recorder:
    """Collects answers; one commit at a time takes whatever has arrived since the last."""

    def __init__(self, store: Store, comparison_id: str) -> None:
        self._store = store
        self._comparison_id = comparison_id
        self._waiting: list[Answer] = []
        self._arrived = asyncio.Event()
        self._closed = asyncio.Event()
        self._commit: asyncio.Future[None] | None = None

    def add(self, answer: Answer) -> None:
        self._waiting.append(answer)
        self._arrived.set()

    def close(self) -> None:
        """Lets `commit_until_closed` end."""
        self._closed.set()
        self._arrived.set()

    async def commit_until_closed(self) -> None:
        """Raises what the store raises."""
        while not self._closed.is_set():
            await self._arrived.wait()
            self._arrived.clear()
            await self.flush()
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await self._closed.wait()

    async def flush(self) -> None:
        """Commits everything that has arrived; a commit that a cancellation left behind is awaited first.

        Raises what the store raises; answers that it did not take wait for the next flush.
        """
        while self._commit or self._waiting:
            commit = self._commit = self._commit or asyncio.ensure_future(self._commit_group())
            try:
                await asyncio.shield(commit)
            finally:
                if commit.done() and self._commit is commit:  # another may wait for it, and have begun the next
                    self._commit = None

    async def _commit_group(self) -> None:
        group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
        try:
            await asyncio.to_thread(self._store.add_answers, self._comparison_id, group)
        except BaseException:
            self._waiting = group + self._waiting
            raise

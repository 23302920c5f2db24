"""Answers on their way to the store: each is committed before its worker asks the next request."""

from __future__ import annotations

import asyncio

from qualab.domain.items import Answer
from qualab.ports import Store

MAX_GROUP = 2_000


class Recorder:
    """Collects answers; one commit at a time takes whatever has arrived since the last."""

    def __init__(self, store: Store, comparison_id: str) -> None:
        self._store = store
        self._comparison_id = comparison_id
        self._waiting: list[Answer] = []
        self._n_added = 0
        self._n_stored = 0
        self._commit: asyncio.Future[None] | None = None

    async def add(self, answer: Answer) -> None:
        """Returns once the answer is committed, so that a kill loses no more than what is in flight.

        Raises what the store raises.
        """
        self._waiting.append(answer)
        self._n_added += 1
        number = self._n_added
        while self._n_stored < number:
            await self._commit_next()

    async def flush(self) -> None:
        """Commits everything that has arrived; a commit that a cancellation left behind is awaited first.

        Raises what the store raises; answers that it did not take wait for the next flush.
        """
        while self._commit or self._waiting:
            await self._commit_next()

    async def _commit_next(self) -> None:
        """Waits for the commit that is under way, or for a new one."""
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
        self._n_stored += len(group)

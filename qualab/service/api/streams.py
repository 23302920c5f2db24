"""Progress to many clients at once: one reader a comparison looks at the database, and wakes whoever listens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import orjson
from starlette.concurrency import run_in_threadpool

from qualab.errors import ComparisonNotFound, StoreError, TooManyRequests
from qualab.report.words import shown
from qualab.service.desk import Desk
from qualab.service.reading import Follower, Progress

HEARTBEAT = b": still here\n\n"
DELETED = b"event: end\ndata: {}\n\n"
log = logging.getLogger("qualab.service.api")


class Channel:
    """What is known of one comparison. A listener that is slow misses states between, never the last one."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.n_listeners = 0
        self.mark = ""
        self.message = b""
        self.is_over = False
        self._changed = asyncio.Event()

    async def changed(self, timeout_s: float) -> bool:
        """Waits for another state; False where none came."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def tell(self, found: Progress) -> None:
        """Wakes the listeners, if anything is new."""
        if found.mark != self.mark:
            self.mark, self.message, self.is_over = found.mark, _message(found), found.has_ended
            self.wake()

    def end(self) -> None:
        """There is nothing more to tell."""
        if not self.is_over:
            self.message, self.mark, self.is_over = DELETED, "deleted", True
        self.wake()

    def wake(self) -> None:
        """Lets the listeners look."""
        self._changed.set()
        self._changed = asyncio.Event()


class Broadcast:
    """The channels of all comparisons that somebody follows."""

    def __init__(self, desk: Desk, *, poll_s: float, heartbeat_s: float, most: int) -> None:
        self._desk = desk
        self._poll_s = poll_s
        self._heartbeat_s = heartbeat_s
        self._most = most
        self._channels: dict[str, Channel] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def n_listeners(self) -> int:
        return sum(channel.n_listeners for channel in self._channels.values())

    async def join(self, comparison_id: str) -> Channel:
        """The channel, after a first look. Raises ComparisonNotFound, StoreError, TooManyRequests."""
        if self.n_listeners >= self._most:
            raise TooManyRequests(f"{self._most} clients follow events already", hint="Ask for the verdict instead")
        channel = self._channels.get(comparison_id)
        if channel is None or channel.is_over:
            fresh = Channel(Follower(self._desk, comparison_id))
            fresh.tell(await run_in_threadpool(fresh.follower.look))
            channel = self._channels.get(comparison_id)
            if channel is None or channel.is_over:
                channel = self._channels[comparison_id] = fresh
                self._begin(comparison_id, channel)
        channel.n_listeners += 1
        return channel

    def leave(self, channel: Channel) -> None:
        """A listener is gone."""
        channel.n_listeners -= 1

    async def messages(self, channel: Channel, seen: str) -> AsyncIterator[bytes]:
        """Events from the state on that a client has not `seen`; a sign of life where nothing changes."""
        yield b"retry: 2000\n\n"
        while not self._is_closed:
            if channel.mark != seen:
                seen = channel.mark
                yield channel.message
            if channel.is_over:
                return
            if not await channel.changed(self._heartbeat_s):
                yield HEARTBEAT

    def close(self) -> None:
        """Ends every stream: the server is about to."""
        self._is_closed = True
        for reader in self._readers:
            reader.cancel()
        for channel in self._channels.values():
            channel.wake()

    def _begin(self, comparison_id: str, channel: Channel) -> None:
        reader = asyncio.get_running_loop().create_task(self._read(comparison_id, channel))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)

    async def _read(self, comparison_id: str, channel: Channel) -> None:
        try:
            while not channel.is_over:
                await asyncio.sleep(self._poll_s)
                if not channel.n_listeners:
                    return
                await self._look(channel)
        finally:
            if self._channels.get(comparison_id) is channel:
                del self._channels[comparison_id]

    async def _look(self, channel: Channel) -> None:
        try:
            channel.tell(await run_in_threadpool(channel.follower.look))
        except ComparisonNotFound:
            channel.end()
        except StoreError as error:  # it may come back
            log.warning("progress: %s", error.message)


def _message(found: Progress) -> bytes:
    data = orjson.dumps(shown(found))
    event = b"end" if found.has_ended else b"progress"
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (found.mark.encode(), event, data)

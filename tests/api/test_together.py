"""Reads that come together are done as one, and give nothing that was read before it was asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from qualab.errors import StoreError
from qualab.service.api.state import Together


class Source:
    """Gives what is there now, when it is let."""

    def __init__(self) -> None:
        self.there = {"a": 1, "b": 2}
        self.reads: list[list[str]] = []
        self.may_go_on = threading.Event()
        self.error: Exception | None = None

    def __call__(self, keys: Sequence[str]) -> dict[str, int]:
        self.reads.append(sorted(keys))
        found = {key: self.there[key] for key in keys if key in self.there}
        assert self.may_go_on.wait(5.0)
        if self.error:
            raise self.error
        return found

    async def is_read(self, times: int) -> None:
        while len(self.reads) < times:
            await asyncio.sleep(0.001)


async def test_who_comes_while_a_read_is_under_way_waits_for_the_next() -> None:
    source = Source()
    reads = Together(source)
    first = asyncio.create_task(reads.get("a"))
    await source.is_read(1)
    source.there["a"] = 10
    later = [asyncio.create_task(reads.get(key)) for key in ("a", "b", "a", "c")]
    await asyncio.sleep(0.01)
    source.may_go_on.set()
    assert await first == 1
    assert await asyncio.gather(*later) == [10, 2, 10, None]
    assert source.reads == [["a"], ["a", "b", "c"]]
    assert await reads.get("b") == 2
    assert len(source.reads) == 3


async def test_an_error_reaches_all_who_wait_and_nobody_later() -> None:
    source = Source()
    source.error = StoreError("away")
    source.may_go_on.set()
    reads = Together(source)
    found = await asyncio.gather(reads.get("a"), reads.get("b"), return_exceptions=True)
    assert [type(one) for one in found] == [StoreError, StoreError]
    source.error = None
    assert await reads.get("a") == 1


async def test_who_leaves_takes_nobody_along() -> None:
    source = Source()
    reads = Together(source)
    leaves, stays = asyncio.create_task(reads.get("a")), asyncio.create_task(reads.get("a"))
    await source.is_read(1)
    leaves.cancel()
    source.may_go_on.set()
    assert await stays == 1
    with pytest.raises(asyncio.CancelledError):
        await leaves

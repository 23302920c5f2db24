"""A load client for benchmarks/service.py, in processes of its own: HTTP/1.1 with as little as it takes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvicorn
import uvloop
from fastapi import FastAPI, Response

from qualab.bootstrap import allow_open_files

T = TypeVar("T")
READ_WITHIN_S = 30.0
JOINED_AT_ONCE = 50
"""Clients that connect at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go."""

    port: int
    token: str = ""

    def request(self, path: str) -> bytes:
        """The bytes of a GET."""
        key = f"Authorization: Bearer {self.token}\r\n" if self.token else ""
        return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{key}\r\n".encode()


@dataclass(slots=True, kw_only=True)
class Seen:
    """What came back."""

    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True)
class Followed:
    """What clients that follow events saw."""

    n_connected: int = 0
    n_events: int = 0
    n_ended: int = 0
    """Those that were told the end."""
    problems: Counter[str] = field(default_factory=Counter)


def ask(target: Target, paths: Sequence[str], *, connections: int, seconds: float | None) -> Seen:
    """Asks over so many connections at once, each sending its next request when it has its answer.

    For so long, over and over; or, with None, for each path once.
    """
    return _run(_ask(target, paths, connections, seconds))


def follow(target: Target, path: str, *, clients: int, within_s: float) -> Followed:
    """So many clients of an event stream, until each was told its end."""
    return _run(_follow(target, path, clients, within_s))


def dawdle(target: Target, path: str, *, clients: int, seconds: float) -> None:
    """Half of the clients send a head byte by byte; the others ask a lot and read nothing."""
    _run(_dawdle(target, path, clients, seconds))


def serve_empty(port: int) -> None:
    """A bare FastAPI app, on the same server as the service."""
    app = FastAPI()

    @app.get("/")
    async def empty() -> Response:
        return Response(b"{}", media_type="application/json")

    uvicorn.run(app, host="127.0.0.1", port=port, http="httptools", loop="uvloop", ws="none", log_level="error")


def _run(job: Coroutine[Any, Any, T]) -> T:
    allow_open_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(job)


async def _ask(target: Target, paths: Sequence[str], connections: int, seconds: float | None) -> Seen:
    seen, began = Seen(), time.perf_counter()
    requests = [target.request(path) for path in paths]
    source = _until(began + seconds, itertools.cycle(requests)) if seconds else iter(requests)
    await asyncio.gather(*(_connection(target, source, seen) for _ in range(connections)))
    seen.seconds = time.perf_counter() - began
    return seen


def _until(ends_at: float, requests: Iterable[bytes]) -> Iterator[bytes]:
    for request in requests:
        if time.perf_counter() >= ends_at:
            return
        yield request


async def _connection(target: Target, requests: Iterator[bytes], seen: Seen) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    for request in requests:
        began = time.perf_counter()
        writer.write(request)
        seen.statuses[await _answer(reader)] += 1
        seen.latencies_s.append(time.perf_counter() - began)
    writer.close()


async def _answer(reader: asyncio.StreamReader) -> int:
    """Reads one answer to its end, and gives its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length))
    return int(head[9:12])


async def _follow(target: Target, path: str, clients: int, within_s: float) -> Followed:
    found, turn = Followed(), asyncio.Semaphore(JOINED_AT_ONCE)
    async with asyncio.timeout(within_s):
        await asyncio.gather(*(_follower(target, path, found, turn) for _ in range(clients)))
    return found


async def _follower(target: Target, path: str, found: Followed, turn: asyncio.Semaphore) -> None:
    try:
        async with turn:
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            writer.write(target.request(path))
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), READ_WITHIN_S)
        if not head.startswith(b"HTTP/1.1 200"):
            found.problems[head[9:12].decode()] += 1
            return
        found.n_connected += 1
        await _events(reader, found)
        writer.close()
    except (OSError, EOFError, TimeoutError) as exc:
        found.problems[type(exc).__name__] += 1


async def _events(reader: asyncio.StreamReader, found: Followed) -> None:
    """Until the last chunk."""
    is_told = False
    while line := await asyncio.wait_for(reader.readline(), READ_WITHIN_S):
        found.n_events += line.startswith(b"event:")
        if line.startswith(b"event: end") and not is_told:
            is_told = True
            found.n_ended += 1
        if line == b"0\r\n":
            return


async def _dawdle(target: Target, path: str, clients: int, seconds: float) -> None:
    ends_at = time.perf_counter() + seconds
    request = target.request(path)
    slow = (_trickle(target, request, ends_at) for _ in range(clients // 2))
    deaf = (_deaf(target, request, ends_at) for _ in range(clients - clients // 2))
    await asyncio.gather(*slow, *deaf)


async def _trickle(target: Target, request: bytes, ends_at: float) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", target.port)
    for number in range(len(request) - 2):
        if time.perf_counter() > ends_at:
            break
        writer.write(request[number : number + 1])
        await asyncio.sleep(0.1)
    writer.close()


async def _deaf(target: Target, request: bytes, ends_at: float) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", target.port, limit=1)
    writer.write(request * 20)
    await asyncio.sleep(max(0.0, ends_at - time.perf_counter()))
    with suppress(OSError):
        writer.transport.abort()

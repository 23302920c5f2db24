"""A server that answers each request by the next step of a script, and time that does not pass by itself."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from qualab.endpoints.transport import Timing
from qualab.model.items import Request
from qualab.model.names import Api

Step = Callable[[web.Request], Awaitable[web.StreamResponse]]
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class ScriptedServer:
    """Steps are used up in order, the last one again and again; `routes` come before them."""

    steps: list[Step] = field(default_factory=list)
    routes: dict[tuple[str, str], Step] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    peers: set[Any] = field(default_factory=set)
    url: str = ""

    def script(self, *steps: Step) -> None:
        self.steps = list(steps)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append(Seen(request.method, request.path, dict(request.headers), body))
        if request.transport is not None:
            self.peers.add(request.transport.get_extra_info("peername"))
        step = self.routes.get((request.method, request.path))
        if step is None:
            step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await step(request)
        finally:
            self.in_flight -= 1


def reply(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Step:
    """JSON, or text and bytes as they are."""

    async def step(request: web.Request) -> web.StreamResponse:
        raw = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        return web.Response(body=raw, status=status, headers={"Content-Type": "application/json", **(headers or {})})

    return step


def after(seconds: float, then: Step) -> Step:
    async def step(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await then(request)

    return step


def slow_body(seconds: float) -> Step:
    """Headers and half of the body at once, the other half later."""

    async def step(request: web.Request) -> web.StreamResponse:
        raw = json.dumps(completion("late")).encode()
        response = web.StreamResponse(headers={"Content-Length": str(len(raw))})
        await response.prepare(request)
        await response.write(raw[:20])
        await asyncio.sleep(seconds)
        await response.write(raw[20:])
        return response

    return step


def wire(raw: bytes, *, reset: bool = False) -> Step:
    """These bytes as they are, then the end of the connection."""

    async def step(request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        transport.write(raw)
        await asyncio.sleep(0.01)
        if reset:
            transport.abort()
        else:
            transport.close()
        return web.Response()

    return step


def completion(text: str | None, *, finish_reason: str = "stop", **extra: Any) -> dict[str, Any]:
    return {
        "object": "text_completion",
        "choices": [{"index": 0, "text": text, "finish_reason": finish_reason, **extra}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        "system_fingerprint": "fp-1",
    }


def chat(message: dict[str, Any], *, finish_reason: str = "stop") -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return {"object": "chat.completion", "choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def models(*names: str, **extra: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name, "object": "model", **extra} for name in names]}


COMPLETION = Request(choice=0, api=Api.COMPLETIONS, payload={"prompt": "q", "model": "m"})
CHAT = Request(choice=0, api=Api.CHAT, payload={"messages": [], "model": "m"})


@dataclass
class FakeTime:
    """Sleeping returns at once and moves the clock."""

    elapsed: float = 0.0
    slept: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.elapsed += seconds

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed)

    @property
    def timing(self) -> Timing:
        return Timing(now=self.now, monotonic_s=lambda: self.elapsed, sleep=self.sleep, rng=random.Random(7))

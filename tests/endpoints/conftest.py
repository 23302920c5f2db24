"""A server of steps, the client opened on it, and time that does not pass by itself."""

from __future__ import annotations

import random
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from qualab.endpoints.client import HttpEndpoint
from qualab.endpoints.transport import Timing
from qualab.model.items import Reply, Request
from qualab.model.names import Api
from qualab.model.plan import RequestPolicy
from tests.scripted_server import ScriptedServer, Step

Open = Callable[..., HttpEndpoint]
Ask = Callable[..., Awaitable[Reply]]
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
COMPLETION = Request(choice=0, api=Api.COMPLETIONS, payload={"prompt": "q", "model": "m"})
CHAT = Request(choice=0, api=Api.CHAT, payload={"messages": [], "model": "m"})


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


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        scripted.routes.clear()
        yield scripted


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def opened(server: ScriptedServer, fake_time: FakeTime) -> Open:
    """Opens the server; keyword arguments are the policy's, but for url, key and loading_s."""

    def open_it(*, url: str = "", key: str | None = None, loading_s: float = 60.0, **given: Any) -> HttpEndpoint:
        policy, timing = RequestPolicy(**{"timeout_s": 5.0, **given}), fake_time.timing
        return HttpEndpoint(url or server.root, policy=policy, key=key, timing=timing, loading_timeout_s=loading_s)

    return open_it


@pytest.fixture
def ask(server: ScriptedServer, opened: Open) -> Ask:
    """The reply to one request, where the server answers with these steps; keyword arguments are as of `opened`."""

    async def ask_once(*steps: Step, **settings: object) -> Reply:
        if steps:
            server.answer(*steps)
        async with opened(**settings) as endpoint:
            return await endpoint.ask(COMPLETION, b"{}")

    return ask_once


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The addresses that names have; nothing depends on this machine's resolver."""
    table: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def looked_up(host: str, port: int, **more: Any) -> Any:
        if host not in table:
            return real(host, port, flags=socket.AI_NUMERICHOST, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in table[host]]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    return table

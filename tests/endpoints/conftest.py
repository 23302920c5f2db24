from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from qualab.endpoints.client import HttpEndpoint
from qualab.model.items import Reply, Request
from qualab.model.plan import RequestPolicy
from tests.endpoints.scripted import COMPLETION, FakeTime, ScriptedServer, Step

Open = Callable[..., HttpEndpoint]
Ask = Callable[..., Awaitable[Reply]]


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{tail:.*}", scripted.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    scripted.url = "http://{}:{}".format(*runner.addresses[0][:2])
    yield scripted
    await runner.cleanup()


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def opened(server: ScriptedServer, fake_time: FakeTime) -> Open:
    """Opens the scripted server; keyword arguments are the policy's, but for url, key and loading_timeout_s."""

    def open_it(
        *, url: str = "", key: str | None = None, loading_timeout_s: float = 60.0, **policy: float
    ) -> HttpEndpoint:
        return HttpEndpoint(
            url or server.url,
            policy=RequestPolicy(**{"timeout_s": 5.0, **policy}),  # type: ignore[arg-type]
            key=key,
            timing=fake_time.timing,
            loading_timeout_s=loading_timeout_s,
        )

    return open_it


@pytest.fixture
def ask(server: ScriptedServer, opened: Open) -> Ask:
    """The reply to one request, where the server answers with these steps; keyword arguments are as of `opened`."""

    async def ask_once(*steps: Step, request: Request = COMPLETION, **settings: object) -> Reply:
        if steps:
            server.script(*steps)
        async with opened(**settings) as endpoint:
            return await endpoint.ask(request, b"{}")

    return ask_once

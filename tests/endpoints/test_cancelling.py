"""A cancellation that the client library loses, because an answer or a failure comes at the same moment."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from pyreqwest.exceptions import ConnectError

from qualab.endpoints.transport import Transport
from tests.endpoints.scripted import ScriptedServer


class Deaf:
    """Stands in for the client, a request and an answer: waits, takes no notice of a cancellation, and ends."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.status = 200

    def request(self, *_: object) -> Deaf:
        return self

    def build(self) -> Deaf:
        return self

    async def send(self) -> Deaf:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        if self.error:
            raise self.error
        return self

    def to_bytes(self) -> bytes:
        return b"{}"

    async def bytes(self) -> Deaf:
        return self

    async def close(self) -> None: ...


@pytest.mark.parametrize("error", [None, ConnectError("refused", {"causes": []})])
async def test_a_cancellation_is_not_lost(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    client: Any = Deaf(error)
    transport = Transport(server.url, key="", timeout_s=5.0)
    await transport.close()
    monkeypatch.setattr(transport, "_client", client)
    sending = asyncio.create_task(transport.send("GET", "http://127.0.0.1/"))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending

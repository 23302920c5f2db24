"""A server of `qualab serve`, read over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from qualab.endpoints.transport import Exchange, Fault, Transport
from qualab.endpoints.urls import normalize_url
from qualab.errors import EndpointMisconfigured, EndpointUnreachable, InfrastructureError, QualabError, error_class
from qualab.model.items import JsonObject

TIMEOUT_S = 30.0
NO_SERVICE = "Name a server of `qualab serve`, as http://qualab.internal:8080"


@asynccontextmanager
async def open_service(url: str, *, token: str) -> AsyncIterator[Service]:
    """Opens it; the context owns its connections. `token` is sent, and never logged or shown."""
    base = normalize_url(url)
    async with Transport(base, key=token, timeout_s=TIMEOUT_S) as transport:
        yield Service(base, transport)


class Service:
    """The service's API, read below /v1."""

    def __init__(self, base: str, transport: Transport) -> None:
        self._base = base
        self._transport = transport

    async def get(self, path: str) -> JsonObject:
        """Raises what the server names as its error; EndpointUnreachable, EndpointMisconfigured."""
        sent = await self._transport.send("GET", f"{self._base}{path}")
        if isinstance(sent, Fault):
            raise EndpointUnreachable(f"The service at {self._base} cannot be reached: {sent.reason}", hint=sent.hint)
        content = sent.json()
        if sent.status == 200 and isinstance(content, dict):
            return content
        raise self._error(sent, content)

    def _error(self, sent: Exchange, content: Any) -> QualabError:
        if isinstance(content, dict) and "code" in content:
            unknown = InfrastructureError if sent.status >= 500 else EndpointMisconfigured
            kind = error_class(str(content["code"]), unknown)
            return kind(str(content.get("detail") or content.get("title")), hint=str(content.get("hint", "")))
        if sent.status >= 500:
            return EndpointUnreachable(f"The service at {self._base} answers HTTP {sent.status}", hint="See its log")
        return EndpointMisconfigured(f"{self._base} is no qualab service: HTTP {sent.status}", hint=NO_SERVICE)

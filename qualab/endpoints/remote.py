"""A server of `qualab serve`, read over HTTP."""

from __future__ import annotations

from typing import Self

from qualab.endpoints.transport import Exchange, Failure, Transport
from qualab.endpoints.urls import normalize_url
from qualab.errors import EndpointMisconfigured, EndpointUnreachable, InfrastructureError, QualabError, error_class
from qualab.model.items import JsonObject

TIMEOUT_S, DRAWING_TIMEOUT_S = 30.0, 120.0


class Service:
    """Client of the service's API below /v1. Its context owns the connections."""

    def __init__(self, url: str, *, token: str) -> None:
        """Connect to a server; `token` is never logged or shown."""
        self._base = normalize_url(url)
        self._transport = Transport(self._base, key=token, timeout_s=TIMEOUT_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

    async def get(self, path: str) -> JsonObject:
        """Get a JSON object. Raises what the server names as its error; EndpointUnreachable, EndpointMisconfigured."""
        exchange = await self._send(path, TIMEOUT_S)
        if content := exchange.object():
            return content
        raise self._error(exchange)

    async def download(self, path: str) -> bytes:
        """Get a file that takes time to draw. Raises as `get`."""
        exchange = await self._send(path, DRAWING_TIMEOUT_S)
        if exchange.status == 200:
            return exchange.body
        raise self._error(exchange)

    async def _send(self, path: str, timeout_s: float) -> Exchange:
        try:
            return await self._transport.send("GET", f"{self._base}{path}", timeout_s=timeout_s)
        except Failure as exc:
            message = f"The service at {self._base} cannot be reached: {exc.message}"
            raise EndpointUnreachable(message, hint=exc.hint) from None

    def _error(self, exchange: Exchange) -> QualabError:
        status, content = exchange.status, exchange.json()
        content = content if isinstance(content, dict) else {}
        if "code" in content:
            kind = error_class(str(content["code"]), InfrastructureError if status >= 500 else EndpointMisconfigured)
            return kind(str(content.get("detail") or content.get("title")), hint=str(content.get("hint", "")))
        if status >= 500:
            return EndpointUnreachable(f"The service at {self._base} answers HTTP {status}", hint="See its log")
        hint = "Name a server of `qualab serve`, as http://qualab.internal:8080"
        return EndpointMisconfigured(f"{self._base} is not a qualab service: HTTP {status}", hint=hint)

"""The server around the app: slow clients are let go, event streams end before it does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from http import HTTPStatus
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from qualab.api.problems import not_http
from qualab.errors import InfrastructureError
from qualab.service_settings import ServiceSettings

GRACE_S = 10
"""For requests that are under way when the server is stopped."""
KEEP_ALIVE_S = 30
MOST_HEAD_BYTES = 65_536
"""Of a request line and headers together."""
BEYOND = 100
"""Connections beyond those whose requests are served, so that these get an answer that says so."""


def server_of(app: FastAPI, settings: ServiceSettings, *, started: Callable[[str], None]) -> Server:
    """Serves, once it is run, until SIGINT or SIGTERM. `started` is told the address."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=type("Http", (TimedProtocol,), {"head_timeout_s": settings.body_timeout_s}),
        ws="none",
        loop="auto",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # whom a request comes from decides whether it needs a token
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        limit_concurrency=settings.max_connections + BEYOND,
    )
    return Server(config, app=app, started=started)


class Server(uvicorn.Server):
    """Ends event streams first: they would end by themselves only with their comparisons."""

    def __init__(self, config: uvicorn.Config, *, app: FastAPI, started: Callable[[str], None]) -> None:
        super().__init__(config)
        self._app = app
        self._started = started

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Ends in order, and at once the second time. The signal is not raised again: there is more to put away."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Says where it listens. Raises InfrastructureError where it cannot."""
        try:
            await super().startup(sockets)  # type: ignore[arg-type]
        except SystemExit as exc:  # with the exit code of a comparison that is inconclusive
            raise InfrastructureError(
                f"Cannot listen on {self.config.host}, port {self.config.port}",
                hint="Its reason is in the log above; choose another with --host and --port",
            ) from exc
        if self.started:
            port = next((one.getsockname()[1] for server in self.servers for one in server.sockets), self.config.port)
            host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
            self._started(f"http://{host}:{port}")

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Ends what would not end."""
        self._app.state.qualab.broadcast.close()
        await super().shutdown(sockets)  # type: ignore[arg-type]


class TimedProtocol(HttpToolsProtocol):
    """HTTP for clients that send a request's head in time, and none without end."""

    head_timeout_s = 30.0
    _timer: asyncio.TimerHandle | None = None
    _is_in_head = False
    _n_head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The time for the first head runs."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """A head may be whole now, or have begun."""
        super().data_received(data)
        self._watch()
        if self._is_in_head:
            self._n_head_bytes += len(data)
            if self._n_head_bytes > MOST_HEAD_BYTES:
                self._refuse(431, f"The headers are larger than {MOST_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._is_in_head, self._n_head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """It is whole."""
        self._is_in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """A problem, as every error is."""
        self._refuse(400, msg.rstrip("."))

    def _refuse(self, status: int, detail: str) -> None:
        """Answers for the app, which never sees this request."""
        answer = not_http(status, detail)
        lines = [b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode())]
        lines += [name + b": " + value for name, value in (*answer.raw_headers, (b"connection", b"close"))]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + bytes(answer.body))
        self.transport.close()
        self._is_in_head = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is waited for."""
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_timeout_s, self._let_go)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _let_go(self) -> None:
        self._timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

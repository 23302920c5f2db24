"""The server around the app: request ids, Host and Origin checks, body limit, logs, and an orderly end."""

from __future__ import annotations

import logging
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from types import FrameType
from urllib.parse import urlsplit

import orjson
import uvicorn
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qualab.errors import InfrastructureError
from qualab.service.api.answers import HttpProblem, http_problem
from qualab.service.settings import LOOPBACK_HOSTS, ServiceSettings

GRACE_S = 10
"""For requests that are under way when the server is stopped."""
KEEP_ALIVE_S = 30


def server_of(app: FastAPI, settings: ServiceSettings, *, started: Callable[[str], None]) -> Server:
    """Serves, once it is run, until SIGINT or SIGTERM. `started` is told the address."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        ws="none",
        loop="auto",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # whom a request comes from decides whether it needs a token
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
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
        self._app.state.qualab.events.close()
        await super().shutdown(sockets)  # type: ignore[arg-type]


REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
SECURE = [(b"x-content-type-options", b"nosniff")]
log = logging.getLogger("qualab.service.api")
access = logging.getLogger("qualab.access")

Observe = Callable[[str, str, int, float], None]
"""Told of every request: method, route, status, seconds."""


class RequestMiddleware:
    """Check, count and log every request; answer with a problem whatever goes wrong below."""

    def __init__(self, app: ASGIApp, *, settings: ServiceSettings, observe: Observe) -> None:
        self._app = app
        self._settings = settings
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"
        scope["qualab.request_id"] = request_id
        app_scope = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        reply = _Reply(send, request_id, has_body=app_scope is scope)
        began = time.perf_counter()
        try:
            self._check(scope, headers)
            body = _Body(receive, limit=self._settings.max_body_bytes)
            await self._app(app_scope, body, reply)
        except HttpProblem as found:
            await reply.instead(http_problem(found, request_id), scope, receive)
        except ClientDisconnect:
            gone = HttpProblem(400, "The client left before its body was whole")
            await reply.instead(http_problem(gone, request_id), scope, receive)
        except Exception:
            log.exception("request %s failed unexpectedly", request_id)
            await reply.instead(
                http_problem(HttpProblem(500, "Something went wrong in the service"), request_id), scope, receive
            )
        finally:
            route = getattr(app_scope.get("route"), "path", "(none)")
            self._tell(scope, route, reply.status, time.perf_counter() - began, request_id)

    def _check(self, scope: Scope, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._is_addressed(_name_of(host)):
            raise HttpProblem(421, "The Host header names another machine")
        if scope["method"] not in SAFE and _is_cross_origin(headers, host):
            raise HttpProblem(403, "The request comes from a page of another site")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._settings.max_body_bytes:
            raise _too_large(self._settings.max_body_bytes)

    def _is_addressed(self, name: str) -> bool:
        """On loopback a page of any site could ask by a name of its own that leads here."""
        settings = self._settings
        if settings.is_loopback:
            return name in LOOPBACK_HOSTS or name in settings.allowed_hosts
        return not settings.allowed_hosts or name in settings.allowed_hosts

    def _tell(self, scope: Scope, route: str, status: int, seconds: float, request_id: str) -> None:
        self._observe(scope["method"], route, status, seconds)
        if access.isEnabledFor(logging.INFO):
            extra = {"request_id": request_id, "method": scope["method"], "path": scope["path"], "status": status}
            access.info("request", extra={**extra, "duration_ms": round(seconds * 1e3, 2)})


class _Reply:
    """Sends, and remembers what was sent; of an answer to HEAD its head alone, at once: a stream would not end."""

    def __init__(self, send: Send, request_id: str, *, has_body: bool) -> None:
        self._send = send
        self._has_body = has_body
        self._head = [(b"x-request-id", request_id.encode()), *SECURE]
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._head]
            await self._send(message)
            if not self._has_body:
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        elif self._has_body:
            await self._send(message)

    async def instead(self, response: ASGIApp, scope: Scope, receive: Receive) -> None:
        """Another answer, if none has begun."""
        if not self.status:
            await response(scope, receive, self)


class _Body:
    """Receive a body, as long as it is not too large."""

    def __init__(self, receive: Receive, *, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._n_bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._n_bytes += len(message.get("body", b""))
        if self._n_bytes > self._limit:
            raise _too_large(self._limit)
        return message


def _too_large(limit: int) -> HttpProblem:
    return HttpProblem(413, f"The body is larger than {limit} bytes")


def _name_of(host: str) -> str:
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) and not host.endswith("]") else host
    return name.strip("[]").lower().rstrip(".")


def _is_cross_origin(headers: Headers, host: str) -> bool:
    """Whether a browser sends this for a page of another site."""
    if headers.get("sec-fetch-site", "") in ("cross-site", "same-site"):
        return True
    origin = headers.get("origin")
    return origin is not None and _netloc(origin) != host.lower()


def _netloc(origin: str) -> str:
    """Empty for what is no URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


FIELDS = ("request_id", "method", "path", "status", "duration_ms")


class JsonLines(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's text, where it comes from, and what was given with it."""
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in FIELDS if hasattr(record, name)},
        }
        if record.exc_info:
            said["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return orjson.dumps(said, default=str).decode()


def begin_logging() -> None:
    """From warnings on; what the service itself says, and requests, from information on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # not shown, so not looked up
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("qualab", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)

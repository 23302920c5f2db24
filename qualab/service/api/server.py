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
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qualab.errors import InfrastructureError
from qualab.service.api.answers import answer_problem
from qualab.service.settings import LOOPBACK_HOSTS, ServiceSettings

GRACE_S = 10
"""For requests that are under way when the server is stopped."""
KEEP_ALIVE_S = 30


class Server(uvicorn.Server):
    """Serve, once it is run, until SIGINT or SIGTERM."""

    def __init__(self, app: FastAPI, *, started: Callable[[str], None]) -> None:
        """`started` is told the address."""
        settings: ServiceSettings = app.state.qualab.context.settings
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # whom a request comes from decides whether it needs a token
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
        super().__init__(config)
        self._app = app
        self._started = started

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """End in order, and at once the second time. The signal is not raised again: there is more to put away."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Say where it listens. Raises InfrastructureError where it cannot."""
        try:
            await super().startup(sockets)  # type: ignore[arg-type]
        except SystemExit as exc:  # with the exit code of a comparison that is inconclusive
            raise InfrastructureError(
                f"Cannot listen on {self.config.host}, port {self.config.port}",
                hint="Its reason is in the log above; choose another with --host and --port",
            ) from exc
        port = next((one.getsockname()[1] for server in self.servers for one in server.sockets), self.config.port)
        self._started(f"http://{f'[{self.config.host}]' if ':' in self.config.host else self.config.host}:{port}")

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """End event streams first: they would end by themselves only with their comparisons."""
        self._app.state.qualab.events.close()
        await super().shutdown(sockets)  # type: ignore[arg-type]


REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
log = logging.getLogger("qualab.service.api")
access = logging.getLogger("qualab.access")


class RequestMiddleware:
    """Check, count and log every request; answer with a problem whatever goes wrong below."""

    def __init__(self, app: ASGIApp, *, settings: ServiceSettings, registry: CollectorRegistry) -> None:
        self._app = app
        self._settings = settings
        labels = ("method", "route", "status")
        self._total = Counter("qualab_http_requests", "Requests answered", labels, registry=registry)
        self._times = Histogram("qualab_http_request_seconds", "Time to answer", ("route",), registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, began, status, n_bytes = Headers(scope=scope), time.perf_counter(), 0, 0
        given, is_head = headers.get("x-request-id", ""), scope["method"] == "HEAD"
        request_id = given if REQUEST_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"
        own = [(b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff")]
        app_scope = {**scope, "method": "GET" if is_head else scope["method"], "qualab.request_id": request_id}

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                await send({**message, "headers": [*message.get("headers", ()), *own]})
                if is_head:  # at once: a stream would not end
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            elif not is_head:
                await send(message)

        async def body() -> Message:
            nonlocal n_bytes
            declared = headers.get("content-length", "") if not n_bytes else ""
            if not declared.isdecimal() or int(declared) <= self._settings.max_body_bytes:
                message = await receive()
                n_bytes += len(message.get("body", b""))
                if n_bytes <= self._settings.max_body_bytes:
                    return message
            raise HTTPException(413, f"The body is larger than {self._settings.max_body_bytes} bytes")

        try:
            self._check(scope["method"], headers)
            await self._app(app_scope, body, reply)
        except Exception as error:
            if isinstance(error, ClientDisconnect):
                error = HTTPException(400, "The client left before its body was whole")
            if not isinstance(error, HTTPException):
                log.exception("request %s failed unexpectedly", request_id)
            if not status:
                await (await answer_problem(Request(app_scope), error))(app_scope, receive, reply)
        finally:
            seconds = time.perf_counter() - began
            route = getattr(app_scope.get("route"), "path", "(none)")
            self._total.labels(scope["method"], route, str(status)).inc()
            self._times.labels(route).observe(seconds)
            if access.isEnabledFor(logging.INFO):
                extra = {"request_id": request_id, "method": scope["method"], "path": scope["path"], "status": status}
                access.info("request", extra={**extra, "duration_ms": round(seconds * 1e3, 2)})

    def _check(self, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        name = re.sub(r":\d*$", "", host).strip("[]").lower().rstrip(".")
        allowed = self._settings.allowed_hosts
        if self._settings.is_loopback:  # a page of any site could ask by a name of its own that leads here
            allowed = (*LOOPBACK_HOSTS, *allowed)
        if allowed and name not in allowed:
            raise HTTPException(421, "The Host header names another machine")
        if method not in SAFE and _is_cross_origin(headers, host):
            raise HTTPException(403, "The request comes from a page of another site")


def _is_cross_origin(headers: Headers, host: str) -> bool:
    """Tell whether a browser sends this for a page of another site."""
    origin = headers.get("origin")
    try:
        is_foreign = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
    except ValueError:  # no URL
        is_foreign = True
    return is_foreign or headers.get("sec-fetch-site", "") in ("cross-site", "same-site")


FIELDS = ("request_id", "method", "path", "status", "duration_ms")


class JsonLines(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in FIELDS if hasattr(record, name)},
        }
        if record.exc_info:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return orjson.dumps(line, default=str).decode()


def begin_logging() -> None:
    """Log warnings, and from information on what the service and its requests say."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # not shown, so not looked up
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("qualab", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)

"""What every request passes before any route: its id, its addressee, how much it may send, the log, the counts."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qualab.api.problems import RETRY_AFTER_S, HttpProblem, http_problem, internal_problem
from qualab.service_settings import LOOPBACK_HOSTS, ServiceSettings

REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
SECURE = [(b"x-content-type-options", b"nosniff")]
log = logging.getLogger("qualab.api")
access = logging.getLogger("qualab.access")

Observe = Callable[[str, str, int, float], None]
"""Told of every request: method, route, status, seconds."""


class Front:
    """The outermost layer. Whatever comes out of the app below, a client gets an HTTP answer."""

    def __init__(self, app: ASGIApp, *, settings: ServiceSettings, observe: Observe) -> None:
        self._app = app
        self._settings = settings
        self._observe = observe
        self._n_under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"
        scope["qualab.request_id"] = request_id
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        reply = _Reply(send, request_id, has_body=asked is scope)
        began = time.perf_counter()
        self._n_under_way += 1
        try:
            self._check(scope, headers)
            body = _Body(receive, limit=self._settings.max_body_bytes, timeout_s=self._settings.body_timeout_s)
            await self._app(asked, body, reply)
        except HttpProblem as found:
            await reply.instead(http_problem(found, request_id), scope, receive)
        except ClientDisconnect:
            gone = HttpProblem(400, "The client left before its body was whole")
            await reply.instead(http_problem(gone, request_id), scope, receive)
        except Exception:
            log.exception("request %s failed unexpectedly", request_id)
            await reply.instead(internal_problem(request_id), scope, receive)
        finally:
            self._n_under_way -= 1
            route = getattr(asked.get("route"), "path", "(none)")
            self._tell(scope, route, reply.status, time.perf_counter() - began, request_id)

    def _check(self, scope: Scope, headers: Headers) -> None:
        if self._n_under_way > self._settings.max_connections:
            raise HttpProblem(503, "Too many requests are under way", headers={"Retry-After": str(RETRY_AFTER_S)})
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
    """Receives, as much and as long as is allowed."""

    def __init__(self, receive: Receive, *, limit: int, timeout_s: float) -> None:
        self._receive = receive
        self._limit = limit
        self._timeout_s = timeout_s
        self._ends_at = 0.0
        self._n_bytes = 0
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:  # what comes now is that the client leaves
            return await self._receive()
        now = time.monotonic()
        self._ends_at = self._ends_at or now + self._timeout_s
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._ends_at - now))
        except TimeoutError:
            raise HttpProblem(408, f"The body did not come within {self._timeout_s:g} seconds") from None
        self._n_bytes += len(message.get("body", b""))
        if self._n_bytes > self._limit:
            raise _too_large(self._limit)
        self._is_whole = not message.get("more_body", False)
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

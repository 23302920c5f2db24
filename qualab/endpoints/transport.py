"""HTTP to one server: requests, proxies, failures named, and secrets kept out of what is shown."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import os
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

import orjson
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import BodyDecodeError, DecodeError, PyreqwestError, RequestTimeoutError
from pyreqwest.http import Url
from pyreqwest.response import Response

from qualab import __version__
from qualab.endpoints.urls import is_loopback, port_of
from qualab.errors import InvalidValue
from qualab.model.names import AnswerStatus

CONNECT_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 5.0
"""For requests that a server answers at once: what it is, which models it has."""
KEEPALIVE_S = 4.0
"""Idle connections are closed before the server closes them: uvicorn and llama.cpp do after 5 s."""
HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": f"qualab/{__version__}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Clock and random numbers of a client."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic_s: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)
    """Draws the jitter."""


class Sending(NamedTuple):
    """When and how often a request was sent."""

    attempts: int
    latency_s: float
    sent_at: datetime


@dataclass(eq=False)
class Failure(Exception):
    """A request without a usable answer."""

    message: str
    status: AnswerStatus = field(default=AnswerStatus.BAD_BODY, kw_only=True)
    hint: str = field(default="", kw_only=True)
    retry: bool = field(default=True, kw_only=True)
    """False where asking again cannot help."""
    is_backpressure: bool = field(default=False, kw_only=True)
    """True where the server only asks to wait."""
    retry_after_s: float | None = field(default=None, kw_only=True)
    sending: Sending = field(init=False)


class Exchange(NamedTuple):
    """A whole HTTP answer."""

    status: int
    body: bytes
    header: Callable[[str], str | None]
    """Value by a name in any case; None where there is none that is text."""

    def json(self) -> Any:
        """Parse the body; None where it is not JSON."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None

    def object(self) -> dict[str, Any]:
        """Return the JSON object of an answer with status 200; empty for anything else."""
        answer = self.json() if self.status == 200 else None
        return answer if isinstance(answer, dict) else {}


class Transport:
    """A client for one server."""

    def __init__(self, base: str, *, key: str, timeout_s: float, address: str = "") -> None:
        parts = urlsplit(base)
        is_local = is_loopback(parts.hostname)
        # the number of connections is bounded by the requests in flight
        builder = (
            ClientBuilder()
            .default_headers(HEADERS | ({"Authorization": f"Bearer {key}"} if key else {}))
            .timeout(timedelta(seconds=timeout_s))
            .connect_timeout(timedelta(seconds=min(timeout_s, CONNECT_TIMEOUT_S)))
            .pool_idle_timeout(timedelta(seconds=KEEPALIVE_S))
            .follow_redirects(False)
        )
        if address:
            builder = builder.resolve(parts.hostname or "", address, port_of(parts))
        self.may_be_proxied = not is_local and not {parts.scheme, "all"}.isdisjoint(getproxies())
        self._client: Client = (builder.no_proxy() if is_local else builder).build()
        self._parsed = functools.cache(Url)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def send(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Exchange:
        """Send one request; the deadline (the client's, or `timeout_s`) covers headers and body. Raises Failure."""
        request = self._client.request(method, self._parsed(url))
        if headers:
            request = request.headers(headers)
        if body is not None:
            request = request.body_bytes(body)
        if timeout_s is not None:
            request = request.timeout(timedelta(seconds=timeout_s))
        n_cancelled = _cancellations()
        failure: PyreqwestError | None = None
        try:
            response = await request.build().send()
            content = (await response.bytes()).to_bytes()
        except PyreqwestError as exc:
            failure = exc
        if _cancellations() > n_cancelled:  # the client loses it where an answer comes at the same moment
            raise asyncio.CancelledError
        if failure:
            raise failure_of(failure, may_be_proxied=self.may_be_proxied) from None
        return Exchange(response.status, content, functools.partial(_header, response))

    async def get_object(self, url: str) -> dict[str, Any]:
        """Get the JSON object at a URL that is answered at once; empty where there is none."""
        try:
            return (await self.send("GET", url, timeout_s=PROBE_TIMEOUT_S)).object()
        except Failure:
            return {}


def _cancellations() -> int:
    # counted, as a TaskGroup may leave its own on the task that goes on (Python 3.11)
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _header(response: Response, name: str) -> str | None:
    try:
        return response.get_header(name)
    except ValueError:  # bytes beyond ASCII
        return None


FIREWALL = "Check the address, and that no firewall lies between"
PROXY = "Check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
CERTIFICATE = "Set SSL_CERT_FILE to the certificate of the authority that signed it"
LOG = "Look into the server's log"
CAUSES = (
    ("dns error", "its host name cannot be resolved", "Check the spelling of the host name, and this machine's DNS"),
    (
        "causedasendentity",
        "its TLS certificate is that of an authority, not of a server",
        "Give the server a certificate of its own: one signed by that authority, or self-signed with CA:FALSE",
    ),
    ("invalid peer certificate: ([a-z ]+)", "its TLS certificate is not trusted ({0})", CERTIFICATE),
    ("tunnel error: proxy authorization required", "the proxy refused with status 407", PROXY),
    ("tunnel error", "the proxy cannot be reached, or refused to connect", PROXY),
    ("without sending tls close_notify", "the server closed the connection without an answer", LOG),
    (
        "corrupt message|invalidcontenttype|fatal alert|tls|peer (?:is )?incompatible",
        "TLS failed",
        "If the server speaks plain HTTP, write http:// instead of https://",
    ),
    (
        "connection closed before message completed",
        "the server closed the connection without an answer",
        "If the server speaks TLS, write https:// instead of http://",
    ),
    ("too many open files", "this process may open no more files (ulimit -n)", "Raise it, or lower --concurrency"),
    ("connection reset|broken pipe", "the connection was reset", LOG),
)
"""Pattern among the causes, reason (with what the pattern caught), hint. The first match counts."""


def failure_of(exc: PyreqwestError, *, may_be_proxied: bool) -> Failure:
    """Name the failure in words of our own, which repeat nothing of the request."""
    causes = [cause["message"].lower() for cause in (getattr(exc, "details", None) or {}).get("causes") or ()]
    joined = "; ".join(causes)
    is_connecting = "client error (connect)" in causes  # among the causes of all that happens before a request is sent
    broken = functools.partial(Failure, status=AnswerStatus.CONNECTION_ERROR)
    if isinstance(exc, RequestTimeoutError) and is_connecting:
        return broken("no connection was made in the time allowed", hint=FIREWALL)
    if isinstance(exc, RequestTimeoutError):
        hint = "Check that the server is alive and not overloaded"
        return Failure("no whole answer came in the time allowed", status=AnswerStatus.TIMEOUT, hint=hint)
    if isinstance(exc, DecodeError) and not isinstance(exc, BodyDecodeError):
        return Failure("the answer is not HTTP", hint="Check the port: another kind of server listens there")
    if isinstance(exc, DecodeError) or re.search("unexpected (?:eof during chunk|end of file)", joined):
        return Failure("the body ended early or cannot be decoded", hint=LOG)
    for pattern, reason, hint in CAUSES:
        if match := re.search(pattern, joined):
            return broken(reason.format(*match.groups()), hint=hint)
    if may_be_proxied and is_connecting:
        return broken("the server, or the proxy that the environment names, cannot be reached", hint=PROXY)
    number = int(match[1]) if (match := re.search(r"\(os error (\d+)\)", joined)) else 0
    if number == errno.ECONNREFUSED:
        hint = "Start the server, or correct host and port"
        return broken("the connection was refused, nothing listens there", hint=hint)
    return broken(
        f"the connection failed ({os.strerror(number)})" if number else "the connection failed", hint=FIREWALL
    )


HIDDEN = "[key]"
EXCERPT_CHARACTERS = 200
READ_BYTES = 65_536
SHORT_KEY = 8
"""Shorter keys (as "EMPTY") are hidden as whole words only, or plain text would be blotted out."""
KEY_LIKE = re.compile(r"(?i)\bbearer\s+[^\s\"',;]+|\bsk-[\w*.-]{4,}")


def checked_key(key: str | None) -> str:
    """Strip the key; empty where there is none. Raises InvalidValue without showing it."""
    text = (key or "").strip()
    if not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidValue("The API key holds characters that no key has", hint="A key is one word of ASCII characters")
    return text


class Redactor:
    """Replaces a secret in text. Its own repr does not show it."""

    __slots__ = ("_pattern",)

    def __init__(self, secret: str) -> None:
        forms = sorted({secret, quote(secret, safe=""), json.dumps(secret)[1:-1]} - {""}, key=len, reverse=True)
        words = [re.escape(form) if len(form) >= SHORT_KEY else rf"(?<!\w){re.escape(form)}(?!\w)" for form in forms]
        self._pattern = re.compile("|".join(words) or r"(?!)")

    def __repr__(self) -> str:
        return "Redactor()"

    def __call__(self, text: str) -> str:
        """Replace the secret, and everything that looks like one."""
        return KEY_LIKE.sub(HIDDEN, self._pattern.sub(HIDDEN, text))

    def excerpt(self, text: str | bytes, *, limit: int = EXCERPT_CHARACTERS) -> str:
        """Make one line of at most `limit` characters. Secrets are replaced before anything is cut."""
        start = text[:READ_BYTES]
        clean = self(start.decode(errors="replace") if isinstance(start, bytes) else start)
        line = " ".join("".join(letter if letter.isprintable() else " " for letter in clean).split())
        return line if len(line) <= limit else f"{line[: limit - 1]}…"

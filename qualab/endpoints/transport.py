"""HTTP to one server: sending with retries and proxies, faults named, and secrets kept out of what is shown."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import os
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from ipaddress import ip_address, ip_network
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import orjson
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import BodyDecodeError, DecodeError, PyreqwestError, RequestTimeoutError
from pyreqwest.http import Url
from pyreqwest.proxy import ProxyBuilder
from pyreqwest.response import Response

from qualab import __version__
from qualab.endpoints.urls import DEFAULT_PORTS, is_loopback
from qualab.errors import InvalidValue
from qualab.model.names import AnswerStatus
from qualab.model.plan import RequestPolicy

HIDDEN = "[key]"
EXCERPT_CHARACTERS = 200
READ_BYTES = 65_536
SHORT_KEY = 8
"""Shorter keys (as "EMPTY") are hidden as whole words only, or plain text would be blotted out."""

KEY_LIKE = re.compile(r"(?i)\bbearer\s+[^\s\"',;]+|\bsk-[\w*.-]{4,}")


def checked_key(key: str | None) -> str:
    """The key without surrounding space; empty where there is none. Raises InvalidValue without showing it."""
    text = (key or "").strip()
    if not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidValue("The API key holds characters that no key has", hint="A key is one word of ASCII characters")
    return text


class Redactor:
    """Replaces secrets in text. Its own repr shows none."""

    __slots__ = ("_pattern",)

    def __init__(self, *secrets: str) -> None:
        forms = {
            form for secret in secrets if secret for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1])
        }
        words = [_pattern(form) for form in sorted(forms, key=len, reverse=True)]
        self._pattern = re.compile("|".join(words)) if words else None

    def __repr__(self) -> str:
        return "Redactor()"

    def __call__(self, text: str) -> str:
        """The text with every secret, and everything that looks like one, replaced."""
        if self._pattern is not None:
            text = self._pattern.sub(HIDDEN, text)
        return KEY_LIKE.sub(HIDDEN, text)

    def excerpt(self, text: str | bytes, *, limit: int = EXCERPT_CHARACTERS) -> str:
        """One line of at most `limit` characters. Secrets are replaced before anything is cut."""
        if isinstance(text, bytes):
            text = text[:READ_BYTES].decode(errors="replace")
        shown = "".join(character if character.isprintable() else " " for character in self(text[:READ_BYTES]))
        line = " ".join(shown.split())
        return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _pattern(form: str) -> str:
    return re.escape(form) if len(form) >= SHORT_KEY else rf"(?<!\w){re.escape(form)}(?!\w)"


FIREWALL = "Check the address, and that no firewall lies between"
PROXY = "Check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
CERTIFICATE = "Set SSL_CERT_FILE to the certificate of the authority that signed it"
TLS_ELSEWHERE = "If the server speaks plain HTTP, write http:// instead of https://"
LOG = "Look into the server's log"

CONNECTING = "client error (connect)"
"""Among the causes of everything that happens before a request is sent."""
ENDED_EARLY = "unexpected (?:eof during chunk|end of file)"
"""Of a chunked or compressed body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An attempt that got no whole answer."""

    status: AnswerStatus
    reason: str
    """What happened, as the end of "could not ...: "."""
    hint: str
    """What to check."""


def fault_of(exc: PyreqwestError, *, proxied: bool) -> Fault:
    """The fault that the client's exception means. The text is ours: nothing of the request is repeated in it."""
    details = getattr(exc, "details", None) or {}
    causes = [cause["message"].lower() for cause in details.get("causes") or ()]
    is_connecting = CONNECTING in causes
    if isinstance(exc, RequestTimeoutError):
        return CONNECT_TIMEOUT if is_connecting else TIMEOUT
    if isinstance(exc, DecodeError):
        return BROKEN_BODY if isinstance(exc, BodyDecodeError) else NOT_HTTP
    joined = "; ".join(causes)
    if re.search(ENDED_EARLY, joined):
        return BROKEN_BODY
    for pattern, reason, hint in CAUSES:
        if match := re.search(pattern, joined):
            return _broken(reason.format(*match.groups()), hint)
    if proxied and is_connecting:
        return _broken("the proxy cannot be reached", PROXY)
    number = re.search(r"\(os error (\d+)\)", joined)
    if number and int(number[1]) == errno.ECONNREFUSED:
        return REFUSED
    detail = f" ({os.strerror(int(number[1]))})" if number else ""
    return _broken(f"the connection failed{detail}", FIREWALL)


def _broken(reason: str, hint: str) -> Fault:
    return Fault(status=AnswerStatus.CONNECTION_ERROR, reason=reason, hint=hint)


CAUSES = (
    (
        "dns error",
        "its host name cannot be resolved",
        "Check the spelling of the host name, and this machine's DNS",
    ),
    (
        "causedasendentity",
        "its TLS certificate is that of an authority, not of a server",
        "Give the server a certificate of its own: one signed by that authority, or self-signed with CA:FALSE",
    ),
    ("invalid peer certificate: ([a-z ]+)", "its TLS certificate is not trusted ({0})", CERTIFICATE),
    ("tunnel error: proxy authorization required", "the proxy refused with status 407", PROXY),
    ("tunnel error: failed to create underlying connection", "the proxy cannot be reached", PROXY),
    ("tunnel error", "the proxy refused to connect", PROXY),
    ("without sending tls close_notify", "the server closed the connection without an answer", LOG),
    ("corrupt message|invalidcontenttype|fatal alert|tls|peer (?:is )?incompatible", "TLS failed", TLS_ELSEWHERE),
    (
        "connection closed before message completed",
        "the server closed the connection without an answer",
        "If the server speaks TLS, write https:// instead of http://",
    ),
    ("too many open files", "this process may open no more files (ulimit -n)", "Raise it, or lower --concurrency"),
    ("connection reset|broken pipe", "the connection was reset", LOG),
)
"""Pattern among the causes, reason (with what the pattern caught), hint. The first match counts."""

REFUSED = _broken("the connection was refused, nothing listens there", "Start the server, or correct host and port")
CONNECT_TIMEOUT = _broken("no connection was made in the time allowed", FIREWALL)
TIMEOUT = Fault(
    status=AnswerStatus.TIMEOUT,
    reason="no whole answer came in the time allowed",
    hint="Check that the server is alive and not overloaded",
)
BROKEN_BODY = Fault(status=AnswerStatus.BAD_BODY, reason="the body ended early or cannot be decoded", hint=LOG)
NOT_HTTP = Fault(
    status=AnswerStatus.BAD_BODY,
    reason="the answer is not HTTP",
    hint="Check the port: another kind of server listens there",
)


MAX_RETRY_AFTER_S = 120.0
"""A server that asks for a longer pause gets this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time and chance, as arguments."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """Aware UTC."""
    monotonic_s: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)
    """Draws the jitter."""


class Sending(NamedTuple):
    """When and how often a request was sent. A tuple, because one is made for every request."""

    attempts: int
    latency_s: float
    sent_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An attempt without an answer."""

    status: AnswerStatus
    error: str
    retry: bool
    sending: Sending
    retry_after: str | None = None
    """The server's Retry-After header."""
    is_backpressure: bool = False
    """Whether the server only asks to wait."""


OnWait = Callable[[float], None]
"""Is told each pause that a server asks for, in seconds."""


T = TypeVar("T")


async def persist(
    attempt: Callable[[int], Awaitable[T | Failure]],
    *,
    policy: RequestPolicy,
    timing: Timing,
    on_wait: OnWait | None = None,
) -> T | Failure:
    """Calls `attempt` with 1, 2, ... until it succeeds, fails for good, or the policy's attempts are used up.

    Back-pressure uses up no attempt but the policy's time for waiting.
    """
    number, n_waits, waited_s = 1, 0, 0.0
    while True:
        outcome = await attempt(number)
        if not isinstance(outcome, Failure) or not outcome.retry:
            return outcome
        if outcome.is_backpressure:
            n_waits += 1
            pause = pause_s(outcome, attempt=n_waits, policy=policy, timing=timing)
            waited_s += outcome.sending.latency_s + pause
            if waited_s > policy.max_wait_s:
                return replace(outcome, error=f"{outcome.error} (after waiting as long as max_wait allows)")
            if on_wait:
                on_wait(pause)
        elif number < policy.max_attempts:
            pause = pause_s(outcome, attempt=number, policy=policy, timing=timing)
            number += 1
        else:
            return outcome
        await timing.sleep(pause)


def pause_s(failure: Failure, *, attempt: int, policy: RequestPolicy, timing: Timing) -> float:
    """Seconds to wait after the given attempt (from 1): exponential backoff with full jitter.

    Where the server names a time, that and a little jitter, so that clients do not come back all at once.
    """
    named_s = retry_after_s(failure.retry_after, now=timing.now())
    n_doubled = 0 if named_s is not None else min(attempt - 1, 60)
    ceiling = min(policy.max_backoff_s, policy.backoff_s * 2.0**n_doubled)
    return timing.rng.uniform(0.0, ceiling) + min(named_s or 0.0, MAX_RETRY_AFTER_S)


def retry_after_s(header: str | None, *, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for: a number, or an HTTP date. None where it says nothing usable."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            until = parsedate_to_datetime(header)
        except ValueError:
            return None
        return max(0.0, ((until if until.tzinfo else until.replace(tzinfo=UTC)) - now).total_seconds())
    return seconds if 0.0 <= seconds < float("inf") else None


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


class Exchange(NamedTuple):
    """A whole HTTP answer. A tuple, because one is made for every request."""

    status: int
    body: bytes
    header: Callable[[str], str | None]
    """A header's value, by its name in any case; None where there is none that is text."""

    def json(self) -> Any:
        """The parsed body; None where it is not JSON."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None

    def object(self) -> dict[str, Any]:
        """The JSON object of an answer with status 200; empty for anything else."""
        answer = self.json() if self.status == 200 else None
        return answer if isinstance(answer, dict) else {}


class Transport:
    """A client for one server. Its context closes the connections."""

    def __init__(self, base: str, *, key: str, timeout_s: float, address: str = "") -> None:
        proxy = _proxy(urlsplit(base))
        self._is_proxied = proxy is not None
        self._client = _client(base, key, timeout_s, proxy, address)
        self._parsed = functools.cache(Url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def send(
        self, method: str, url: str, *, body: bytes | None = None, timeout_s: float | None = None
    ) -> Exchange | Fault:
        """One request; the deadline (the client's, or `timeout_s`) runs from here to the last byte of the answer."""
        request = self._client.request(method, self._parsed(url))
        if body is not None:
            request = request.body_bytes(body)
        if timeout_s is not None:
            request = request.timeout(timedelta(seconds=timeout_s))
        try:
            response = await request.build().send()
            body = (await response.bytes()).to_bytes()
            _raise_if_cancelled()
            return Exchange(response.status, body, functools.partial(_header, response))
        except PyreqwestError as exc:
            _raise_if_cancelled()
            return fault_of(exc, proxied=self._is_proxied)

    async def get_object(self, url: str) -> dict[str, Any]:
        """The JSON object at a URL, which is answered at once; empty where there is none."""
        found = await self.send("GET", url, timeout_s=PROBE_TIMEOUT_S)
        return found.object() if isinstance(found, Exchange) else {}


def _raise_if_cancelled() -> None:
    """Raises CancelledError where the client lost it: it does where an answer comes at the same moment."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _header(response: Response, name: str) -> str | None:
    try:
        return response.get_header(name)
    except ValueError:  # bytes beyond ASCII
        return None


def _client(base: str, key: str, timeout_s: float, proxy: ProxyBuilder | None, address: str) -> Client:
    # the number of connections is bounded by the requests in flight
    builder = (
        ClientBuilder()
        .default_headers(HEADERS | ({"Authorization": f"Bearer {key}"} if key else {}))
        .timeout(timedelta(seconds=timeout_s))
        .connect_timeout(timedelta(seconds=min(timeout_s, CONNECT_TIMEOUT_S)))
        .pool_idle_timeout(timedelta(seconds=KEEPALIVE_S))
        .follow_redirects(False)
        .no_proxy()
    )
    if address:  # of the host, looked up before
        parts = urlsplit(base)
        builder = builder.resolve(parts.hostname or "", address, parts.port or DEFAULT_PORTS[parts.scheme])
    return (builder.proxy(proxy) if proxy else builder).build()


def _proxy(server: SplitResult) -> ProxyBuilder | None:
    """The proxy that the environment names for this server, with the credentials that stand in its URL."""
    host = server.hostname or ""
    named = None if is_loopback(host) else getproxies().get(server.scheme)
    if not named or _is_excepted(server):
        return None
    parts = _proxy_parts(named, server.scheme)
    proxy = ProxyBuilder.all(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")
    if parts.username is None:
        return proxy
    return proxy.basic_auth(unquote(parts.username), unquote(parts.password or ""))


def _is_excepted(server: SplitResult) -> bool:
    """Whether NO_PROXY names the server: by host, host and port, domain, or network."""
    host = server.hostname or ""
    if proxy_bypass(host) or proxy_bypass(server.netloc):
        return True
    return any(_lies_in(host, named) for named in getproxies().get("no", "").split(","))


def _lies_in(host: str, network: str) -> bool:
    try:
        return ip_address(host) in ip_network(network.strip(), strict=False)
    except ValueError:
        return False


def _proxy_parts(text: str, scheme: str) -> SplitResult:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidValue(
            f"The proxy that the environment names for {scheme} is not an http:// URL",
            hint="Correct HTTP_PROXY or HTTPS_PROXY, or except the endpoint with NO_PROXY",
        )
    return parts

"""One server's connections: sends bytes, returns bytes, and turns foreign exceptions into faults.

Environment proxies (HTTP_PROXY, HTTPS_PROXY, NO_PROXY) are used as other clients use them, except for this machine's
own addresses. Certificates are the system's, or those of SSL_CERT_FILE. Redirects are not followed, so that a key never
travels to a server that the user did not name. There are no cookies and no .netrc. A request that is cancelled is left
to its answer or its deadline: the client library cannot take back what it has sent.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from datetime import timedelta
from ipaddress import ip_address, ip_network
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError
from pyreqwest.http import Url
from pyreqwest.proxy import ProxyBuilder
from pyreqwest.response import Response

from qualab import __version__
from qualab.adapters.endpoints.faults import Fault, fault_of
from qualab.adapters.endpoints.urls import DEFAULT_PORTS, is_loopback
from qualab.errors import InvalidValue

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


class Transport:
    """A client for one server. Its context closes the connections."""

    def __init__(self, base: str, *, key: str, timeout_s: float, address: str = "") -> None:
        proxy = _proxy(urlsplit(base))
        self._is_proxied = proxy is not None
        self._client = _client(key, timeout_s, proxy, _Place.of(base, address) if address else None)
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
            _check_wanted()
            return Exchange(response.status, body, functools.partial(_header, response))
        except PyreqwestError as exc:
            _check_wanted()
            return fault_of(exc, proxied=self._is_proxied)


def _check_wanted() -> None:
    """Raises CancelledError where the client lost it: it does where an answer comes at the same moment."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _header(response: Response, name: str) -> str | None:
    try:
        return response.get_header(name)
    except ValueError:  # bytes beyond ASCII
        return None


class _Place(NamedTuple):
    """Where a host is, looked up before."""

    host: str
    address: str
    port: int

    @classmethod
    def of(cls, base: str, address: str) -> Self:
        parts = urlsplit(base)
        return cls(parts.hostname or "", address, parts.port or DEFAULT_PORTS[parts.scheme])


def _client(key: str, timeout_s: float, proxy: ProxyBuilder | None, place: _Place | None = None) -> Client:
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
    builder = builder.resolve(*place) if place else builder
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

"""One server's connections: sends bytes, returns bytes, and turns foreign exceptions into faults.

Environment proxies (HTTP_PROXY, HTTPS_PROXY, NO_PROXY) are used as other clients use them, except for this machine's
own addresses. Redirects are not followed, so that a key never travels to a server that the user did not name. There are
no cookies and no .netrc.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.request import getproxies, proxy_bypass

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from qualab import __version__
from qualab.adapters.endpoints.faults import FOREIGN, Fault, fault_of
from qualab.adapters.endpoints.urls import is_loopback
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
    headers: Mapping[str, str]
    body: bytes


class Transport:
    """An aiohttp session for one server. Its context closes the connections."""

    def __init__(self, base: str, *, key: str, timeout_s: float) -> None:
        self._session = aiohttp.ClientSession(
            # the number of connections is bounded by the requests in flight
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=HEADERS,
            timeout=_timeout(timeout_s),
        )
        # not among the session's headers: aiohttp gives those to a proxy, too
        headers = CIMultiDict({"Authorization": f"Bearer {key}"} if key else {})
        proxy = _proxy_options(URL(base), headers)
        self._options: dict[str, Any] = {"allow_redirects": False, "headers": headers, **proxy}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(
        self, method: str, url: URL | str, *, body: bytes | None = None, timeout_s: float | None = None
    ) -> Exchange | Fault:
        """One request; the deadline (the session's, or `timeout_s`) runs from here to the last byte of the answer."""
        options = self._options if timeout_s is None else {**self._options, "timeout": _timeout(timeout_s)}
        try:
            async with self._session.request(method, url, data=body, **options) as response:
                return Exchange(response.status, response.headers, await response.read())
        except FOREIGN as exc:
            return fault_of(exc)


def _timeout(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, CONNECT_TIMEOUT_S))


def _proxy_options(url: URL, headers: CIMultiDict[str]) -> dict[str, Any]:
    """The proxy that the environment names for this server. Looked up once: aiohttp would do so for each request.

    Its credentials go with every request of a plain connection (into `headers`), and with CONNECT before TLS.
    """
    host = url.host or ""
    proxy = None if is_loopback(host) else getproxies().get(url.scheme)
    if not proxy or proxy_bypass(host):
        return {}
    found = _proxy_url(proxy, url.scheme)
    if found.user is None:
        return {"proxy": found}
    credentials = base64.b64encode(f"{found.user}:{found.password or ''}".encode()).decode()
    granted = {"Proxy-Authorization": f"Basic {credentials}"}
    if url.scheme == "http":
        headers.update(granted)
    return {"proxy": found.with_user(None), "proxy_headers": granted}


def _proxy_url(text: str, scheme: str) -> URL:
    try:
        url = URL(text if "://" in text else f"http://{text}")
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidValue(
            f"The proxy that the environment names for {scheme} is not an http:// URL",
            hint="Correct HTTP_PROXY or HTTPS_PROXY, or except the endpoint with NO_PROXY",
        )
    return url

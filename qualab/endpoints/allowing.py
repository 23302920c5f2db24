"""Which servers may be called: an allow list of names, addresses and networks, held against every address of a name.

A pattern is a host name (`*` stands for anything), an address or a network, each with `:port` behind it if only that
port is meant. Addresses that are not public have to be named: a private one by its network or by the whole host name,
those of this machine, of the link and of cloud metadata by their address or network alone ("localhost" names this
machine).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from qualab.endpoints.client import HttpEndpoint
from qualab.endpoints.urls import Address, normalize_url, port_of, resolved
from qualab.errors import EndpointForbidden, InvalidValue
from qualab.model.plan import RequestPolicy

CONNECT_S = 2.0
METADATA = frozenset({"fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"})
"""Metadata services that lie outside the link-local networks."""
PORT = re.compile(r"(?P<host>\[[^\]]+\]|[^:]+):(?P<port>\d+)")


class Pattern(NamedTuple):
    """An entry of the list: a host name, or a network."""

    name: str
    network: IPv4Network | IPv6Network | None
    port: int | None

    def allows(self, host: str, address: Address) -> bool:
        """Tell whether this allows a host name that leads to this address."""
        if self.network is not None:
            return address in self.network
        if address.is_loopback or _is_never_served_on(address):
            return address.is_loopback and host == self.name == "localhost"
        return fnmatchcase(host, self.name) and (address.is_global or not any(sign in self.name for sign in "*?["))


def parse_pattern(text: str, *, field: str = "allowed_endpoints") -> Pattern:
    """Read an entry of the allow list. Raises InvalidValue."""
    name, port = text.strip().lower(), None
    if match := PORT.fullmatch(name):
        name, port = match["host"], int(match["port"])
    if name.startswith("[") and name.endswith("]"):
        name = name.strip("[]")
    if not name or re.search(r"[\s@?#]|://", name):
        message = f"{field}: '{text}' is not a host, address or network"
        raise InvalidValue(message, hint="Write it like *.models.svc or 10.0.0.0/8")
    try:
        return Pattern(name, ip_network(name, strict=False), port)
    except ValueError:
        if "/" not in name:
            return Pattern(name, None, port)
        hint = "Write it like 10.0.0.0/8 or fd00::/8"
        raise InvalidValue(f"{field}: '{text}' is not a network", hint=hint) from None


class AllowedEndpoints:
    """The allow list; `kind` is what it is of, as its option names it."""

    def __init__(self, patterns: Sequence[str], *, kind: str = "endpoint") -> None:
        self._kind = kind
        self._patterns = [parse_pattern(text, field=f"allowed_{kind}s") for text in patterns]

    def check(self, url: str) -> tuple[str, ...]:
        """Return the URL's addresses. Raises EndpointForbidden where one is not allowed, InvalidValue."""
        return self.check_host(urlsplit(normalize_url(url)))

    def check_host(self, parts: SplitResult) -> tuple[str, ...]:
        """Return the addresses of a URL's host. Raises EndpointForbidden where one is not allowed."""
        host, port = (parts.hostname or "").rstrip("."), port_of(parts)
        try:
            addresses = resolved(parts)
        except (OSError, UnicodeError) as exc:
            raise EndpointForbidden(f"The {self._kind}'s host {host} has no address", hint="Check the URL") from exc
        patterns = [pattern for pattern in self._patterns if pattern.port in (None, port)]
        for address in addresses:
            if not any(pattern.allows(host, address) for pattern in patterns):
                raise EndpointForbidden(
                    f"The service may not call {parts.scheme}://{host}:{port}: {_kind(address)} is not on its list",
                    hint=f"Its operator names what may be called: qualab serve --allow-{self._kind} HOST, or a network",
                )
        return tuple(dict.fromkeys(map(str, addresses)))


def allowed_opening(allowed: AllowedEndpoints) -> Callable[..., AbstractAsyncContextManager[HttpEndpoint]]:
    """Open an `HttpEndpoint` at an address checked now: its name may lead elsewhere than it did."""

    @asynccontextmanager
    async def opened(
        url: str, *, policy: RequestPolicy, key: str | None, slots: asyncio.Semaphore | None = None
    ) -> AsyncIterator[HttpEndpoint]:
        addresses = await asyncio.to_thread(allowed.check, url)
        address = await reachable(addresses, port_of(urlsplit(normalize_url(url))))
        async with HttpEndpoint(url, policy=policy, key=key, address=address, slots=slots) as endpoint:
            yield endpoint

    return opened


async def reachable(addresses: Sequence[str], port: int) -> str:
    """Return the first that takes a connection; the first of all where none does."""
    for address in addresses if len(addresses) > 1 else ():
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_S)
        except (OSError, TimeoutError):
            continue
        writer.close()
        return address
    return addresses[0]


def _is_never_served_on(address: Address) -> bool:
    is_special = address.is_link_local or address.is_multicast or address.is_unspecified
    return is_special or str(address) in METADATA


def _kind(address: Address) -> str:
    if address.is_loopback:
        return "this machine's address"
    if _is_never_served_on(address):
        return "a link-local or metadata address"
    return "the host" if address.is_global else "a private address"

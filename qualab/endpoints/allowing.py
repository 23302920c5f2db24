"""Which servers may be called: an allow list of names, addresses and networks, held against every address of a name.

A pattern is a host name (`*` stands for anything), an address or a network, each with `:port` behind it if only that
port is meant. Addresses that are not public have to be named: a private one by its network or by the whole host name,
those of this machine, of the link and of cloud metadata by their address or network alone ("localhost" names this
machine).
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from qualab.endpoints.client import HttpEndpoint, open_endpoint
from qualab.endpoints.urls import DEFAULT_PORTS, normalize_url
from qualab.errors import EndpointForbidden, InvalidValue
from qualab.model.plan import RequestPolicy
from qualab.model.ports import OpenEndpoint

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

CONNECT_S = 2.0
METADATA = frozenset({"fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"})
"""Metadata services that lie outside the link-local networks."""
NAT64 = ip_network("64:ff9b::/96")
PORT = re.compile(r"(?P<host>\[[^\]]+\]|[^:]+):(?P<port>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One entry of the list: a host name, or a network."""

    name: str
    network: Network | None
    port: int | None

    def names(self, host: str) -> bool:
        return self.network is None and fnmatchcase(host, self.name)

    @property
    def is_whole_name(self) -> bool:
        return self.network is None and not any(sign in self.name for sign in "*?[")

    def holds(self, address: Address) -> bool:
        return self.network is not None and address.version == self.network.version and address in self.network


def parse_pattern(text: str) -> Pattern:
    """Raises InvalidValue."""
    found = PORT.fullmatch(text.strip().lower())
    host, port = (found["host"], int(found["port"])) if found else (text.strip().lower(), None)
    bare = host.strip("[]") if host.startswith("[") and host.endswith("]") else host
    if not bare or "://" in text or re.search(r"[\s@?#]", bare):
        raise InvalidValue(
            f"allowed_endpoints: '{text}' is no host, address or network", hint="As *.models.svc, 10.0.0.0/8"
        )
    try:
        return Pattern(name=bare, network=ip_network(bare, strict=False), port=port)
    except ValueError as exc:
        if "/" in bare:
            raise InvalidValue(f"allowed_endpoints: '{text}' is no network", hint="As 10.0.0.0/8 or fd00::/8") from exc
        return Pattern(name=bare, network=None, port=port)


class AllowedEndpoints:
    """The allow list."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(parse_pattern(one) for one in patterns)

    def check(self, url: str) -> None:
        """Raises EndpointForbidden, InvalidValue for what is no URL."""
        self.addresses(url)

    def addresses(self, url: str) -> tuple[str, ...]:
        """Where the URL leads, all of it allowed. Raises as `check`."""
        parts = urlsplit(normalize_url(url))
        host, port = (parts.hostname or "").rstrip("."), parts.port or DEFAULT_PORTS[parts.scheme]
        patterns = [one for one in self._patterns if one.port in (None, port)]
        found = _resolved(host, port)
        for address in found:
            if not _is_allowed(host, address, patterns):
                raise EndpointForbidden(
                    f"The service may not call {parts.scheme}://{host}:{port}: {_kind(address)} is not on its list",
                    hint="Its operator names what may be called: qualab serve --allow-endpoint HOST, or a network",
                )
        return tuple(dict.fromkeys(str(one) for one in found))


def allowed_opening(allowed: AllowedEndpoints) -> OpenEndpoint:
    """`open_endpoint` that checks again, and connects to what it checked: a name may lead elsewhere by now."""

    @asynccontextmanager
    async def opened(url: str, *, policy: RequestPolicy, key: str | None) -> AsyncIterator[HttpEndpoint]:
        addresses = await asyncio.to_thread(allowed.addresses, url)
        parts = urlsplit(normalize_url(url))
        address = await _reachable(addresses, parts.port or DEFAULT_PORTS[parts.scheme])
        async with open_endpoint(url, policy=policy, key=key, address=address) as endpoint:
            yield endpoint

    return opened


async def _reachable(addresses: Sequence[str], port: int) -> str:
    """The first that takes a connection; the first of all where none does."""
    for address in addresses if len(addresses) > 1 else ():
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_S)
        except (OSError, TimeoutError):
            continue
        writer.close()
        return address
    return addresses[0]


def _resolved(host: str, port: int) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise EndpointForbidden(f"The endpoint's host {host} has no address", hint="Check the URL") from exc
    return [_plain(ip_address(str(entry[4][0]).partition("%")[0])) for entry in found]


def _plain(address: Address) -> Address:
    """What an address that stands for an IPv4 one leads to."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped or address.sixtofour:
            return address.ipv4_mapped or address.sixtofour or address
        if address in NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_allowed(host: str, address: Address, patterns: Sequence[Pattern]) -> bool:
    if any(one.holds(address) for one in patterns):
        return True
    if address.is_loopback:
        return any(one.name == "localhost" and one.names(host) for one in patterns)
    if _is_never_meant(address):
        return False
    if address.is_global:
        return any(one.names(host) for one in patterns)
    return any(one.is_whole_name and one.names(host) for one in patterns)


def _is_never_meant(address: Address) -> bool:
    """What no model is served on, and what a name has no business to lead to."""
    is_odd = address.is_link_local or address.is_multicast or address.is_unspecified
    return is_odd or str(address) in METADATA


def _kind(address: Address) -> str:
    kinds = {
        "this machine's address": address.is_loopback,
        "a link-local or metadata address": _is_never_meant(address),
        "a private address": not address.is_global,
    }
    return next((name for name, holds in kinds.items() if holds), "the host")

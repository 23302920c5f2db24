"""Endpoint URLs: one spelling, what lies beside the API, and whether two URLs are one server."""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from pyreqwest.http import Url

from qualab.errors import InvalidValue

Address = IPv4Address | IPv6Address
ROUTES = ("/chat/completions", "/completions", "/models")
EXAMPLE = "Write it like http://127.0.0.1:8000/v1"
DEFAULT_PORTS = {"http": 80, "https": 443}
NAT64 = ip_network("64:ff9b::/96")
VERSION = re.compile(r"v\d+[a-z0-9]*", re.IGNORECASE)


def normalize_url(url: str) -> str:
    """Return the API's root, as "http://host:8000/v1": without route and slash, "/v1" added where no version stands.

    Raises InvalidValue for another scheme, a user name, a query or a fragment.
    """
    text = url.strip()
    scheme, separator, rest = re.split("[?#]", text, maxsplit=1)[0].rpartition("://")
    shown = f"'{scheme}{separator}{rest.rpartition('@')[2]}'"  # without what may be secret in it

    def refused(reason: str) -> InvalidValue:
        return InvalidValue(f"The endpoint URL {shown} {reason}", hint=EXAMPLE)

    if "://" not in text:
        raise refused("has no scheme")
    try:
        parts = urlsplit(text)
        is_url = bool(parts.hostname) and parts.port != 0 and not re.search(r"[\s\\\x00-\x1f]", text)
    except ValueError:
        raise refused("is not a URL") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise refused("is neither http nor https")
    if "@" in parts.netloc:
        raise InvalidValue("An endpoint URL must not hold a user name or password", hint="Give a key instead")
    if "?" in text or "#" in text:
        raise refused("must not have a query or fragment")
    path = re.sub("/+", "/", parts.path).rstrip("/")
    for route in ROUTES:
        path = path.removesuffix(route)
    if not any(VERSION.fullmatch(segment) for segment in path.split("/")):
        path += "/v1"
    base = f"{parts.scheme}://{parts.netloc.lower()}{path}"
    try:
        Url(base)
    except ValueError:
        is_url = False
    if not is_url:
        raise refused("is not a URL")
    return base


def root_of(base: str) -> str:
    """Cut the version: vLLM and llama.cpp keep more routes beside the API."""
    head, _, last = base.rpartition("/")
    return head if VERSION.fullmatch(last) else base


def alternatives(base: str) -> list[str]:
    """List other roots that a user may have meant: "/v1" added, a doubled version halved, a prefix dropped."""
    parts = urlsplit(base)
    origin = f"{parts.scheme}://{parts.netloc}"
    candidates = (f"{base}/v1", base.rpartition("/")[0], f"{origin}/v1")
    return [
        url for url in dict.fromkeys(candidates) if url != base and url.startswith(origin) and normalize_url(url) == url
    ]


def port_of(parts: SplitResult) -> int:
    """Return the port of a URL, also where it is not written."""
    return parts.port or DEFAULT_PORTS[parts.scheme]


def same_server(url_a: str, url_b: str) -> bool:
    """Tell whether two URLs lead to one server: same port and path, and hosts with an address in common.

    Two names with one address at the default ports count as two servers, because gateways tell them apart by name.
    Names that do not resolve are compared as they are written.
    """
    a, b = (urlsplit(normalize_url(url)) for url in (url_a, url_b))
    if (port_of(a), a.path) != (port_of(b), b.path):
        return False
    if a.hostname == b.hostname:
        return True
    hosts = [url.hostname or "" for url in (a, b)]
    is_named = not any(is_loopback(host) or re.fullmatch(r"[\d.]*|.*:.*", host) for host in hosts)
    return not (is_named and port_of(a) in DEFAULT_PORTS.values()) and bool(_addresses(a) & _addresses(b))


def is_loopback(host: str | None) -> bool:
    """Tell whether a host, as written, is this machine."""
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost" or str(host).endswith(".localhost")


def resolved(parts: SplitResult) -> list[Address]:
    """Look up the addresses of a URL's host, as IPv4 where they stand for one. Raises OSError, UnicodeError."""
    entries = socket.getaddrinfo(parts.hostname, port_of(parts), type=socket.SOCK_STREAM)
    return [_target(ip_address(str(entry[4][0]).partition("%")[0])) for entry in entries]


def _target(address: Address) -> Address:
    if not isinstance(address, IPv6Address):
        return address
    embedded = IPv4Address(int(address) & 0xFFFFFFFF) if address in NAT64 else None
    return address.ipv4_mapped or address.sixtofour or embedded or address


def _addresses(parts: SplitResult) -> set[str]:
    try:
        addresses = resolved(parts)
    except OSError:
        return {parts.hostname or ""}
    return {"localhost" if ip.is_unspecified or str(ip) in ("127.0.0.1", "::1") else str(ip) for ip in addresses}

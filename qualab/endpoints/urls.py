"""Endpoint URLs: one spelling, the routes under it, and whether two URLs are one server."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from urllib.parse import SplitResult, urlsplit

from pyreqwest.http import Url

from qualab.errors import InvalidValue

ROUTES = ("/chat/completions", "/completions", "/models")
EXAMPLE = "Write it like http://127.0.0.1:8000/v1"
DEFAULT_PORTS = {"http": 80, "https": 443}
LOOPBACK = "127.0.0.1"
SAME_AS_LOOPBACK = frozenset({"::1", "0.0.0.0", "::"})
VERSION = re.compile(r"v\d+[a-z0-9]*", re.IGNORECASE)


def normalize_url(url: str) -> str:
    """The API's root, as "http://host:8000/v1": route and trailing slash cut, "/v1" added where no version stands.

    A prefix before the version stays. Raises InvalidValue for another scheme, a user name, a query or a fragment.
    """
    parts = _split(url)
    path = re.sub("/+", "/", parts.path).rstrip("/")
    for route in ROUTES:
        path = path.removesuffix(route)
    if not any(VERSION.fullmatch(segment) for segment in path.split("/")):
        path += "/v1"
    base = f"{parts.scheme}://{parts.netloc.lower()}{path}"
    try:
        Url(base)
    except ValueError as exc:
        raise InvalidValue(f"The endpoint URL {_shown(url)} is not a URL", hint=EXAMPLE) from exc
    return base


def _split(url: str) -> SplitResult:
    text = url.strip()
    shown = _shown(text)
    if "://" not in text:
        raise InvalidValue(f"The endpoint URL {shown} has no scheme", hint=EXAMPLE)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as exc:
        raise InvalidValue(f"The endpoint URL {shown} is not a URL", hint=EXAMPLE) from exc
    if parts.scheme not in DEFAULT_PORTS:
        raise InvalidValue(f"The endpoint URL {shown} is neither http nor https", hint=EXAMPLE)
    if "@" in parts.netloc:
        raise InvalidValue("An endpoint URL must not hold a user name or password", hint="Give a key instead")
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise InvalidValue(f"The endpoint URL {shown} must not have a query or fragment", hint=EXAMPLE)
    if not parts.hostname or port == 0 or re.search(r"[\s\\\x00-\x1f]", text):
        raise InvalidValue(f"The endpoint URL {shown} is not a URL", hint=EXAMPLE)
    return parts


def _shown(url: str) -> str:
    """A URL without what may be secret in it."""
    text = re.split("[?#]", url.strip(), maxsplit=1)[0]
    scheme, separator, rest = text.rpartition("://")
    return f"'{scheme}{separator}{rest.rpartition('@')[2]}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Where an API's routes are. `root` lies beside the versioned API: vLLM and llama.cpp keep more routes there."""

    base: str
    root: str
    completions: str
    chat: str

    @classmethod
    def of(cls, url: str) -> Routes:
        """Raises InvalidValue as `normalize_url` does."""
        base = normalize_url(url)
        head, _, last = base.rpartition("/")
        return cls(
            base=base,
            root=head if VERSION.fullmatch(last) else base,
            completions=f"{base}/completions",
            chat=f"{base}/chat/completions",
        )


def alternatives(base: str) -> list[str]:
    """Other roots that a user may have meant: "/v1" added, a doubled version halved, a prefix dropped."""
    parts = urlsplit(base)
    origin = f"{parts.scheme}://{parts.netloc}"
    tried = (f"{base}/v1", base.rpartition("/")[0], f"{origin}/v1")
    return [url for url in dict.fromkeys(tried) if url != base and url.startswith(origin) and normalize_url(url) == url]


def same_server(url_a: str, url_b: str) -> bool:
    """Whether two URLs lead to one server: same port and path, and host names with an address in common.

    localhost, 127.0.0.1 and ::1 are one address. Two names with one address at the default ports count as two servers,
    because gateways tell them apart by name. Names that do not resolve are compared as they are written.
    """
    a, b = (urlsplit(normalize_url(url)) for url in (url_a, url_b))
    if (_port(a), a.path) != (_port(b), b.path):
        return False
    if a.hostname == b.hostname:
        return True
    if _port(a) in DEFAULT_PORTS.values() and _is_routed_name(a.hostname) and _is_routed_name(b.hostname):
        return False
    return bool(_addresses(a) & _addresses(b))


def _port(parts: SplitResult) -> int:
    return parts.port or DEFAULT_PORTS[parts.scheme]


def is_loopback(host: str | None) -> bool:
    """Whether a host, as written, is this machine."""
    if host is None or host == "localhost" or host.endswith(".localhost"):
        return host is not None
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_routed_name(host: str | None) -> bool:
    """Whether a host is a name that a gateway can route by."""
    if host is None or is_loopback(host):
        return False
    try:
        ip_address(host)
    except ValueError:
        return True
    return False


def _addresses(parts: SplitResult) -> set[str]:
    host = parts.hostname or ""
    try:
        found = socket.getaddrinfo(host, _port(parts), type=socket.SOCK_STREAM)
    except OSError:
        return {host}
    return {_canonical(str(entry[4][0])) for entry in found}


def _canonical(address: str) -> str:
    text = address.partition("%")[0]
    ip = ip_address(text)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        text = str(ip.ipv4_mapped)
    return LOOPBACK if text in SAME_AS_LOOPBACK else text

"""Endpoint URLs: one spelling, what lies beside the API, and whether two URLs are one server."""

from __future__ import annotations

import re
import socket
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from pyreqwest.http import Url

from qualab.errors import InvalidValue

ROUTES = ("/chat/completions", "/completions", "/models")
EXAMPLE = "Write it like http://127.0.0.1:8000/v1"
DEFAULT_PORTS = {"http": 80, "https": 443}
VERSION = re.compile(r"v\d+[a-z0-9]*", re.IGNORECASE)


def normalize_url(url: str) -> str:
    """The API's root, as "http://host:8000/v1": route and trailing slash cut, "/v1" added where no version stands.

    A prefix before the version stays. Raises InvalidValue for another scheme, a user name, a query or a fragment.
    """
    text = url.strip()
    scheme, separator, rest = re.split("[?#]", text, maxsplit=1)[0].rpartition("://")
    shown = f"'{scheme}{separator}{rest.rpartition('@')[2]}'"  # without what may be secret in it

    def refused(why: str) -> InvalidValue:
        return InvalidValue(f"The endpoint URL {shown} {why}", hint=EXAMPLE)

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
    """What lies beside the versioned API: vLLM and llama.cpp keep more routes there."""
    head, _, last = base.rpartition("/")
    return head if VERSION.fullmatch(last) else base


def alternatives(base: str) -> list[str]:
    """Other roots that a user may have meant: "/v1" added, a doubled version halved, a prefix dropped."""
    parts = urlsplit(base)
    origin = f"{parts.scheme}://{parts.netloc}"
    candidates = (f"{base}/v1", base.rpartition("/")[0], f"{origin}/v1")
    return [
        url for url in dict.fromkeys(candidates) if url != base and url.startswith(origin) and normalize_url(url) == url
    ]


def port_of(parts: SplitResult) -> int:
    """The port of a URL, also where it is not written."""
    return parts.port or DEFAULT_PORTS[parts.scheme]


def same_server(url_a: str, url_b: str) -> bool:
    """Whether two URLs lead to one server: same port and path, and host names with an address in common.

    localhost, 127.0.0.1 and ::1 are one address. Two names with one address at the default ports count as two servers,
    because gateways tell them apart by name. Names that do not resolve are compared as they are written.
    """
    a, b = (urlsplit(normalize_url(url)) for url in (url_a, url_b))
    if (port_of(a), a.path) != (port_of(b), b.path):
        return False
    if a.hostname == b.hostname:
        return True
    if port_of(a) in DEFAULT_PORTS.values() and _is_name(a.hostname) and _is_name(b.hostname):
        return False
    return bool(_addresses(a) & _addresses(b))


def is_loopback(host: str | None) -> bool:
    """Whether a host, as written, is this machine."""
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost" or str(host).endswith(".localhost")


def _is_name(host: str | None) -> bool:
    """Whether a gateway can route by this host."""
    try:
        ip_address(host or "")
    except ValueError:
        return not is_loopback(host)
    return False


def _addresses(parts: SplitResult) -> set[str]:
    host = parts.hostname or ""
    try:
        found = socket.getaddrinfo(host, port_of(parts), type=socket.SOCK_STREAM)
    except OSError:
        return {host}
    addresses = [ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    plain = [getattr(address, "ipv4_mapped", None) or address for address in addresses]
    return {"this machine" if one.is_unspecified or str(one) in ("127.0.0.1", "::1") else str(one) for one in plain}

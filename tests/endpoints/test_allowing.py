"""Which servers may be called. Names are looked up in a table, so that nothing depends on this machine's resolver."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from qualab.endpoints.allowing import AllowedEndpoints, allowed_opening, parse_pattern
from qualab.errors import EndpointForbidden, InvalidValue
from qualab.model.plan import RequestPolicy
from tests.scripted_server import MODEL, ScriptedServer

NAMES = {
    "public.example": ["93.184.216.34"],
    "vllm.models.svc": ["10.1.2.3"],
    "both.example": ["93.184.216.34", "10.1.2.3"],
    "bent.example": ["127.0.0.1"],
    "meta.example": ["169.254.169.254"],
    "six.example": ["fd00::7"],
    "localhost": ["127.0.0.1"],
}


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def looked_up(host: str, port: int, **more: Any) -> Any:
        found = NAMES.get(host)
        if found is None:
            return real(host, port, flags=socket.AI_NUMERICHOST, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)


def is_allowed(url: str, *patterns: str) -> bool:
    try:
        AllowedEndpoints(patterns).check(url)
    except EndpointForbidden:
        return False
    return True


@pytest.mark.parametrize(
    ("url", "patterns", "expected"),
    [
        ("http://public.example:8000/v1", (), False),
        ("http://public.example:8000/v1", ("public.example",), True),
        ("http://public.example:8000/v1", ("*.example",), True),
        ("http://public.example:8000/v1", ("*",), True),
        ("http://public.example:8000/v1", ("public.example:8000",), True),
        ("http://public.example:8001/v1", ("public.example:8000",), False),
        ("https://public.example/v1", ("public.example:443",), True),
        ("http://PUBLIC.example:8000/v1", ("public.example",), True),
        ("http://public.example.:8000/v1", ("other.example",), False),
        ("http://public.example:8000/v1", ("93.184.216.0/24",), True),
        ("http://93.184.216.34:8000/v1", ("93.184.216.34",), True),
        ("http://93.184.216.34:8000/v1", ("*",), True),
        # a private address is named by its network, or by the whole name
        ("http://vllm.models.svc:8000/v1", ("*",), False),
        ("http://vllm.models.svc:8000/v1", ("*.models.svc",), False),
        ("http://vllm.models.svc:8000/v1", ("vllm.models.svc",), True),
        ("http://vllm.models.svc:8000/v1", ("10.0.0.0/8",), True),
        ("http://10.1.2.3:8000/v1", ("*",), False),
        ("http://10.1.2.3:8000/v1", ("10.1.2.3:8000",), True),
        ("http://six.example:8000/v1", ("fd00::/8",), True),
        ("http://six.example:8000/v1", ("10.0.0.0/8",), False),
        # every address of a name
        ("http://both.example:8000/v1", ("*.example",), False),
        ("http://both.example:8000/v1", ("93.184.216.0/24",), False),
        ("http://both.example:8000/v1", ("93.184.216.0/24", "10.0.0.0/8"), True),
        # this machine
        ("http://127.0.0.1:8000/v1", ("*",), False),
        ("http://127.0.0.1:8000/v1", ("127.0.0.0/8",), True),
        ("http://localhost:8000/v1", ("localhost",), True),
        ("http://localhost:8000/v1", ("*",), False),
        ("http://bent.example:8000/v1", ("bent.example", "*"), False),
        ("http://[::1]:8000/v1", ("::1",), True),
        ("http://[::1]:8000/v1", ("[::1]:8000",), True),
        ("http://[::ffff:127.0.0.1]:8000/v1", ("*", "::/0"), False),
        ("http://[::ffff:127.0.0.1]:8000/v1", ("127.0.0.1",), True),
        ("http://0.0.0.0:8000/v1", ("*",), False),
        ("http://[::]:8000/v1", ("*",), False),
        ("http://2130706433:8000/v1", ("*",), False),
        ("http://0x7f.1:8000/v1", ("*",), False),
        # metadata and the link: never by a name
        ("http://169.254.169.254/v1", ("*",), False),
        ("http://meta.example/v1", ("meta.example", "*"), False),
        ("http://meta.example/v1", ("169.254.169.254/32",), True),
        ("http://100.100.100.200/v1", ("100.100.100.200",), True),
        ("http://100.100.100.200/v1", ("*",), False),
        ("http://168.63.129.16/v1", ("*",), False),
        ("http://[fd00:ec2::254]/v1", ("*",), False),
        ("http://[fe80::1]/v1", ("*",), False),
        ("http://224.0.0.1/v1", ("*",), False),
        # addresses that stand for others
        ("http://[64:ff9b::a01:203]/v1", ("*",), False),
        ("http://[64:ff9b::a01:203]/v1", ("10.0.0.0/8",), True),
        ("http://[2002:a01:203::1]/v1", ("*",), False),
        ("http://nowhere.invalid/v1", ("*",), False),
    ],
)
def test_what_may_be_called(url: str, patterns: tuple[str, ...], expected: bool) -> None:
    assert is_allowed(url, *patterns) is expected


def test_a_refusal_says_what_kind_of_address_it_is() -> None:
    with pytest.raises(EndpointForbidden, match="a private address is not on its list") as caught:
        AllowedEndpoints(()).check("http://vllm.models.svc:8000/v1")
    assert "10.1.2.3" not in str(caught.value)


@pytest.mark.parametrize("pattern", ["", " ", "http://x", "a b", "10.0.0.0/99", "user@host", "x/y"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidValue, match="allowed_endpoints"):
        parse_pattern(pattern)


POLICY = RequestPolicy(concurrency=1, max_attempts=1, timeout_s=5.0)


def inspected(allowed: AllowedEndpoints, url: str) -> str:
    async def ask() -> str:
        async with allowed_opening(allowed)(url, policy=POLICY, key=None) as endpoint:
            return (await endpoint.inspect(model=MODEL)).url

    return asyncio.run(ask())


def test_an_endpoint_is_reached_at_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that only the table knows: the client itself would look it up in vain."""
    monkeypatch.setitem(NAMES, "arm.invalid", ["127.0.0.1"])
    with ScriptedServer() as server:
        url = server.url.replace("127.0.0.1", "arm.invalid")
        assert inspected(AllowedEndpoints(("127.0.0.1",)), url) == url


def test_a_name_that_leads_elsewhere_later_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "arm.invalid", ["93.184.216.34"])
    allowed = AllowedEndpoints(("*.invalid",))
    allowed.check("http://arm.invalid:8000/v1")
    monkeypatch.setitem(NAMES, "arm.invalid", ["127.0.0.1"])
    with pytest.raises(EndpointForbidden):
        inspected(allowed, "http://arm.invalid:8000/v1")


def test_of_several_addresses_one_that_answers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "arm.invalid", ["127.0.0.9", "127.0.0.1"])
    with ScriptedServer() as server:
        url = server.url.replace("127.0.0.1", "arm.invalid")
        assert inspected(AllowedEndpoints(("127.0.0.0/8",)), url) == url

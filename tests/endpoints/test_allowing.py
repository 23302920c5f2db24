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


ALLOWED = {
    "http://public.example:8000": "public.example  *.example  *  public.example:8000  93.184.216.0/24",
    "https://public.example": "public.example:443",
    "http://PUBLIC.example:8000": "public.example",
    "http://93.184.216.34:8000": "93.184.216.34  *",
    # a private address is named by its network, or by the whole name
    "http://vllm.models.svc:8000": "vllm.models.svc  10.0.0.0/8",
    "http://10.1.2.3:8000": "10.1.2.3:8000",
    "http://six.example:8000": "fd00::/8",
    "http://both.example:8000": "93.184.216.0/24,10.0.0.0/8",
    "http://127.0.0.1:8000": "127.0.0.0/8",
    "http://localhost:8000": "localhost",
    "http://[::1]:8000": "::1  [::1]:8000",
    "http://[::ffff:127.0.0.1]:8000": "127.0.0.1",
    "http://meta.example": "169.254.169.254/32",
    "http://100.100.100.200": "100.100.100.200",
    "http://[64:ff9b::a01:203]:8000": "10.0.0.0/8",
}
REFUSED = {
    "http://public.example:8001": "public.example:8000",
    "http://public.example.:8000": "other.example",
    "http://vllm.models.svc:8000": "*  *.models.svc",
    "http://10.1.2.3:8000": "*",
    "http://six.example:8000": "10.0.0.0/8",
    "http://both.example:8000": "*.example  93.184.216.0/24",  # every address of a name
    "http://127.0.0.1:8000": "*",
    "http://localhost:8000": "*",
    "http://bent.example:8000": "bent.example,*",
    "http://[::ffff:127.0.0.1]:8000": "*,::/0",
    **dict.fromkeys((f"http://{host}:8000" for host in ("0.0.0.0", "[::]", "2130706433", "0x7f.1")), "*"),
    "http://meta.example": "meta.example,*",  # metadata and the link: never by a name
    **dict.fromkeys((f"http://{host}" for host in ("169.254.169.254", "100.100.100.200", "168.63.129.16")), "*"),
    **dict.fromkeys((f"http://{host}" for host in ("[fd00:ec2::254]", "[fe80::1]", "224.0.0.1")), "*"),
    # addresses that stand for others
    **dict.fromkeys((f"http://{host}:8000" for host in ("[64:ff9b::a01:203]", "[2002:a01:203::1]")), "*"),
    "http://nowhere.invalid": "*",
}


@pytest.mark.parametrize(("cases", "expected"), [(ALLOWED, True), (REFUSED, False)])
def test_what_may_be_called(cases: dict[str, str], expected: bool) -> None:
    for url, lists in cases.items():
        for patterns in lists.split():
            assert is_allowed(f"{url}/v1", *patterns.split(",")) is expected, (url, patterns)
    assert not is_allowed("http://public.example:8000/v1")


def is_allowed(url: str, *patterns: str) -> bool:
    try:
        AllowedEndpoints(patterns).check(url)
    except EndpointForbidden:
        return False
    return True


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

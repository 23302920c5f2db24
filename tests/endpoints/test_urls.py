"""How a URL is written, which URLs lead to the same server, and which servers may be called."""

from __future__ import annotations

import asyncio

import pytest

from qualab.endpoints.allowing import AllowedEndpoints, allowed_opening, parse_pattern
from qualab.endpoints.urls import alternatives, normalize_url, root_of, same_server
from qualab.errors import EndpointForbidden, InvalidValue
from qualab.model.plan import RequestPolicy
from tests.scripted_server import MODEL, ScriptedServer

Names = dict[str, list[str]]

SPELLINGS = {
    "http://host:8000/v1": (
        *("http://host:8000", "http://host:8000/", "http://host:8000/v1/", "http://host:8000/v1/completions"),
        *("http://host:8000/v1/chat/completions/", "http://host:8000/v1/models", "  http://host:8000//v1//  "),
    ),
    "https://host.example/gate/way/v1": ("https://Host.Example/gate/way", "https://host.example/gate/way/v1/models"),
    "https://host.example/v1beta/openai": (),
    "https://host.example/api/v3": (),
    "http://[::1]:8000/v1": ("http://[::1]:8000",),
}
NO_URLS = ("localhost:8000", "127.0.0.1:8000/v1", "ftp://host/v1", "file:///etc/passwd", "http://", "http:///v1", "")
NO_HOSTS = ("http://host:99999/v1", "http://host:port/v1", "http://ho st/v1", "http://[::1/v1")
LEAKING = ("http://user:sesame@host/v1", "http://sesame@host", "http://host/v1?key=sesame", "http://host/v1#sesame")
MALFORMED = ("user:sesame@host:8000", "ftp://user:sesame@host/?key=sesame")


def test_every_accepted_form_has_one_spelling() -> None:
    for base, others in SPELLINGS.items():
        assert {normalize_url(given) for given in (base, *others)} == {base}


@pytest.mark.parametrize("given", [*NO_URLS, *NO_HOSTS, *LEAKING, *MALFORMED])
def test_what_is_no_http_url_is_refused_with_an_example_and_no_secret_is_shown(given: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        normalize_url(given)
    assert given in (*LEAKING, *MALFORMED) or "http://127.0.0.1:8000/v1" in caught.value.hint
    assert "sesame" not in str(caught.value)
    assert given not in MALFORMED or "host" in str(caught.value)


def test_the_root_and_the_alternatives_of_a_url() -> None:
    assert root_of("http://host/gate/v1") == "http://host/gate"
    assert root_of("http://host/v1beta/openai") == "http://host/v1beta/openai"
    assert alternatives("http://host/v1/v1") == ["http://host/v1/v1/v1", "http://host/v1"]
    assert alternatives("http://host/v1") == ["http://host/v1/v1"]
    assert "http://host/v1" in alternatives("http://host/wrong/v1")


SAME = [
    ("http://localhost:8000", "http://127.0.0.1:8000/v1/completions"),
    ("http://localhost:8000", "http://[::1]:8000"),
    ("http://0.0.0.0:8000", "http://localhost:8000"),
    ("http://gpu1:8000", "http://gpu1.corp:8000"),
    ("http://gpu1:8000", "http://10.0.0.1:8000"),
    ("http://gpu1:8000", "http://[::ffff:10.0.0.1]:8000"),
    ("http://gpu1", "http://gpu1:80"),
    ("https://gpu1", "https://10.0.0.1"),
    ("http://unknown:8000", "http://UNKNOWN:8000/v1"),
]
OTHER = [
    ("http://127.0.0.1:8000", "http://127.0.0.1:8001"),
    ("http://gpu1:8000", "http://gpu2:8000"),
    ("http://gpu1:8000/a", "http://gpu1:8000/b"),
    ("https://gpu1", "https://gpu1.corp"),
    ("http://unknown:8000", "http://elsewhere:8000"),
]


def test_same_server_compares_addresses_ports_and_paths(names: Names) -> None:
    names |= {"localhost": ["::1", "127.0.0.1"], "gpu1": ["10.0.0.1"], "gpu1.corp": ["10.0.0.1", "10.0.0.9"]}
    names |= {"gpu2": ["10.0.0.2"]}
    for a, b in (*SAME, *OTHER):
        assert same_server(a, b) is same_server(b, a) is ((a, b) in SAME), (a, b)


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


def is_allowed(url: str, *patterns: str) -> bool:
    try:
        AllowedEndpoints(patterns).check(url)
    except EndpointForbidden:
        return False
    return True


@pytest.mark.parametrize(("cases", "expected"), [(ALLOWED, True), (REFUSED, False)])
def test_what_may_be_called(names: Names, cases: dict[str, str], expected: bool) -> None:
    names |= {"public.example": ["93.184.216.34"], "vllm.models.svc": ["10.1.2.3"], "bent.example": ["127.0.0.1"]}
    names |= {"both.example": ["93.184.216.34", "10.1.2.3"], "meta.example": ["169.254.169.254"]}
    names |= {"six.example": ["fd00::7"], "localhost": ["127.0.0.1"]}
    for url, lists in cases.items():
        for patterns in lists.split():
            assert is_allowed(f"{url}/v1", *patterns.split(",")) is expected, (url, patterns)
    assert not is_allowed("http://public.example:8000/v1")
    with pytest.raises(EndpointForbidden, match="a private address is not on its list") as caught:
        AllowedEndpoints(()).check("http://vllm.models.svc:8000/v1")
    assert "10.1.2.3" not in str(caught.value)


def test_what_is_no_pattern_is_refused() -> None:
    for pattern in ("", " ", "http://x", "a b", "10.0.0.0/99", "user@host", "x/y"):
        with pytest.raises(InvalidValue, match="allowed_endpoints"):
            parse_pattern(pattern)


def inspected(allowed: AllowedEndpoints, url: str) -> bool:
    async def ask() -> bool:
        policy = RequestPolicy(concurrency=1, max_attempts=1, timeout_s=5.0)
        async with allowed_opening(allowed)(url, policy=policy, key=None) as endpoint:
            return await endpoint.inspect(model=MODEL)

    return asyncio.run(ask())


def test_an_endpoint_is_reached_at_the_address_that_was_checked_and_answers(names: Names) -> None:
    """The client itself would look the name up in vain; one that leads elsewhere later is refused then."""
    names["arm.invalid"] = ["127.0.0.9", "127.0.0.1"]
    with ScriptedServer() as server:
        url = server.url.replace("127.0.0.1", "arm.invalid")
        assert inspected(AllowedEndpoints(("127.0.0.0/8",)), url)
        names["arm.invalid"] = ["93.184.216.34"]
        allowed = AllowedEndpoints(("*.invalid",))
        allowed.check(url)
        names["arm.invalid"] = ["127.0.0.1"]
        with pytest.raises(EndpointForbidden):
            inspected(allowed, url)

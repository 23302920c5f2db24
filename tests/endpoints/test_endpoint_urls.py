from __future__ import annotations

import socket
from typing import Any

import pytest

from qualab.endpoints.urls import alternatives, normalize_url, root_of, same_server
from qualab.errors import InvalidValue

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


@pytest.mark.parametrize("base", SPELLINGS)
def test_every_accepted_form_has_one_spelling(base: str) -> None:
    assert {normalize_url(given) for given in (base, *SPELLINGS[base])} == {base}


NO_URLS = ("localhost:8000", "127.0.0.1:8000/v1", "ftp://host/v1", "file:///etc/passwd", "http://", "http:///v1", "")
NO_HOSTS = ("http://host:99999/v1", "http://host:port/v1", "http://ho st/v1", "http://[::1/v1")


@pytest.mark.parametrize("given", [*NO_URLS, *NO_HOSTS])
def test_what_is_no_http_url_is_refused_with_an_example(given: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        normalize_url(given)
    assert "http://127.0.0.1:8000/v1" in caught.value.hint


LEAKING = ("http://user:sesame@host/v1", "http://sesame@host", "http://host/v1?key=sesame", "http://host/v1#sesame")
MALFORMED = ("user:sesame@host:8000", "ftp://user:sesame@host/?key=sesame")


@pytest.mark.parametrize("given", [*LEAKING, *MALFORMED])
def test_secrets_in_a_url_are_refused_and_not_shown(given: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        normalize_url(given)
    assert "sesame" not in str(caught.value)
    assert given in LEAKING or "host" in str(caught.value)


def test_the_root_lies_beside_the_api() -> None:
    assert root_of("http://host/gate/v1") == "http://host/gate"
    assert root_of("http://host/v1beta/openai") == "http://host/v1beta/openai"


def test_alternatives_are_usable_as_they_stand() -> None:
    assert alternatives("http://host/v1/v1") == ["http://host/v1/v1/v1", "http://host/v1"]
    assert alternatives("http://host/v1") == ["http://host/v1/v1"]
    assert "http://host/v1" in alternatives("http://host/wrong/v1")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"localhost": ["::1", "127.0.0.1"], "gpu1": ["10.0.0.1"], "gpu1.corp": ["10.0.0.1", "10.0.0.9"]}
    table |= {"gpu2": ["10.0.0.2"]}
    real = socket.getaddrinfo

    def looked_up(host: str, port: int, **more: Any) -> Any:
        if host not in table:
            return real(host, port, flags=socket.AI_NUMERICHOST, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in table[host]]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("http://localhost:8000", "http://127.0.0.1:8000/v1/completions", True),
        ("http://localhost:8000", "http://[::1]:8000", True),
        ("http://0.0.0.0:8000", "http://localhost:8000", True),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8001", False),
        ("http://gpu1:8000", "http://gpu1.corp:8000", True),
        ("http://gpu1:8000", "http://10.0.0.1:8000", True),
        ("http://gpu1:8000", "http://[::ffff:10.0.0.1]:8000", True),
        ("http://gpu1:8000", "http://gpu2:8000", False),
        ("http://gpu1:8000/a", "http://gpu1:8000/b", False),
        ("http://gpu1", "http://gpu1:80", True),
        ("https://gpu1", "https://gpu1.corp", False),
        ("https://gpu1", "https://10.0.0.1", True),
        ("http://unknown:8000", "http://UNKNOWN:8000/v1", True),
        ("http://unknown:8000", "http://elsewhere:8000", False),
    ],
)
def test_same_server_compares_addresses_ports_and_paths(a: str, b: str, same: bool) -> None:
    assert same_server(a, b) is same
    assert same_server(b, a) is same

from __future__ import annotations

import socket

import pytest

from qualab.endpoints.urls import alternatives, normalize_url, root_of, same_server
from qualab.errors import InvalidValue


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://host:8000", "http://host:8000/v1"),
        ("http://host:8000/", "http://host:8000/v1"),
        ("http://host:8000/v1", "http://host:8000/v1"),
        ("http://host:8000/v1/", "http://host:8000/v1"),
        ("http://host:8000/v1/completions", "http://host:8000/v1"),
        ("http://host:8000/v1/chat/completions/", "http://host:8000/v1"),
        ("http://host:8000/v1/models", "http://host:8000/v1"),
        ("https://Host.Example/gate/way", "https://host.example/gate/way/v1"),
        ("https://host.example/gate/way/v1/completions", "https://host.example/gate/way/v1"),
        ("https://host.example/v1beta/openai", "https://host.example/v1beta/openai"),
        ("https://host.example/api/v3", "https://host.example/api/v3"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
        ("  http://host:8000//v1//  ", "http://host:8000/v1"),
    ],
)
def test_every_accepted_form_has_one_spelling(given: str, base: str) -> None:
    assert normalize_url(given) == base
    assert normalize_url(base) == base


@pytest.mark.parametrize(
    "given",
    [
        "localhost:8000",
        "127.0.0.1:8000/v1",
        "ftp://host/v1",
        "file:///etc/passwd",
        "http://",
        "http:///v1",
        "http://host:99999/v1",
        "http://host:port/v1",
        "http://ho st/v1",
        "http://[::1/v1",
        "",
    ],
)
def test_what_is_no_http_url_is_refused_with_an_example(given: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        normalize_url(given)
    assert "http://127.0.0.1:8000/v1" in caught.value.hint


@pytest.mark.parametrize(
    "given",
    ["http://user:sesame@host/v1", "http://sesame@host", "http://host/v1?key=sesame", "http://host/v1#sesame"],
)
def test_secrets_in_a_url_are_refused_and_not_shown(given: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        normalize_url(given)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("given", ["user:sesame@host:8000", "ftp://user:sesame@host/?key=sesame"])
def test_secrets_in_a_malformed_url_are_not_shown(given: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        normalize_url(given)
    assert "sesame" not in str(caught.value)
    assert "host" in str(caught.value)


def test_the_root_lies_beside_the_api() -> None:
    assert root_of("http://host/gate/v1") == "http://host/gate"
    assert root_of("http://host/v1beta/openai") == "http://host/v1beta/openai"


def test_alternatives_are_usable_as_they_stand() -> None:
    assert alternatives("http://host/v1/v1") == ["http://host/v1/v1/v1", "http://host/v1"]
    assert alternatives("http://host/v1") == ["http://host/v1/v1"]
    assert "http://host/v1" in alternatives("http://host/wrong/v1")


def resolves(table: dict[str, list[str]]) -> object:
    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if host not in table:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in table[host]]

    return getaddrinfo


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "localhost": ["::1", "127.0.0.1"],
        "127.0.0.1": ["127.0.0.1"],
        "::1": ["::1"],
        "0.0.0.0": ["0.0.0.0"],
        "gpu1": ["10.0.0.1"],
        "gpu1.corp": ["10.0.0.1", "10.0.0.9"],
        "gpu2": ["10.0.0.2"],
        "10.0.0.1": ["10.0.0.1"],
        "::ffff:10.0.0.1": ["::ffff:10.0.0.1"],
    }
    monkeypatch.setattr(socket, "getaddrinfo", resolves(table))


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

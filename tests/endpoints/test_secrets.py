"""A key goes into one header and shows up nowhere else."""

from __future__ import annotations

import asyncio
import base64
import logging
import traceback

import pytest

from qualab.endpoints.transport import Redactor, checked_key
from qualab.errors import InvalidValue, QualabError
from qualab.model.names import AnswerStatus
from tests.endpoints.conftest import COMPLETION, Open, completion, models
from tests.scripted_server import ScriptedServer, reply, wire

KEY = "mykey-7f3a/9c+Q=="


async def test_every_request_has_the_key(server: ScriptedServer, opened: Open) -> None:
    for key, sent in ((f"{KEY}\n", f"Bearer {KEY}"), (None, None), ("", None), ("  \n", None)):
        server.answer(reply(models("m")), reply({"tokens": [1]}), reply({}), reply({}), reply(completion("a")))
        server.seen.clear()
        async with opened(key=key) as endpoint:
            await endpoint.inspect(model="m")
            await endpoint.ask(COMPLETION, b"{}")
        assert {seen.headers.get("Authorization") for seen in server.seen} == {sent}


LEAKS = [
    reply({"error": {"message": f"Incorrect API key provided: {KEY}."}}, status=401),
    reply({"error": {"message": f"Bearer {KEY} is not known"}}, status=400),
    reply(f"<title>{KEY}</title>", status=404),
    reply(f"<title>{'x' * 190}{KEY}</title>", status=500),
    reply({"error": {"message": KEY}}),
    reply({"echo": {"authorization": f"Bearer {KEY}"}}),
    reply(f"<html><title>{KEY}</title>"),
    reply("mykey-7f3a%2F9c%2BQ%3D%3D", status=403),
    reply("", status=302, headers={"Location": f"https://x.example/?key={KEY}"}),
    wire(f"HTTP/1.1 {KEY} {KEY}\r\n\r\n".encode()),
    wire(b""),
]


async def test_no_message_shows_the_key(server: ScriptedServer, opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for step in LEAKS:
        server.answer(step)
        async with opened(key=KEY, max_attempts=2) as endpoint:
            error = (await endpoint.ask(COMPLETION, b"{}")).error
            with pytest.raises(QualabError) as caught:
                await endpoint.inspect(model="m")
            said = [error, str(caught.value), repr(caught.value), "".join(traceback.format_exception(caught.value))]
            said += [repr(held) for held in (endpoint, endpoint._redact, endpoint._transport)]
        assert error
        shown = "\n".join([*said, caplog.text])
        assert KEY not in shown
        assert "mykey-7f3a" not in shown


def test_a_key_that_no_header_can_carry_is_refused_unseen() -> None:
    for key in ("two words", "line\nbreak", "schlüssel", "nul\0"):
        with pytest.raises(InvalidValue) as caught:
            checked_key(key)
        assert not any(part in str(caught.value) for part in (key, "two", "line", "schl", "nul"))


HIDDEN = [
    ("EMPTY", "EMPTY prompt, EMPTYING", "[key] prompt, EMPTYING"),
    ("a", "a banana", "[key] banana"),
    ("", "nothing to hide", "nothing to hide"),
    ("longer-secret", "xlonger-secretx", "x[key]x"),
    ("", "got sk-abcdef***1234 instead", "got [key] instead"),
    ("", "sent Authorization: Bearer abc.def, refused", "sent Authorization: [key], refused"),
]


def test_what_is_hidden_and_what_is_not() -> None:
    assert [Redactor(secret)(text) for secret, text, _ in HIDDEN] == [shown for *_, shown in HIDDEN]


GRANTED = "Basic " + base64.b64encode(b"worker:open:sesame/9").decode()


@pytest.fixture
def proxied(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> ScriptedServer:
    """The scripted server as the environment's proxy."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("http_proxy", f"http://worker:open%3Asesame%2F9@127.0.0.1:{server.port}")
    return server


async def test_the_environments_proxy_is_used(proxied: ScriptedServer, opened: Open) -> None:
    proxied.answer(reply(completion("through")))
    async with opened(url="http://far.example:8000", key=KEY) as endpoint:
        replies = [await endpoint.ask(COMPLETION, b"{}") for _ in range(2)]
    assert [got.text for got in replies] == ["through", "through"]
    assert len(proxied.peers) == 1
    for seen in proxied.seen:
        assert seen.headers["Host"] == "far.example:8000"
        assert seen.headers["Proxy-Authorization"] == GRANTED
        assert seen.headers["Authorization"] == f"Bearer {KEY}"


async def test_a_tls_proxy_sees_no_key(proxied: ScriptedServer, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        monkeypatch.setenv("https_proxy", f"worker:open%3Asesame%2F9@127.0.0.1:{port}")
        async with opened(url="https://far.example", key=KEY, max_attempts=1) as endpoint:
            got = await endpoint.ask(COMPLETION, b"{}")
    assert got.status is AnswerStatus.CONNECTION_ERROR
    assert got.error == "the proxy refused with status 407"
    (head,) = heads
    assert head.startswith("CONNECT far.example:443 ")
    assert f"proxy-authorization: {GRANTED.lower()}" in head.lower()
    assert KEY not in head


async def test_no_proxy_loopback_and_networks(
    proxied: ScriptedServer, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxied.answer(reply(completion("through")))

    async def text(url: str = "") -> str | None:
        async with opened(url=url, max_attempts=1, timeout_s=0.3) as endpoint:
            return (await endpoint.ask(COMPLETION, b"{}")).text

    monkeypatch.setenv("no_proxy", ".invalid,192.0.2.0/24,2001:db8::/32")
    for url in ("http://far.invalid:8000", "http://192.0.2.7:8000", "http://[2001:db8::7]:8000"):
        assert await text(url) is None
    for url in ("http://far.example:8000", "http://192.0.3.7:8000", "http://[2001:db9::7]:8000"):
        assert await text(url) == "through"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert await text() == "through", "this machine is asked without a proxy"


async def test_a_dead_proxy_is_named_without_its_password(
    proxied: ScriptedServer, opened: Open, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setenv("http_proxy", f"http://worker:open%3Asesame%2F9@127.0.0.1:{unused_tcp_port}")
    async with opened(url="http://far.example:8000") as endpoint:
        with pytest.raises(QualabError) as caught:
            await endpoint.inspect(model="m")
    shown = "".join(traceback.format_exception(caught.value))
    assert "the proxy that the environment names, cannot be reached" in shown
    assert "NO_PROXY" in shown
    assert "sesame" not in shown

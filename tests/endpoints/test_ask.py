"""One request with its attempts, what each kind of failure becomes, and a key that shows up in one header alone."""

from __future__ import annotations

import asyncio
import base64
import gzip
import logging
import os
import resource
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from aiohttp import web
from pyreqwest.exceptions import ConnectError

from qualab.endpoints.client import MAX_RETRY_AFTER_S, HttpEndpoint
from qualab.endpoints.transport import Redactor, Timing, Transport, checked_key
from qualab.errors import InvalidValue, QualabError
from qualab.model.names import AnswerStatus
from qualab.model.plan import RequestPolicy
from tests.endpoints.conftest import CHAT, COMPLETION, START, Ask, FakeTime, Open, chat, completion, models
from tests.scripted_server import ScriptedServer, after, reply, wire

OK = reply(completion("fine"))


async def test_the_bytes_go_out_as_they_are_on_the_routes_of_the_api(server: ScriptedServer, opened: Open) -> None:
    server.answer(OK, reply(chat({"content": "hi"})))
    body = '{"prompt": "한국어",  "odd":1}'.encode()
    async with opened(url=f"{server.root}/gate/v1") as endpoint:
        got = await endpoint.ask(COMPLETION, body)
        assert (await endpoint.ask(CHAT, body)).text == "hi"
    assert (got.status, got.text, got.attempts, got.sent_at) == (AnswerStatus.OK, "fine", 1, START)
    paths = ("/gate/v1/completions", "/gate/v1/chat/completions")
    assert [(seen.method, seen.path, seen.body) for seen in server.seen] == [("POST", path, body) for path in paths]
    assert server.seen[0].headers["Content-Type"] == "application/json"
    assert "Authorization" not in server.seen[0].headers


async def slow_body(request: web.Request) -> web.StreamResponse:
    """Headers and the beginning of a body, and no more."""
    response = web.StreamResponse(headers={"Content-Length": "99"})
    await response.prepare(request)
    await response.write(b'{"choices"')
    await asyncio.sleep(5.0)
    return response


HEAD = b"HTTP/1.1 200 OK\r\n"
HALF = HEAD + b'Content-Length: 999\r\n\r\n{"choices"'
BROKEN = {
    "another body": (reply({"choices": []}), "no choices"),
    "a body that ends early": (wire(HALF), "ended early"),
    "a reset in the body": (wire(HALF, reset=True), "ended early"),
    "chunks that end early": (wire(HEAD + b'Transfer-Encoding: chunked\r\n\r\n3\r\n{"c\r\n'), "ended early"),
    "a gzip stream that ends early": (
        reply(gzip.compress(b"{}" * 99)[:-9], headers={"Content-Encoding": "gzip"}),
        "ended early",
    ),
    "a broken chunk": (wire(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nxx"), ""),
    "not HTTP": (wire(b"SSH-2.0-OpenSSH_9.6\r\n"), "not HTTP"),
}


@pytest.mark.parametrize("name", list(BROKEN))
async def test_a_bad_body_is_asked_again_and_said_where_it_stays(ask: Ask, name: str) -> None:
    step, reason = BROKEN[name]
    got = await ask(step, max_attempts=2)
    assert (got.status, got.text, got.attempts) == (AnswerStatus.BAD_BODY, None, 2)
    assert got.error
    assert reason in got.error
    again = await ask(step, OK, max_attempts=2)
    assert (again.status, again.text, again.attempts) == (AnswerStatus.OK, "fine", 2)


async def test_a_connection_that_breaks_before_the_answer_or_is_refused(ask: Ask, unused_tcp_port: int) -> None:
    for raw in (b"", b"HTTP/1.1 200 OK\r\nContent-"):
        for reset in (False, True):
            got = await ask(wire(raw, reset=reset), max_attempts=2)
            assert (got.status, got.attempts) == (AnswerStatus.CONNECTION_ERROR, 2)
            assert "connection" in got.error
    got = await ask(url=f"http://127.0.0.1:{unused_tcp_port}", max_attempts=3)
    assert (got.status, got.attempts, got.text) == (AnswerStatus.CONNECTION_ERROR, 3, None)
    assert "refused" in got.error


async def test_a_refusal_is_one_line_and_only_passing_trouble_asked_again(ask: Ask) -> None:
    got = await ask(reply("\x1b[31m" + "trace\n" * 10_000, status=400))
    assert (got.status, got.attempts) == (AnswerStatus.REJECTED, 1)
    assert len(got.error) < 250
    assert got.error.isprintable()
    got = await ask(reply({"error": {"message": "CUDA error"}}, status=500), max_attempts=4)
    assert (got.status, got.attempts, got.error) == (AnswerStatus.HTTP_ERROR, 4, "HTTP 500: CUDA error")
    odd = wire(b"HTTP/1.1 503 Busy\r\nConnection: close\r\nRetry-After: \xff\xfe\r\nContent-Length: 0\r\n\r\n")
    assert (await ask(odd, OK)).attempts == 2


@pytest.mark.parametrize("step", [after(5.0, OK), slow_body], ids=["headers", "body"])
async def test_the_deadline_covers_headers_and_body_and_begins_anew_with_each_attempt(ask: Ask, step: Any) -> None:
    started = time.perf_counter()
    got = await ask(step, timeout_s=0.15, max_attempts=2)
    assert (got.status, got.attempts) == (AnswerStatus.TIMEOUT, 2)
    assert 0.25 < time.perf_counter() - started < 4.0
    again = await ask(step, after(0.1, OK), timeout_s=0.2)
    assert (again.status, again.attempts) == (AnswerStatus.OK, 2)


async def test_waiting_for_a_slot_is_neither_deadline_nor_latency(server: ScriptedServer) -> None:
    server.answer(after(0.15, OK))
    policy = RequestPolicy(concurrency=2, timeout_s=0.4, max_attempts=1)
    async with HttpEndpoint(server.root, policy=policy, key=None) as endpoint:
        replies = await asyncio.gather(*(endpoint.ask(COMPLETION, b"{}") for _ in range(8)))
    assert [got.status for got in replies] == [AnswerStatus.OK] * 8
    assert all(0.14 < got.latency_s < 0.4 for got in replies)
    assert server.most_in_flight == 2, "no more are under way than the policy says"
    assert len(server.peers) == 2, "connections are kept and used again"


async def test_a_pause_between_attempts_leaves_its_slot_to_others(server: ScriptedServer) -> None:
    server.answer(reply("", status=503), OK)
    wake = asyncio.Event()

    async def sleep(_: float) -> None:
        await wake.wait()

    policy = RequestPolicy(concurrency=1, timeout_s=5.0)
    async with HttpEndpoint(server.root, policy=policy, key=None, timing=Timing(sleep=sleep)) as endpoint:
        pausing = asyncio.create_task(endpoint.ask(COMPLETION, b"{}"))
        while not server.seen:
            await asyncio.sleep(0.005)
        async with asyncio.timeout(2):
            assert (await endpoint.ask(COMPLETION, b"{}")).attempts == 1
        wake.set()
        assert (await pausing).attempts == 2


async def test_no_file_left_to_open(server: ScriptedServer, opened: Open) -> None:
    server.answer(reply(completion("first"), headers={"Connection": "close"}), OK)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with opened(max_attempts=1) as endpoint:
        await endpoint.ask(COMPLETION, b"{}")
        os.close(first_free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
        try:
            got = await endpoint.ask(COMPLETION, b"{}")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert got.status is AnswerStatus.CONNECTION_ERROR
    assert "ulimit -n" in got.error


async def test_pauses_grow_with_full_jitter(server: ScriptedServer, opened: Open, fake_time: FakeTime) -> None:
    server.answer(reply("", status=500))
    async with opened(max_attempts=9, backoff_s=1.0, max_backoff_s=20.0) as endpoint:
        await endpoint.ask(COMPLETION, b"{}")
        await endpoint.ask(COMPLETION, b"{}")
    ceilings = [1, 2, 4, 8, 16, 20, 20, 20] * 2
    assert len(fake_time.slept) == 16
    assert all(0 <= pause <= ceiling for pause, ceiling in zip(fake_time.slept, ceilings, strict=True))
    assert fake_time.slept[:8] != fake_time.slept[8:], "drawn anew for each request"
    assert max(fake_time.slept) > 10
    assert min(fake_time.slept) < 1


async def test_retry_after_in_seconds_is_waited_for_up_to_a_bound(ask: Ask, fake_time: FakeTime) -> None:
    got = await ask(reply("", status=429, headers={"Retry-After": "7"}), OK, backoff_s=0.5)
    assert got.attempts == 1
    assert 7.0 <= fake_time.slept[0] <= 7.5
    assert got.sent_at == START + timedelta(seconds=fake_time.slept[0])
    await ask(reply("", status=429, headers={"Retry-After": "86400"}), OK, backoff_s=0.5)
    assert MAX_RETRY_AFTER_S <= fake_time.slept[1] <= MAX_RETRY_AFTER_S + 0.5


@pytest.mark.parametrize(("status", "headers"), [(429, {}), (429, {"Retry-After": "1"}), (503, {"Retry-After": "0"})])
async def test_waiting_for_a_busy_server_uses_up_no_attempt(
    server: ScriptedServer, opened: Open, fake_time: FakeTime, status: int, headers: dict[str, str]
) -> None:
    busy, told = reply("", status=status, headers=headers), list[float]()
    server.answer(busy, busy, reply("", status=500), *[busy] * 9, OK)
    async with opened(max_attempts=2) as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}", on_wait=told.append)
    assert (got.status, got.attempts, got.error) == (AnswerStatus.OK, 2, "")
    assert len(told) == 11
    assert len(fake_time.slept) == 12


@pytest.mark.parametrize("max_wait_s", [200.0, 0.0])
async def test_a_server_may_be_busy_for_max_wait(ask: Ask, fake_time: FakeTime, max_wait_s: float) -> None:
    busy = reply({"error": "slow down"}, status=429, headers={"Retry-After": "50"})
    got = await ask(busy, max_wait_s=max_wait_s, backoff_s=0.5)
    assert (got.status, got.attempts) == (AnswerStatus.HTTP_ERROR, 1)
    assert got.error == "HTTP 429: slow down (after waiting as long as max_wait allows)"
    assert max_wait_s - 51 <= fake_time.elapsed <= max_wait_s


async def test_what_ask_was_given_is_cancelled_cleanly(server: ScriptedServer, opened: Open) -> None:
    server.answer(after(30.0, OK), OK)
    async with opened(concurrency=1) as endpoint:
        waiting = asyncio.create_task(endpoint.ask(COMPLETION, b"{}"))
        while not server.seen:
            await asyncio.sleep(0.005)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(2):
            assert (await endpoint.ask(COMPLETION, b"{}")).status is AnswerStatus.OK, "its slot is free again"


@pytest.mark.parametrize("error", [None, ConnectError("refused", {"causes": []})])
async def test_a_cancellation_that_the_client_library_loses_is_not_lost(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    async def send() -> MagicMock:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        if error:
            raise error
        return MagicMock(bytes=AsyncMock(return_value=MagicMock()))

    transport = Transport(server.root, key="", timeout_s=5.0)
    await transport.close()
    monkeypatch.setattr(transport, "_client", client := MagicMock())
    client.request.return_value.build.return_value.send = send
    sending = asyncio.create_task(transport.send("GET", "http://127.0.0.1/"))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending


async def test_a_policy_that_cannot_be_is_refused(opened: Open) -> None:
    for name in ("concurrency", "timeout_s", "max_attempts"):
        with pytest.raises(InvalidValue, match=name):
            opened(**{name: 0})


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


HIDDEN = [
    ("EMPTY", "EMPTY prompt, EMPTYING", "[key] prompt, EMPTYING"),
    ("a", "a banana", "[key] banana"),
    ("", "nothing to hide", "nothing to hide"),
    ("longer-secret", "xlonger-secretx", "x[key]x"),
    ("", "got sk-abcdef***1234 instead", "got [key] instead"),
    ("", "sent Authorization: Bearer abc.def, refused", "sent Authorization: [key], refused"),
]


def test_what_is_hidden_and_what_is_not_and_a_key_that_no_header_can_carry_is_refused_unseen() -> None:
    assert [Redactor(secret)(text) for secret, text, _ in HIDDEN] == [shown for *_, shown in HIDDEN]
    for key in ("two words", "line\nbreak", "schlüssel", "nul\0"):
        with pytest.raises(InvalidValue) as caught:
            checked_key(key)
        assert not any(part in str(caught.value) for part in (key, "two", "line", "schl", "nul"))


GRANTED = "Basic " + base64.b64encode(b"worker:open:sesame/9").decode()


@pytest.fixture
def proxied(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> ScriptedServer:
    """The scripted server as the environment's proxy."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("http_proxy", f"http://worker:open%3Asesame%2F9@127.0.0.1:{server.port}")
    return server


async def test_the_environments_proxy_is_used_and_a_dead_one_named_without_its_password(
    proxied: ScriptedServer, opened: Open, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    proxied.answer(reply(completion("through")))
    async with opened(url="http://far.example:8000", key=KEY) as endpoint:
        replies = [await endpoint.ask(COMPLETION, b"{}") for _ in range(2)]
    assert [got.text for got in replies] == ["through", "through"]
    assert len(proxied.peers) == 1
    for seen in proxied.seen:
        assert seen.headers["Host"] == "far.example:8000"
        assert seen.headers["Proxy-Authorization"] == GRANTED
        assert seen.headers["Authorization"] == f"Bearer {KEY}"
    monkeypatch.setenv("http_proxy", f"http://worker:open%3Asesame%2F9@127.0.0.1:{unused_tcp_port}")
    async with opened(url="http://far.example:8000") as endpoint:
        with pytest.raises(QualabError) as caught:
            await endpoint.inspect(model="m")
    shown = "".join(traceback.format_exception(caught.value))
    assert "the proxy that the environment names, cannot be reached" in shown
    assert "NO_PROXY" in shown
    assert "sesame" not in shown


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

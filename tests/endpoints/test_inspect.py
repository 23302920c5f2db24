"""What an endpoint says of itself, and what a user is told where it does not answer as it should."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from qualab.endpoints.transport import PROBE_TIMEOUT_S
from qualab.errors import EndpointMisconfigured, EndpointUnreachable, QualabError
from qualab.model.names import Api
from tests.endpoints.conftest import Open
from tests.endpoints.scripted import FakeTime, ScriptedServer, Step, after, models, reply, wire

Refused = Callable[..., Awaitable[QualabError]]
NOT_FOUND = reply({"detail": "Not Found"}, status=404)
LOADING = reply({"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}, status=503)


def vllm(server: ScriptedServer, *, prefix: str = "") -> None:
    server.script(NOT_FOUND)
    server.routes = {
        ("GET", f"{prefix}/v1/models"): reply(
            models("smollm2", owned_by="vllm", max_model_len=2048, aliases=["small"])
        ),
        ("POST", f"{prefix}/tokenize"): reply({"count": 1, "max_model_len": 2048, "tokens": [5]}),
    }


@pytest.fixture
def refused(server: ScriptedServer, opened: Open) -> Refused:
    """The error of an inspection, where the server answers with these steps; keyword arguments are as of `opened`."""

    async def inspect(
        kind: type[QualabError], match: str, *steps: Step, model: str = "m", **settings: object
    ) -> QualabError:
        if steps:
            server.script(*steps)
        with pytest.raises(kind, match=match) as caught:
            async with opened(**settings) as endpoint:
                await endpoint.inspect(model=model)
        return caught.value

    return inspect


@pytest.mark.parametrize("prefix", ["", "/gate"])
async def test_whether_a_server_tokenizes(server: ScriptedServer, opened: Open, prefix: str) -> None:
    vllm(server, prefix=prefix)
    async with opened(url=server.url + prefix) as endpoint:
        for model in ("smollm2", "small"):  # an alias names the model too
            info = await endpoint.inspect(model=model)
            assert (info.url, info.tokenizes) == (f"{server.url}{prefix}/v1", True)
        server.routes["POST", f"{prefix}/tokenize"] = reply({"tokens": []})
        assert not (await endpoint.inspect(model="smollm2")).tokenizes


async def test_a_wrong_model_name_shows_the_served_ones_nearest_first(refused: Refused) -> None:
    served = ("whisper", "Qwen3-8B", "smollm3", "SmolLM2", "bge-m3", "reranker", "gemma")
    error = await refused(EndpointMisconfigured, "no model 'smollm2'", reply(models(*served)), model="smollm2")
    assert error.hint.startswith("It serves SmolLM2, smollm3, ")
    assert error.hint.endswith(" and 2 more")
    assert "none" in (await refused(EndpointMisconfigured, "no model 'm'", reply(models()))).hint


@pytest.mark.parametrize(
    ("prefix", "given"), [("", "/v1/v1"), ("", "/wrong/v1"), ("", "/wrong"), ("/v2/team", "/v2/team")]
)
async def test_the_right_url_is_named(server: ScriptedServer, refused: Refused, prefix: str, given: str) -> None:
    vllm(server, prefix=prefix)
    error = await refused(EndpointMisconfigured, r"/models does not exist: HTTP 404", url=server.url + given)
    assert error.hint == f"Use {server.url}{prefix}/v1, which answers"
    server.routes = {}
    error = await refused(EndpointMisconfigured, r"/v1/models does not exist", NOT_FOUND)
    assert "OpenAI-compatible" in error.hint


async def test_a_missing_key_names_where_keys_come_from(refused: Refused) -> None:
    for status in (401, 403):
        step = reply({"error": {"message": "no"}}, status=status)
        error = await refused(EndpointMisconfigured, f"HTTP {status}", step)
        for name in ("QUALAB_API_KEY", "QUALAB_BASELINE_API_KEY", "QUALAB_CANDIDATE_API_KEY", "--api-key-file"):
            assert name in error.hint


async def test_what_is_no_list_of_models_is_shown(refused: Refused) -> None:
    for body in ("<title>Sign  in\n</title>", "hello", "", {"status": "ok"}, [1], {"data": None}):
        shown = " ".join(body.split()) if isinstance(body, str) else json.dumps(body)
        error = await refused(EndpointMisconfigured, "does not answer with a list of models", reply(body))
        assert f"'{shown}'" in error.message


async def test_a_redirect_is_not_followed_but_named(server: ScriptedServer, refused: Refused) -> None:
    step = reply("", status=308, headers={"Location": "https://elsewhere.example/v1/models"})
    await refused(EndpointMisconfigured, r"redirects to https://elsewhere\.example/v1/models", step, key="a-secret-key")
    assert len(server.seen) == 1


async def test_a_loading_model_is_waited_for(
    server: ScriptedServer, opened: Open, refused: Refused, fake_time: FakeTime
) -> None:
    server.script(LOADING, LOADING, LOADING, reply(models("m")), NOT_FOUND)
    async with opened() as endpoint:
        await endpoint.inspect(model="m")
    assert fake_time.slept == [1.0, 1.0, 1.0]
    error = await refused(EndpointUnreachable, r"loading its model for 30 s", LOADING, loading_timeout_s=30.0)
    assert "/health" in error.hint
    assert fake_time.elapsed == 33.0


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_a_failing_server_is_tried_a_few_times(server: ScriptedServer, refused: Refused, status: int) -> None:
    step = reply({"error": {"message": "engine dead"}}, status=status)
    await refused(EndpointUnreachable, f"HTTP {status}, engine dead", step)
    assert len(server.seen) == 3


async def test_an_unreachable_server_has_a_hint(server: ScriptedServer, refused: Refused, unused_tcp_port: int) -> None:
    server.script(wire(b""))
    cases = {
        f"http://127.0.0.1:{unused_tcp_port}": (
            rf"http://127\.0\.0\.1:{unused_tcp_port}/v1.*refused",
            "Start the server",
        ),
        "http://no-such-host.invalid:8000": (r"no-such-host\.invalid.*resolved", "spelling"),
        server.url.replace("http:", "https:"): ("TLS failed", "http://"),
        server.url: ("closed the connection", "https://"),
    }
    for url, (reason, hint) in cases.items():
        assert hint in (await refused(EndpointUnreachable, reason, url=url)).hint


async def test_a_silent_server_is_given_up(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PROBE_TIMEOUT_S <= 5.0
    monkeypatch.setattr("qualab.endpoints.client.PROBE_TIMEOUT_S", 0.2)
    await refused(EndpointUnreachable, "in the time allowed", after(30.0, NOT_FOUND), timeout_s=300.0)


@asynccontextmanager
async def tls_server(folder: Path, *, is_authority: bool) -> AsyncIterator[tuple[int, Path]]:
    """A TLS server with a certificate that it signed itself: its port and certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    names = f"basicConstraints=critical,CA:{str(is_authority).upper()}", "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subject = ["-subj", "/CN=localhost", *(part for name in names for part in ("-addext", name))]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_models(reader, writer)  # as it is by then

    listener = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with listener:
        yield listener.sockets[0].getsockname()[1], certificate


async def answer_models(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    body = json.dumps(models("m")).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    writer.close()


@pytest.mark.parametrize("is_authority", [False, True])
async def test_a_certificate_that_is_not_trusted(
    tmp_path: Path, opened: Open, refused: Refused, monkeypatch: pytest.MonkeyPatch, is_authority: bool
) -> None:
    async with tls_server(tmp_path, is_authority=is_authority) as (port, certificate):
        url = f"https://localhost:{port}"
        if is_authority:
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            assert "CA:FALSE" in (await refused(EndpointUnreachable, "that of an authority", url=url)).hint
            return
        error = await refused(EndpointUnreachable, r"certificate is not trusted \(unknown", url=url)
        assert "SSL_CERT_FILE" in error.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with opened(url=url) as endpoint:
            await endpoint.inspect(model="m")
        monkeypatch.setattr(f"{__name__}.answer_models", vanish)
        await refused(EndpointUnreachable, "closed the connection without an answer", url=url)


async def vanish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as connection:
        connection.shutdown(socket.SHUT_RDWR)


async def test_a_model_has_the_names_of_all_that_share_its_root(server: ScriptedServer, opened: Open) -> None:
    cards = [
        {"id": "short", "root": "/models/a"},
        {"id": "long/name", "root": "/models/a", "aliases": ["other"]},
        {"id": "MODEL-B", "root": "/models/b"},
        {"id": "MODEL-C"},
    ]
    server.script(reply({"detail": "Not Found"}, status=404))
    server.routes = {("GET", "/v1/models"): reply({"object": "list", "data": cards})}
    async with opened() as endpoint:
        assert set((await endpoint.engine(model="other")).names) == {"other", "long/name", "/models/a", "short"}
        assert (await endpoint.engine(model="MODEL-C")).names == ("MODEL-C",)


async def test_settings_are_read_from_the_openapi_document(server: ScriptedServer, opened: Open) -> None:
    def body(schema: dict[str, Any]) -> dict[str, Any]:
        return {"post": {"requestBody": {"content": {"application/json": {"schema": schema}}}}}

    chat, batch = {"properties": {"top_k": {}, "messages": {}}}, {"properties": {"batched": {}}}
    document = {
        "paths": {
            "/v1/completions": body({"$ref": "#/components/schemas/Completion"}),
            "/v1/chat/completions": body({"anyOf": [{"$ref": "#/components/schemas/Chat"}, batch]}),
        },
        "components": {"schemas": {"Completion": {"properties": {"min_p": {}}}, "Chat": chat}},
    }
    server.script(NOT_FOUND)
    server.routes = {("GET", "/openapi.json"): reply(document)}
    async with opened() as endpoint:
        assert await endpoint.settings(Api.COMPLETIONS) == {"min_p"}
        assert await endpoint.settings(Api.CHAT) == {"top_k", "messages", "batched"}


async def test_a_server_without_a_document_tells_no_settings(server: ScriptedServer, opened: Open) -> None:
    for answer in ("<html>", [1], {"paths": {}}, {"paths": {"/v1/completions": {"post": 3}}}):
        server.script(reply(answer))
        async with opened() as endpoint:
            assert await endpoint.settings(Api.COMPLETIONS) is None

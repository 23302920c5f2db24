"""What an endpoint says of itself, its tokens, and what a user is told where it does not answer as it should."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web

from qualab.endpoints.client import named_tokenizer
from qualab.endpoints.transport import PROBE_TIMEOUT_S
from qualab.errors import EndpointMisconfigured, EndpointUnreachable, InvalidValue, QualabError, ScoringUnavailable
from qualab.model.names import Api
from tests.endpoints.conftest import FakeTime, Open, models
from tests.scripted_server import NOT_FOUND, ScriptedServer, Step, after, reply, wire

Refused = Callable[..., Awaitable[QualabError]]
LOADING = reply({"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}, status=503)


def vllm(server: ScriptedServer, *, prefix: str = "") -> None:
    server.routes["GET", f"{prefix}/v1/models"] = reply(models("smollm2", owned_by="vllm", aliases=["small"]))
    server.routes["POST", f"{prefix}/tokenize"] = reply({"count": 1, "max_model_len": 2048, "tokens": [5]})


@pytest.fixture
def refused(server: ScriptedServer, opened: Open) -> Refused:
    """The error of an inspection, where the server answers with these steps; keyword arguments are as of `opened`."""

    async def inspect(
        kind: type[QualabError], match: str, *steps: Step, model: str = "m", **settings: object
    ) -> QualabError:
        if steps:
            server.answer(*steps)
        with pytest.raises(kind, match=match) as caught:
            async with opened(**settings) as endpoint:
                await endpoint.inspect(model=model)
        return caught.value

    return inspect


async def test_whether_a_server_tokenizes(server: ScriptedServer, opened: Open) -> None:
    for prefix in ("", "/gate"):
        vllm(server, prefix=prefix)
        async with opened(url=server.root + prefix) as endpoint:
            for model in ("smollm2", "small"):  # an alias names the model too
                assert await endpoint.inspect(model=model)
                assert endpoint.url == f"{server.root}{prefix}/v1"
            server.routes["POST", f"{prefix}/tokenize"] = reply({"tokens": []})
            assert not await endpoint.inspect(model="smollm2")


async def test_a_wrong_model_name_shows_the_served_ones_nearest_first(refused: Refused) -> None:
    served = ("whisper", "Qwen3-8B", "smollm3", "SmolLM2", "bge-m3", "reranker", "gemma")
    error = await refused(EndpointMisconfigured, "no model 'smollm2'", reply(models(*served)), model="smollm2")
    assert error.hint.startswith("It serves SmolLM2, smollm3, ")
    assert error.hint.endswith(" and 2 more")
    assert "none" in (await refused(EndpointMisconfigured, "no model 'm'", reply(models()))).hint


async def test_the_right_url_is_named(server: ScriptedServer, refused: Refused) -> None:
    for prefix, given in (("", "/v1/v1"), ("", "/wrong/v1"), ("", "/wrong"), ("/v2/team", "/v2/team")):
        server.routes.clear()
        vllm(server, prefix=prefix)
        error = await refused(EndpointMisconfigured, r"/models does not exist: HTTP 404", url=server.root + given)
        assert error.hint == f"Use {server.root}{prefix}/v1, which answers"
    server.routes.clear()
    error = await refused(EndpointMisconfigured, r"/v1/models does not exist")
    assert "OpenAI-compatible" in error.hint


async def test_a_missing_key_names_where_keys_come_from_and_what_is_no_list_is_shown(
    refused: Refused,
) -> None:
    for status in (401, 403):
        step = reply({"error": {"message": "no"}}, status=status)
        error = await refused(EndpointMisconfigured, f"HTTP {status}", step)
        for name in ("QUALAB_API_KEY", "QUALAB_BASELINE_API_KEY", "QUALAB_CANDIDATE_API_KEY", "--api-key-file"):
            assert name in error.hint
    for body in ("<title>Sign  in\n</title>", "hello", "", {"status": "ok"}, [1], {"data": None}):
        shown = " ".join(body.split()) if isinstance(body, str) else json.dumps(body)
        error = await refused(EndpointMisconfigured, "does not answer with a list of models", reply(body))
        assert f"'{shown}'" in error.message


async def test_a_loading_model_is_waited_for(
    server: ScriptedServer, opened: Open, refused: Refused, fake_time: FakeTime
) -> None:
    server.answer(LOADING, LOADING, LOADING, reply(models("m")), NOT_FOUND)
    async with opened() as endpoint:
        await endpoint.inspect(model="m")
    assert fake_time.slept == [1.0, 1.0, 1.0]
    error = await refused(EndpointUnreachable, r"loading its model for 30 s", LOADING, loading_s=30.0)
    assert "/health" in error.hint
    assert fake_time.elapsed == 33.0


async def test_a_failing_server_is_tried_a_few_times_and_a_redirect_named(
    server: ScriptedServer, refused: Refused
) -> None:
    step = reply("", status=308, headers={"Location": "https://elsewhere.example/v1/models"})
    await refused(EndpointMisconfigured, r"redirects to https://elsewhere\.example/v1/models", step, key="a-secret-key")
    assert len(server.seen) == 1, "it is not followed"
    for tried, status in enumerate((429, 500, 502, 503)):
        step = reply({"error": {"message": "engine dead"}}, status=status)
        await refused(EndpointUnreachable, f"HTTP {status}, engine dead", step)
        assert len(server.seen) == 1 + 3 * (tried + 1)


async def test_an_unreachable_or_silent_server_has_a_hint(
    server: ScriptedServer, refused: Refused, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer(wire(b""))
    nobody, tls = f"http://127.0.0.1:{unused_tcp_port}", server.root.replace("http:", "https:")
    for url, reason, hint in (
        (nobody, rf"http://127\.0\.0\.1:{unused_tcp_port}/v1.*refused", "Start the server"),
        ("http://no-such-host.invalid:8000", r"no-such-host\.invalid.*resolved", "spelling"),
        (tls, "TLS failed", "http://"),
        (server.root, "closed the connection", "https://"),
    ):
        assert hint in (await refused(EndpointUnreachable, reason, url=url)).hint
    assert PROBE_TIMEOUT_S <= 5.0
    monkeypatch.setattr("qualab.endpoints.client.PROBE_TIMEOUT_S", 0.2)
    await refused(EndpointUnreachable, "in the time allowed", after(30.0, NOT_FOUND), timeout_s=300.0)


@contextmanager
def tls_server(folder: Path, *, is_authority: str) -> Iterator[tuple[str, str]]:
    """A TLS server with a certificate that it signed itself: its URL and certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    names = f"basicConstraints=critical,CA:{is_authority}", "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subject = ["-subj", "/CN=localhost", *(part for name in names for part in ("-addext", name))]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    with ScriptedServer(tls=context) as server:
        server.routes["GET", "/v1/models"] = reply(models("m"))
        server.routes["GET", "/vanishing/v1/models"] = vanish
        yield f"https://localhost:{server.port}", str(certificate)


async def vanish(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    with socket.socket(fileno=os.dup(request.transport.get_extra_info("socket").fileno())) as connection:
        connection.shutdown(socket.SHUT_RDWR)
    return web.Response()


async def test_a_certificate_that_is_not_trusted_and_an_authoritys_that_is_no_servers(
    tmp_path: Path, opened: Open, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_server(tmp_path, is_authority="FALSE") as (url, certificate):
        error = await refused(EndpointUnreachable, r"certificate is not trusted \(unknown", url=url)
        assert "SSL_CERT_FILE" in error.hint
        monkeypatch.setenv("SSL_CERT_FILE", certificate)
        async with opened(url=url) as endpoint:
            await endpoint.inspect(model="m")
        await refused(EndpointUnreachable, "closed the connection without an answer", url=f"{url}/vanishing")
    with tls_server(tmp_path, is_authority="TRUE") as (url, _):
        assert "CA:FALSE" in (await refused(EndpointUnreachable, "that of an authority", url=url)).hint


async def test_a_model_has_the_names_of_all_that_share_its_root(server: ScriptedServer, opened: Open) -> None:
    cards = [{"id": "short", "root": "/models/a"}, {"id": "long/name", "root": "/models/a", "aliases": ["other"]}]
    cards += [{"id": "MODEL-B", "root": "/models/b"}, {"id": "MODEL-C"}]
    server.routes["GET", "/v1/models"] = reply({"object": "list", "data": cards})
    async with opened() as endpoint:
        assert set((await endpoint.engine(model="other")).names) == {"other", "long/name", "/models/a", "short"}
        assert (await endpoint.engine(model="MODEL-C")).names == ("MODEL-C",)


async def test_settings_are_read_from_the_openapi_document(server: ScriptedServer, opened: Open) -> None:
    chat, batch = {"properties": {"top_k": {}, "messages": {}}}, {"properties": {"batched": {}}}
    schemas = {
        "/v1/completions": {"$ref": "#/components/schemas/Completion"},
        "/v1/chat/completions": {"anyOf": [{"$ref": "#/components/schemas/Chat"}, batch]},
    }
    bodies = {path: {"content": {"application/json": {"schema": schema}}} for path, schema in schemas.items()}
    paths = {path: {"post": {"requestBody": body}} for path, body in bodies.items()}
    components = {"schemas": {"Completion": {"properties": {"min_p": {}}}, "Chat": chat}}
    server.routes["GET", "/openapi.json"] = reply({"paths": paths, "components": components})
    async with opened() as endpoint:
        assert await endpoint.settings(Api.COMPLETIONS) == {"min_p"}
        assert await endpoint.settings(Api.CHAT) == {"top_k", "messages", "batched"}
    server.routes.clear()
    for answer in ("<html>", [1], {"paths": {}}, {"paths": {"/v1/completions": {"post": 3}}}):
        server.answer(reply(answer))
        async with opened() as endpoint:
            assert await endpoint.settings(Api.COMPLETIONS) is None


def codes(text: str) -> list[int]:
    return [ord(character) for character in text]


async def vllm_tokenize(request: web.Request) -> web.Response:
    asked = await request.json()
    if asked.get("model") != "m" or asked.get("add_special_tokens") is not False or "prompt" not in asked:
        return web.json_response({"error": {"message": "Field required"}}, status=400)
    await asyncio.sleep(0.001 * (len(asked["prompt"]) % 3))
    return web.json_response({"count": 1, "tokens": codes(asked["prompt"])})


async def llama_tokenize(request: web.Request) -> web.Response:
    asked = await request.json()
    assert asked.get("add_special", False) is False
    return web.json_response({"tokens": codes(asked.get("content", ""))})


async def test_both_servers_forms_are_spoken_and_one_that_does_not_tokenize_is_named(
    server: ScriptedServer, opened: Open
) -> None:
    texts = ["two words", "", "한국어", "\ud800 half", *(f"text {n}" * (n % 5) for n in range(40))]
    for route in (vllm_tokenize, llama_tokenize):
        server.routes["POST", "/gate/tokenize"] = route
        async with opened(url=f"{server.root}/gate/v1", concurrency=4) as endpoint:
            assert await endpoint.tokenize(texts, model="m") == [codes(text) for text in texts]
            assert await endpoint.tokenize([], model="m") == []
    assert server.most_in_flight <= 4
    server.routes.clear()
    for answer in (reply({"detail": "Not Found"}, status=404), reply({"tokens": []}), reply("<html>"), reply([1])):
        server.answer(answer)
        async with opened() as endpoint:
            with pytest.raises(EndpointMisconfigured, match="does not tokenize") as caught:
                await endpoint.tokenize(["text"], model="m")
        assert "--tokenizer" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "kind", "match"),
    [(503, EndpointUnreachable, "HTTP 503"), (400, EndpointMisconfigured, "too long")],
)
async def test_passing_trouble_is_tried_again_and_what_stays_is_an_error(
    server: ScriptedServer, opened: Open, status: int, kind: type[QualabError], match: str
) -> None:
    server.answer(vllm_tokenize, reply("", status=503), reply({"tokens": None}), vllm_tokenize)
    async with opened() as endpoint:
        assert await endpoint.tokenize(["ab"], model="m") == [codes("ab")]
    assert len(server.seen) == 4
    server.answer(vllm_tokenize, reply({"error": {"message": "too long"}}, status=status))
    async with opened(max_attempts=2, concurrency=4) as endpoint:
        with pytest.raises(kind, match=match):
            await endpoint.tokenize(["ab"] * 20, model="m")


def test_a_tokenizer_by_file_and_by_directory_and_what_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word tokenizer that would add special tokens, cut and pad if it were let."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {"<s>": 0, "<unk>": 1, "a": 2, "b": 3, "c": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=6)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for name in (tmp_path / "tokenizer.json", tmp_path):
        assert named_tokenizer(str(name))(["a b c a", "", "b x"]) == [[2, 3, 4, 2], [], [3, 1]]
    monkeypatch.chdir(tmp_path)
    for name in ("nowhere/at-all", "/no/such/dir/tokenizer.json", ".."):
        with pytest.raises(ScoringUnavailable, match="No tokenizer") as caught:
            named_tokenizer(name)
        assert "tokenizer.json" in caught.value.hint
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "None"}}')
    with pytest.raises(InvalidValue, match="is not a tokenizer"):
        named_tokenizer(".")

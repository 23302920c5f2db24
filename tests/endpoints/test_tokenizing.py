from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from qualab.endpoints.client import named_tokenizer
from qualab.errors import EndpointMisconfigured, EndpointUnreachable, InvalidValue, QualabError, ScoringUnavailable
from tests.endpoints.conftest import Open
from tests.endpoints.scripted import ScriptedServer, reply


def codes(text: str) -> list[int]:
    return [ord(character) for character in text]


async def vllm_tokenize(request: web.Request) -> web.Response:
    asked = json.loads(await request.read())
    if asked.get("model") != "m" or asked.get("add_special_tokens") is not False or "prompt" not in asked:
        return web.json_response({"error": {"message": "Field required"}}, status=400)
    await asyncio.sleep(0.001 * (len(asked["prompt"]) % 3))
    return web.json_response({"count": 1, "tokens": codes(asked["prompt"])})


async def llama_tokenize(request: web.Request) -> web.Response:
    asked = json.loads(await request.read())
    assert asked.get("add_special", False) is False
    return web.json_response({"tokens": codes(asked.get("content", ""))})


@pytest.mark.parametrize("route", [vllm_tokenize, llama_tokenize])
async def test_both_servers_forms_are_spoken(server: ScriptedServer, opened: Open, route: Any) -> None:
    texts = ["two words", "", "한국어", "\ud800 half", *(f"text {n}" * (n % 5) for n in range(40))]
    server.routes = {("POST", "/gate/tokenize"): route}
    async with opened(url=f"{server.url}/gate/v1", concurrency=4) as endpoint:
        assert await endpoint.tokenize(texts, model="m") == [codes(text) for text in texts]
        assert await endpoint.tokenize([], model="m") == []
    assert server.most_in_flight <= 4


async def test_a_server_that_does_not_tokenize(server: ScriptedServer, opened: Open) -> None:
    for answer in (reply({"detail": "Not Found"}, status=404), reply({"tokens": []}), reply("<html>"), reply([1])):
        server.script(answer)
        async with opened() as endpoint:
            with pytest.raises(EndpointMisconfigured, match="does not tokenize") as caught:
                await endpoint.tokenize(["text"], model="m")
        assert "--tokenizer" in caught.value.hint


async def test_passing_trouble_is_tried_again(server: ScriptedServer, opened: Open) -> None:
    server.script(vllm_tokenize, reply("", status=503), reply({"tokens": None}), vllm_tokenize)
    async with opened() as endpoint:
        assert await endpoint.tokenize(["ab"], model="m") == [codes("ab")]
    assert len(server.seen) == 4


async def test_trouble_that_stays_is_an_error(server: ScriptedServer, opened: Open) -> None:
    refusals: list[tuple[Any, type[QualabError], str]] = [
        (reply("", status=503), EndpointUnreachable, "HTTP 503"),
        (reply({"error": {"message": "too long"}}, status=400), EndpointMisconfigured, "too long"),
    ]
    for step, kind, match in refusals:
        server.script(vllm_tokenize, step)
        async with opened(max_attempts=2, concurrency=4) as endpoint:
            with pytest.raises(kind, match=match):
                await endpoint.tokenize(["ab"] * 20, model="m")


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """A word tokenizer that would add special tokens, cut and pad if it were let."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {"<s>": 0, "<unk>": 1, "a": 2, "b": 3, "c": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=6)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_tokenizer_by_file_and_by_directory(tokenizer_file: Path) -> None:
    for name in (tokenizer_file, tokenizer_file.parent):
        assert named_tokenizer(str(name))(["a b c a", "", "b x"]) == [[2, 3, 4, 2], [], [3, 1]]


def test_what_is_no_tokenizer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("nowhere/at-all", "/no/such/dir/tokenizer.json", "."):
        with pytest.raises(ScoringUnavailable, match="No tokenizer") as caught:
            named_tokenizer(name)
        assert "tokenizer.json" in caught.value.hint
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "None"}}')
    with pytest.raises(InvalidValue, match="is not a tokenizer"):
        named_tokenizer(".")

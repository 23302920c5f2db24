"""Scoring a given text by each engine's form: bodies recorded on real servers, and what is not believed."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from aiohttp import web

from qualab.endpoints.scoring import FORMS
from qualab.errors import EndpointUnreachable, QualabError, ScoringUnavailable
from qualab.model.audit import Scoring, TokenScores, unpack_ids
from qualab.model.items import Request
from qualab.model.names import Api, ScoringForm
from tests.endpoints.conftest import Open, models
from tests.scripted_server import ScriptedServer, Step, reply

RECORDED = Path(__file__).parent / "recorded"
CHAT = {"messages": [{"role": "user", "content": "What is 2+3?"}], "max_tokens": 12, "temperature": 0.0}
COMPLETION = {"prompt": "한국의 수도는", "max_tokens": 6, "temperature": 1.0}
AN = (183, 239, 226)  # the three bytes of a Korean letter
FORM = {
    "vllm": Scoring(form=ScoringForm.PROMPT_LOGPROBS, vocabulary=49152),
    "llama": Scoring(form=ScoringForm.TOKEN_BY_TOKEN, vocabulary=49152, most_tokens=500),
}


def rows(scored: TokenScores) -> list[tuple[float, float, int]]:
    return [(round(own, 3), round(top, 3), rank) for own, top, rank in struct.iter_unpack("<ffI", scored.scores)]


def replay(kind: str, server: ScriptedServer) -> None:
    """Answers each request as the real server answered this very body."""
    exchanges = json.loads((RECORDED / f"scoring_{kind}.json").read_text())
    answers = {(one["path"], orjson.dumps(one["request"])): one for one in exchanges}

    async def step(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        one = answers[request.path, orjson.dumps(orjson.loads(body) if body else None)]
        return web.json_response(one["response"], status=one["status"])

    server.answer(step)


def asked(api: Api, payload: dict[str, Any]) -> Request:
    return Request(choice=0, api=api, payload={"model": "smollm2", **payload, "seed": 4, "return_token_ids": True})


@pytest.mark.parametrize(
    ("kind", "sampled", "an"),
    [
        (
            "vllm",
            [(216, 3), (33, 1), (35, 8), (18601, 10), (220, 27), (251, 1)],
            [(-14.084, -1.834, 11841), (-3.298, -2.673, 10), (-1.51, -1.51, 2)],  # the last is a tie
        ),
        (
            "llama",
            [(476, 6), (33, 2), (37, 7), (30, 6), (37, 4), (18, 1)],
            [(-4.349, -1.997, 9), (-3.344, -2.563, 8), (-1.598, -1.578, 3)],  # the first is withheld and not listed
        ),
    ],
)
async def test_real_answers_are_scored(
    server: ScriptedServer, opened: Open, kind: str, sampled: list[tuple[int, int]], an: list[tuple[float, float, int]]
) -> None:
    replay(kind, server)
    async with opened() as endpoint:
        scoring = await endpoint.scoring(model="smollm2")
        assert scoring == FORM[kind]
        for api, payload in ((Api.CHAT, CHAT), (Api.COMPLETIONS, COMPLETION)):
            request = asked(api, payload)
            got = await endpoint.ask(request, orjson.dumps(request.payload))
            prompt = await endpoint.prompt_ids(request, model="smollm2")
            again = await endpoint.answer_ids(got.text or "", model="smollm2")
            assert len(prompt) == got.prompt_tokens
            assert again is not None
            ids = unpack_ids(got.token_ids) if got.token_ids else again
            assert (got.token_ids is not None) is (kind == "vllm")
            scored = await endpoint.score(prompt, ids, model="smollm2", scoring=scoring)
            assert ids[: len(again)] == again
            assert "".join(scored.pieces.texts).removesuffix("<|im_end|>") == got.text
            if api is Api.CHAT:
                assert all(own == top and rank == 1 for own, top, rank in rows(scored))
                assert not scored.pieces.choices
            else:
                assert [(token, rank) for token, (_, _, rank) in zip(ids, rows(scored), strict=True)] == sampled
                assert set(scored.pieces.choices) == {place for place, (_, rank) in enumerate(sampled) if rank > 1}
        assert rows(await endpoint.score((1, 9690, 198), AN, model="smollm2", scoring=scoring)) == an
        assert await endpoint.answer_ids("한\n글", model="smollm2") == (33085, 246, 198, 181, 133, 218)
        assert await endpoint.answer_ids("", model="smollm2") == ()


def vllm(*positions: Any) -> dict[str, Any]:
    return {"choices": [{"text": "x", "prompt_logprobs": list(positions)}]}


def at(*entries: tuple[int, float | None, int]) -> dict[str, Any]:
    return {
        str(token): {"logprob": value, "rank": rank, "decoded_token": f"t{token}"} for token, value, rank in entries
    }


def sglang(*entries: tuple[int, float | None, int, float]) -> dict[str, Any]:
    own = [[None, 7, None]] + [[value, token, f"t{token}"] for token, value, _, _ in entries]
    top = [None] + [[[value, token, f"t{token}"]] for _, _, token, value in entries]
    return {"text": "", "meta_info": {"input_token_logprobs": own, "input_top_logprobs": top}}


def echo(own: list[float | None], tops: list[dict[str, float] | None]) -> dict[str, Any]:
    tokens = ["q", "a", "b", "."][: len(own)]
    return {"choices": [{"logprobs": {"tokens": tokens, "token_logprobs": own, "top_logprobs": tops}}]}


def llama(sampled: int, value: float, *listed: tuple[int, float]) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"id": token, "token": "" if token == 2 else f"t{token}", "bytes": [], "logprob": logprob}

    top = [entry(*one) for one in listed]
    return {"completion_probabilities": [{**entry(sampled, value), "top_logprobs": top}]}


def scored_by(form: ScoringForm) -> Scoring:
    return Scoring(form=form, vocabulary=None)


VLLM, SGLANG, LLAMA, ECHO = (
    ScoringForm.PROMPT_LOGPROBS,
    ScoringForm.GENERATE,
    ScoringForm.TOKEN_BY_TOKEN,
    ScoringForm.ECHO,
)


class Read(NamedTuple):
    """Answers of a server, in order, and what is read from them for token ids after a prompt of one token."""

    form: ScoringForm
    answers: list[Any]
    ids: tuple[int, ...]
    rows: list[tuple[float, float, int]]
    choices: dict[int, str]


BELOW, FIRST = (-3.0, -0.25, 2), (-0.5, -0.5, 1)
READ = (
    Read(VLLM, [vllm(None, at((8, -9999.0, 4711), (9, -0.5, 1)))], (8,), [(-9999.0, -0.5, 4711)], {0: "t9"}),
    Read(VLLM, [vllm(None, at((2, -0.5, 1)))], (2,), [FIRST], {}),
    Read(VLLM, [], (), [], {}),
    Read(SGLANG, [sglang((8, -0.5, 8, -0.5), (9, -3.0, 5, -0.25))], (8, 9), [FIRST, BELOW], {1: "t5"}),
    Read(
        ECHO, [echo([None, -0.5, -3.0], [None, {"a": -0.5}, {"c": -0.25, "b": -3.0}])], (8, 9), [FIRST, BELOW], {1: "c"}
    ),
    # a tie, a list without the token, and the added token
    Read(
        ECHO,
        [echo([None, -0.5, -3.0, -1.0], [None, {"a": -0.5, "c": -0.5}, {"c": -0.25}, {".": -1.0}])],
        (8, 9),
        [(-0.5, -0.5, 2), BELOW],
        {0: "a", 1: "c"},
    ),
    # not listed, and a special token
    Read(
        LLAMA,
        [llama(8, -8.0, (5, -0.5), (6, -1.0)), llama(2, -0.5, (2, -0.5), (6, -4.0))],
        (8, 2),
        [(-8.0, -0.5, 3), FIRST],
        {0: "t5"},
    ),
    # another token than the one that was to be sampled: the list bounds it
    Read(LLAMA, [llama(5, -0.5, (5, -0.5), (6, -1.0))], (8,), [(-1.0, -0.5, 3)], {0: "t5"}),
    # a token that was sampled, but has no log-probability of its own
    Read(LLAMA, [llama(8, 0.0, (5, -0.5), (6, -1.0))], (8,), [(-1.0, -0.5, 3)], {0: "t5"}),
    # withheld, and found in the longer list
    Read(LLAMA, [{}, llama(5, -0.5, (5, -0.5), (8, -1.0))], (8,), [(-1.0, -0.5, 2)], {0: "t5"}),
)


@pytest.mark.parametrize("read", READ)
async def test_each_form_is_read(server: ScriptedServer, opened: Open, read: Read) -> None:
    server.answer(*map(reply, read.answers))
    async with opened() as endpoint:
        scored = await endpoint.score((7,), read.ids, model="m", scoring=scored_by(read.form))
    assert rows(scored) == read.rows
    assert scored.pieces.choices == read.choices
    assert len(scored.pieces.texts) == len(read.ids)
    assert len(server.seen) == len(read.answers)


POSITIVE = vllm(None, at((8, 14.5, 2), (9, 15.0, 1)))  # --logprobs-mode raw_logits


@pytest.mark.parametrize(
    ("form", "answer", "words"),
    [
        (VLLM, vllm(None), "1 log-probabilities for 2 tokens"),
        (VLLM, vllm(None, None), "no log-probability of token 8 in place 0 of 1"),
        (VLLM, vllm(None, at((9, -0.5, 1))), "no log-probability of token 8"),
        (VLLM, vllm(None, at((8, None, 2), (9, -0.5, 1))), "no log-probability of token 8"),
        (VLLM, POSITIVE, "no log-probabilities"),
        (VLLM, {"choices": [{"text": "x"}]}, "no log-probability"),
        (VLLM, "not JSON", "no log-probability"),
        (SGLANG, sglang((9, -0.5, 9, -0.5)), "no log-probability of token 8"),
        (SGLANG, [], "no log-probability"),
        (LLAMA, {}, "no log-probabilities"),
        (ECHO, {"choices": [{"logprobs": None}]}, "no log-probability"),
        (ECHO, echo([-0.5], [{".": -0.5}]), "for 2 tokens"),  # of the answer alone: echo is ignored
    ],
)
async def test_nonsense_is_not_believed(
    server: ScriptedServer, opened: Open, form: ScoringForm, answer: Any, words: str
) -> None:
    server.answer(reply(answer))
    async with opened() as endpoint:
        with pytest.raises(ScoringUnavailable, match=words):
            await endpoint.score((7,), (8,), model="m", scoring=scored_by(form))


TOO_LONG = "This model's maximum context length is 2048 tokens. However, your prompt contains 2300 input tokens"
FINE = reply(vllm(None, at((8, -0.1, 1))))


@pytest.mark.parametrize(
    ("steps", "error", "n_asked"),
    [
        ([reply({"error": {"message": TOO_LONG}}, status=400)], ScoringUnavailable, 1),
        ([reply({"detail": "broken"}, status=500)], EndpointUnreachable, 2),
        ([reply({}, status=500), FINE], None, 2),
        ([reply({}, status=429, headers={"Retry-After": "3"})] * 3 + [FINE], None, 4),
    ],
)
async def test_scoring_has_the_attempts_of_asking(
    server: ScriptedServer, opened: Open, steps: list[Step], error: type[QualabError] | None, n_asked: int
) -> None:
    server.answer(*steps)
    async with opened(max_attempts=2) as endpoint:
        if error:
            with pytest.raises(error):
                await endpoint.score((7,), (8,), model="m", scoring=scored_by(VLLM))
        else:
            assert rows(await endpoint.score((7,), (8,), model="m", scoring=scored_by(VLLM))) == [(-0.1, -0.1, 1)]
    assert len(server.seen) == n_asked


def generates(body: dict[str, Any]) -> dict[str, Any]:
    start, ids = body["logprob_start_len"], body["input_ids"]
    return sglang(*((token, -0.5, token, -0.5) for token in ids[start + 1 :]))


def echoes(body: dict[str, Any]) -> dict[str, Any]:
    if not body.get("echo"):
        return {"choices": [{"text": "x"}]}
    names = [f"t{token}" for token in body["prompt"]] + ["."]
    values = [None] + [-0.5] * (len(names) - 1)
    tops = [None, *({name: -0.5} for name in names[1:])]
    return {"choices": [{"logprobs": {"tokens": names, "token_logprobs": values, "top_logprobs": tops}}]}


CAPPED = reply(
    {"error": {"message": "Requested prompt logprobs of 1, which is greater than max allowed: 0"}}, status=400
)


@pytest.mark.parametrize(
    ("path", "answers", "expected"),
    [
        ("/generate", generates, scored_by(SGLANG)),
        ("/v1/completions", echoes, scored_by(ECHO)),
        ("/v1/completions", lambda _: {"choices": [{"text": "x"}]}, None),
        ("/v1/completions", lambda body: vllm(None, *[None] * len(body["prompt"][1:])), None),
        ("/v1/completions", CAPPED, None),
    ],
)
async def test_a_form_counts_where_values_come_back(
    server: ScriptedServer, opened: Open, path: str, answers: Any, expected: Scoring | None
) -> None:
    async def step(request: web.Request) -> web.StreamResponse:
        return web.json_response(answers(await request.json()))

    server.routes["GET", "/v1/models"] = reply(models("m"))
    server.routes["POST", path] = CAPPED if answers is CAPPED else step
    async with opened() as endpoint:
        assert await endpoint.scoring(model="m") == expected
    tried = [seen.path for seen in server.seen if seen.method == "POST"]
    assert tried == [FORMS[form].url.format(api="/v1", root="") for form in FORMS][: len(tried)]


async def test_a_server_that_is_gone_is_no_server_that_cannot_score(opened: Open, server: ScriptedServer) -> None:
    async def gone(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    server.routes["GET", "/v1/models"] = reply(models("m"))
    server.answer(gone)
    async with opened(max_attempts=1) as endpoint:
        with pytest.raises(EndpointUnreachable):
            await endpoint.scoring(model="m")


async def test_token_by_token_takes_one_answer_after_the_other(server: ScriptedServer, opened: Open) -> None:
    async def step(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.005)
        token = (await request.json())["logit_bias"][0][0]
        return web.json_response(llama(token, -0.5, (token, -0.5)))

    server.answer(step)
    async with opened(concurrency=4) as endpoint:
        texts = ((1, 2, 3), (4, 5, 6))
        await asyncio.gather(*(endpoint.score((7,), ids, model="m", scoring=scored_by(LLAMA)) for ids in texts))
    prompts = [orjson.loads(seen.body)["prompt"] for seen in server.seen]
    assert prompts in ([[7, *ids[:n]] for ids in order for n in range(3)] for order in (texts, texts[::-1]))


@pytest.mark.parametrize(
    ("api", "payload", "body"),
    [
        (Api.COMPLETIONS, {"prompt": [5, 6]}, None),
        (Api.COMPLETIONS, {"prompt": "q", "stop": ["x"]}, {"prompt": "q", "add_special_tokens": True}),
        (Api.COMPLETIONS, {"prompt": "q", "add_special_tokens": False}, {"prompt": "q", "add_special_tokens": False}),
        (Api.CHAT, {"messages": [], "tools": [{}]}, {"messages": [], "tools": [{}]}),
        (
            Api.CHAT,
            {"messages": [], "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            {
                "messages": [],
                "reasoning_effort": "low",
                "chat_template_kwargs": {"reasoning_effort": "low", "enable_thinking": False},
            },
        ),
    ],
)
async def test_a_prompt_is_tokenized_as_its_route_does(
    server: ScriptedServer, opened: Open, api: Api, payload: dict[str, Any], body: dict[str, Any] | None
) -> None:
    server.routes["POST", "/tokenize"] = reply({"tokens": [5, 6]})
    async with opened() as endpoint:
        assert await endpoint.prompt_ids(Request(choice=0, api=api, payload=payload), model="m") == (5, 6)
    sent = [orjson.loads(seen.body) for seen in server.seen[1:]]
    assert sent == ([{"model": "m", **body}] if body else [])


async def test_what_cannot_be_tokenized_is_said(server: ScriptedServer, opened: Open) -> None:
    request = Request(choice=0, api=Api.CHAT, payload={"messages": []})
    async with opened() as endpoint:
        with pytest.raises(ScoringUnavailable, match="does not tokenize"):
            await endpoint.prompt_ids(request, model="m")
        server.routes["POST", "/tokenize"] = reply({"tokens": [5, 6]})
        server.routes["POST", "/detokenize"] = reply({"text": "other"})
        assert await endpoint.answer_ids("text", model="m") is None
        server.routes["POST", "/tokenize"] = reply({"message": "'prompt' is missing"}, status=400)  # an older SGLang
        with pytest.raises(ScoringUnavailable, match="'prompt' is missing"):
            await endpoint.prompt_ids(request, model="m")

"""Log-likelihoods: lm-eval's numbers, and servers that cannot give them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from qualab.model.canonical import encode_body
from qualab.model.items import loglikelihood_request
from qualab.model.names import AnswerStatus
from tests.endpoints.conftest import Open
from tests.endpoints.scripted import FakeTime, ScriptedServer, reply

TOKENS = [11, 12, 13, 14, 15, 16]
CONTEXT = 3
REQUEST = loglikelihood_request(choice=0, context_ids=TOKENS[:CONTEXT], whole_ids=TOKENS, model="m")
BODY = encode_body(REQUEST.payload, seed=1)


def echoed(of_tokens: list[Any], tops: list[Any] | None = None, *, finish_reason: str = "length") -> dict[str, Any]:
    if tops is None:
        tops = [None if value is None else {"tok": value} for value in of_tokens]
    logprobs = {"token_logprobs": of_tokens, "top_logprobs": tops, "tokens": ["t"] * len(of_tokens)}
    choice = {"index": 0, "text": "x", "logprobs": logprobs, "finish_reason": finish_reason}
    return {"choices": [choice], "usage": {"prompt_tokens": 6, "completion_tokens": 1}}


def drawn(rng: random.Random, *, greedy: bool) -> dict[str, Any]:
    of_tokens = [None, *(-rng.expovariate(0.7) for _ in TOKENS)]
    tops: list[Any] = [None, *({"a": value, "b": value - 1} for value in of_tokens[1:] if value is not None)]
    if not greedy:
        tops[CONTEXT + 1]["c"] = -1e-9
    return echoed(of_tokens, tops)


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("seed", range(5))
async def test_sum_and_greediness_are_lm_evals(server: ScriptedServer, opened: Open, seed: int, greedy: bool) -> None:
    openai_completions = pytest.importorskip("lm_eval.models.openai_completions")
    body = drawn(random.Random(seed), greedy=greedy)
    server.script(reply(body))
    async with opened() as endpoint:
        got = await endpoint.ask(REQUEST, BODY)
    (expected,) = openai_completions.LocalCompletionsAPI.parse_logprobs(json.loads(json.dumps(body)), ctxlens=[CONTEXT])
    assert (got.loglikelihood, got.is_greedy) == expected
    assert got.is_greedy is greedy
    assert (got.status, got.text, got.prompt_tokens, got.finish_reason) == (AnswerStatus.OK, None, 6, "length")


async def test_only_the_continuation_counts(server: ScriptedServer, opened: Open) -> None:
    server.script(reply(echoed([None, -9, -9, -1, -2, -4.5, -9], finish_reason="stop")))
    async with opened() as endpoint:
        got = await endpoint.ask(REQUEST, BODY)
    assert (got.status, got.loglikelihood, got.is_greedy) == (AnswerStatus.OK, -7.5, True)


async def test_a_likelier_token_in_the_context_does_not_matter(server: ScriptedServer, opened: Open) -> None:
    body = echoed([None, -9, -9, -1, -2, -4.5, -9])
    body["choices"][0]["logprobs"]["top_logprobs"][2]["better"] = -0.1
    body["choices"][0]["logprobs"]["top_logprobs"][6]["better"] = -0.1
    server.script(reply(body))
    async with opened() as endpoint:
        assert (await endpoint.ask(REQUEST, BODY)).is_greedy is True


WRONG = {
    "a token too few": (echoed([None, -1, -1, -1, -1, -1]), "6 token_logprobs"),
    "a token too many": (echoed([None, -1, -1, -1, -1, -1, -1, -1]), "8 token_logprobs"),
    "a null in the continuation": (echoed([None, -1, -1, -1, None, -1, -1], [None, *[{"a": -1}] * 6]), "missing"),
    "tops that do not match": (echoed([None, -1, -1, -1, -1, -1, -1], [None, {"a": -1}]), "top_logprobs"),
    "an empty top": (echoed([None, -1, -1, -1, -1, -1, -1], [None, *[{}] * 6]), "missing"),
    "no tops": (echoed([None, -1, -1, -1, -1, -1, -1], [None] * 7), "missing"),
}


@pytest.mark.parametrize("name", list(WRONG))
async def test_numbers_that_do_not_fit_are_a_bad_body(server: ScriptedServer, opened: Open, name: str) -> None:
    body, reason = WRONG[name]
    server.script(reply(body))
    async with opened(max_attempts=2) as endpoint:
        got = await endpoint.ask(REQUEST, BODY)
    assert (got.status, got.attempts, got.loglikelihood) == (AnswerStatus.BAD_BODY, 2, None)
    assert reason in got.error


LLAMA_CPP = {
    "choices": [
        {
            "text": "1",
            "index": 0,
            "logprobs": {"content": [{"id": 33, "token": "1", "logprob": -1.1, "top_logprobs": []}]},
            "finish_reason": "length",
        }
    ]
}
CANNOT = {
    "llama.cpp's form": (LLAMA_CPP, "ignores echo"),
    "the answer's token alone": (echoed([-1.0]), "ignores echo"),
    "null logprobs": ({"choices": [{"text": "1", "logprobs": None, "finish_reason": "length"}]}, "no log-prob"),
}


@pytest.mark.parametrize("name", list(CANNOT))
async def test_a_server_that_cannot_is_found_out_at_once(
    server: ScriptedServer, opened: Open, fake_time: FakeTime, name: str
) -> None:
    body, reason = CANNOT[name]
    server.script(reply(body))
    async with opened() as endpoint:
        got = await endpoint.ask(REQUEST, BODY)
    assert (got.status, got.attempts) == (AnswerStatus.BAD_BODY, 1)
    assert reason in got.error
    assert fake_time.slept == []

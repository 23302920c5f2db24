"""Streamed answers: times and counts of tokens, and what each kind of failure becomes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from qualab.endpoints.client import HttpEndpoint
from qualab.endpoints.replicas import Replicas
from qualab.endpoints.streaming import Streamed
from qualab.model.canonical import encode_body
from qualab.model.items import Request
from qualab.model.names import AnswerStatus, Api
from qualab.model.plan import RequestPolicy
from tests.scripted_server import ScriptedServer, reply
from tests.streaming_server import StreamingServer, Streams

OK, TRUNCATED, BAD = AnswerStatus.OK, AnswerStatus.TRUNCATED, AnswerStatus.BAD_BODY


def request_of(api: Api = Api.COMPLETIONS, *, prompt: str = "Once upon a time", max_tokens: int = 12) -> Request:
    said = {"prompt": prompt} if api is Api.COMPLETIONS else {"messages": [{"role": "user", "content": prompt}]}
    payload = {"model": "scripted", **said, "max_tokens": max_tokens, "temperature": 0}
    return Request(choice=0, api=api, payload=payload)


def opened(url: str, *, timeout_s: float = 5.0) -> HttpEndpoint:
    return HttpEndpoint(url, policy=RequestPolicy(timeout_s=timeout_s), key="sk-secret-key")


async def stream(url: str, api: Api = Api.COMPLETIONS, *, timeout_s: float = 5.0, **options: Any) -> Streamed:
    request = request_of(api, **options)
    async with opened(url, timeout_s=timeout_s) as endpoint:
        return await endpoint.stream(request, encode_body(request.payload, seed=1))


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize(
    ("knobs", "is_counted"),
    [
        ({}, True),
        ({"has_token_ids": False}, True),
        ({"tokens_per_chunk": 2}, True),
        ({"tokens_per_chunk": 2, "has_token_ids": False}, True),
        ({"tokens_per_chunk": 3, "events_per_token": True, "has_token_ids": False, "has_usage": False}, False),
        ({"has_token_ids": False, "has_usage": False}, False),
        ({"refuses": ("return_token_ids",)}, True),
        ({"refuses": ("stream_options", "return_token_ids")}, False),
        ({"thinks": 5}, True),
    ],
)
async def test_every_token_has_its_time(api: Api, knobs: dict[str, Any], is_counted: bool) -> None:
    with StreamingServer(Streams(tokens_per_s=50, first_token_s=0.1, **knobs)) as server:
        streamed = await stream(server.url, api)
    times, gaps = streamed.times, streamed.gaps_s
    assert (times.status, times.n_tokens, times.is_counted, times.error) == (TRUNCATED, 12, is_counted, "")
    assert times.first_token_s is not None
    assert 0.09 < times.first_token_s < 1.0
    assert len(gaps) == 11
    assert sum(gaps) == pytest.approx(times.latency_s - times.first_token_s, abs=0.1)
    assert sorted(gaps)[6] == pytest.approx(0.02, abs=0.012)
    assert times.prompt_tokens == (4 if server.script.has_usage and is_counted else None)
    assert server.seen[-1][1]["stream"] is True


FAULTS: dict[str, tuple[dict[str, Any], AnswerStatus, str, int]] = {
    "stops": ({"stops_after": 6}, BAD, "ended early", 6),
    "ends without an end": ({"stops_after": 6, "ends_quietly": True}, BAD, "stopped in the middle", 6),
    "an error in the stream": ({"error_after": 6}, BAD, "EngineCore died", 6),
    "silence": ({"silent_after": 6}, AnswerStatus.TIMEOUT, "in the time allowed", 6),
    "hangs": ({"hangs_above": 2}, AnswerStatus.TIMEOUT, "in the time allowed", 0),
    "too long": ({"refuses_above": 2, "told_factor": 2.0}, AnswerStatus.REJECTED, "the prompt has 8 tokens", 0),
    "fails": ({"fails_above": 2}, AnswerStatus.HTTP_ERROR, "HTTP 500: CUDA out of memory", 0),
    "dies": ({"dies_above": 2}, AnswerStatus.CONNECTION_ERROR, "closed the connection|reset", 0),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_failure_keeps_what_came_before_it(fault: str) -> None:
    knobs, status, error, n_tokens = FAULTS[fault]
    with StreamingServer(Streams(tokens_per_s=200, **knobs)) as server:
        streamed = await stream(server.url, timeout_s=0.5)
    times = streamed.times
    assert (times.status, times.n_tokens, len(streamed.gaps_s)) == (status, n_tokens, max(0, n_tokens - 1))
    assert re.search(error, times.error), times.error
    assert (times.first_token_s is None) is (n_tokens == 0)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (reply({"choices": [{"text": "whole"}]}), "does not stream"),
        (reply({"error": {"message": "busy with sk-secret-key"}}), r"does not stream.*busy with \[key\]"),
        (reply("data: {broken\n\n"), "not JSON"),
        (reply('error: {"message": "slot is gone"}\n\n'), "slot is gone"),
        (reply("data: [1]\n\n"), r"error: \[1\]"),
        (reply({}, status=302, headers={"Location": "/elsewhere"}), "HTTP 302"),
    ],
)
async def test_what_is_no_stream_is_named(step: Any, error: str) -> None:
    with ScriptedServer() as server:
        server.routes[("POST", "/v1/completions")] = step
        times = (await stream(server.url)).times
    assert times.status in (BAD, AnswerStatus.HTTP_ERROR)
    assert re.search(error, times.error), times.error
    assert times.n_tokens == 0


async def test_cached_tokens_by_usage_or_timings() -> None:
    events = (
        'data: {"choices": [{"text": "a"}]}\n\ndata: {"choices": [], "timings": {"cache_n": 7}}\n\ndata: [DONE]\n\n'
    )
    with StreamingServer() as server, ScriptedServer() as llama:
        prompt = "the same words again and again " * 20
        told = [(await stream(server.url, prompt=prompt)).times.cached_tokens for _ in range(2)]
        llama.routes[("POST", "/v1/completions")] = reply(events)
        assert (await stream(llama.url)).times.cached_tokens == 7
    assert told == [0, 176]


async def test_the_address_that_was_checked_is_the_one_that_is_used() -> None:
    request = request_of()
    with StreamingServer() as server:
        url = f"http://not-in-any-dns.test:{server.port}/v1"
        async with HttpEndpoint(url, policy=RequestPolicy(), key=None, address="127.0.0.1") as endpoint:
            streamed = await endpoint.stream(request, encode_body(request.payload, seed=1))
    assert streamed.times.status is TRUNCATED


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://127.0.0.1:9", "the connection failed (Connection refused)"),
        ("http://nowhere.invalid", "its host name cannot be resolved"),
        ("https://127.0.0.1:{port}", "TLS failed"),
    ],
)
async def test_no_connection(url: str, error: str) -> None:
    with ScriptedServer() as server:
        times = (await stream(url.format(port=server.port))).times
    assert (times.status, times.error) == (AnswerStatus.CONNECTION_ERROR, error)


async def test_a_dead_replica_is_left_out() -> None:
    request = request_of()
    body = encode_body(request.payload, seed=1)
    with StreamingServer() as dying, StreamingServer() as living:
        dying.script.dies_above = 0
        async with opened(dying.url) as first, opened(living.url) as second:
            arm = Replicas([first, second])
            statuses = [(await arm.stream(request, body)).times.status for _ in range(4)]
    assert statuses.count(AnswerStatus.CONNECTION_ERROR) == 1
    assert statuses.count(TRUNCATED) == 3
    assert len(living.seen) == 3

"""One request with its attempts: what each kind of answer, and each kind of failure, becomes."""

from __future__ import annotations

import asyncio
import gzip
import os
import resource
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from qualab.endpoints.client import HttpEndpoint
from qualab.endpoints.transport import Timing
from qualab.errors import InvalidValue
from qualab.model.items import Drafted
from qualab.model.names import AnswerStatus
from qualab.model.plan import RequestPolicy
from tests.endpoints.conftest import Open
from tests.endpoints.scripted import (
    CHAT,
    COMPLETION,
    START,
    FakeTime,
    ScriptedServer,
    after,
    chat,
    completion,
    reply,
    slow_body,
    wire,
)

OK = reply(completion("fine"))


async def test_an_answer_is_recorded_with_all_that_came_along(server: ScriptedServer, opened: Open) -> None:
    server.script(reply(completion("42")))
    async with opened() as endpoint:
        got = await endpoint.ask(COMPLETION, b'{"prompt":"q"}')
    assert (got.status, got.text, got.finish_reason, got.error) == (AnswerStatus.OK, "42", "stop", "")
    assert (got.prompt_tokens, got.completion_tokens, got.system_fingerprint) == (7, 3, "fp-1")
    assert (got.attempts, got.sent_at) == (1, START)
    assert (got.loglikelihood, got.is_greedy, got.reasoning_characters) == (None, None, 0)


async def test_the_bytes_go_out_as_they_are_on_the_routes_of_the_api(server: ScriptedServer, opened: Open) -> None:
    server.script(OK, reply(chat({"content": "hi"})))
    body = '{"prompt": "한국어",  "odd":1}'.encode()
    async with opened(url=f"{server.url}/gate/v1") as endpoint:
        await endpoint.ask(COMPLETION, body)
        assert (await endpoint.ask(CHAT, body)).text == "hi"
    assert [(seen.method, seen.path, seen.body) for seen in server.seen] == [
        ("POST", "/gate/v1/completions", body),
        ("POST", "/gate/v1/chat/completions", body),
    ]
    assert server.seen[0].headers["Content-Type"] == "application/json"
    assert "Authorization" not in server.seen[0].headers


@pytest.mark.parametrize("said", [-1, 2**31, 2**64 - 1, True, 7.5, "7", None])
async def test_a_count_of_tokens_that_cannot_be_is_none(server: ScriptedServer, opened: Open, said: Any) -> None:
    server.script(reply({**completion("42"), "usage": {"prompt_tokens": said, "completion_tokens": 3}}))
    async with opened() as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}")
    assert (got.text, got.prompt_tokens, got.completion_tokens) == ("42", None, 3)


@pytest.mark.parametrize(
    ("text", "finish_reason", "status"),
    [
        ("", "stop", AnswerStatus.OK),
        ("half", "length", AnswerStatus.TRUNCATED),
        ("", "length", AnswerStatus.TRUNCATED),
        ("done", None, AnswerStatus.OK),
        ("done", ["stop"], AnswerStatus.OK),
        ("done", {"type": "stop"}, AnswerStatus.OK),
    ],
)
async def test_how_a_text_ended(
    server: ScriptedServer, opened: Open, text: str, finish_reason: Any, status: AnswerStatus
) -> None:
    server.script(reply(completion(text, finish_reason=finish_reason)))
    async with opened() as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}")
    assert (got.status, got.text, got.finish_reason) == (status, text, str(finish_reason or ""))


@pytest.mark.parametrize(
    ("message", "finish_reason", "expected"),
    [
        ({"content": "A"}, "stop", (AnswerStatus.OK, "A", 0)),
        ({"content": ""}, "stop", (AnswerStatus.OK, "", 0)),
        ({"content": "A", "reasoning_content": "hmm"}, "stop", (AnswerStatus.OK, "A", 3)),
        ({"content": "A", "reasoning_content": None, "reasoning": ""}, "length", (AnswerStatus.TRUNCATED, "A", 0)),
        ({"content": None, "reasoning_content": "hmm"}, "length", (AnswerStatus.NO_FINAL_ANSWER, None, 3)),
        ({"content": "", "reasoning": "hmm, so"}, "stop", (AnswerStatus.NO_FINAL_ANSWER, None, 7)),
        ({"reasoning": "hmm"}, "stop", (AnswerStatus.NO_FINAL_ANSWER, None, 3)),
        ({"content": None, "reasoning": ""}, "length", (AnswerStatus.NO_FINAL_ANSWER, None, 0)),
    ],
)
async def test_content_and_reasoning_of_a_message(
    server: ScriptedServer,
    opened: Open,
    message: dict[str, Any],
    finish_reason: str,
    expected: tuple[AnswerStatus, str | None, int],
) -> None:
    server.script(reply(chat(message, finish_reason=finish_reason)))
    async with opened() as endpoint:
        got = await endpoint.ask(CHAT, b"{}")
    assert (got.status, got.text, got.reasoning_characters) == expected
    assert (got.attempts, got.error) == (1, "")


@pytest.mark.parametrize("message", [{"reasoning_content": "hmm"}, {"reasoning": "hmm"}])
@pytest.mark.parametrize("content", ["A", None])
async def test_reasoning_is_kept_under_either_of_its_names(
    server: ScriptedServer, opened: Open, message: dict[str, Any], content: str | None
) -> None:
    server.script(reply(chat({"content": content, **message}, finish_reason="length")))
    async with opened() as endpoint:
        got = await endpoint.ask(CHAT, b"{}")
    assert (got.text, got.reasoning) == (content, "hmm")


async def test_of_several_choices_the_one_with_index_0_is_read(server: ScriptedServer, opened: Open) -> None:
    def body(*choices: tuple[int, str]) -> dict[str, Any]:
        return {**completion(""), "choices": [completion(text)["choices"][0] | {"index": at} for at, text in choices]}

    server.script(reply(body((1, "second"), (0, "first"))), reply(body((3, "only"))), reply(body((1, "a"), (2, "b"))))
    async with opened(max_attempts=1) as endpoint:
        got = [await endpoint.ask(COMPLETION, b"{}") for _ in range(3)]
    assert [one.text for one in got] == ["first", "only", None]
    assert got[2].error == "none of the choices has index 0"


async def test_an_answer_that_a_filter_withholds_is_missing_and_not_asked_again(
    server: ScriptedServer, opened: Open
) -> None:
    server.script(reply(chat({"content": None}, finish_reason="content_filter")))
    async with opened() as endpoint:
        got = await endpoint.ask(CHAT, b"{}")
    assert (got.status, got.text, got.attempts) == (AnswerStatus.REJECTED, None, 1)
    assert "content_filter" in got.error


BAD_BODIES = {
    "error object in a 200": (reply({"error": {"message": "out of memory"}}), "out of memory"),
    "vLLM's old error form in a 200": (reply({"object": "error", "message": "boom"}), "boom"),
    "no choices": (reply({"object": "text_completion"}), "no choices"),
    "empty choices": (reply({"choices": []}), "no choices"),
    "null choices": (reply({"choices": None}), "no choices"),
    "a choice that is no object": (reply({"choices": ["x"]}), "not an object"),
    "null text": (reply(completion(None)), "no text"),
    "missing text": (reply({"choices": [{"index": 0}]}), "no text"),
    "text of another type": (reply({"choices": [{"text": 3}]}), "no text"),
    "not JSON": (reply("<html>oops</html>"), "not JSON"),
    "nothing": (reply(b""), "not JSON"),
    "half of a JSON": (reply('{"choices": [{"te'), "not JSON"),
    "another JSON": (reply("[1, 2]"), "not a JSON object"),
    "an aborted generation": (reply(completion("half", finish_reason="abort")), "abort"),
    "a body that ends early": (wire(b'HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{"choices"'), "ended early"),
    "a reset in the body": (
        wire(b'HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{"choices"', reset=True),
        "ended early",
    ),
    "chunks that end early": (
        wire(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"c\r\n'),
        "ended early",
    ),
    "a gzip stream that ends early": (
        reply(gzip.compress(b"{}" * 99)[:-9], headers={"Content-Encoding": "gzip"}),
        "ended early",
    ),
    "a broken chunk": (wire(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nxx"), ""),
    "not HTTP": (wire(b"SSH-2.0-OpenSSH_9.6\r\n"), "not HTTP"),
}


@pytest.mark.parametrize("name", list(BAD_BODIES))
async def test_a_bad_body_is_asked_again_and_said_where_it_stays(
    server: ScriptedServer, opened: Open, name: str
) -> None:
    step, reason = BAD_BODIES[name]
    server.script(step, step, step, OK)
    async with opened(max_attempts=2) as endpoint:
        stays, passes = [await endpoint.ask(COMPLETION, b"{}") for _ in range(2)]
    assert (stays.status, stays.text, stays.attempts) == (AnswerStatus.BAD_BODY, None, 2)
    assert stays.error
    assert reason in stays.error
    assert (passes.status, passes.text, passes.attempts) == (AnswerStatus.OK, "fine", 2)
    assert len(server.seen) == 4


@pytest.mark.parametrize("message", [{"content": None}, {}, {"content": ["a"]}, {"content": None, "reasoning": None}])
async def test_a_message_without_content_is_a_bad_body(
    server: ScriptedServer, opened: Open, message: dict[str, Any]
) -> None:
    server.script(reply(chat(message)))
    async with opened(max_attempts=2) as endpoint:
        got = await endpoint.ask(CHAT, b"{}")
    assert (got.status, got.attempts, got.error) == (AnswerStatus.BAD_BODY, 2, "the message has no content")


@pytest.mark.parametrize("status", [408, 409, 425, 500, 502, 503, 504])
async def test_passing_trouble_is_asked_again(server: ScriptedServer, opened: Open, status: int) -> None:
    server.script(reply({"error": {"message": "busy"}}, status=status), OK)
    async with opened() as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}")
    assert (got.status, got.attempts) == (AnswerStatus.OK, 2)


async def test_trouble_that_stays_names_status_and_message(server: ScriptedServer, opened: Open) -> None:
    server.script(reply({"error": {"message": "CUDA error"}}, status=500))
    async with opened(max_attempts=4) as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}")
    assert (got.status, got.attempts) == (AnswerStatus.HTTP_ERROR, 4)
    assert got.error == "HTTP 500: CUDA error"


@pytest.mark.parametrize("status", [301, 307, 401, 402, 403, 404, 405])
async def test_a_settled_refusal_is_not_asked_again(server: ScriptedServer, opened: Open, status: int) -> None:
    server.script(reply("<p>go\naway</p>", status=status, headers={"Location": "http://127.0.0.1:1/"}))
    async with opened() as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}")
    assert (got.status, got.attempts) == (AnswerStatus.HTTP_ERROR, 1)
    assert got.error == f"HTTP {status}: <p>go away</p>"


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "prompt too long", "type": "exceed_context_size_error"}},
        {"error": "prompt too long"},
        {"message": "prompt too long"},
        {"detail": [{"msg": "prompt too long"}]},
    ],
)
async def test_a_rejection_carries_the_servers_message(
    server: ScriptedServer, opened: Open, status: int, body: dict[str, Any]
) -> None:
    server.script(reply(body, status=status))
    async with opened() as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}")
    assert (got.status, got.attempts) == (AnswerStatus.REJECTED, 1)
    assert "prompt too long" in got.error
    assert got.error.startswith(f"HTTP {status}: ")


async def test_headers_that_are_no_text_do_not_matter(server: ScriptedServer, opened: Open) -> None:
    odd = wire(b"HTTP/1.1 503 Busy\r\nConnection: close\r\nRetry-After: \xff\xfe\r\nContent-Length: 0\r\n\r\n")
    server.script(odd, OK)
    async with opened() as endpoint:
        assert (await endpoint.ask(COMPLETION, b"{}")).attempts == 2


async def test_a_long_error_is_cut_to_one_line(server: ScriptedServer, opened: Open) -> None:
    server.script(reply("\x1b[31m" + "trace\n" * 10_000, status=400))
    async with opened() as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}")
    assert len(got.error) < 250
    assert got.error.isprintable()


@pytest.mark.parametrize("step", [after(5.0, OK), slow_body(5.0)], ids=["headers", "body"])
async def test_the_deadline_covers_headers_and_body(server: ScriptedServer, opened: Open, step: Any) -> None:
    server.script(step)
    started = time.perf_counter()
    async with opened(timeout_s=0.15, max_attempts=2) as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}")
    assert (got.status, got.attempts) == (AnswerStatus.TIMEOUT, 2)
    assert 0.25 < time.perf_counter() - started < 2.0


async def test_after_a_timeout_the_next_attempt_has_its_own_deadline(server: ScriptedServer, opened: Open) -> None:
    server.script(after(5.0, OK), after(0.15, OK))
    async with opened(timeout_s=0.25) as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}")
    assert (got.status, got.attempts) == (AnswerStatus.OK, 2)


async def test_waiting_for_a_slot_is_neither_deadline_nor_latency(server: ScriptedServer) -> None:
    server.script(after(0.15, OK))
    policy = RequestPolicy(concurrency=1, timeout_s=0.4, max_attempts=1)
    async with HttpEndpoint(server.url, policy=policy, key=None) as endpoint:
        replies = await asyncio.gather(*(endpoint.ask(COMPLETION, b"{}") for _ in range(5)))
    assert [got.status for got in replies] == [AnswerStatus.OK] * 5
    assert all(0.14 < got.latency_s < 0.4 for got in replies)
    assert server.most_in_flight == 1


async def test_no_more_requests_are_under_way_than_the_policy_says(server: ScriptedServer, opened: Open) -> None:
    server.script(after(0.02, OK))
    async with opened(concurrency=3) as endpoint:
        await asyncio.gather(*(endpoint.ask(COMPLETION, b"{}") for _ in range(12)))
    assert server.most_in_flight == 3
    assert len(server.peers) == 3, "connections are kept and used again"


async def test_a_pause_between_attempts_leaves_its_slot_to_others(server: ScriptedServer) -> None:
    server.script(reply("", status=503), OK)
    wake = asyncio.Event()

    async def sleep(_: float) -> None:
        await wake.wait()

    policy = RequestPolicy(concurrency=1, timeout_s=5.0)
    async with HttpEndpoint(server.url, policy=policy, key=None, timing=Timing(sleep=sleep)) as endpoint:
        pausing = asyncio.create_task(endpoint.ask(COMPLETION, b"{}"))
        while not server.seen:
            await asyncio.sleep(0.005)
        async with asyncio.timeout(2):
            assert (await endpoint.ask(COMPLETION, b"{}")).attempts == 1
        wake.set()
        assert (await pausing).attempts == 2


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 200 OK\r\nContent-"], ids=["at once", "in the headers"])
@pytest.mark.parametrize("reset", [False, True])
async def test_a_connection_that_breaks_before_the_answer(
    server: ScriptedServer, opened: Open, raw: bytes, reset: bool
) -> None:
    server.script(wire(raw, reset=reset))
    async with opened(max_attempts=2) as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}")
    assert (got.status, got.attempts) == (AnswerStatus.CONNECTION_ERROR, 2)
    assert "connection" in got.error


@pytest.fixture
def no_more_files() -> Iterator[None]:
    """This process may open no file beyond those it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.dup(0)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_no_file_left_for_a_connection(
    server: ScriptedServer, opened: Open, request: pytest.FixtureRequest
) -> None:
    server.script(reply(completion("first"), headers={"Connection": "close"}), OK)
    async with opened(max_attempts=1) as endpoint:
        await endpoint.ask(COMPLETION, b"{}")
        request.getfixturevalue("no_more_files")
        got = await endpoint.ask(COMPLETION, b"{}")
    assert got.status is AnswerStatus.CONNECTION_ERROR
    assert "ulimit -n" in got.error


async def test_nobody_listens(opened: Open, unused_tcp_port: int) -> None:
    async with opened(url=f"http://127.0.0.1:{unused_tcp_port}", max_attempts=3) as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}")
    assert (got.status, got.attempts, got.text) == (AnswerStatus.CONNECTION_ERROR, 3, None)
    assert "refused" in got.error


async def test_a_server_without_tls_on_an_https_url(server: ScriptedServer, opened: Open) -> None:
    server.script(OK)
    async with opened(url=server.url.replace("http:", "https:"), max_attempts=1) as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}")
    assert got.status is AnswerStatus.CONNECTION_ERROR
    assert "TLS" in got.error


async def test_pauses_grow_with_full_jitter(server: ScriptedServer, opened: Open, fake_time: FakeTime) -> None:
    server.script(reply("", status=500))
    async with opened(max_attempts=9, backoff_s=1.0, max_backoff_s=20.0) as endpoint:
        await endpoint.ask(COMPLETION, b"{}")
        await endpoint.ask(COMPLETION, b"{}")
    ceilings = [1, 2, 4, 8, 16, 20, 20, 20] * 2
    assert len(fake_time.slept) == 16
    assert all(0 <= pause <= ceiling for pause, ceiling in zip(fake_time.slept, ceilings, strict=True))
    assert fake_time.slept[:8] != fake_time.slept[8:], "drawn anew for each request"
    assert max(fake_time.slept) > 10
    assert min(fake_time.slept) < 1


async def test_retry_after_in_seconds_is_waited_for(server: ScriptedServer, opened: Open, fake_time: FakeTime) -> None:
    server.script(reply("", status=429, headers={"Retry-After": "7"}), OK)
    async with opened(backoff_s=0.5) as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}")
    assert got.attempts == 1
    assert 7.0 <= fake_time.slept[0] <= 7.5
    assert got.sent_at == START + timedelta(seconds=fake_time.slept[0])


@pytest.mark.parametrize(("status", "headers"), [(429, {}), (429, {"Retry-After": "1"}), (503, {"Retry-After": "0"})])
async def test_waiting_for_a_busy_server_uses_up_no_attempt(
    server: ScriptedServer, opened: Open, fake_time: FakeTime, status: int, headers: dict[str, str]
) -> None:
    busy, told = reply("", status=status, headers=headers), list[float]()
    server.script(busy, busy, reply("", status=500), *[busy] * 9, OK)
    async with opened(max_attempts=2) as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}", on_wait=told.append)
    assert (got.status, got.attempts, got.error) == (AnswerStatus.OK, 2, "")
    assert len(told) == 11
    assert len(fake_time.slept) == 12


async def test_a_server_that_stays_busy_fails_when_the_time_for_waiting_is_used_up(
    server: ScriptedServer, opened: Open, fake_time: FakeTime
) -> None:
    server.script(reply({"error": "slow down"}, status=429, headers={"Retry-After": "50"}))
    async with opened(max_wait_s=200.0, backoff_s=0.5) as endpoint:
        got = await endpoint.ask(COMPLETION, b"{}")
    assert (got.status, got.attempts) == (AnswerStatus.HTTP_ERROR, 1)
    assert got.error == "HTTP 429: slow down (after waiting as long as max_wait allows)"
    assert 150 <= fake_time.elapsed <= 200


async def test_without_time_for_waiting_a_busy_server_fails_at_once(
    server: ScriptedServer, opened: Open, fake_time: FakeTime
) -> None:
    server.script(reply("", status=429, headers={"Retry-After": "1"}))
    async with opened(max_wait_s=0.0) as endpoint:
        assert (await endpoint.ask(COMPLETION, b"{}")).status is AnswerStatus.HTTP_ERROR
    assert fake_time.slept == []


async def test_what_ask_was_given_is_cancelled_cleanly(server: ScriptedServer, opened: Open) -> None:
    server.script(after(30.0, OK), OK)
    async with opened(concurrency=1) as endpoint:
        waiting = asyncio.create_task(endpoint.ask(COMPLETION, b"{}"))
        while not server.seen:
            await asyncio.sleep(0.005)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(2):
            assert (await endpoint.ask(COMPLETION, b"{}")).status is AnswerStatus.OK, "its slot is free again"


async def test_cookies_are_not_kept(server: ScriptedServer, opened: Open) -> None:
    server.script(reply(completion("a"), headers={"Set-Cookie": "session=1; Path=/"}))
    # a name, because no client keeps the cookies of a bare address
    async with opened(url=server.url.replace("127.0.0.1", "localhost")) as endpoint:
        await endpoint.ask(COMPLETION, b"{}")
        await endpoint.ask(COMPLETION, b"{}")
    assert "Cookie" not in server.seen[1].headers


@pytest.mark.parametrize("name", ["concurrency", "timeout_s", "max_attempts"])
async def test_a_policy_that_cannot_be_is_refused(opened: Open, name: str) -> None:
    with pytest.raises(InvalidValue, match=name):
        async with opened(**{name: 0}):
            pass


@pytest.mark.parametrize(
    ("answer", "choice", "drafted"),
    [
        ({}, {}, None),
        ({"timings": {"draft_n": 9, "draft_n_accepted": 4}}, {}, Drafted(draft_tokens=9, accepted_tokens=4)),
        ({"timings": {"predicted_n": 3}}, {}, None),
        (
            {},
            {"meta_info": {"spec_num_proposed_drafts": 24, "spec_num_correct_drafts": 9, "spec_verify_ct": 8}},
            Drafted(draft_tokens=24, accepted_tokens=9),
        ),
        (
            {},
            {"meta_info": {"spec_draft_token_num": 6, "spec_accept_token_num": 3, "spec_accept_histogram": [0, 1, 1]}},
            Drafted(draft_tokens=6, accepted_tokens=3, rounds=(0, 1, 1)),
        ),
        ({}, {"meta_info": {"completion_tokens": 3}}, None),
        (
            {"sglext": {"spec_tokens_details": {"spec_num_proposed_drafts": 5, "spec_num_correct_drafts": 2}}},
            {},
            Drafted(draft_tokens=5, accepted_tokens=2),
        ),
        (
            {
                "usage": {
                    "completion_tokens_details": {"accepted_prediction_tokens": 7, "rejected_prediction_tokens": 5}
                }
            },
            {},
            Drafted(draft_tokens=12, accepted_tokens=7),
        ),
        (
            {
                "usage": {
                    "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
                }
            },
            {},
            None,
        ),
        (
            {"usage": {"completion_tokens": 30}},
            {"avg_decoded_tokens_per_iter": 2.5},
            Drafted(draft_tokens=None, accepted_tokens=18),
        ),
        (
            {"usage": {"completion_tokens": 30}},
            {"avg_decoded_tokens_per_iter": 1.0},
            Drafted(draft_tokens=None, accepted_tokens=0),
        ),
        ({"usage": {"completion_tokens": 30}}, {"avg_decoded_tokens_per_iter": None}, None),
    ],
)
async def test_what_an_answer_says_of_drafting(
    server: ScriptedServer, opened: Open, answer: dict[str, Any], choice: dict[str, Any], drafted: Drafted | None
) -> None:
    server.script(reply({**completion("42", **choice), **answer}))
    async with opened() as endpoint:
        assert (await endpoint.ask(COMPLETION, b"{}")).drafted == drafted


@pytest.mark.parametrize(("said", "model"), [("MODEL-B", "MODEL-B"), (None, ""), (7, ""), ("", "")])
async def test_the_model_that_an_answer_names_is_kept(
    server: ScriptedServer, opened: Open, said: object, model: str
) -> None:
    server.script(reply({**completion("42"), "model": said}))
    async with opened() as endpoint:
        assert (await endpoint.ask(COMPLETION, b"{}")).model == model

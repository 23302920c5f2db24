"""What is asked, and what an answer's body, and an HTTP status other than 200, are read as."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from qualab.endpoints.replies import error_message, read_reply, refusal, retry_after_s
from qualab.endpoints.transport import Exchange, Failure, Sending
from qualab.errors import BrokenTask, InvalidValue
from qualab.model.audit import pack_ids
from qualab.model.canonical import encode_body
from qualab.model.items import (
    Drafted,
    Prompt,
    Reply,
    Request,
    check_gen_kwargs,
    generation_request,
    loglikelihood_parts,
    loglikelihood_request,
)
from qualab.model.names import AnswerStatus, Api
from qualab.model.plan import SamplingPlan
from tests.endpoints.conftest import CHAT, COMPLETION, START, chat, completion

COMPLETIONS = SamplingPlan(model="m", api=Api.COMPLETIONS)

GEN_KWARGS: list[dict[str, Any]] = [
    {},
    {"until": ["Question:", "</s>"], "do_sample": False, "temperature": 0.0},
    {"until": "\n", "max_gen_toks": 32},
    {"until": [str(n) for n in range(6)], "max_tokens": 5, "temperature": 0.7, "top_p": 0.9, "do_sample": True},
    {"until": None, "max_gen_toks": 1280, "presence_penalty": 0.5},
]


def lm_eval_model(api: Api) -> Any:
    openai = pytest.importorskip("lm_eval.models.openai_completions")
    kind = openai.LocalChatCompletion if api is Api.CHAT else openai.LocalCompletionsAPI
    return kind(model="m", base_url="http://127.0.0.1:1", tokenizer_backend=None)


@pytest.mark.parametrize("gen_kwargs", GEN_KWARGS)
@pytest.mark.parametrize("api", list(Api))
def test_a_generation_asks_what_lm_eval_asks(api: Api, gen_kwargs: dict[str, Any]) -> None:
    is_chat = api is Api.CHAT
    question: Any = [{"role": "user", "content": "안녕"}] if is_chat else "1 + 1 ="
    text = json.dumps(question, ensure_ascii=False) if is_chat else question
    prompt = Prompt(text=text, is_chat=is_chat, gen_kwargs=gen_kwargs)
    request = generation_request(prompt, sampling=SamplingPlan(model="m", api=api))
    own = copy.deepcopy(gen_kwargs)
    expected = lm_eval_model(api)._create_payload(question, generate=True, gen_kwargs=own, seed=1234)
    if not expected["stop"]:
        del expected["stop"]
    assert json.loads(encode_body(request.payload, seed=1234)) == expected
    assert (request.api, request.choice, request.context_tokens) == (api, 0, None)


def test_bytes_are_utf8_without_spaces_whatever_the_order_and_a_lone_surrogate_is_an_escape() -> None:
    one = {"top_p": 0.5, "until": ["a"], "min_p": 0.1}
    for kwargs in (one, dict(reversed(one.items()))):
        before = dict(kwargs)
        payload = generation_request(Prompt(text="q", gen_kwargs=kwargs), sampling=COMPLETIONS).payload
        assert encode_body(payload, seed=1) == (
            b'{"prompt":"q","model":"m","max_tokens":256,"temperature":0,"stop":["a"],"min_p":0.1,"top_p":0.5,"seed":1}'
        )
        assert kwargs == before
    assert encode_body({"prompt": "한", "n": [1, 2]}, seed=3) == '{"prompt":"한","n":[1,2],"seed":3}'.encode()
    assert json.loads(encode_body({"prompt": "\ud800 한"}, seed=1)) == {"prompt": "\ud800 한", "seed": 1}


NEAREST = {"temprature": "temperature", "max_gen_tokens": "max_gen_toks", "topp": "top_p"}
NEAREST |= {"thinking_budget": "thinking_token_budget", "chat_template_kwarg": "chat_template_kwargs"}


def test_an_unknown_setting_is_refused_with_the_nearest_name() -> None:
    for name, nearest in NEAREST.items():
        with pytest.raises(InvalidValue, match=f"'{name}' is not known") as caught:
            check_gen_kwargs({name: 1}, allow_extra=False)
        assert f"Did you mean {nearest}?" in caught.value.hint
        assert "--allow-extra" in caught.value.hint
        check_gen_kwargs({name: 1}, allow_extra=True)
    with pytest.raises(InvalidValue) as caught:
        check_gen_kwargs({"zzz": 1}, allow_extra=False)
    assert "Did you mean" not in caught.value.hint
    engines_own = ["top_k", "min_p", "repetition_penalty", "reasoning_effort", "repeat_penalty", "separate_reasoning"]
    check_gen_kwargs(dict.fromkeys([*engines_own, *NEAREST.values(), "until"], 1), allow_extra=False)


def test_settings_that_cannot_be_or_would_change_the_question_are_refused() -> None:
    for name in ("seed", "n", "stream", "echo", "model", "prompt", "messages"):
        with pytest.raises(InvalidValue, match=name) as caught:
            generation_request(Prompt(text="q", gen_kwargs={name: 1}), sampling=COMPLETIONS)
        assert caught.value.hint
        with pytest.raises(InvalidValue, match=name):
            check_gen_kwargs({name: 1}, allow_extra=True)
    with pytest.raises(InvalidValue, match="greedily"):
        check_gen_kwargs({"do_sample": True}, allow_extra=False)
    check_gen_kwargs({"do_sample": True, "temperature": 0.7}, allow_extra=False)
    with pytest.raises(InvalidValue, match="temperature"):
        generation_request(Prompt(text="q", gen_kwargs={"temperature": float("nan")}), sampling=COMPLETIONS)
    for until in (3, ["a", 3], {"a": 1}):
        with pytest.raises(BrokenTask, match="until"):
            generation_request(Prompt(text="q", gen_kwargs={"until": until}), sampling=COMPLETIONS)


def words(text: str) -> list[int]:
    """A tokenizer that joins characters across a seam: a token for each pair of characters."""
    return [ord(text[i]) * 65_536 + ord(text[i + 1 : i + 2] or "\0") for i in range(0, len(text), 2)]


def encoder(texts: Any, **_: Any) -> Any:
    return SimpleNamespace(input_ids=words(texts) if isinstance(texts, str) else [words(text) for text in texts])


@pytest.mark.parametrize(
    ("context", "continuation"),
    [("Question: x\nAnswer:", " yes"), ("ends in space  ", "no"), ("odd", "x"), ("newline\n\n", " 한국어"), ("ab", "")],
)
def test_a_loglikelihood_asks_what_lm_eval_asks(context: str, continuation: str) -> None:
    model = lm_eval_model(Api.COMPLETIONS)
    model.tokenizer_backend, model.tokenizer = "huggingface", encoder
    ctx, cont = model._encode_pair(context, continuation)
    ((sent,), (n_context,), _) = model.batch_loglikelihood_requests([[((context, continuation), ctx, cont)]])
    expected = model._create_payload(sent, generate=False, seed=1234)

    prompt = Prompt(text=context, continuation=continuation)
    context_ids, whole_ids = (words(text) for text in loglikelihood_parts(prompt))
    request = loglikelihood_request(choice=2, context_ids=context_ids, whole_ids=whole_ids, model="m")
    assert json.loads(encode_body(request.payload, seed=1234)) == expected
    assert (request.choice, request.context_tokens, request.api) == (2, n_context, Api.COMPLETIONS)


def test_what_has_no_loglikelihood_is_a_broken_task() -> None:
    for text in ("", "  \n "):
        with pytest.raises(BrokenTask, match="empty"):
            loglikelihood_parts(Prompt(text=text, continuation="x"))
    with pytest.raises(BrokenTask, match="no tokens"):
        loglikelihood_request(choice=0, context_ids=[], whole_ids=[1], model="m")


OK, TRUNCATED, NO_ANSWER = AnswerStatus.OK, AnswerStatus.TRUNCATED, AnswerStatus.NO_FINAL_ANSWER
SENDING = Sending(2, 0.25, START)
TOKENS = [11, 12, 13, 14, 15, 16]
CONTEXT = 3
SCORED = loglikelihood_request(choice=0, context_ids=TOKENS[:CONTEXT], whole_ids=TOKENS, model="m")


def read(body: Any, request: Request = COMPLETION) -> Reply:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_reply(request, raw, SENDING)


def refused(body: Any, request: Request = COMPLETION) -> Failure:
    with pytest.raises(Failure) as caught:
        read(body, request)
    return caught.value


def test_an_answer_is_read_with_all_that_came_along() -> None:
    got = read(completion("42"))
    assert (got.status, got.text, got.finish_reason, got.error) == (OK, "42", "stop", "")
    assert (got.prompt_tokens, got.completion_tokens, got.system_fingerprint) == (7, 3, "fp-1")
    assert (got.attempts, got.latency_s, got.sent_at) == SENDING
    assert (got.loglikelihood, got.is_greedy, got.reasoning_characters) == (None, None, 0)


@pytest.mark.parametrize("count", [-1, 2**31, 2**64 - 1, True, 7.5, "7", None])
def test_counts_and_names_that_cannot_be_are_left_out(count: Any) -> None:
    got = read({**completion("42"), "usage": {"prompt_tokens": count, "completion_tokens": 3}, "model": "MODEL-B"})
    assert (got.text, got.prompt_tokens, got.completion_tokens, got.model) == ("42", None, 3, "MODEL-B")
    if not isinstance(count, str):
        assert read({**completion("42"), "model": count}).model == ""


GIVEN: list[tuple[Any, tuple[int, ...] | None]] = [
    ([7, 151643], (7, 151643)),
    ([], ()),
    *((broken, None) for broken in (None, "7", [7, -1], [2**31], ["7"], [None], [7.5], {"7": 1})),
]


@pytest.mark.parametrize("name", ["token_ids", "response_token_ids"])
def test_token_ids_are_read_or_left_out(name: str) -> None:
    for given, expected in GIVEN:
        got = read(completion("42", **{name: given}))
        assert (got.status, got.token_ids) == (OK, None if expected is None else pack_ids(expected)), given
    message = chat({"content": "hi"})
    message["choices"][0][name] = [7]
    assert read(message, CHAT).token_ids == pack_ids([7])
    assert read(completion("42")).token_ids is None


def call(arguments: Any, name: Any = "weather") -> dict[str, Any]:
    return {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}


WITH_TOOLS = replace(CHAT, payload={**CHAT.payload, "tools": [{}]})


def test_tool_calls_are_the_text_of_a_request_with_tools() -> None:
    calls = [call('{"city": "서울",\n "days": 2}'), call('{"city": "Seo', None), call({"days": 3})]
    for content, finish_reason, status in ((None, "tool_calls", OK), ("", "length", TRUNCATED), ("hm", "stop", OK)):
        body = chat({"content": content, "tool_calls": calls}, finish_reason=finish_reason)
        got = read(body, WITH_TOOLS)
        assert (got.status, got.finish_reason, got.text) == (
            status,
            finish_reason,
            '[{"name":"weather","arguments":{"city":"서울","days":2}},{"name":null,"arguments":"{\\"city\\": \\"Seo"},'
            '{"name":"weather","arguments":{"days":3}}]',
        )
    assert read(chat({"content": "hm", "tool_calls": calls}), CHAT).text == "hm"
    assert read(chat({"content": "hm", "tool_calls": []}), WITH_TOOLS).text == "hm"
    for broken in ([{}], ["x"], [{"function": None}], 3):
        assert "tool_calls" in refused(chat({"content": None, "tool_calls": broken}), WITH_TOOLS).message


def test_how_a_text_ended() -> None:
    ends: list[tuple[str, Any, AnswerStatus]] = [("", "stop", OK), ("half", "length", TRUNCATED)]
    ends += [("", "length", TRUNCATED), *(("done", reason, OK) for reason in (None, ["stop"], {"type": "stop"}))]
    for text, finish_reason, status in ends:
        got = read(completion(text, finish_reason=finish_reason))
        assert (got.status, got.text, got.finish_reason) == (status, text, str(finish_reason or ""))


MESSAGES: list[tuple[dict[str, Any], str, tuple[AnswerStatus, str | None, str]]] = [
    ({"content": "A"}, "stop", (OK, "A", "")),
    ({"content": ""}, "stop", (OK, "", "")),
    ({"content": "A", "reasoning_content": "hmm"}, "stop", (OK, "A", "hmm")),
    ({"content": "A", "reasoning": "hmm"}, "length", (TRUNCATED, "A", "hmm")),
    ({"content": "A", "reasoning_content": None, "reasoning": ""}, "length", (TRUNCATED, "A", "")),
    ({"content": None, "reasoning_content": "hmm"}, "length", (NO_ANSWER, None, "hmm")),
    ({"content": "", "reasoning": "hmm, so"}, "stop", (NO_ANSWER, None, "hmm, so")),
    ({"reasoning": "hmm"}, "stop", (NO_ANSWER, None, "hmm")),
    ({"content": None, "reasoning": ""}, "length", (NO_ANSWER, None, "")),
]


def test_content_and_reasoning_of_a_message_and_the_choice_with_index_0() -> None:
    for message, finish_reason, expected in MESSAGES:
        got = read(chat(message, finish_reason=finish_reason), CHAT)
        assert (got.status, got.text, got.reasoning) == expected, message
        assert (got.reasoning_characters, got.error) == (len(expected[2]), "")
    assert read(choices((1, "second"), (0, "first"))).text == "first"
    assert read(choices((3, "only"))).text == "only"


def choices(*texts: tuple[int, str]) -> dict[str, Any]:
    return {**completion(""), "choices": [completion(text)["choices"][0] | {"index": at} for at, text in texts]}


BAD_BODIES: dict[str, tuple[Any, ...]] = {
    "none of the choices has index 0": (choices((1, "a"), (2, "b")),),
    "out of memory": ({"error": {"message": "out of memory"}},),
    "boom": ({"object": "error", "message": "boom"},),  # as older versions of vLLM say it
    "no choices": ({"object": "text_completion"}, {"choices": []}, {"choices": None}),
    "not an object": ({"choices": ["x"]},),
    "no text": (completion(None), {"choices": [{"index": 0}]}, {"choices": [{"text": 3}]}),
    "not JSON": (b"<html>oops</html>", b"", b'{"choices": [{"te'),
    "not a JSON object": ([1, 2],),
    "abort": (completion("half", finish_reason="abort"),),
}


@pytest.mark.parametrize("reason", BAD_BODIES)
def test_a_bad_body_is_named_and_may_be_asked_again(reason: str) -> None:
    for body in BAD_BODIES[reason]:
        failure = refused(body)
        assert (failure.status, failure.retry) == (AnswerStatus.BAD_BODY, True)
        assert reason in failure.message


def test_a_message_without_content_is_a_bad_body_unless_a_filter_withheld_it() -> None:
    for message in ({"content": None}, {}, {"content": ["a"]}, {"content": None, "reasoning": None}):
        assert refused(chat(message), CHAT).message == "the message has no content"
    failure = refused(chat({"content": None}, finish_reason="content_filter"), CHAT)
    assert (failure.status, failure.retry) == (AnswerStatus.REJECTED, False)
    assert "content_filter" in failure.message


SGLANG = {"spec_num_proposed_drafts": 24, "spec_num_correct_drafts": 9, "spec_verify_ct": 8}
THIRTY = {"usage": {"completion_tokens": 30}}
OLD_SGLANG = {"spec_draft_token_num": 6, "spec_accept_token_num": 3, "spec_accept_histogram": [0, 1, 1]}


def predicted(accepted: int, rejected: int) -> dict[str, Any]:
    details = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
    return {"usage": {"completion_tokens_details": details}}


@pytest.mark.parametrize(
    ("answer", "choice", "drafted"),
    [
        ({}, {}, None),
        ({"timings": {"draft_n": 9, "draft_n_accepted": 4}}, {}, Drafted(draft_tokens=9, accepted_tokens=4)),
        ({"timings": {"predicted_n": 3}}, {}, None),
        ({}, {"meta_info": SGLANG}, Drafted(draft_tokens=24, accepted_tokens=9)),
        ({}, {"meta_info": OLD_SGLANG}, Drafted(draft_tokens=6, accepted_tokens=3, rounds=(0, 1, 1))),
        ({}, {"meta_info": {"completion_tokens": 3}}, None),
        ({"sglext": {"spec_tokens_details": SGLANG}}, {}, Drafted(draft_tokens=24, accepted_tokens=9)),
        (predicted(7, 5), {}, Drafted(draft_tokens=12, accepted_tokens=7)),
        (predicted(0, 0), {}, None),
        (THIRTY, {"avg_decoded_tokens_per_iter": 2.5}, Drafted(draft_tokens=None, accepted_tokens=18)),
        (THIRTY, {"avg_decoded_tokens_per_iter": 1.0}, Drafted(draft_tokens=None, accepted_tokens=0)),
        (THIRTY, {"avg_decoded_tokens_per_iter": None}, None),
    ],
)
def test_drafting_told_by_an_answer(answer: dict[str, Any], choice: dict[str, Any], drafted: Drafted | None) -> None:
    assert read({**completion("42", **choice), **answer}).drafted == drafted


def echoed(of_tokens: list[Any], tops: list[Any] | None = None) -> dict[str, Any]:
    tops = tops or [None if value is None else {"tok": value} for value in of_tokens]
    logprobs = {"token_logprobs": of_tokens, "top_logprobs": tops, "tokens": ["t"] * len(of_tokens)}
    choice = {"index": 0, "text": "x", "logprobs": logprobs, "finish_reason": "length"}
    return {"choices": [choice], "usage": {"prompt_tokens": 6, "completion_tokens": 1}}


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_sum_and_greediness_are_lm_evals(seed: int, greedy: bool) -> None:
    openai_completions = pytest.importorskip("lm_eval.models.openai_completions")
    rng = random.Random(seed)
    of_tokens = [None, *(-rng.expovariate(0.7) for _ in TOKENS)]
    tops: list[Any] = [None, *({"a": value, "b": value - 1} for value in of_tokens[1:] if value is not None)]
    if not greedy:
        tops[CONTEXT + 1]["c"] = -1e-9
    body = echoed(of_tokens, tops)
    got = read(body, SCORED)
    (expected,) = openai_completions.LocalCompletionsAPI.parse_logprobs(json.loads(json.dumps(body)), ctxlens=[CONTEXT])
    assert (got.loglikelihood, got.is_greedy) == expected
    assert got.is_greedy is greedy
    assert (got.status, got.text, got.prompt_tokens, got.finish_reason) == (OK, None, 6, "length")


def test_only_the_continuation_counts() -> None:
    body = echoed([None, -9, -9, -1, -2, -4.5, -9])
    for position in (2, 6):  # likelier tokens elsewhere
        body["choices"][0]["logprobs"]["top_logprobs"][position]["better"] = -0.1
    got = read(body, SCORED)
    assert (got.status, got.loglikelihood, got.is_greedy) == (OK, -7.5, True)


IGNORED = {"content": [{"id": 33, "token": "1", "logprob": -1.1, "top_logprobs": []}]}  # llama.cpp's form
SEVEN = [None, -1, -1, -1, -1, -1, -1]


@pytest.mark.parametrize(
    ("body", "reason", "retry"),
    [
        (echoed(SEVEN[:-1]), "6 token_logprobs", True),
        (echoed([*SEVEN, -1]), "8 token_logprobs", True),
        (echoed([None, -1, -1, -1, None, -1, -1], [None, *[{"a": -1}] * 6]), "missing", True),
        (echoed(SEVEN, [None, {"a": -1}]), "top_logprobs", True),
        (echoed(SEVEN, [None, *[{}] * 6]), "missing", True),
        (echoed(SEVEN, [None] * 7), "missing", True),
        ({"choices": [{"text": "1", "index": 0, "logprobs": IGNORED}]}, "ignores echo", False),
        (echoed([-1.0]), "ignores echo", False),
        ({"choices": [{"text": "1", "logprobs": None}]}, "no log-prob", False),
    ],
)
def test_log_probabilities_that_do_not_fit_are_a_bad_body(body: Any, reason: str, retry: bool) -> None:
    failure = refused(body, SCORED)
    assert (failure.status, failure.retry) == (AnswerStatus.BAD_BODY, retry)
    assert reason in failure.message


RETRY_AFTER: dict[str | None, float | None] = {
    **{"0": 0.0, "3": 3.0, "0.5": 0.5, "Sun, 01 Mar 2026 11:59:00 GMT": 0.0},
    **dict.fromkeys(("Sun, 01 Mar 2026 12:01:30 GMT", "Sun, 01 Mar 2026 13:01:30 +0100"), 90.0),
    **dict.fromkeys((None, "", "-5", "inf", "nan", "soon", "Sun, 99 Mar 2026 99:99:99 GMT")),
}


def test_retry_after_is_seconds_or_an_http_date() -> None:
    now = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
    assert {header: retry_after_s(header, now=now) for header in RETRY_AFTER} == RETRY_AFTER


PASSING = (408, 409, 425, 429, 500, 502, 503, 504)


@pytest.mark.parametrize("status", [*PASSING, 301, 307, 401, 402, 403, 404, 405, 400, 413, 422])
def test_passing_trouble_may_be_asked_again_and_a_settled_refusal_not(status: int) -> None:
    failure = refusal(Exchange(status, b"<p>go away</p>", lambda _: None), now=START)
    kind = AnswerStatus.REJECTED if status in (400, 413, 422) else AnswerStatus.HTTP_ERROR
    assert (failure.status, failure.message) == (kind, f"HTTP {status}: <p>go away</p>")
    assert (failure.retry, failure.is_backpressure) == (status in PASSING, status == 429)


def test_every_form_of_an_error_has_its_message_read() -> None:
    message = "prompt too long"
    openai = {"message": message, "type": "exceed_context_size_error"}
    for body in ({"error": openai}, {"error": message}, {"message": message}, {"detail": [{"msg": message}]}):
        assert message in error_message(body)

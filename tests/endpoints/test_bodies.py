from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from qualab.errors import BrokenTask, InvalidValue
from qualab.model.canonical import encode_body
from qualab.model.items import Prompt, check_gen_kwargs, generation_request, loglikelihood_parts, loglikelihood_request
from qualab.model.names import Api
from qualab.model.plan import SamplingPlan

COMPLETIONS = SamplingPlan(model="m", api=Api.COMPLETIONS)
CHAT = SamplingPlan(model="m", api=Api.CHAT)
MESSAGES = json.dumps([{"role": "user", "content": "안녕"}], ensure_ascii=False)

GEN_KWARGS: list[dict[str, Any]] = [
    {},
    {"until": ["Question:", "</s>"], "do_sample": False, "temperature": 0.0},
    {"until": "\n", "max_gen_toks": 32},
    {"until": [str(n) for n in range(6)], "max_tokens": 5, "temperature": 0.7, "top_p": 0.9, "do_sample": True},
    {"until": None, "max_gen_toks": 1280, "presence_penalty": 0.5},
]


def lm_eval_payload(api: Api, question: Any, gen_kwargs: dict[str, Any]) -> dict[str, Any]:
    openai_completions = pytest.importorskip("lm_eval.models.openai_completions")
    kind = openai_completions.LocalChatCompletion if api is Api.CHAT else openai_completions.LocalCompletionsAPI
    model = kind(model="m", base_url="http://127.0.0.1:1", tokenizer_backend=None)
    payload: dict[str, Any] = model._create_payload(
        question, generate=True, gen_kwargs=copy.deepcopy(gen_kwargs), seed=1234
    )
    return payload


@pytest.mark.parametrize("gen_kwargs", GEN_KWARGS)
@pytest.mark.parametrize("api", list(Api))
def test_a_generation_asks_what_lm_eval_asks(api: Api, gen_kwargs: dict[str, Any]) -> None:
    is_chat = api is Api.CHAT
    prompt = Prompt(text=MESSAGES if is_chat else "1 + 1 =", is_chat=is_chat, gen_kwargs=gen_kwargs)
    request = generation_request(prompt, sampling=CHAT if is_chat else COMPLETIONS)
    expected = lm_eval_payload(api, json.loads(MESSAGES) if is_chat else "1 + 1 =", gen_kwargs)
    if not expected["stop"]:
        del expected["stop"]
    assert json.loads(encode_body(request.payload, seed=1234)) == expected
    assert (request.api, request.choice, request.context_tokens) == (api, 0, None)


def test_the_order_of_settings_does_not_change_the_bytes() -> None:
    one = {"top_p": 0.5, "until": ["a"], "min_p": 0.1}
    for kwargs in (one, dict(reversed(one.items()))):
        before = dict(kwargs)
        payload = generation_request(Prompt(text="q", gen_kwargs=kwargs), sampling=COMPLETIONS).payload
        assert encode_body(payload, seed=1) == (
            b'{"prompt":"q","model":"m","max_tokens":256,"temperature":0,"stop":["a"],"min_p":0.1,"top_p":0.5,"seed":1}'
        )
        assert kwargs == before


@pytest.mark.parametrize("name", ["seed", "n", "stream", "echo", "model", "prompt", "messages"])
def test_settings_that_would_change_the_question_are_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match=name) as caught:
        generation_request(Prompt(text="q", gen_kwargs={name: 1}), sampling=COMPLETIONS)
    assert caught.value.hint
    with pytest.raises(InvalidValue, match=name):
        check_gen_kwargs({name: 1}, allow_extra=True)


NEAREST = {
    "temprature": "temperature",
    "max_gen_tokens": "max_gen_toks",
    "topp": "top_p",
    "thinking_budget": "thinking_token_budget",
    "chat_template_kwarg": "chat_template_kwargs",
}


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


def test_settings_that_cannot_be_are_refused() -> None:
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


class Encoder:
    def __call__(self, texts: Any, **_: Any) -> Any:
        class Encoded:
            input_ids = words(texts) if isinstance(texts, str) else [words(text) for text in texts]

        return Encoded


@pytest.mark.parametrize(
    ("context", "continuation"),
    [("Question: x\nAnswer:", " yes"), ("ends in space  ", "no"), ("odd", "x"), ("newline\n\n", " 한국어"), ("ab", "")],
)
def test_a_loglikelihood_asks_what_lm_eval_asks(context: str, continuation: str) -> None:
    openai_completions = pytest.importorskip("lm_eval.models.openai_completions")
    model = openai_completions.LocalCompletionsAPI(model="m", base_url="http://127.0.0.1:1", tokenizer_backend=None)
    model.tokenizer_backend, model.tokenizer = "huggingface", Encoder()
    ctx, cont = model._encode_pair(context, continuation)
    ((sent,), (n_context,), _) = model.batch_loglikelihood_requests([[((context, continuation), ctx, cont)]])
    expected = model._create_payload(sent, generate=False, seed=1234)

    prompt = Prompt(text=context, continuation=continuation)
    context_ids, whole_ids = (words(text) for text in loglikelihood_parts(prompt))
    request = loglikelihood_request(choice=2, context_ids=context_ids, whole_ids=whole_ids, model="m")
    assert json.loads(encode_body(request.payload, seed=1234)) == expected
    assert (request.choice, request.context_tokens, request.api) == (2, n_context, Api.COMPLETIONS)


@pytest.mark.parametrize("text", ["", "  \n "])
def test_what_has_no_loglikelihood_is_a_broken_task(text: str) -> None:
    with pytest.raises(BrokenTask, match="empty"):
        loglikelihood_parts(Prompt(text=text, continuation="x"))
    with pytest.raises(BrokenTask, match="no tokens"):
        loglikelihood_request(choice=0, context_ids=[], whole_ids=[1], model="m")


def test_bodies_are_utf8_without_spaces_and_a_lone_surrogate_is_an_escape() -> None:
    assert encode_body({"prompt": "한", "n": [1, 2]}, seed=3) == '{"prompt":"한","n":[1,2],"seed":3}'.encode()
    assert json.loads(encode_body({"prompt": "\ud800 한"}, seed=1)) == {"prompt": "\ud800 한", "seed": 1}

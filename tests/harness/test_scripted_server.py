"""The endpoint that other tests stand on."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import Any

import pytest

from tests.scripted_server import MODEL, Script, ScriptedServer, cut, decode, encode


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def text_of(server: ScriptedServer, prompt: Any, **settings: Any) -> str:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 500, **settings}
    text: str = post(f"{server.url}/completions", body)["choices"][0]["text"]
    return text


@pytest.mark.parametrize("text", ["a b  c\n d", "지문: 강은 흐른다. A", " ", "", "\U0001f600 x"])
def test_tokens_give_the_text_back(text: str) -> None:
    assert decode(encode(text)) == text


def test_a_context_and_its_continuation_join_across_the_seam() -> None:
    assert len(encode("Answer: A")) == len(encode("Answer:")) + 1


def test_a_prompt_has_one_answer_as_text_as_tokens_and_in_another_process() -> None:
    prompts = [f"Question {i}" for i in range(30)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.scripted_server", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with ScriptedServer() as server:
            there = ScriptedServer(port=port)
            for prompt in prompts:
                text = text_of(server, prompt)
                assert text_of(server, encode(prompt), seed=9) == text
                assert text_of(there, prompt) == text
            assert len({text_of(server, prompt) for prompt in prompts}) > 5
    finally:
        process.kill()
        process.wait()


def test_a_share_of_the_answers_is_flipped() -> None:
    plain, flipping = Script(), Script(flip_share=0.3)
    prompts = [f"prompt {i}" for i in range(500)]
    n_changed = sum(plain.text(prompt) != flipping.text(prompt) for prompt in prompts)
    assert 60 < n_changed < 190


def test_known_answers_are_given_sometimes_and_fixed_ones_always() -> None:
    prompts = [f"prompt {i}" for i in range(200)]
    script = Script(answers=dict.fromkeys(prompts, "#### 7"), fixed={"prompt 3": "always"})
    n_right = sum(script.text(prompt) == "#### 7" for prompt in prompts)
    assert 20 < n_right < 100
    assert script.text("prompt 3") == "always"


def test_stop_strings_and_the_token_limit_cut() -> None:
    assert cut("one\ntwo", stop=["\n"], max_tokens=9).text == "one"
    long = cut("x" * 20, stop=[], max_tokens=5)
    assert (long.text, long.finish_reason, long.n_tokens) == ("xxxxx", "length", 5)


def test_echoed_log_probabilities_cover_prompt_and_one_more_token() -> None:
    body = {"model": MODEL, "prompt": encode("P: x\nA: B"), "max_tokens": 1, "logprobs": 1, "echo": True}
    with ScriptedServer() as server:
        found = post(f"{server.url}/completions", body)["choices"][0]["logprobs"]
    n_tokens = len(encode("P: x\nA: B")) + 1
    assert {len(column) for column in found.values()} == {n_tokens}
    assert found["token_logprobs"][0] is None
    assert all(value < 0 for value in found["token_logprobs"][1:])
    assert found["text_offset"][:3] == [0, 1, 2]


def test_drafter_counters_move_with_generations_alone() -> None:
    def metrics(server: ScriptedServer) -> str:
        with urllib.request.urlopen(f"{server.root}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    with ScriptedServer(Script(drafts=True)) as drafting, ScriptedServer() as plain:
        text_of(drafting, "d")
        text_of(drafting, "a", echo=True, logprobs=1)
        (line,) = [one for one in metrics(drafting).splitlines() if one.startswith("vllm:spec_decode_num_drafts_total")]
        assert float(line.split()[-1]) > 0
        assert drafting.engine.finished == 2
        assert "spec_decode" not in metrics(plain)


def test_a_wrong_model_and_a_long_prompt_are_refused() -> None:
    with ScriptedServer(Script(max_model_len=10)) as server:
        for body, status in [({"model": "x", "prompt": "a"}, 404), ({"model": MODEL, "prompt": "a" * 10}, 400)]:
            with pytest.raises(urllib.error.HTTPError) as caught:
                post(f"{server.url}/completions", body)
            assert caught.value.code == status

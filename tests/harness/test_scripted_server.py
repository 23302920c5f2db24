"""The endpoint that other tests stand on: one answer a prompt, whatever process gives it and however it is sent."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import Any

from tests.scripted_server import MODEL, Script, ScriptedServer, cut, decode, encode


def text_of(server: ScriptedServer, prompt: Any, **settings: Any) -> str:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 500, **settings}
    url, headers = f"{server.url}/completions", {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=10) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def test_a_prompt_has_one_answer_as_text_as_tokens_and_in_another_process() -> None:
    prompts = [f"Question {i}" for i in range(30)]
    command = [sys.executable, "-m", "tests.scripted_server", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            there = ScriptedServer(port=int(process.stdout.readline()))
            with ScriptedServer() as server:
                for prompt in prompts:
                    text = text_of(server, prompt)
                    assert text_of(server, encode(prompt), seed=9) == text_of(there, prompt) == text
                assert len({text_of(server, prompt) for prompt in prompts}) > 5
        finally:
            process.kill()


def test_tokens_answers_and_cuts() -> None:
    for text in ("a b  c\n d", "지문: 강은 흐른다. A", " ", "", "\U0001f600 x"):
        assert decode(encode(text)) == text
    assert len(encode("Answer: A")) == len(encode("Answer:")) + 1, "joined across the seam"
    prompts = [f"prompt {i}" for i in range(500)]
    plain, flipping = Script(), Script(flip_share=0.3)
    assert 60 < sum(plain.text(prompt) != flipping.text(prompt) for prompt in prompts) < 190
    script = Script(answers=dict.fromkeys(prompts, "#### 7"), fixed={"prompt 3": "always"})
    assert 50 < sum(script.text(prompt) == "#### 7" for prompt in prompts) < 250
    assert script.text("prompt 3") == "always"
    assert cut("one\ntwo", stop=["\n"], max_tokens=9).text == "one"
    long = cut("x" * 20, stop=[], max_tokens=5)
    assert (long.text, long.finish_reason, long.n_tokens) == ("xxxxx", "length", 5)

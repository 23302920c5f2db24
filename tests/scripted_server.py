"""A server that stands in for an engine: it speaks as vLLM does and answers from a hash of the prompt, or by steps.
With `Script.lm` a small language model answers.

`with ScriptedServer() as server: server.url` serves in a thread. The same prompt gets the same answer. Routes:
/v1/models, /v1/completions (also `echo` + `logprobs`), /v1/chat/completions, /health, /metrics, and those of the engine
that it plays (`ScriptedEngine.routes`). `routes` may be changed; `answer` says what every other request gets.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from aiohttp import web

from tests.scripted_engine import SPEC_DECODE_REFUSES, EngineScript, ScriptedEngine
from tests.scripted_lm import LanguageModel, spelt

MODEL = "scripted"
Step = Callable[[web.Request], Awaitable[web.StreamResponse]]


def reply(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Step:
    """JSON, or text and bytes as they are; what a function returns."""

    async def step(_: web.Request) -> web.StreamResponse:
        told = body() if callable(body) else body
        raw = told if isinstance(told, bytes) else (told if isinstance(told, str) else json.dumps(told)).encode()
        return web.Response(body=raw, status=status, headers={"Content-Type": "application/json", **(headers or {})})

    return step


def after(seconds: float, then: Step) -> Step:
    async def step(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await then(request)

    return step


def wire(raw: bytes, *, reset: bool = False) -> Step:
    """These bytes as they are, then the end of the connection."""

    async def step(request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        transport.write(raw)
        await asyncio.sleep(0.01)
        if reset:
            transport.abort()
        else:
            transport.close()
        return web.Response()

    return step


NOT_FOUND = reply({"detail": "Not Found"}, status=404)


class Seen(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


TOKEN = re.compile(r" \S|[\s\S]", re.UNICODE)
"""A character, or a space with the character after it: contexts and continuations join across their seam."""
JOINED = 0x200000  # added to the id of a character that comes with a space before it


def encode(text: str) -> list[int]:
    """Token ids; stateless, so that every server of this kind has the same tokenizer."""
    return [ord(piece[-1]) + (JOINED if len(piece) == 2 else 0) for piece in TOKEN.findall(text)]


def decode(ids: Sequence[int]) -> str:
    return "".join(f" {chr(one - JOINED)}" if one >= JOINED else chr(one) for one in ids)


def digest(text: str) -> int:
    """32 bits that depend on every character; crc32 alone is linear, and its low bits show it."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) * 0x9E3779B1 % 2**32


ENGLISH = (
    "The old lighthouse keeper walked slowly along the shore, and he counted the boats that came home.\n\n"
    "* First point: the weather was calm.\n* Second point: the harbour was full.\n\nP.S. He never missed one."
)
KOREAN = (
    "오늘은 날씨가 맑아서 가족과 함께 공원으로 산책을 다녀왔습니다. 저녁에는 집에서 책을 읽으며 조용히 쉬었습니다.\n"
    "정답은 B 입니다."
)

SCRIPT: Sequence[Callable[[str, int], str]] = (
    lambda right, _: right,
    lambda right, _: right,
    lambda _, seed: (
        f"Let us think step by step: there are {seed % 17} boxes with {seed % 23} pens each.\n#### {seed % 97}"
    ),
    lambda _, seed: (
        f"The answer is {'ABCDE'[seed % 5]}, because nothing else fits the text.\n정답: {'ABCDE'[seed % 5]}"
    ),
    lambda _, __: KOREAN,
    lambda _, __: "",
    lambda _, __: ENGLISH,
    lambda right, _: right[: len(right) // 2],
)
"""Answers, from the right one (where it is known) and a hash of the prompt."""


@dataclass(kw_only=True)
class Script:
    """What the server answers."""

    answers: Mapping[str, str] = field(default_factory=dict)  # the right answer to a prompt (a chat's last message)
    fixed: Mapping[str, str] = field(default_factory=dict)  # the answer that a prompt always gets
    flip_share: float = 0.0
    """Share of prompts that get another answer than a server with 0 gives: what a drafter might do."""
    drafts: bool = False  # whether there is a drafter
    engine: EngineScript = field(default_factory=EngineScript)
    latency_s: float = 0.0
    thinks: str = ""  # thought before each chat answer, apart from it, unless the request turns thinking off
    busy_share: float = 0.0  # of requests, drawn at random, that get a 429 with Retry-After: 0
    max_model_len: int = 1_000_000
    lm: LanguageModel | None = None
    """Answers generations in place of `text`, and tells the log-probabilities of given tokens."""

    def text(self, prompt: str) -> str:
        if prompt in self.fixed:
            return self.fixed[prompt]
        seed = digest(prompt)
        flipped = digest(f"flip {prompt}") / 2**32 < self.flip_share
        right = self.answers.get(prompt, ENGLISH)
        return SCRIPT[((seed >> 16) + flipped) % len(SCRIPT)](right, seed)


class Completion(NamedTuple):
    """A text cut as the request's limits say."""

    text: str
    finish_reason: str
    n_tokens: int
    token_ids: Sequence[int] = ()


def cut(text: str, body: Mapping[str, Any]) -> Completion:
    stop = body.get("stop") or []
    ends = [text.index(one) for one in ([stop] if isinstance(stop, str) else stop) if one and one in text]
    stopped = text[: min(ends)] if ends else text
    tokens, limit = encode(stopped), body.get("max_tokens") or body.get("max_completion_tokens") or 16
    if len(tokens) > limit:
        return Completion(decode(tokens[:limit]), "length", limit)
    return Completion(stopped, "stop", len(tokens) + 1)


def logprobs(ids: Sequence[int]) -> dict[str, list[Any]]:
    """A log-probability for each token that depends on all tokens before it; about a quarter are not the likeliest."""
    state = 0
    own: list[float | None] = []
    top: list[dict[str, float] | None] = []
    for one in ids:
        state = zlib.crc32(one.to_bytes(4, "little"), state)
        mixed = state * 0x9E3779B1 % 2**32
        value = -(mixed >> 12) / 131_071.0
        own.append(value)
        token = decode([one])
        top.append({token: value} if mixed % 4 else {token: value, "~": value / 2})
    own[0] = top[0] = None
    return {"token_logprobs": own, "tokens": [decode([one]) for one in ids], "top_logprobs": top}


class ScriptedServer:
    """The server, in a thread of its own while its context is open."""

    def __init__(
        self, script: Script | None = None, *, port: int = 0, model: str = MODEL, tls: ssl.SSLContext | None = None
    ) -> None:
        self.script = script or Script()
        self.model = model
        self.port = port
        self.tls = tls
        self.engine = ScriptedEngine(self.script.engine, drafts=self.script.drafts, model=model)
        self.routes: dict[tuple[str, str], Step] = dict(self._routes())
        self.steps = [NOT_FOUND]
        self.seen: list[Seen] = []
        self.tokenized: list[tuple[str, int]] = []
        """Every text that was to be tokenized, and how often metrics had been read before."""
        self.in_flight = self.most_in_flight = 0
        self.peers: set[Any] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve(self._ready.set)), daemon=True)
        self._stop = asyncio.Event()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def requests(self) -> list[tuple[str, bytes]]:
        """Route and body of every completion that was asked for."""
        return [(one.path, one.body) for one in self.seen if one.path.endswith("completions")]

    @property
    def n_metrics_read(self) -> int:
        return sum(one.path == "/metrics" for one in self.seen)

    def answer(self, *steps: Step) -> None:
        """Sets what requests outside `routes` get, in order, the last step again and again."""
        self.steps = list(steps)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def serve(self, ready: Callable[[], object]) -> None:
        """Serves until stopped; calls `ready` when `port` is known."""
        self._loop = asyncio.get_running_loop()
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=self.tls).start()
        self.port = runner.addresses[0][1]
        ready()
        await self._stop.wait()
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(Seen(request.method, request.path, request.headers, await request.read()))
        if request.transport is not None:
            self.peers.add(request.transport.get_extra_info("peername"))
        step = self.routes.get((request.method, request.path))
        if step is None:
            step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await step(request)
        finally:
            self.in_flight -= 1

    def _routes(self) -> Iterator[tuple[tuple[str, str], Step]]:
        script, engine = self.script.engine, self.engine
        says: dict[str, Any] = {"/health": {}, "/v1/models": self._models, **engine.routes()}
        if script.settings:
            says["/openapi.json"] = _openapi(script.settings)
        if script.has_metrics:
            says["/metrics"] = engine.metrics
        for route, value in says.items():
            yield ("GET", route), reply(value)
        yield ("POST", "/v1/completions"), self._completions
        yield ("POST", "/v1/chat/completions"), self._chat
        if script.kind in ("vllm", "llama"):
            yield ("POST", "/tokenize"), self._tokenize
            yield ("POST", "/detokenize"), self._detokenize

    def _models(self) -> dict[str, Any]:
        length, kind = self.script.max_model_len, self.script.engine.kind
        cards: dict[str, dict[str, Any]] = {
            "llama": {"owned_by": "llamacpp", "meta": {"n_ctx": length, "n_params": 134515008}},
            "tgi": {"created": 0, "owned_by": self.model},
            "tensorrt_llm": {"owned_by": kind},
        }
        other = {"owned_by": kind, "root": self.model, "max_model_len": length}
        return {"object": "list", "data": [{"id": self.model, "object": "model", **cards.get(kind, other)}]}

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        script, body = self.script.engine, await request.json()
        text = body.get("content" if script.kind == "llama" else "prompt", "")
        if "messages" in body and script.kind == "vllm":
            text = "".join(message["content"] for message in body["messages"])
        self.tokenized.append((text, self.n_metrics_read))
        if script.untokenized and script.untokenized in text:
            return await _error(500, "The tokenizer broke.", "InternalServerError")(request)
        if script.slowly_tokenized and script.slowly_tokenized in text:
            await asyncio.sleep(60)
        tokens = encode(text)
        limit = self.script.max_model_len
        return web.json_response({"count": len(tokens), "max_model_len": limit, "tokens": tokens})

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:
        tokens = (await request.json())["tokens"]
        return web.json_response({"content" if self.script.engine.kind == "llama" else "prompt": decode(tokens)})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(self.script.latency_s)
        body = await request.json()
        prompt = body["prompt"]
        is_batch = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
        prompts = prompt if is_batch else [prompt]
        ids = [encode(one) if isinstance(one, str) else list(one) for one in prompts]
        if refusal := self._refusal(body, max(map(len, ids))):
            return await refusal(request)
        told: dict[str, Any] = {}
        choices = []
        for one in ids:
            if body.get("echo"):
                whole = [*one, ord(".")]
                found = logprobs(whole) if body.get("logprobs") is not None else None
                choices.append({"text": decode(whole), "logprobs": found, "finish_reason": "length"})
            else:
                done, told = self._generate(decode(one), body, prompt_ids=one)
                choice: dict[str, Any] = {"text": done.text, "logprobs": None, "finish_reason": done.finish_reason}
                choices.append(choice | self._told_tokens(body, one, done))
        return self._answer("text_completion", choices, ids, told)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(self.script.latency_s)
        body = await request.json()
        prompt = body["messages"][-1]["content"]
        ids = encode("".join(message["content"] for message in body["messages"]))
        if refusal := self._refusal(body, len(ids)):
            return await refusal(request)
        is_off = (body.get("chat_template_kwargs") or {}).get("enable_thinking") is False
        thoughts = [] if is_off else encode(self.script.thinks)
        done, told = self._generate(prompt, body, prompt_ids=ids, thoughts=thoughts)
        thought = decode(thoughts[: body["max_tokens"]]) or None
        text = done.text if len(thoughts) < body["max_tokens"] else None
        message = {"role": "assistant", "content": text, "reasoning_content": thought}
        choice: dict[str, Any] = {"message": message, "logprobs": None, "finish_reason": done.finish_reason}
        choice |= self._told_tokens(body, ids, done)
        return self._answer("chat.completion", [choice], [ids], told)

    def _told_tokens(self, body: Mapping[str, Any], prompt: Sequence[int], done: Completion) -> dict[str, Any]:
        """Ids of the answer's tokens and log-probabilities of the prompt's, where they are asked for, as vLLM's."""
        lm = self.script.lm
        told: dict[str, Any] = {}
        if lm and body.get("return_token_ids"):
            told |= {"token_ids": list(done.token_ids), "prompt_token_ids": list(prompt)}
        if lm and body.get("prompt_logprobs") is not None:
            told |= {"prompt_logprobs": list(lm.logprobs(prompt, body["prompt_logprobs"]))}
        return told

    def _generate(
        self, prompt: str, body: Mapping[str, Any], *, prompt_ids: Sequence[int], thoughts: Sequence[int] = ()
    ) -> tuple[Completion, dict[str, Any]]:
        """An answer after its thoughts, and what it says of drafting."""
        text, n_prompt = "" if self.script.lm else self.script.text(prompt), len(prompt_ids)
        if self.script.lm:
            ids, finish_reason = self.script.lm.generate(prompt_ids, body)
            done = Completion(spelt(ids), finish_reason, len(ids), ids)
        elif thoughts:
            room = body["max_tokens"] - len(thoughts)
            done = cut(text, {**body, "max_tokens": max(room, 1)})
            n_tokens = min(len(thoughts) + done.n_tokens, body["max_tokens"])
            done = Completion(done.text, done.finish_reason if room > 0 else "length", n_tokens)
        else:
            done = cut(text, body)
        drafted = self.engine.generated(prompt, prompt_tokens=n_prompt, completion_tokens=done.n_tokens)
        return done, self.engine.told(drafted, completion_tokens=done.n_tokens)

    def _refusal(self, body: Mapping[str, Any], n_tokens: int) -> Step | None:
        if digest(f"busy {len(self.seen)}") / 2**32 < self.script.busy_share:
            return _error(429, "Too many requests.", "RateLimitError", {"Retry-After": "0"})
        if body.get("model") != self.model:
            return _error(404, f"The model `{body.get('model')}` does not exist.", "NotFoundError")
        if n_tokens >= self.script.max_model_len:
            limit = self.script.max_model_len
            return _error(400, f"This model's maximum context length is {limit} tokens.", "BadRequestError")
        is_rejected = any(body.get(name) for name in self.script.engine.rejects)
        return _error(400, SPEC_DECODE_REFUSES, "BadRequestError") if is_rejected else None

    def _answer(
        self, kind: str, choices: list[dict[str, Any]], prompts: Sequence[Sequence[int]], told: Mapping[str, Any]
    ) -> web.Response:
        prompt_tokens = sum(map(len, prompts))
        texts = [choice.get("text") or choice.get("message", {}).get("content") or "" for choice in choices]
        completion_tokens = sum(len(encode(text)) for text in texts)
        self.engine.count(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
        return web.json_response(
            {
                "id": f"{kind}-{len(self.seen)}",
                "object": kind,
                "created": int(time.time()),
                "model": self.engine.answering,
                "choices": [{"index": index, **choice} for index, choice in enumerate(choices)],
                "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens},
                "system_fingerprint": self.engine.fingerprint,
                **told,
            }
        )


def _openapi(settings: Sequence[str]) -> dict[str, Any]:
    """As FastAPI writes it: a reference to the body's schema."""
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Body"}}}}
    schema = {"type": "object", "properties": {name: {} for name in ("model", "prompt", "messages", *settings)}}
    paths = {f"/v1/{route}": {"post": {"requestBody": body}} for route in ("completions", "chat/completions")}
    return {"openapi": "3.1.0", "paths": paths, "components": {"schemas": {"Body": schema}}}


def _error(status: int, message: str, kind: str, headers: Mapping[str, str] | None = None) -> Step:
    return reply({"error": {"message": message, "type": kind, "code": status}}, status=status, headers=headers)

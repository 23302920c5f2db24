"""A server that streams as vLLM does: tokens come at a rate, and everything that goes wrong with speed is a knob.

`with StreamingServer(Streams(tokens_per_s=200)) as server: server.url` serves in a thread; `python -m
tests.streaming_server --port 8300 tokens_per_s=50` in a process of its own. A token is up to four characters of a word.
Routes: /v1/models, /v1/completions, /v1/chat/completions, /tokenize, /metrics, /version, /health.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self

TOKEN = re.compile(r"\s?[^\s]{1,4}|\s")
NEEDLE = re.compile(
    r"(?:code|number|key)\b[^.\n]{0,60}? is ([\w-]*\w)|(?:코드|번호|암호|열쇠)[^.\n]{0,40}?[은는] ([0-9A-Za-z-]+)"
)
WORDS = ["The", " boat", " came", " back", " before", " the", " storm", ",", " and", " the", " old", " keep", "er", "."]
GARBAGE = [" zq", "\ufffd", "xx", " ##"]
SPEC_TOKENS = 4
HEAD = "HTTP/1.1 {} {}\r\nContent-Type: {}\r\n"
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 500: "Internal Server Error", 503: "Service Unavailable"}


def tokens(text: str) -> list[str]:
    return TOKEN.findall(text)


@dataclass(kw_only=True)
class Streams:
    """What the server does. All of it may be changed while it serves; lengths are tokens of the prompt."""

    tokens_per_s: float = 1000.0
    rates: Sequence[float] = ()  # rates in turn, one a request, in place of tokens_per_s: several modes
    slower_each: float = 0.0  # share by which each other request under way slows a request
    first_token_s: float = 0.0
    prefill_tokens_per_s: float | None = None  # first_token_s grows by the tokens that the cache does not hold
    tokens_per_chunk: int = 1
    events_per_token: bool = False  # the tokens of a chunk as an event each, written at once, as llama.cpp does
    cold_requests: int = 0  # so many first requests are `cold_factor` times slower
    cold_factor: float = 12.0
    in_step: bool = False  # all streams send at the same moments, as a batch's steps
    foreign: int = 0  # requests of others that are finished with each of ours, in /metrics
    running: int = 0  # requests of others that run all the time, in /metrics
    has_usage: bool = True
    refuses: tuple[str, ...] = ()  # names in a body that get a 400
    has_token_ids: bool = True
    tells_cached: bool = True
    has_cache: bool = True
    has_tokenizer: bool = True
    has_metrics: bool = True
    drafts: bool = False
    accepted: float = 2.0  # of SPEC_TOKENS in each round
    zero_share: float = 0.0  # rounds of which nothing is accepted
    thinks: int = 0  # first tokens of a chat's answer that are reasoning_content
    stops_after: int | None = None  # tokens, then the connection is closed
    error_after: int | None = None  # tokens, then an event with an error
    silent_after: int | None = None  # tokens, then nothing
    ends_quietly: bool = False  # stops_after ends the body properly, without finish_reason and [DONE]
    dies_above: int | None = None  # closes all sockets, is back after dead_s with new counters
    dead_s: float = 10.0
    hangs_above: int | None = None
    garbage_above: int | None = None
    fails_above: int | None = None  # 500
    refuses_above: int | None = None  # 400; None: max_model_len
    told_factor: float = 1.0  # of the count that a refusal tells
    max_model_len: int = 131_072
    finds_needles: bool = True
    kv_tokens: int | None = None  # in /metrics' cache_config_info


class Answer(NamedTuple):
    words: Sequence[str]
    finish_reason: str
    is_chat: bool
    first_s: float
    step_s: float
    usage: Mapping[str, Any]


@dataclass(eq=False)
class StreamingServer:
    """Serves until its context ends. `seen` holds route and body of each request for tokens."""

    script: Streams = field(default_factory=Streams)
    port: int = 0
    model: str = "scripted"
    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    n_deaths: int = 0
    in_flight: int = 0
    most_in_flight: int = 0

    def __post_init__(self) -> None:
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin()

    def _begin(self) -> None:
        self.started_at_s = time.time()
        self.n_requests = self.finished = self.prompt_tokens = self.generated_tokens = 0
        self.rounds = self.accepted_tokens = 0
        self.accepted_at = [0] * SPEC_TOKENS
        self._cache: set[int] = set()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def prompts(self) -> list[str]:
        """Of the requests for tokens, in their order; of a chat the last message."""
        return [body["prompt"] if "prompt" in body else body["messages"][-1]["content"] for _, body in self.seen]

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve(self._ready.set)), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def serve(self, ready: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        await self._listen()
        ready()
        await self._stop.wait()
        self._server.close()
        self._abort()
        for task in self._tasks:
            task.cancel()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def die(self, seconds: float) -> None:
        """Closes all sockets, and comes back after these seconds. To be called within the server's loop."""
        self.n_deaths += 1
        self._server.close()
        self._abort()

        async def come_back() -> None:
            await asyncio.sleep(seconds)
            self._begin()
            await self._listen()

        task = asyncio.create_task(come_back())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path, _ = head.split(" ", 2)
                length = re.search(r"(?i)content-length: (\d+)", head)
                raw = await reader.readexactly(int(length[1])) if length else b""
                await self._answer(method, path.partition("?")[0], json.loads(raw) if raw else {}, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, method: str, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        script = self.script
        if path in ("/v1/completions", "/v1/chat/completions"):
            self.seen.append((path, body))
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                await self._complete(path, body, writer)
            finally:
                self.in_flight -= 1
        elif path == "/v1/models":
            card = {"id": self.model, "owned_by": "vllm", "root": self.model, "max_model_len": script.max_model_len}
            _reply(writer, 200, {"object": "list", "data": [card]})
        elif path == "/tokenize" and script.has_tokenizer:
            text = body.get("prompt") or "".join(message["content"] for message in body.get("messages", ()))
            ids = [zlib.crc32(piece.encode()) >> 8 for piece in tokens(text)]
            _reply(writer, 200, {"tokens": ids, "count": len(ids), "max_model_len": script.max_model_len})
        elif path == "/metrics" and script.has_metrics:
            _reply(writer, 200, self._metrics())
        elif path in ("/version", "/health"):
            _reply(writer, 200, {"version": "0.11.0"})
        else:
            _reply(writer, 404, {"detail": "Not Found"})

    async def _complete(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        script, is_chat = self.script, path.endswith("chat/completions")
        prompt = "".join(message["content"] for message in body["messages"]) if is_chat else body["prompt"]
        pieces = tokens(prompt) if isinstance(prompt, str) else [str(token) for token in prompt]
        n_prompt, told = len(pieces), round(len(pieces) * script.told_factor)
        limit = script.max_model_len if script.refuses_above is None else script.refuses_above
        refused = [name for name in script.refuses if name in body]
        if refused or n_prompt > limit:
            message = f"This model's maximum context length is {limit} tokens, the prompt has {told} tokens."
            message = f"Extra inputs are not permitted: {refused[0]}" if refused else message
            _reply(writer, 400, {"error": {"message": message, "type": "BadRequestError", "code": 400}})
            return
        if script.fails_above is not None and n_prompt > script.fails_above:
            _reply(writer, 500, {"error": {"message": "CUDA out of memory", "code": 500}})
            return
        if script.dies_above is not None and n_prompt > script.dies_above:
            self.die(script.dead_s)
            return
        if script.hangs_above is not None and n_prompt > script.hangs_above:
            await asyncio.sleep(3600)
        number, self.n_requests = self.n_requests, self.n_requests + 1
        cached = self._cached(pieces)
        limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        words, reason = self._words("".join(pieces) if isinstance(prompt, str) else "", n_prompt, limit)
        rate = script.rates[number % len(script.rates)] if script.rates else script.tokens_per_s
        slow = script.cold_factor if number < script.cold_requests else 1.0
        slow *= 1.0 + script.slower_each * (self.in_flight - 1)
        first_s = script.first_token_s
        if script.prefill_tokens_per_s:
            first_s += (n_prompt - cached) / script.prefill_tokens_per_s
        usage: dict[str, Any] = {"prompt_tokens": n_prompt, "completion_tokens": len(words)}
        usage |= {"total_tokens": n_prompt + len(words)}
        if script.tells_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        if body.get("stream"):
            await self._stream(body, writer, Answer(words, reason, is_chat, first_s * slow, slow / rate, usage))
        else:
            await asyncio.sleep((first_s + (len(words) - 1) / rate) * slow)
            text = "".join(words)
            content = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
            choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
            _reply(writer, 200, {"model": self.model, "choices": [choice], "usage": usage})
        self._count(n_prompt, len(words))

    def _cached(self, pieces: Sequence[str]) -> int:
        """How many tokens of the prompt were seen before, in blocks of 16; remembers it."""
        state, cached, is_known = 0, 0, self.script.has_cache
        for end in range(16, len(pieces), 16):
            state = zlib.crc32("".join(pieces[end - 16 : end]).encode(), state)
            is_known = is_known and state in self._cache
            cached = end if is_known else cached
            self._cache.add(state)
        return cached

    def _words(self, prompt: str, n_prompt: int, limit: int) -> tuple[list[str], str]:
        script = self.script
        needles = [next(filter(None, groups)) for groups in NEEDLE.findall(prompt)]
        if script.garbage_above is not None and n_prompt > script.garbage_above:
            return (GARBAGE * limit)[:limit], "length"
        if needles and script.finds_needles:
            answer = tokens(", ".join(dict.fromkeys(needles)))
            return answer[:limit], "length" if len(answer) > limit else "stop"
        return (WORDS * (1 + limit // len(WORDS)))[:limit], "length"

    async def _stream(self, body: Mapping[str, Any], writer: asyncio.StreamWriter, answer: Answer) -> None:
        words, reason, is_chat, first_s, step_s, usage = answer
        script, size = self.script, self.script.tokens_per_chunk
        n_thoughts = script.thinks if is_chat else 0
        base: dict[str, Any] = {"id": "stream-1", "object": "chat.completion.chunk" if is_chat else "text_completion"}
        base |= {"created": int(time.time()), "model": self.model}

        def event(start: int, end: int) -> bytes:
            name = "reasoning_content" if start < n_thoughts else "content"
            text = "".join(words[start:end])
            choice: dict[str, Any] = {"index": 0, **({"delta": {name: text}} if is_chat else {"text": text})}
            choice |= {"logprobs": None, "finish_reason": reason if end == len(words) else None}
            if script.has_token_ids and body.get("return_token_ids"):
                choice["token_ids"] = list(range(start, end))
            return _event({**base, "choices": [choice]})

        chunks: list[bytes] = []
        for start in range(0, len(words), size):
            end = min(start + size, len(words))
            bounds = [(at, at + 1) for at in range(start, end)] if script.events_per_token else [(start, end)]
            chunks.append(b"".join(_chunk(event(*bound)) for bound in bounds))
        writer.write((HEAD.format(200, "OK", "text/event-stream") + "Transfer-Encoding: chunked\r\n\r\n").encode())
        if is_chat:
            role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            writer.write(_chunk(_event({**base, "choices": [role]})))
        since = self._loop.time() + first_s
        if script.in_step:
            since = (since // step_s + 1) * step_s
        for number, chunk in enumerate(chunks):
            await asyncio.sleep(max(0.0, since + number * size * step_s - self._loop.time()))
            n_sent = number * size
            if script.stops_after is not None and n_sent >= script.stops_after:
                if script.ends_quietly:
                    writer.write(b"0\r\n\r\n")
                else:
                    writer.close()
                return
            if script.error_after is not None and n_sent >= script.error_after:
                writer.write(_chunk(_event({"error": {"message": "EngineCore died", "code": 500}})) + b"0\r\n\r\n")
                return
            if script.silent_after is not None and n_sent >= script.silent_after:
                await asyncio.sleep(3600)
            writer.write(chunk)
        last = b"data: [DONE]\n\n"
        if script.has_usage and (body.get("stream_options") or {}).get("include_usage"):
            last = _event({**base, "choices": [], "usage": usage}) + last
        writer.write(_chunk(last) + b"0\r\n\r\n")

    def _count(self, n_prompt: int, n_tokens: int) -> None:
        script = self.script
        self.finished += 1 + script.foreign
        self.prompt_tokens += n_prompt
        self.generated_tokens += n_tokens
        if script.drafts:
            rounds = max(1, round((n_tokens - 1) / (1.0 + script.accepted)))
            self.rounds += rounds
            self.accepted_tokens += round(rounds * script.accepted)
            hits = round(rounds * (1.0 - script.zero_share))
            for position in range(SPEC_TOKENS):
                self.accepted_at[position] += min(hits, max(0, round(rounds * (script.accepted - position))))

    def _metrics(self) -> str:
        labels = f'engine="0",model_name="{self.model}"'
        own = self.in_flight + self.script.running
        lines = [f"process_start_time_seconds {self.started_at_s}", f"vllm:num_requests_running{{{labels}}} {own}.0"]
        counts = {"prompt_tokens": self.prompt_tokens, "generation_tokens": self.generated_tokens}
        if self.script.drafts:
            counts |= {"spec_decode_num_drafts": self.rounds, "spec_decode_num_draft_tokens": SPEC_TOKENS * self.rounds}
            counts |= {"spec_decode_num_accepted_tokens": self.accepted_tokens}
            for position, count in enumerate(self.accepted_at):
                name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
                lines.append(f'{name}{{{labels},position="{position}"}} {count}.0')
        lines += [f"vllm:{name}_total{{{labels}}} {count}.0" for name, count in counts.items()]
        lines.append(f'vllm:request_success_total{{{labels},finished_reason="length"}} {self.finished}.0')
        if self.script.kv_tokens:
            settings = f'block_size="16",num_gpu_blocks="{self.script.kv_tokens // 16}"'
            lines.append(f'vllm:cache_config_info{{engine="0",{settings}}} 1.0')
        return "\n".join([*lines, ""])


def _event(content: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _reply(writer: asyncio.StreamWriter, status: int, content: object) -> None:
    raw = (content if isinstance(content, str) else json.dumps(content)).encode()
    head = HEAD.format(status, REASONS[status], "text/plain" if isinstance(content, str) else "application/json")
    writer.write(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)


async def _main(server: StreamingServer) -> None:
    await server.serve(lambda: print(server.url, flush=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="scripted")
    parser.add_argument("knobs", nargs="*", metavar="NAME=VALUE", help=", ".join(one.name for one in fields(Streams)))
    options = parser.parse_args()
    knobs = {name: json.loads(value) for name, _, value in (knob.partition("=") for knob in options.knobs)}
    import uvloop

    uvloop.run(_main(StreamingServer(Streams(**knobs), port=options.port, model=options.model)))

"""Streams one answer and times its tokens.

While tokens come, only their arrival is noted; what they say is read when somebody asks for it. By aiohttp: the threads
of pyreqwest add 1.5 to 3 ms to the p99 of the times between tokens (`python -m benchmarks.streams`).

Sources: vLLM vllm/entrypoints/openai/completion/serving.py (`return_token_ids`; cached tokens only with
--enable-prompt-tokens-details); llama.cpp tools/server/server-task.cpp (`timings`).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver

from qualab.endpoints.replies import ABORTED, count_of, error_message, object_of, refusal
from qualab.endpoints.transport import CONNECT_TIMEOUT_S, HEADERS, LOG, READ_BYTES, Exchange, Failure
from qualab.model.engine import StreamTimes
from qualab.model.names import AnswerStatus

TOGETHER_S = 0.001
"""Chunks that come within this time are of one step, as llama.cpp sends each token of a draft round by itself."""
USAGE = b'"stream":true,"stream_options":{"include_usage":true}'
OPTIONS = (USAGE + b',"return_token_ids":true', USAGE, b'"stream":true')
"""What is added to a body. A server that refuses one is sent the next."""
CONTENTS = ("text", "content", "reasoning_content", "reasoning", "tool_calls")
"""Where a chunk holds what the model wrote, thoughts included."""


@dataclass(slots=True)
class _Content:
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """When tokens came, and how many: 1 for a chunk that does not tell."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str = ""
    has_ids: bool = False
    is_done: bool = False

    def add(self, at_s: float, event: Any) -> None:
        """Take what one event says. Raises Failure for an error."""
        if not isinstance(event, dict) or event.get("error") or event.get("object") == "error":
            raise Failure(f"the stream holds an error: {error_message(event) or event}")
        self.usage, self.timings = (object_of(event, name) or getattr(self, name) for name in ("usage", "timings"))
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        delta = object_of(choice, "delta") or choice
        ids = choice.get("token_ids")
        n_ids = len(ids) if isinstance(ids, list) else 0
        if n_ids or any(map(delta.get, CONTENTS)):
            self.arrivals.append((at_s, n_ids or 1))
        self.has_ids |= n_ids > 0
        self.finish_reason = str(choice.get("finish_reason") or self.finish_reason)
        if self.finish_reason in ABORTED:
            raise Failure(f"the server ended the answer with finish_reason {self.finish_reason!r}")

    def share(self) -> None:
        """Share what usage counts evenly over the chunks, where they do not tell themselves."""
        n_tokens, n_chunks = count_of(self.usage.get("completion_tokens")), len(self.arrivals)
        if n_tokens and n_chunks and not self.has_ids:
            ends = [-(-n_tokens * index // n_chunks) for index in range(n_chunks + 1)]
            pairs = zip(self.arrivals, pairwise(ends), strict=True)
            self.arrivals = [(at_s, end - start) for (at_s, _), (start, end) in pairs if end > start]

    def gaps_s(self) -> list[float]:
        """Return the time before each token but the first."""
        steps: list[tuple[float, int]] = []
        for at_s, n_tokens in self.arrivals:
            if steps and at_s - steps[-1][0] <= TOGETHER_S:
                steps[-1] = steps[-1][0], steps[-1][1] + n_tokens
            else:
                steps.append((at_s, n_tokens))
        gaps_s = [0.0] * (steps[0][1] - 1) if steps else []
        for (before_s, _), (at_s, n_tokens) in pairwise(steps):
            gaps_s += [(at_s - before_s) / n_tokens] * n_tokens
        return gaps_s


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """A streamed answer; it is read when it is first looked at, which is best done when nothing is timed."""

    started_s: float
    ended_s: float
    arrivals_s: Sequence[float]
    parts: Sequence[bytes]
    """Bytes of the body as they came, one for each arrival."""
    failure: Failure | None
    redact: Callable[[str], str]

    @property
    def times(self) -> StreamTimes:
        """Times and counts. A model that only thinks is timed as any: its status is not NO_FINAL_ANSWER."""
        return self._read[0]

    @property
    def gaps_s(self) -> list[float]:
        """Time before each token but the first; those that come together share theirs evenly."""
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[StreamTimes, list[float]]:
        content, failure = _Content(), self.failure
        try:
            self._take_events(content)
        except Failure as exc:
            failure = failure or exc
        content.share()
        usage, timings = content.usage, content.timings
        cached = count_of(object_of(usage, "prompt_tokens_details").get("cached_tokens"))
        ended = AnswerStatus.TRUNCATED if content.finish_reason == "length" else AnswerStatus.OK
        times = StreamTimes(
            status=failure.status if failure else ended,
            first_token_s=content.arrivals[0][0] - self.started_s if content.arrivals else None,
            latency_s=self.ended_s - self.started_s,
            n_tokens=sum(n_tokens for _, n_tokens in content.arrivals),
            prompt_tokens=count_of(usage.get("prompt_tokens")),
            cached_tokens=count_of(timings.get("cache_n")) if cached is None else cached,
            is_counted=content.has_ids or bool(count_of(usage.get("completion_tokens"))),
            error=self.redact(failure.message) if failure else "",
        )
        return times, content.gaps_s()

    def _take_events(self, content: _Content) -> None:
        """Read the events, each at the time of its last byte. Raises Failure."""
        rest = b""
        for at_s, part in zip(self.arrivals_s, self.parts, strict=True):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                name, _, data = line.partition(b":")
                if data.strip() == b"[DONE]":
                    content.is_done = True
                elif name in (b"data", b"error"):
                    try:
                        event = orjson.loads(data)
                    except orjson.JSONDecodeError:
                        raise Failure("an event of the stream is not JSON") from None
                    content.add(at_s, {"error": event} if name == b"error" else event)
        if content.is_done or content.finish_reason or self.failure:
            return
        if content.arrivals:
            raise Failure("the stream stopped in the middle", hint=LOG)
        body = b"".join(self.parts)[:READ_BYTES].decode(errors="replace")
        raise Failure(f"the server does not stream, but answers: {body}")


class FixedResolver(AbstractResolver):
    """Gives every host one address."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(self, host: str, port: int = 0, *_: object, **__: object) -> list[Any]:
        own = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        return [{"hostname": host, "host": self._address, "port": port, "family": own, "proto": 0, "flags": 0}]

    async def close(self) -> None: ...


class Streamer:
    """Streams from one server, each by a connection of its own, which is made before its time begins."""

    def __init__(self, *, key: str, timeout_s: float, address: str, may_be_proxied: bool) -> None:
        resolver = FixedResolver(address) if address else None
        sending = aiohttp.TraceConfig()
        sending.on_request_headers_sent.append(_on_sent)
        self._session = aiohttp.ClientSession(
            # llama.cpp closes a connection after a stream, and a request that meets that must not be sent again: it may
            # have been the one that killed the server
            connector=aiohttp.TCPConnector(limit=0, force_close=True, resolver=resolver),
            trace_configs=[sending],
            headers=HEADERS | {"Accept": "text/event-stream"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s, CONNECT_TIMEOUT_S)),
            trust_env=may_be_proxied,
        )
        self._options: Sequence[bytes] = OPTIONS

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def stream(self, url: str, body: bytes, *, redact: Callable[[str], str]) -> Streamed:
        """Post a JSON object, with what makes the server stream. Never raises for what it does."""
        for options in self._options:
            streamed = await self._post(url, body[:-1] + b"," + options + b"}", redact)
            if streamed.failure is None:
                self._options = (options,)
            elif streamed.failure.status is AnswerStatus.REJECTED:
                continue
            break
        return streamed

    async def _post(self, url: str, body: bytes, redact: Callable[[str], str]) -> Streamed:
        arrivals_s: list[float] = []  # two flat lists: the garbage collector looks at neither floats nor bytes
        parts: list[bytes] = []
        failure: Failure | None = None
        sent_s = [time.perf_counter()]
        try:
            async with self._session.post(url, data=body, allow_redirects=False, trace_request_ctx=sent_s) as response:
                if response.status == 200:
                    read = response.content.readany
                    while part := await read():
                        arrivals_s.append(time.perf_counter())
                        parts.append(part)
                else:
                    exchange = Exchange(response.status, await response.read(), response.headers.get)
                    failure = refusal(exchange, now=datetime.now(UTC))
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            number = getattr(exc, "errno", None)
            other = f"the connection failed ({os.strerror(number)})" if number else "the connection failed"
            named = (entry for entry in FAILURES if isinstance(exc, entry[0]))
            _, status, message = next(named, (None, BROKEN, other))
            failure = Failure(message, status=status, hint=LOG)
        return Streamed(
            started_s=sent_s[-1],
            ended_s=time.perf_counter() if failure or not arrivals_s else arrivals_s[-1],
            arrivals_s=arrivals_s,
            parts=parts,
            failure=failure,
            redact=redact,
        )


async def _on_sent(_: object, context: Any, __: object) -> None:
    context.trace_request_ctx.append(time.perf_counter())


BROKEN = AnswerStatus.CONNECTION_ERROR
FAILURES: Sequence[tuple[type[Exception], AnswerStatus, str]] = (
    (aiohttp.ConnectionTimeoutError, BROKEN, "no connection was made in the time allowed"),
    (aiohttp.ClientSSLError, BROKEN, "TLS failed"),
    (aiohttp.ClientConnectorDNSError, BROKEN, "its host name cannot be resolved"),
    (TimeoutError, AnswerStatus.TIMEOUT, "no whole answer came in the time allowed"),
    (aiohttp.ClientPayloadError, AnswerStatus.BAD_BODY, "the body ended early or cannot be decoded"),
    (aiohttp.ServerDisconnectedError, BROKEN, "the server closed the connection without an answer"),
    (aiohttp.ClientResponseError, AnswerStatus.BAD_BODY, "the answer is not HTTP"),
)
"""The first that an exception is counts."""

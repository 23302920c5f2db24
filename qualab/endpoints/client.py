"""The asynchronous client of one OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from qualab.endpoints.engines import EngineProbe
from qualab.endpoints.replies import error_message, failed_reply, read_reply, refusal
from qualab.endpoints.scoring import Scorer, read_token_ids
from qualab.endpoints.transport import (
    PROBE_TIMEOUT_S,
    Exchange,
    Failure,
    Redactor,
    Sending,
    Timing,
    Transport,
    checked_key,
)
from qualab.endpoints.urls import alternatives, normalize_url, root_of
from qualab.errors import EndpointMisconfigured, EndpointUnreachable, InvalidValue, QualabError, ScoringUnavailable
from qualab.model.audit import Scoring, TokenScores
from qualab.model.engine import Counters, Engine
from qualab.model.items import Reply, Request
from qualab.model.names import AnswerStatus, Api
from qualab.model.plan import RequestPolicy
from qualab.model.ports import Tokenize

if TYPE_CHECKING:
    from qualab.endpoints.streaming import Streamed, Streamer

LOADING_TIMEOUT_S = 180.0
LOADING_POLL_S = 1.0
MAX_RETRY_AFTER_S = 120.0
"""A server that asks for a longer pause gets this one."""
SHOWN_MODELS = 5
BUSY_ATTEMPTS = 3

KEY_HINT = (
    "Give a key with QUALAB_API_KEY (one arm's: QUALAB_BASELINE_API_KEY, QUALAB_CANDIDATE_API_KEY) or --api-key-file"
)
NOT_OPENAI = "Give the URL of an OpenAI-compatible server, as http://127.0.0.1:8000/v1"
NAME_ONE = "Name the model's tokenizer with --tokenizer DIR_OR_FILE (a tokenizer.json)"
ROUTES = {Api.COMPLETIONS: "completions", Api.CHAT: "chat/completions"}

T = TypeVar("T")
OnWait = Callable[[float], None]
"""Called with each pause, in seconds, that a server asks for."""
TokenizeBody = Callable[[str, str], dict[str, Any]]
VLLM_BODY: TokenizeBody = lambda text, model: {"model": model, "prompt": text, "add_special_tokens": False}  # noqa: E731
LLAMA_BODY: TokenizeBody = lambda text, _model: {"content": text, "add_special": False}  # noqa: E731
TOKENIZE_BODIES = (VLLM_BODY, LLAMA_BODY)
"""llama.cpp answers vLLM's form with 200 and no tokens, so a form counts only where tokens come back."""


class HttpEndpoint:
    """An OpenAI-compatible endpoint. Its context owns the connections; opening it asks nothing yet."""

    def __init__(
        self,
        url: str,
        *,
        policy: RequestPolicy,
        key: str | None,
        timing: Timing | None = None,
        loading_timeout_s: float = LOADING_TIMEOUT_S,
        address: str = "",
        slots: asyncio.Semaphore | None = None,
    ) -> None:
        """Check URL, policy and key. Raises InvalidValue.

        `key` goes into the Authorization header and nowhere else. A server that is still loading its model is waited
        for up to `loading_timeout_s`. Where an address is given, the URL's host is not looked up. `slots` bound the
        requests under way where several endpoints share them.
        """
        for name in ("concurrency", "timeout_s", "max_attempts"):
            if getattr(policy, name) <= 0:
                raise InvalidValue(f"{name} is {getattr(policy, name)}", hint="It must be above 0")
        self.url = normalize_url(url)
        """The API's root, as "http://127.0.0.1:8000/v1"."""
        self._root = root_of(self.url)
        key = checked_key(key)
        self._redact = Redactor(key)
        self._transport = Transport(self.url, key=key, timeout_s=policy.timeout_s, address=address)
        self._key, self._address = key, address
        self._streamer: Streamer | None = None
        self._policy = policy
        self._timing = timing or Timing()
        self._loading_timeout_s = loading_timeout_s
        self._slots = slots or asyncio.Semaphore(policy.concurrency)
        self._probe = EngineProbe(self._root, transport=self._transport)
        self._tokenize_body: TokenizeBody | None = None
        self._scorer = Scorer(self.url, self._root, post=self._post)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()
        if self._streamer:
            await self._streamer.close()

    async def inspect(self, *, model: str) -> bool:
        """Check that it serves the model; tell whether it tokenizes.

        Raises EndpointUnreachable, EndpointMisconfigured (path, key, model name).
        """
        await self._model_card(model)
        return await self._detect_tokenizer(model) is not None

    async def problem(self) -> str:
        """Say why nothing connects to it; empty where something does."""
        try:
            await self._transport.send("GET", f"{self.url}/models", timeout_s=PROBE_TIMEOUT_S)
        except Failure as failure:
            return failure.message if failure.status is AnswerStatus.CONNECTION_ERROR else ""
        return ""

    async def engine(self, *, model: str) -> Engine:
        """Describe the engine. Raises as `inspect`."""
        card, names = await self._model_card(model)
        return replace(await self._probe.engine(card), names=tuple(dict.fromkeys((model, *names))))

    async def counters(self) -> Counters | None:
        """Read the engine's counters; None where they are closed."""
        return await self._probe.counters()

    async def settings(self, api: Api) -> frozenset[str] | None:
        """List the names that a request on this route may have, by the server's OpenAPI document; None without one."""
        document = await self._transport.get_object(f"{self._root}/openapi.json")
        try:
            operation = document["paths"][f"/v1/{ROUTES[api]}"]["post"]
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            return frozenset(_properties(document, schema)) or None
        except (AttributeError, KeyError, TypeError):  # another kind of document
            return None

    async def ask(self, request: Request, body: bytes, *, on_wait: OnWait | None = None) -> Reply:
        """Ask once, with the policy's attempts; at most `policy.concurrency` requests are under way at any time.

        Never raises for what the server does: that is the Reply's status.
        """
        url = f"{self.url}/{ROUTES[request.api]}"
        try:
            return await self._post(url, body, partial(read_reply, request), on_wait=on_wait)
        except Failure as failure:
            return failed_reply(failure)

    async def stream(self, request: Request, body: bytes) -> Streamed:
        """Stream one answer, timed: one attempt, and the caller bounds how many are under way.

        Never raises for what the server does. Options that make it stream are added to the body, a JSON object.
        """
        if self._streamer is None:
            from qualab.endpoints.streaming import Streamer  # noqa: PLC0415 - slow to import

            self._streamer = Streamer(
                key=self._key,
                timeout_s=self._policy.timeout_s,
                address=self._address,
                may_be_proxied=self._transport.may_be_proxied,
            )
        return await self._streamer.stream(f"{self.url}/{ROUTES[request.api]}", body, redact=self._redact.excerpt)

    async def _post(
        self, url: str, body: bytes, read: Callable[[bytes, Sending], T], *, on_wait: OnWait | None = None
    ) -> T:
        # a server that asks to wait uses up no attempt but the policy's time for waiting
        policy, timing = self._policy, self._timing
        attempt, n_waits, waited_s = 1, 0, 0.0
        while True:
            try:
                async with self._slots:
                    # deadline and latency start here, not in the queue
                    sent_at, started = timing.now(), timing.monotonic_s()
                    try:
                        exchange = await self._transport.send("POST", url, body=body)
                    finally:
                        sending = Sending(attempt, timing.monotonic_s() - started, sent_at)
                if exchange.status != 200:
                    raise refusal(exchange, now=timing.now())
                return read(exchange.body, sending)
            except Failure as exc:
                exc.message = self._redact.excerpt(exc.message)
                exc.sending = sending
                if not exc.retry or (attempt >= policy.max_attempts and not exc.is_backpressure):
                    raise
                n_waits += exc.is_backpressure
                pause = pause_s(exc, attempt=n_waits if exc.is_backpressure else attempt, policy=policy, timing=timing)
                if exc.is_backpressure:
                    waited_s += sending.latency_s + pause
                    if waited_s > policy.max_wait_s:
                        exc.message += " (after waiting as long as max_wait allows)"
                        raise
                    if on_wait:
                        on_wait(pause)
                else:
                    attempt += 1
            await timing.sleep(pause)

    async def tokenize(self, texts: Sequence[str], *, model: str) -> list[list[int]]:
        """Tokenize with the server's own tokenizer, without special tokens. Raises EndpointMisconfigured,
        EndpointUnreachable."""
        form = self._tokenize_body or await self._detect_tokenizer(model)
        if form is None:
            raise EndpointMisconfigured(f"{self._root}/tokenize does not tokenize", hint=NAME_ONE)
        encoded: list[list[int]] = [[] for _ in texts]
        waiting = iter(enumerate(texts))

        async def work() -> None:
            for index, text in waiting:
                if text:
                    body = json.dumps(form(text, model)).encode()
                    encoded[index] = await self._post(f"{self._root}/tokenize", body, read_token_ids)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._policy.concurrency, len(texts))):
                    group.create_task(work())
        except* Failure as failures:
            failure = failures.exceptions[0]
            assert isinstance(failure, Failure)
            if failure.status.is_failure:
                message = f"{self._root}/tokenize does not answer: {failure.message}"
                raise EndpointUnreachable(message, hint="Try again, or " + NAME_ONE) from None
            message = f"{self._root}/tokenize refuses a text: {failure.message}"
            raise EndpointMisconfigured(message, hint=NAME_ONE) from None
        return encoded

    async def scoring(self, *, model: str) -> Scoring | None:
        """Find out how the server scores a given text; None where it cannot. Raises as `inspect`."""
        card, _ = await self._model_card(model)
        return await self._scorer.scoring(card, model=model)

    async def score(
        self, prompt_ids: Sequence[int], answer_ids: Sequence[int], *, model: str, scoring: Scoring
    ) -> TokenScores:
        """Score an answer's tokens after a prompt: one prefill, where the form allows it.

        Raises ScoringUnavailable where the server refuses this text or answers nonsense, EndpointUnreachable where it
        fails after its attempts.
        """
        return await self._scorer.score(prompt_ids, answer_ids, model=model, form=scoring.form)

    async def prompt_ids(self, request: Request, *, model: str) -> tuple[int, ...]:
        """Tokenize a request's prompt as the server renders it, special tokens included. Raises as `score`."""
        form = await self._tokenizing(model)
        return await self._scorer.prompt_ids(request, model=model, is_llama=form is LLAMA_BODY)

    async def answer_ids(self, text: str, *, model: str) -> tuple[int, ...] | None:
        """Tokenize an answer again; None where its tokens are another text. Raises as `score`.

        They may still not be the tokens that were generated.
        """
        if not text:
            return ()
        form = await self._tokenizing(model)
        return await self._scorer.answer_ids(text, model=model, body=form(text, model))

    async def _tokenizing(self, model: str) -> TokenizeBody:
        form = self._tokenize_body or await self._detect_tokenizer(model)
        if form is None:
            raise ScoringUnavailable(f"{self._root}/tokenize does not tokenize")
        return form

    async def _detect_tokenizer(self, model: str) -> TokenizeBody | None:
        for form in TOKENIZE_BODIES:
            body, url = json.dumps(form("qualab", model)).encode(), f"{self._root}/tokenize"
            try:
                exchange = await self._transport.send("POST", url, body=body, timeout_s=PROBE_TIMEOUT_S)
                if exchange.status == 200 and read_token_ids(exchange.body):
                    self._tokenize_body = form
                    return form
            except Failure:
                continue
        return None

    async def _model_card(self, model: str) -> tuple[Mapping[str, Any], list[str]]:
        # the model's entry in the list of models, and its names there: aliases, root, what else is served from that
        url = f"{self.url}/models"
        try:
            exchange = await self._ready(url)
        except Failure as failure:
            raise EndpointUnreachable(f"{url} cannot be reached: {failure.message}", hint=failure.hint) from None
        if exchange.status != 200:
            raise await self._refusal(url, exchange)
        cards = _cards(exchange)
        if cards is None:
            shown = self._redact.excerpt(exchange.body, limit=60)
            raise EndpointMisconfigured(f"{url} does not answer with a list of models: '{shown}'", hint=NOT_OPENAI)
        for card in cards:
            aliases = aliases if isinstance(aliases := card.get("aliases"), list) else []
            if model == card["id"] or model in aliases:
                root = card.get("root")
                names = (card["id"], *aliases, root, *(own["id"] for own in cards if root and own.get("root") == root))
                return card, [name for name in names if isinstance(name, str) and name]
        names_served = [card["id"] for card in cards]
        near = sorted(names_served, key=lambda name: -SequenceMatcher(None, name.lower(), model.lower()).ratio())
        more = f" and {len(near) - SHOWN_MODELS} more" if len(near) > SHOWN_MODELS else ""
        hint = f"It serves {', '.join(near[:SHOWN_MODELS])}{more}" if near else "It serves none: look into its log"
        raise EndpointMisconfigured(f"{self.url} serves no model {model!r}", hint=hint)

    async def _ready(self, url: str) -> Exchange:
        since, n_busy = self._timing.monotonic_s(), 0
        while True:
            exchange = await self._transport.send("GET", url, timeout_s=PROBE_TIMEOUT_S)
            if exchange.status != 429 and exchange.status < 500:
                return exchange
            is_loading = exchange.status == 503 and b"loading" in exchange.body.lower()
            n_busy += not is_loading
            if is_loading and self._timing.monotonic_s() - since >= self._loading_timeout_s:
                raise EndpointUnreachable(
                    f"{self.url} has been loading its model for {self._loading_timeout_s:g} s",
                    hint="Wait until its /health answers 200, then run again",
                )
            if n_busy >= BUSY_ATTEMPTS:
                return exchange
            await self._timing.sleep(LOADING_POLL_S)

    async def _refusal(self, url: str, exchange: Exchange) -> QualabError:
        status, message = exchange.status, self._redact.excerpt(error_message(exchange.json()))
        shown = f"HTTP {status}, {message}" if message else f"HTTP {status}"
        if status in (401, 403):
            return EndpointMisconfigured(f"{url} refuses access: {shown}", hint=KEY_HINT)
        if status == 404:
            hint = NOT_OPENAI
            for base in alternatives(self.url):
                try:
                    other = await self._transport.send("GET", f"{base}/models", timeout_s=PROBE_TIMEOUT_S)
                except Failure:
                    continue
                if _cards(other) is not None:
                    hint = f"Use {base}, which answers"
                    break
            return EndpointMisconfigured(f"{url} does not exist: {shown}", hint=hint)
        if 300 <= status < 400:
            target = self._redact.excerpt(exchange.header("Location") or "")
            return EndpointMisconfigured(f"{url} redirects to {target or 'another place'}", hint="Give that URL itself")
        if status == 429 or status >= 500:
            return EndpointUnreachable(f"{url} fails: {shown}", hint="Look into the server's log")
        return EndpointMisconfigured(f"{url} refuses: {shown}", hint=NOT_OPENAI)


def pause_s(failure: Failure, *, attempt: int, policy: RequestPolicy, timing: Timing) -> float:
    """Draw the pause after an attempt (from 1): exponential backoff with full jitter.

    A time that the server names gets a little jitter, so that clients do not come back all at once.
    """
    named_s = failure.retry_after_s
    n_doubled = 0 if named_s is not None else min(attempt - 1, 60)
    ceiling = min(policy.max_backoff_s, policy.backoff_s * 2.0**n_doubled)
    return timing.rng.uniform(0.0, ceiling) + min(named_s or 0.0, MAX_RETRY_AFTER_S)


def _properties(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    yield from schema.get("properties", ())
    if name := schema.get("$ref", "").rpartition("/")[2]:
        yield from document["components"]["schemas"][name].get("properties", ())
    for part in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from _properties(document, part)


def _cards(exchange: Exchange) -> list[dict[str, Any]] | None:
    data = exchange.object().get("data")
    if not isinstance(data, list):
        return None
    return [card for card in data if isinstance(card, dict) and isinstance(card.get("id"), str)]


def named_tokenizer(name: str) -> Tokenize:
    """Open a tokenizer.json, or the one in a directory. Raises ScoringUnavailable, InvalidValue."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - slow to import

    file_or_folder = Path(name).expanduser()
    path = file_or_folder / "tokenizer.json" if file_or_folder.is_dir() else file_or_folder
    if not path.is_file():
        hint = "Give a tokenizer.json, or the directory that holds it"
        raise ScoringUnavailable(f"No tokenizer at {path}", hint=hint)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # tokenizers raises bare Exception
        raise InvalidValue(f"{path} is not a tokenizer: {exc}", hint="Give the model's own tokenizer.json") from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def tokenize(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    return tokenize

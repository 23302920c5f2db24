"""The asynchronous client of one OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from qualab.endpoints.engines import EngineProbe
from qualab.endpoints.replies import BadBody, error_message, failed_reply, failure_of, read_reply
from qualab.endpoints.transport import (
    PROBE_TIMEOUT_S,
    Exchange,
    Failure,
    Fault,
    OnWait,
    Redactor,
    Sending,
    Timing,
    Transport,
    checked_key,
    persist,
)
from qualab.endpoints.urls import Routes, alternatives
from qualab.errors import EndpointMisconfigured, EndpointUnreachable, InvalidValue, QualabError, ScoringUnavailable
from qualab.model.engine import Counters, Engine
from qualab.model.items import Reply, Request
from qualab.model.names import AnswerStatus, Api
from qualab.model.plan import RequestPolicy
from qualab.model.ports import EndpointInfo, Tokenize

LOADING_TIMEOUT_S = 180.0
LOADING_POLL_S = 1.0
SHOWN_MODELS = 5
BUSY_ATTEMPTS = 3

KEY_HINT = (
    "Give a key with QUALAB_API_KEY (one arm's: QUALAB_BASELINE_API_KEY, QUALAB_CANDIDATE_API_KEY) or --api-key-file"
)
NOT_OPENAI = "Give the URL of an OpenAI-compatible server, as http://127.0.0.1:8000/v1"
NAME_ONE = "Name the model's tokenizer with --tokenizer DIR_OR_FILE (a tokenizer.json)"
ROUTES = {Api.COMPLETIONS: "/v1/completions", Api.CHAT: "/v1/chat/completions"}

TokenizeBody = Callable[[str, str], dict[str, Any]]
TOKENIZE_BODIES: tuple[TokenizeBody, ...] = (
    lambda text, model: {"model": model, "prompt": text, "add_special_tokens": False},  # vLLM
    lambda text, _model: {"content": text, "add_special": False},  # llama.cpp
)
"""llama.cpp answers vLLM's form with 200 and no tokens, so a form counts only where tokens come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A model's entry in the list of models."""

    entry: Mapping[str, Any]
    names: tuple[str, ...]
    """What the list calls this model: its name, its aliases, its root and whatever else is served from that."""


class HttpEndpoint:
    """An `Endpoint` over HTTP. Made by `open_endpoint`, which owns its connections."""

    def __init__(
        self,
        routes: Routes,
        *,
        transport: Transport,
        policy: RequestPolicy,
        timing: Timing,
        redact: Redactor,
        loading_timeout_s: float,
    ) -> None:
        self._routes = routes
        self._transport = transport
        self._policy = policy
        self._timing = timing
        self._redact = redact
        self._loading_timeout_s = loading_timeout_s
        self._slots = asyncio.Semaphore(policy.concurrency)
        self._probe = EngineProbe(routes, transport=transport)
        self._tokenize_url = f"{routes.root}/tokenize"
        self._tokenize_body: TokenizeBody | None = None

    @property
    def url(self) -> str:
        """The API's root, as "http://127.0.0.1:8000/v1"."""
        return self._routes.base

    async def inspect(self, *, model: str) -> EndpointInfo:
        """Raises EndpointUnreachable, EndpointMisconfigured (path, key, model name)."""
        await self._model_card(model)
        return EndpointInfo(url=self._routes.base, tokenizes=await self._detect_tokenizer(model) is not None)

    async def engine(self, *, model: str) -> Engine:
        """What the engine says of itself. Raises as `inspect` does."""
        card = await self._model_card(model)
        engine = await self._probe.engine(card.entry)
        return replace(engine, names=tuple(dict.fromkeys((model, *card.names))))

    async def counters(self) -> Counters | None:
        """The engine's counters now; None where they are closed."""
        return await self._probe.counters()

    async def settings(self, api: Api) -> frozenset[str] | None:
        """Names that a request on this route may have, by the server's OpenAPI document; None where it tells none."""
        document = await self._transport.get_object(f"{self._routes.root}/openapi.json")
        try:
            operation = document["paths"][ROUTES[api]]["post"]
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            return frozenset(_properties(document, schema)) or None
        except (AttributeError, KeyError, TypeError):  # another kind of document
            return None

    async def ask(self, request: Request, body: bytes, *, on_wait: OnWait | None = None) -> Reply:
        """One request with its attempts, of which at most `policy.concurrency` are under way at any time.

        `on_wait` is told each pause that the server asks for. Never raises for what the server does: that is the
        Reply's status.
        """
        outcome = await persist(
            lambda attempt: self._attempt(request, body, attempt),
            policy=self._policy,
            timing=self._timing,
            on_wait=on_wait,
        )
        return failed_reply(outcome) if isinstance(outcome, Failure) else outcome

    async def _attempt(self, request: Request, body: bytes, attempt: int) -> Reply | Failure:
        timing = self._timing
        url = self._routes.chat if request.api is Api.CHAT else self._routes.completions
        async with self._slots:
            # deadline and latency start here, not in the queue
            sent_at, started = timing.now(), timing.monotonic_s()
            found = await self._transport.send("POST", url, body=body)
            sending = Sending(attempt, timing.monotonic_s() - started, sent_at)
        if isinstance(found, Fault):
            return Failure(status=found.status, error=found.reason, retry=True, sending=sending)
        if found.status != 200:
            return failure_of(found, sending, redact=self._redact, now=timing.now())
        try:
            return read_reply(request, found.body, sending)
        except BadBody as exc:
            error = self._redact.excerpt(exc.reason)
            return Failure(status=exc.status, error=error, retry=exc.retry, sending=sending)

    async def tokenize(self, texts: Sequence[str], *, model: str) -> list[list[int]]:
        """Token ids by the server's own tokenizer, without special tokens, in the order of `texts`.

        At most `policy.concurrency` requests are under way. Raises EndpointMisconfigured, EndpointUnreachable.
        """
        form = self._tokenize_body or await self._detect_tokenizer(model)
        if form is None:
            raise EndpointMisconfigured(f"{self._tokenize_url} does not tokenize", hint=NAME_ONE)
        encoded: list[list[int]] = [[] for _ in texts]
        waiting = iter(enumerate(texts))

        async def work() -> None:
            for index, text in waiting:
                if text:
                    encoded[index] = await self._tokenize_text(form, text, model)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._policy.concurrency, len(texts))):
                    group.create_task(work())
        except* (EndpointMisconfigured, EndpointUnreachable) as errors:
            raise errors.exceptions[0] from None
        return encoded

    async def _tokenize_text(self, form: TokenizeBody, text: str, model: str) -> list[int]:
        async def attempt(number: int) -> list[int] | Failure:
            found = await self._post_text(form, text, model, timeout_s=self._policy.timeout_s)
            sending = Sending(number, 0.0, self._timing.now())
            if isinstance(found, Fault):
                return Failure(status=found.status, error=found.reason, retry=True, sending=sending)
            if found.status != 200:
                return failure_of(found, sending, redact=self._redact, now=self._timing.now())
            if tokens := _token_ids(found):
                return tokens
            return Failure(status=AnswerStatus.BAD_BODY, error="the body holds no tokens", retry=True, sending=sending)

        outcome = await persist(attempt, policy=self._policy, timing=self._timing)
        if not isinstance(outcome, Failure):
            return outcome
        if outcome.status.is_failure:
            raise EndpointUnreachable(
                f"{self._tokenize_url} does not answer: {outcome.error}", hint="Try again, or " + NAME_ONE
            )
        raise EndpointMisconfigured(f"{self._tokenize_url} refuses a text: {outcome.error}", hint=NAME_ONE)

    async def _detect_tokenizer(self, model: str) -> TokenizeBody | None:
        """The form of request that this server understands; None where it does not tokenize."""
        for form in TOKENIZE_BODIES:
            found = await self._post_text(form, "qualab", model, timeout_s=PROBE_TIMEOUT_S)
            if isinstance(found, Exchange) and _token_ids(found):
                self._tokenize_body = form
                return form
        return None

    async def _post_text(self, form: TokenizeBody, text: str, model: str, *, timeout_s: float) -> Exchange | Fault:
        body = json.dumps(form(text, model)).encode()
        return await self._transport.send("POST", self._tokenize_url, body=body, timeout_s=timeout_s)

    async def _model_card(self, model: str) -> ModelCard:
        """The model's entry. Raises EndpointUnreachable, EndpointMisconfigured."""
        url = f"{self._routes.base}/models"
        found = await self._ready(url)
        if isinstance(found, Fault):
            raise EndpointUnreachable(f"{url} cannot be reached: {found.reason}", hint=found.hint)
        if found.status != 200:
            raise await self._refusal(url, found)
        entries = _entries(found)
        if entries is None:
            raise EndpointMisconfigured(
                f"{url} answers with {self._kind_of(found)}, not a list of models", hint=NOT_OPENAI
            )
        return _card(entries, model, url=self._routes.base)

    async def _ready(self, url: str) -> Exchange | Fault:
        """The answer once the server has loaded its model and is not busy. Raises EndpointUnreachable."""
        since, busy = self._timing.monotonic_s(), 0
        while True:
            found = await self._transport.send("GET", url, timeout_s=PROBE_TIMEOUT_S)
            if isinstance(found, Fault) or not (found.status == 429 or found.status >= 500):
                return found
            loading = found.status == 503 and b"loading" in found.body.lower()
            busy += not loading
            if loading and self._timing.monotonic_s() - since >= self._loading_timeout_s:
                raise EndpointUnreachable(
                    f"{self._routes.base} has been loading its model for {self._loading_timeout_s:g} s",
                    hint="Wait until its /health answers 200, then run again",
                )
            if busy >= BUSY_ATTEMPTS:
                return found
            await self._timing.sleep(LOADING_POLL_S)

    async def _refusal(self, url: str, found: Exchange) -> QualabError:
        """The error that an HTTP status other than 200 means here."""
        if found.status in (401, 403):
            return EndpointMisconfigured(f"{url} refuses access: {self._status_of(found)}", hint=KEY_HINT)
        if found.status == 404:
            return EndpointMisconfigured(
                f"{url} does not exist: {self._status_of(found)}", hint=await self._elsewhere()
            )
        if 300 <= found.status < 400:
            target = self._redact.excerpt(found.header("Location") or "")
            return EndpointMisconfigured(f"{url} redirects to {target or 'another place'}", hint="Give that URL itself")
        if found.status == 429 or found.status >= 500:
            return EndpointUnreachable(f"{url} fails: {self._status_of(found)}", hint="Look into the server's log")
        return EndpointMisconfigured(f"{url} refuses: {self._status_of(found)}", hint=NOT_OPENAI)

    async def _elsewhere(self) -> str:
        """Where the API really is, as far as trying the likely places tells."""
        for base in alternatives(self._routes.base):
            found = await self._transport.send("GET", f"{base}/models", timeout_s=PROBE_TIMEOUT_S)
            if isinstance(found, Exchange) and found.status == 200 and _entries(found) is not None:
                return f"Use {base}, which answers"
        return NOT_OPENAI

    def _status_of(self, found: Exchange) -> str:
        message = self._redact.excerpt(error_message(found.body))
        return f"HTTP {found.status}, {message}" if message else f"HTTP {found.status}"

    def _kind_of(self, found: Exchange) -> str:
        """What kind of thing an answer is, for a person."""
        title = re.search(rb"<title[^>]*>(.*?)</title>", found.body[:65_536], re.IGNORECASE | re.DOTALL)
        if title:
            return f"an HTML page titled '{self._redact.excerpt(title[1])}'"
        if found.body.lstrip()[:1] == b"<" or "html" in (found.header("Content-Type") or ""):
            return "an HTML page"
        if found.json() is None:
            return (
                f"text that is not JSON ('{self._redact.excerpt(found.body, limit=60)}')" if found.body else "nothing"
            )
        return f"other JSON ('{self._redact.excerpt(found.body, limit=60)}')"


def _properties(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    yield from schema.get("properties", ())
    if name := schema.get("$ref", "").rpartition("/")[2]:
        yield from document["components"]["schemas"][name].get("properties", ())
    for part in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from _properties(document, part)


def _token_ids(answer: Exchange) -> list[int] | None:
    tokens = answer.object().get("tokens")
    return tokens if isinstance(tokens, list) and all(type(token) is int for token in tokens) else None


def _entries(answer: Exchange) -> list[Mapping[str, Any]] | None:
    """The entries of a list of models; None where the answer is none."""
    data = answer.object().get("data")
    if not isinstance(data, list):
        return None
    return [entry for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _card(entries: list[Mapping[str, Any]], model: str, *, url: str) -> ModelCard:
    for entry in entries:
        aliases = _aliases(entry)
        if model == entry["id"] or model in aliases:
            root = entry.get("root")
            same_root = [other["id"] for other in entries if root and other.get("root") == root]
            names = (entry["id"], *aliases, root, *same_root)
            return ModelCard(
                entry=entry, names=tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))
            )
    raise EndpointMisconfigured(f"{url} serves no model {model!r}", hint=_served([one["id"] for one in entries], model))


def _aliases(entry: Mapping[str, Any]) -> list[Any]:
    aliases = entry.get("aliases")
    return aliases if isinstance(aliases, list) else []


def _served(models: Sequence[str], model: str) -> str:
    if not models:
        return "It serves none: look into its log"
    near = sorted(models, key=lambda name: -SequenceMatcher(None, name.lower(), model.lower()).ratio())
    more = f" and {len(near) - SHOWN_MODELS} more" if len(near) > SHOWN_MODELS else ""
    return f"It serves {', '.join(near[:SHOWN_MODELS])}{more}"


@asynccontextmanager
async def open_endpoint(
    url: str,
    *,
    policy: RequestPolicy,
    key: str | None,
    timing: Timing | None = None,
    loading_timeout_s: float = LOADING_TIMEOUT_S,
    address: str = "",
) -> AsyncIterator[HttpEndpoint]:
    """Opens an endpoint; the context owns its connections. Asks nothing yet.

    `key` goes into the Authorization header and nowhere else. A server that says that it is still loading its model is
    waited for up to `loading_timeout_s`. Where an address is given, the URL's host is not looked up. Raises
    InvalidValue for a URL, a policy or a key that cannot be.
    """
    for name in ("concurrency", "timeout_s", "max_attempts"):
        if getattr(policy, name) <= 0:
            raise InvalidValue(f"{name} is {getattr(policy, name)}", hint="It must be above 0")
    routes, secret = Routes.of(url), checked_key(key)
    async with Transport(routes.base, key=secret, timeout_s=policy.timeout_s, address=address) as transport:
        yield HttpEndpoint(
            routes,
            transport=transport,
            policy=policy,
            timing=timing or Timing(),
            redact=Redactor(secret),
            loading_timeout_s=loading_timeout_s,
        )


def named_tokenizer(name: str) -> Tokenize:
    """A tokenizer from a tokenizer.json, a directory that holds one, or a model name in the local hub cache.

    Nothing is downloaded. Raises ScoringUnavailable where there is none, InvalidValue where it cannot be read.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - only runs that need token ids pay for it

    path = _tokenizer_file(name)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # tokenizers raises bare Exception
        raise InvalidValue(f"{path} is not a tokenizer: {exc}", hint="Give the model's own tokenizer.json") from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def tokenize(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    return tokenize


def _tokenizer_file(name: str) -> Path:
    given = Path(name).expanduser()
    path = given / "tokenizer.json" if given.is_dir() else given
    if path.is_file():
        return path
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - slow to import
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    try:
        cached = try_to_load_from_cache(name, "tokenizer.json")
    except HFValidationError:
        cached = None
    if not isinstance(cached, str):
        raise ScoringUnavailable(
            f"No tokenizer at {path}, and none of that name in the local hub cache",
            hint="Give a tokenizer.json, or the directory that holds it",
        )
    return Path(cached)

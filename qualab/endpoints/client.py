"""The asynchronous client of one OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson

from qualab.endpoints.engines import EngineProbe
from qualab.endpoints.inspection import LOADING_TIMEOUT_S, Inspection
from qualab.endpoints.replies import BadBody, failed_reply, failure_of, read_reply
from qualab.endpoints.tokenizing import ServerTokenizer
from qualab.endpoints.transport import (
    PROBE_TIMEOUT_S,
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
from qualab.endpoints.urls import Routes
from qualab.errors import InvalidValue
from qualab.model.engine import Counters, Engine
from qualab.model.items import Reply, Request
from qualab.model.names import Api
from qualab.model.plan import RequestPolicy
from qualab.model.ports import EndpointInfo


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
        self._slots = asyncio.Semaphore(policy.concurrency)
        self._tokenizer = ServerTokenizer(routes, transport=transport, policy=policy, timing=timing, redact=redact)
        self._probe = EngineProbe(routes, transport=transport)
        self._inspection = Inspection(
            routes, transport=transport, timing=timing, redact=redact, loading_timeout_s=loading_timeout_s
        )

    @property
    def url(self) -> str:
        """The API's root, as "http://127.0.0.1:8000/v1"."""
        return self._routes.base

    async def inspect(self, *, model: str) -> EndpointInfo:
        """Raises EndpointUnreachable, EndpointMisconfigured (path, key, model name)."""
        card = await self._inspection.model_card(model)
        form = await self._tokenizer.detect(model)
        return await self._inspection.describe(card, tokenizes=form is not None)

    async def engine(self, *, model: str) -> Engine:
        """What the engine says of itself. Raises as `inspect` does."""
        card = await self._inspection.model_card(model)
        engine = await self._probe.engine(card.entry)
        return replace(engine, names=tuple(dict.fromkeys((model, *card.names))))

    async def counters(self) -> Counters | None:
        """The engine's counters now; None where they are closed."""
        return await self._probe.counters()

    async def settings(self, api: Api) -> frozenset[str] | None:
        """Names that a request on this route may have, by the server's OpenAPI document; None where it tells none."""
        found = await self._transport.send("GET", f"{self._routes.root}/openapi.json", timeout_s=PROBE_TIMEOUT_S)
        if isinstance(found, Fault) or found.status != 200:
            return None
        try:
            return read_settings(orjson.loads(found.body), ROUTES[api])
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):  # another kind of document
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
        return await self._tokenizer.encode(texts, model=model)


ROUTES = {Api.COMPLETIONS: "/v1/completions", Api.CHAT: "/v1/chat/completions"}


def read_settings(document: Mapping[str, Any], route: str) -> frozenset[str] | None:
    """Properties of the body that a route takes; None where the document holds none. Raises KeyError, TypeError."""
    schema = document["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return frozenset(_properties(document, schema)) or None


def _properties(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    yield from schema.get("properties", ())
    if name := schema.get("$ref", "").rpartition("/")[2]:
        yield from document["components"]["schemas"][name].get("properties", ())
    for part in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from _properties(document, part)


def _checked_policy(policy: RequestPolicy) -> RequestPolicy:
    for name in ("concurrency", "timeout_s", "max_attempts"):
        if getattr(policy, name) <= 0:
            raise InvalidValue(f"{name} is {getattr(policy, name)}", hint="It must be above 0")
    return policy


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
    routes, secret = Routes.of(url), checked_key(key)
    transport = Transport(routes.base, key=secret, timeout_s=_checked_policy(policy).timeout_s, address=address)
    async with transport:
        yield HttpEndpoint(
            routes,
            transport=transport,
            policy=policy,
            timing=timing or Timing(),
            redact=Redactor(secret),
            loading_timeout_s=loading_timeout_s,
        )

"""Shared by all routes: the app's state, the caller, the request's body, and event streams."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import Annotated, TypeVar
from weakref import WeakValueDictionary

import orjson
from anyio import CapacityLimiter, Semaphore, to_thread
from fastapi import Depends, Request, Security
from fastapi.security import SecurityScopes
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.exceptions import HTTPException
from starlette.responses import Response

from qualab.errors import Forbidden, InvalidValue, TooManyRequests, Unauthenticated
from qualab.model.items import JsonObject
from qualab.model.registry import ComparisonSummary, Scope, Token, not_found
from qualab.service.access import Actor, Authenticator, RateLimit
from qualab.service.api.answers import encoded
from qualab.service.context import LONGEST_NAME, Context
from qualab.service.reading import Follower
from qualab.service.settings import ServiceSettings

T = TypeVar("T")
MAX_FOLLOWED = 256
"""Comparisons whose progress is cached."""


class EventStreams:
    """Progress as server-sent events to many clients; each comparison is read once an interval, whoever follows it."""

    def __init__(self, context: Context) -> None:
        self.follower = lru_cache(MAX_FOLLOWED)(partial(Follower, context))
        self._settings = context.settings
        self._is_closed = False
        self.n_clients = 0

    async def follow(self, comparison_id: str, last_event_id: str) -> Response:
        """Stream events from the state on that a client has not seen; 204 where it has seen the end.

        Raises ComparisonNotFound, StoreError, TooManyRequests.
        """
        self._check_room()
        follower = self.follower(comparison_id)
        progress = await follower.latest()
        if progress is None:
            raise not_found(comparison_id)
        if progress.has_ended and progress.mark == last_event_id:  # otherwise an EventSource asks for ever
            return Response(status_code=204)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return EventSourceResponse(self._messages(follower, last_event_id), headers=headers)

    async def wait(self, request: Request, comparison_id: str, wait_s: float) -> None:
        """Wait for a comparison's end, at most `wait_s` and what the operator allows; holds no thread.

        Raises ComparisonNotFound, StoreError, TooManyRequests.
        """
        until_s = time.monotonic() + min(wait_s, self._settings.max_wait_s)
        self._check_room()
        self.n_clients += 1
        try:
            while (left_s := until_s - time.monotonic()) > 0.0 and not self._is_closed:
                progress = await self.follower(comparison_id).latest()
                if progress is None:
                    raise not_found(comparison_id)
                if progress.has_ended or await request.is_disconnected():
                    return
                await asyncio.sleep(min(self._settings.poll_s, left_s))
        finally:
            self.n_clients -= 1

    def _check_room(self) -> None:
        if self.n_clients >= self._settings.max_streams:
            message = f"{self._settings.max_streams} clients follow comparisons already"
            raise TooManyRequests(message, hint="Ask for the verdict, without wait")

    def close(self) -> None:
        self._is_closed = True

    async def _messages(self, follower: Follower, seen: str) -> AsyncIterator[bytes]:
        self.n_clients += 1
        try:
            yield format_sse_event(retry=2_000)
            sent_at_s = time.monotonic()
            while not self._is_closed:
                progress = await follower.latest()
                if progress is None:
                    yield format_sse_event(event="end", data_str="{}")
                    return
                if progress.mark != seen:
                    seen, sent_at_s = progress.mark, time.monotonic()
                    name = "end" if progress.has_ended else "progress"
                    yield format_sse_event(id=seen, event=name, data_str=encoded(progress).decode())
                elif time.monotonic() - sent_at_s >= self._settings.heartbeat_s:
                    sent_at_s = time.monotonic()
                    yield format_sse_event(comment="still here")
                if progress.has_ended:
                    return
                await asyncio.sleep(min(self._settings.poll_s, self._settings.heartbeat_s))
        finally:
            self.n_clients -= 1


class Polls:
    """Reads of summaries, which a poll shares with all that came while the read before it was under way."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._waiting: dict[str, asyncio.Future[ComparisonSummary | None]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def summary(self, comparison_id: str) -> ComparisonSummary:
        """Read a comparison as it is now, without its request. Raises ComparisonNotFound, StoreError."""
        waiting = self._waiting.setdefault(comparison_id, asyncio.get_running_loop().create_future())
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        if (summary := await asyncio.shield(waiting)) is None:
            raise not_found(comparison_id)
        return summary

    async def _read(self) -> None:
        try:
            while self._waiting:
                polled, self._waiting = self._waiting, {}
                try:
                    summaries = await to_thread.run_sync(self._store.summaries, list(polled))
                except Exception as error:  # each poll's own failure
                    for waiting in polled.values():
                        waiting.set_exception(error)
                else:
                    for comparison_id, waiting in polled.items():
                        waiting.set_result(summaries.get(comparison_id))
        finally:
            self._reading = None


FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
"""Headers of proxies: what comes through one does not come from this machine."""
COOKIE = "qualab_token"
"""Holds the token of a person who has signed in. Other sites' pages do not send it, and scripts do not see it."""
HEAVY_AT_ONCE, HEAVY_OF_A_CALLER = 8, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Made once for an app."""

    context: Context
    authenticator: Authenticator
    limit: RateLimit
    events: EventStreams
    polls: Polls
    schema: Callable[[], tuple[str | None, str]]
    """The database's schema, and this version's."""
    failures: RateLimit = field(default_factory=lambda: RateLimit(rate=1.0, burst=30))
    """Tries without a valid token, by address."""
    heavy: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(HEAVY_AT_ONCE))
    """Thread limit for slow jobs, so that they cannot starve fast requests."""
    heavy_by_caller: WeakValueDictionary[str, Semaphore] = field(default_factory=WeakValueDictionary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request, and who asks."""

    request: Request
    state: State
    token: Token

    @property
    def context(self) -> Context:
        return self.state.context

    @property
    def by(self) -> Actor:
        details = {"request_id": str(self.request.scope["qualab.request_id"])}
        if self.token.id:
            details["token"] = self.token.id
        return Actor(who=self.token.name, at=self.context.services.clock.now(), details=details)

    async def slowly(self, job: Callable[[], T]) -> T:
        """Run a slow job in a thread: few at once, and fewer of one caller, so that others have their turn."""
        name = self.token.id or address_of(self.request)
        own = self.state.heavy_by_caller.setdefault(name, Semaphore(HEAVY_OF_A_CALLER))
        async with own:  # forgotten with its last request
            return await to_thread.run_sync(job, limiter=self.state.heavy)


def address_of(request: Request) -> str:
    """Return the address that a request comes from; empty where it has none."""
    return request.client.host if request.client else ""


async def recognize(request: Request, scopes: SecurityScopes) -> Call:
    """Recognize the caller. Raises Unauthenticated, Forbidden, TooManyRequests."""
    state: State = request.app.state.qualab
    token = None
    header, cookie = request.headers.get("authorization"), request.cookies.get(COOKIE)
    is_page = request.method == "GET" or not request.url.path.startswith("/v1/")  # forms come from our own pages alone
    if cookie is not None and header is None and is_page:
        with suppress(Unauthenticated):  # another service of this machine may have set it
            token = await state.authenticator.token(cookie, is_local=False)
    if token is None:
        kind, _, text = (header or "").partition(" ")
        presented = None if header is None else text.strip() if kind.lower() == "bearer" else ""
        try:
            token = await state.authenticator.token(presented, is_local=header is None and _is_local(request))
        except Unauthenticated:
            state.failures.take(address_of(request))
            raise
    state.limit.take(token.id or address_of(request))
    for scope in map(Scope, scopes.scopes):
        if not token.scope.allows(scope):
            raise Forbidden(
                f"This needs the scope {scope}; the token has {token.scope}",
                hint=f"Create one: qualab token create NAME --scope {scope}",
            )
    return Call(request=request, state=state, token=token)


def _is_local(request: Request) -> bool:
    """Tell whether the request can only come from a program of this machine."""
    settings: ServiceSettings = request.app.state.qualab.context.settings
    if not settings.is_loopback or any(name in request.headers for name in FORWARDED):
        return False
    try:
        return ip_address(address_of(request)).is_loopback
    except ValueError:
        return False


Reader = Annotated[Call, Security(recognize, scopes=[Scope.READ])]
Runner = Annotated[Call, Security(recognize, scopes=[Scope.RUN])]
Admin = Annotated[Call, Security(recognize, scopes=[Scope.ADMIN])]

MOST_LEVELS = 50
"""Depth limit of a body, where nothing needs ten levels: checks and hashes recurse through it."""


async def json_object(request: Request) -> JsonObject:
    """Read the request's body. Raises HTTPException, InvalidValue."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, f"The body's type is {kind or 'missing'}, and must be application/json")
    try:
        document = orjson.loads(await request.body())
    except orjson.JSONDecodeError as exc:
        raise HTTPException(400, f"The body is not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}") from None
    if not isinstance(document, dict):
        raise HTTPException(400, "The body must be a JSON object")
    level: list[object] = [document]
    for _ in range(MOST_LEVELS):
        level = [child for value in level for child in _children(value)]
    if level:
        raise HTTPException(400, f"The body is nested more than {MOST_LEVELS} levels deep")
    json.loads(await request.body(), object_pairs_hook=_check_keys)
    return document


def _check_keys(pairs: list[tuple[str, object]]) -> None:
    """Raises InvalidValue for a key that an object holds twice: parsers silently take the last."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise InvalidValue.must_be(key if len(key) <= LONGEST_NAME else f"{key[:LONGEST_NAME]}...", "given once")
        seen.add(key)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


async def json_object_or_nothing(request: Request) -> JsonObject:
    """Read the body as `json_object` does; no body is an empty object."""
    return await json_object(request) if await request.body() else {}


Body = Annotated[JsonObject, Depends(json_object)]
BodyOrNothing = Annotated[JsonObject, Depends(json_object_or_nothing)]

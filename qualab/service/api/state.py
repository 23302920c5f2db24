"""What every route shares: the app's state, who asks, the request's body, and event streams."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, TypeVar, cast
from weakref import WeakValueDictionary

import orjson
from anyio import CapacityLimiter, Semaphore, to_thread
from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as HttpScope

from qualab.errors import ComparisonNotFound, InvalidValue, StoreError, TooManyRequests, Unauthenticated
from qualab.model.items import JsonObject
from qualab.model.registry import Scope
from qualab.report.words import shown
from qualab.service.access import Actor, Authenticator, Caller, RateLimit
from qualab.service.api.answers import HttpProblem
from qualab.service.context import Context
from qualab.service.reading import Follower, Progress
from qualab.service.settings import ServiceSettings

T = TypeVar("T")
log = logging.getLogger("qualab.service.api")


class Feed:
    """Progress of one comparison, read at most once an interval however many clients follow it."""

    def __init__(self, follower: Follower, *, interval_s: float) -> None:
        self._follower = follower
        self._interval_s = interval_s
        self._lock = asyncio.Lock()
        self._read_at_s = float("-inf")
        self._progress: Progress | None = None

    async def latest(self) -> Progress | None:
        """Return the progress; None once the comparison is deleted. Raises ComparisonNotFound where it never was."""
        async with self._lock:
            if time.monotonic() - self._read_at_s >= self._interval_s:
                try:
                    self._progress = await run_in_threadpool(self._follower.look)
                except ComparisonNotFound:
                    if self._progress is None:
                        raise
                    self._progress = None
                except StoreError as error:  # it may come back
                    if self._progress is None:
                        raise
                    log.warning("progress: %s", error.message)
                self._read_at_s = time.monotonic()
        return self._progress


class EventStreams:
    """Progress as server-sent events, to many clients at once."""

    def __init__(self, follower: Callable[[str], Follower], *, poll_s: float, heartbeat_s: float, limit: int) -> None:
        self._follower = follower
        self._poll_s = poll_s
        self._heartbeat_s = heartbeat_s
        self._limit = limit
        self._feeds: WeakValueDictionary[str, Feed] = WeakValueDictionary()
        self._is_closed = False
        self.n_clients = 0

    async def follow(self, comparison_id: str, last_event_id: str) -> Response:
        """Stream events from the state on that a client has not seen; 204 where it has seen the end.

        Raises ComparisonNotFound, StoreError, TooManyRequests.
        """
        if self.n_clients >= self._limit:
            raise TooManyRequests(f"{self._limit} clients follow events already", hint="Ask for the verdict instead")
        feed = self._feeds.get(comparison_id)
        if feed is None:
            feed = Feed(self._follower(comparison_id), interval_s=self._poll_s)
            self._feeds[comparison_id] = feed
        progress = await feed.latest()
        if progress and progress.has_ended and progress.mark == last_event_id:  # otherwise an EventSource asks for ever
            return Response(status_code=204)
        return _EventResponse(self, self._messages(feed, last_event_id))

    def close(self) -> None:
        """End every stream: the server is about to stop."""
        self._is_closed = True

    async def _messages(self, feed: Feed, seen: str) -> AsyncIterator[bytes]:
        yield b"retry: 2000\n\n"
        sent_at_s = time.monotonic()
        while not self._is_closed:
            progress = await feed.latest()
            if progress is None:
                yield b"event: end\ndata: {}\n\n"
                return
            if progress.mark != seen:
                seen, sent_at_s = progress.mark, time.monotonic()
                name = "end" if progress.has_ended else "progress"
                yield f"id: {seen}\nevent: {name}\ndata: {orjson.dumps(shown(progress)).decode()}\n\n".encode()
            elif time.monotonic() - sent_at_s >= self._heartbeat_s:
                sent_at_s = time.monotonic()
                yield b": still here\n\n"
            if progress.has_ended:
                return
            await asyncio.sleep(min(self._poll_s, self._heartbeat_s))


class _EventResponse(StreamingResponse):
    """A stream that is counted while it lasts, whoever ends it."""

    def __init__(self, streams: EventStreams, messages: AsyncIterator[bytes]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(messages, headers=headers, media_type="text/event-stream")
        self._streams = streams

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        self._streams.n_clients += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.n_clients -= 1


FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
"""Headers of proxies: what comes through one does not come from this machine."""
COOKIE = "qualab_token"
"""Holds the token of a person who has signed in. Other sites' pages do not send it, and scripts do not see it."""
HEAVY_OF_A_CALLER = 2
READING = ("GET", "HEAD")
LONGEST_NAME = 60
MOST_LEVELS = 50
"""Of a body, in which nothing needs ten: what is checked and hashed goes through it by recursion."""
BEARER = HTTPBearer(auto_error=False, description="A token of `qualab token create`")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Made once for an app."""

    context: Context
    settings: ServiceSettings
    authenticator: Authenticator
    limit: RateLimit
    failures: RateLimit
    """Of callers that are not recognised, by address."""
    events: EventStreams
    follower: Callable[[str], Follower]
    """Of a comparison that somebody follows."""
    schema: Callable[[], tuple[str | None, str]]
    """The database's schema, and this version's."""
    heavy: CapacityLimiter
    """Thread limit for slow jobs, so that they cannot starve fast requests."""
    heavy_by_caller: WeakValueDictionary[str, Semaphore]
    """The same for the slow jobs of one caller."""


def state_of(request: Request) -> State:
    """The app's state."""
    return cast(State, request.app.state.qualab)


async def _context(request: Request) -> Context:
    return state_of(request).context


async def recognised(request: Request) -> Caller:
    """Recognise who asks. Raises Unauthenticated, TooManyRequests."""
    state = state_of(request)
    caller = await _of_cookie(request)
    if caller is None:
        presented = _presented(request)
        is_local = presented is None and _is_local(request)
        try:
            caller = await authenticated(state, presented, is_local=is_local)
        except Unauthenticated:
            state.failures.take(_address(request))
            raise
    request.state.caller = caller.token_id or _address(request)
    state.limit.take(request.state.caller)
    return caller


async def authenticated(state: State, presented: str | None, *, is_local: bool) -> Caller:
    """Return the caller; in a thread only where the database is read. Raises Unauthenticated."""
    if state.authenticator.needs_database(presented):
        return await run_in_threadpool(state.authenticator.caller, presented, is_local=is_local)
    return state.authenticator.caller(presented, is_local=is_local)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


async def _of_cookie(request: Request) -> Caller | None:
    """Who has signed in with a browser, which may read alone; None for anybody else, and for a cookie of before."""
    token = request.cookies.get(COOKIE)
    if token is None or request.method not in READING or "authorization" in request.headers:
        return None
    try:
        return await authenticated(state_of(request), token, is_local=False)
    except Unauthenticated:
        return None


def _presented(request: Request) -> str | None:
    header = request.headers.get("authorization")
    if header is None:
        return None
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _is_local(request: Request) -> bool:
    """Whether the request can only come from a program of this machine."""
    if not state_of(request).settings.is_loopback or any(name in request.headers for name in FORWARDED):
        return False
    try:
        return ip_address(_address(request)).is_loopback
    except ValueError:
        return False


async def _reader(caller: Annotated[Caller, Depends(recognised)], _: Annotated[object, Security(BEARER)]) -> Caller:
    caller.check(Scope.READ)
    return caller


async def _runner(caller: Annotated[Caller, Depends(recognised)], _: Annotated[object, Security(BEARER)]) -> Caller:
    caller.check(Scope.RUN)
    return caller


async def _admin(caller: Annotated[Caller, Depends(recognised)], _: Annotated[object, Security(BEARER)]) -> Caller:
    caller.check(Scope.ADMIN)
    return caller


READ = [Depends(_reader)]
ADMINISTER = [Depends(_admin)]
Reader = Annotated[Caller, Depends(_reader)]
Runner = Annotated[Caller, Depends(_runner)]
Admin = Annotated[Caller, Depends(_admin)]
ContextDep = Annotated[Context, Depends(_context)]


async def slowly(request: Request, job: Callable[[], T]) -> T:
    """Runs a slow job in a thread: few at once, and of one caller fewer, so that others have their turn."""
    state = state_of(request)
    own = state.heavy_by_caller.setdefault(request.state.caller, Semaphore(HEAVY_OF_A_CALLER))
    async with own:  # forgotten with its last request
        return await to_thread.run_sync(job, limiter=state.heavy)


def actor(request: Request, caller: Caller) -> Actor:
    """Return who asks, for the audit log."""
    details = {"request_id": str(request.scope.get("qualab.request_id", ""))}
    if caller.token_id:
        details["token"] = caller.token_id
    return Actor(who=caller.name, at=state_of(request).context.services.clock.now(), details=details)


async def json_object(request: Request) -> JsonObject:
    """The request's body. Raises HttpProblem, InvalidValue."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpProblem(415, f"The body's type is {kind or 'missing'}, and must be application/json")
    try:
        found = orjson.loads(await request.body())
    except orjson.JSONDecodeError as exc:
        raise HttpProblem(400, f"The body is not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}") from None
    if not isinstance(found, dict):
        raise HttpProblem(400, "The body must be a JSON object")
    if _is_deeper(found, MOST_LEVELS):
        raise HttpProblem(400, f"The body is nested more than {MOST_LEVELS} levels deep")
    json.loads(await request.body(), object_pairs_hook=_check_keys)
    return found


def _check_keys(pairs: list[tuple[str, object]]) -> None:
    """Raises InvalidValue for a key that an object holds twice: parsers silently take the last."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            name = key if len(key) <= LONGEST_NAME else f"{key[:LONGEST_NAME]}..."
            raise InvalidValue.must_be(name, "given once")
        seen.add(key)


def _is_deeper(value: object, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [child for one in level for child in _children(one)]
    return bool(level)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


async def json_object_or_nothing(request: Request) -> JsonObject:
    """The same; no body is an empty object."""
    if not await request.body():
        return {}
    return await json_object(request)


Body = Annotated[JsonObject, Depends(json_object)]
BodyOrNothing = Annotated[JsonObject, Depends(json_object_or_nothing)]

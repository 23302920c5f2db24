"""Reads of many keys that come at the same time, done as one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Generic, TypeVar, cast
from weakref import WeakValueDictionary

import orjson
from anyio import CapacityLimiter, Semaphore, to_thread
from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool

from qualab.errors import InvalidValue, Unauthenticated
from qualab.model.items import JsonObject
from qualab.model.registry import Scope
from qualab.service.access import Caller, Door
from qualab.service.api.problems import HttpProblem
from qualab.service.api.streams import Broadcast
from qualab.service.api.verdicts import VerdictCache
from qualab.service.desk import By, Desk
from qualab.service.limits import RateLimit
from qualab.service.reading import Followers, VerdictOf
from qualab.service.settings import ServiceSettings
from qualab.service.viewing.comparison import Reports

T = TypeVar("T")


class Together(Generic[T]):
    """While one read is under way, whoever comes waits for the next, which is for all of them.

    Nothing that it gives was read before it was asked for. Of one event loop.
    """

    def __init__(self, read: Callable[[Sequence[str]], Mapping[str, T]]) -> None:
        """`read` is called in a thread; what is not there it leaves out."""
        self._read = read
        self._waiting: dict[str, asyncio.Future[T | None]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def get(self, key: str) -> T | None:
        """None where it is not there. Raises what `read` does."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = loop.create_future()
            waiting.add_done_callback(_see)
        if self._reader is None:
            self._reader = loop.create_task(self._read_on())
        return await asyncio.shield(waiting)  # others may wait for it, too

    async def _read_on(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, {}
                await self._answer(waiting)
        finally:
            self._reader = None

    async def _answer(self, waiting: Mapping[str, asyncio.Future[T | None]]) -> None:
        try:
            found = await run_in_threadpool(self._read, list(waiting))
        except Exception as error:
            for one in waiting.values():
                one.set_exception(error)
        else:
            for key, one in waiting.items():
                one.set_result(found.get(key))


def _see(waiting: asyncio.Future[T | None]) -> None:
    """An error is not complained about where whoever asked is gone."""
    if not waiting.cancelled():
        waiting.exception()


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

    desk: Desk
    settings: ServiceSettings
    door: Door
    limit: RateLimit
    failures: RateLimit
    """Of callers that are not recognised, by address."""
    broadcast: Broadcast
    followers: Followers
    """Of what lists show."""
    reports: Reports
    verdicts: VerdictCache
    reads: Together[VerdictOf]
    """Of verdicts that are not in memory: one for all that are asked for at the same time."""
    schema: Callable[[], tuple[str | None, str]]
    """The database's schema, and this version's."""
    heavy: CapacityLimiter
    """Thread limit for slow jobs, so that they cannot starve fast requests."""
    heavy_by_caller: WeakValueDictionary[str, Semaphore]
    """The same for the slow jobs of one caller."""


def state_of(request: Request) -> State:
    """The app's state."""
    return cast(State, request.app.state.qualab)


def desk_of(request: Request) -> Desk:
    """The app's desk."""
    return state_of(request).desk


async def _desk(request: Request) -> Desk:
    """Not `desk_of` itself, which would be called in a thread."""
    return desk_of(request)


async def recognised(request: Request) -> Caller:
    """Who asks. Raises Unauthenticated, TooManyRequests."""
    state = state_of(request)
    caller = await _of_cookie(request) or remembered(request)
    if caller is None:
        try:
            caller = await run_in_threadpool(state.door.caller, _presented(request), is_local=_is_local(request))
        except Unauthenticated:
            state.failures.take(_address(request))
            raise
    take_turn(request, caller)
    return caller


def remembered(request: Request) -> Caller | None:
    """Who asks, where that is known without the database."""
    presented = _presented(request)
    return state_of(request).door.remembered(presented, is_local=presented is None and _is_local(request))


def take_turn(request: Request, caller: Caller) -> None:
    """Raises TooManyRequests."""
    request.state.caller = caller.token_id or _address(request)
    state_of(request).limit.take(request.state.caller)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


async def _of_cookie(request: Request) -> Caller | None:
    """Who has signed in with a browser, which may read alone; None for anybody else, and for a cookie of before."""
    token = request.cookies.get(COOKIE)
    if token is None or request.method not in READING or "authorization" in request.headers:
        return None
    door = state_of(request).door
    try:
        known = door.remembered(token, is_local=False)
        return known or await run_in_threadpool(door.caller, token, is_local=False)
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
TheDesk = Annotated[Desk, Depends(_desk)]


async def slowly(request: Request, job: Callable[[], T]) -> T:
    """Runs a slow job in a thread: few at once, and of one caller fewer, so that others have their turn."""
    state = state_of(request)
    own = state.heavy_by_caller.setdefault(request.state.caller, Semaphore(HEAVY_OF_A_CALLER))
    async with own:  # forgotten with its last request
        return await to_thread.run_sync(job, limiter=state.heavy)


def by(request: Request, caller: Caller) -> By:
    """For the record."""
    details = {"request_id": str(request.scope.get("qualab.request_id", ""))}
    if caller.token_id:
        details["token"] = caller.token_id
    return By(who=caller.name, at=desk_of(request).services.clock.now(), details=details)


async def json_object(request: Request) -> JsonObject:
    """The request's body. Raises HttpProblem, InvalidValue."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpProblem(415, f"The body's type is {kind or 'not said'}, and must be application/json")
    try:
        found = orjson.loads(await request.body())
    except orjson.JSONDecodeError as exc:
        raise HttpProblem(400, f"The body is not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}") from None
    if not isinstance(found, dict):
        raise HttpProblem(400, "The body is no JSON object")
    if _is_deeper(found, MOST_LEVELS):
        raise HttpProblem(400, f"The body is nested more than {MOST_LEVELS} levels deep")
    json.loads(await request.body(), object_pairs_hook=_check_said_once)
    return found


def _check_said_once(pairs: list[tuple[str, object]]) -> None:
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

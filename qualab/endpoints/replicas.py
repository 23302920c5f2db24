"""An arm of several servers: requests are shared by what is under way, and a server that dies is left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from qualab.endpoints.client import HttpEndpoint, OnWait
from qualab.errors import EndpointUnreachable
from qualab.model.audit import Scoring, TokenScores
from qualab.model.engine import Counters, Drafting, Engine, ReplicaUse
from qualab.model.items import Reply, Request
from qualab.model.names import AnswerStatus, Api
from qualab.model.plan import RequestPolicy
from qualab.model.registry import urls_of

if TYPE_CHECKING:
    from qualab.endpoints.streaming import Streamed

T = TypeVar("T")
MOST_OF_SHARE = 1.25
"""How much of an even share of the requests under way a replica may have, before the others are preferred."""
SUMMED = (
    *("finished_requests", "running_requests", "prompt_tokens", "generated_tokens", "decode_s", "decode_steps"),
    "started_at_s",
)


@dataclass(slots=True, eq=False)
class Replica:
    """One server of an arm, and what it did since it was last told of."""

    endpoint: HttpEndpoint
    in_flight: int = 0
    n_sent: int = 0
    n_answers: int = 0
    fingerprints: set[str] = field(default_factory=set)
    lost: str = ""
    is_told: bool = False
    """True where its loss has been told of."""
    counters: Counters | None = None
    """Counters as last read."""
    first: Counters | None = None
    """Counters when it was last told of; None where it has restarted since."""
    n_restarts: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def read(self, now: Counters) -> None:
        if self.counters is None:
            self.first = None if self.n_answers else now
        elif now.has_restarted_since(self.counters):
            self.n_restarts += 1
            self.first = None
        self.counters = now

    def use(self) -> ReplicaUse:
        """Tell what it did, and begin anew."""
        readings = (None if self.lost else self.first, self.counters)
        before, after = (reading.finished_requests if reading else None for reading in readings)
        use = ReplicaUse(
            url=self.endpoint.url,
            n_answers=self.n_answers,
            finished_requests=None if before is None or after is None else after - before,
            fingerprints=tuple(sorted(self.fingerprints)),
            lost="" if self.is_told else self.lost,
        )
        self.first, self.n_answers, self.is_told = self.counters, 0, bool(self.lost)
        return use


class Replicas:
    """Servers that answer as one endpoint. The policy's concurrency is that of all together."""

    def __init__(self, endpoints: Sequence[HttpEndpoint]) -> None:
        self._all = [Replica(endpoint) for endpoint in endpoints]
        self._living = list(self._all)

    @property
    def url(self) -> str:
        """The URLs of those that live, as one opens them again."""
        return ", ".join(replica.endpoint.url for replica in self._living)

    @property
    def parts(self) -> list[HttpEndpoint]:
        return [replica.endpoint for replica in self._living]

    async def inspect(self, *, model: str) -> bool:
        """Check that each serves the model; tell whether all tokenize. Raises as an endpoint's, naming the URL."""
        return all(await asyncio.gather(*(part.inspect(model=model) for part in self.parts)))

    async def engines(self, *, model: str) -> dict[str, Engine]:
        """Describe each living one, by URL; one that does not answer any more is left out. Raises as `inspect`."""
        await self.leave_out_dead()
        engines = await asyncio.gather(*(part.engine(model=model) for part in self.parts))
        return dict(zip((part.url for part in self.parts), engines, strict=True))

    async def engine(self, *, model: str) -> Engine:
        """Describe them as one. Raises as `inspect`."""
        return merged_engine([*(await self.engines(model=model)).values()])

    async def counters(self) -> Counters | None:
        """Add up the counters, those of a dead one as last read; None where one is closed."""
        read = await asyncio.gather(*map(self._read, self._all))
        is_unread = [own.lost and reading is None for own, reading in zip(self._all, read, strict=True)]
        total = added_counters([reading for reading, left_out in zip(read, is_unread, strict=True) if not left_out])
        n_restarts = sum(replica.n_restarts for replica in self._all)
        if total is None or total.started_at_s is not None or not n_restarts:
            return total
        return replace(total, started_at_s=float(n_restarts))  # a sum does not show that one of them began anew

    async def _read(self, replica: Replica) -> Counters | None:
        now = None if replica.lost else await replica.endpoint.counters()
        if now is not None:
            replica.read(now)
        return now or (replica.counters if await self._is_lost(replica) else None)

    async def ask(self, request: Request, body: bytes, *, on_wait: OnWait | None = None) -> Reply:
        """Ask one of them; where it turns out to be dead, another. Never raises for what a server does."""
        n_attempts = 0
        while True:
            replica = self._next()
            try:
                reply = await replica.endpoint.ask(request, body, on_wait=on_wait)
            finally:
                replica.in_flight -= 1
            n_attempts += reply.attempts
            if reply.status is not AnswerStatus.CONNECTION_ERROR or not await self._is_lost(replica):
                break
        if reply.status.is_answer:
            replica.n_answers += 1
            if reply.system_fingerprint:
                replica.fingerprints.add(reply.system_fingerprint)
        return reply if reply.attempts == n_attempts else replace(reply, attempts=n_attempts)

    async def stream(self, request: Request, body: bytes) -> Streamed:
        """Stream from one of them; where it turns out to be dead, others stream from then on."""
        replica = self._next()
        try:
            streamed = await replica.endpoint.stream(request, body)
        finally:
            replica.in_flight -= 1
        if streamed.failure is None:
            replica.n_answers += 1
        elif streamed.failure.status is AnswerStatus.CONNECTION_ERROR:
            await self._is_lost(replica)
        return streamed

    def _next(self) -> Replica:
        # one below its share of what is under way may take more: of those the one that was sent the fewest
        share = MOST_OF_SHARE * (sum(replica.in_flight for replica in self._living) + 1) / len(self._living)
        replica = min(self._living, key=lambda own: (own.in_flight >= share, own.n_sent))
        replica.in_flight += 1
        replica.n_sent += 1
        return replica

    async def _is_lost(self, replica: Replica) -> bool:
        """Tell whether another has to answer in its place. The last one that lives is never left out."""
        async with replica.lock:  # requests that fail at once share one trial
            problem = "" if replica.lost or len(self._living) == 1 else await replica.endpoint.problem()
            if problem and len(self._living) > 1:  # another may have been left out meanwhile
                replica.lost = problem
                self._living.remove(replica)
        return bool(replica.lost)

    async def leave_out_dead(self) -> None:
        """Leave out those that nothing can connect to."""
        await asyncio.gather(*map(self._is_lost, self._living[:]))

    def uses(self) -> tuple[ReplicaUse, ...]:
        """Tell what each did since the last time."""
        return tuple(replica.use() for replica in self._all if not replica.is_told)

    async def _by_one(self, call: Callable[[HttpEndpoint], Awaitable[T]]) -> T:
        while True:
            replica = self._next()
            try:
                return await call(replica.endpoint)
            except EndpointUnreachable:
                if not await self._is_lost(replica):
                    raise
            finally:
                replica.in_flight -= 1

    # what any one of them answers, with the meanings of HttpEndpoint's

    async def settings(self, api: Api) -> frozenset[str] | None:
        return await self._by_one(lambda part: part.settings(api))

    async def tokenize(self, texts: Sequence[str], *, model: str) -> list[list[int]]:
        return await self._by_one(lambda part: part.tokenize(texts, model=model))

    async def scoring(self, *, model: str) -> Scoring | None:
        return await self._by_one(lambda part: part.scoring(model=model))

    async def score(
        self, prompt_ids: Sequence[int], answer_ids: Sequence[int], *, model: str, scoring: Scoring
    ) -> TokenScores:
        return await self._by_one(lambda part: part.score(prompt_ids, answer_ids, model=model, scoring=scoring))

    async def prompt_ids(self, request: Request, *, model: str) -> tuple[int, ...]:
        return await self._by_one(lambda part: part.prompt_ids(request, model=model))

    async def answer_ids(self, text: str, *, model: str) -> tuple[int, ...] | None:
        return await self._by_one(lambda part: part.answer_ids(text, model=model))


Endpoint = HttpEndpoint | Replicas
Opener = Callable[..., AbstractAsyncContextManager[HttpEndpoint]]


def opening(open_one: Opener) -> Callable[..., AbstractAsyncContextManager[Endpoint]]:
    """Open an arm: one URL by `open_one`, several with commas between as replicas."""

    @asynccontextmanager
    async def several(urls: Sequence[str], policy: RequestPolicy, key: str | None) -> AsyncIterator[Replicas]:
        slots = asyncio.Semaphore(policy.concurrency)
        async with AsyncExitStack() as stack:
            opened = (open_one(url, policy=policy, key=key, slots=slots) for url in urls)
            yield Replicas([await stack.enter_async_context(own) for own in opened])

    def opened(url: str, *, policy: RequestPolicy, key: str | None) -> AbstractAsyncContextManager[Endpoint]:
        urls = urls_of(url)
        return several(urls, policy, key) if len(urls) > 1 else open_one(url, policy=policy, key=key)

    return opened


def merged_engine(engines: Sequence[Engine]) -> Engine:
    """Make one engine of an arm's, which are alike: the first's, with all counters and names."""
    return replace(
        engines[0],
        counters=added_counters([engine.counters for engine in engines]),
        has_metrics=all(engine.has_metrics for engine in engines),
        names=tuple(dict.fromkeys(name for engine in engines for name in engine.names)),
    )


def added_counters(parts: Sequence[Counters | None]) -> Counters | None:
    """Add up counters; None, also for a single one, where a part is not told."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    drafting = [part.drafting for part in known if part.drafting is not None]
    sums: dict[str, Any] = {}
    for name in SUMMED:
        numbers = [getattr(part, name) for part in known]
        sums[name] = None if None in numbers else sum(numbers)
    return Counters(
        drafting=sum(drafting, Drafting()) if drafting else None,
        source=next((part.source for part in known if part.drafting is not None), known[0].source),
        n_servers=len(known),
        **sums,
    )

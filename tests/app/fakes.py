"""A harness and endpoints without lm-eval and without a network, for tests of the use cases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from qualab.harness.process import Harness
from qualab.model.comparison import Analysis, Comparison
from qualab.model.engine import Counters, Drafting, Engine, EngineKind, Preflight
from qualab.model.items import Item, Prompt, Reply, Request
from qualab.model.names import AnswerStatus, Api, ArmName, MetricKind, RequestKind
from qualab.model.plan import NO_TASKS, MetricSpec, Plan, RequestPolicy, TaskSpec
from qualab.model.ports import ComparisonFilter, Progress, TaskOptions
from qualab.model.registry import Heartbeat
from qualab.run.preflight import PROBE_TOKENS, TRIAL_TOKENS
from qualab.run.prepare import Services
from qualab.run.run import look_before, resume, start
from qualab.settings import Settings, load
from tests.fresh_store import fresh_store
from tests.store.samples import filled

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE


REPLY = filled(
    Reply,
    status=AnswerStatus.OK,
    text="x",
    finish_reason="stop",
    prompt_tokens=3,
    completion_tokens=1,
    attempts=1,
    latency_s=0.01,
    sent_at=START,
)
TASK = filled(
    TaskSpec,
    kind=RequestKind.GENERATION,
    version="1",
    config_hash="c",
    data_hash="d",
    dataset="made-up",
    revision="local",
)


def reply(text: str = "x", **changes: Any) -> Reply:
    return replace(REPLY, **{"text": text} | changes)


def failure(status: AnswerStatus = AnswerStatus.HTTP_ERROR) -> Reply:
    return reply(status=status, text=None, finish_reason="", error="500 broken", attempts=5)


def task_spec(name: str = "sums", n_items: int = 10, **changes: Any) -> TaskSpec:
    own = {"name": name, "benchmark": name, "n_items": n_items, "n_available": n_items}
    return replace(TASK, **own | changes)


def metric_spec(task: str = "sums", **changes: Any) -> MetricSpec:
    own = {"name": "exact_match", "filter": "none", "kind": MetricKind.BINARY_MEAN}
    return MetricSpec(task=task, **own | {"is_primary": True, "exercises_drafter": True} | changes)


def generation(task: str, number: int, *, asks: int | None = None) -> Item:
    """An item that asks to say a number: its own, unless given."""
    asked = str(number if asks is None else asks)
    prompts = (Prompt(text=f"say {asked}", gen_kwargs={"until": ["END"], "max_gen_toks": 5}),)
    place = {"position": number, "task": task, "doc_id": number, "kind": RequestKind.GENERATION}
    return Item(**place, doc={"number": number}, target=asked, prompts=prompts)


@dataclass
class FakeTasks:
    """`n_items` generations; an answer is right when it equals the item's target, its number."""

    n_items: int = 10
    hard: Container[int] = ()
    """Items that nobody gets right."""
    name: str = "sums"
    suite: str = "custom"
    applies_chat_template: bool = False
    harness_version: str = "0"
    config_hash: str = "c"
    revision: str = "local"
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Several tasks, in place of one of `n_items`."""

    @property
    def tasks(self) -> tuple[TaskSpec, ...]:
        sizes = self.sizes or {self.name: self.n_items}
        own = {"config_hash": self.config_hash, "revision": self.revision}
        return tuple(task_spec(name, size, **own) for name, size in sizes.items())

    @property
    def metrics(self) -> tuple[MetricSpec, ...]:
        return tuple(metric_spec(task.name) for task in self.tasks)

    def render(self) -> Iterator[Item]:
        yield from (generation(task.name, number) for task in self.tasks for number in range(task.n_items))

    def score(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> list[dict[str, Any]]:
        return [
            {"exact_match,none": float(replies[0].text == item.target and item.doc_id not in self.hard)}
            for item, replies in answered
        ]

    def samples(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> Iterator[dict[str, Any]]:
        yield from ({"doc_id": item.doc_id} for item, _ in answered)

    def extracted(
        self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]
    ) -> Iterator[tuple[str, Sequence[Any]]]:
        """The first word of each text."""
        yield "none", [[((reply.text or "").split() or ["[invalid]"])[0] for reply in own] for _, own in answered]

    def results(self, answered: Mapping[str, Any]) -> dict[str, Any]:
        return {"results": {task: len(entries) for task, entries in answered.items()}}

    def aggregate(self, values: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, float]]:
        return {
            task: {metric: sum(numbers) / len(numbers) for metric, numbers in metrics.items()}
            for task, metrics in values.items()
        }


@dataclass
class FakeHarness:
    tasks: FakeTasks = field(default_factory=FakeTasks)
    seen: list[TaskOptions] = field(default_factory=list)

    def load(self, options: TaskOptions) -> Any:
        self.seen.append(options)
        return Harness(tasks_dir=Path()).load(options) if options.names == NO_TASKS else self.tasks

    def stop(self) -> None: ...


Answerer = Callable[[str, int], Reply]
"""(prompt, seed) -> reply"""


def echo_number(prompt: str, seed: int) -> Reply:
    return reply(prompt.removeprefix("say "))


def other_for(numbers: Container[int], other: Reply | None = None) -> Answerer:
    """Answers as it should, but for these items; with "no" unless given."""
    return lambda prompt, seed: (other or reply("no")) if int(prompt[4:]) in numbers else echo_number(prompt, seed)


@dataclass
class FakeEndpoint:
    """Answers by a function; remembers what it was asked, and how many were in flight at once."""

    url: str
    answer: Answerer = echo_number
    delay_s: float = 0.0
    bodies: list[bytes] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    model_root: str = ""
    drafts: bool = False
    """Whether a drafter is on: each generation is one round of 3 draft tokens, of which 2 are accepted."""
    generated: int = 0

    async def engine(self, *, model: str) -> Engine:
        return Engine(kind=EngineKind.UNKNOWN, model_root=self.model_root, counters=await self.counters())

    async def counters(self) -> Counters | None:
        n = self.generated
        on = Drafting(drafts=n, draft_tokens=3 * n, accepted_tokens=2 * n, accepted_at=(n, n, 0))
        return Counters(drafting=on if self.drafts else None)

    async def inspect(self, *, model: str) -> bool:
        return False

    async def settings(self, api: Api) -> frozenset[str] | None:
        return None

    async def ask(self, request: Request, body: bytes, *, on_wait: Callable[[float], None] | None = None) -> Reply:
        payload = json.loads(body)
        self.generated += 1
        if payload["max_tokens"] in (TRIAL_TOKENS, PROBE_TOKENS):
            return reply("trial")
        self.bodies.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.delay_s)
        finally:
            self.in_flight -= 1
        return self.answer(payload["prompt"], payload["seed"])

    async def tokenize(self, texts: Sequence[str], *, model: str) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    def prompts(self) -> list[str]:
        return [json.loads(body)["prompt"] for body in self.bodies]


@dataclass
class FakePins:
    images: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By pod or container."""
    folder_hash: str = ""
    commit: str = ""

    async def pod_image(self, pod: str) -> tuple[str, ...]:
        return self.images[pod]

    async def container_image(self, container: str) -> tuple[str, ...]:
        return self.images[container]

    async def checkpoint_hash(self, folder: Path, *, say: Callable[[str], None]) -> str:
        return self.folder_hash

    def revision(self, folder: Path) -> str:
        return self.commit


@dataclass
class Clock:
    instant: datetime = START

    def now(self) -> datetime:
        return self.instant

    def monotonic_s(self) -> float:
        return 0.0


@dataclass
class QuietProgress(Progress):
    comparison: Comparison | None = None
    answers: list[ArmName] = field(default_factory=list)
    totals: Mapping[ArmName, int] = field(default_factory=dict)
    done: Mapping[ArmName, int] = field(default_factory=dict)

    def started(self, comparison: Comparison, *, totals: Mapping[ArmName, int], done: Mapping[ArmName, int]) -> None:
        self.comparison, self.totals, self.done = comparison, totals, dict(done)

    def answered(self, arm: ArmName, reply: Reply) -> None:
        self.answers.append(arm)

    def waiting(self, arm: ArmName, seconds: float) -> None: ...


@dataclass
class Bench:
    baseline: FakeEndpoint = field(default_factory=lambda: FakeEndpoint("http://off"))
    candidate: FakeEndpoint = field(default_factory=lambda: FakeEndpoint("http://on", drafts=True))
    harness: FakeHarness = field(default_factory=FakeHarness)
    store: Any = field(default_factory=fresh_store)
    pins: FakePins = field(default_factory=FakePins)
    clock: Clock = field(default_factory=Clock)
    runner: str = "here:1:a"
    heartbeat: Heartbeat = field(default_factory=Heartbeat)

    @property
    def services(self) -> Services:
        return Services(
            store=self.store,
            harness=self.harness,
            open_endpoint=self._open,
            named_tokenizer=lambda name: lambda texts: [list(text.encode()) for text in texts],
            is_same_server=lambda a, b: a == b,
            pins=self.pins,
            clock=self.clock,
            runner=self.runner,
            heartbeat=self.heartbeat,
        )

    @classmethod
    def of(
        cls,
        n_items: int = 10,
        tasks: type[FakeTasks] = FakeTasks,
        *,
        off: Answerer = echo_number,
        on: Answerer = echo_number,
        hard: Container[int] = (),
        **changes: Any,
    ) -> Self:
        """With so many items, of which nobody gets the `hard` ones right, and both arms' answers."""
        bench = cls(harness=FakeHarness(tasks(n_items=n_items, hard=hard)), **changes)
        bench.baseline.answer, bench.candidate.answer = off, on
        return bench

    async def run(
        self, *, progress: QuietProgress | None = None, frozen: Plan | None = None, **changes: Any
    ) -> Analysis:
        services = replace(self.services, progress=progress or QuietProgress())
        return await start(services, experiment(**changes), frozen=frozen)

    async def begin(self, **changes: Any) -> str:
        """The baseline's turn of a comparison whose arms take turns; returns its id."""
        assert await start(self.services, experiment(sequential=True, **changes), arms=[BASELINE]) is None
        return self.store.list(ComparisonFilter())[0].id

    async def take_turn(self, comparison_id: str, arm: ArmName = CANDIDATE) -> Any:
        """An arm's turn of such a comparison."""
        return await resume(self.services, comparison_id, arms=[arm])

    async def look(self, *, frozen: Plan | None = None, **changes: Any) -> Preflight:
        return await look_before(self.services, experiment(**changes), frozen=frozen)

    async def resume(self, comparison_id: str, *, progress: QuietProgress | None = None, **changes: Any) -> Analysis:
        services = replace(self.services, progress=progress or QuietProgress())
        return await resume(services, comparison_id, **changes)

    @asynccontextmanager
    async def _open(self, url: str, *, policy: RequestPolicy, key: str | None) -> AsyncIterator[FakeEndpoint]:
        yield self.baseline if url == self.baseline.url else self.candidate


def experiment(**changes: Any) -> Settings:
    """Settings of a comparison of the fakes; a rule, a policy and a noise floor may be given whole."""
    given: dict[str, Any] = {"baseline": "http://off", "candidate": "http://on", "model": "m", "tasks": ("sums",)}
    given |= {"concurrency": 4, "max_attempts": 1, **changes}
    if rule := given.pop("rule", None):
        given = asdict(rule) | given
    if policy := given.pop("policy", None):
        given |= {"timeout": policy.timeout_s, "max_wait": policy.max_wait_s}
        given |= {name: getattr(policy, name) for name in ("concurrency", "max_attempts", "max_failed_share")}
    if floor := given.pop("noise_floor", None):
        given |= {"noise_floor_runs": floor.runs, "noise_floor_concurrency": floor.concurrency}
    return load(content=given, environment=False)

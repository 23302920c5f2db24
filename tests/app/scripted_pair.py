"""A pair of scripted servers over HTTP, and comparisons of them without lm-eval: made-up tasks, the real client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from qualab.endpoints.client import HttpEndpoint
from qualab.endpoints.replicas import opening
from qualab.endpoints.urls import same_server
from qualab.model.comparison import Analysis, Comparison
from qualab.model.engine import Preflight, TaskDrafting, Treatment
from qualab.model.items import Item, Prompt, Reply
from qualab.model.names import ArmName, RequestKind
from qualab.model.plan import DecisionRule, MetricSpec, RequestPolicy, TaskSpec
from qualab.model.ports import Clock, ComparisonFilter
from qualab.run.prepare import Services
from qualab.run.run import look_before, resume, start
from qualab.store import Store
from tests.app.fakes import FakeHarness, FakePins, FakeTasks, QuietProgress, experiment, metric_spec, task_spec
from tests.fresh_store import fresh_store
from tests.said import english
from tests.scripted_engine import EngineScript
from tests.scripted_server import MODEL, Script, ScriptedServer

SAYS = "The lighthouse keeper counts every boat."
"""35 tokens of the scripted tokenizer: with its end 12 rounds of 3 tokens, the first token being the prompt's."""
ROUNDS = 12
ALLOWED = DecisionRule(allow_unobserved=True)


@dataclass(kw_only=True)
class Talker(Script):
    """Answers everything with one sentence."""

    says: str = SAYS

    def text(self, prompt: str) -> str:
        return self.says


@dataclass
class MadeUpTasks(FakeTasks):
    """Tasks of given sizes; a prompt names its task. Those in `scored` ask for log-likelihoods."""

    sizes: Mapping[str, int] = field(default_factory=lambda: {"sums": 40})
    scored: tuple[str, ...] = ()
    long_from: int | None = None
    """Items of a task from this one on have prompts of more than 300 tokens."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Generation settings."""

    @property
    def tasks(self) -> tuple[TaskSpec, ...]:
        return tuple(task_spec(name, size, kind=self._kind(name)) for name, size in self.sizes.items())

    @property
    def metrics(self) -> tuple[MetricSpec, ...]:
        return tuple(metric_spec(name, exercises_drafter=name not in self.scored) for name in self.sizes)

    def _kind(self, name: str) -> RequestKind:
        return RequestKind.LOGLIKELIHOOD if name in self.scored else RequestKind.GENERATION

    def render(self) -> Iterator[Item]:
        for name, size in self.sizes.items():
            for number in range(size):
                is_long = self.long_from is not None and number >= self.long_from
                text = f"{name} {number}{' and so on' * 40 * is_long}"
                position = {"position": number, "doc_id": number, "doc": {"number": number}}
                own = {"task": name, "kind": self._kind(name), "prompts": self._prompts(name, text)}
                yield Item(**position, **own, target=SAYS)

    def _prompts(self, name: str, text: str) -> tuple[Prompt, ...]:
        if name in self.scored:
            return tuple(Prompt(text=text, continuation=f" {choice}") for choice in "ab")
        return (Prompt(text=text, gen_kwargs={"until": ["END"], "max_gen_toks": 64, **self.settings}),)


@dataclass
class Pair:
    off: ScriptedServer
    on: ScriptedServer
    tasks: MadeUpTasks = field(default_factory=MadeUpTasks)
    store: Store = field(default_factory=fresh_store)

    @property
    def services(self) -> Services:
        return Services(
            store=self.store,
            harness=FakeHarness(self.tasks),
            open_endpoint=opening(HttpEndpoint),
            named_tokenizer=lambda _: lambda texts: [list(text.encode()) for text in texts],
            is_same_server=same_server,
            clock=Clock(),
            runner="here:1:a",
            pins=FakePins(),
        )

    def wanted(self, **changes: Any) -> Any:
        policy = RequestPolicy(concurrency=4, max_attempts=2, backoff_s=0.01)
        given = {"baseline": self.off.url, "candidate": self.on.url, "model": MODEL, "policy": policy}
        return experiment(**{**given, **changes})

    def preflight(self, **changes: Any) -> Preflight:
        return asyncio.run(look_before(self.services, self.wanted(**changes)))

    def compared(self, *, killed_after: int | None = None, **changes: Any) -> Analysis:
        """Runs a comparison to its end, or until so many of the candidate's answers."""
        progress = Killing(after=killed_after)
        return progress.result_of(start(replace(self.services, progress=progress), self.wanted(**changes)))

    @property
    def comparison(self) -> Comparison:
        (found,) = self.store.list(ComparisonFilter())
        return found

    def resumed(self, *, retry_failed: bool = False) -> Analysis:
        return asyncio.run(resume(self.services, self.comparison.id, retry_failed=retry_failed))

    def replace_candidate(self, engine: EngineScript, *, drafts: bool = True) -> None:
        """Another process at the candidate's port."""
        self.on.__exit__()
        self.on = ScriptedServer(Talker(engine=engine, drafts=drafts), port=self.on.port).__enter__()


@dataclass
class Killing(QuietProgress):
    """Ends a job after so many answers of an arm."""

    after: int | None = None
    arm: ArmName = ArmName.CANDIDATE
    job: asyncio.Task[Any] | None = None

    def answered(self, arm: ArmName, reply: Reply) -> None:
        super().answered(arm, reply)
        if self.job and self.answers.count(self.arm) == self.after:
            self.job.cancel()

    def result_of(self, running: Coroutine[Any, Any, Any]) -> Any:
        """Waits for it; None where it was killed."""

        async def run() -> Any:
            self.job = asyncio.create_task(running)
            with suppress(asyncio.CancelledError):
                return await self.job

        return asyncio.run(run())


@contextmanager
def pair(
    *,
    off: EngineScript | None = None,
    on: EngineScript | None = None,
    off_drafts: bool = False,
    on_drafts: bool = True,
    on_says: str = SAYS,
    **tasks: Any,
) -> Iterator[Pair]:
    """A healthy pair of vLLM servers, unless told otherwise."""
    baseline = Talker(engine=off or EngineScript(), drafts=off_drafts)
    candidate = Talker(engine=on or EngineScript(), drafts=on_drafts, says=on_says)
    with ScriptedServer(baseline) as one, ScriptedServer(candidate) as other:
        both = Pair(one, other, tasks=MadeUpTasks(**tasks))
        yield both
        both.on.__exit__()


def stops(found: Preflight) -> list[str]:
    return [english(one.what) for one in found.stopping]


def messages(found: Preflight) -> set[str]:
    return {english(one.what) for one in found.findings}


def treatment(analysis: Analysis) -> Treatment:
    assert analysis.treatment is not None
    return analysis.treatment


def drafting(analysis: Analysis, task: str = "sums") -> TaskDrafting:
    return next(one for one in treatment(analysis).tasks if one.task == task)


def notes(analysis: Analysis) -> tuple[str, ...]:
    return english(treatment(analysis).notes)


def troubles(analysis: Analysis) -> tuple[str, ...]:
    return english(treatment(analysis).troubles)

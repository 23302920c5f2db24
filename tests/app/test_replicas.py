"""Arms of several replicas over HTTP: spread, added up, one left out, one that differs, a balancer that hides some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import pytest
from aiohttp import web

from qualab.errors import ComparisonBusy, InvalidValue, PairDiffers, RunStopped
from qualab.model.comparison import Analysis
from qualab.model.engine import Segment, replicas_seen
from qualab.model.names import ArmName, ComparisonStatus, Language, Verdict
from qualab.model.plan import NoisePlan, RequestPolicy
from qualab.report.markdown import render_markdown
from qualab.report.model import report_model
from qualab.settings import load
from tests.app.scripted_pair import Pair, Talker, drafting, messages, notes, pair, stops, troubles
from tests.said import english
from tests.scripted_engine import EngineScript
from tests.scripted_server import ScriptedServer, Step

COMPLETIONS = ("POST", "/v1/completions")


@dataclass
class ReplicatedPair(Pair):
    more: dict[ArmName, list[ScriptedServer]] = field(default_factory=dict)

    def servers(self, arm: ArmName) -> list[ScriptedServer]:
        return [self.on if arm is ArmName.CANDIDATE else self.off, *self.more[arm]]

    def wanted(self, **changes: Any) -> Any:
        urls = {arm.value: [server.url for server in self.servers(arm)] for arm in ArmName}
        return super().wanted(**{**urls, **changes})


@contextmanager
def replicated(
    *,
    n: int = 2,
    latency_s: float = 0.0,
    more_off: EngineScript | None = None,
    more_on: EngineScript | None = None,
    **given: Any,
) -> Iterator[ReplicatedPair]:
    """A pair of arms of `n` replicas each; `more_off` and `more_on` set up all but the first."""
    scripts = {ArmName.BASELINE: more_off, ArmName.CANDIDATE: more_on}
    with pair(**given) as both, ExitStack() as stack:
        several = ReplicatedPair(both.off, both.on, tasks=both.tasks, store=both.store)
        for arm in ArmName:
            talkers = [
                Talker(engine=scripts[arm] or EngineScript(), drafts=arm is ArmName.CANDIDATE) for _ in range(n - 1)
            ]
            several.more[arm] = [stack.enter_context(ScriptedServer(talker)) for talker in talkers]
            for server in several.servers(arm):
                server.script.latency_s = latency_s
        yield several


def asked(server: ScriptedServer, task: str = "sums") -> int:
    """Requests of items: trials have fewer tokens."""
    return sum(f'"prompt":"{task} '.encode() in body and b'"max_tokens":64' in body for _, body in server.requests)


def caveats(analysis: Analysis) -> list[str]:
    return list(english(analysis.caveats))


def dying(server: ScriptedServer, *, after: int) -> Step:
    """Answers so many items' requests, then resets every connection and listens no more."""
    answer = server.routes[COMPLETIONS]

    async def step(request: web.Request) -> web.StreamResponse:
        if asked(server) <= after:
            return await answer(request)
        server._stop.set()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return step


def test_requests_are_spread_evenly_and_counters_added_up() -> None:
    with replicated(n=3, latency_s=0.004, sizes={"sums": 150}) as both:
        analysis = both.compared(noise_floor=NoisePlan(runs=1, concurrency=6))
        for arm, n_runs in ((ArmName.BASELINE, 2), (ArmName.CANDIDATE, 1)):
            shares = [asked(server) for server in both.servers(arm)]
            assert sum(shares) == 150 * n_runs
            assert all(abs(share / (50 * n_runs) - 1) <= 0.1 for share in shares), shares
            uses = replicas_seen(both.store.observations(both.comparison.id), arm)
            assert {use.url for use in uses} == {server.url for server in both.servers(arm)}
            assert sum(use.n_answers for use in uses) == 150 * n_runs
            counted = [use for use in uses if use.finished_requests is not None]  # not the noise floor's
            assert len(counted) >= 3
            assert all((use.finished_requests or 0) >= use.n_answers for use in counted)
        assert analysis.verdict is not Verdict.INVALID, english(analysis.reasons)
        assert drafting(analysis).rounds == 150 * 12
        assert troubles(analysis) == ()
        assert not [text for text in caveats(analysis) if "replica" in text or "balancer" in text]
        text = render_markdown(report_model(both.store, both.comparison.id, Language.ENGLISH)).decode()
        assert all(f"{server.url} (50 answers)" in text for server in both.servers(ArmName.CANDIDATE))
        told = both.comparison.candidate_url
        assert told == ", ".join(server.url for server in both.servers(ArmName.CANDIDATE))


def test_a_slow_one_is_given_less() -> None:
    with replicated(latency_s=0.004, sizes={"sums": 100}) as both:
        both.on.script.latency_s = 0.4
        both.compared(policy=RequestPolicy(concurrency=8))
        assert asked(both.on) < 0.5 * asked(both.more[ArmName.CANDIDATE][0])


def test_one_that_restarts_while_it_is_asked_has_not_restarted_before_the_run_went_on() -> None:
    with replicated(latency_s=0.004, sizes={"sums": 90}, more_on=EngineScript(restart_at=25)) as both:
        assert both.compared(killed_after=70) is None
        analysis = both.resumed()
        assert any("engine restarted while it was asked" in text for text in troubles(analysis))
        assert not [note for note in notes(analysis) if "restarted" in note]


def test_a_run_goes_on_without_one_that_died_between_and_still_counts_drafts() -> None:
    with replicated(latency_s=0.004, sizes={"sums": 90}) as both:
        assert both.compared(killed_after=70) is None
        both.more[ArmName.CANDIDATE][0].__exit__()
        analysis = both.resumed()
        assert not [note for note in notes(analysis) if "restarted" in note]
        *_, last = [seen for seen in both.store.observations(analysis.comparison_id) if isinstance(seen, Segment)]
        assert last.arm is ArmName.CANDIDATE
        assert last.drafting is not None
        assert last.drafting.drafts >= 12 * 10


@pytest.mark.parametrize("arm", ArmName)
def test_one_that_dies_is_left_out_and_the_others_answer(arm: ArmName) -> None:
    with replicated(n=3, latency_s=0.002, sizes={"sums": 60}) as both:
        dead = both.servers(arm)[1]
        dead.routes[COMPLETIONS] = dying(dead, after=5)
        analysis = both.compared()
        assert [(summary.n_answers, summary.n_requests) for summary in analysis.arms] == [(60, 60), (60, 60)]
        (lost,) = [text for text in caveats(analysis) if "left out" in text]
        assert dead.url in lost
        assert "after 5 answers: the connection was refused" in lost
        assert troubles(analysis) == ()
        assert analysis.verdict is not Verdict.INVALID


def test_all_dead_the_arm_fails_as_one_does() -> None:
    with replicated(sizes={"sums": 60}) as both:
        for server in both.servers(ArmName.CANDIDATE):
            server.routes[COMPLETIONS] = dying(server, after=5)
        with pytest.raises(RunStopped, match=r"candidate at .* fails"):
            both.compared()
        assert both.comparison.status is ComparisonStatus.STOPPED


def test_a_killed_run_goes_on_without_one_that_died_meanwhile() -> None:
    with replicated(sizes={"sums": 60}) as both:
        dead = both.more[ArmName.BASELINE][0]
        dead.routes[COMPLETIONS] = dying(dead, after=3)
        assert both.compared(killed_after=50) is None
        analysis = both.resumed()
        assert [summary.n_answers for summary in analysis.arms] == [60, 60]
        (lost,) = [text for text in caveats(analysis) if "left out" in text]
        assert dead.url in lost
        # of a new comparison it is an error
        with pytest.raises(Exception, match="cannot be reached"):
            both.preflight()


BLOCKS = {"cache_config.block_size": 32}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"more_on": EngineScript(has_server_info=True, config=BLOCKS)}, "block_size than the arm: 32, not 128"),
        ({"more_off": EngineScript(has_server_info=True)}, "do not all publish their configuration"),
        ({"more_on": EngineScript(is_dead=True)}, "drafted nothing for a probe ("),
        ({"more_on": EngineScript(kind="llama")}, "another kind than the arm: llama.cpp, not vLLM"),
    ],
)  # fmt: skip
def test_one_that_differs_stops_the_run_before_it_begins(given: dict[str, Any], said: str) -> None:
    info = "more_on" in given and given["more_on"].has_server_info
    names = ("off", "on", "more_off", "more_on")
    scripts = {name: given.get(name) or EngineScript(has_server_info=info) for name in names}
    scripts = {name: replace(script, instance_id=name) for name, script in scripts.items()}
    with replicated(**scripts) as both:
        found = both.preflight()
        named = [text for text in stops(found) if said in text]
        arm = ArmName.CANDIDATE if "more_on" in given else ArmName.BASELINE
        assert named, messages(found)
        assert both.servers(arm)[1].url in named[0]


def test_one_that_changes_in_the_middle_stops_the_run() -> None:
    with replicated(sizes={"sums": 60}) as both:
        server = both.more[ArmName.CANDIDATE][0]
        answer = server.routes[COMPLETIONS]

        async def step(request: web.Request) -> web.StreamResponse:
            if asked(server) == 10:
                server.routes["GET", "/version"] = lambda _: _version()
            return await answer(request)

        server.routes[COMPLETIONS] = step
        with pytest.raises(PairDiffers, match=r"another version than the arm: 0.0.1") as stop:
            both.compared()
        assert server.url in stop.value.message
        assert both.comparison.status is ComparisonStatus.STOPPED
        assert asked(server) < 30, "it is looked at before all is asked"


async def _version() -> web.StreamResponse:
    return web.json_response({"version": "0.0.1"})


def in_turn(*steps: Step) -> Step:
    turns = cycle(steps)

    async def step(request: web.Request) -> web.StreamResponse:
        return await next(turns)(request)

    return step


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        ([COMPLETIONS], "counters saw 30 of 60 requests that its URL answered"),
        ([COMPLETIONS, ("GET", "/metrics")], "leads to 2 processes in turn"),
    ],
)
def test_a_balancer_shows_in_counters_that_contradict(routes: Sequence[tuple[str, str]], said: str) -> None:
    with pair(sizes={"sums": 60}) as both:
        hidden = ScriptedServer(Talker(engine=EngineScript(started_at_s=1_795_974_999.0), drafts=True))
        for route in routes:
            both.on.routes[route] = in_turn(both.on.routes[route], hidden.routes[route])
        (balanced,) = [text for text in caveats(both.compared()) if "balancer" in text]
        assert said in balanced
        assert "Name each of them" in balanced


def test_a_balancer_among_replicas_shows_too() -> None:
    with replicated(sizes={"sums": 120}) as both:
        hidden = ScriptedServer(Talker(drafts=True))
        both.on.routes[COMPLETIONS] = in_turn(both.on.routes[COMPLETIONS], hidden.routes[COMPLETIONS])
        (balanced,) = [text for text in caveats(both.compared()) if "stand behind it" in text]
        assert both.on.url in balanced


def test_replicas_may_have_fingerprints_of_their_own() -> None:
    with replicated(on=EngineScript(fingerprints=("a",)), more_on=EngineScript(fingerprints=("b",))) as both:
        assert troubles(both.compared()) == ()
    with replicated(more_on=EngineScript(fingerprints=("b", "c"))) as both:
        assert "2 different engines (b, c)" in troubles(both.compared())[0]


def test_other_comparisons_see_every_replica() -> None:
    with replicated(sizes={"sums": 60}) as both:
        seen: list[str] = []

        def busy(url: str) -> None:
            try:
                both.store.check_endpoints([url], runner="there:2:b", now=both.services.clock.now(), stale_after_s=60)
            except ComparisonBusy:
                seen.append(url)

        urls = [server.url for arm in ArmName for server in both.servers(arm)]
        answer = both.on.routes[COMPLETIONS]

        async def step(request: web.Request) -> web.StreamResponse:
            if asked(both.on) == 1 and not seen:
                for url in [*urls, "http://elsewhere/v1"]:
                    await asyncio.to_thread(busy, url)
            return await answer(request)

        both.on.routes[COMPLETIONS] = step
        both.compared()
        assert seen == urls


TWICE, HOST = "lists one server twice", "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"candidate": [f"{HOST}1", f"{HOST}1/v1"]}, f"The candidate {TWICE}"),
        ({"baseline": f"{HOST}1, http://localhost:91"}, f"The baseline {TWICE}"),
        ({"baseline": [f"{HOST}1", f"{HOST}2"], "candidate": [f"{HOST}3", f"{HOST}2"]}, "are the same server"),
        ({"candidate": [f"{HOST}1", "ftp://b"]}, "neither http nor https"),
        ({"candidate": [f"{HOST}1", 5]}, "candidate"),
        ({"candidate": [f"{HOST}1", f"{HOST}2"], "pods": {"candidate": "a/b"}}, "several replicas, and one pod"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line(given: dict[str, Any], said: str) -> None:
    with pair() as both, pytest.raises(InvalidValue, match=said):
        both.preflight(**{"baseline": f"{HOST}8", "candidate": f"{HOST}9", **given})


def test_a_list_and_commas_are_the_same() -> None:
    urls = ["http://a:1/v1", "http://b:1/v1"]
    read: Callable[..., Any] = lambda **given: load(environment=False, **given).candidate  # noqa: E731
    assert read(content={"candidate": urls}) == read(command_line={"candidate": "http://a:1/v1, http://b:1/v1"})
    assert read(content={"candidate": urls[0]}) == urls[0]

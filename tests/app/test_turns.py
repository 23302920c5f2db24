"""Arm by arm: what each turn asks, what is checked when, how a killed turn goes on, and what is said of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from qualab.errors import EndpointMisconfigured, EndpointUnreachable, InvalidValue, PairDiffers, RunStopped, UsageError
from qualab.model.names import AnswerStatus, ArmName, ComparisonStatus, Verdict
from qualab.model.plan import NoisePlan
from qualab.model.ports import ComparisonFilter
from qualab.model.reason import Reason
from qualab.run.run import resume, start, turns_left
from qualab.run.sign import signoff_obstacles
from tests.app.fakes import BASELINE, CANDIDATE, Bench, echo_number, failure
from tests.app.scripted_pair import ROUNDS, Killing, Pair, drafting, pair, treatment, troubles
from tests.said import english
from tests.scripted_engine import OPEN, SPEC_DECODE_REFUSES, EngineScript
from tests.scripted_server import ScriptedServer

REJECTING = EngineScript(rejects=("min_p",))
N_ITEMS = 40
LOST, NOT_INTERLEAVED = Reason("arm-by-arm"), Reason("one-after-the-other")


class Turns:
    """One server at a time at one port, as on a device that holds one: the other arm's is not there."""

    def __init__(self, both: Pair) -> None:
        self.both = both
        self.port = both.off.port
        self.servers: list[ScriptedServer] = []

    def serve(self, arm: ArmName) -> None:
        """A new process for this arm in the place of the one that is served."""
        self.stop()
        script = (self.both.off if arm is BASELINE else self.both.on).script
        started = script.engine.started_at_s + 100 * len(self.servers)
        fresh = replace(script, engine=replace(script.engine, started_at_s=started))
        self.servers.append(ScriptedServer(fresh, port=self.port).__enter__())

    def stop(self) -> None:
        (self.servers[-1] if self.servers else self.both.off).__exit__()

    def take(self, arm: ArmName, *, killed_after: int | None = None, **changes: Any) -> Any:
        """An arm's turn, the baseline's first one of a new comparison."""
        self.serve(arm)
        progress = Killing(after=killed_after, arm=arm)
        services = replace(self.both.services, progress=progress)
        if self.both.store.list(ComparisonFilter()):
            turn = resume(services, self.both.comparison.id, arms=[arm])
        else:
            wanted = self.both.wanted(sequential=True, candidate=self.both.off.url, **changes)
            turn = start(services, wanted, arms=[arm])
        return progress.result_of(turn)

    def left(self) -> tuple[ArmName, ...]:
        return turns_left(self.both.services, self.both.comparison.id)

    @property
    def status(self) -> ComparisonStatus:
        return self.both.comparison.status


@pytest.fixture
def turns(request: pytest.FixtureRequest) -> Any:
    with pair(**getattr(request, "param", {})) as both:
        found = Turns(both)
        yield found
        found.stop()


def asked(server: ScriptedServer) -> int:
    return sum(path.endswith("completions") for path, _ in server.requests)


def test_each_arm_is_asked_alone_and_the_result_is_that_of_an_interleaved_run(turns: Turns) -> None:
    turns.take(BASELINE)
    assert turns.status is ComparisonStatus.INTERRUPTED
    found = turns.take(CANDIDATE)
    assert [asked(server) - N_ITEMS for server in turns.servers] == [2, 2], "a trial and a probe each"
    assert (found.arms[0].n_answers, found.arms[1].n_answers) == (N_ITEMS, N_ITEMS)
    assert troubles(found) == ()
    assert drafting(found).rounds == N_ITEMS * ROUNDS
    assert [engine.arm for engine in treatment(found).engines] == [BASELINE, CANDIDATE]
    assert turns.status is ComparisonStatus.FINISHED
    with pair() as both:
        interleaved, beside = both.compared(), both.comparison
    assert found.verdict is interleaved.verdict is not Verdict.INVALID
    assert [row.evidence for row in found.metrics] == [row.evidence for row in interleaved.metrics]
    comparison = turns.both.comparison
    assert comparison.plan.sequential
    assert comparison.plan_hash != beside.plan_hash
    assert (found.caveats[0], LOST in interleaved.caveats) == (LOST, False)
    assert english(found.caveats)[1].startswith("The candidate's turn began ")
    assert NOT_INTERLEAVED in signoff_obstacles(found, comparison)
    assert NOT_INTERLEAVED not in signoff_obstacles(interleaved, beside)


async def test_hours_between_the_turns_are_said() -> None:
    bench = Bench.of(10)
    comparison_id = await bench.begin()
    assert bench.candidate.generated == 0
    bench.clock.instant += timedelta(hours=5)
    found = await bench.take_turn(comparison_id)
    assert "The candidate's turn began 5 h 0 min after the baseline's." in english(found.caveats)


def test_the_noise_floor_is_asked_in_the_baselines_turn(turns: Turns) -> None:
    turns.take(BASELINE, noise_floor=NoisePlan(runs=2, concurrency=2))
    assert asked(turns.servers[0]) == 3 * N_ITEMS + 2
    found = turns.take(CANDIDATE)
    assert asked(turns.servers[1]) == N_ITEMS + 2
    assert found.noise is not None


@pytest.mark.parametrize("turns", [{"sizes": {"sums": 12, "picks": 6}, "scored": ("picks",)}], indirect=True)
def test_log_likelihoods_are_asked_with_the_baselines_tokens(turns: Turns) -> None:
    turns.take(BASELINE)
    found = turns.take(CANDIDATE)
    assert troubles(found) == ()
    assert [arm.n_answers for arm in found.arms] == [12 + 12, 12 + 12]
    bodies = [sorted(body for _, body in server.requests if b"echo" in body) for server in turns.servers]
    assert bodies[0] == bodies[1]


async def test_looks_and_runs_without_servers_to_start_and_stop_are_refused() -> None:
    bench = Bench()
    with pytest.raises(InvalidValue, match="Looks compare the arms while both are asked") as refused:
        await bench.begin(looks=4)
    assert "Leave out looks" in refused.value.hint
    with pytest.raises(UsageError) as run_refused:
        await bench.run(sequential=True)
    comparison_id = await bench.begin()
    with pytest.raises(UsageError) as resume_refused:
        await bench.resume(comparison_id)
    assert all("--managed" in one.value.hint for one in (run_refused, resume_refused))


@pytest.mark.parametrize("turns", [{"off_drafts": True}, {"off": REJECTING, "settings": {"min_p": 0.1}}], indirect=True)
def test_what_is_wrong_with_the_baseline_is_found_before_anything_is_asked(turns: Turns) -> None:
    with pytest.raises((PairDiffers, EndpointMisconfigured), match=r"the baseline drafted|min_p"):
        turns.take(BASELINE)
    assert turns.both.store.list(ComparisonFilter()) == []


REFUSED = f"HTTP 400: {SPEC_DECODE_REFUSES}"
CANDIDATES: list[tuple[dict[str, Any], str]] = [
    ({"on_drafts": False}, "the candidate's engine counts no drafts: it has no drafter"),
    ({"on": EngineScript(is_dead=True)}, "the candidate drafted nothing for a probe"),
    (
        {"off": OPEN, "on": replace(OPEN, config={"scheduler_config.max_num_seqs": 16})},
        "scheduler_config.max_num_seqs is 8 in the baseline and 16 in the candidate",
    ),
    ({"on": EngineScript(has_metrics=False)}, "whether the candidate drafts is not observable"),
    ({"on": REJECTING, "settings": {"min_p": 0.1}}, f"candidate alone rejects requests of sums: {REFUSED}"),
]


@pytest.mark.parametrize(("turns", "said"), CANDIDATES, indirect=["turns"])
def test_a_candidate_that_cannot_be_compared_stops_before_it_is_asked_anything(turns: Turns, said: str) -> None:
    turns.take(BASELINE)
    with pytest.raises(PairDiffers) as stop:
        turns.take(CANDIDATE)
    assert said in stop.value.message
    assert f"Go on with: qualab resume {turns.both.comparison.id}" in stop.value.hint
    assert turns.status is ComparisonStatus.STOPPED
    assert said in english(turns.both.comparison.stop_reason)
    assert not list(turns.both.store.answers(turns.both.comparison.id, arm=CANDIDATE))
    turns.both.on.script = replace(turns.both.off.script, drafts=True)
    assert turns.left() == (CANDIDATE,)
    assert troubles(turns.take(CANDIDATE)) == (), "it goes on once the candidate is mended"


def test_another_tokenizer_in_the_candidate(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    turns.take(BASELINE)
    monkeypatch.setattr("tests.scripted_server.encode", lambda text: [ord(one) for one in text])
    with pytest.raises(PairDiffers) as stop:
        turns.take(CANDIDATE)
    assert "the two tokenizers give different tokens for the same text" in stop.value.message
    assert "a prompt of sums has" in stop.value.message, "told from the baseline's stored answer"


async def test_pins_of_both_turns_are_compared_and_kept() -> None:
    digests = {"off": ("sha256:" + "a" * 64,), "on": ("sha256:" + "b" * 64,)}
    bench = Bench.of(10)
    bench.pins.images = {"off": digests["off"]}
    comparison_id = await bench.begin(containers={BASELINE: "off", CANDIDATE: "on"})
    bench.pins.images = {"on": digests["on"]}
    with pytest.raises(PairDiffers, match=r"the image is .* in the baseline .* in the candidate"):
        await bench.take_turn(comparison_id)
    bench.pins.images = {"on": digests["off"]}
    found = await bench.take_turn(comparison_id)
    assert [one.arm for one in found.pinning.found] == [BASELINE, CANDIDATE]


@pytest.mark.parametrize(
    ("after", "noise", "n_left"), [(1, None, 39), (30, None, 10), (N_ITEMS + 10, NoisePlan(runs=1, concurrency=4), 30)]
)
def test_killed_in_the_baselines_turn_it_asks_what_is_missing_and_then_the_candidate(
    turns: Turns, after: int, noise: NoisePlan | None, n_left: int
) -> None:
    turns.take(BASELINE, killed_after=after, noise_floor=noise)
    assert turns.status is ComparisonStatus.INTERRUPTED
    assert turns.left() == (BASELINE, CANDIDATE)
    assert turns.take(BASELINE) is None
    assert asked(turns.servers[1]) <= n_left + 2
    found = turns.take(CANDIDATE)
    assert troubles(found) == ()
    assert (found.arms[0].n_answers, found.arms[1].n_answers) == (N_ITEMS, N_ITEMS)
    assert (found.noise is None) is (noise is None)


@pytest.mark.parametrize("after", [1, 39])
def test_killed_in_the_candidates_turn_the_baseline_is_not_served_again(turns: Turns, after: int) -> None:
    turns.take(BASELINE)
    turns.take(CANDIDATE, killed_after=after)
    assert turns.left() == (CANDIDATE,)
    found = turns.take(CANDIDATE)
    assert asked(turns.servers[2]) <= N_ITEMS - after + 2
    assert troubles(found) == ()
    anew = [note for note in english(found.caveats) if "engine was restarted" in note]
    assert [note.startswith("The candidate's engine was restarted before the run resumed") for note in anew] == [True]


def test_another_baseline_does_not_go_on(turns: Turns) -> None:
    turns.both.off.script.engine = turns.both.on.script.engine = OPEN
    turns.take(BASELINE, killed_after=17)
    turns.both.off.script.engine = replace(OPEN, config={"scheduler_config.max_num_seqs": 16})
    with pytest.raises(PairDiffers, match=r"another scheduler_config\.max_num_seqs than when the comparison started"):
        turns.take(BASELINE)


def test_a_candidate_that_does_not_come_leaves_a_comparison_to_be_resumed(turns: Turns) -> None:
    turns.take(BASELINE)
    turns.stop()
    with pytest.raises(EndpointUnreachable):
        asyncio.run(resume(turns.both.services, turns.both.comparison.id, arms=[CANDIDATE]))
    assert turns.status is ComparisonStatus.INTERRUPTED
    assert troubles(turns.take(CANDIDATE)) == ()


async def test_failures_of_the_baseline_are_asked_again_in_a_turn_of_its_own() -> None:
    bench = Bench.of(60)
    bench.baseline.answer = lambda prompt, _: failure(AnswerStatus.TIMEOUT)
    with pytest.raises(RunStopped):
        await bench.begin()
    bench.baseline.answer = echo_number
    (comparison,) = bench.store.list(ComparisonFilter())
    assert turns_left(bench.services, comparison.id, retry_failed=True) == (BASELINE, CANDIDATE)
    for arm in ArmName:
        found = await bench.take_turn(comparison.id, arm)
    assert [arm.n_answers for arm in found.arms] == [60, 60]

"""Timing arms over HTTP: what the scripted servers do to a measurement, and what becomes of it."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from qualab.analysis.speed import speed_of
from qualab.errors import ComparisonBusy, EndpointMisconfigured, QualabError, RunStopped, UsageError, WrongState
from qualab.model.comparison import Comparison
from qualab.model.engine import Burst, Cell, cells_of, engines_seen
from qualab.model.names import AnswerStatus, ArmName, CacheState, ComparisonStatus, Language, Verdict, Work
from qualab.model.plan import SpeedPlan
from qualab.model.ports import ComparisonFilter
from qualab.model.speed import CellSpeed, Speed
from qualab.report.model import report_model
from qualab.run import run as use_case
from qualab.run.run import resume, start
from qualab.run.timed import speed_of_stored, start_speed
from qualab.settings import Settings, load
from tests.app.fakes import BASELINE, CANDIDATE, QuietProgress
from tests.app.scripted_pair import Pair
from tests.said import english
from tests.store.samples import put
from tests.streaming_server import StreamingServer, Streams

SMALL = {"speed_works": "copy", "speed_concurrency": "2", "speed_prompt_tokens": "40", "speed_output_tokens": 8}
SMALL |= {"speed_requests": 4, "speed_repeats": 2, "speed_max_repeats": 2}
FAST = 600.0


@dataclass
class Watching(QuietProgress):
    said: list[str] = field(default_factory=list)

    def phase(self, text: str) -> None:
        self.said.append(text)


@dataclass
class Timed(Pair):
    """A pair that streams; `third` is another candidate."""

    off: StreamingServer  # type: ignore[assignment]
    on: StreamingServer  # type: ignore[assignment]
    third: StreamingServer | None = None
    progress: Watching = field(default_factory=Watching)

    def settings(self, **changes: Any) -> Settings:
        given: dict[str, Any] = {"baseline": self.off.url, "candidate": self.on.url, "model": "scripted"}
        if self.third:
            del given["candidate"]
            given["candidates"] = {"k3": self.on.url, "k5": self.third.url}
        return load(content={**given, **SMALL, "timeout": 5.0, **changes}, environment=False)

    def measure(self, **changes: Any) -> Speed:
        asyncio.run(start_speed(replace(self.services, progress=self.progress), self.settings(**changes)))
        return self.speed

    def again(self, **changes: Any) -> Speed:
        services, settings = replace(self.services, progress=self.progress), self.settings(**changes)
        asyncio.run(speed_of_stored(services, self.comparisons[0].id, settings, given=changes))
        return self.speed

    @property
    def comparisons(self) -> list[Comparison]:
        return sorted(self.store.list(ComparisonFilter()), key=lambda own: own.id)

    def bursts(self, at: int = 0) -> list[Burst]:
        return [own for own in self.store.observations(self.comparisons[at].id) if isinstance(own, Burst)]

    @property
    def speed(self) -> Speed:
        found = speed_of(self.bursts(), seed=1)
        assert found
        return found

    @property
    def cell(self) -> CellSpeed:
        (own,) = self.speed.cells
        return own


@contextmanager
def timed(off: Streams | None = None, on: Streams | None = None, third: Streams | None = None) -> Iterator[Timed]:
    off, on = off or Streams(tokens_per_s=FAST / 3), on or Streams(tokens_per_s=FAST, drafts=True)
    with StreamingServer(off) as baseline, StreamingServer(on) as candidate, StreamingServer(third or on) as other:
        yield Timed(baseline, candidate, third=other if third else None)


def test_arms_are_timed_in_turn_with_the_same_bytes_and_the_result_is_a_comparison_without_tasks() -> None:
    with timed() as pair:
        speed = pair.measure(speed_works="copy,json", speed_rates="200", gen_kwargs={"temperature": 0.5})
        assert [(own.cell.work, own.cell.concurrency, own.cell.rate) for own in speed.cells] == [
            (work, *load) for work in (Work.COPY, Work.JSON) for load in ((2, None), (None, 200.0))
        ]
        for own in speed.cells:
            assert (own.baseline.n_repeats, own.candidate.n_repeats, own.baseline.n_failed) == (2, 2, 0)
            assert own.candidate.acceptance_length == pytest.approx(3.0)
            assert len(own.baseline.warmup) >= 3
            assert own.baseline.cached_share == 0.0
        assert speed.cells[0].ratio
        assert 1.5 < speed.cells[0].ratio.value < 4.0
        turns = [own.arm for own in pair.bursts() if own.cell.concurrency and own.cell.work is Work.COPY]
        assert turns[:4] == [BASELINE, CANDIDATE, CANDIDATE, BASELINE]
        assert sorted(pair.off.prompts) == sorted(pair.on.prompts)
        assert len(set(pair.off.prompts)) == len(pair.off.prompts), "no prompt is in the prefix cache"
        bodies = [body for _, body in pair.off.seen]
        assert {(body["temperature"], body["max_tokens"], path) for path, body in pair.off.seen} == {
            (0.5, 8, "/v1/chat/completions")
        }
        assert pair.off.most_in_flight >= 2
        comparison = pair.comparisons[0]
        assert (comparison.status, comparison.verdict) == (ComparisonStatus.FINISHED, Verdict.INCONCLUSIVE)
        assert engines_seen(pair.store.observations(comparison.id)).keys() == set(ArmName)
        assert (
            comparison.plan.speed == speed.plan == pair.settings(speed_works="copy,json", speed_rates="200").speed_plan
        )
        n_asked = len(bodies)
        assert asyncio.run(resume(pair.services, comparison.id)), "nothing is asked again"
        assert len(pair.off.seen) == n_asked


COLD = Streams(tokens_per_s=FAST, cold_requests=6)
STOPS = Streams(tokens_per_s=FAST, stops_after=4)
NEIGHBOUR = Streams(tokens_per_s=FAST, foreign=1)
BUSY = Streams(tokens_per_s=FAST, running=1)


def test_a_cold_start_is_over_before_anything_counts() -> None:
    with timed(off=COLD) as pair:
        pair.measure()
        first, *_, last = pair.cell.baseline.warmup
        assert last > 5.0 * first
        assert pair.cell.baseline.spread
        assert pair.cell.baseline.spread < 3.0


def test_the_prefix_cache_is_warm_where_it_should_be() -> None:
    with timed() as pair:
        pair.measure(speed_cache="warm")
        assert pair.speed.plan.cache is CacheState.WARM
        assert pair.cell.baseline.cached_share
        assert pair.cell.baseline.cached_share > 0.5
        assert len(set(pair.off.prompts)) == 4


def test_requests_of_two_speeds_are_called_what_they_are() -> None:
    rates = random.Random(1).sample([100.0] * 12 + [500.0] * 16, 28)
    with timed(on=Streams(rates=rates)) as pair:
        pair.measure(speed_requests=8, speed_repeats=7, speed_max_repeats=7)
        fast, slow = pair.cell.candidate.modes
        assert fast.tokens_per_s > 3.0 * slow.tokens_per_s
        assert slow.share == pytest.approx(12 / 28, abs=0.15)


@pytest.mark.parametrize("neighbour", [NEIGHBOUR, BUSY])
def test_what_others_disturb_does_not_count_and_is_repeated(
    neighbour: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qualab.run.speed.PAUSES_S", (0.0,))
    with timed(off=replace(neighbour)) as pair:
        pair.measure()
        assert pair.cell.ratio is None
        assert (pair.cell.baseline.n_repeats, pair.cell.baseline.n_contaminated) == (0, 5), (
            "2 repeats, 3 in their place"
        )
        assert all((own.n_foreign or 0) > 0 for own in pair.bursts() if own.arm is BASELINE)
        pair.off.script.foreign = pair.off.script.running = 0
        pair.again(speed_output_tokens=9)
        assert (pair.cell.baseline.n_repeats, pair.cell.baseline.n_contaminated) == (2, 0)


def test_streams_that_stop_in_the_middle_are_failures_and_it_goes_on_once_they_come_whole() -> None:
    with timed(on=STOPS) as pair:
        with pytest.raises(RunStopped, match=r"The candidate at .* fails: none of 12 requests .* the body ended early"):
            pair.measure()
        of_candidate = [burst for burst in pair.bursts() if burst.arm is CANDIDATE]
        assert {own.status for burst in of_candidate for own in burst.streams} == {AnswerStatus.BAD_BODY}
        assert pair.comparisons[0].status is ComparisonStatus.STOPPED
        pair.on.script.stops_after = None
        pair.again()
        assert pair.comparisons[0].status is ComparisonStatus.FINISHED
        assert (pair.cell.candidate.n_repeats, pair.cell.candidate.n_failed) == (2, 0)


ON = Streams(tokens_per_s=FAST, drafts=True)
MUTE = {"has_token_ids": False, "has_usage": False}
DEAF = r"The candidate at .* fails: none of \d+ requests .* "


@pytest.mark.parametrize(
    ("fault", "changes", "error"),
    [
        (replace(ON, hangs_above=20), {"timeout": 0.2}, DEAF + "no whole answer came in the time allowed"),
        (replace(ON, hangs_above=20), {"speed_budget": 0.3}, DEAF + "no whole answer came in the time allowed"),
        (replace(ON, dies_above=20, dead_s=0.7), {}, DEAF + "the (server closed|connection failed)"),
        (replace(ON, error_after=4), {}, DEAF + "the stream holds an error: EngineCore died"),
    ],
    ids=["hangs", "hangs longer than the budget", "dies", "an error in the stream"],
)
def test_a_server_without_answers_stops_it_and_it_goes_on_when_there_are_some(
    fault: Streams, changes: dict[str, Any], error: str
) -> None:
    with timed(on=fault) as pair:
        with pytest.raises(RunStopped, match=error) as stopped:
            pair.measure(**changes)
        (comparison,) = pair.comparisons
        assert stopped.value.hint.endswith(f"Go on with: qualab speed {comparison.id}")
        assert comparison.status is ComparisonStatus.STOPPED
        assert pair.speed.works == ()
        for name in ("hangs_above", "dies_above", "error_after"):
            setattr(pair.on.script, name, None)
        pair.on.in_flight = 0  # it has noticed that nobody waits for those that hung
        time.sleep(pair.on.n_deaths * 0.8)
        pair.again(speed_budget=20.0)
        assert pair.comparisons[0].status is ComparisonStatus.FINISHED
        assert pair.cell.candidate.n_repeats >= 2
        assert pair.cell.candidate.n_failed == 0


@pytest.mark.parametrize(
    ("knobs", "n_tokens", "codes"),
    [
        ({"tokens_per_chunk": 2}, 8, set()),
        ({"tokens_per_chunk": 2, "has_token_ids": False}, 8, set()),
        ({**MUTE, "tokens_per_chunk": 1}, 8, {"speed.by-chunks", "speed.cache-untold"}),
        ({**MUTE, "tokens_per_chunk": 2}, 4, {"speed.by-chunks", "speed.cache-untold"}),
        ({"has_metrics": False}, 8, {"speed.load-untold"}),
    ],
)  # fmt: skip
def test_tokens_are_counted_however_they_are_sent_and_what_is_not_told_is_said(
    knobs: dict[str, Any], n_tokens: int, codes: set[str]
) -> None:
    with timed(off=Streams(tokens_per_s=FAST / 3, **knobs)) as pair:
        speed = pair.measure()
        of_baseline = [burst for burst in pair.bursts() if burst.arm is BASELINE]
        assert {own.n_tokens for burst in of_baseline for own in burst.streams} == {n_tokens}
        assert {sum(n for _, n in burst.gaps) for burst in of_baseline} == {4 * (n_tokens - 1)}
        told = {note.code: note.values.get("arms") for note in speed.notes if note.code != "speed.wide"}
        assert told == dict.fromkeys(codes, (BASELINE,))


@pytest.mark.parametrize("n_bursts", [1, 3, 8, 9])
def test_a_killed_measurement_goes_on_and_measures_nothing_twice(n_bursts: int) -> None:
    with timed() as pair:
        add, n_added = pair.store.add_observation, 0

        async def killed() -> None:
            job = asyncio.create_task(start_speed(pair.services, pair.settings()))

            def add_or_kill(comparison_id: str, value: Any) -> None:
                nonlocal n_added
                add(comparison_id, value)
                n_added += isinstance(value, Burst)
                if n_added == n_bursts:
                    job.get_loop().call_soon_threadsafe(job.cancel)

            pair.store.add_observation = add_or_kill  # type: ignore[method-assign]
            with pytest.raises(asyncio.CancelledError):
                await job

        asyncio.run(killed())
        pair.store.add_observation = add  # type: ignore[method-assign]
        assert pair.comparisons[0].status is ComparisonStatus.INTERRUPTED
        assert len(pair.bursts()) == n_bursts
        pair.again(speed_budget=99.0)
        assert set(pair.off.prompts) == set(pair.on.prompts)
        places = Counter((own.arm, own.is_warmup, own.repeat) for own in pair.bursts())
        assert set(places.values()) == {1}
        assert (pair.cell.baseline.n_repeats, pair.cell.candidate.n_repeats) == (2, 2)
        assert pair.comparisons[0].status is ComparisonStatus.FINISHED


def test_three_arms_take_turns_and_the_baseline_is_in_every_comparison() -> None:
    with timed(third=Streams(tokens_per_s=4 * FAST, drafts=True)) as group:
        group.measure()
        first, second = group.comparisons
        assert [own.plan.group.name for own in (first, second) if own.plan.group] == ["k3", "k5"]
        of_baseline = [[own for own in group.bursts(at) if own.arm is BASELINE] for at in (0, 1)]
        assert of_baseline[0] == of_baseline[1]
        assert sorted(group.off.prompts) == sorted(group.on.prompts) == sorted(group.third.prompts)  # type: ignore[union-attr]
        assert {first.status, second.status} == {ComparisonStatus.FINISHED}
        n_asked, group_id = len(group.off.seen), first.id.removesuffix("-k3")
        asyncio.run(speed_of_stored(group.services, group_id, group.settings()))
        assert len(group.off.seen) == n_asked, "all that was planned is there"


def test_what_the_budget_left_out_is_named() -> None:
    with timed() as pair:
        speed = pair.measure(speed_works="copy,json", speed_budget=0.2)
        assert {own.ratio for own in speed.cells} == {None}
        assert english(speed.notes)[0] == (
            "Without repeats when the budget was spent or the measurement stopped: "
            "copying, 40 tokens, 2 at once; JSON, 40 tokens, 2 at once."
        )


def test_lengths_are_by_the_named_tokenizer_where_the_server_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with timed(off=Streams(tokens_per_s=FAST, has_tokenizer=False)) as pair:
        services = replace(
            pair.services, named_tokenizer=lambda name: lambda texts: [list(range(len(text) // 8)) for text in texts]
        )
        monkeypatch.setattr(type(pair), "services", property(lambda _: services))
        pair.measure(tokenizer="tokenizer.json")
        assert {len(prompt) // 8 for prompt in pair.off.prompts} <= {39, 40, 41}
        assert "Loading tasks" not in pair.progress.said


def test_the_budget_ends_it_and_every_cell_has_its_share() -> None:
    with timed(off=Streams(tokens_per_s=200.0)) as pair:
        speed = pair.measure(speed_works="copy,json,code", speed_repeats=9, speed_max_repeats=99, speed_budget=3.0)
        assert len(speed.cells) == 3
        assert all(2 <= own.baseline.n_repeats < 9 for own in speed.cells)
        assert sum(own.wall_s for own in pair.bursts()) < 4.5


def test_what_no_server_takes_stops_it_and_what_is_too_long_in_one_cell_does_not() -> None:
    with timed(off=Streams(tokens_per_s=FAST, max_model_len=200)) as pair:
        speed = pair.measure(speed_prompt_tokens="400,40")
        assert [own.ratio is None for own in speed.cells] == [True, False]
        said = english(note for note in speed.notes if note.code == "speed.refused")
        assert [re.sub(r"has \d+", "has N", text) for text in said] == [
            "Not timed, since a server refused the prompts: copying, 400 tokens, 2 at once (HTTP 400: This model's "
            "maximum context length is 200 tokens, the prompt has N tokens.)."
        ]
        with pytest.raises(
            RunStopped, match=r"The baseline at .* fails: none of .* maximum context length is 200"
        ) as stopped:
            pair.measure(speed_prompt_tokens="400")
        assert f"Go on with: qualab speed {pair.comparisons[-1].id} --prompt-tokens" in stopped.value.hint
        pair.on.model = "other"
        with pytest.raises(EndpointMisconfigured, match=r"Candidate: .*serves no model"):
            pair.measure()


def test_a_dead_server_stops_a_measurement_and_leaves_a_verdict_alone() -> None:
    with timed(on=Streams(tokens_per_s=FAST, drafts=True, fails_above=20)) as pair:
        with pytest.raises(RunStopped, match=r"The candidate at .* fails: .*CUDA out of memory"):
            pair.measure()
        assert pair.comparisons[0].status is ComparisonStatus.STOPPED
    with timed(on=Streams(tokens_per_s=FAST, drafts=True, fails_above=20)) as pair:
        run = start(replace(pair.services, progress=pair.progress), _with_tasks(pair))
        analysis = asyncio.run(run)
        assert analysis
        assert analysis.verdict is not Verdict.INVALID
        assert pair.comparisons[0].status is ComparisonStatus.FINISHED
        assert "the arms were not timed to their end: The candidate" in pair.progress.said[-2]
        pair.on.script.fails_above = None
        pair.again()
        assert pair.cell.ratio
        assert pair.store.analysis(pair.comparisons[0].id) == analysis


def _with_tasks(pair: Timed) -> Settings:
    given = {"speed": True, "tasks": "sums", "allow_unobserved": True, "apply_chat_template": False}
    return pair.settings(**given)


@contextmanager
def in_use(pair: Timed) -> Iterator[str]:
    """Another comparison on the same host that somebody else runs."""
    with timed() as other:
        other.store = pair.store
        other.measure()
        now, (comparison,) = (
            pair.services.clock.now(),
            [own for own in pair.comparisons if own.baseline_url == other.off.url],
        )
        put(pair.store, comparison.id, runner="elsewhere:1:b", claimed_at=now, heartbeat_at=now)
        yield comparison.id


def test_a_host_in_use_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use_case, "FREE_WITHIN_S", 1)
    with timed() as pair, in_use(pair) as other:
        with pytest.raises(ComparisonBusy, match=f"comparison {other} is being run"):
            pair.measure()
        analysis = asyncio.run(start(replace(pair.services, progress=pair.progress), _with_tasks(pair)))
        assert analysis
        assert f"comparison {other} is being run" in pair.progress.said[-2]
        report = report_model(pair.store, analysis.comparison_id, Language.ENGLISH)
        gain = {line.id: line.text for line in report.box}["gain"]
        assert gain.startswith(f"Speed was to be measured, and was not: qualab speed {analysis.comparison_id}")


def test_a_run_with_a_speed_plan_times_the_arms_and_what_is_given_later_is_a_plan_of_its_own() -> None:
    with timed() as pair:
        analysis = asyncio.run(start(pair.services, _with_tasks(pair)))
        assert analysis
        assert pair.cell.ratio
        n_bursts = len(pair.bursts())
        pair.again()
        assert len(pair.bursts()) == n_bursts
        more = pair.again(speed_repeats=3, speed_max_repeats=3)
        assert [own.baseline.n_repeats for own in more.cells] == [3], "2 that were there, and 1"
        n_bursts = len(pair.bursts())
        plan = pair.again(speed_works="json", speed_budget=70.0, speed_target_gap=0.1).plan
        assert (plan.works, plan.budget_s, plan.target_gap_s, plan.output_tokens) == ((Work.JSON,), 70.0, 0.1, 8)
        assert len(pair.bursts()) > n_bursts


def test_what_cannot_be_timed_is_refused() -> None:
    with timed() as pair:
        with pytest.raises(QualabError, match="--sequential asks one after the other"):
            pair.settings(speed=True, sequential=True)
        pair.measure()
        (comparison,) = pair.comparisons
        put(pair.store, comparison.id, status=ComparisonStatus.QUEUED)
        with pytest.raises(WrongState, match="waits for a worker"):
            pair.again()


def test_a_users_prompts_have_to_be_what_the_plan_was_made_of(tmp_path: Any) -> None:
    own = tmp_path / "prompts.txt"
    own.write_text("Tell a story.\nTell another one.\n")
    with timed() as pair:
        speed = pair.measure(speed_works="own", speed_prompts=str(own))
        assert [own.cell for own in speed.cells] == [Cell(work=Work.OWN, prompt_tokens=0, concurrency=2)]
        assert all(prompt.endswith(("Tell a story.", "Tell another one.")) for prompt in pair.off.prompts)
        own.write_text("Another.\n")
        with pytest.raises(UsageError, match="does not hold the prompts of the plan"):
            pair.again()
        own.with_suffix(".jsonl").write_text("{}\n")
        with pytest.raises(UsageError, match=r"prompts.jsonl, line 1: neither a prompt"):
            pair.measure(speed_works="own", speed_prompts=str(own.with_suffix(".jsonl")))
        assert len(pair.comparisons) == 1, "nothing is begun"


def test_cells_come_in_the_plans_order() -> None:
    plan = SpeedPlan(works=(Work.COPY, Work.OWN), prompt_tokens=(10, 20), concurrency=(1,), rates=(2.0,))
    assert [(own.work, own.prompt_tokens, own.concurrency or own.rate) for own in cells_of(plan)] == [
        *((Work.COPY, length, load) for length in (10, 20) for load in (1, 2.0)),
        *((Work.OWN, 0, load) for load in (1, 2.0)),
    ]

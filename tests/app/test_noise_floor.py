"""Noise-floor runs and repeats: what is asked, what is stored, and what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest

from qualab.errors import RunStopped
from qualab.model.canonical import canonical_json
from qualab.model.comparison import Analysis
from qualab.model.names import MetricKind, Verdict
from qualab.model.plan import MetricSpec, NoisePlan, RequestPolicy
from qualab.report.arms import noise_blocks
from qualab.report.source import Source
from qualab.report.words import ENGLISH
from qualab.stats.noise import disagreement, excess_discordance, variance_components
from tests.app.fakes import (
    BASELINE,
    CANDIDATE,
    Answerer,
    Bench,
    FakeEndpoint,
    FakeHarness,
    QuietProgress,
    echo_number,
    failure,
    metric_spec,
    other_for,
    reply,
)
from tests.app.report_texts import texts
from tests.app.scripted_pair import MadeUpTasks
from tests.said import english

ONE = NoisePlan(runs=1, concurrency=9)


@dataclass
class NoiseBench(Bench):
    """The noise floor has an endpoint of its own, to tell its requests from the baseline's."""

    noise: FakeEndpoint = field(default_factory=lambda: FakeEndpoint("http://off"))
    opened: list[RequestPolicy] = field(default_factory=list)

    def endpoint(self, url: str, policy: RequestPolicy) -> FakeEndpoint:
        if policy.concurrency == ONE.concurrency:
            return self.noise
        return self.baseline if url == self.baseline.url else self.candidate

    @asynccontextmanager
    async def _open(self, url: str, *, policy: RequestPolicy, key: str | None) -> AsyncIterator[FakeEndpoint]:
        self.opened.append(policy)
        yield self.endpoint(url, policy)


async def run(bench: Bench, **changes: Any) -> Analysis:
    return await bench.run(**({"noise_floor": ONE} | changes))


async def test_the_baseline_is_asked_again_the_same_bytes_in_another_order_at_its_own_concurrency() -> None:
    bench = NoiseBench.of(60)
    bench.noise.delay_s = 0.002
    analysis = await run(bench)
    assert sorted(bench.noise.bodies) == sorted(bench.baseline.bodies)
    assert bench.noise.bodies != bench.baseline.bodies
    assert len(bench.candidate.bodies) == len(bench.baseline.bodies) == 60
    assert [one.concurrency for one in bench.opened] == [4, 4, 9]
    assert bench.noise.most_in_flight == 9
    assert (analysis.noise.n_runs, analysis.noise.concurrency, analysis.noise.n_answered) == (1, 9, 60)


async def test_noise_runs_come_after_the_arms_and_change_nothing_of_them() -> None:
    without = await run(NoiseBench.of(200), noise_floor=None)
    bench, progress = NoiseBench.of(200), QuietProgress()
    bench.noise.answer = other_for({3, 4, 5})
    analysis = await bench.run(noise_floor=ONE, progress=progress)
    assert progress.answers[400:] == [BASELINE] * 200
    assert progress.totals == {BASELINE: 200}  # the noise runs have a progress of their own
    assert (analysis.arms, analysis.pairs, analysis.metrics) == (without.arms, without.pairs, without.metrics)
    assert [one.run for one in bench.store.answers(analysis.comparison_id, arm=BASELINE)] == [0] * 200
    assert len(bench.store.answered(analysis.comparison_id, run=1)) == 200
    assert list(bench.store.answers(analysis.comparison_id, arm=CANDIDATE, run=1)) == []
    no_floor = [[one for one in english(found.caveats) if "oise floor" in one] for found in (without, analysis)]
    assert no_floor == [[one for one in no_floor[0] if one.startswith("No noise floor was measured")], []]
    assert (without.noise, len(no_floor[0])) == (None, 1)


async def test_the_odd_one_out_is_counted_over_scores_and_texts() -> None:
    bench = NoiseBench.of(100, on=other_for([*range(10), 50]))
    bench.noise.answer = other_for([*range(20, 24), 50])  # on 50 the baseline's first run stands out
    found = (await run(bench)).noise
    (row,) = found.metrics
    expected = excess_discordance(n_odd=15, n_candidate_odd=10)
    for odd in (row.odd, found.odd_texts):
        assert (odd.n_items, odd.n_odd, odd.n_candidate_odd) == (100, 15, 10)
        assert odd.pvalue == pytest.approx(expected)
    assert (row.flip_rate_baseline, row.flip_rate_candidate) == (0.05, 0.11)
    assert (found.baseline.same_text, found.candidate.same_text) == (95, 89)
    analysis = await run(bench := NoiseBench.of(30))
    found, text = analysis.noise, noise_text(bench, analysis)
    assert (found.odd_texts.n_odd, found.odd_texts.pvalue, found.baseline.first_difference) == (0, 1.0, None)
    assert "no odd item" in text
    assert "30 of 30 (100.0 %)" in text


async def test_several_runs_enter_the_flip_rate_and_the_first_makes_the_triples() -> None:
    bench, calls = NoiseBench.of(40), count(1)
    bench.noise.answer = lambda p, s: echo_number(p, s) if next(calls) <= 40 else other_for({1, 2})(p, s)
    found = (await run(bench, noise_floor=NoisePlan(runs=2, concurrency=9))).noise
    assert (found.n_asked, found.n_answered) == (80, 80)
    assert found.metrics[0].flip_rate_baseline == pytest.approx(disagreement([[1, 1, 0]] * 2 + [[1, 1, 1]] * 38))
    assert found.metrics[0].odd.n_odd == 0


async def test_texts_are_compared_by_character_and_white_space_is_no_other_answer() -> None:
    def says(**texts: str) -> Answerer:
        return lambda p, s: reply(texts.get(f"n{p[4:]}", f"The answer is {p[4:]}"))

    bench = NoiseBench.of(50, off=says(), on=says(n8="the answer", n9="The answers"))
    bench.noise.answer = says(n7="The answer is 7\n")
    found = (await run(bench)).noise
    assert (found.baseline.same_text, found.baseline.changed, found.baseline.first_difference) == (49, 0, 15.0)
    assert (found.candidate.same_text, found.candidate.changed) == (48, 2)
    assert found.candidate.first_difference == (0 + 10) / 2


def noise_text(bench: Bench, analysis: Analysis) -> str:
    source = Source(comparison=bench.store.get(analysis.comparison_id), analysis=analysis)
    return "\n".join(texts(tuple(noise_blocks(source, ENGLISH))))


async def test_missing_answers_of_the_noise_floor_take_pairs_away_and_without_a_pair_there_are_no_numbers() -> None:
    bench = NoiseBench.of(100, on=other_for({50, 51}, failure()))
    bench.noise.answer = other_for(range(4), failure())
    analysis = await run(bench)
    found = analysis.noise
    assert (found.n_asked, found.n_answered) == (100, 96)
    assert found.baseline.n_pairs == found.metrics[0].n_answers == 94
    assert analysis.metrics[0].n_missing == 2
    bench = NoiseBench.of(10, on=other_for(range(5, 10), failure()))
    bench.noise.answer = other_for(range(5), failure())
    analysis = await run(bench)
    found = analysis.noise
    assert (found.baseline, found.candidate, found.odd_texts) == (None, None, None)
    assert (found.metrics[0].flip_rate_baseline, found.metrics[0].odd) == (None, None)
    assert "nothing can be compared" in english(found.note)
    assert "nothing can be compared" in noise_text(bench, analysis)
    assert "NaN" not in canonical_json(analysis)


class WithGroup(MadeUpTasks):
    @property
    def metrics(self) -> tuple[MetricSpec, ...]:
        group = metric_spec("all", kind=MetricKind.GROUP_MEAN, members=("sums", "picks"), is_primary=False)
        return (group, *super().metrics)


async def test_only_items_that_generate_and_were_asked_are_asked_again() -> None:
    answer: Answerer = lambda p, s: reply("", loglikelihood=-1.0) if isinstance(p, list) else echo_number(p, s)  # noqa: E731
    bench = NoiseBench(harness=FakeHarness(WithGroup(sizes={"sums": 20, "picks": 4}, scored=("picks",))))
    bench.baseline.answer = bench.candidate.answer = answer
    analysis = await run(bench, tokenizer="x")
    assert len(bench.noise.bodies) == 20
    assert [row.metric for row in analysis.noise.metrics] == ["sums/exact_match,none"]
    analysis = await run(bench := NoiseBench.of(2_000), looks=5)
    assert (analysis.verdict, analysis.looks.stopped_early) == (Verdict.EQUIVALENT, True)
    assert analysis.noise.n_asked == analysis.looks.n_items == len(bench.noise.bodies)


async def test_a_noise_run_that_dies_resumes_and_asks_only_what_is_missing() -> None:
    whole, bench = NoiseBench.of(120), NoiseBench.of(120)
    whole.noise.answer = bench.noise.answer = other_for({5})
    bench.noise.delay_s = 0.003
    expected, progress, again = await run(whole), QuietProgress(), QuietProgress()
    job = asyncio.create_task(bench.run(noise_floor=ONE, progress=progress))
    while len(progress.answers) < 240 + 40:
        await asyncio.sleep(0.001)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    n_stored = len(bench.store.answered(progress.comparison.id, run=1))
    assert 40 <= n_stored < 120
    analysis = await bench.resume(progress.comparison.id, progress=again)
    assert again.answers == [BASELINE] * (120 - n_stored)
    assert again.done == {BASELINE: n_stored}
    assert replace(analysis, comparison_id="") == replace(expected, comparison_id="")


async def test_a_baseline_that_fails_in_the_noise_run_stops_it_and_failures_can_be_asked_again() -> None:
    bench, progress = NoiseBench.of(100), QuietProgress()
    answer, bench.noise.answer = bench.noise.answer, lambda p, s: failure()
    with pytest.raises(RunStopped, match="baseline"):
        await bench.run(noise_floor=ONE, progress=progress)
    bench.noise.answer = answer
    assert (await bench.resume(progress.comparison.id, retry_failed=True)).noise.n_answered == 100


def sampled(share: float) -> Answerer:
    """Right for a share of the seeds, item by item."""
    is_wrong = lambda p, s: (int(p[4:]) * 7_919 + s * 104_729) % 1_000 < share * 1_000  # noqa: E731
    return lambda p, s: reply("no") if is_wrong(p, s) else echo_number(p, s)


async def test_repeats_give_flip_rates_iccs_and_variance_shares_of_both_arms_and_are_one_odd_item() -> None:
    bench = NoiseBench.of(50, off=sampled(0.3))
    analysis = await run(bench, noise_floor=None, repeats=4, gen_kwargs={"temperature": 0.7})
    off, on = analysis.repeats.metrics
    assert (off.arm, on.arm) == (BASELINE, CANDIDATE)
    assert (off.n_items, off.n_repeats) == (50, 4)
    table = [[float(sampled(0.3)(f"say {n}", 1234 + r).text == str(n)) for r in range(4)] for n in range(50)]
    components = variance_components(table)
    assert off.flip_rate == pytest.approx(disagreement(table))
    assert (off.icc, off.icc_mean) == pytest.approx((components.icc, components.icc_mean))
    assert off.variance_within == pytest.approx(components.variance_within)
    assert (on.flip_rate, on.icc, on.variance_within) == (0.0, None, 0.0)
    assert "ICC(1)" in noise_text(bench, analysis)
    assert (await run(NoiseBench.of(20))).repeats is None
    bench = NoiseBench.of(60, off=sampled(0.3), on=lambda p, s: reply("quite another text"))
    bench.noise.answer = lambda p, s: sampled(0.3)(p, s + 17)
    found = (await run(bench, repeats=3, gen_kwargs={"temperature": 0.7})).noise
    assert found.odd_texts.n_items == 60, "all repeats of an item are one"
    assert sorted(bench.noise.bodies) == sorted(bench.baseline.bodies)

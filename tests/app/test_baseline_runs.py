"""Several baseline answers in one test: what is asked, when, and what the verdict makes of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from qualab.model.comparison import Analysis
from qualab.model.names import EvidenceKind, MetricKind, Verdict
from qualab.model.plan import MetricSpec, NoisePlan
from qualab.report.arms import noise_blocks
from qualab.report.source import Source
from qualab.report.words import ENGLISH
from qualab.stats.equivalence import equivalence
from qualab.stats.repeated import RepeatedCounts
from tests.app.fakes import (
    BASELINE,
    CANDIDATE,
    Answerer,
    Bench,
    FakeTasks,
    QuietProgress,
    echo_number,
    failure,
    metric_spec,
    reply,
)
from tests.app.report_texts import texts
from tests.said import english

TWICE, FOUR_TIMES = NoisePlan(runs=1, concurrency=4), NoisePlan(runs=3, concurrency=4)


@dataclass
class Unstable:
    """Gets each item right with its own chance; the same item in several runs has as many answers."""

    wrong: dict[int, list[int]]
    """Runs of an item that are wrong."""
    asked: Counter[int] = field(default_factory=Counter)

    def __call__(self, prompt: str, seed: int) -> Any:
        number = int(prompt[4:])
        self.asked[number] += 1
        return reply("no") if self.asked[number] - 1 in self.wrong.get(number, ()) else echo_number(prompt, seed)


def unstable(seed: int, n_items: int, n_runs: int, *, share: float = 0.1) -> Unstable:
    rng = np.random.default_rng(seed)
    items = np.flatnonzero(rng.random(n_items) < share).tolist()
    return Unstable({item: np.flatnonzero(rng.random(n_runs) < 0.5).tolist() for item in items})


def pair(n_items: int, *, n_runs: int = 2, seed: int = 1, on: Answerer | None = None) -> Bench:
    """Both arms answer a tenth of the items by chance."""
    return Bench.of(n_items, off=unstable(seed, n_items, n_runs), on=on or unstable(seed, n_items, 1))


async def test_the_baseline_answers_each_item_in_step_with_the_candidate_and_their_mean_is_compared() -> None:
    bench, progress = pair(600, n_runs=4), QuietProgress()
    analysis = await bench.run(noise_floor=FOUR_TIMES, progress=progress)
    assert progress.totals == {BASELINE: 2_400, CANDIDATE: 600}
    assert Counter(bench.baseline.bodies) == Counter(dict.fromkeys(bench.candidate.bodies, 4))
    assert bench.baseline.most_in_flight <= 4
    half = progress.answers[: len(progress.answers) // 2]
    assert abs(half.count(CANDIDATE) / len(half) - 0.2) < 0.02
    (row,) = analysis.metrics
    before = np.ones(600)
    for item, runs in bench.baseline.answer.wrong.items():  # type: ignore[attr-defined]
        before[item] = 1.0 - len(runs) / 4
    after = np.ones(600)
    after[[item for item, runs in bench.candidate.answer.wrong.items() if runs]] = 0.0  # type: ignore[attr-defined]
    counts = RepeatedCounts.of(before, after, n_runs=4)
    expected = equivalence(counts, margin=0.02)
    assert row.evidence is not None
    assert row.evidence.kind is EvidenceKind.REPEATED
    assert row.evidence.difference == pytest.approx(after.mean() - before.mean())
    assert row.evidence.pvalue_equivalence == pytest.approx(expected.pvalue)
    assert row.evidence.pvalue_equivalence_exact == pytest.approx(expected.pvalue_exact)
    assert (row.baseline, row.candidate) == (pytest.approx(before.mean()), pytest.approx(after.mean()))


async def test_one_answer_and_a_noise_floor_under_another_load_count_as_before() -> None:
    once = await pair(300).run(noise_floor=None)
    beside = await pair(300).run(noise_floor=NoisePlan(runs=1, concurrency=9))
    assert beside.metrics == once.metrics
    assert once.metrics[0].evidence is not None
    assert once.metrics[0].evidence.kind is EvidenceKind.COUNTS


async def test_further_answers_prove_what_one_does_not_and_the_report_says_what_they_saved() -> None:
    once, twice = await pair(1_100).run(noise_floor=None), await (bench := pair(1_100)).run(noise_floor=TWICE)
    limits = [run.metrics[0].evidence for run in (once, twice)]
    assert limits[0] is not None
    assert limits[1] is not None
    assert limits[1].provable_margin < limits[0].provable_margin  # type: ignore[operator]
    assert twice.noise is not None
    left = twice.noise.metrics[0].variance_left
    assert left is not None
    assert left < 1.0
    text = "\n".join(
        texts(tuple(noise_blocks(Source(comparison=bench.store.get(twice.comparison_id), analysis=twice), ENGLISH)))
    )
    assert f"against one answer: sums/exact_match,none: {100 * left:.1f}" in text
    # where nothing differs there is no variance to compare
    same = Bench.of(50)
    told = Source(comparison=same.store.get((alike := await same.run(noise_floor=TWICE)).comparison_id), analysis=alike)
    assert "against one answer" not in "\n".join(texts(tuple(noise_blocks(told, ENGLISH))))


async def test_runs_with_looks_end_earlier_on_average() -> None:
    ends = []
    for floor in (None, FOUR_TIMES):
        runs = [await pair(1_600, n_runs=4, seed=seed).run(noise_floor=floor, looks=10) for seed in range(5)]
        ends.append(sum(run.looks.n_items if run.looks else 0 for run in runs))
        assert {run.verdict for run in runs} == {Verdict.EQUIVALENT}
    assert ends[1] < 0.85 * ends[0]


async def test_a_killed_run_goes_on_and_asks_each_answer_once() -> None:
    whole, bench, progress = pair(120), pair(120), QuietProgress()
    expected = await whole.run(noise_floor=TWICE)
    bench.baseline.delay_s = bench.candidate.delay_s = 0.003
    job = asyncio.create_task(bench.run(noise_floor=TWICE, progress=progress))
    while len(progress.answers) < 150:
        await asyncio.sleep(0.001)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert progress.comparison is not None
    comparison_id = progress.comparison.id
    stored = [len(bench.store.answered(comparison_id, run=run)) for run in (0, 1)]
    again = QuietProgress()
    analysis = await bench.resume(comparison_id, progress=again)
    assert len(again.answers) == 360 - sum(stored)
    assert analysis.metrics[0].n_items == expected.metrics[0].n_items == 120


async def test_an_item_without_one_of_the_baselines_answers_is_missing() -> None:
    bench = pair(400)
    usual = bench.baseline.answer

    def fails_twice(prompt: str, seed: int) -> Any:
        answer = usual(prompt, seed)
        return failure() if int(prompt[4:]) < 3 and usual.asked[int(prompt[4:])] == 2 else answer  # type: ignore[attr-defined]

    bench.baseline.answer = fails_twice
    (row,) = (await bench.run(noise_floor=TWICE)).metrics
    assert (row.n_missing_baseline, row.n_missing_candidate, row.n_missing) == (3, 0, 3)


async def test_a_baseline_that_differs_from_itself_is_no_baseline() -> None:
    wrong_again = {item: [1] for item in range(30)}
    analysis = await Bench.of(300, off=Unstable(wrong_again)).run(noise_floor=TWICE)
    assert analysis.verdict is Verdict.INVALID
    assert "differ from each other" in english(analysis.reasons[0])


class Labelled(FakeTasks):
    @property
    def metrics(self) -> tuple[MetricSpec, ...]:
        return (metric_spec(), metric_spec(name="f1", kind=MetricKind.MACRO_F1, is_primary=False))

    def score(self, task: str, answered: Any) -> list[dict[str, Any]]:
        scores = super().score(task, answered)
        labels = [
            (item.doc_id % 2, item.doc_id % 2 if own["exact_match,none"] else 1 - item.doc_id % 2)
            for (item, _), own in zip(answered, scores, strict=True)
        ]
        return [{**own, "f1,none": label} for own, label in zip(scores, labels, strict=True)]

    def aggregate(self, values: Any) -> dict[str, dict[str, float]]:
        return {task: {name: float(len(own)) for name, own in metrics.items()} for task, metrics in values.items()}


async def test_macro_f1_takes_the_first_answer_alone() -> None:
    def tasks(n_items: int, hard: Any) -> Labelled:
        return Labelled(n_items=n_items, hard=hard)

    async def run(floor: NoisePlan | None) -> Analysis:
        bench = Bench.of(200, tasks, off=unstable(2, 200, 2), on=unstable(2, 200, 1))  # type: ignore[arg-type]
        return await bench.run(noise_floor=floor)

    once, twice = await run(None), await run(TWICE)
    assert once.metrics[1].evidence is not None
    assert twice.metrics[1].evidence is not None
    assert once.metrics[1].evidence.difference == twice.metrics[1].evidence.difference
    assert twice.metrics[0].evidence is not None
    assert twice.metrics[0].evidence.kind is EvidenceKind.REPEATED


async def test_items_that_prove_too_little_are_not_said_to_be_enough() -> None:
    for n_items in (80, 150):
        bench = Bench.of(n_items, off=Unstable({5: [0]}), on=Unstable({}))
        (row,) = (await bench.run(noise_floor=TWICE)).metrics
        assert row.evidence is not None
        assert row.verdict is Verdict.INCONCLUSIVE
        assert (row.evidence.items_needed_observed or 0) > n_items

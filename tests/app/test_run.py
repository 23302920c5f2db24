"""A run from plan to verdict, on fakes: what is asked, what is stored, how it ends and goes on."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import accumulate, count
from typing import Any
from unittest.mock import Mock

import pytest

from qualab.errors import PlanChanged, QualabError, RunStopped, StoreFull, StoreLocked
from qualab.model.items import Answer, Reply
from qualab.model.names import AnswerStatus, ComparisonStatus, Verdict
from qualab.model.plan import DecisionRule
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import Heartbeat
from tests.app.fakes import (
    BASELINE,
    CANDIDATE,
    Bench,
    QuietProgress,
    echo_number,
    experiment,
    failure,
    other_for,
    reply,
)
from tests.app.scripted_pair import Killing
from tests.said import english

TOO_LONG = reply(status=AnswerStatus.REJECTED, text=None, error="HTTP 400: the prompt is longer than 4096 tokens")


@pytest.mark.parametrize(
    ("n_items", "n_wrong", "verdict"),
    [(600, 0, Verdict.EQUIVALENT), (10, 0, Verdict.INCONCLUSIVE), (200, 20, Verdict.REGRESSION)],
)
async def test_the_verdict_follows_from_the_items(n_items: int, n_wrong: int, verdict: Verdict) -> None:
    bench = Bench.of(n_items, on=other_for(range(n_wrong), reply("no")))
    analysis = await bench.run()
    evidence = analysis.metrics[0].evidence
    assert (analysis.verdict, evidence.gains, evidence.losses, evidence.n_items) == (verdict, 0, n_wrong, n_items)
    assert evidence.difference == -n_wrong / n_items
    stored = list(bench.store.answers(analysis.comparison_id, arm=CANDIDATE))
    assert [(one.position, len(one.request_hash), one.reply.prompt_tokens) for one in stored] == [
        (position, 16, 3) for position in range(n_items)
    ]
    assert bench.store.get(analysis.comparison_id).status is ComparisonStatus.FINISHED
    if verdict is Verdict.INCONCLUSIVE:
        doubt, needed = english(analysis.reasons)[:2]
        assert doubt == "sums/exact_match,none: both arms are at 1, as a broken scorer or filter would have them"
        assert "about 149 (149 to 5,547) items" in needed


async def test_both_arms_get_the_same_bytes_in_a_seeded_random_order() -> None:
    orders = []
    for seed in (1, 1, 2):
        bench = Bench.of(50)
        await bench.run(seed=seed, concurrency=1)
        assert bench.baseline.bodies == bench.candidate.bodies
        orders.append(bench.baseline.prompts())
    in_order = [f"say {n}" for n in range(50)]
    assert orders[0] == orders[1] != orders[2]
    assert in_order not in orders
    assert all(sorted(order) == sorted(in_order) for order in orders)


async def test_concurrency_bounds_each_arm_and_no_arm_runs_far_ahead() -> None:
    bench, progress = Bench.of(60), QuietProgress()
    bench.baseline.delay_s, bench.candidate.delay_s = 0.001, 0.004
    await bench.run(progress=progress)
    assert bench.baseline.most_in_flight <= 4
    assert bench.candidate.most_in_flight == 4
    assert max(accumulate(1 if arm is BASELINE else -1 for arm in progress.answers)) <= 4 * 2 + 4 + 4


async def test_repeats_are_asked_with_a_seed_each_and_stored_as_rows() -> None:
    bench = Bench.of(5)
    analysis = await bench.run(repeats=3, gen_kwargs={"temperature": 0.7})
    seeds = [json.loads(body)["seed"] for body in bench.baseline.bodies]
    assert sorted(seeds) == [1234] * 5 + [1235] * 5 + [1236] * 5
    assert len(list(bench.store.answers(analysis.comparison_id, arm=BASELINE))) == 15
    row = analysis.metrics[0]
    assert (row.n_items, row.evidence.n_items, row.evidence.n_clusters) == (5, 15, 5)
    assert row.evidence.design_effect == 3.0


async def test_missing_answers_are_missing_and_not_wrong_and_only_they_are_asked_again() -> None:
    bench, again = Bench.of(600, on=other_for(range(2), failure())), QuietProgress()
    before = await bench.run()
    row = before.metrics[0]
    assert (row.n_items, row.n_missing, row.evidence.n_items, row.candidate) == (600, 2, 598, 1.0)
    assert dict(before.arms[1].statuses) == {"http_error": 2, "ok": 598}
    after = await bench.resume(before.comparison_id, progress=again, retry_failed=True)
    assert again.answers == [CANDIDATE] * 2
    assert after.verdict is before.verdict is Verdict.EQUIVALENT


@pytest.mark.parametrize(
    ("rule", "verdict", "reason"),
    [
        (DecisionRule(max_missing_share=0.05), Verdict.INCONCLUSIVE, "missing counted as wrong"),
        (DecisionRule(margin=0.08), Verdict.INVALID, "20 of 600 pairs lack an answer, more than the plan allows (2 %)"),
    ],
)
async def test_missing_answers_that_could_hide_a_loss_keep_the_verdict_open_and_the_reason_says_what_helps(
    rule: DecisionRule, verdict: Verdict, reason: str
) -> None:
    analysis = await Bench.of(600, on=other_for(range(20), failure())).run(rule=rule)
    assert analysis.verdict is verdict
    cost = "; 20 pairs without an answer alone cost ±3.33 pp"
    (said,) = [one for one in english(analysis.reasons) if f"{reason}{cost}" in one]
    assert said.endswith(f": `qualab resume {analysis.comparison_id} --retry-failed`")


async def test_what_both_arms_reject_alike_is_left_out_by_looks_too_and_counted() -> None:
    alike = other_for(range(60), TOO_LONG)
    bench = Bench.of(600, off=alike, on=alike)
    analysis = await bench.run()
    row, missing = analysis.metrics[0], analysis.suite.missing
    assert analysis.verdict is Verdict.EQUIVALENT
    assert (row.n_items, row.n_left_out, row.n_missing, row.evidence.n_items) == (600, 60, 0, 540)
    assert (missing.n_asked, missing.both, missing.left_out) == (540, 0, 60)
    assert "Left out: 60 answers that both arms lack for the same reason." in english(analysis.caveats)
    (status,) = missing.by_status
    assert (status.status, status.both, status.pvalue) == ("rejected", 60, 1.0)
    rejecting = other_for(range(0, 1_000, 10), TOO_LONG)
    analysis = await Bench.of(1_000, off=rejecting, on=rejecting).run(looks=2)
    assert analysis.looks.stopped_early
    assert analysis.verdict is Verdict.EQUIVALENT
    assert analysis.metrics[0].n_left_out + analysis.looks.looks[0].metrics[0].n_pairs == 500


@pytest.mark.parametrize(
    ("off", "on", "can_be_asked_again"),
    [
        (TOO_LONG, replace(TOO_LONG, error="HTTP 400: another"), False),
        (TOO_LONG, replace(TOO_LONG, status=AnswerStatus.NO_FINAL_ANSWER), False),
        (failure(), failure(), True),
    ],
)
async def test_what_the_arms_lack_for_other_reasons_is_missing(off: Reply, on: Reply, can_be_asked_again: bool) -> None:
    analysis = await Bench.of(600, off=other_for(range(30), off), on=other_for(range(30), on)).run()
    assert analysis.verdict is Verdict.INVALID
    assert (analysis.metrics[0].n_missing, analysis.metrics[0].n_left_out, analysis.suite.missing.both) == (30, 0, 30)
    assert ("--retry-failed" in english(analysis.reasons)[0]) is can_be_asked_again


async def test_arms_that_lack_as_many_answers_are_compared_by_status_too() -> None:
    errors, timeouts = other_for(range(10), failure()), other_for(range(10, 20), failure(AnswerStatus.TIMEOUT))
    caveats = english((await Bench.of(600, off=errors, on=timeouts).run()).caveats)
    assert not any("left more unanswered" in one for one in caveats)
    said = [one for one in caveats if "how often the status is" in one]
    assert len(said) == 2
    assert "the status is timeout: 0 items in the baseline alone, 10 in the candidate alone" in said[1]


async def test_answers_that_differ_are_counted_apart_from_scores() -> None:
    def longer(prompt: str, seed: int) -> Reply:
        return reply(prompt[4:] + " END" * (prompt == "say 3"), prompt_tokens=4, finish_reason="length")

    analysis = await Bench.of(30, on=longer).run()
    pairs = analysis.pairs
    assert (pairs.n_pairs, pairs.same_text, pairs.prompt_tokens_differ, pairs.finish_reasons_differ) == (30, 29, 30, 30)
    assert (pairs.request_hashes_differ, analysis.arms[1].stop_string_answers) == (0, 1)


async def test_an_arm_that_fails_too_often_stops_the_run_which_can_be_resumed() -> None:
    bench = Bench.of(200, on=other_for(range(200), failure()))
    with pytest.raises(RunStopped, match=r"candidate at http://on fails.*500 broken") as stop:
        await bench.run()
    comparison = stop.value.hint.split("qualab resume ")[1].split()[0]
    stored = bench.store.get(comparison)
    assert stored.status is ComparisonStatus.STOPPED
    assert english(stored.stop_reason) == stop.value.message
    assert len(bench.baseline.bodies) + len(bench.candidate.bodies) < 200
    bench.candidate.answer = echo_number
    analysis = await bench.resume(comparison, retry_failed=True)
    assert analysis.arms[1].statuses == {"ok": 200}
    assert 200 <= len(bench.baseline.bodies) <= 204  # those in flight at the stop were not committed


async def test_an_arm_that_answers_nothing_stops_even_a_short_run_but_reasoning_without_an_answer_is_missing() -> None:
    with pytest.raises(RunStopped, match="none of 5"):
        await Bench.of(5, on=other_for(range(5), failure(AnswerStatus.TIMEOUT))).run()
    reasoning = reply(status=AnswerStatus.NO_FINAL_ANSWER, text=None)
    analysis = await Bench.of(60, on=other_for(range(60), reasoning)).run()
    assert (analysis.verdict, analysis.arms[1].statuses) == (Verdict.INVALID, {"no_final_answer": 60})


def test_a_run_that_dies_in_the_middle_resumes_to_the_same_verdict_asking_only_what_is_missing() -> None:
    expected = asyncio.run(Bench.of(120).run())
    bench, progress, again = Bench.of(120, runner="here:0:dead"), Killing(after=30), QuietProgress()
    bench.baseline.delay_s = bench.candidate.delay_s = 0.002
    progress.result_of(bench.run(progress=progress))
    comparison_id = progress.comparison.id
    assert bench.store.get(comparison_id).status is ComparisonStatus.INTERRUPTED
    n_stored = len(bench.store.answered(comparison_id))
    assert len(progress.answers) <= n_stored < 240
    asked_before = len(bench.baseline.bodies) + len(bench.candidate.bodies)
    analysis = asyncio.run(bench.resume(comparison_id, progress=again))
    assert len(again.answers) == 240 - n_stored
    assert sum(again.done.values()) == n_stored
    assert len(bench.baseline.bodies) + len(bench.candidate.bodies) == asked_before + len(again.answers)
    assert (analysis.verdict, analysis.metrics) == (expected.verdict, expected.metrics)
    assert analysis.input_hash == expected.input_hash, "all that was answered is the same"
    assert bench.store.get(comparison_id).duplicates == 0


async def test_a_resume_reads_the_plans_commit_and_takes_the_same_documents_from_elsewhere_but_no_other_tasks() -> None:
    bench = Bench.of(40)
    bench.harness.tasks.revision = "1" * 40
    before = await bench.run()
    n_asked = len(bench.baseline.bodies)
    bench.harness.tasks = replace(bench.harness.tasks, revision="local")
    assert await bench.resume(before.comparison_id) == before
    assert len(bench.baseline.bodies) == n_asked, "all was answered"
    assert [options.revisions for options in bench.harness.seen] == [{}, {"sums": "1" * 40}]
    bench.harness.tasks = replace(bench.harness.tasks, config_hash="other")
    with pytest.raises(PlanChanged, match="sums"):
        await bench.resume(before.comparison_id)


async def test_an_answer_is_committed_before_its_worker_goes_on_with_all_that_arrived_during_a_commit() -> None:
    bench, n_uncommitted, groups = Bench.of(40), [], []
    add_answers = bench.store.add_answers

    def watching(prompt: str, seed: int) -> Reply:
        n_uncommitted.append(len(bench.baseline.bodies) + len(bench.candidate.bodies) - sum(groups))
        return echo_number(prompt, seed)

    def slowly(comparison_id: str, answers: Sequence[Answer]) -> int:
        time.sleep(0.005)
        n_added = add_answers(comparison_id, answers)
        groups.append(len(answers))
        return n_added

    bench.baseline.answer = bench.candidate.answer = watching
    bench.store.add_answers = slowly
    await bench.run()
    assert max(n_uncommitted) <= 2 * experiment().concurrency
    assert sum(groups) == 80
    assert len(groups) <= 80 / 4, "one commit takes what several workers have"


async def test_a_database_that_fails_between_plan_and_first_item_says_how_to_go_on() -> None:
    bench = Bench.of()
    bench.store.claim = Mock(side_effect=StoreLocked("the database is locked", hint="wait"))
    with pytest.raises(StoreLocked) as told:
        await bench.run()
    (stored,) = bench.store.list(ComparisonFilter())
    assert told.value.hint == f"wait. Go on with: qualab resume {stored.id}"


@pytest.mark.parametrize(
    ("error", "at", "is_all_kept"),
    [
        (StoreFull("The disk is full"), range(1, 1_000), False),
        (StoreLocked("The database is locked"), {0}, True),  # tried once more when the run ends
    ],
)
async def test_a_store_that_fails_ends_the_run_and_keeps_what_it_has(
    error: QualabError, at: Container[int], is_all_kept: bool
) -> None:
    bench, calls = Bench.of(200), count()
    add_answers = bench.store.add_answers

    def failing(comparison_id: str, answers: Sequence[Answer]) -> int:
        if next(calls) in at:
            raise error
        return add_answers(comparison_id, answers)

    bench.store.add_answers = failing
    bench.baseline.delay_s = bench.candidate.delay_s = 0.003
    with pytest.raises(type(error)):
        await bench.run()
    (stored,) = bench.store.list(ComparisonFilter())
    n_stored, n_arrived = len(bench.store.answered(stored.id)), len(bench.baseline.bodies) + len(bench.candidate.bodies)
    assert 0 < n_stored <= n_arrived
    assert not is_all_kept or n_stored == n_arrived


async def test_scoring_that_takes_long_does_not_look_dead() -> None:
    bench, beats = Bench.of(4, heartbeat=Heartbeat(every_s=0.01)), []
    kept, score = bench.store.heartbeat, bench.harness.tasks.score

    def heartbeat(*arguments: Any, **named: Any) -> None:
        beats.append(threading.current_thread() is threading.main_thread())
        kept(*arguments, **named)

    def slow_score(*arguments: Any) -> Any:
        n_before = len(beats)
        time.sleep(0.1)
        assert len(beats) > n_before, "the process gives signs of life meanwhile"
        return score(*arguments)

    bench.store.heartbeat, bench.harness.tasks.score = heartbeat, slow_score
    await bench.run()
    assert not any(beats[-2:]), "from a thread of its own: the event loop is busy"

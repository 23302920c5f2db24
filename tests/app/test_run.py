"""A run from plan to verdict, on fakes: what is asked, what is stored, how it ends and goes on."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from qualab.errors import ComparisonBusy, InvalidValue, PlanChanged, RunStopped, StoreFull, StoreLocked
from qualab.model.items import Reply
from qualab.model.names import AnswerStatus, ArmName, ComparisonStatus, Verdict
from qualab.model.plan import DecisionRule, RequestPolicy
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import Pulse
from qualab.run.ask import Arm, Recorder, Tally, feed
from qualab.run.run import resume, start
from qualab.run.services import Run
from tests.app.fakes import (
    BASELINE,
    CANDIDATE,
    Bench,
    FakeHarness,
    FakeTasks,
    QuietProgress,
    echo_number,
    experiment,
    failure,
    reply,
)
from tests.said import english


def bench_of(n_items: int = 10, **changes: object) -> Bench:
    return Bench(harness=FakeHarness(FakeTasks(n_items=n_items)), **changes)  # type: ignore[arg-type]


async def run(bench: Bench, **changes: object):
    progress = QuietProgress()
    analysis = await start(bench.services, experiment(**changes), keys={}, progress=progress)
    return analysis, progress


async def test_equal_arms_are_equivalent_when_the_items_can_prove_it() -> None:
    analysis, _ = await run(bench_of(600))
    assert analysis.verdict is Verdict.EQUIVALENT
    row = analysis.metrics[0]
    assert (row.baseline, row.candidate, row.evidence.gains, row.evidence.losses) == (1.0, 1.0, 0, 0)
    assert row.evidence.pvalue == 1.0


async def test_equal_arms_are_inconclusive_when_there_are_too_few_items() -> None:
    analysis, _ = await run(bench_of(10))
    assert analysis.verdict is Verdict.INCONCLUSIVE
    assert (
        english(analysis.reasons)[0]
        == "sums/exact_match,none: both arms are at 1, as a broken scorer or filter would have them"
    )
    assert "about 149 (149 to 5,547) items" in english(analysis.reasons)[1]


async def test_a_candidate_that_loses_items_is_a_regression() -> None:
    bench = bench_of(200)
    bench.candidate.answer = lambda prompt, seed: reply("wrong") if int(prompt[4:]) < 20 else echo_number(prompt, seed)
    analysis, _ = await run(bench)
    assert analysis.verdict is Verdict.REGRESSION
    evidence = analysis.metrics[0].evidence
    assert (evidence.gains, evidence.losses, evidence.n_items) == (0, 20, 200)
    assert evidence.difference == -0.1


async def test_both_arms_get_the_same_bytes_in_the_same_random_order() -> None:
    bench = bench_of(50)
    await run(bench, policy=RequestPolicy(concurrency=1))
    assert bench.baseline.bodies == bench.candidate.bodies
    prompts = bench.baseline.prompts()
    assert prompts != [f"say {n}" for n in range(50)]
    assert sorted(prompts) == sorted(f"say {n}" for n in range(50))


async def test_another_seed_gives_another_order_and_the_same_seed_the_same() -> None:
    orders = []
    for seed in (1, 1, 2):
        bench = bench_of(50)
        await run(bench, seed=seed, policy=RequestPolicy(concurrency=1))
        orders.append(bench.baseline.prompts())
    assert orders[0] == orders[1] != orders[2]


async def test_concurrency_bounds_each_arm_and_no_arm_runs_far_ahead() -> None:
    bench = bench_of(60)
    bench.baseline.delay_s, bench.candidate.delay_s = 0.001, 0.004
    ahead = []

    class Watching(QuietProgress):
        def answered(self, arm, reply) -> None:
            super().answered(arm, reply)
            ahead.append(self.answers.count(BASELINE) - self.answers.count(CANDIDATE))

    await start(bench.services, experiment(), keys={}, progress=Watching())
    assert bench.baseline.most_in_flight <= 4
    assert bench.candidate.most_in_flight == 4
    assert max(ahead) <= 4 * 2 + 4 + 4


async def test_every_answer_is_stored_with_what_came_with_it() -> None:
    bench = bench_of(10)
    analysis, _ = await run(bench)
    stored = list(bench.store.answers(analysis.comparison_id, arm=CANDIDATE))
    assert [answer.position for answer in stored] == list(range(10))
    assert all(len(answer.request_hash) == 16 for answer in stored)
    assert stored[0].reply.prompt_tokens == 3
    assert bench.store.get(analysis.comparison_id).status is ComparisonStatus.FINISHED


async def test_repeats_are_asked_with_a_seed_each_and_stored_as_rows() -> None:
    bench = bench_of(5)
    analysis, _ = await run(bench, repeats=3, gen_kwargs={"temperature": 0.7})
    seeds = [json.loads(body)["seed"] for body in bench.baseline.bodies]
    assert sorted(set(seeds)) == [1234, 1235, 1236]
    assert len(seeds) == 15
    assert len(list(bench.store.answers(analysis.comparison_id, arm=BASELINE))) == 15
    row = analysis.metrics[0]
    assert (row.n_items, row.evidence.n_items, row.evidence.n_clusters) == (5, 15, 5)
    assert row.evidence.design_effect == 3.0


async def test_missing_answers_are_missing_and_not_wrong() -> None:
    bench = bench_of(600)
    bench.candidate.answer = lambda p, s: failure() if p in ("say 7", "say 8") else echo_number(p, s)
    analysis, _ = await run(bench)
    row = analysis.metrics[0]
    assert (row.n_items, row.n_missing, row.evidence.n_items) == (600, 2, 598)
    assert row.candidate == 1.0
    assert dict(analysis.arms[1].statuses) == {"http_error": 2, "ok": 598}


async def test_missing_answers_that_could_hide_a_loss_keep_the_verdict_open() -> None:
    bench = bench_of(600)
    bench.candidate.answer = lambda p, s: failure() if int(p[4:]) < 20 else echo_number(p, s)
    analysis, _ = await run(bench, rule=DecisionRule(max_missing_share=0.05))
    assert analysis.verdict is Verdict.INCONCLUSIVE
    assert "missing counted as wrong; 20 pairs without an answer alone cost ±3.33 pp" in english(analysis.reasons)[-1]
    assert english(analysis.reasons)[-1].endswith(f": `qualab resume {analysis.comparison_id} --retry-failed`")


async def test_more_missing_pairs_than_planned_is_invalid() -> None:
    bench = bench_of(600)
    bench.candidate.answer = lambda p, s: failure() if int(p[4:]) < 40 else echo_number(p, s)
    analysis, _ = await run(bench)
    assert analysis.verdict is Verdict.INVALID
    assert "40 of 600" in english(analysis.reasons)[0]


async def test_the_default_cap_is_a_quarter_of_the_margin_and_the_reason_says_what_helps() -> None:
    def missing(n: int) -> Bench:
        bench = bench_of(1319)
        bench.candidate.answer = lambda p, s: failure() if int(p[4:]) < n else echo_number(p, s)
        return bench

    many, _ = await run(missing(30), rule=DecisionRule(margin=0.08))
    assert many.verdict is Verdict.INVALID
    assert english(many.reasons)[:-1] == (
        "sums/exact_match,none: 30 of 1,319 pairs lack an answer, more than the plan allows (2 %); 30 pairs without an "
        f"answer alone cost ±2.27 pp: `qualab resume {many.comparison_id} --retry-failed`",
    )
    few, _ = await run(missing(6))
    assert few.verdict is Verdict.EQUIVALENT
    assert (await run(missing(7)))[0].verdict is Verdict.INVALID


async def test_what_both_arms_reject_alike_is_left_out_and_counted() -> None:
    bench = bench_of(600)
    too_long = reply(status=AnswerStatus.REJECTED, text=None, error="HTTP 400: the prompt is longer than 4096 tokens")

    def answer(prompt: str, seed: int) -> Reply:
        return too_long if int(prompt[4:]) < 60 else echo_number(prompt, seed)

    bench.candidate.answer = bench.baseline.answer = answer
    analysis, _ = await run(bench)
    row, missing = analysis.metrics[0], analysis.suite.missing
    assert analysis.verdict is Verdict.EQUIVALENT
    assert (row.n_items, row.n_left_out, row.n_missing, row.evidence.n_items) == (600, 60, 0, 540)
    assert (missing.n_asked, missing.both, missing.left_out) == (540, 0, 60)
    assert "Left out: 60 answers that both arms lack for the same reason." in english(analysis.caveats)
    (status,) = missing.by_status
    assert (status.status, status.both, status.pvalue) == ("rejected", 60, 1.0)


async def test_looks_leave_out_what_both_arms_reject_alike() -> None:
    bench = bench_of(1_000)
    too_long = reply(status=AnswerStatus.REJECTED, text=None, error="HTTP 400: too long")

    def answer(prompt: str, seed: int) -> Reply:
        return too_long if int(prompt[4:]) % 10 == 0 else echo_number(prompt, seed)

    bench.candidate.answer = bench.baseline.answer = answer
    analysis, _ = await run(bench, looks=2)
    assert analysis.looks is not None
    assert analysis.looks.stopped_early
    assert analysis.verdict is Verdict.EQUIVALENT
    assert analysis.metrics[0].n_left_out + analysis.looks.looks[0].metrics[0].n_pairs == 500


@pytest.mark.parametrize(
    "other",
    [
        reply(status=AnswerStatus.REJECTED, text=None, error="HTTP 400: the prompt is longer than 4090 tokens"),
        reply(status=AnswerStatus.NO_FINAL_ANSWER, text=None, error=""),
    ],
)
async def test_what_the_arms_lack_for_different_reasons_is_missing(other: Reply) -> None:
    bench = bench_of(600)
    rejected = reply(status=AnswerStatus.REJECTED, text=None, error="HTTP 400: the prompt is longer than 4096 tokens")
    bench.baseline.answer = lambda p, s: rejected if int(p[4:]) < 30 else echo_number(p, s)
    bench.candidate.answer = lambda p, s: other if int(p[4:]) < 30 else echo_number(p, s)
    analysis, _ = await run(bench)
    assert analysis.verdict is Verdict.INVALID
    assert (analysis.metrics[0].n_missing, analysis.metrics[0].n_left_out) == (30, 0)
    assert "--retry-failed" not in english(analysis.reasons)[0]


async def test_what_failed_in_both_arms_can_be_asked_again_and_is_missing() -> None:
    bench = bench_of(600)
    bench.candidate.answer = bench.baseline.answer = lambda p, s: failure() if int(p[4:]) < 9 else echo_number(p, s)
    analysis, _ = await run(bench)
    assert (analysis.metrics[0].n_missing, analysis.suite.missing.both) == (9, 9)
    assert "--retry-failed" in english(analysis.reasons)[0]


async def test_arms_are_compared_by_status_too() -> None:
    """As many answers are missing in either arm, in one by timeouts, in the other by errors."""
    bench = bench_of(600)
    bench.baseline.answer = lambda p, s: failure() if int(p[4:]) < 10 else echo_number(p, s)
    bench.candidate.answer = lambda p, s: failure(AnswerStatus.TIMEOUT) if 10 <= int(p[4:]) < 20 else echo_number(p, s)
    analysis, _ = await run(bench)
    assert not any("left more unanswered" in one for one in english(analysis.caveats))
    said = [one for one in english(analysis.caveats) if "how often the status is" in one]
    assert len(said) == 2
    assert "the status is timeout: 0 items in the baseline alone, 10 in the candidate alone" in said[1]


async def test_reasoning_without_an_answer_is_missing_but_does_not_stop_the_run() -> None:
    bench = bench_of(60)
    bench.candidate.answer = lambda p, s: reply(status=AnswerStatus.NO_FINAL_ANSWER, text=None)
    analysis, _ = await run(bench)
    assert analysis.verdict is Verdict.INVALID
    assert analysis.arms[1].statuses == {"no_final_answer": 60}


async def test_an_arm_that_fails_too_often_stops_the_run_which_can_be_resumed() -> None:
    bench = bench_of(200)
    broken = {"now": True}
    bench.candidate.answer = lambda p, s: failure() if broken["now"] else echo_number(p, s)
    with pytest.raises(RunStopped, match=r"candidate at http://on fails.*500 broken") as stop:
        await run(bench)
    comparison = stop.value.hint.split("qualab resume ")[1].split()[0]
    assert bench.store.get(comparison).status is ComparisonStatus.STOPPED
    assert "candidate" in bench.store.get(comparison).stop_reason
    asked = len(bench.baseline.bodies) + len(bench.candidate.bodies)
    assert asked < 200
    broken["now"] = False
    analysis = await resume(bench.services, comparison, keys={}, progress=QuietProgress(), retry_failed=True)
    assert analysis.arms[1].statuses == {"ok": 200}
    assert 200 <= len(bench.baseline.bodies) <= 204  # those in flight at the stop were not committed


async def test_an_arm_that_answers_nothing_stops_even_a_short_run() -> None:
    bench = bench_of(5)
    bench.candidate.answer = lambda p, s: failure(AnswerStatus.TIMEOUT)
    with pytest.raises(RunStopped, match="none of 5"):
        await run(bench)


async def test_a_request_that_always_fails_does_not_keep_a_resumed_run_from_its_verdict() -> None:
    bench = bench_of(600)
    bench.candidate.answer = lambda p, s: failure() if p == "say 7" else echo_number(p, s)
    first, _ = await run(bench)
    again = QuietProgress()
    second = await resume(bench.services, first.comparison_id, keys={}, progress=again, retry_failed=True)
    assert again.answers == [CANDIDATE]
    assert second.verdict is first.verdict is Verdict.EQUIVALENT


async def test_a_run_that_dies_in_the_middle_resumes_to_the_same_verdict_asking_only_what_is_missing() -> None:
    whole = bench_of(120)
    expected, _ = await run(whole)

    bench = bench_of(120, runner="here:0:dead")
    bench.baseline.delay_s = bench.candidate.delay_s = 0.002
    progress = QuietProgress()
    job = asyncio.create_task(start(bench.services, experiment(), keys={}, progress=progress))
    while len(progress.answers) < 60:
        await asyncio.sleep(0.001)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    comparison = progress.comparison
    assert bench.store.get(comparison.id).status is ComparisonStatus.INTERRUPTED
    stored = bench.store.answered(comparison.id)
    assert len(stored) >= 60
    asked_before = len(bench.baseline.bodies) + len(bench.candidate.bodies)

    again = QuietProgress()
    analysis = await resume(bench.services, comparison.id, keys={}, progress=again)
    assert len(again.answers) == 240 - len(stored)
    assert sum(again.done.values()) == len(stored)
    assert len(bench.baseline.bodies) + len(bench.candidate.bodies) == asked_before + len(again.answers)
    assert analysis.verdict is expected.verdict
    assert analysis.metrics == expected.metrics
    assert analysis.input_hash == expected.input_hash, "all that was answered is the same"
    assert bench.store.get(comparison.id).duplicates == 0


async def test_resuming_a_finished_comparison_asks_nothing_and_concludes_the_same() -> None:
    bench = bench_of(40)
    first, _ = await run(bench)
    asked = len(bench.baseline.bodies)
    second = await resume(bench.services, first.comparison_id, keys={}, progress=QuietProgress())
    assert second == first
    assert len(bench.baseline.bodies) == asked


async def test_a_comparison_that_is_being_run_cannot_be_run_again() -> None:
    bench = bench_of(40)
    first, _ = await run(bench)
    bench.store.claim(first.comparison_id, runner="elsewhere:5:b", now=bench.clock.now(), stale_after_s=30)
    with pytest.raises(ComparisonBusy):
        await resume(bench.services, first.comparison_id, keys={}, progress=QuietProgress())


async def test_a_resume_reads_the_commit_that_the_plan_records_and_takes_the_same_documents_from_elsewhere() -> None:
    bench = bench_of(40)
    bench.harness.tasks.revision = "1" * 40
    first, _ = await run(bench)
    bench.harness.tasks = replace(bench.harness.tasks, revision="local")
    again = await resume(bench.services, first.comparison_id, keys={}, progress=QuietProgress())
    assert [options.revisions for options in bench.harness.seen] == [{}, {"sums": "1" * 40}]
    assert again.plan_hash == first.plan_hash


async def test_a_database_that_fails_between_plan_and_first_item_says_how_to_go_on() -> None:
    def locked(*_: Any, **__: Any) -> None:
        raise StoreLocked("the database is locked", hint="wait")

    bench = bench_of(10)
    bench.store.claim = locked
    with pytest.raises(StoreLocked) as told:
        await run(bench)
    (stored,) = bench.store.list(ComparisonFilter())
    assert told.value.hint == f"wait. Go on with: qualab resume {stored.id}"


async def test_changed_tasks_are_not_resumed() -> None:
    bench = bench_of(40)
    first, _ = await run(bench)
    bench.harness.tasks = replace(bench.harness.tasks, config_hash="other")
    with pytest.raises(PlanChanged, match="sums"):
        await resume(bench.services, first.comparison_id, keys={}, progress=QuietProgress())


async def test_a_store_that_fails_ends_the_run_and_keeps_what_it_has() -> None:
    bench = bench_of(200)
    calls = {"n": 0}
    keep = bench.store.add_answers

    def failing(comparison_id, answers):
        calls["n"] += 1
        if calls["n"] > 1:
            raise StoreFull("The disk is full")
        return keep(comparison_id, answers)

    bench.store.add_answers = failing
    bench.baseline.delay_s = bench.candidate.delay_s = 0.003
    progress = QuietProgress()
    with pytest.raises(StoreFull):
        await start(bench.services, experiment(), keys={}, progress=progress)
    assert bench.store.answered(progress.comparison.id)


async def test_answers_that_could_not_be_stored_are_tried_once_more_when_the_run_ends() -> None:
    bench = bench_of(50)
    keep, calls = bench.store.add_answers, iter(range(100))

    def locked_at_first(comparison_id, answers):
        if next(calls) == 0:
            raise StoreLocked("The database is locked")
        return keep(comparison_id, answers)

    bench.store.add_answers = locked_at_first
    progress = QuietProgress()
    with pytest.raises(StoreLocked):
        await start(bench.services, experiment(), keys={}, progress=progress)
    n_arrived = len(bench.baseline.bodies) + len(bench.candidate.bodies)
    assert len(bench.store.answered(progress.comparison.id)) == n_arrived > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limit": 0}, "limit"),
        ({"rule": replace(experiment().rule, margin=0)}, "margin"),
        ({"rule": replace(experiment().rule, alpha=0.5)}, "alpha"),
        ({"repeats": 2}, "temperature 0"),
        ({"candidate": "http://off"}, "same server"),
        ({"policy": RequestPolicy(concurrency=0)}, "concurrency"),
        ({"policy": RequestPolicy(timeout_s=float("inf"))}, "timeout"),
        ({"policy": RequestPolicy(timeout_s=1e12)}, "timeout"),
        ({"gen_kwargs": {"temperature": "warm"}}, "temperature"),
    ],
)
async def test_settings_that_no_run_can_be_made_of_are_refused_before_anything_is_asked(changes, message) -> None:
    bench = bench_of()
    with pytest.raises(InvalidValue, match=message):
        await run(bench, **changes)
    assert not bench.baseline.bodies


async def test_answers_that_differ_are_counted_apart_from_scores() -> None:
    bench = bench_of(30)
    bench.candidate.answer = lambda p, s: reply(
        echo_number(p, s).text + ("" if p != "say 3" else " END"), prompt_tokens=4, finish_reason="length"
    )
    analysis, _ = await run(bench)
    pairs = analysis.pairs
    assert (pairs.n_pairs, pairs.same_text, pairs.prompt_tokens_differ, pairs.finish_reasons_differ) == (30, 29, 30, 30)
    assert pairs.request_hashes_differ == 0
    assert analysis.arms[1].stop_string_answers == 1


async def test_items_are_offered_to_both_arms_in_step_and_the_first_arm_alternates() -> None:
    bench = bench_of(6)
    analysis, progress = await run(bench)
    offered: list[tuple[ArmName, int]] = []

    class Noting(asyncio.Queue):  # type: ignore[type-arg]
        def __init__(self, arm: ArmName) -> None:
            super().__init__()
            self.arm = arm

        async def put(self, job) -> None:
            if job is not None:
                offered.append((self.arm, job.position))

    arms = [Arm(name=arm, endpoint=bench.baseline, queue=Noting(arm), tally=Tally(total=6)) for arm in ArmName]
    items = list(bench.store.items(analysis.comparison_id))
    job = Run(comparison=progress.comparison, tasks=bench.harness.tasks, items=items, endpoints={}, progress=progress)
    await feed(job, arms, set(), recorder=Recorder(bench.store, analysis.comparison_id))
    assert offered[:6] == [
        (BASELINE, 0),
        (CANDIDATE, 0),
        (CANDIDATE, 1),
        (BASELINE, 1),
        (BASELINE, 2),
        (CANDIDATE, 2),
    ]


async def test_scoring_that_takes_long_does_not_look_dead() -> None:
    bench, beats = bench_of(4), []
    bench.pulse = Pulse(every_s=0.01)
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
    await run(bench)
    assert not any(beats[-2:]), "from a thread of its own: the event loop is busy"

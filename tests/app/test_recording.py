"""Answers on their way to the store: when they are committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from qualab.model.items import Answer, Reply
from qualab.model.names import ArmName
from qualab.model.ports import ComparisonFilter
from qualab.run.ask import Recorder
from qualab.run.run import start
from tests.app.fakes import Bench, FakeHarness, FakeTasks, QuietProgress, experiment, reply


def answer(position: int) -> Answer:
    return Answer(arm=ArmName.BASELINE, position=position, choice=0, repeat=0, request_hash=b"0" * 16, reply=reply("0"))


async def test_an_answer_is_committed_before_its_worker_goes_on() -> None:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=40)))
    n_uncommitted, asked = [], bench.baseline.answer

    def watching(prompt: str, seed: int) -> Reply:
        n_asked = len(bench.baseline.bodies) + len(bench.candidate.bodies)
        n_stored = sum(len(bench.store.answered(one.id)) for one in bench.store.list(ComparisonFilter()))
        n_uncommitted.append(n_asked - n_stored)
        return asked(prompt, seed)

    bench.baseline.answer = bench.candidate.answer = watching
    await start(bench.services, experiment(), keys={}, progress=QuietProgress())
    assert max(n_uncommitted) <= 2 * experiment().policy.concurrency


async def test_answers_that_arrive_during_a_commit_share_the_next_one() -> None:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=40)))
    stored = (await start(bench.services, experiment(), keys={}, progress=QuietProgress())).comparison_id
    groups, keep = [], bench.store.add_answers

    def counting(comparison_id: str, answers: Sequence[Answer]) -> int:
        groups.append(len(answers))
        time.sleep(0.05)
        return keep(comparison_id, answers)

    bench.store.add_answers = counting
    recorder = Recorder(bench.store, stored)
    first = asyncio.create_task(recorder.add(answer(0)))
    await asyncio.sleep(0.01)
    await asyncio.gather(first, *(recorder.add(answer(position)) for position in range(1, 10)))
    assert groups == [1, 9]

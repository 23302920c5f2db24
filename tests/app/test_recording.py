"""Answers on their way to the store: when they are committed."""

from __future__ import annotations

import asyncio
import gc

import pytest

from qualab.app.recording import Recorder
from qualab.app.run import start
from qualab.domain.items import Answer
from qualab.domain.names import ArmName
from tests.app.fakes import Bench, FakeHarness, FakeTasks, QuietProgress, echo_number, experiment, reply


def answer(position: int) -> Answer:
    return Answer(arm=ArmName.BASELINE, position=position, choice=0, repeat=0, request_hash=b"0" * 16, reply=reply("0"))


async def test_closing_does_not_wait_for_the_pause_between_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qualab.app.recording.PAUSE_S", 3_600)
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=4)))
    analysis = await start(bench.services, experiment(), keys={}, progress=QuietProgress())
    stored = analysis.comparison_id
    recorder = Recorder(bench.store, stored)
    committing = asyncio.create_task(recorder.commit_until_closed())
    recorder.add(answer(0))
    await asyncio.sleep(0.05)
    assert bench.store.get(stored).duplicates == 1, "the first is committed before any pause"
    recorder.close()
    await asyncio.wait_for(committing, 5)


async def test_the_garbage_collector_leaves_items_alone_while_it_runs_and_has_them_back_afterwards() -> None:
    frozen: list[tuple[bool, int]] = []

    def noting(prompt: str, seed: int):
        frozen.append((gc.isenabled(), gc.get_freeze_count()))
        return echo_number(prompt, seed)

    bench = Bench(harness=FakeHarness(FakeTasks(n_items=4)))
    bench.candidate.answer = noting
    await start(bench.services, experiment(), keys={}, progress=QuietProgress())
    assert all(is_on and count > 1_000 for is_on, count in frozen)
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)

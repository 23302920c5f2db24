"""The drafter in the commands: `preflight` and `run` of pairs with a fault, over HTTP, with lm-eval's tasks."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from qualab.run import preflight as trials
from tests.cli.conftest import Command, naming
from tests.scripted_engine import EngineScript
from tests.scripted_server import Script, ScriptedServer

TASKS = ("--tasks", "demo_arithmetic", "--limit", 12)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "COUNTER_PAUSES_S", (0.0,))


def test_off_against_off_stops_in_preflight_and_in_run(qualab: Command) -> None:
    with ScriptedServer() as off, ScriptedServer() as other:
        looked = qualab("preflight", *naming(off, other), *TASKS)
        ran = qualab("run", *naming(off, other), *TASKS)
    assert (looked.code, ran.code) == (4, 4)
    assert "STOP the candidate's engine counts no drafts: it has no drafter" in looked.out
    assert "This pair cannot be compared." in looked.out
    assert "it has no drafter" in ran.err
    assert "--speculative-config" in ran.err
    assert "No comparisons yet" in qualab("list").out


def test_closed_metrics_may_be_allowed(qualab: Command) -> None:
    closed = Script(engine=EngineScript(has_metrics=False))
    with ScriptedServer(closed) as off, ScriptedServer(replace(closed, drafts=True)) as on:
        refused = qualab("run", *naming(off, on), *TASKS)
        allowed = qualab("run", *naming(off, on), *TASKS, "--allow-unobserved")
    assert refused.code == 4
    assert "--allow-unobserved" in refused.err
    assert allowed.code == 3, allowed.err
    assert "demo_arithmetic: what was drafted is not observable." in allowed.out


@pytest.mark.parametrize(
    ("costs", "even", "over"),
    [([], "1 + cost", "+1.50"), (["--drafter-costs", "draft=2.5"], "pays above 3.50 tokens per round", "−0.50")],
)
def test_costs_break_even_and_lengths_of_prompts_stand_in_the_table(
    qualab: Command, costs: list[str], even: str, over: str
) -> None:
    stepping, drafting = EngineScript(step_s=0.01), EngineScript(tells=True, step_s=0.015)
    with ScriptedServer(Script(engine=stepping)) as off, ScriptedServer(Script(drafts=True, engine=drafting)) as on:
        done = qualab("run", *naming(off, on), *TASKS, *costs)
    lines = done.out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("task ") and "drafted" in line)
    names, cells = (re.split(r"\s{2,}", line.strip()) for line in lines[start : start + 2])
    row = dict(zip(names, cells, strict=True))
    assert (row["length"], row["cost"], row["over break-even"]) == ("3.00", "0.50", over)
    printed = " ".join(done.out.split())
    assert even in printed
    assert re.search(r"prompt tokens answers drafted accepted [\d,]+ to [\d,]+ [\d,]+ [\d,]+ 66\.7 %", printed)

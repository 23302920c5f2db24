"""The drafter in the commands: `preflight` and `run` of pairs with a fault, over HTTP, with lm-eval's tasks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qualab.run import preflight as trials
from tests.cli.conftest import Command
from tests.scripted_engine import SPEC_DECODE_REFUSES, EngineScript
from tests.scripted_server import Script, ScriptedServer

TASKS = ("--tasks", "demo_arithmetic", "--limit", 12)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "COUNTER_PAUSES_S", (0.0,))


def drafting(**engine: object) -> Script:
    return Script(drafts=True, engine=EngineScript(**engine))  # type: ignore[arg-type]


def flags(off: ScriptedServer, on: ScriptedServer) -> list[str]:
    return ["--baseline", off.url, "--candidate", on.url, "--model", "scripted"]


def test_off_against_off_stops_in_preflight_and_in_run(qualab: Command) -> None:
    with ScriptedServer() as off, ScriptedServer() as other:
        looked = qualab("preflight", *flags(off, other), *TASKS)
        ran = qualab("run", *flags(off, other), *TASKS)
    assert (looked.code, ran.code) == (4, 4)
    assert "STOP the candidate's engine counts no drafts: it has no drafter" in looked.out
    assert "This pair cannot be compared." in looked.out
    assert "it has no drafter" in ran.err
    assert "--speculative-config" in ran.err
    assert "No comparisons yet" in qualab("list").out


def test_a_setting_that_speculation_rejects_is_found_before_the_run(qualab: Command) -> None:
    with ScriptedServer() as off, ScriptedServer(drafting(rejects=("min_p",))) as on:
        done = qualab("preflight", *flags(off, on), *TASKS, "--gen_kwargs", "min_p=0.1")
    assert done.code == 4
    assert SPEC_DECODE_REFUSES in " ".join(done.out.split())


def test_a_drafter_that_accepts_nothing_is_invalid_with_exit_code_4(qualab: Command) -> None:
    with ScriptedServer() as off, ScriptedServer(drafting(accepts=0, tells=True)) as on:
        done = qualab("run", *flags(off, on), *TASKS)
    assert done.code == 4, done.err
    assert "Verdict: INVALID" in done.out
    assert "was accepted: the drafter does not fit the model" in done.out


def test_closed_metrics_may_be_allowed(qualab: Command) -> None:
    closed = EngineScript(has_metrics=False)
    with ScriptedServer(Script(engine=closed)) as off, ScriptedServer(drafting(has_metrics=False)) as on:
        refused = qualab("run", *flags(off, on), *TASKS)
        allowed = qualab("run", *flags(off, on), *TASKS, "--allow-unobserved")
    assert refused.code == 4
    assert "--allow-unobserved" in refused.err
    assert allowed.code == 3, allowed.err
    assert "demo_arithmetic: what was drafted is not observable." in allowed.out


def test_costs_of_drafting_in_a_file_give_margins_by_task(qualab: Command, tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    with ScriptedServer() as off, ScriptedServer(drafting(tells=True)) as on:
        file.write_text(
            f"baseline: {off.url}\ncandidate: {on.url}\nmodel: scripted\ntasks: [demo_arithmetic]\nlimit: 12\n"
            "drafter_costs: {draft: 0.2, overhead: 0.05}\n",
            encoding="utf-8",
        )
        done = qualab("run", file)
    assert done.code == 3, done.err
    shown = json.loads(qualab("show", done.comparison_id, "--format", "json").out)
    assert shown["comparison"]["plan"]["drafter_costs"] == {"draft": 0.2, "overhead": 0.05}
    found = shown["analysis"]["treatment"]
    (task,) = found["tasks"]
    assert found["break_even_length"] == pytest.approx(1.25)
    assert task["break_even_margin"] == pytest.approx(task["mean_length"] - 1.25)
    assert task["mean_length"] == 3.0
    assert found["bins"]


@pytest.mark.parametrize(
    ("costs", "even", "over"),
    [([], "1 + cost", "+1.50"), (["--drafter-costs", "draft=2.5"], "pays above 3.50 tokens per round", "−0.50")],
)
def test_costs_break_even_and_lengths_of_prompts_stand_in_the_table(
    qualab: Command, costs: list[str], even: str, over: str
) -> None:
    stepping = Script(engine=EngineScript(step_s=0.01))
    with ScriptedServer(stepping) as off, ScriptedServer(drafting(tells=True, step_s=0.015)) as on:
        done = qualab("run", *flags(off, on), *TASKS, *costs)
    lines = done.out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("task ") and "drafted" in line)
    names, cells = (re.split(r"\s{2,}", line.strip()) for line in lines[start : start + 2])
    row = dict(zip(names, cells, strict=True))
    assert (row["length"], row["cost"], row["over break-even"]) == ("3.00", "0.50", over)
    printed = " ".join(done.out.split())
    assert even in printed
    assert re.search(r"prompt tokens answers drafted accepted [\d,]+ to [\d,]+ [\d,]+ [\d,]+ 66\.7 %", printed)


@pytest.mark.parametrize(
    ("costs", "said"), [("draft=-1", "0 or more"), ("overhead=0.1", "drafter_costs.draft"), ("0.2", "name=number")]
)
def test_costs_that_cannot_be(qualab: Command, costs: str, said: str) -> None:
    done = qualab("run", "--baseline", "http://a", "--candidate", "http://b", "--model", "m", "--drafter-costs", costs)
    assert done.code == 2
    assert said in done.err


def test_a_frozen_plan_keeps_the_costs(qualab: Command, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    done = qualab("plan", "--model", "scripted", *TASKS, "--drafter_costs", "draft=0.3", "--output", plan)
    assert done.code in (0, 3), done.err
    with ScriptedServer() as off, ScriptedServer(drafting()) as on:
        ran = qualab("run", plan, "--baseline", off.url, "--candidate", on.url)
    assert ran.code == 3, ran.err
    shown = json.loads(qualab("show", ran.comparison_id, "--format", "json").out)
    assert shown["comparison"]["plan"]["drafter_costs"] == {"draft": 0.3, "overhead": 0.0}

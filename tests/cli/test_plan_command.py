"""`qualab plan`, runs of what it froze, and `qualab compare`, with lm-eval's tasks and scripted endpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from tests.cli.conftest import Command
from tests.scripted_server import ScriptedServer

Pair = tuple[ScriptedServer, ScriptedServer]
MODEL = ("--model", "scripted")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def urls(pair: Pair) -> list[str]:
    return ["--baseline", pair[0].url, "--candidate", pair[1].url]


def test_a_plan_says_what_its_items_prove_and_run_takes_it(qualab: Command, pair: Pair, tmp_path: Path) -> None:
    flags = ("--tasks", "demo", *MODEL, "--margin", "0.05", "--rate", 10, "--looks", 5)
    audited = qualab("plan", *flags, "--audit", "--output", "audited.yaml")
    assert "about 18,000 tokens of 480 greedy answers" in " ".join(audited.out.split())
    figures = yaml.safe_load(Path("audited.yaml").read_text(encoding="utf-8"))["figures"]["audit"]
    assert (figures["n_tokens_needed"], figures["provable_share"]) == (2 * 2_995, 0.000334)
    assert qualab.json("plan", "--tasks", "stress")["audit"]["n_asked_again"] == 2 * (200 + 60)  # with a schema
    planned = qualab("plan", *flags)
    assert planned.code == 0
    says = ("240 items in 3 tasks", "What these items cannot prove:", "480 to all arms", "48 s", "looks: most")
    for text in (*says, "with looks", "Next: qualab run plan.yaml --baseline URL --candidate URL"):
        assert text in planned.out
    assert not (tmp_path / "qualab.db").exists()
    frozen = yaml.safe_load(Path("plan.yaml").read_text(encoding="utf-8"))
    done = qualab("run", "plan.yaml", *urls(pair), "--label", "first")
    assert done.code in (0, 1, 3), done.err
    shown = qualab.json("show", done.comparison_id)
    assert shown["comparison"]["plan_hash"] == shown["analysis"]["plan_hash"] == frozen["hash"]
    assert (shown["comparison"]["plan"], shown["comparison"]["baseline_url"]) == (frozen["plan"], pair[0].url)
    assert shown["analysis"]["suite"]["joint_power"] == frozen["plan"]["assumptions"]["joint_power"]
    assert "power to prove every primary metric" in done.out


def test_a_plan_fits_a_narrow_terminal(qualab: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qualab.report.terminal.make_console", lambda: Console(width=80))
    narrow = qualab("plan", "--tasks", "demo", *MODEL, "--looks", 5).out.splitlines()
    assert max(map(len, narrow)) <= 80
    heads = [line for line in narrow if line.startswith("primary metric ")]
    assert len(heads) > 1
    assert all(name in " ".join(heads) for name in ("items", "provable", "looks: most", "noise + loss"))


def test_a_frozen_plan_takes_no_other_settings(qualab: Command, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    qualab("plan", "--tasks", "demo_arithmetic", *MODEL)
    for flag in (("--margin", "0.03"), ("--limit", "3"), ("--concurrency", "2"), ("--model", "other"), ()):
        if not flag:
            monkeypatch.setenv("QUALAB_ALPHA", "0.1")
        refused = qualab("run", "plan.yaml", *urls(pair), *flag)
        name = flag[0] if flag else "QUALAB_ALPHA"
        assert (refused.code, f"{name} would change the frozen plan" in refused.err) == (2, True)


def test_another_plan_does_not_replace_a_file_unless_told_to(qualab: Command) -> None:
    first = qualab("plan", "--tasks", "demo_arithmetic", *MODEL)
    before = Path("plan.yaml").read_bytes()
    assert "holds plan" in first.out
    assert "already holds plan" in qualab("plan", "--tasks", "demo_arithmetic", *MODEL).out
    refused = qualab("plan", "--tasks", "demo_arithmetic", *MODEL, "--margin", "0.03")
    assert (refused.code, "--force replaces the file" in refused.err) == (2, True)
    assert "primary metric" in refused.out
    assert Path("plan.yaml").read_bytes() == before
    assert "replaced by plan" in qualab("plan", "plan.yaml", "--margin", "0.03", "--force").out
    assert yaml.safe_load(Path("plan.yaml").read_text(encoding="utf-8"))["plan"]["rule"]["margin"] == 0.03


def test_a_strict_plan_says_so_and_is_another_plan(qualab: Command) -> None:
    says = "Strict: a loss inside the margin is a REGRESSION too."
    hashes = set()
    for flags in ((), ("--strict",)):
        planned = qualab("plan", "--tasks", "demo_arithmetic", *MODEL, *flags, "--force")
        frozen = yaml.safe_load(Path("plan.yaml").read_text(encoding="utf-8"))
        assert (says in " ".join(planned.out.split())) == frozen["plan"]["rule"]["strict"] == bool(flags)
        hashes.add(frozen["hash"])
    assert len(hashes) == 2


def test_a_plan_keeps_the_places_that_were_said_and_other_ones_beat_them(
    qualab: Command, pair: Pair, tmp_path: Path
) -> None:
    planned = qualab("plan", "--tasks", "demo_arithmetic", *MODEL, *urls(pair), "--limit", 4)
    assert "Next: qualab run plan.yaml\n" in planned.out
    hashes = []
    for flags in ([], ["--db", tmp_path / "other.db", "--label", "elsewhere"]):
        done = qualab("run", "plan.yaml", *flags)
        assert done.code == 3, done.err
        shown = qualab("show", done.comparison_id, *flags[:2], "--format", "json")
        hashes.append(json.loads(shown.out)["comparison"]["plan_hash"])
    assert hashes[0] == hashes[1]


def test_a_plan_without_a_model_is_a_table_alone(qualab: Command) -> None:
    planned = qualab("plan", "--tasks", "demo_arithmetic", "--format", "json")
    assert (planned.code, "--model" in planned.err) == (0, True)
    assert json.loads(planned.out)["metrics"][0]["asked"]["n_items"] == 80
    assert not Path("plan.yaml").exists()


def test_compare_under_the_own_plan_repeats_and_under_another_marks(qualab: Command, pair: Pair) -> None:
    flags = ("--tasks", "demo_arithmetic", *MODEL, "--limit", 30)
    for margin, name in ((0.02, "before.yaml"), (0.2, "after.yaml")):
        qualab("plan", *flags, "--margin", margin, "--output", name)
    done = qualab("run", "before.yaml", *urls(pair))
    stored = qualab("show", done.comparison_id, "--format", "json").out
    for plan in ((), ("--plan", "before.yaml")):
        again = qualab("compare", done.comparison_id, *plan, "--format", "json")
        assert (again.code, again.out, again.err) == (done.code, stored, "")
    assert qualab("compare", done.comparison_id, "--plan", "after.yaml").code == 4
    other = qualab("compare", done.comparison_id, "--margin", "0.3")
    assert other.code == 4
    assert "plan was made after the data (changed: margin 0.02 to 0.3)" in other.out
    assert qualab("show", done.comparison_id, "--format", "json").out == stored
    digest = other.err.split("--plan ")[1].split(".")[0]
    assert qualab.json("show", done.comparison_id, "--plan", digest)["analysis"]["verdict"] == "INVALID"
    assert qualab("show", done.comparison_id, "--plan", "nothing").code == 2


def test_release_is_planned_without_a_network(qualab: Command, shared: Path) -> None:
    planned = " ".join(qualab("plan", "--data-dir", shared / "data", "--margins", "gsm8k=0.01").out.split())
    for text in (
        "gsm8k: 1,319 items cannot prove ±1 pp at 5 % discordance: 6,776 are needed",
        "95.6 % power, so that all metrics together have 80 %",
        "All 5 together",
        "belebele: 900 items in 488 clusters",
    ):
        assert text in planned


def test_expected_missing_answers_are_said_in_a_flag_or_a_file_and_frozen(qualab: Command) -> None:
    experiment = {"tasks": "demo", "model": "scripted", "margin": 0.2, "expected_missing": 0.01, "missing_lost": 0.25}
    flags = [part for name, value in experiment.items() for part in (f"--{name}", value)]
    planned = qualab("plan", *flags)
    assert planned.code == 0, planned.err
    assert "with missing" in planned.out
    assert "with the expected missing answers" in planned.out
    frozen = yaml.safe_load(Path("plan.yaml").read_text(encoding="utf-8"))
    assert frozen["plan"]["assumptions"]["missing"] == frozen["figures"]["expected_missing"] == 0.01
    assert (frozen["plan"]["rule"]["missing_lost"], frozen["plan"]["rule"]["max_missing_share"]) == (0.25, None)
    Path("experiment.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
    again = qualab.json("plan", "experiment.yaml", "--output", "other.yaml")
    assert again["plan_hash"] == frozen["hash"]
    assert all(metric["power_missing"] < metric["power"] for metric in again["metrics"])

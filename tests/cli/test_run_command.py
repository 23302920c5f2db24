"""`qualab run` and what follows it, over HTTP against scripted endpoints, with lm-eval's real tasks."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from qualab.bootstrap import store_at
from qualab.cli.run import print_next
from qualab.model.names import ArmName
from tests.app.scripted_pair import Talker
from tests.cli.conftest import Command, naming
from tests.said import english
from tests.scripted_server import Script, ScriptedServer
from tests.waiting import wait_for

Pair = tuple[ScriptedServer, ScriptedServer]


def test_a_run_ends_with_its_exit_code_and_the_same_seed_gives_the_same_analysis(
    qualab: Command, arms: list[str]
) -> None:
    done, again = (qualab("run", *arms, "--tasks", "demo", "--limit", 10) for _ in range(2))
    assert done.code == 3
    for text in ("Verdict: INCONCLUSIVE", "* demo_arithmetic/exact_match,flexible-extract", done.comparison_id):
        assert text in done.out
    assert {"baseline 30/30", "candidate 30/30"} <= set(re.findall(r"\w+ \d+/30", done.err))
    first, second = (qualab.json("show", one.comparison_id)["analysis"] for one in (done, again))
    assert (first["metrics"], first["plan_hash"]) == (second["metrics"], second["plan_hash"])
    assert done.out.startswith(qualab("show", done.comparison_id).out.rstrip("\n"))


def test_several_candidates_end_with_a_table_that_ranks_them_and_the_exit_code_of_the_worst(
    qualab: Command, arms: list[str], tmp_path: Path
) -> None:
    _, baseline, _, candidate, *model = arms
    with ScriptedServer(Script(drafts=True)) as other:
        named = f"a={candidate},b={other.url}"
        given = ["--baseline", baseline, *model, "--tasks", "demo", "--limit", 4, "--output_path", tmp_path / "out"]
        assert qualab("preflight", *given[:4], "--tasks", "demo", "--candidates", named).code == 0
        done = qualab("run", *given, "--candidates", named, "--label", "both")
        assert done.code == 3, done.err
    assert "2 candidates against one baseline: scripted" in done.out
    group = qualab.json("show", done.comparison_id)
    assert {own["verdict"] for own in group["candidates"]} == {"INCONCLUSIVE"}
    assert {own["comparison_id"].removeprefix(f"{done.comparison_id}-") for own in group["candidates"]} == {"a", "b"}
    assert "Verdict: INCONCLUSIVE" in qualab("show", f"{done.comparison_id}-b").out
    assert (tmp_path / "out" / "b" / "candidate").is_dir()
    listed = qualab.json("list", "--group", done.comparison_id)
    assert {own["id"] for own in listed} == {f"{done.comparison_id}-a", f"{done.comparison_id}-b"}
    assert qualab("list", "--group", done.comparison_id[:8]).out == "No comparison matches these filters\n"
    for command in (("show", done.comparison_id, "--flips"), ("gate", done.comparison_id)):
        refused = qualab(*command)
        assert refused.code == 2
        assert f"{done.comparison_id}-a" in refused.err
    again = qualab("resume", done.comparison_id)
    assert (again.code, again.err.splitlines()[0]) == (
        2,
        f"qualab: Every comparison of group {done.comparison_id} is finished",
    )
    file = tmp_path / "plan.yaml"
    planned = qualab("plan", *given, "--candidates", named, "--output", file)
    assert planned.out.endswith(f"Next: qualab run {file}\n"), planned.out + planned.err
    assert yaml.safe_load(file.read_text())["experiment"]["candidates"] == {"a": candidate, "b": other.url}
    bad = qualab("run", *given, "--candidates", f"a={candidate},b={candidate}/")
    assert (bad.code, bad.err.splitlines()[0]) == (2, "qualab: Candidate b has the URL of candidate a")


def test_next_steps_can_be_typed_where_the_command_is_not_on_the_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = tmp_path / "qualab"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(own), "demo"])
    for path, typed in (("/nowhere", str(own)), (str(tmp_path), "qualab")):
        monkeypatch.setenv("PATH", path)
        print_next("20260304-050607-ab12")
        assert f"  {typed} report 20260304-050607-ab12" in capsys.readouterr().out


def test_export_writes_two_runs_that_agree_with_the_table(qualab: Command, arms: list[str], tmp_path: Path) -> None:
    done = qualab("run", *arms, "--tasks", "demo", "--limit", 10, "--output_path", tmp_path / "out")
    shown = qualab.json("show", done.comparison_id)["analysis"]["metrics"]
    for arm in ("baseline", "candidate"):
        (results_file,) = (tmp_path / "out" / arm).glob("results_*.json")
        results = json.loads(results_file.read_text(encoding="utf-8"))["results"]
        for row in shown:
            assert results[row["task"]][row["metric"]] == row[arm]
        (samples,) = (tmp_path / "out" / arm).glob("samples_demo_arithmetic_*.jsonl")
        rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
        assert [row["doc_id"] for row in rows] == [*range(10), *range(10)]
        assert {row["filter"] for row in rows} == {"strict-match", "flexible-extract"}
        assert len({row["doc_hash"] for row in rows}) == 10


def test_a_result_is_shown_even_where_its_files_find_no_room(
    qualab: Command, arms: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_text", no_room)
    done = qualab("run", *arms, "--tasks", "demo_arithmetic", "--limit", 3, "--output_path", tmp_path / "out")
    assert done.code == 5, done.err
    assert "Verdict: INCONCLUSIVE" in done.out
    way_on = f"The result is stored. Write the files with: qualab export {done.comparison_id} DIR"
    assert f"No space left on device\n  {way_on}" in done.err


def test_keys_are_sent_and_found_nowhere_else(
    qualab: Command, arms: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QUALAB_API_KEY", "sk-very-secret-123")
    done = qualab("run", *arms, "--tasks", "demo_arithmetic", "--limit", 3, "--output_path", tmp_path / "out")
    shown = qualab("show", done.comparison_id, "--format", "json").out
    assert "sk-very-secret-123" not in done.out + done.err + shown
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert b"sk-very-secret-123" not in file.read_bytes(), file


def test_repeats_are_rows_of_their_own(qualab: Command, arms: list[str], tmp_path: Path) -> None:
    sampled = ("--repeats", 3, "--gen_kwargs", "temperature=0.7")
    done = qualab("run", *arms, "--tasks", "demo_arithmetic", "--limit", 4, *sampled)
    with sqlite3.connect(tmp_path / "qualab.db") as database:
        (count,) = database.execute("select count(*) from answer").fetchone()
    assert count == 4 * 3 * 2
    assert "12 scores in 4 clusters" in done.out
    assert qualab("export", done.comparison_id, tmp_path / "out").code == 0
    assert (tmp_path / "out" / "baseline-repeat-2").is_dir()


def spawn(arms: list[str], db: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "qualab", "run", *arms, "--tasks", "demo", "--concurrency", "4", *more]
    environment = {**os.environ, "QUALAB_DB": str(db), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stored(db: Path) -> list[tuple[object, ...]]:
    if not db.exists():
        return []
    try:
        with closing(sqlite3.connect(db)) as database:
            return database.execute("select arm, position, choice, repeat from answer").fetchall()
    except sqlite3.OperationalError:
        return []


def cut_off(number: int, arms: list[str], db: Path, count: int, *more: str) -> tuple[int, str]:
    """The exit code of a run that gets a signal after so many answers, and what it said."""
    process = spawn(arms, db, *more)
    wait_for(lambda: len(stored(db)) >= count or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    return process.returncode, err


def check_same(qualab: Command, resumed: str, whole: str, *parts: str) -> None:
    one, other = (qualab.json("show", comparison)["analysis"] for comparison in (resumed, whole))
    assert [one[part] for part in parts] == [other[part] for part in parts]


@pytest.fixture
def slow_pair() -> Iterator[Pair]:
    script = Script(latency_s=0.05)
    with ScriptedServer(script) as off, ScriptedServer(replace(script, flip_share=0.1, drafts=True)) as on:
        yield off, on


def test_a_killed_run_resumes_to_the_uninterrupted_runs_verdict(
    qualab: Command, slow_pair: Pair, tmp_path: Path
) -> None:
    db = tmp_path / "qualab.db"
    cut_off(signal.SIGKILL, naming(*slow_pair), db, 150)
    before = stored(db)
    asked = [len(server.requests) for server in slow_pair]
    n_tried = sum(path.endswith("completions") for server in slow_pair for path, _ in server.requests)
    n_before_the_run = 2 * 4  # a trial of each of the three tasks' settings, and a probe
    assert n_tried - n_before_the_run - len(before) <= 2 * 4, "what was in flight, and no more"

    comparison = qualab.json("list")[0]
    assert comparison["status"] == "interrupted"
    shown = qualab("show", comparison["id"]).out
    assert "is interrupted: no analysis yet" in shown
    assert f"qualab resume {comparison['id']}" in shown
    resumed = qualab("resume", comparison["id"])
    after = stored(db)
    assert len(after) == len(set(after)) == 480
    assert set(before) <= set(after)
    again = [path for server, n in zip(slow_pair, asked, strict=True) for path, _ in server.requests[n:]]
    assert sum(path.endswith("completions") for path in again) == 480 - len(before) + 2  # and a probe each

    whole = qualab("run", *naming(*slow_pair), "--tasks", "demo", "--concurrency", "4")
    assert resumed.code == whole.code
    check_same(qualab, comparison["id"], whole.comparison_id, "metrics", "verdict")


def test_a_server_that_asks_to_wait_gets_every_request_answered(qualab: Command) -> None:
    with ScriptedServer(Script(busy_share=0.5)) as off, ScriptedServer(Script(busy_share=0.5, drafts=True)) as on:
        flags = [*naming(off, on), "--concurrency", 32]
        done = qualab("run", *flags, "--tasks", "demo_arithmetic", "--max_attempts", 1)
    analysis = qualab.json("show", done.comparison_id)["analysis"]
    assert [(one["n_answers"], one["retries"]) for one in analysis["arms"]] == [(80, 0), (80, 0)]
    assert re.search(r"baseline 80/80 .* 0 errors, \d+ waits on request of the server \(0:\d\d\)", done.err)


@pytest.mark.parametrize(
    ("settings", "n_cut"), [("max_gen_toks=400,thinking_token_budget=200,until=[]", 0), ("max_gen_toks=100", 30)]
)
def test_a_reasoning_model_runs_with_thinking_whole_and_cut(qualab: Command, settings: str, n_cut: int) -> None:
    thinks = "Let me see. " * 20
    with ScriptedServer(Talker(thinks=thinks)) as off, ScriptedServer(Talker(thinks=thinks, drafts=True)) as on:
        done = qualab("run", *naming(off, on), "--gen_kwargs", settings, "--tasks", "demo", "--limit", 10)
    found = qualab.json("show", done.comparison_id)["analysis"]
    assert (found["reasoning"]["candidate"]["apart"], found["reasoning"]["candidate"]["cut"]) == (30, n_cut)
    assert done.code == (4 if n_cut else 3)
    told = "Thoughts were cut by the limit on tokens: 30 in the"
    assert any(told in caveat for caveat in english(found["caveats"])) == bool(n_cut)
    with store_at(None) as store:
        kept = [one.reply for one in store.answers(done.comparison_id, arm=ArmName.CANDIDATE)]
    assert all(one.reasoning and thinks.startswith(one.reasoning) for one in kept)
    assert all((one.reasoning == thinks) is (one.text is not None) for one in kept)


def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(qualab: Command, slow_pair: Pair, tmp_path: Path) -> None:
    code, err = cut_off(signal.SIGINT, naming(*slow_pair), tmp_path / "qualab.db", 20)
    (comparison,) = qualab.json("list")
    assert (code, comparison["status"]) == (130, "interrupted")
    assert f"qualab resume {comparison['id']}" in err
    assert "Traceback" not in err
    assert sum(line.startswith("baseline ") for line in err.splitlines()) == 1


def test_ctrl_c_before_anything_is_stored_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        process = spawn(["--baseline", url, "--candidate", f"{url}/other/v1", "--model", "scripted"], tmp_path / "q.db")
        silent.settimeout(60)
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        connection.close()
    assert process.returncode == 130
    assert err.splitlines()[-1] == "Interrupted before anything was asked."


def test_published_34_has_34_metrics_and_marks_what_does_not_exercise_a_drafter(
    qualab: Command, arms: list[str], shared: Path
) -> None:
    done = qualab("run", *arms, "--tasks", "published-34", "--limit", 3, "--data-dir", shared / "data")
    assert done.code in (0, 1, 3), done.err
    metrics = qualab.json("show", done.comparison_id)["analysis"]["metrics"]
    assert len(metrics) == 34
    assert all(row["exercises_drafter"] == (row["task"] in ("gsm8k", "ifeval")) for row in metrics)
    assert all(row["baseline"] is not None for row in metrics)


def test_release_runs_over_chat_and_over_completions(
    qualab: Command, arms: list[str], pair: Pair, shared: Path
) -> None:
    for flag, route in (("--apply_chat_template", "chat/completions"), ("--no-apply_chat_template", "v1/completions")):
        before = len(pair[0].requests)
        done = qualab("run", *arms, flag, "--data-dir", shared / "data", "--limit", "2")
        assert done.code in (0, 1, 3), done.err
        requests = [(path, json.loads(body)) for path, body in pair[0].requests[before:]]
        # the audit scores token ids, over completions
        asked = [path for path, body in requests if not isinstance(body.get("prompt"), list)]
        assert len(asked) < len(requests)
        assert all(path.endswith(route) for path in asked)
        metrics = qualab.json("show", done.comparison_id)["analysis"]["metrics"]
        assert sum(row["is_primary"] for row in metrics) == 5
        assert all(row["exercises_drafter"] for row in metrics)


def test_a_killed_run_with_looks_resumes_to_the_uninterrupted_runs_looks_and_verdict(
    qualab: Command, tmp_path: Path
) -> None:
    script = Script(latency_s=0.02)
    with ScriptedServer(script) as off, ScriptedServer(replace(script, flip_share=0.03, drafts=True)) as on:
        more = ["--looks", "6", "--margin", "0.2"]
        cut_off(signal.SIGKILL, naming(off, on), tmp_path / "qualab.db", 130, *more)
        comparison = qualab.json("list")[0]
        resumed = qualab("resume", comparison["id"])
        n_before = len(off.requests)
        whole = qualab("run", *naming(off, on), "--tasks", "demo", "--concurrency", "4", *more)
        asked = sum(path.endswith("completions") for path, _ in off.requests[n_before:])
    assert resumed.code == whole.code, resumed.err
    check_same(qualab, comparison["id"], whole.comparison_id, "looks", "metrics")
    shown = qualab.json("show", whole.comparison_id)
    assert shown["comparison"]["plan"]["looks"] == {"n_looks": 6, "harm_alpha": 0.025}
    taken = shown["analysis"]["looks"]
    assert 1 < len(taken["looks"]) < 6
    assert taken["n_requests_saved"] == 2 * (taken["n_items_planned"] - taken["n_items"]) > 0
    assert asked == taken["n_items"] + 4  # and three trials and a probe
    for text in ("Stopped at look", f"{taken['n_requests_saved']:,} requests saved", "since look"):
        assert text in whole.out
    assert "Look 1 of 6" in whole.err
    assert whole.out.startswith(qualab("show", whole.comparison_id).out.rstrip("\n"))


def test_a_noise_floor_is_measured_shown_and_kept_out_of_the_export(qualab: Command, tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    with ScriptedServer() as off, ScriptedServer(Script(flip_share=0.4, drafts=True)) as on:
        file.write_text(
            f"baseline: {off.url}\ncandidate: {on.url}\nmodel: scripted\ntasks: [demo_arithmetic]\n"
            "limit: 30\nnoise_floor_runs: 1\nnoise_floor_concurrency: 3\n"
        )
        done = qualab("run", file, "--noise_floor_runs", 2, "--output_path", tmp_path / "out")
        asked = [sum(path.endswith("completions") for path, _ in server.requests) for server in (off, on)]
    assert done.code in (0, 1, 3), done.err
    assert asked == [3 * 30 + 2, 30 + 2]  # and a trial and a probe each
    shown = qualab.json("show", done.comparison_id)
    assert shown["comparison"]["plan"]["noise_floor"] == {"runs": 2, "concurrency": 3}
    noise, tokens = shown["analysis"]["noise"], shown["analysis"]["tokens"]["candidate"]
    n_differ = 30 - noise["candidate"]["same_text"]
    assert noise["baseline"]["same_text"] == 30 > noise["candidate"]["same_text"]
    assert (tokens["n_differ"], tokens["n_tokenized"]) == (n_differ, n_differ)
    printed = " ".join(done.out.split())
    for text in (
        "2 more runs of the baseline at concurrency 3, 60 of 60 answered",
        "odd one out: the candidate",
        f"first differing token (median) no text differs {tokens['first_difference']:,.0f} ({n_differ} of",
    ):
        assert text in printed
    assert "Noise floor, run 2 of 2: 30 requests" in done.err
    assert done.err.count("baseline 30/30") == 3, "the arms, and each run of the noise floor"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"baseline", "candidate"}
    with closing(sqlite3.connect(tmp_path / "qualab.db")) as database:
        assert database.execute("select count(*), sum(run > 0) from answer").fetchone() == (120, 60)


def test_many_connections_need_no_raised_limit_of_open_files(qualab: Command, slow_pair: Pair) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n_open = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (n_open + 40, hard))
    try:
        done = qualab("run", *naming(*slow_pair), "--tasks", "demo", "--concurrency", 64, "--max_attempts", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "baseline 240/240" in done.err
    assert " 0 errors" in done.err.splitlines()[-2]

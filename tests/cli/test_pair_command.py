"""`qualab serve-pair`, `qualab pair` and `qualab run --managed`, on fake servers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Command
from tests.pair.conftest import FakePair, eventually, fake

__all__ = ["fake"]

QUALAB = [sys.executable, "-m", "qualab"]


Process = subprocess.Popen[str]
Serve = Callable[..., Process]


@pytest.fixture
def serve(fake: FakePair) -> Iterator[Serve]:
    """Start `qualab serve-pair`; what still lives afterwards is killed."""
    started: list[Process] = []

    def start(*flags: str) -> Process:
        command = [*QUALAB, "serve-pair", str(fake.path), *flags]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        started.append(subprocess.Popen(command, **pipes, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def lines(process: Process, count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def begun(command: list[str], *, n_turns: int = 1) -> tuple[Process, str]:
    """Start a run, and wait until it has named its comparison, once in each turn."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    named = (line.split()[1] for line in process.stderr if line.startswith("Comparison "))
    return process, list(islice(named, n_turns))[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_serve_pair_says_both_urls_and_ends_both_with_itself(fake: FakePair, serve: Serve, number: int) -> None:
    process = serve()
    urls = [line.split()[:2] for line in lines(process, 2)]
    arms = zip(("baseline", "candidate"), fake.ports, strict=True)
    assert urls == [[arm, f"http://127.0.0.1:{port}/v1"] for arm, port in arms]
    assert len(fake.living) == 6
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    if number == signal.SIGKILL:
        assert eventually(lambda: fake.living == []), "its keepers end the servers"
    else:
        assert (process.returncode, fake.living) == (0, [])
        assert "stopped: baseline, candidate" in err
        assert "Traceback" not in err


def test_interrupted_while_it_starts_it_leaves_nothing_behind(
    fake: FakePair, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DELAY_S", "600")
    process = serve()
    assert eventually(lambda: len(fake.pids) == 6)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert (process.returncode, fake.living) == (130, [])


def test_sequential_serves_the_baseline_until_enter_and_then_the_candidate(fake: FakePair, serve: Serve) -> None:
    fake.write(candidate={"port": fake.ports[0], "gpus": "0"})
    process = serve("--sequential")
    assert process.stdin is not None
    for arm in ("baseline", "candidate"):
        assert lines(process, 1)[0].startswith(f"{arm} ")
        assert ("--speculative-config" in fake.started(fake.ports[0])["argv"]) is (arm == "candidate")
        if arm == "baseline":
            process.stdin.write("\n")
            process.stdin.flush()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert (process.returncode, fake.living) == (0, [])


@pytest.mark.parametrize(
    ("command", "key", "value"),
    [(("pair", "init"), "candidate", {"port": 8001, "gpus": "1"}), (("init",), "baseline", "http://127.0.0.1:8000/v1")],
)
def test_init_writes_a_file_and_leaves_one_that_is_there(
    qualab: Command, tmp_path: Path, command: tuple[str, ...], key: str, value: object
) -> None:
    path = tmp_path / "new" / "file.yaml"
    assert qualab(*command, path).code == 0
    assert yaml.safe_load(path.read_text())[key] == value
    again = qualab(*command, path)
    assert (again.code, "--force" in again.err) == (2, True)
    assert qualab(*command, path, "--force").code == 0


def test_render_writes_files_or_prints_them(qualab: Command, fake: FakePair, tmp_path: Path) -> None:
    fake.write(image="vllm/vllm-openai@sha256:" + "a" * 64, model="org/tiny")
    printed = qualab("pair", "render", fake.path, "--format", "kubernetes")
    kinds = [one["kind"] for one in yaml.safe_load_all(printed.out)]
    assert kinds == ["Deployment", "Service"] * 2
    assert "no revision is given" in printed.err
    done = qualab("pair", "render", fake.path, "--format", "compose", "--output", tmp_path / "out")
    assert done.code == 0
    written = yaml.safe_load((tmp_path / "out" / "compose.yaml").read_text())
    assert list(written["services"]) == ["baseline", "candidate"]


def test_a_managed_run_serves_compares_and_stops(
    qualab: Command, fake: FakePair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret-of-the-pair")
    experiment = tmp_path / "experiment.yaml"
    experiment.write_text("baseline: http://nowhere/v1\nmodel: other\ntasks: [demo_arithmetic]\nlimit: 5\n")
    done = qualab("run", experiment, "--managed", fake.path)
    assert done.code == 3, done.err
    assert "baseline 5/5" in done.err
    shown = qualab.json("show", done.comparison_id)
    assert f"http://127.0.0.1:{fake.ports[1]}/v1" in json.dumps(shown)
    assert [fake.started(port)["env"]["VLLM_API_KEY"] for port in fake.ports] == ["secret-of-the-pair"] * 2
    assert "secret-of-the-pair" not in done.err + done.out + json.dumps(shown)
    assert len(fake.pids) == 6
    assert fake.living == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_managed_run_stops_both_and_resumes_managed(
    qualab: Command, fake: FakePair, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """SIGTERM as in a script, whose shell makes its background jobs deaf to Ctrl-C."""
    monkeypatch.setenv("FAKE_LATENCY_S", "0.3")
    command = [*QUALAB, "run", "--managed", str(fake.path), "--tasks", "demo_arithmetic"]
    command += ["--limit", "30", "--concurrency", "1"]
    deaf = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"] if number == signal.SIGTERM else []
    process, comparison = begun([*deaf, *command])
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"qualab resume {comparison} --managed {fake.path}" in err
    assert len(fake.pids) == 6
    assert fake.living == []
    monkeypatch.setenv("FAKE_LATENCY_S", "0")
    resumed = qualab("resume", comparison, "--managed", fake.path)
    assert resumed.code == 3, resumed.err
    assert fake.living == []


def test_what_cannot_be_run_starts_no_server(qualab: Command, fake: FakePair) -> None:
    for command, said in (
        ("run --baseline http://127.0.0.1:1/v1", "--managed and --baseline say the same thing"),
        ("resume nothing", "nothing"),
        ("run --tasks demo --sequential --looks 3", "Looks compare the arms while both are asked"),
    ):
        done = qualab(*command.split(), "--managed", fake.path)
        assert (done.code, said in done.err, fake.pids) == (2, True, []), command


def test_a_frozen_sequential_plan_runs_managed_if_the_pair_serves_its_model(
    qualab: Command, fake: FakePair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planned = qualab("plan", "--tasks", "demo_arithmetic", "--limit", 5, "--model", "tiny", "--sequential")
    assert "Next: qualab run plan.yaml --managed PAIR" in planned.out
    assert "not for sign-off" in planned.out.partition("Arm by arm")[2].replace("\n", " ")
    alone = qualab("run", "plan.yaml")
    assert (alone.code, "Give --managed PAIR" in alone.err) == (2, True)
    done = qualab("run", "plan.yaml", "--managed", fake.path)
    assert done.code == 3, done.err
    assert "stopped: baseline\n" in done.err
    fake.write(served_model_name="another")
    refused = qualab("run", "plan.yaml", "--managed", fake.path)
    assert (refused.code, "The plan is of model tiny" in refused.err) == (2, True)


def test_a_sequential_run_serves_one_arm_at_a_time_and_says_what_is_lost(qualab: Command, fake: FakePair) -> None:
    fake.write(candidate={"port": fake.ports[0], "gpus": "0"})  # one port is enough
    done = qualab("run", "--managed", fake.path, "--tasks", "demo_arithmetic", "--limit", 5, "--sequential")
    assert done.code == 3, done.err
    said = done.err.splitlines()
    steps = [line for line in said if line.startswith(("starting", "stopped"))]
    assert [line.split(" (")[0] for line in steps] == [
        *("starting the baseline server", "stopped: baseline"),
        *("starting the candidate server", "stopped: candidate"),
    ]
    assert said[0].startswith("Arm by arm: the candidate is asked after the baseline")
    printed = " ".join(done.out.split())
    assert "- Arm by arm: the candidate is asked after the baseline" in printed
    assert "the arms were asked one after the other" in printed.partition("Ship: Do not ship yet: ")[2]
    assert fake.living == []
    shown = qualab.json("show", done.comparison_id)
    assert shown["comparison"]["plan"]["sequential"] is True
    assert [arm["n_answers"] for arm in shown["analysis"]["arms"]] == [5, 5]


def test_a_sequential_run_serves_the_baseline_once_more_to_score(qualab: Command, fake: FakePair) -> None:
    options = ["--tasks", "demo_arithmetic", "--limit", 5, "--sequential", "--audit", "--audit-items", 2]
    done = qualab("run", "--managed", fake.path, *options)
    served = [line.split()[2] for line in done.err.splitlines() if line.startswith("starting")]
    assert served == ["baseline", "candidate", "baseline"]
    audit = qualab.json("show", done.comparison_id)["analysis"]["audit"]
    answers = [arm["n_answers"] for arm in (*audit["foreign"], *audit["sampled"])]
    assert min(answers) > 0
    assert (sum(answers) + audit["n_not_audited"], len(answers)) == (14, 4)  # empty ones have no tokens
    assert fake.living == []


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["baseline", "candidate"])
def test_a_sequential_run_killed_in_either_turn_goes_on_to_the_verdict_of_a_whole_one(
    qualab: Command, fake: FakePair, monkeypatch: pytest.MonkeyPatch, arm: str
) -> None:
    options = ["--managed", str(fake.path), "--tasks", "demo_arithmetic", "--limit", "30", "--sequential"]
    whole = qualab("run", *options)
    monkeypatch.setenv("FAKE_LATENCY_S", "0.3")
    command = [*QUALAB, "run", *options, "--concurrency", "4"]
    process, comparison = begun(command, n_turns=1 if arm == "baseline" else 2)
    time.sleep(0.8)
    process.kill()
    process.communicate()
    assert eventually(lambda: fake.living == []), "its keepers end the servers"
    monkeypatch.setenv("FAKE_LATENCY_S", "0")
    resumed = qualab("resume", comparison, "--managed", fake.path)
    assert resumed.code == whole.code, resumed.err
    assert ("starting the baseline server" in resumed.err) is (arm == "baseline")
    first, second = (qualab.json("show", one)["analysis"] for one in (whole.comparison_id, comparison))
    assert first["metrics"] == second["metrics"]
    assert [one["n_answers"] for one in second["arms"]] == [30, 30]


def test_the_pair_file_pins_what_no_flag_or_file_does(qualab: Command, fake: FakePair, tmp_path: Path) -> None:
    own, other = (f"vllm/vllm-openai@sha256:{digit * 64}" for digit in "02")
    fake.write(image=own, revision="1" * 40)
    experiment = tmp_path / "experiment.yaml"
    experiment.write_text(f"image: {other}\n")
    done = qualab("run", experiment, "--managed", fake.path, "--tasks", "demo_arithmetic", "--limit", 2)
    assert done.code == 3, done.err
    pins = qualab.json("show", done.comparison_id)["comparison"]["plan"]["pins"]
    assert (pins["image"], pins["revision"]) == (other, "1" * 40)

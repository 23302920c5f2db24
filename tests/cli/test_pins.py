"""Pins on the command line: from the file to kubectl, docker, the verdict's sign-off and the plan file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Command
from tests.pins.conftest import A, B, command, pod
from tests.pins.conftest import Command as Executable
from tests.scripted_server import ScriptedServer

__all__ = ["command"]

Pair = tuple[ScriptedServer, ScriptedServer]
SMALL = ("--tasks", "demo_arithmetic", "--limit", 3)
COMMIT = "1" * 40
IMAGE = f"vllm/vllm-openai@{A}"
PODS = ("--pods", "baseline=serving/off,candidate=serving/on")
GET = "get pod {} --namespace serving"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def kubectl(make: Executable, *, off: str = A, on: str = A) -> Path:
    return make("kubectl", {GET.format(arm): pod(("vllm", digest)) for arm, digest in (("off", off), ("on", on))})


def test_a_pinned_pair_is_verified_and_shown_with_what_keeps_it_from_sign_off(
    qualab: Command, pair: Pair, command: Executable
) -> None:
    kubectl(command)
    Path("experiment.yaml").write_text(
        f"baseline: {pair[0].url}\ncandidate: {pair[1].url}\nmodel: scripted\ntasks: [demo_arithmetic]\nlimit: 3\n"
        f"image: {IMAGE}\nrevision: '{COMMIT}'\npods: {{baseline: serving/off, candidate: serving/on}}\n",
        encoding="utf-8",
    )
    done = qualab("run", "experiment.yaml")
    assert done.code == 3, done.err
    printed = " ".join(done.out.split())
    assert "sha256:aaaaaaaaaaaa (verified: kubectl, pod serving/off)" in printed
    assert f"checkpoint revision {COMMIT[:12]} (declared) {COMMIT[:12]} (declared)" in printed
    doubt = (
        "demo_arithmetic/exact_match,flexible-extract: both arms are at 0, as a broken scorer or filter would have them"
    )
    obstacles = ["the verdict is INCONCLUSIVE", doubt, "limited to 3 items a task"]
    assert f"Ship: Do not ship yet: {'; '.join(obstacles)}." in " ".join(done.out.split())
    shown = qualab.json("show", done.comparison_id)
    assert shown["comparison"]["plan"]["pins"] == {"image": IMAGE, "revision": COMMIT, "checkpoint_hash": ""}
    assert shown["analysis"]["pinning"]["is_pinned"] is True
    assert shown["signoff"]["is_possible"] is False
    assert [reason["text"] for reason in shown["signoff"]["obstacles"]] == obstacles
    assert done.out.startswith(qualab("show", done.comparison_id).out.rstrip("\n"))


def test_arms_of_two_images_stop_a_run_and_a_preflight(qualab: Command, arms: list[str], command: Executable) -> None:
    kubectl(command, on=B)
    stopped = qualab("run", *arms, *SMALL, *PODS, "--image", IMAGE, "--revision", COMMIT)
    assert (stopped.code, stopped.err.count("qualab: ")) == (4, 1)
    assert f"the candidate's image is {B}" in stopped.err
    assert "kubectl, pod serving/on" in stopped.err
    looked = qualab("preflight", *arms, *SMALL, *PODS, "--format", "json")
    assert looked.code == 4
    assert json.loads(looked.out)["findings"][0]["what"]["text"].startswith(f"the image is {A} in the baseline")


def test_a_pod_that_cannot_be_looked_into_is_one_clear_line(
    qualab: Command, arms: list[str], command: Executable
) -> None:
    command("kubectl", {}, after="echo 'no such cluster' >&2; exit 1")
    failed = qualab("run", *arms, *SMALL, *PODS)
    assert (failed.code, failed.err.count("qualab: "), "Traceback" in failed.err) == (5, 1, False)
    assert "Pod serving/off cannot be looked into: kubectl says: no such cluster" in failed.err


def test_a_plan_file_holds_the_pins_and_runs_where_the_folder_is_not(
    qualab: Command, pair: Pair, tmp_path: Path, command: Executable
) -> None:
    (folder := tmp_path / "checkpoint").mkdir()
    (folder / "weights").write_text("abc", encoding="utf-8")
    planned = qualab("plan", *SMALL, "--model", "scripted", "--checkpoint", "checkpoint", "--image", "vllm:v1")
    assert planned.code == 0, planned.err
    assert "Unpinned: the image vllm:v1 names no digest: not for sign-off." in " ".join(planned.out.split())
    frozen = yaml.safe_load(Path("plan.yaml").read_text(encoding="utf-8"))
    assert frozen["plan"]["pins"]["checkpoint_hash"].startswith("sha256:")
    assert frozen["experiment"]["checkpoint"] == str(folder)
    urls = ("--baseline", pair[0].url, "--candidate", pair[1].url)
    refused = qualab("run", "plan.yaml", *urls, "--image", IMAGE)
    assert (refused.code, "--image would change the frozen plan" in refused.err) == (2, True)
    (folder / "weights").write_text("abd", encoding="utf-8")
    stopped = qualab("run", "plan.yaml", *urls)
    assert (stopped.code, "checkpoint hash is sha256:" in stopped.err) == (4, True)
    declared = qualab("run", "plan.yaml", *urls, "--checkpoint", "")
    assert declared.code == 3, declared.err
    assert f"{frozen['plan']['pins']['checkpoint_hash'][:19]} (declared)" in declared.out


def test_a_resume_takes_other_places(qualab: Command, arms: list[str], command: Executable) -> None:
    calls = kubectl(command)
    done = qualab("run", *arms, *SMALL, *PODS, "--image", IMAGE, "--revision", COMMIT)
    command("kubectl", {GET.format("new"): pod(("vllm", A)), GET.format("on"): pod(("vllm", A))})
    calls.unlink()
    assert qualab("resume", done.comparison_id).code == 5
    again = qualab("resume", done.comparison_id, "--pods", "baseline=serving/new,candidate=serving/on")
    assert again.code == done.code, again.err
    assert "(verified: kubectl, pod serving/new)" in again.out
    assert "get pod new --namespace serving" in calls.read_text(encoding="utf-8")

"""Bad input ends in one clear line and the right exit code, before anything is asked, and loses nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Outcome, naming
from tests.scripted_server import Script, ScriptedServer, reply

SMALL = ["--tasks", "demo_arithmetic", "--limit", "3"]


def fails(outcome: Outcome, code: int, *says: str) -> None:
    assert outcome.code == code, outcome.err
    for text in says:
        assert text in outcome.err
    assert "Traceback" not in outcome.err
    message = [line for line in outcome.err.splitlines() if line.startswith("qualab: ")]
    assert len(message) == 1, outcome.err


@pytest.fixture(autouse=True)
def _no_item_is_asked(pair: tuple[ScriptedServer, ScriptedServer]) -> Iterator[None]:
    """Except for a trial request and a probe."""
    before = [len([path for path, _ in server.requests if "completions" in path]) for server in pair]
    yield
    after = [len([path for path, _ in server.requests if "completions" in path]) for server in pair]
    assert all(now - then <= 2 for now, then in zip(after, before, strict=True))


WRONG: list[tuple[dict[str, str | None], int, list[str]]] = [
    # options over a run that is right (None leaves one out), the exit code, and words of the message
    ({"--candidate": "http://127.0.0.1:9/v1"}, 5, ["Candidate", "http://127.0.0.1:9"]),
    ({"--baseline": "{baseline}/api/v2"}, 2, ["Baseline", "/api/v2"]),
    ({"--baseline": "{baseline}", "--model": "another-model"}, 2, ["another-model"]),  # /v1 is added
    ({"--model": "script"}, 2, ["script", "scripted"]),
    ({"--candidate": "{localhost}/v1"}, 2, ["same server"]),
    *(({name: None}, 2, [name]) for name in ("--baseline", "--candidate", "--model")),
    ({"--tasks": "gsm8"}, 2, ["gsm8", "gsm8k"]),
    ({"--looks": "11"}, 2, ["looks must be at most 10", "--looks"]),
    ({"--gen_kwargs": "temprature=0.7"}, 2, ["'temprature' is not known", "Did you mean temperature?"]),
    ({"--checkpoint": "{nowhere}"}, 2, ["checkpoint {nowhere} is not a directory"]),
    ({"--data-dir": "{nowhere}"}, 2, ["data_dir {nowhere} is not a directory"]),
    ({"--include_path": "{nowhere}"}, 2, ["include_path {nowhere} is not a directory"]),
    ({"--api-key-file": "{nowhere}"}, 2, ["Cannot read the key file {nowhere}: No such file"]),
    ({"--output-path": "{file}/out"}, 2, ["Cannot make the folder {file}/out: Not a directory"]),
    (
        {"--tasks": "gsm8k", "--limit": None},  # without a hub
        *(2, ["openai/gsm8k", "--data-dir", "QUALAB_DATA_DIR", "unset HF_HUB_OFFLINE"]),
    ),
    ({"--tasks": "gsm8k", "--data-dir": "{empty}"}, 2, ["openai/gsm8k", "gsm8k/train.jsonl"]),
]


@pytest.mark.parametrize(("changes", "code", "says"), WRONG)
def test_a_run_that_cannot_be_is_one_clear_line(  # noqa: PLR0917
    qualab: Command,
    pair: tuple[ScriptedServer, ScriptedServer],
    tmp_path: Path,
    changes: dict[str, str | None],
    code: int,
    says: list[str],
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    names = {name: str(tmp_path / name) for name in ("nowhere", "file", "empty")}
    names |= {"baseline": pair[0].url.removesuffix("/v1")}
    names |= {"localhost": names["baseline"].replace("127.0.0.1", "localhost")}
    right = {"--baseline": pair[0].url, "--candidate": pair[1].url, "--model": "scripted"}
    options = {**right, "--tasks": "demo_arithmetic", "--limit": "3", **changes}
    given = [part.format(**names) for option in options.items() if option[1] is not None for part in option if part]
    fails(qualab("run", *given), code, *(text.format(**names) for text in says))


def test_a_setting_in_a_file_that_cannot_be(qualab: Command, arms: list[str], tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text("looks: 2.5\n", encoding="utf-8")
    fails(qualab("run", tmp_path / "experiment.yaml", *arms, *SMALL), 2, "looks")


def test_unknown_flag_names_the_nearest(qualab: Command, arms: list[str]) -> None:
    done = qualab("run", *arms, "--taks", "gsm8k")
    assert (done.code, "--tasks" in done.err) == (2, True)


def gsm8k(folder: Path, lines: list[str]) -> Path:
    (folder / "gsm8k").mkdir(parents=True)
    for split in ("test", "train"):
        (folder / "gsm8k" / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


GOOD = '{"question": "1 + 1?", "answer": "#### 2"}'


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([GOOD, GOOD, '{"question": '], [".jsonl", "3"]),
        ([GOOD, '{"question": "1 + 2?"}'], ["answer", "2"]),
        ([""], ["gsm8k"]),
    ],
)
def test_a_data_set_with_a_bad_line_or_none_is_named(
    qualab: Command, arms: list[str], tmp_path: Path, lines: list[str], says: list[str]
) -> None:
    fails(qualab("run", *arms, "--tasks", "gsm8k", "--data-dir", gsm8k(tmp_path / "data", lines)), 2, *says)


def test_a_file_that_is_not_a_database(qualab: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database " * 100, encoding="utf-8")
    fails(qualab("list", "--db", tmp_path / "notes.txt"), 5, "notes.txt")


def test_a_locked_database(qualab: Command, arms: list[str], tmp_path: Path) -> None:
    assert qualab("list").code == 0
    holder = sqlite3.connect(tmp_path / "qualab.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        fails(qualab("run", *arms, *SMALL), 5, "lock")
    finally:
        holder.close()


def test_an_unknown_comparison(qualab: Command) -> None:
    for command in ("show", "resume", "export"):
        fails(qualab(command, "20200101"), 2, "20200101", "qualab list")


def test_prompts_longer_than_the_context_are_left_out_and_counted(qualab: Command, tmp_path: Path) -> None:
    long = json.dumps({"question": "1 + 1? " * 50, "answer": "#### 2"})
    data = gsm8k(tmp_path / "data", [GOOD, long] * 10)
    script = Script(max_model_len=100)
    with ScriptedServer(script) as off, ScriptedServer(Script(max_model_len=100, drafts=True)) as on:
        flags = [*naming(off, on), "--max_failed_share", "1"]
        done = qualab("run", *flags, "--tasks", "gsm8k", "--data-dir", data, "--num_fewshot", "0")
    assert done.code == 3, done.err
    left_out = "Left out: 10 answers that both arms lack for the same reason."
    for text in ("baseline 20 10 10 rejected", left_out, "these 10 items prove"):
        assert text in " ".join(done.out.split())


def copa(folder: Path) -> Path:
    (folder / "kobest" / "copa").mkdir(parents=True)
    row = {"premise": "비가 왔다.", "question": "결과", "alternative_1": "젖었다.", "alternative_2": "말랐다."}
    (folder / "kobest" / "copa" / "test.jsonl").write_text(json.dumps(row | {"label": 0}), encoding="utf-8")
    return folder


def test_a_server_that_ignores_echo_or_fails_at_it_is_found_before_the_run(qualab: Command, tmp_path: Path) -> None:
    deaf = reply({"choices": [{"text": "x", "logprobs": None, "finish_reason": "stop"}]})
    broken = reply({"error": {"message": "out of memory"}}, status=500)
    task = ["--max_attempts", "1", "--tasks", "kobest_copa", "--data-dir", copa(tmp_path / "data")]
    for step, code, says in ((deaf, 2, ("echo", "release")), (broken, 5, ("kobest_copa", "500"))):
        with ScriptedServer() as off, ScriptedServer() as on:
            off.routes["POST", "/v1/completions"] = on.routes["POST", "/v1/completions"] = step
            fails(qualab("run", *naming(off, on), *task), code, *says)
    assert "No comparisons yet" in qualab("list").out


def on(stdout: int, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qualab", *arguments]
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        timeout=60,
        check=False,
    )


COUNTS = ["stats", "test", "--gains", "7", "--losses", "12", "--items", "600", "--margin", "0.02"]


def test_output_in_an_encoding_that_lacks_a_character_keeps_its_meaning() -> None:
    done = on(subprocess.PIPE, *COUNTS, PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    assert "\\u22120.83 pp" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_finds_no_room_says_so() -> None:
    with open("/dev/full", "w") as device:
        done = on(device.fileno(), *COUNTS)
    assert done.returncode == 5
    assert done.stderr.startswith("qualab: the output cannot be written: No space left")
    assert "Traceback" not in done.stderr


def test_a_pair_file_in_place_of_an_experiment_names_its_flag(qualab: Command, tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    assert qualab("pair", "init", str(path)).code == 0
    fails(qualab("run", str(path)), 2, "is a pair file", f"--managed {path}")


def test_broken_task_yaml(qualab: Command, arms: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.yaml").write_text("task: mine\noutput_type: nonsense\n", encoding="utf-8")
    fails(qualab("run", *arms, "--tasks", "mine", "--include_path", tmp_path / "mine"), 2, "mine")


def test_a_database_of_a_newer_schema(qualab: Command, tmp_path: Path) -> None:
    assert qualab("list").code == 0
    with sqlite3.connect(tmp_path / "qualab.db") as database:
        database.execute("update alembic_version set version_num = '9999'")
    fails(qualab("list"), 5, "newer")


def test_a_database_folder_that_cannot_be_made(qualab: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    fails(qualab("list", "--db", tmp_path / "file" / "qualab.db"), 5, "file")


def test_a_tokenizer_that_is_nowhere(qualab: Command, arms: list[str], tmp_path: Path) -> None:
    data = copa(tmp_path / "data")
    asked = ("--tasks", "kobest_copa", "--data-dir", data, "--tokenizer", "nowhere/tokenizer.json")
    fails(qualab("run", *arms, *asked), 2, "No tokenizer at nowhere/tokenizer.json")

"""Bad input ends in one clear line and the right exit code, before anything is asked, and loses nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qualab.cli.pair import write_example
from tests.cli.conftest import Command, Outcome, naming
from tests.scripted_server import Script, ScriptedServer


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


def prepared(folder: Path) -> None:
    """Write what the runs of `WRONG` name."""
    for name in ("empty", "mine", "broken/gsm8k"):
        (folder / name).mkdir(parents=True)
    copa(folder / "copa")
    files = {"file": "", "looks.yaml": "looks: 2.5\n", "notes.txt": "not a database " * 100}
    files |= {"mine/mine.yaml": "task: mine\noutput_type: nonsense\n"}
    files |= {f"broken/gsm8k/{split}.jsonl": f'{GOOD}\n{GOOD}\n{{"question": ' for split in ("test", "train")}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    write_example("pair.yaml", folder / "pair.yaml", force=False)


GOOD = '{"question": "1 + 1?", "answer": "#### 2"}'
WRONG: list[tuple[dict[str, str | None], int, list[str]]] = [
    # options over a run that is right (None leaves one out), the exit code, and words of the message
    ({"--candidate": "http://127.0.0.1:9/v1"}, 5, ["Candidate", "http://127.0.0.1:9"]),
    ({"--baseline": "{baseline}/api/v2"}, 2, ["Baseline", "/api/v2"]),
    ({"--baseline": "{baseline}", "--model": "another-model"}, 2, ["another-model"]),  # /v1 is added
    ({"--model": "script"}, 2, ["script", "scripted"]),
    ({"--candidate": "{localhost}/v1"}, 2, ["same server"]),
    *(({name: None}, 2, [name]) for name in ("--baseline", "--candidate", "--model")),
    ({"--tasks": "gsm8"}, 2, ["gsm8", "gsm8k"]),
    ({"--tasks": "mine", "--include_path": "{folder}/mine"}, 2, ["mine"]),
    ({"--looks": "11"}, 2, ["looks must be at most 10", "--looks"]),
    ({"": "{folder}/none.yaml"}, 2, ["Cannot read {folder}/none.yaml"]),
    ({"": "{folder}/looks.yaml"}, 2, ["looks"]),
    ({"": "{folder}/pair.yaml"}, 2, ["is a pair file", "--managed {folder}/pair.yaml"]),
    ({"--gen_kwargs": "temprature=0.7"}, 2, ["'temprature' is not known", "Did you mean temperature?"]),
    ({"--checkpoint": "{folder}/none"}, 2, ["checkpoint {folder}/none is not a directory"]),
    ({"--data-dir": "{folder}/none"}, 2, ["data_dir {folder}/none is not a directory"]),
    ({"--include_path": "{folder}/none"}, 2, ["include_path {folder}/none is not a directory"]),
    ({"--api-key-file": "{folder}/none"}, 2, ["Cannot read the key file {folder}/none: No such file"]),
    ({"--output-path": "{folder}/file/out"}, 2, ["Cannot make the folder {folder}/file/out: Not a directory"]),
    ({"--db": "{folder}/notes.txt"}, 5, ["notes.txt"]),
    (
        {"--tasks": "gsm8k", "--limit": None},  # without a hub
        *(2, ["openai/gsm8k", "--data-dir", "QUALAB_DATA_DIR", "unset HF_HUB_OFFLINE"]),
    ),
    ({"--tasks": "gsm8k", "--data-dir": "{folder}/empty"}, 2, ["openai/gsm8k", "gsm8k/train.jsonl"]),
    ({"--tasks": "gsm8k", "--data-dir": "{folder}/broken"}, 2, [".jsonl, line 3"]),
    (
        {"--tasks": "kobest_copa", "--data-dir": "{folder}/copa", "--tokenizer": "none/tokenizer.json"},
        *(2, ["No tokenizer at none/tokenizer.json"]),
    ),
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
    prepared(tmp_path)
    baseline = pair[0].url.removesuffix("/v1")
    names = {"folder": tmp_path, "baseline": baseline, "localhost": baseline.replace("127.0.0.1", "localhost")}
    right = {"--baseline": pair[0].url, "--candidate": pair[1].url, "--model": "scripted"}
    options = {**right, "--tasks": "demo_arithmetic", "--limit": "3", **changes}
    given = [part.format(**names) for option in options.items() if option[1] is not None for part in option if part]
    fails(qualab("run", *given), code, *(text.format(**names) for text in says))


def test_unknown_flag_names_the_nearest(qualab: Command, arms: list[str]) -> None:
    done = qualab("run", *arms, "--taks", "gsm8k")
    assert (done.code, "--tasks" in done.err) == (2, True)


def test_a_locked_database(qualab: Command, arms: list[str], tmp_path: Path) -> None:
    assert qualab("list").code == 0
    holder = sqlite3.connect(tmp_path / "qualab.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        fails(qualab("run", *arms, "--tasks", "demo_arithmetic"), 5, "lock")
    finally:
        holder.close()


def test_an_unknown_comparison(qualab: Command) -> None:
    for command in ("show", "resume", "export"):
        fails(qualab(command, "20200101"), 2, "20200101", "qualab list")


def test_prompts_longer_than_the_context_are_left_out_and_counted(qualab: Command, tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    long = json.dumps({"question": "1 + 1? " * 50, "answer": "#### 2"})
    for split in ("test", "train"):
        (tmp_path / "gsm8k" / f"{split}.jsonl").write_text("\n".join([GOOD, long] * 10), encoding="utf-8")
    with ScriptedServer(Script(max_model_len=100)) as off, ScriptedServer(Script(max_model_len=100, drafts=True)) as on:
        flags = [*naming(off, on), "--max_failed_share", "1", "--num_fewshot", "0"]
        done = qualab("run", *flags, "--tasks", "gsm8k", "--data-dir", tmp_path)
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
    class Deaf(ScriptedServer):
        def _echo(self, ids, body):  # type: ignore[no-untyped-def]
            return {"text": "x", "logprobs": None, "finish_reason": "stop"}

    class Broken(ScriptedServer):
        def _echo(self, ids, body):  # type: ignore[no-untyped-def]
            raise RuntimeError("out of memory")

    task = ["--max_attempts", "1", "--tasks", "kobest_copa", "--data-dir", copa(tmp_path / "data")]
    for kind, code, says in ((Deaf, 2, ("echo", "release")), (Broken, 5, ("kobest_copa", "500"))):
        with kind() as off, kind() as on:
            fails(qualab("run", *naming(off, on), *task), code, *says)
    assert "No comparisons yet" in qualab("list").out


def stats_test(**options: Any) -> subprocess.CompletedProcess[str]:
    counts = ["--gains", "7", "--losses", "12", "--items", "600", "--margin", "0.02"]
    command = [sys.executable, "-m", "qualab", "stats", "test", *counts]
    return subprocess.run(command, stderr=subprocess.PIPE, encoding="utf-8", timeout=60, check=False, **options)


def test_output_in_an_encoding_that_lacks_a_character_keeps_its_meaning() -> None:
    done = stats_test(stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, errors="replace")
    assert done.returncode == 0, done.stderr
    assert "\\u22120.83 pp" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_finds_no_room_says_so() -> None:
    with open("/dev/full", "w") as device:
        done = stats_test(stdout=device)
    assert done.returncode == 5
    assert done.stderr.startswith("qualab: the output cannot be written: No space left")
    assert "Traceback" not in done.stderr

"""Bad input ends in one clear line and the right exit code, before anything is asked, and loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qualab.cli.pair import write_example
from tests.cli.conftest import Command, Outcome, naming
from tests.scripted_server import ScriptedServer, reply


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
    rows = '{"question": "1 + 1?", "answer": "#### 2"}\n' * 2
    files |= {f"broken/gsm8k/{split}.jsonl": f'{rows}{{"question": ' for split in ("test", "train")}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    write_example("pair.yaml", folder / "pair.yaml", force=False)


WRONG: list[tuple[dict[str, str | None], int, list[str]]] = [
    # options over a run that is right (None leaves one out), the exit code, and words of the message
    ({"--candidate": "http://127.0.0.1:9/v1"}, 5, ["Candidate", "http://127.0.0.1:9"]),
    ({"--baseline": "{baseline}/api/v2"}, 2, ["Baseline", "/api/v2"]),
    ({"--baseline": "{baseline}", "--model": "another-model"}, 2, ["another-model"]),  # /v1 is added
    ({"--model": "script"}, 2, ["script", "scripted"]),
    ({"--candidate": "{localhost}/v1"}, 2, ["same server"]),
    ({"--baseline": "{baseline},{localhost}/v1"}, 2, ["The baseline lists one server twice"]),
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


STATS = "stats test --gains 7 --losses 12 --items 600 --margin 0.02"
PLAN = "plan --tasks demo_arithmetic"
REFUSED: list[tuple[str, str]] = [
    # a command line, and a part of what it says
    ("preflihgt", "Did you mean 'preflight'"),
    ("run --taks gsm8k", "--tasks"),
    *(
        (f"{command} 20200101", "There is no comparison '20200101'")
        for command in ("show", "resume", "audit", "export", "report")
    ),
    ("gate", "No comparison is named"),
    ("gate --latest", "No comparison is named"),
    ("gate x --label y", "Both an id and --latest or --label are given"),
    ("gate x --timeout soon", "--timeout: 'soon' is not a duration"),
    ("gate x --token-file /nowhere", "Cannot read the token file"),
    ("gate x --server nowhere", "has no scheme"),
    ("list --since=-3d", "--since: '-3d' is not a time\n  As 2026-03-04"),
    ("list --since=2026-13-01", "--since: '2026-13-01' is not a time"),
    ("prune --older-than=90", "--older-than: '90' is not a duration\n  As 90s, 30m, 12h, 90d"),
    ("prune --older-than=-1d", "'-1d' is not a duration"),
    ("import --baseline .", "Two logs are needed"),
    ("import t.csv --baseline .", "A table holds both arms"),
    ("import --baseline . --candidate . --allow all", "no finding named all"),
    ("import --baseline . --candidate . --run left=1", "run: "),
    ("import t.csv --score-bounds scores=0", "not of the form name=low:high"),
    (f"{STATS} --both-right 582", "do not fit into 600 items"),
    (f"{STATS} --confidence 95", "confidence level must lie between 0 and 1"),
    ("stats mde --items 600 --discordance 5", "discordance must lie between 0 and 1"),
    ("stats size --margin 0.02 --discordance 0.05 --repeats 4", "go together"),
    (f"{PLAN} --margins demo_arith=0.01", "Did you mean demo_arithmetic"),
    (f"{PLAN} --score-bounds demo_arith=0:100", "Did you mean demo_arithmetic"),
    (f"{PLAN} --discordance much", "not of the form"),
    (f"{PLAN} --discordance 1.5", "discordance must be"),
    (f"{PLAN} --missing-lost 1", "missing_lost must be"),
    (f"{PLAN} --pilot nothing", "no comparison"),
    (f"{PLAN} --objective better", "better"),
    ("token revoke nothing", "There is no token"),
    ("token create ci --expires 0h", "expires"),
    ("token create ci --expires 5y", "--expires: '5y' is not a duration"),
    ("serve --port 99999", "port"),
    ("serve --allow-endpoint http://x", "http://x"),
    ("serve --allow-endpoint 10.0.0.0/99", "10.0.0.0/99"),
    *((f"serve --port 0 --host {host}", f"Nobody is served on {host} without a token") for host in ("0.0.0.0", "::")),
]


@pytest.mark.parametrize(("command", "says"), REFUSED)
def test_wrong_arguments_are_refused_in_one_line(qualab: Command, command: str, says: str) -> None:
    done = qualab(*command.split())
    assert (done.code, done.out) == (2, ""), done.err
    assert says in done.err
    assert "Traceback" not in done.err


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

"""`qualab speed` and `qualab run --speed`: what they print, their exit codes, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Command, write_table
from tests.streaming_server import StreamingServer, Streams

SMALL = ["--works", "copy", "--concurrency", "2", "--prompt-tokens", 40, "--output-tokens", 8]
NOWHERE = ["--baseline", "http://127.0.0.1:1/v1", "--candidate", "http://127.0.0.1:2/v1", "--model", "m"]
SMALL += ["--requests", 4, "--repeats", 2, "--max-repeats", 2]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    """The URLs of a baseline and two candidates."""
    scripts = [Streams(tokens_per_s=200.0), *(Streams(tokens_per_s=600.0, drafts=True) for _ in range(2))]
    with StreamingServer(scripts[0]) as off, StreamingServer(scripts[1]) as on, StreamingServer(scripts[2]) as third:
        yield [off.url, on.url, third.url]


@pytest.fixture
def streaming(servers: list[str]) -> list[str]:
    return ["--baseline", servers[0], "--candidate", servers[1], "--model", "scripted"]


def test_a_new_pair_is_timed_and_everything_reads_it_as_any_comparison(
    qualab: Command, streaming: list[str], tmp_path: Path
) -> None:
    done = qualab("speed", *streaming, *SMALL, "--label", "nightly")
    assert done.code == 0, done.err
    assert "copying, 40 tokens · 2 at once" in done.out
    made = done.comparison_id
    assert f"qualab advise {made}" in done.out
    assert "none" in next(line for line in qualab("list").out.splitlines() if line.startswith(made))
    assert qualab("show", made).code == 0
    assert "made again, byte for byte" in qualab("verify", made).out
    gate = qualab("gate", made)
    assert (gate.code, "no drafter was exercised" in gate.out) == (3, False)
    for name in ("report.pdf", "report.html", "report.md"):
        assert qualab("report", made, "-o", tmp_path / name).code == 0
    speed = qualab.json("speed", made)
    (cell,) = speed["cells"]
    assert (cell["cell"]["work"], cell["ratio"]["n_repeats"], cell["baseline"]["n_failed"]) == ("copy", 2, 0)
    assert qualab("resume", made).code == 3
    assert qualab.json("speed", made) == speed, "nothing is measured twice"
    refused = qualab("speed", made, *streaming)
    assert (refused.code, f"--baseline does not fit {made}" in refused.err) == (2, True)


def test_candidates_are_timed_together_and_gone_on_with_as_a_group(qualab: Command, servers: list[str]) -> None:
    off, k3, k5 = servers
    group = ["--baseline", off, "--candidates", f"k3={k3},k5={k5}", "--model", "scripted"]
    done = qualab("speed", *group, *SMALL)
    assert done.code == 0, done.err
    assert "k3" in done.out
    assert "k5" in done.out
    again = qualab("speed", done.comparison_id)
    assert (again.code, again.out) == (0, done.out)


def test_a_run_times_its_arms_after_the_answers_and_a_plan_says_how_long_at_most(
    qualab: Command, streaming: list[str], tmp_path: Path
) -> None:
    given = {"works": ["copy"], "concurrency": 2, "prompt_tokens": 40, "output_tokens": 8, "requests": 4}
    given |= {"repeats": 2, "max_repeats": 2, "budget": 90}
    experiment = tmp_path / "experiment.yaml"
    named = dict(zip(("baseline", "candidate", "model"), streaming[1::2], strict=True))
    tasks = {"tasks": "demo_arithmetic", "limit": 5, "allow_unobserved": True}
    experiment.write_text(yaml.safe_dump({**named, **tasks, "speed": given}))
    planned = qualab("plan", experiment, "--output", tmp_path / "plan.yaml")
    assert "Speed: 1 cell of kind of work, length and load" in planned.out, planned.err
    assert "at most 1 min 30 s" in planned.out
    done = qualab("run", tmp_path / "plan.yaml")
    assert done.code == 3, done.err
    shown = qualab.json("speed", done.comparison_id)
    assert (shown["plan"]["budget_s"], len(shown["cells"])) == (90, 1)
    assert qualab("speed", experiment).code == 0, "the same pair in a comparison without tasks"
    assert len(qualab.json("list")) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nothing"], 2, "There is no comparison"),
        (["missing.yaml"], 2, "Cannot read missing.yaml"),
        ([], 2, "No baseline is given"),
        ([*NOWHERE, "--concurrency", "0"], 2, "Nothing is to be timed"),
        (NOWHERE, 5, "reached"),
        (["--works", "singing"], 2, "works"),
        (["--repeats", "1"], 2, "speed_repeats must be at least 2"),
    ],
)
def test_what_cannot_be_timed_is_one_clear_line(qualab: Command, arguments: list[str], code: int, said: str) -> None:
    refused = qualab("speed", *arguments)
    assert (refused.code, said in refused.err) == (code, True), refused.err


def test_what_was_imported_has_no_arms_to_time(qualab: Command, tmp_path: Path) -> None:
    imported = qualab.json("import", write_table(tmp_path / "scores.csv", [(1, 0)] * 40))["comparison"]["id"]
    refused = qualab("speed", imported)
    assert (refused.code, "was imported from logs: it cannot be timed" in refused.err) == (2, True)

"""The commands of docs/gate.md and docs/service.md, as they stand there, on real runs over scripted endpoints."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from qualab.model.names import EXIT_CODES, Verdict
from tests.cli.conftest import Command, naming
from tests.cli.test_serve_command import serving
from tests.scripted_server import MODEL, Script, ScriptedServer

GATE, SERVICE = (
    (Path(__file__).parents[2] / "docs" / name).read_text(encoding="utf-8") for name in ("gate.md", "service.md")
)


def blocks(text: str) -> str:
    """The commands of its shell blocks."""
    return "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))


@pytest.mark.slow
def test_the_commands_of_the_documentation_do_what_it_says(qualab: Command, tmp_path: Path) -> None:
    options = ["--tasks", "demo_arithmetic", "--limit", 40, "--margin", 0.2, "--label", "nightly"]
    with ScriptedServer() as off, ScriptedServer(Script(drafts=True)) as on:
        done = qualab("run", *naming(off, on), *options)
    assert done.code == 0, done.out
    token = tmp_path / "token.txt"
    token.write_text(qualab("token", "create", "ci").out)
    with serving(tmp_path) as (url, _):
        names = {"ID": done.comparison_id, "SERVER": url, "token.txt": str(token)}
        text = re.sub(r"\$?\b(ID|SERVER|token\.txt)\b", lambda found: names[found[1]], blocks(GATE))
        commands = [shlex.split(line, comments=True) for line in text.splitlines()]
        codes = [qualab(*arguments).code for _, *arguments in commands]
    named = [("qualab", name) for name in ("gate", "gate", "gate", "sign-off", "sign-off", "verify")]
    assert [(program, name) for program, name, *_ in commands] == named
    assert codes == [0, 0, 0, 2, 0, 0]  # limited and unpinned: refused, unless a reason is given


def test_the_documentation_names_every_verdict_at_its_exit_code() -> None:
    rows = dict(re.findall(r"^\| (\d) \| (.*) \|$", GATE, re.MULTILINE))
    named = [verdict for verdict in Verdict if verdict is not Verdict.NOT_TESTED]  # of metrics alone
    assert [verdict for verdict in named if verdict.value not in rows[str(EXIT_CODES[verdict])]] == []
    assert set(rows) == {"0", "1", "2", "3", "4", "5"}


@pytest.mark.slow
def test_the_session_of_the_documentation_works(tmp_path: Path) -> None:
    sections = re.split(r"^## ", SERVICE, flags=re.MULTILINE)
    parts = [blocks(section) for section in sections if section.startswith(("A session\n", "Plans\n"))]
    assert len(parts) == 2
    script = "".join(["set -euo pipefail\n", *parts]).replace("curl ", "curl --fail-with-body ")
    with ScriptedServer() as off, ScriptedServer(Script(drafts=True)) as on, serving(tmp_path) as (url, _):
        variables = {"SERVER": url, "OFF": off.url, "ON": on.url, "MODEL": MODEL, "BUILD": "build-17"}
        command, own = ["bash", "-c", script], os.environ | variables
        ran = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for text in ('"verdict":"INVALID"', "event: end", "304\n", '"analysis.create"', '"provable_margin"'):
        assert text in ran.stdout
    logged = [line for line in (tmp_path / "err").read_text().splitlines() if not line.startswith("qualab serves")]
    assert all(json.loads(line)["level"] for line in logged)


def test_every_option_that_the_documentation_names_is_there(qualab: Command) -> None:
    commands = (["serve"], ["worker"], ["gate"], ["token", "create"])
    shown = "".join(qualab(*command, "--help").out for command in commands)
    named = set(re.findall(r"(?<![-\w])--[a-z][a-z-]+", SERVICE))
    assert [one for one in sorted(named) if one not in shown] == []

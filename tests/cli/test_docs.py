"""The commands of docs/gate.md and docs/service.md, as they stand there, on real runs over scripted endpoints."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from qualab.cli.output import EXIT_CODES
from qualab.model.names import Verdict
from tests.cli.conftest import Command, naming
from tests.cli.test_serve_command import serving
from tests.scripted_server import MODEL, Script, ScriptedServer

GATE, SERVICE = (
    (Path(__file__).parents[2] / "docs" / name).read_text(encoding="utf-8") for name in ("gate.md", "service.md")
)


def commands(**names: str) -> list[list[str]]:
    """Every command, with its placeholders replaced."""
    lines = [line for block in re.findall(r"```sh\n(.*?)```", GATE, re.DOTALL) for line in block.splitlines()]
    found = []
    for line in lines:
        named = re.sub(r"\$?\b(ID|SERVER)\b", lambda found: names[found[1]], line)
        program, *arguments = shlex.split(named, comments=True)
        assert program == "qualab"
        found.append(arguments)
    return found


@pytest.mark.slow
def test_the_commands_of_the_documentation_do_what_it_says(qualab: Command, tmp_path: Path) -> None:
    options = ["--tasks", "demo_arithmetic", "--limit", 40, "--margin", 0.2, "--label", "nightly"]
    with ScriptedServer() as off, ScriptedServer(Script(drafts=True)) as on:
        done = qualab("run", *naming(off, on), *options)
    assert done.code == 0, done.out
    token = tmp_path / "token.txt"
    token.write_text(qualab("token", "create", "ci").out)
    with serving(tmp_path) as (url, _):
        named = commands(ID=done.comparison_id, SERVER=url)
        codes = [qualab(*(str(token) if part == "token.txt" else part for part in one)).code for one in named]
    assert [one[0] for one in named] == ["gate"] * 3 + ["sign-off"] * 2 + ["verify"]
    assert codes == [0, 0, 0, 2, 0, 0]  # limited and unpinned: refused, unless a reason is given


def test_the_documentation_names_every_verdict_at_its_exit_code() -> None:
    rows = dict(re.findall(r"^\| (\d) \| (.*) \|$", GATE, re.MULTILINE))
    named = [verdict for verdict in Verdict if verdict is not Verdict.NOT_TESTED]  # of metrics alone
    assert [verdict for verdict in named if verdict.value not in rows[str(EXIT_CODES[verdict])]] == []
    assert set(rows) == {"0", "1", "2", "3", "4", "5"}


def blocks(*headings: str) -> str:
    """The shell blocks under these headings."""
    parts = re.split(r"^## ", SERVICE, flags=re.MULTILINE)
    found = [part for part in parts if part.splitlines()[0] in headings]
    assert len(found) == len(headings)
    return "\n".join(re.findall(r"```sh\n(.*?)```", "\n".join(found), re.DOTALL))


@pytest.mark.slow
def test_the_session_of_the_documentation_works(tmp_path: Path) -> None:
    script = f"set -euo pipefail\n{blocks('A session', 'Plans')}"
    script = script.replace("curl ", "curl --fail-with-body ")
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

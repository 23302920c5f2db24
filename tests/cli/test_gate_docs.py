"""The commands of docs/gate.md, as they stand there, on a real run over scripted endpoints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from qualab.cli.output import EXIT_CODES
from qualab.model.names import Verdict
from tests.cli.conftest import Command
from tests.cli.test_serve_command import serving
from tests.scripted_server import MODEL, Script, ScriptedServer

DOCS = (Path(__file__).parents[2] / "docs" / "gate.md").read_text(encoding="utf-8")


def commands(**names: str) -> list[list[str]]:
    """Every command, with its placeholders replaced."""
    lines = [line for block in re.findall(r"```sh\n(.*?)```", DOCS, re.DOTALL) for line in block.splitlines()]
    found = []
    for line in lines:
        named = re.sub(r"\$?\b(ID|SERVER)\b", lambda found: names[found[1]], line)
        program, *arguments = shlex.split(named, comments=True)
        assert program == "qualab"
        found.append(arguments)
    return found


@pytest.mark.slow
def test_the_commands_of_the_documentation_do_what_it_says(qualab: Command, tmp_path: Path) -> None:
    pair = ["--tasks", "demo_arithmetic", "--limit", 40, "--margin", 0.2, "--label", "nightly", "--model", MODEL]
    with ScriptedServer() as off, ScriptedServer(Script(drafts=True)) as on:
        done = qualab("run", "--baseline", off.url, "--candidate", on.url, *pair)
    assert done.code == 0, done.out
    token = tmp_path / "token.txt"
    token.write_text(qualab("token", "create", "ci").out)
    with serving(tmp_path) as (url, _):
        named = commands(ID=done.comparison_id, SERVER=url)
        codes = [qualab(*(str(token) if part == "token.txt" else part for part in one)).code for one in named]
    assert [one[0] for one in named] == ["gate"] * 3 + ["sign-off"] * 2 + ["verify"]
    assert codes == [0, 0, 0, 2, 0, 0]  # limited and unpinned: refused, unless a reason is given


def test_the_documentation_names_every_verdict_at_its_exit_code() -> None:
    rows = dict(re.findall(r"^\| (\d) \| (.*) \|$", DOCS, re.MULTILINE))
    named = [verdict for verdict in Verdict if verdict is not Verdict.NOT_TESTED]  # of metrics alone
    assert [verdict for verdict in named if verdict.value not in rows[str(EXIT_CODES[verdict])]] == []
    assert set(rows) == {"0", "1", "2", "3", "4", "5"}

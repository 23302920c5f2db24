"""The commands of docs/service.md, as they stand there, against a real service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_serve_command import serving
from tests.scripted_server import MODEL, Script, ScriptedServer

DOCS = Path(__file__).parents[2] / "docs" / "service.md"


def blocks(*headings: str) -> str:
    """The shell blocks under these headings."""
    parts = re.split(r"^## ", DOCS.read_text(), flags=re.MULTILINE)
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
    assert '"verdict":"INVALID"' in ran.stdout
    assert "event: end" in ran.stdout
    assert "304\n" in ran.stdout
    assert '"analysis.create"' in ran.stdout
    assert '"provable_margin"' in ran.stdout


def test_every_option_that_the_documentation_names_is_there(tmp_path: Path) -> None:
    shown = "".join(
        subprocess.run(
            [sys.executable, "-m", "qualab", *command, "--help"], capture_output=True, text=True, check=True
        ).stdout
        for command in (["serve"], ["worker"], ["gate"], ["token", "create"])
    )
    named = set(re.findall(r"(?<![-\w])--[a-z][a-z-]+", DOCS.read_text()))
    assert [one for one in sorted(named) if one not in shown] == []

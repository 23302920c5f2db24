"""`qualab token` and `qualab serve`, as they are typed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.cli.conftest import Command
from tests.waiting import wait_for


def test_a_token_is_made_listed_and_revoked(qualab: Command) -> None:
    assert "No tokens" in qualab("token", "list").out
    made = qualab("token", "create", "ci", "--scope", "run", "--expires", "12h")
    text = made.out.strip()
    assert (made.code, text.startswith("qlb_"), len(made.out.splitlines())) == (0, True, 1)
    assert "with scope run" in made.err
    (listed,) = qualab.json("token", "list")
    assert (listed["name"], listed["scope"], listed["revoked_at"]) == ("ci", "run", None)
    table = qualab("token", "list").out
    assert "valid" in table
    assert text.partition(".")[2] not in table + json.dumps(listed)
    assert qualab("token", "revoke", listed["id"]).code == 0
    assert "revoked" in qualab("token", "list").out


def test_a_token_of_a_file_opens_the_service_and_no_database_knows_it(qualab: Command, tmp_path: Path) -> None:
    generated = qualab("token", "generate")
    token = generated.out.strip()
    assert (generated.code, len(generated.out.splitlines())) == (0, 1)
    (tmp_path / "token").write_text(f"{token}\n")
    with serving(tmp_path, "--no-worker", QUALAB_SERVE_TOKEN_FILE=str(tmp_path / "token")) as (url, _):
        right = {"Authorization": f"Bearer {token}"}
        assert httpx2.get(f"{url}/v1/audit", headers=right).status_code == 200  # the scope admin
        assert httpx2.get(f"{url}/v1/comparisons").status_code == 401  # from this machine, too
        wrong = {"Authorization": f"Bearer {token[:-1]}{'x' if token[-1] != 'x' else 'y'}"}
        assert httpx2.get(f"{url}/v1/comparisons", headers=wrong).status_code == 401
    assert "No tokens" in qualab("token", "list").out


@pytest.mark.parametrize("text", [None, "", "secret-canary", "qlb_short.secret-canary"])
def test_a_file_without_a_token_is_refused_and_its_content_not_repeated(
    qualab: Command, tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "token").write_text(text)
    refused = qualab("serve", "--port", "0", "--token-file", tmp_path / "token")
    assert (refused.code, str(tmp_path / "token") in refused.err, "canary" in refused.err) == (2, True, False)


def test_a_port_that_is_taken_is_said_with_the_exit_code_of_infrastructure(qualab: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = qualab("serve", "--port", str(port), "--no-worker")
    assert refused.code == 5
    assert f"qualab: Cannot listen on 127.0.0.1, port {port}" in refused.err


@contextmanager
def serving(tmp_path: Path, *arguments: str, **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command as a process; yields its address."""
    own = {"QUALAB_DB": str(tmp_path / "qualab.db"), "HF_HUB_OFFLINE": "1", **environment}
    command = [sys.executable, "-m", "qualab", "serve", "--port", "0", *arguments]
    with (path := tmp_path / "err").open("w") as errors:
        process = subprocess.Popen(command, env=os.environ | own, stderr=errors, text=True)

    def address() -> str | None:
        said = path.read_text()
        assert process.poll() is None, said
        return next((line.split()[2] for line in said.splitlines() if line.startswith("qualab serves ")), None)

    try:
        yield wait_for(address, within_s=30.0, or_say=path.read_text), process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(20.0)

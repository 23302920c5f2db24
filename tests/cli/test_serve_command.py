"""`qualab token` and `qualab serve`, as they are typed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from qualab import store
from qualab.errors import StoreError
from tests.cli.conftest import Command
from tests.scripted_server import MODEL, Script, ScriptedServer

CANARY = "sk-canary-51d0"


def test_a_token_is_made_listed_and_revoked(qualab: Command) -> None:
    assert "No tokens" in qualab("token", "list").out
    made = qualab("token", "create", "ci", "--scope", "run", "--expires", "12h")
    text = made.out.strip()
    assert (made.code, text.startswith("qlb_"), len(made.out.splitlines())) == (0, True, 1)
    assert "with scope run" in made.err
    (listed,) = qualab.json("token", "list")
    assert (listed["name"], listed["scope"], listed["revoked_at"]) == ("ci", "run", None)
    secret = text.partition(".")[2]
    assert secret not in qualab("token", "list").out + json.dumps(listed)
    assert "valid" in qualab("token", "list").out
    assert qualab("token", "revoke", listed["id"]).code == 0
    assert "revoked" in qualab("token", "list").out
    missing = qualab("token", "revoke", "nothing")
    assert (missing.code, "There is no token" in missing.err) == (2, True)


def test_of_a_token_the_database_holds_no_secret(qualab: Command, tmp_path: Path) -> None:
    secret = qualab("token", "create", "ci", "--expires", "never").out.strip().partition(".")[2]
    held = b"".join(path.read_bytes() for path in tmp_path.glob("qualab.db*"))
    assert b"ci" in held
    assert secret.encode() not in held


@pytest.mark.parametrize("expires", ["0h", "5y"])
def test_a_lifetime_that_is_none_is_refused(qualab: Command, expires: str) -> None:
    assert qualab("token", "create", "ci", "--expires", expires).code == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_nobody_is_served_elsewhere_without_a_token(qualab: Command, host: str) -> None:
    refused = qualab("serve", "--host", host, "--port", "0")
    assert refused.code == 2
    assert refused.err.splitlines()[0] == f"qualab: Nobody is served on {host} without a token, and there is none"
    assert "qualab token create" in refused.err


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


@pytest.mark.parametrize("text", ["", "secret-canary", "qlb_short.secret-canary"])
def test_a_file_without_a_token_is_refused_and_its_content_not_repeated(
    qualab: Command, tmp_path: Path, text: str
) -> None:
    (tmp_path / "token").write_text(text)
    for path in (tmp_path / "token", tmp_path / "none"):
        refused = qualab("serve", "--port", "0", "--token-file", path)
        assert refused.code == 2
        assert str(path) in refused.err
        assert "canary" not in refused.err


@pytest.mark.parametrize(
    "arguments",
    [("--port", "99999"), ("--allow-endpoint", "http://x"), ("--allow-endpoint", "10.0.0.0/99")],
)
def test_settings_that_cannot_be_are_refused(qualab: Command, arguments: tuple[str, str]) -> None:
    assert qualab("serve", *arguments).code == 2


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("worker",), ("verify", "nothing")])
def test_a_command_opens_its_database_once(
    qualab: Command, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    opened: list[str] = []
    open_store = store.open_store

    def counted(url: str, **given: Any) -> store.Store:
        opened.append(url)
        return open_store(url, **given)

    def no_queue(*_: Any, **__: Any) -> None:
        raise StoreError("this is far enough")

    monkeypatch.setattr(store, "open_store", counted)
    monkeypatch.setattr("qualab.service.worker.working", no_queue)
    monkeypatch.setattr("qualab.service.api.server.begin_logging", lambda: None)
    monkeypatch.setattr("qualab.cli.service._ended_by_signals", lambda: None)
    assert qualab(*command).code != 0
    assert len(opened) == 1


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
    with (tmp_path / "err").open("w") as errors:
        process = subprocess.Popen(command, env=os.environ | own, stderr=errors, text=True)
    try:
        yield address(tmp_path / "err", process), process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(20.0)


def address(errors: Path, process: subprocess.Popen[str]) -> str:
    ends_at = time.monotonic() + 30.0
    while time.monotonic() < ends_at and process.poll() is None:
        for line in errors.read_text().splitlines():
            if line.startswith("qualab serves "):
                return line.split()[2]
        time.sleep(0.05)
    raise AssertionError(errors.read_text())


def ended(url: str, path: str) -> dict[str, Any]:
    ends_at = time.monotonic() + 60.0
    while time.monotonic() < ends_at:
        verdict: dict[str, Any] = httpx2.get(f"{url}{path}/verdict").json()
        if verdict["has_ended"]:
            return verdict
        time.sleep(0.1)
    raise AssertionError(verdict)


@pytest.mark.slow
def test_a_comparison_is_served_from_its_request_to_its_verdict(tmp_path: Path) -> None:
    """Over real sockets, lm-eval's tasks, the database, and a key that is a reference."""
    with (
        ScriptedServer() as off,
        ScriptedServer(Script(drafts=True)) as on,
        serving(tmp_path, QUALAB_KEY_PAIR=CANARY) as (url, process),
    ):
        body = {
            "baseline": off.url,
            "candidate": on.url,
            "model": MODEL,
            "tasks": "demo",
            "limit": 4,
            "api_key": "env:QUALAB_KEY_PAIR",
            "accept_underpowered": True,
        }
        assert httpx2.get(f"{url}/readyz").status_code == 200
        sent = httpx2.post(f"{url}/v1/comparisons", json=body, timeout=60.0)
        assert sent.status_code == 202, sent.text
        path = sent.headers["location"]
        verdict = ended(url, path)
        assert verdict["status"] == "finished", verdict
        items = httpx2.get(f"{url}{path}/items").json()["entries"]
        assert len(items) == 12
        parts = ("", "/metrics", "/plan", "/items/0", "/preflight")
        texts = [sent.text, *(httpx2.get(f"{url}{path}{part}").text for part in parts)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20.0) == 0
    held = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert CANARY.encode() not in held
    assert CANARY not in "".join(texts)
    for line in (tmp_path / "err").read_text().splitlines():
        assert line.startswith("qualab serves") or json.loads(line)["level"]

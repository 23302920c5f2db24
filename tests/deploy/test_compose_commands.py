"""What the compose file starts, started as it says, on a PostgreSQL that wants the password."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.deploy.test_manifests import compose
from tests.house.modules import ROOT
from tests.store import postgresql

PASSWORD = "a password, 'quoted' $HOME"
SETTINGS = {name: value for name, value in compose()["x-qualab"]["environment"].items() if "SERVE" in name}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """The folder of a server's socket. Its user has a password, and is asked for it."""
    if postgresql.binaries() is None:
        pytest.skip(f"needs PostgreSQL {postgresql.OLDEST} or newer")
    with postgresql.running() as folder:
        postgresql.execute(folder, "CREATE DATABASE qualab")
        quoted = PASSWORD.replace("'", "''")
        postgresql.execute(folder, f"ALTER USER qualab PASSWORD '{quoted}'")
        with postgresql.stopped(folder):
            (Path(folder) / "data" / "pg_hba.conf").write_text("local all all scram-sha-256\n")
        yield folder


class Container:
    """A service of the compose file as a process of this machine: its entrypoint, its command, its settings."""

    def __init__(self, database: str, folder: Path) -> None:
        self._folder = folder
        (folder / "db_password").write_text(PASSWORD)
        program = folder / "qualab"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qualab "$@"\n')
        program.chmod(0o755)
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("QUALAB_", "PG"))}
        here = {"PATH": f"{folder}:{os.environ['PATH']}", "QUALAB_SERVE_PORT": "0", "PYTHONPATH": str(ROOT)}
        self._environment = plain | SETTINGS | here | {"QUALAB_DB": f"postgresql://qualab@/qualab?host={database}"}

    def command(self, service: str, *instead: str) -> dict[str, Any]:
        one = compose()["services"][service]
        secret = str(self._folder / "db_password")
        entrypoint = [part.replace("$$", "$").replace("/run/secrets/db_password", secret) for part in one["entrypoint"]]
        return {"args": [*entrypoint, *(instead or one["command"])], "env": self._environment, "text": True}

    def run(self, service: str, *instead: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(**self.command(service, *instead), capture_output=True, timeout=60, check=False)

    def start(self, service: str) -> subprocess.Popen[str]:
        with (self._folder / f"{service}.err").open("w") as errors:
            return subprocess.Popen(**self.command(service), stderr=errors)

    def said(self, service: str, process: subprocess.Popen[str], begins: str) -> str:
        ends_at = time.monotonic() + 40.0
        while time.monotonic() < ends_at and process.poll() is None:
            text = (self._folder / f"{service}.err").read_text()
            if line := next((line for line in text.splitlines() if line.startswith(begins)), ""):
                return line
            time.sleep(0.1)
        raise AssertionError((self._folder / f"{service}.err").read_text())


@pytest.mark.slow
def test_the_services_start_as_compose_starts_them(database: str, tmp_path: Path) -> None:
    container = Container(database, tmp_path)
    migrated = container.run("migrate")
    assert migrated.returncode == 0, migrated.stderr
    refused = container.run("api")
    assert (refused.returncode, "without a token" in refused.stderr) == (2, True)
    token = container.run("api", "token", "create", "admin", "--scope", "admin").stdout.strip()
    worker, api = container.start("worker"), container.start("api")
    try:
        container.said("worker", worker, "qualab works as ")
        url = container.said("api", api, "qualab serves ").split()[2].replace("0.0.0.0", "127.0.0.1")
        assert PASSWORD not in Path(f"/proc/{api.pid}/cmdline").read_text()
        assert httpx2.get(f"{url}/readyz").json() == {
            "status": "ready",
            "database": "ok",
            "schema": "ok",
            "workers": 1,
            "reasons": [],
        }
        assert httpx2.get(f"{url}/v1/comparisons").status_code == 401
        assert httpx2.get(f"{url}/v1/comparisons", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    finally:
        for process in (api, worker):
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(40.0) for process in (api, worker)]
    assert codes == [0, 0]

"""A PostgreSQL server of the tests' own: on a Unix socket in a temporary folder, stopped at the end."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OLDEST = 15
DATABASE = "contract"


def binaries() -> Path | None:
    """The folder of the newest server's programs on this machine, if one is new enough."""
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    found = sorted((int(folder.parent.name), folder) for folder in folders if folder.parent.name.isdecimal())
    if found and found[-1][0] >= OLDEST:
        return found[-1][1]
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def url_of(folder: str, name: str = DATABASE) -> str:
    return f"postgresql://qualab@/{name}?host={folder}"


def execute(folder: str, statement: str, *, database: str = "postgres") -> None:
    import psycopg

    with psycopg.connect(host=folder, user="qualab", dbname=database, autocommit=True) as connection:
        connection.execute(statement.encode())


@contextmanager
def running(*settings: str) -> Iterator[str]:
    """Starts a server and yields the folder of its socket; `settings` as "name=value"."""
    programs = binaries()
    if programs is None:
        raise RuntimeError(f"no PostgreSQL {OLDEST} or newer on this machine")
    folder = Path(tempfile.mkdtemp(prefix="qualab-pg-"))
    user = _user()
    if user is not None:
        shutil.chown(folder, user)
    data = folder / "data"
    try:
        _run(user, programs / "initdb", "-D", data, "-U", "qualab", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        start(str(folder), *settings)
        try:
            yield str(folder)
        finally:
            stop(str(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start(folder: str, *settings: str) -> None:
    """Starts the server in a folder; `settings` as "name=value"."""
    own = ["listen_addresses=''", f"unix_socket_directories='{folder}'", "fsync=off", "full_page_writes=off"]
    options = " ".join(f"-c {setting}" for setting in (*own, *settings))
    _control(folder, "-l", f"{folder}/log", "-w", "-o", options, "start")


def stop(folder: str) -> None:
    """Stops it at once, as a crash does."""
    _control(folder, "-m", "immediate", "-w", "stop")


@contextmanager
def stopped(folder: str) -> Iterator[None]:
    """As in a crash of the server: every connection breaks, and what was not committed is gone."""
    stop(folder)
    try:
        yield
    finally:
        start(folder)


def _control(folder: str, *command: str) -> None:
    programs = binaries()
    assert programs is not None
    _run(_user(), programs / "pg_ctl", "-D", f"{folder}/data", *command)


def _user() -> str | None:
    """PostgreSQL refuses to run as root: then as another user."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _run(user: str | None, *command: object) -> None:
    # output to a file: the server would keep a pipe open
    with tempfile.TemporaryFile() as output:
        ended = subprocess.run(
            [str(part) for part in command], user=user, stdout=output, stderr=output, cwd="/", check=False, timeout=60
        )
        if ended.returncode != 0:
            output.seek(0)
            raise RuntimeError(f"{command[0]} failed: {output.read().decode(errors='replace')[-500:]}")

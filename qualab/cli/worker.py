"""`qualab worker`: runs what the service was asked for, beside it or on another host."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Annotated

import typer

from qualab.cli.options import AllowEndpoint, AllowPath, Database, DataDir, SecretDir, SecretEnv
from qualab.cli.output import complain
from qualab.errors import InvalidValue, StoreLocked, StoreUnavailable

LOOK_S = 0.2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0


def register(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command("worker", short_help="Run what the service was asked for.")(worker)


def worker(
    concurrency: Annotated[int, typer.Option(help="Comparisons at once, each in a process of its own.")] = 1,
    allow_endpoint: AllowEndpoint = None,
    allow_path: AllowPath = None,
    secret_env: SecretEnv = None,
    secret_dir: SecretDir = None,
    data_dir: DataDir = None,
    db: Database = None,
) -> None:
    """Run what the service was asked for, until SIGTERM. Any number of workers may share one PostgreSQL."""
    if concurrency < 1:
        raise InvalidValue("concurrency must be 1 or more", hint="Change --concurrency")
    if concurrency > 1:
        raise typer.Exit(_several(concurrency, sys.argv[1:]))
    from qualab import bootstrap
    from qualab.service import jobs
    from qualab.service.api.server import begin_logging
    from qualab.service.settings import load_service
    from qualab.settings import load

    common = load(command_line={"db": db, "data_dir": data_dir})
    settings = load_service(
        allowed_endpoints=allow_endpoint or None,
        allowed_paths=allow_path or None,
        secret_env=secret_env or None,
        secret_dir=secret_dir,
        data_dir=common.data_dir,
    )
    begin_logging()
    bootstrap.allow_open_files()
    ended = _ended_by_signals()
    database = bootstrap.database_url(common.db)

    def work() -> None:
        store, registry = bootstrap.stores_of(common)
        services = bootstrap.services_of(common, store=store)
        with jobs.queueing_context(services, registry, settings, database=database, works=True):
            complain(f"qualab works as {services.runner} (Ctrl-C stops it)")
            ended.wait()

    _with_patience(work, ended, may_be_away=bootstrap.is_server(common.db))


def _with_patience(work: Callable[[], None], ended: threading.Event, *, may_be_away: bool) -> None:
    """Tries again where the database is away, slow or locked when the worker starts, as it does later."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return work()
        except (StoreUnavailable, StoreLocked) as error:
            if not may_be_away and isinstance(error, StoreUnavailable):
                raise
            complain(f"qualab: {error.message}; trying again in {pause_s:g} s")
            if ended.wait(pause_s):
                return None
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _ended_by_signals() -> threading.Event:
    """Set by SIGTERM and SIGINT, whatever the shell that started this has made of them."""
    ended = threading.Event()

    def end(_: int, __: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return ended


def _several(count: int, arguments: list[str]) -> int:
    """As many workers; all end when one does. Returns the first exit code that is not 0."""
    ended = _ended_by_signals()
    command = [sys.executable, "-m", "qualab", *arguments, "--concurrency", "1"]
    children = [subprocess.Popen(command) for _ in range(count)]
    while not ended.wait(LOOK_S) and all(child.poll() is None for child in children):
        pass
    for child in children:
        if child.poll() is None:
            child.terminate()
    return next((code for code in [child.wait() for child in children] if code), 0)

"""Starts the two servers of the embedded pair, waits until both answer, and stops them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from qualab.errors import InfrastructureError
from qualab.managed.embedded.models import EmbeddedModels
from qualab.managed.serving import is_healthy
from qualab.model.names import ArmName

Drafter = Literal["draft", "ngram", "off"]

MODEL_ALIAS = "smollm2"
SERVER_MODULE = "qualab.managed.embedded.server"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 5.0
LOG_TAIL_LINES = 12
MAX_THREADS = 4
WAITING_THREADS_SLEEP = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
"""Two servers share the cores; a thread that spins while it waits would take them from the other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    arm: ArmName
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def embedded_pair(
    models: EmbeddedModels,
    *,
    drafter: Drafter,
    log_dir: Path,
    parallel: int = 8,
    context: int = 2048,
    say: Callable[[str], None] = lambda _: None,
    start_timeout_s: float = START_TIMEOUT_S,
) -> Iterator[tuple[str, str]]:
    """Serves `models` twice on free ports of 127.0.0.1 and yields the API roots (baseline, candidate).

    The candidate drafts with `drafter`; all else is the same in both. Each answers `parallel` requests at a time, of
    at most `context` tokens, under the model name "smollm2". Logs go to `log_dir` as `baseline.log`
    and `candidate.log`. On leaving, both processes are stopped; they also end when this one is killed.
    Raises InfrastructureError with the end of the log when a server ends or is not ready after `start_timeout_s`.
    """
    # of this process, where the system tells; a container may be given less than the machine has
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(n_cores, MAX_THREADS)
    sizes = ("--parallel", str(parallel), "--context", str(context), "--threads", str(threads))
    with ExitStack() as stack:
        say("Starting two llama.cpp servers")
        baseline, candidate = (
            stack.enter_context(_started(arm, models, of_arm, sizes, log_dir))
            for arm, of_arm in ((ArmName.BASELINE, "off"), (ArmName.CANDIDATE, drafter))
        )
        deadline = time.monotonic() + start_timeout_s
        urls = (_ready(baseline, deadline=deadline), _ready(candidate, deadline=deadline))
        yield urls
        say("Stopping both servers")


@contextmanager
def _started(
    arm: ArmName, models: EmbeddedModels, drafter: str, sizes: tuple[str, ...], log_dir: Path
) -> Iterator[_Server]:
    log = log_dir / f"{arm}.log"
    command = [sys.executable, "-P", "-m", SERVER_MODULE, "--model", str(models.model), "--alias", MODEL_ALIAS]
    command += ["--drafter", drafter, "--draft-model", str(models.drafter), *sizes]
    try:
        with log.open("wb") as log_file:
            # its own session: Ctrl-C is for the run, which still has answers to take from the servers
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env=os.environ | WAITING_THREADS_SLEEP,
                start_new_session=True,
            )
    except OSError as exc:
        raise InfrastructureError(
            f"The {arm} server cannot be started: {exc.strerror or exc}", hint=f"Its log would be {log}"
        ) from exc
    try:
        yield _Server(arm=arm, process=process, log=log)
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _ready(server: _Server, *, deadline: float) -> str:
    """The API root, once the server has said its address and its /health answers 200."""
    address = _announced(server, deadline=deadline)
    parts = urlsplit(address)
    while not is_healthy((parts.hostname or "", parts.port or 80)):
        if server.process.poll() is not None or time.monotonic() > deadline:
            raise _not_ready(server)
        time.sleep(0.1)
    return f"{address}/v1"


def _announced(server: _Server, *, deadline: float) -> str:
    pipe = server.process.stdout
    assert pipe is not None
    line = b""
    while not line.endswith(b"\n"):
        # not select(), which takes no file beyond the 1,024th
        is_readable = wait([pipe.fileno()], max(0.0, deadline - time.monotonic()))
        piece = os.read(pipe.fileno(), 4096) if is_readable else b""
        if not piece:
            raise _not_ready(server)
        line += piece
    return line.decode().strip()


def _not_ready(server: _Server) -> InfrastructureError:
    try:
        code = server.process.wait(0.5)
        what = f"ended with code {code} before it was ready"
    except subprocess.TimeoutExpired:
        what = "did not get ready in time"
    lines = server.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return InfrastructureError(
        f"The {server.arm} server of the embedded pair {what}",
        hint="Its log ends:\n  " + "\n  ".join(lines or ["(empty)"]),
    )

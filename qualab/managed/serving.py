"""Starts servers, one an arm, waits until they are ready, and stops them."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from qualab.errors import InfrastructureError, InvalidValue, UsageError
from qualab.managed import keeper
from qualab.managed.pair import ServedPair
from qualab.model.names import ArmName

STOP_TIMEOUT_S = 20.0
"""How long a server may take to end by itself before it is killed."""
KEEPER_MARGIN_S = 5.0
ASK_EVERY_S = 0.25
LOG_TAIL_LINES = 20
LOG_TAIL_BYTES = 16_384
KILLED = 128 + signal.SIGKILL

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """How one arm's server is started, and where it is reached then."""

    arm: ArmName
    words: Sequence[str]
    env: Mapping[str, str]
    """Added to this process's."""
    address: tuple[str, int]
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One arm's server, held by its keeper."""

    arm: ArmName
    keeper: subprocess.Popen[bytes]
    pid: int
    """Of the server, and of the group that its children are in. 0 where it could not be started."""
    log: Path
    address: tuple[str, int]

    def check(self) -> None:
        """Raises InfrastructureError with the end of the log when the server has ended."""
        code = self.keeper.poll()
        if code is not None:
            why = " (killed: was there enough memory?)" if code == KILLED else ""
            raise self.failure(f"ended with code {code}{why}")

    def failure(self, what: str) -> InfrastructureError:
        """The error for what happened to it, with the end of its log."""
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        tail = "\n".join(f"  {line}" for line in lines or ["(empty)"])
        return InfrastructureError(f"The {self.arm} server {what}", hint=f"Its log {self.log} ends:\n{tail}")

    def is_ready(self) -> bool:
        """Whether /health answers 200."""
        connection = http.client.HTTPConnection(*self.address, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@contextmanager
def serve(
    pair: ServedPair,
    *,
    arms: Sequence[ArmName] = tuple(ArmName),
    say: Say = lambda _: None,
    stop_timeout_s: float = STOP_TIMEOUT_S,
) -> Iterator[tuple[Server, ...]]:
    """Serves these arms and yields when all of them are ready. One arm after the other on one device: call it twice.

    Each server's output goes to `pair.log_dir`, as `baseline.log` and `candidate.log`. Raises UsageError for a command
    or a port that cannot be used, and as `running` does.
    """
    if shutil.which(pair.command[0]) is None:
        raise UsageError(
            f"There is no program {pair.command[0]} to serve the pair with",
            hint="Install vLLM (qualab's extra `vllm`), or name its program: command: [path/to/vllm, serve]",
        )
    ports = [pair.placement(arm).port for arm in arms]
    if len(set(ports)) < len(ports):
        raise InvalidValue(f"Both servers would be on port {ports[0]}", hint="Give baseline and candidate a port each")
    for arm, port in zip(arms, ports, strict=True):
        _check_free(arm, pair.host, port)
    try:
        pair.log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"Cannot make the folder {pair.log_dir}: {exc.strerror}", hint="Set log_dir") from exc
    commands = [
        ServerCommand(
            arm=arm,
            words=[*pair.command, *pair.arguments(arm, host=pair.host, port=port)],
            env=pair.variables(arm),
            address=pair.reached_at(arm),
            log=pair.log_dir / f"{arm}.log",
        )
        for arm, port in zip(arms, ports, strict=True)
    ]
    with running(
        commands,
        ready_timeout_s=pair.ready_timeout,
        stop_timeout_s=stop_timeout_s,
        one_by_one=pair.shares_a_device,
        say=say,
    ) as servers:
        yield servers


def _check_free(arm: ArmName, host: str, port: int) -> None:
    """Now and not when vLLM finds out: it does so after loading the model, or not at all where ports may be shared."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that waits for late packets is no server
        try:
            probe.bind((host, port))
        except OSError as exc:
            raise UsageError(
                f"The {arm} server cannot have port {port} of {host}: {exc.strerror}",
                hint=f"Stop what listens there, or change {arm}.port",
            ) from exc


@contextmanager
def running(
    commands: Sequence[ServerCommand],
    *,
    ready_timeout_s: float,
    stop_timeout_s: float = STOP_TIMEOUT_S,
    one_by_one: bool = False,
    say: Say = lambda _: None,
) -> Iterator[tuple[Server, ...]]:
    """Starts the servers, all at once or `one_by_one`, and yields when all of them are ready.

    On leaving, each server and its children are asked to end and, after `stop_timeout_s`, killed. They also end when
    this process is killed: a keeper beside each server sees to that. (Should the keeper be killed, too, Linux still
    asks the server to end.) Raises InfrastructureError with the end of the log when a server ends or is not ready in
    time, UsageError where it cannot be started.
    """
    servers: list[Server] = []
    try:
        for command in commands:
            host, port = command.address
            say(f"starting the {command.arm} server (http://{host}:{port}/v1, log {command.log})")
            servers.append(_start(command, stop_timeout_s=stop_timeout_s))
            if one_by_one:
                _wait_until_ready(servers, timeout_s=ready_timeout_s)
        _wait_until_ready(servers, timeout_s=ready_timeout_s)
        say(f"ready: {', '.join(server.arm for server in servers)}")
        yield tuple(servers)
    finally:
        _stop(servers, timeout_s=stop_timeout_s, say=say)


def _start(command: ServerCommand, *, stop_timeout_s: float) -> Server:
    try:
        with command.log.open("wb") as log:
            # its own session: Ctrl-C is for this process, which still has answers to take from the servers
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", keeper.__name__],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
    except OSError as exc:
        what = f"Cannot start the {command.arm} server: {exc.strerror}"
        raise UsageError(what, hint=f"Its log would be {command.log}") from exc
    assert process.stdin is not None
    assert process.stdout is not None
    order = {"command": command.words, "env": command.env, "stop_timeout_s": stop_timeout_s}
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(order).encode() + b"\n")
        pid = int(process.stdout.readline() or 0)  # none where the keeper could not start it: then the log says why
    except BaseException:
        process.terminate()
        raise
    return Server(arm=command.arm, keeper=process, pid=pid, log=command.log, address=command.address)


def _wait_until_ready(servers: Sequence[Server], *, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    waiting = list(servers)
    while waiting := [server for server in waiting if not server.is_ready()]:
        for server in servers:
            server.check()
        if time.monotonic() > deadline:
            raise waiting[0].failure(f"was not ready after {timeout_s:g} s (ready_timeout)")
        time.sleep(ASK_EVERY_S)


def _stop(servers: Sequence[Server], *, timeout_s: float, say: Say) -> None:
    """All at once. One that had ended before is named: its log may say why a run failed."""
    for server in servers:
        if server.keeper.poll() is not None:
            say(f"the {server.arm} server had ended by itself, with code {server.keeper.returncode}: see {server.log}")
        server.keeper.terminate()
        if server.keeper.stdin is not None:
            server.keeper.stdin.close()
    for server in servers:
        try:
            server.keeper.wait(timeout_s + KEEPER_MARGIN_S)
        except subprocess.TimeoutExpired:  # the keeper hangs: do what it should have done
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.keeper.kill()
            server.keeper.wait()
        if server.keeper.stdout is not None:
            server.keeper.stdout.close()
    if servers:
        say(f"stopped: {', '.join(server.arm for server in servers)}")

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
from dataclasses import dataclass, field
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


@dataclass(slots=True, kw_only=True)
class Server:
    """One arm's server: how it is started, where it is reached, and the keeper that holds it."""

    arm: ArmName
    words: Sequence[str]
    env: Mapping[str, str]
    """Added to this process's."""
    address: tuple[str, int]
    log: Path
    keeper: subprocess.Popen[bytes] = field(init=False)
    pid: int = 0
    """Process id, and that of the group its children are in. 0 where it could not be started."""

    def start(self, *, stop_timeout_s: float) -> None:
        """Start the keeper, and the server in it. Raises UsageError."""
        try:
            with self.log.open("wb") as log:
                # its own session: Ctrl-C is for this process, which still has answers to take from the servers
                self.keeper = subprocess.Popen(
                    [sys.executable, "-P", "-m", keeper.__name__],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as exc:
            message = f"Cannot start the {self.arm} server: {exc.strerror}"
            raise UsageError(message, hint=f"Its log would be {self.log}") from exc
        assert self.keeper.stdin is not None
        assert self.keeper.stdout is not None
        order = {"command": self.words, "env": self.env, "stop_timeout_s": stop_timeout_s}
        try:
            with suppress(BrokenPipeError):
                self.keeper.stdin.write(json.dumps(order).encode() + b"\n")
            self.pid = int(self.keeper.stdout.readline() or 0)  # none where the server did not start: the log says why
        except BaseException:
            self.keeper.terminate()
            raise

    def check(self) -> None:
        """Raise InfrastructureError with the end of the log if the server has ended."""
        code = self.keeper.poll()
        if code is not None:
            reason = " (killed: was there enough memory?)" if code == KILLED else ""
            raise self.failure(f"ended with code {code}{reason}")

    def failure(self, event: str) -> InfrastructureError:
        """Describe what happened to it, with the end of its log."""
        lines = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        tail = "\n".join(f"  {line}" for line in lines or ["(empty)"])
        return InfrastructureError(f"The {self.arm} server {event}", hint=f"Its log {self.log} ends:\n{tail}")

    def is_ready(self) -> bool:
        """Tell whether /health answers 200."""
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
) -> Iterator[Sequence[Server]]:
    """Serve these arms; yield when all of them are ready.

    Each server's output goes to `pair.log_dir`, as `baseline.log` and `candidate.log`. Raises UsageError for a command
    or a port that cannot be used, and as `running`.
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
    servers = [
        Server(
            arm=arm,
            words=[*pair.command, *pair.arguments(arm, host=pair.host, port=port)],
            env=pair.variables(arm),
            address=pair.reached_at(arm),
            log=pair.log_dir / f"{arm}.log",
        )
        for arm, port in zip(arms, ports, strict=True)
    ]
    one_by_one = pair.shares_a_device
    with running(servers, pair.ready_timeout, stop_timeout_s, one_by_one=one_by_one, say=say):
        yield servers


def _check_free(arm: ArmName, host: str, port: int) -> None:
    # vLLM would find out after loading the model, or not at all where ports may be shared
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that waits for late packets is no server
        try:
            probe.bind((host, port))
        except OSError as exc:
            raise UsageError(
                f"The {arm} server cannot use port {port} of {host}: {exc.strerror}",
                hint=f"Stop what listens there, or change {arm}.port",
            ) from exc


@contextmanager
def running(
    servers: Sequence[Server],
    ready_timeout_s: float,
    stop_timeout_s: float,
    *,
    one_by_one: bool = False,
    say: Say = lambda _: None,
) -> Iterator[None]:
    """Start the servers, all at once or one by one, and stop them at the end.

    On leaving, each server and its children are asked to end and, after `stop_timeout_s`, killed. They also end when
    this process is killed: a keeper beside each server sees to that. (Should the keeper be killed, too, Linux still
    asks the server to end.) Raises InfrastructureError with the end of the log when a server ends or is not ready in
    time, UsageError where it cannot be started.
    """
    started: list[Server] = []
    try:
        for server in servers:
            host, port = server.address
            say(f"starting the {server.arm} server (http://{host}:{port}/v1, log {server.log})")
            server.start(stop_timeout_s=stop_timeout_s)
            started.append(server)
            if one_by_one:
                _wait_until_ready(started, timeout_s=ready_timeout_s)
        _wait_until_ready(started, timeout_s=ready_timeout_s)
        say(f"ready: {', '.join(server.arm for server in servers)}")
        yield
    finally:
        _stop(started, timeout_s=stop_timeout_s, say=say)


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
    # a server that had ended before is named: its log may say why a run failed
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

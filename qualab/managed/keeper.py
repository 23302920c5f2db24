"""A process that keeps one server: `python -m qualab.managed.keeper`, told on standard input what to start.

It ends the server and all that the server has started when it is told to (SIGTERM), when its standard input ends, as it
does however the process that started it ended, and when the server itself has ended and left others behind.
The server's process id is the one line on standard output; what the server prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NOT_STARTED = 127
KILL_ROUNDS = 100
PAUSE_S = 0.05


def main() -> None:
    """Keep the server; exit with its code (a signal's is 128 and its number)."""
    line = sys.stdin.buffer.readline()
    if not line:
        return
    order = json.loads(line)
    # a handler that raises could lose a server that is just being started: signals are read as bytes from a pipe
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in STOP_SIGNALS | {signal.SIGCHLD}:
        signal.signal(number, lambda *_: None)
    _on_linux(PR_SET_CHILD_SUBREAPER, 1)
    try:
        process = subprocess.Popen(
            order["command"],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env=os.environ | order["env"],
            start_new_session=True,
            # should the keeper itself be killed, Linux asks the server to end; its children are then left to itself
            preexec_fn=lambda: _on_linux(PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509 - one thread here
        )
    except OSError as exc:
        print(f"{order['command'][0]} cannot be started: {exc.strerror or exc}", file=sys.stderr)
        sys.exit(NOT_STARTED)
    print(process.pid, flush=True)
    while process.poll() is None:
        readable, _, _ = select.select([sys.stdin, woken], [], [])
        if sys.stdin in readable or STOP_SIGNALS.intersection(os.read(woken, 64)):
            break
    _end(process, grace_s=order["stop_timeout_s"])
    code = process.wait()
    sys.exit(code if code >= 0 else 128 - code)


def _on_linux(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _end(process: subprocess.Popen[bytes], *, grace_s: float) -> None:
    deadline = time.monotonic() + grace_s
    _signal_group(process, signal.SIGTERM)
    while _signal_group(process, 0) and time.monotonic() < deadline:
        if process.poll() is not None:
            _reap_adopted()  # a process that has ended counts as a member until somebody has waited for it
        time.sleep(PAUSE_S)
    _signal_group(process, signal.SIGKILL)
    process.wait()
    # what left the server's group is, on Linux, the keeper's own child once its parents have ended
    for _ in range(KILL_ROUNDS):
        _reap_adopted()
        try:
            left = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        except OSError:
            return
        if not left:
            return
        for pid in left:
            os.kill(int(pid), signal.SIGKILL)
        time.sleep(PAUSE_S)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> bool:
    # tells whether there was anyone to signal; the group's number stays taken while it has a member
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _reap_adopted() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()

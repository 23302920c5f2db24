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

TOLD_TO_STOP = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NOT_STARTED = 127
KILL_ROUNDS = 100
PAUSE_S = 0.05


def main() -> None:
    """Exits with the server's code; a signal's is 128 and its number."""
    line = sys.stdin.buffer.readline()
    if not line:
        return
    order = json.loads(line)
    woken = _signals_as_bytes()
    _on_linux(PR_SET_CHILD_SUBREAPER, 1)
    try:
        process = subprocess.Popen(
            order["command"],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env=os.environ | order["env"],
            start_new_session=True,
            preexec_fn=_end_with_the_keeper,  # noqa: PLW1509 - this process has one thread
        )
    except OSError as exc:
        print(f"{order['command'][0]} cannot be started: {exc.strerror or exc}", file=sys.stderr)
        sys.exit(NOT_STARTED)
    print(process.pid, flush=True)
    _wait_for_a_reason(process, woken)
    _end(process, grace_s=order["stop_timeout_s"])
    code = process.wait()
    sys.exit(code if code >= 0 else 128 - code)


def _signals_as_bytes() -> int:
    """Where every signal's number can be read: a handler that raises could lose a server that is just being started."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in TOLD_TO_STOP | {signal.SIGCHLD}:
        signal.signal(number, lambda *_: None)
    return woken


def _end_with_the_keeper() -> None:
    """Should the keeper itself be killed, Linux asks the server to end. Its children are then left to itself."""
    _on_linux(PR_SET_PDEATHSIG, signal.SIGTERM)


def _on_linux(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _wait_for_a_reason(process: subprocess.Popen[bytes], woken: int) -> None:
    while process.poll() is None:
        readable, _, _ = select.select([sys.stdin, woken], [], [])
        if sys.stdin in readable or TOLD_TO_STOP.intersection(os.read(woken, 64)):
            return


def _end(process: subprocess.Popen[bytes], *, grace_s: float) -> None:
    deadline = time.monotonic() + grace_s
    _signal_group(process, signal.SIGTERM)
    while _has_members(process) and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    _signal_group(process, signal.SIGKILL)
    process.wait()
    _kill_adopted()


def _has_members(process: subprocess.Popen[bytes]) -> bool:
    """A process that has ended counts as a member until somebody has waited for it."""
    if process.poll() is not None:
        _reap_adopted()
    return _signal_group(process, 0)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> bool:
    """Whether there was anyone to signal. The group's number stays taken while it has a member."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _kill_adopted() -> None:
    """Ends what left the server's group. On Linux it is the keeper's own child once its parents have ended."""
    for _ in range(KILL_ROUNDS):
        _reap_adopted()
        if not (left := _children()):
            return
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)


def _children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def _reap_adopted() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()

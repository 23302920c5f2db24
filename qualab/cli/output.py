"""Output whose reader may leave, or that finds no room: a command still ends as it would have."""

from __future__ import annotations

import errno
import getpass
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TextIO

from qualab.errors import InfrastructureError, InsufficientData, PairDiffers, QualabError, UsageError
from qualab.model.names import Verdict
from qualab.model.wording import visible_text

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class _Lasting(TextIOWrapper):
    """Output that outlives its reader: what nobody reads is dropped, and the command goes on to its own exit code.

    Left alone, Typer ends a command at the first unread line with 1, and the interpreter at its end with 120.
    """

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            silence(self)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            silence(self)


def keep_meaning() -> None:
    """Keeps a command's output, and its exit code, from changing with where the output goes.

    Characters that the output's encoding lacks are written as escapes: a lost minus would change a number.
    """
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed: the next file or socket would take its number
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
        elif name != "stdin" and type(stream) is TextIOWrapper:
            kept = {one: getattr(stream, one) for one in ("encoding", "line_buffering", "write_through")}
            lasting = _Lasting(stream.detach(), errors="backslashreplace", **kept)
            setattr(sys, name, lasting)
            setattr(sys, f"__{name}__", lasting)  # the terminal's width is asked of it


def program() -> str:
    """What to type for `qualab` where this process was started: its path, if the shell would find none or another."""
    called = Path(sys.argv[0])
    found = shutil.which("qualab")
    is_found = found is not None and Path(found).resolve() == called.resolve()
    return "qualab" if called.name != "qualab" or is_found else sys.argv[0]


def is_unicode(stream: TextIO) -> bool:
    """Whether the stream's encoding has every character."""
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")


def silence(stream: IO[str]) -> None:
    """Drops what is still to be written, the buffer too."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say_unwritten(error: OSError) -> None:
    """Says on the error output why there is no output, except to a reader that has left."""
    silence(sys.stdout)
    if not isinstance(error, BrokenPipeError):
        complain(f"qualab: {error.filename or 'the output'} cannot be written: {error.strerror}")


def complain(text: str) -> None:
    """A line on the error output, if anybody reads it. What came from elsewhere commands no terminal."""
    try:
        print(visible_text(text), file=sys.stderr)
    except OSError:
        silence(sys.stderr)


@contextmanager
def output_may_fail() -> Iterator[None]:
    """For output after which a command has more to do, or an exit code of its own."""
    try:
        yield
    except OSError as error:
        say_unwritten(error)


INTERRUPTED = 130
UNEXPECTED = 5

OF_VERDICT = {
    Verdict.EQUIVALENT: 0,
    Verdict.NON_INFERIOR: 0,
    Verdict.REGRESSION: 1,
    Verdict.IMPROVEMENT: 3,
    Verdict.INCONCLUSIVE: 3,
    Verdict.NOT_TESTED: 3,
    Verdict.INVALID: 4,
}

OF_ERROR: tuple[tuple[type[QualabError], int], ...] = (
    (UsageError, 2),
    (InsufficientData, 2),
    (PairDiffers, 4),
    (InfrastructureError, 5),
    (QualabError, UNEXPECTED),
)


def of_error(error: QualabError) -> int:
    """The exit code of the first class in the table that fits."""
    return next(code for kind, code in OF_ERROR if isinstance(error, kind))


def who() -> str:
    """As "user@host"."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # no name for this user id, as in many containers
        name = "unknown"
    return f"{name}@{socket.gethostname()}"

"""Output in the width that there is, whose reader may leave or that finds no room; and exit codes."""

from __future__ import annotations

import errno
import getpass
import os
import shutil
import socket
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TextIO

from qualab.errors import InfrastructureError, InsufficientData, PairDiffers, QualabError, UsageError
from qualab.model.names import Verdict
from qualab.model.wording import visible_text

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
UNBOUNDED = 160
"""Where the output is a file or a pipe."""
NARROWEST_NOTE = 20
_KEPT = "\N{NO-BREAK SPACE}"

Column = tuple[str, Sequence[str]]
"""A header and its cells."""


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


def terminal_width() -> int:
    """Characters of a line; a fixed number where the output is no terminal."""
    return shutil.get_terminal_size((UNBOUNDED, 24)).columns if sys.stdout.isatty() else UNBOUNDED


def wrapped(line: str, width: int, *, first: str = "", then: str = "  ") -> str:
    """A paragraph; a number stays with its unit."""
    kept = line.replace(" %", f"{_KEPT}%").replace(" pp", f"{_KEPT}pp")
    return textwrap.fill(
        kept, width, initial_indent=first, subsequent_indent=then, break_on_hyphens=False, break_long_words=False
    ).replace(_KEPT, " ")


def annotated(lines: Iterable[tuple[str, str, str]], width: int) -> str:
    """A label, a value and what it means, a line each; a note that is too long goes on below its beginning."""
    rows = list(lines)
    label, value = (max(len(row[column]) for row in rows) for column in (0, 1))
    beside = label + value + 6
    then = beside if width - beside >= NARROWEST_NOTE else 4
    heads = (f"  {row[0]:<{label}}  {row[1]:>{value}}" for row in rows)
    return "\n".join(
        wrapped(row[2], width, first=f"{head}  ", then=" " * then) if row[2] else head.rstrip()
        for head, row in zip(heads, rows, strict=True)
    )


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Aligned columns, the first to the left, the others to the right."""
    rows = [tuple(head), *lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    )


def table_in_parts(columns: Sequence[Column], width: int) -> str:
    """One table, or as many below each other as the width asks for, each with the first column."""
    names, *others = columns
    parts = [[names]]
    for column in others:
        if len(parts[-1]) > 1 and _width([*parts[-1], column]) > width:
            parts.append([names])
        parts[-1].append(column)
    return "\n\n".join(_aligned(part) for part in parts)


def _aligned(columns: Sequence[Column]) -> str:
    return table([name for name, _ in columns], list(zip(*(cells for _, cells in columns), strict=True)))


def _width(columns: Sequence[Column]) -> int:
    return max(map(len, _aligned(columns).splitlines()))

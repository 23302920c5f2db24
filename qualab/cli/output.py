"""Print results, to a reader that may leave or a disk that may be full; and exit codes."""

from __future__ import annotations

import errno
import getpass
import json
import os
import re
import shutil
import socket
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from qualab.errors import UsageError
from qualab.model.wording import visible_text

INTERRUPTED = 130
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
UNBOUNDED = 160
"""Characters of a line where the output is a file or a pipe."""
NARROWEST_NOTE = 20
NO_BREAK = "\N{NO-BREAK SPACE}"


class Format(StrEnum):
    """Form of a printed result."""

    TEXT = "text"
    JSON = "json"


OutputFormat = Annotated[Format, typer.Option("--format", help="text for people, json for machines.")]


class _LastingOutput(TextIOWrapper):
    """Output that drops what nobody reads any more, so that the command goes on to its own exit code.

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
    """Keep a command's output, and its exit code, from changing with where the output goes.

    Characters that the output's encoding lacks are written as escapes: a lost minus would change a number.
    """
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed: the next file or socket would take its number
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
        elif name != "stdin" and type(stream) is TextIOWrapper:
            settings = {part: getattr(stream, part) for part in ("encoding", "line_buffering", "write_through")}
            lasting = _LastingOutput(stream.detach(), errors="backslashreplace", **settings)
            setattr(sys, name, lasting)
            setattr(sys, f"__{name}__", lasting)  # the terminal's width is asked of it


def silence(stream: IO[str]) -> None:
    """Drop what is still to be written, the buffer too."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say_unwritten(error: OSError) -> None:
    """Say on the error output why there is no output, except to a reader that has left."""
    silence(sys.stdout)
    if not isinstance(error, BrokenPipeError):
        complain(f"qualab: {error.filename or 'the output'} cannot be written: {error.strerror}")


def complain(text: str) -> None:
    """Print a line on the error output, if anybody reads it. Text from elsewhere cannot command the terminal."""
    try:
        print(visible_text(text), file=sys.stderr)
    except OSError:
        silence(sys.stderr)


@contextmanager
def output_may_fail() -> Iterator[None]:
    """Let a command go on, to more work or an exit code of its own, where its output cannot be written."""
    try:
        yield
    except OSError as error:
        say_unwritten(error)


def print_json(value: Any) -> None:
    """Print indented JSON, in ASCII where the output's encoding lacks characters."""
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    print(json.dumps(value, indent=2, ensure_ascii=not is_unicode))


def print_as(output_format: Format, value: Any, print_text: Callable[[], object]) -> None:
    """Print a value as JSON, in which every reason has its sentence, or call what prints it as text."""
    if output_format is Format.TEXT:
        print_text()
    else:
        from qualab.report.words import shown

        print_json(shown(value))


def write_file(path: Path, content: str | bytes, *, hint: str = "") -> None:
    """Write a file whole or not at all: half a report could be taken for one. Raises UsageError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.exists() and not path.is_file():  # a device, as /dev/stdout
            path.write_bytes(data)
            return
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as exc:
        beside.unlink(missing_ok=True)
        raise UsageError(f"Cannot write {path}: {exc.strerror}", hint=hint) from exc


def who() -> str:
    """Name the caller as "user@host"."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # no name for this user id, as in many containers
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


def terminal_width() -> int:
    """Count the characters of a line; a fixed number where the output is no terminal."""
    return shutil.get_terminal_size((UNBOUNDED, 24)).columns if sys.stdout.isatty() else UNBOUNDED


def wrapped(line: str, width: int, *, first: str = "", then: str = "  ") -> str:
    """Wrap a paragraph; a number stays with its unit."""
    unbroken = re.sub(" (?=%|pp)", NO_BREAK, line)
    wrapper = textwrap.TextWrapper(width, first, then, break_on_hyphens=False, break_long_words=False)
    return wrapper.fill(unbroken).replace(NO_BREAK, " ")


def annotated(lines: Iterable[tuple[str, str, str]], width: int) -> str:
    """Align labels, values and what they mean; a note that is too long goes on below its beginning."""
    rows = list(lines)
    label, value = (max(len(row[column]) for row in rows) for column in (0, 1))
    beside = label + value + 6
    then = beside if width - beside >= NARROWEST_NOTE else 4
    heads = (f"  {row[0]:<{label}}  {row[1]:>{value}}" for row in rows)
    return "\n".join(
        wrapped(row[2], width, first=f"{head}  ", then=" " * then) if row[2] else head.rstrip()
        for head, row in zip(heads, rows, strict=True)
    )

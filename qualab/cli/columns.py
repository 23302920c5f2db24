"""Plain text in the width that there is: paragraphs, notes beside values, tables in parts."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

UNBOUNDED = 160
"""Where the output is a file or a pipe."""
NARROWEST_NOTE = 20
_KEPT = "\N{NO-BREAK SPACE}"

Column = tuple[str, Sequence[str]]
"""A header and its cells."""


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

"""Text and tables in the width that there is."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2
"""Between two columns of a table without a box and outer edges, whose cells have a space on both sides."""


def print_hanging(console: Console, text: str, *, indent: int = 0, hang: int = 2, style: str | None = None) -> None:
    """One paragraph: `indent` spaces before its first line, `hang` more before those that follow."""
    lines = textwrap.wrap(
        text,
        width=console.width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_on_hyphens=False,
        break_long_words=False,
    )
    for line in lines or [""]:
        console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def beside(mark: Text, text: str) -> Table:
    """A mark, and text in a column of its own after it."""
    table = Table.grid(padding=(0, 1))
    table.add_row(mark, Text(text))
    return table


def fits(console: Console, table: Table) -> bool:
    """Whether every cell has room. rich measures a table as well, in the time of printing it."""
    widths = [max(column.min_width or 0, *map(_width, (column.header, *column.cells))) for column in table.columns]
    return sum(widths) + GAP * (len(widths) - 1) <= console.width


def _width(cell: object) -> int:
    return max(map(cell_len, str(cell).splitlines()), default=0)


def fit_columns(
    console: Console, build: Callable[[Sequence[str]], Table], columns: Sequence[str], *, dropped_first: Sequence[str]
) -> Table | None:
    """The table with as many of `columns` as the console has room for; None where it is too wide without those, too."""
    left = list(columns)
    for name in (None, *dropped_first):
        left = [one for one in left if one != name]
        table = build(left)
        if fits(console, table):
            return table
    return None


def headers(table: Table) -> list[str]:
    """The names of the columns that a table has."""
    return [str(column.header) for column in table.columns]

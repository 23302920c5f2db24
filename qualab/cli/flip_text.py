"""What a terminal shows of flipped items: both answers around the place where they begin to differ."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qualab.app.flips import Flip, Flips
from qualab.domain.text import line_text

BEFORE, AFTER = 60, 160
"""Characters of an answer that are shown before and after its first difference."""
SIDE_BY_SIDE = 120
"""Columns from which on the answers stand side by side."""
_LONGEST_MARK = 24


def print_flips(console: Console, found: Flips) -> None:
    """A summary, then each item."""
    if not found.n_losses + found.n_gains:
        console.print("No item flipped.")
        return
    total = found.n_losses + found.n_gains
    shown = "" if len(found.shown) == total else f"; {len(found.shown)} shown (--limit)"
    console.print(f"{found.n_losses} lost, {found.n_gains} gained by the candidate{shown}", highlight=False)
    for flip in found.shown:
        console.print()
        _print_flip(console, flip)


def _print_flip(console: Console, flip: Flip) -> None:
    repeat = f", repeat {flip.repeat}" if flip.repeat else ""
    head = Text.assemble(
        ("lost" if flip.is_loss else "gained", "bold red" if flip.is_loss else "bold green"),
        f"  {visible(flip.item)}{repeat}  {visible(flip.metric.partition('/')[2])}: {flip.scores[0]:g} to "
        f"{flip.scores[1]:g}",
    )
    console.print(head)
    console.print(Text(f"  right: {visible(flip.target[:200])}", style="dim"))
    if not any(flip.answers):  # a table of scores has none
        return
    if flip.first_difference is None:
        console.print(Text(f"  both : {visible(flip.answers[0][:AFTER])} (the same text)"))
        return
    off, on = (around(text, flip.first_difference) for text in flip.answers)
    token = "" if flip.first_token is None else f", token {flip.first_token:,}"
    console.print(Text(f"  first difference at character {flip.first_difference:,}{token}", style="dim"))
    if console.width >= SIDE_BY_SIDE:
        table = Table(box=None, pad_edge=False, padding=(0, 2), show_header=False, expand=True)
        table.add_column(ratio=1, overflow="fold")
        table.add_column(ratio=1, overflow="fold")
        table.add_row(Text.assemble("  baseline: ", off), Text.assemble("candidate: ", on))
        console.print(table)
    else:
        for name, text in (("baseline ", off), ("candidate", on)):
            console.print(Text.assemble(f"  {name}: ", text))


def around(text: str, place: int) -> Text:
    """The part of an answer around a place, with what stands there marked by [[ ]]."""
    start = max(0, place - BEFORE)
    marked = place + _mark_length(text[place:])
    end = min(len(text), place + AFTER)
    before, after = visible(text[start:place]), visible(text[marked:end])
    mark = visible(text[place:marked]) or "(end)"
    return Text.assemble(
        "..." if start else "", before, (f"[[{mark}]]", "bold reverse"), after, "..." if end < len(text) else ""
    )


def _mark_length(text: str) -> int:
    """To the end of the word that begins here: at least a character, as far as there is one."""
    word = text[:_LONGEST_MARK].split()
    if not text or not word or text[0].isspace():
        return min(1, len(text))
    return len(word[0])


def visible(text: str) -> str:
    """Text that a model wrote, on one line and safe for a terminal."""
    return line_text(text)

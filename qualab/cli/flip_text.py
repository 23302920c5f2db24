"""What a terminal shows of flipped items: both answers around the place where they begin to differ."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qualab.analysis.flips import Flips, Pair, TextPairs
from qualab.model.names import ArmName
from qualab.model.wording import line_text

BEFORE, AFTER = 60, 160
"""Characters of an answer that are shown before and after its first difference."""
SIDE_BY_SIDE = 120
"""Columns from which on the answers stand side by side."""
_LONGEST_MARK = 24


def print_flips(console: Console, found: Flips, *, n_other_texts: int = 0) -> None:
    """A summary, then each item. `n_other_texts`: pairs whose texts differ all the same."""
    if not found.n_losses + found.n_gains:
        others = f" {n_other_texts} pairs have other texts and the same score (--texts)." if n_other_texts else ""
        console.print(f"No item flipped.{others}", highlight=False)
        return
    total = found.n_losses + found.n_gains
    shown = "" if len(found.shown) == total else f"; {len(found.shown)} shown (--limit)"
    console.print(f"{found.n_losses} lost, {found.n_gains} gained by the candidate{shown}", highlight=False)
    for flip in found.shown:
        change = ("lost", "bold red") if flip.is_loss else ("gained", "bold green")
        scores = f"{visible(flip.metric.partition('/')[2])}: {flip.scores[0]:g} to {flip.scores[1]:g}"
        _print_pair(console, flip, Text.assemble(change, f"  {_item(flip)}  {scores}"))


def print_text_pairs(console: Console, found: TextPairs, *, leaks: bool) -> None:
    """A summary, then each pair; `leaks`: those of which a text leaks."""
    what = "in which an answer leaks" if leaks else "with other texts and the same score"
    if not found.n_pairs:
        console.print(f"No pair {what}.")
        return
    shown = "" if len(found.shown) == found.n_pairs else f"; {len(found.shown)} shown (--limit)"
    console.print(f"{found.n_pairs} pairs {what}{shown}", highlight=False)
    for pair in found.shown:
        kinds = (
            f"{arm}: {', '.join(kind.replace('_', ' ') for kind in own)}"
            for arm, own in zip(ArmName, pair.leaks, strict=True)
            if own
        )
        _print_pair(console, pair, Text("  ".join((_item(pair), *kinds))))


def _item(pair: Pair) -> str:
    return f"{visible(pair.item)}{f', repeat {pair.repeat}' if pair.repeat else ''}"


def _print_pair(console: Console, pair: Pair, head: Text) -> None:
    console.print()
    console.print(head)
    console.print(Text(f"  right: {visible(pair.target[:200])}", style="dim"))
    if not any(pair.answers):  # a table of scores has none
        return
    if pair.first_difference is None:
        console.print(Text(f"  both : {visible(pair.answers[0][:AFTER])} (the same text)"))
        return
    off, on = (around(text, pair.first_difference) for text in pair.answers)
    token = "" if pair.first_token is None else f", token {pair.first_token:,}"
    console.print(Text(f"  first difference at character {pair.first_difference:,}{token}", style="dim"))
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

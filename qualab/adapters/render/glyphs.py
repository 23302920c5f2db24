"""Which characters the report's fonts can show; what none of them has is named by its code instead."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from qualab.adapters.render.fonts import number_of, ordered_files

SURE = ((0x20, 0x7E), (0xA0, 0xFF), (0x3000, 0x3002), (0x3131, 0x318E), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3))
"""Latin, Korean and the common ideographs. What is here needs no look into the fonts, which takes 0.2 s."""
SIGNS = frozenset("αβδψΔ–—‘’“”†•…‹›←→−≈≠≤≥□▼✓⏎␣")
"""Further ones that reports themselves have."""
KEPT = frozenset("\n\t\u200b\u200d\ufe0f")
"""Without a shape of their own."""


def shown(text: str) -> str:
    """The text with every character that no font has as its code, as "‹U+12000›"."""
    if all(_is_sure(character) for character in text):
        return text
    return "".join(character if _is_shown(character) else code_of(character) for character in text)


def only_sure(text: str) -> str:
    """The text with everything named by its code that is not plainly there."""
    return "".join(character if _is_sure(character) else code_of(character) for character in text)


def code_of(character: str) -> str:
    """As "‹U+12000›"."""
    return f"‹U+{ord(character):04X}›"


def _is_shown(character: str) -> bool:
    return _is_sure(character) or ord(character) in _known()


def _is_sure(character: str) -> bool:
    code = ord(character)
    return character in KEPT or character in SIGNS or any(first <= code <= last for first, last in SURE)


@cache
def _known() -> frozenset[int]:
    return frozenset(code for path in ordered_files() for code in characters(path))


def characters(path: Path) -> Iterator[int]:
    """Every character that a file's font has."""
    from fontTools.ttLib import TTFont  # noqa: PLC0415  seldom needed

    with TTFont(path, fontNumber=number_of(path), lazy=True) as font:
        yield from font.getBestCmap()

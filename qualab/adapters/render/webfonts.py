"""The report's fonts inside its page, cut down to the characters that it has: it looks the same without any of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from functools import cache

from fontTools import subset
from fontTools.ttLib import TTFont

from qualab.adapters.render.fonts import number_of, ordered_files

FAMILY = "Report"


def faces(text: str) -> str:
    """Style sheet rules that hold the fonts of these characters, each character in the first font that has it."""
    return "\n".join(_faces({ord(character) for character in text if not character.isspace()}))


@cache
def korean_font() -> bytes:
    """The font of Korean text, for machines that have none: the syllables of KS X 1001, letters, punctuation."""
    path = next(one for one in ordered_files() if one.suffix == ".ttc")
    font = TTFont(path, fontNumber=number_of(path), lazy=True, recalcTimestamp=False)
    return _cut(font, sorted(_korean() & font.getBestCmap().keys()), is_large=True)


def _korean() -> set[int]:
    rows = (bytes((row, cell)) for row in range(0xB0, 0xC9) for cell in range(0xA1, 0xFF))
    return {ord(one.decode("euc-kr")) for one in rows} | set(range(0x3000, 0x3040)) | set(range(0x3131, 0x3164))


def _faces(wanted: set[int]) -> Iterator[str]:
    for path in ordered_files():
        if not wanted:
            return
        font = TTFont(path, fontNumber=number_of(path), lazy=True, recalcTimestamp=False)
        found = sorted(wanted & font.getBestCmap().keys())
        if found:
            wanted = wanted.difference(found)
            yield _face(_cut(font, found, is_large=path.suffix == ".ttc"), found)


def _cut(font: TTFont, codes: list[int], *, is_large: bool) -> bytes:
    """The font with these characters alone, compressed. The large one needs no shaping for what it has."""
    options = subset.Options(hinting=False, name_IDs=[], notdef_outline=True)
    if is_large:
        options.layout_features = []
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=codes)
    cutter.subset(font)
    font.flavor = "woff"
    out = io.BytesIO()
    font.save(out)
    return out.getvalue()


def _face(content: bytes, codes: list[int]) -> str:
    ranges = ", ".join(f"U+{first:X}-{last:X}" if last > first else f"U+{first:X}" for first, last in _runs(codes))
    data = base64.b64encode(content).decode()
    source = f"url(data:font/woff;base64,{data}) format('woff')"
    return f"@font-face {{ font-family: {FAMILY}; font-weight: 100 900; src: {source}; unicode-range: {ranges}; }}"


def _runs(codes: list[int]) -> Iterator[tuple[int, int]]:
    """Neighbours together, as (first, last)."""
    first = last = codes[0]
    for code in codes[1:]:
        if code != last + 1:
            yield first, last
            first = code
        last = code
    yield first, last

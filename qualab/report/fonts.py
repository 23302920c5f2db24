"""The fonts that reports are set in: Noto, from packages, never from the machine."""

from __future__ import annotations

import base64
from collections.abc import Collection
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from unicodedata import combining

import uharfbuzz as hb

from qualab.errors import InfrastructureError

PACKAGES = ("manimgx_fonts_cjk", "manimgx_fonts")
FAMILIES = ("Noto Sans", "Noto Sans CJK KR", "Noto Sans Symbols", "Noto Emoji")
"""Tried in this order for each character, before the fonts of other scripts."""
FAMILY = "Report"
KEPT = frozenset("\n\t\u200b\u200d\ufe0f")
"""Characters without a shape of their own."""
UNUSED = ("BASE", "GPOS", "GSUB", "STAT", "VORG", "VVAR", "vhea", "vmtx")
"""Tables that text in horizontal lines of syllables does without."""


@cache
def folders() -> tuple[Path, ...]:
    """Return where the packages keep their fonts. Raises InfrastructureError where one is not installed."""
    specs = {package: find_spec(package) for package in PACKAGES}
    if missing := [package for package, spec in specs.items() if spec is None]:
        raise InfrastructureError(f"The fonts of {', '.join(missing)} are missing", hint="Reinstall qualab")
    return tuple(Path(spec.origin).parent for spec in specs.values() if spec and spec.origin)


@cache
def fonts() -> tuple[hb.Face, ...]:
    """Open every font, those of the families in their order, then those of other scripts by name. No italics."""
    files = [path for folder in folders() for path in folder.iterdir() if path.suffix in (".ttf", ".otf", ".ttc")]
    first = ("NotoSans[", "NotoSansCJK", "NotoSansSymbols", "NotoEmoji")

    def order(path: Path) -> tuple[int, str]:
        return next((place for place, name in enumerate(first) if path.name.startswith(name)), len(first)), path.name

    # of the collection of Chinese, Japanese and Korean fonts the Korean one
    return tuple(
        hb.Face(hb.Blob.from_file_path(str(path)), 1 if path.suffix == ".ttc" else 0)
        for path in sorted(files, key=order)
        if "Italic" not in path.name
    )


@cache
def _known(n_fonts: int | None) -> frozenset[str]:
    return frozenset(chr(code) for face in fonts()[:n_fonts] for code in face.unicodes)


def shown(text: str, *, is_plain: bool = False) -> str:
    """Name every character that no font has by its code, as "‹U+12000›".

    Plainly, everything beyond Latin, Korean and ideographs is named, and every combining mark.
    """
    known = _known(2 if is_plain else None)

    def is_shown(one: str) -> bool:
        return " " <= one <= "~" or one in KEPT or (one in known and not (is_plain and combining(one)))

    return "".join(one if is_shown(one) else f"‹U+{ord(one):04X}›" for one in text)


@cache
def korean_font() -> bytes:
    """Cut the Korean font for machines that have none: syllables of KS X 1001, letters, punctuation."""
    rows = (bytes((row, cell)) for row in range(0xB0, 0xC9) for cell in range(0xA1, 0xFF))
    korean = {ord(one.decode("euc-kr")) for one in rows} | set(range(0x3000, 0x3040)) | set(range(0x3131, 0x3164))
    return _cut(fonts()[1], korean & set(fonts()[1].unicodes), is_large=True)


def faces(text: str) -> str:
    """Write style sheet rules that hold the fonts of these characters, each character in the first that has it."""
    left, rules = {ord(character) for character in text if not character.isspace()}, []
    for place, face in enumerate(fonts()):
        if own := left & set(face.unicodes):
            left -= own
            content = base64.b64encode(_cut(face, own, is_large=place == 1)).decode()
            source = f"url(data:font/otf;base64,{content})"
            ranges = ", ".join(f"U+{code:X}" for code in sorted(own))
            look = f"font-family: {FAMILY}; font-weight: 100 900"
            rules.append(f"@font-face {{ {look}; src: {source}; unicode-range: {ranges}; }}")
    return "\n".join(rules)


def _cut(face: hb.Face, codes: Collection[int], *, is_large: bool) -> bytes:
    subset = hb.SubsetInput()
    subset.flags = hb.SubsetFlags.NO_HINTING | hb.SubsetFlags.NOTDEF_OUTLINE
    subset.unicode_set.update(codes)
    subset.name_id_set.clear()
    if is_large:
        subset.layout_feature_tag_set.clear()
        subset.drop_table_tag_set.update(int.from_bytes(tag.encode()) for tag in UNUSED)
    data: bytes = hb.subset(face, subset).blob.data
    return data

"""The fonts that reports are set in: Noto, from packages, never from the machine."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Collection, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import uharfbuzz as hb

from qualab.errors import RenderError

PACKAGES = ("manimgx_fonts_cjk", "manimgx_fonts")
FAMILIES = ("Noto Sans", "Noto Sans CJK KR", "Noto Sans Symbols", "Noto Emoji")
"""Asked in this order for each character, before the fonts of other scripts."""
_FIRST = ("NotoSans[", "NotoSansCJK", "NotoSansSymbols", "NotoEmoji")
"""How the names of their files begin."""
_KOREAN = 1
"""The place of the Korean font in the collection."""


@cache
def folders() -> tuple[Path, ...]:
    """Where the packages keep their fonts. Raises RenderError where one is not installed."""
    return tuple(map(_folder, PACKAGES))


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise RenderError(f"The fonts of {package} are missing", hint="Reinstall qualab")
    return Path(spec.origin).parent


def ordered_files() -> list[Path]:
    """Every file, those of the families in their order, then those of other scripts by name. No italics."""
    files = [path for folder in folders() for path in folder.iterdir() if path.suffix in (".ttf", ".otf", ".ttc")]
    return sorted((path for path in files if "Italic" not in path.name), key=_order)


def _order(path: Path) -> tuple[int, str]:
    return next((place for place, name in enumerate(_FIRST) if path.name.startswith(name)), len(_FIRST)), path.name


def number_of(path: Path) -> int:
    """Which font of a file: of a collection the Korean one."""
    return _KOREAN if path.suffix == ".ttc" else -1


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


FAMILY = "Report"
UNUSED = ("BASE", "GPOS", "GSUB", "STAT", "VORG", "VVAR", "vhea", "vmtx")
"""Tables that text in horizontal lines of syllables does without."""


def faces(text: str) -> str:
    """Style sheet rules that hold the fonts of these characters, each character in the first font that has it."""
    return "\n".join(_faces({ord(character) for character in text if not character.isspace()}))


@cache
def korean_font() -> bytes:
    """WOFF: the font of Korean text, for machines that have none. Syllables of KS X 1001, letters, punctuation."""
    path = next(one for one in ordered_files() if one.suffix == ".ttc")
    face = _face(path)
    return _cut(face, _korean() & set(face.unicodes), is_large=True)


def _korean() -> set[int]:
    rows = (bytes((row, cell)) for row in range(0xB0, 0xC9) for cell in range(0xA1, 0xFF))
    return {ord(one.decode("euc-kr")) for one in rows} | set(range(0x3000, 0x3040)) | set(range(0x3131, 0x3164))


def _faces(wanted: set[int]) -> Iterator[str]:
    for path in ordered_files():
        if not wanted:
            return
        face = _face(path)
        found = sorted(wanted & set(face.unicodes))
        if found:
            wanted = wanted.difference(found)
            yield _rule(_cut(face, found, is_large=path.suffix == ".ttc"), found)


def _face(path: Path) -> hb.Face:
    return hb.Face(hb.Blob.from_file_path(str(path)), max(number_of(path), 0))


def _cut(face: hb.Face, codes: Collection[int], *, is_large: bool) -> bytes:
    """The font with these characters alone, as WOFF. The large one needs no shaping for what it has."""
    wanted = hb.SubsetInput()
    wanted.flags = hb.SubsetFlags.NO_HINTING | hb.SubsetFlags.NOTDEF_OUTLINE
    wanted.unicode_set.update(codes)
    wanted.name_id_set.clear()
    if is_large:
        wanted.layout_feature_tag_set.clear()
        wanted.drop_table_tag_set.update(int.from_bytes(tag.encode()) for tag in UNUSED)
    return _woff(hb.subset(face, wanted).blob.data)


def _woff(font: bytes) -> bytes:
    """An OpenType font with its tables compressed (WOFF File Format 1.0, W3C 2012, sections 3 to 5)."""
    flavor, n_tables = struct.unpack(">4sH", font[:6])
    head = 44 + 20 * n_tables
    entries, tables, size = b"", b"", 12 + 16 * n_tables
    for place in range(12, 12 + 16 * n_tables, 16):
        tag, checksum, offset, length = struct.unpack(">4sLLL", font[place : place + 16])
        plain = font[offset : offset + length]
        packed = min(plain, zlib.compress(plain, 9), key=len)  # of the same length it would be taken for plain
        entries += struct.pack(">4sLLLL", tag, head + len(tables), len(packed), length, checksum)
        tables += packed + bytes(-len(packed) % 4)
        size += length + -length % 4
    header = struct.pack(
        ">4s4sLHHLHHLLLLL", b"wOFF", flavor, head + len(tables), n_tables, 0, size, 1, 0, 0, 0, 0, 0, 0
    )
    return header + entries + tables


def _rule(content: bytes, codes: list[int]) -> str:
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

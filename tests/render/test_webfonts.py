"""Fonts for pages: whole files of the characters that are wanted, made in a moment."""

from __future__ import annotations

import base64
import io
import re
import time

from fontTools.ttLib import TTFont

from qualab.model.names import Language
from qualab.report.fonts import faces, korean_font
from qualab.report.words import CATALOGUES as REPORTED
from qualab.report.words import NAMES, REASONS
from qualab.service.words import ERRORS, FIELDS, TEXTS

RULE = re.compile(r"base64,([^)]+)\) format\('woff'\); unicode-range: ([^;]+);")


def whole(content: bytes) -> TTFont:
    """The font, every table of which is read."""
    assert content[:4] == b"wOFF"
    font = TTFont(io.BytesIO(content), checkChecksums=2)
    for tag in font.keys():  # noqa: SIM118  it is no dict
        assert font[tag] is not None
    return font


def fonts(text: str) -> list[tuple[TTFont, set[int]]]:
    found = []
    for data, ranges in RULE.findall(faces(text)):
        ends = [one.strip().removeprefix("U+").split("-") for one in ranges.split(",")]
        codes = {code for pair in ends for code in range(int(pair[0], 16), int(pair[-1], 16) + 1)}
        found.append((whole(base64.b64decode(data)), codes))
    return found


def test_each_character_is_in_one_font_that_has_it() -> None:
    text = "A bold − ≤ Δ ✓ ▼ 가힣 漢字 한국어 ทดสอบ 😀"
    found = fonts(text)
    assert set().union(*(codes for _, codes in found)) == {ord(one) for one in text if one != " "}
    assert sum(len(codes) for _, codes in found) == len({one for one in text if one != " "})
    for font, codes in found:
        assert codes <= font.getBestCmap().keys()
        assert font["head"].magicNumber == 0x5F0F3CF5


def test_weights_are_kept() -> None:
    for font, _ in fonts("A가"):
        axes = {axis.axisTag: (axis.minValue, axis.maxValue) for axis in font["fvar"].axes}
        assert axes["wght"][0] <= 400
        assert axes["wght"][1] >= 700


def test_the_same_text_gives_the_same_bytes() -> None:
    assert faces("한국어 A") == faces("A 한국어")


def test_the_korean_font_has_all_that_pages_and_reports_say() -> None:
    korean = [
        *(korean for _, korean in TEXTS.values()),
        *(text for texts in ERRORS.values() for text in texts),
        *FIELDS.values(),
        *REPORTED[Language.KOREAN].values(),
        *REASONS[Language.KOREAN].values(),
        *NAMES[Language.KOREAN].values(),
    ]
    said = {ord(character) for text in korean for character in text if "가" <= character <= "힣"}
    known = whole(korean_font()).getBestCmap().keys()
    assert said <= known
    assert len(known) >= 2_350 + 51
    assert len(korean_font()) < 400_000


def test_a_pages_fonts_take_a_moment() -> None:
    faces("warm")
    began = time.perf_counter()
    faces("".join(map(chr, range(0xAC00, 0xAC00 + 600))) + "ABC −≤Δ✓")
    assert time.perf_counter() - began < 1.0

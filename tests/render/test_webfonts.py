"""Fonts for pages: whole fonts of the characters that are wanted."""

from __future__ import annotations

import base64
import re

import uharfbuzz as hb

from qualab.model.names import Language
from qualab.report.fonts import faces, korean_font
from qualab.report.words import catalogue

RULE = re.compile(r"base64,([^)]+)\); unicode-range: ([^;]+);")


def fonts(text: str) -> list[tuple[hb.Face, set[int]]]:
    """Each font with the characters that it is for."""
    return [
        (hb.Face(base64.b64decode(data)), {int(one.strip().removeprefix("U+"), 16) for one in ranges.split(",")})
        for data, ranges in RULE.findall(faces(text))
    ]


def test_each_character_is_in_one_font_that_has_it_in_every_weight() -> None:
    text = "A bold − ≤ Δ ✓ ▼ 가힣 漢字 한국어 ทดสอบ 😀"
    found = fonts(text)
    assert sorted(code for _, codes in found for code in codes) == sorted({ord(one) for one in text if one != " "})
    for face, codes in found:
        assert codes <= set(face.unicodes)
    for face, _ in fonts("A가"):
        (weight,) = [axis for axis in face.axis_infos if axis.tag == "wght"]
        assert weight.min_value <= 400
        assert weight.max_value >= 700
    assert faces("한국어 A") == faces("A 한국어"), "the same bytes for the same characters"


def test_the_korean_font_has_all_that_pages_and_reports_say() -> None:
    korean = (text for table in catalogue(Language.KOREAN).values() for text in table.values())
    said = {ord(character) for text in korean for character in text if "가" <= character <= "힣"}
    known = set(hb.Face(korean_font()).unicodes)
    assert said <= known
    assert len(known) >= 2_350 + 51
    assert len(korean_font()) < 700_000

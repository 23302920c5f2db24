"""The report as a PDF, set by typst: tagged (PDF/UA-1), its fonts embedded, the same bytes for the same report."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import pikepdf
import typst

from qualab.errors import RenderError
from qualab.model.canonical import plain
from qualab.model.report import Column, Forest, Histogram, ReportModel, Table
from qualab.report.charts import draw
from qualab.report.fonts import FAMILIES, folders, only_sure, shown

TEMPLATE = Path(__file__).parent / "pages" / "report.typ"
STANDARD: Literal["ua-1"] = "ua-1"
"""Refuses a character without a glyph, a picture without a description, a document without a title."""
LONGEST_WORD = 14
"""Characters without a space from which on a line may break after a sign inside them."""
LONGEST_RUN = 40
"""Characters without even a sign from which on it may break anywhere."""
_WORD = re.compile(rf"\S{{{LONGEST_WORD},}}")
_AFTER_SIGN = re.compile(r"(?<=[/,_:.;=&?·-])(?=[^\s/,_:.;=&?·-])")
_RUN = re.compile(rf"[^\s\u200b]{{{LONGEST_RUN}}}")
_BREAK = "\u200b"
"""Marks such a place for the template, which leaves it out."""
ATTEMPTS = ((1.0, False), (0.95, False), (0.9, False), (1.0, True))
"""How close lines stand, and whether sign-off begins a page, until the last page is not nearly empty."""
LEAST_FILLED = 0.3
"""Share of the height that a last page is filled to, at least."""
SHORT = 26
"""Letters up to which a column of texts is as wide as it has to be: it never wraps."""
LONG_TITLE = 11
"""Letters from which on the title of a column of numbers stands on two lines, where its numbers are shorter."""
KEPT_TOGETHER = {"signoff": 2_500}
"""Sections that stand on one page, with the number of letters up to which they are sure to fit."""
_NOT_SHOWN = "could not be displayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Typeset:
    """A document as it is set."""

    pdf: bytes
    is_last_page_filled: bool
    """Well enough; true of a document of one page."""


def render_pdf(report: ReportModel) -> bytes:
    """The report on A4. Raises RenderError."""
    content = _content(report)
    try:
        return _set(content, report, shown)
    except typst.TypstError as error:
        if _NOT_SHOWN not in error.message:
            raise RenderError(f"The PDF could not be made: {error.message}") from error
    try:  # a cluster of characters that no font has together
        return _set(content, report, only_sure)
    except typst.TypstError as error:
        raise RenderError(f"The PDF could not be made: {error.message}") from error


def _set(content: Any, report: ReportModel, clean: Callable[[str], str]) -> bytes:
    """As it is; where its last page would be nearly empty, with lines closer, or with sign-off on that page too."""
    text = json.dumps(_cleaned(content, clean), ensure_ascii=False)
    made = (_compiled(text, report, density, signs_last=signs_last) for density, signs_last in ATTEMPTS)
    first = next(made)
    if not first.is_last_page_filled:
        first = next((one for one in made if one.is_last_page_filled), first)
    return _packed(first.pdf)


def typeset(report: ReportModel, *, density: float) -> Typeset:
    """The report with its lines so close, below 1 closer, before it is packed."""
    return _compiled(json.dumps(_cleaned(_content(report), shown), ensure_ascii=False), report, density)


def _compiled(text: str, report: ReportModel, density: float, *, signs_last: bool = False) -> Typeset:
    look = {"density": f"{density:g}", "breaks_before": "signoff" if signs_last else ""}
    inputs = {"report": text, "fonts": json.dumps(_families()), **look}
    moment = round(report.written_at.timestamp())
    compiler = typst.Compiler(TEMPLATE, font_paths=_fonts(), ignore_system_fonts=True, sys_inputs=inputs)
    found = compiler.compile(format="pdf", pdf_standards=[STANDARD], timestamp=moment)
    assert isinstance(found, bytes)
    end = json.loads(compiler.query("<end>", field="value", one=True))
    return Typeset(pdf=found, is_last_page_filled=end["page"] == 1 or end["filled"] >= LEAST_FILLED)


def _packed(document: bytes) -> bytes:
    """The same document, half as large: the tags of hundreds of cells are compressed together."""
    out = io.BytesIO()
    with pikepdf.open(io.BytesIO(document)) as pdf:
        pdf.save(out, object_stream_mode=pikepdf.ObjectStreamMode.generate, deterministic_id=True)
    return out.getvalue()


@cache
def _fonts() -> typst.Fonts:
    return typst.Fonts(include_system_fonts=False, include_embedded_fonts=False, font_paths=list(folders()))


@cache
def _families() -> list[str]:
    """The first ones in their order, then those of other scripts by name: never as a folder happens to list them."""
    others = sorted(name for name in _fonts().families() if name not in FAMILIES and "CJK" not in name)
    return [*FAMILIES, *others]


def _content(report: ReportModel) -> Any:
    """The report as plain values, charts drawn, tables measured."""
    content = plain(report)
    for section, drawn in zip(report.sections, content["sections"], strict=True):
        drawn["is_together"] = len(str(drawn["blocks"])) <= KEPT_TOGETHER.get(section.id, 0)
        for block, values in zip(section.blocks, drawn["blocks"], strict=True):
            if isinstance(block, Forest | Histogram):
                values["svg"] = draw(block)
            elif isinstance(block, Table):
                values.update(_measured(block, values))
    return content


def _measured(table: Table, values: dict[str, Any]) -> dict[str, Any]:
    """The widths of the columns, and their titles on one line or two.

    A column of texts has a share of the width by its longest one; 0 for one that is as wide as it has to be.
    """
    longest = [
        max((_letters(row.cells[place].text) for row in table.rows), default=1) for place in range(len(table.columns))
    ]
    columns = [
        values | {"title": _title(column, length)}
        for column, values, length in zip(table.columns, values["columns"], longest, strict=True)
    ]
    return {"columns": columns, "widths": [_width(*one) for one in zip(table.columns, longest, strict=True)]}


def _width(column: Column, longest: int) -> int:
    wanted = max(longest, _letters(column.title))
    return 0 if column.is_number or wanted <= SHORT else min(48, wanted)


def _title(column: Column, longest: int) -> str:
    """Broken at the space that leaves the shorter lines, where the column is otherwise wider than its numbers."""
    words = column.title.split(" ")
    if not column.is_number or len(words) < 2 or not longest < _letters(column.title) >= LONG_TITLE:
        return column.title
    broken = (f"{' '.join(words[:place])}\n{' '.join(words[place:])}" for place in range(1, len(words)))
    return min(broken, key=lambda title: max(map(_letters, title.split("\n"))))


def _letters(text: str) -> int:
    """How many Latin letters the text is as wide as: Korean ones count twice."""
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    """Every text with characters that have a glyph, and with places to break where it has no spaces."""
    if isinstance(value, str):
        return clean(value if value.startswith("<svg") else _with_breaks(value))
    if isinstance(value, dict):
        return {key: _cleaned(one, clean) for key, one in value.items()}
    return list(map(partial(_cleaned, clean=clean), value)) if isinstance(value, list) else value


def _with_breaks(text: str) -> str:
    signed = _WORD.sub(lambda word: _AFTER_SIGN.sub(_BREAK, word[0]), text)
    return _RUN.sub(lambda run: f"{run[0]}{_BREAK}", signed)

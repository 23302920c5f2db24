"""The report as a PDF, set by typst: tagged (PDF/UA-1), its fonts embedded, the same bytes for the same report."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import pikepdf
import typst

from qualab.adapters.render.charts import draw
from qualab.adapters.render.fonts import FAMILIES, folders
from qualab.adapters.render.glyphs import only_sure, shown
from qualab.domain.canonical import plain
from qualab.domain.report import Forest, Histogram, ReportModel, Table
from qualab.errors import RenderError

TEMPLATE = Path(__file__).parent / "pages" / "report.typ"
STANDARD: Literal["ua-1"] = "ua-1"
"""Refuses a character without a glyph, a picture without a description, a document without a title."""
LONGEST_WORD = 14
"""Characters without a space from which on a line may break after a sign inside them."""
LONGEST_RUN = 40
"""Characters without even a sign from which on it may break anywhere."""
_WORD = re.compile(rf"\S{{{LONGEST_WORD},}}")
_AFTER_SIGN = re.compile(r"(?<=[/,_:.;=&?-])(?=[^\s/,_:.;=&?-])")
_RUN = re.compile(rf"[^\s\u200b]{{{LONGEST_RUN}}}")
_BREAK = "\u200b"
"""Marks such a place for the template, which leaves it out."""
_NOT_SHOWN = "could not be displayed"


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
    inputs = {
        "report": json.dumps(_cleaned(content, clean), ensure_ascii=False),
        "fonts": json.dumps(_families()),
    }
    moment = round(report.written_at.timestamp())
    compiler = typst.Compiler(TEMPLATE.read_bytes(), font_paths=_fonts(), ignore_system_fonts=True, sys_inputs=inputs)
    found = compiler.compile(format="pdf", pdf_standards=[STANDARD], timestamp=moment)
    assert isinstance(found, bytes)
    return _packed(found)


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
        for block, values in zip(section.blocks, drawn["blocks"], strict=True):
            if isinstance(block, Forest | Histogram):
                values["svg"] = draw(block)
            elif isinstance(block, Table):
                values["widths"] = _widths(block)
    return content


def _widths(table: Table) -> list[int]:
    """A column of texts has a share of the width by its longest text; 0 for one of numbers, as wide as it has to be."""
    longest = [
        max((len(row.cells[place].text) for row in table.rows), default=1) for place in range(len(table.columns))
    ]
    return [
        0 if column.is_number else max(8, min(48, max(length, len(column.title))))
        for column, length in zip(table.columns, longest, strict=True)
    ]


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

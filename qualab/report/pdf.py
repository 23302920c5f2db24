"""The report as a PDF, set by typst: tagged (PDF/UA-1), its fonts embedded, the same bytes for the same report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import typst

from qualab.errors import InfrastructureError
from qualab.model.canonical import plain
from qualab.model.report import Chart, Report, Table
from qualab.report.charts import draw
from qualab.report.fonts import FAMILIES, folders, shown

TEMPLATE = Path(__file__).parent / "pages" / "report.typ"
STANDARD: Literal["ua-1"] = "ua-1"
"""Refuses a character without a glyph, a picture without a description, a document without a title."""
_WORD = re.compile(r"\S{14,}")
"""Long enough for a line to break after a sign inside it."""
_AFTER_SIGN = re.compile(r"(?<=[/,_:.;=&?·-])(?=[^\s/,_:.;=&?·-])")
_RUN = re.compile(r"[^\s\u200b]{40}")
"""So long without even a sign that a line may break anywhere."""
_BREAK = "\u200b"
"""Marks such a place for the template, which leaves it out."""


def render_pdf(report: Report) -> bytes:
    """Set the report on A4. Raises InfrastructureError."""
    content = plain(report)
    for section, own in zip(report.sections, content["sections"], strict=True):
        for block, values in zip(section.blocks, own["blocks"], strict=True):
            if isinstance(block, Chart):
                values["svg"] = draw(block, is_grey=report.is_grey)
            elif isinstance(block, Table):
                values["legend"] = list(block.legend)
    try:
        try:
            return _set(content, report, shown)
        except typst.TypstError as error:
            if "could not be displayed" not in error.message:
                raise
            return _set(
                content, report, partial(shown, is_plain=True)
            )  # a cluster of characters that no font has together
    except typst.TypstError as error:
        raise InfrastructureError(f"The PDF could not be made: {error.message}") from error


def _set(content: Any, report: Report, clean: Callable[[str], str]) -> bytes:
    fonts, families = _fonts()
    inputs = {"report": json.dumps(_cleaned(content, clean), ensure_ascii=False), "fonts": families}
    compiler = typst.Compiler(TEMPLATE, font_paths=fonts, ignore_system_fonts=True, sys_inputs=inputs)
    moment = round(report.written_at.timestamp())
    document = compiler.compile(format="pdf", pdf_standards=[STANDARD], timestamp=moment)
    assert isinstance(document, bytes)
    return document


@cache
def _fonts() -> tuple[typst.Fonts, str]:
    """The fonts, and as JSON their families: those of other scripts by name, not as a folder happens to list them."""
    fonts = typst.Fonts(include_system_fonts=False, include_embedded_fonts=False, font_paths=list(folders()))
    others = sorted(name for name in fonts.families() if name not in FAMILIES and "CJK" not in name)
    return fonts, json.dumps([*FAMILIES, *others])


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    """Replace characters without a glyph in every text, and mark places to break where it has no spaces."""
    if isinstance(value, str):
        if not value.startswith("<svg"):
            value = _WORD.sub(lambda word: _AFTER_SIGN.sub(_BREAK, word[0]), value)
            value = _RUN.sub(lambda run: f"{run[0]}{_BREAK}", value)
        return clean(value)
    if isinstance(value, dict):
        return {key: _cleaned(one, clean) for key, one in value.items()}
    return list(map(partial(_cleaned, clean=clean), value)) if isinstance(value, list) else value

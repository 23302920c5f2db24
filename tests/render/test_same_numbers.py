"""Terminal, JSON, Markdown, HTML and PDF show the same numbers, to the digit."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Callable

import pytest
from pypdf import PdfReader
from rich.console import Console

from qualab.model.names import Language
from qualab.model.report import Report
from qualab.report.html import render_html
from qualab.report.markdown import render_json, render_markdown
from qualab.report.pdf import render_pdf
from qualab.report.terminal import print_analysis
from tests.render.samples import metrics_of, report, sample


def squeezed(text: str) -> str:
    """The text without what separates cells or marks them up."""
    return re.sub(r"[\s|*\\]", "", text)


def pdf_text(model: Report) -> str:
    return "".join(page.extract_text() for page in PdfReader(io.BytesIO(render_pdf(model))).pages)


def terminal_text(_: Report) -> str:
    made, analysis = sample()
    console = Console(width=400, file=io.StringIO(), record=True)
    print_analysis(console, made.comparison, analysis)
    return console.export_text()


FORMS: dict[str, Callable[[Report], str]] = {
    "Markdown": lambda model: render_markdown(model).decode(),
    "HTML": lambda model: html.unescape(re.sub("<[^>]+>", "", render_html(model).decode())),
    "PDF": pdf_text,
    "terminal": terminal_text,
}


def test_there_are_34_metrics_with_every_kind_of_number() -> None:
    rows = metrics_of(report()).rows
    texts = [cell.text for row in rows for cell in row.cells]
    assert len(rows) == 34
    assert [any(text.startswith(sign) for text in texts) for sign in "−+"] == [True, True]


@pytest.mark.parametrize(
    ("form", "language"),
    [(form, language) for form in FORMS for language in Language if (form, language) != ("terminal", Language.KOREAN)],
)
def test_every_form_shows_the_reports_cells_row_by_row(form: str, language: Language) -> None:
    text = squeezed(FORMS[form](report(language)))
    rows = ["".join(squeezed(cell.marked) for cell in row.cells) for row in metrics_of(report(language)).rows]
    assert [row for row in rows if row not in text] == []


@pytest.mark.parametrize("language", Language)
def test_json_shows_the_reports_cells_with_their_numbers(language: Language) -> None:
    document = json.loads(render_json(report(language)))
    (section,) = [section for section in document["sections"] if section["id"] == "metrics"]
    table, rows = section["blocks"][0], metrics_of(report(language)).rows
    assert [[cell["text"] for cell in row["cells"]] for row in table["rows"]] == [
        [cell.text for cell in row.cells] for row in rows
    ]
    place = [column["id"] for column in table["columns"]].index("difference")
    _, analysis = sample()
    differences = [row.evidence.difference for row in analysis.metrics if row.evidence]
    assert [row["cells"][place]["value"] for row in table["rows"]] == differences

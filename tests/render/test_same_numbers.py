"""Terminal, JSON, Markdown, HTML and PDF show the same numbers, to the digit."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser

import pytest
from pypdf import PdfReader
from rich.console import Console

from qualab.model.names import Language
from qualab.model.report import MARKS, Report
from qualab.report.html import render_html
from qualab.report.markdown import escaped, render_json, render_markdown
from qualab.report.pdf import render_pdf
from qualab.report.terminal import print_analysis
from tests.render.samples import metrics_of, report, sample

Rows = list[list[str]]


def wanted(model: Report) -> Rows:
    return [[cell.text.strip() for cell in row.cells] for row in metrics_of(model).rows]


def without_marks(text: str) -> str:
    return text.strip().lstrip("".join(MARKS.values())).strip()


class _Cells(HTMLParser):
    """The cells of every table's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Rows = []
        self._in_cell = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
        self._in_cell = tag == "td" or (self._in_cell and tag == "span")

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag != "td"

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


def test_there_are_34_metrics_with_every_kind_of_number() -> None:
    rows = wanted(report())
    assert len(rows) == 34
    texts = {text for row in rows for text in row}
    assert any(text.startswith("−") for text in texts)
    assert any(text.startswith("+") for text in texts)


def test_the_terminal_shows_the_reports_cells() -> None:
    made, analysis = sample()
    console = Console(width=400, file=io.StringIO(), record=True)
    print_analysis(console, made.comparison, analysis)
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    for row in metrics_of(report()).rows:
        assert " ".join(cell.marked.strip() for cell in row.cells) in lines


@pytest.mark.parametrize("language", Language)
def test_json_shows_the_reports_cells_with_their_numbers(language: Language) -> None:
    document = json.loads(render_json(report(language)))
    (section,) = [one for one in document["sections"] if one["id"] == "metrics"]
    found = section["blocks"][0]
    assert [[cell["text"].strip() for cell in row["cells"]] for row in found["rows"]] == wanted(report(language))
    place = [column["id"] for column in found["columns"]].index("difference")
    values = [row["cells"][place]["value"] for row in found["rows"]]
    _, analysis = sample()
    assert values == [row.evidence.difference for row in analysis.metrics if row.evidence]


@pytest.mark.parametrize("language", Language)
def test_markdown_shows_the_reports_cells(language: Language) -> None:
    lines = render_markdown(report(language)).decode().splitlines()
    for row in wanted(report(language)):
        line = next(one for one in lines if escaped(row[0]).strip() in one and one.startswith("|"))
        cells = [without_marks(cell.strip().strip("*")) for cell in line.strip("| ").split(" | ")]
        assert [cell for cell in cells if cell] == [escaped(text) for text in row if text]


@pytest.mark.parametrize("language", Language)
def test_html_shows_the_reports_cells(language: Language) -> None:
    parser = _Cells()
    parser.feed(render_html(report(language)).decode())
    found = [[without_marks(cell) for cell in row] for row in parser.rows]
    for row in wanted(report(language)):
        assert row in found


@pytest.mark.parametrize("language", Language)
def test_the_pdf_shows_the_reports_cells(language: Language) -> None:
    pages = PdfReader(io.BytesIO(render_pdf(report(language)))).pages
    text = " ".join(" ".join(page.extract_text() for page in pages).split())
    squeezed = text.replace(" ", "")
    for row in wanted(report(language)):
        *cells, verdict = [one for one in row if one]
        assert "".join(cells).replace(" ", "") in squeezed, row
        assert verdict.replace(" ", "") in squeezed

"""Terminal, JSON, Markdown and HTML show the same numbers, to the digit."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from qualab.model.names import Language
from qualab.model.report import Report
from qualab.report.html import render_html
from qualab.report.markdown import render_json, render_markdown
from qualab.report.terminal import print_analysis
from tests.render.samples import metrics_of, report, rows_lacking_in, sample


def terminal_text(_: Report) -> str:
    made, analysis = sample()
    console = Console(width=400, file=io.StringIO(), record=True)
    print_analysis(console, made.comparison, analysis)
    return console.export_text()


FORMS: dict[str, Callable[[Report], str]] = {
    "Markdown": lambda model: render_markdown(model).decode(),
    "HTML": lambda model: html.unescape(re.sub("<[^>]+>", "", render_html(model).decode())),
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
    assert rows_lacking_in(FORMS[form](report(language)), language) == []


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

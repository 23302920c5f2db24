"""HTML and Markdown fetch nothing, a model's text is never markup, and every form shows the same numbers."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser

import pytest
from rich.console import Console

from qualab.model.names import Language
from qualab.model.report import Report
from qualab.report.html import render_html
from qualab.report.markdown import escaped, render_json, render_markdown
from qualab.report.terminal import print_analysis
from tests.render.samples import HOSTILE, hostile_report, metrics_of, report, rows_lacking_in, sample


class Page(HTMLParser):
    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(content.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@cache
def content_of(language: Language = Language.ENGLISH, *, is_hostile: bool = False) -> bytes:
    return render_html(hostile_report(language) if is_hostile else report(language))


@pytest.mark.parametrize("language", Language)
def test_nothing_is_fetched_no_script_may_run_and_text_that_looks_like_markup_stays_text(language: Language) -> None:
    content = content_of(language, is_hostile=True).decode()
    page = Page(content.encode())
    tags = page.tags
    links = [value or "" for _, attrs in tags for name, value in attrs.items() if name in ("href", "src", "action")]
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    style = content[content.index("<style>") : content.index("</style>")]
    assert re.findall(r"url\((?!data:)", style) == []
    assert "@import" not in style
    assert {tag for tag, _ in tags}.isdisjoint({"script", "iframe", "object", "embed", "img"})
    policy = next(attrs["content"] for _, attrs in tags if "http-equiv" in attrs)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "script" not in policy
    _, off, on = HOSTILE
    for text in (off[:60], "<img src=x onerror=alert(1)> | a | b |", "&amp; <b>on</b>", "7*7", on[:10]):
        assert text in page.text
    assert not any(name.startswith("on") for _, attrs in tags for name in attrs)


@pytest.mark.parametrize("language", Language)
def test_what_the_report_says_is_there_with_its_fonts_for_light_dark_and_phones(language: Language) -> None:
    model, content = report(language), content_of(language)
    found = Page(content)
    assert model.headline in found.text
    assert all(section.title in found.text for section in model.sections)
    assert ("html", {"lang": language.value}) in found.tags
    ids = [attrs["id"] for tag, attrs in found.tags if tag == "section" and "id" in attrs]
    assert ids == [section.id for section in model.sections]
    assert content.count(b"@font-face") >= 2
    for part in (b"data:font/otf;base64,", b"prefers-color-scheme: dark", b"width=device-width"):
        assert part in content
    assert render_html(model) == content
    lines = render_markdown(model).decode().splitlines()
    headings = [line[3:] for line in lines if line.startswith("## ")]
    assert headings == [escaped(section.title) for section in model.sections]


def outside_fences(text: str) -> str:
    """What a reader of Markdown takes as markup."""
    lines, fence = [], ""
    for line in text.splitlines():
        if fence:
            fence = "" if line == fence else fence
        elif line.startswith("```"):
            fence = line.removesuffix("text")
        else:
            lines.append(line)
    assert not fence
    return "\n".join(lines)


def test_an_answer_cannot_close_its_fence() -> None:
    text = render_markdown(hostile_report()).decode()
    assert "<script>" in text
    outside = outside_fences(text)
    assert "<script>" not in outside
    assert "alert(" not in outside


@pytest.mark.parametrize("text", ["a|b", "<b>", "*x*", "_y_", "`c`", "[l](u)", "# h", "- item", "1. one", "![i](u)"])
def test_what_looks_like_markup_is_escaped(text: str) -> None:
    assert "\\" in escaped(text)
    assert "\n" not in escaped(f"{text}\n{text}")


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
    table = section["blocks"][0]
    shown = [[cell["text"] for cell in row["cells"]] for row in table["rows"]]
    assert shown == [[cell.text for cell in row.cells] for row in metrics_of(report(language)).rows]
    assert len(shown) == 34
    assert {"−", "+"} <= {text[:1] for texts in shown for text in texts}, "every kind of number"
    place = [column["id"] for column in table["columns"]].index("difference")
    _, analysis = sample()
    differences = [row.evidence.difference for row in analysis.metrics if row.evidence]
    assert [row["cells"][place]["value"] for row in table["rows"]] == differences

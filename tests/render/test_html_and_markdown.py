"""Reports in HTML and Markdown: one file, nothing fetched, and a model's text is never markup."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser

import pytest

from qualab.model.names import Language
from qualab.report.html import render_html
from qualab.report.markdown import escaped, render_markdown
from tests.render.samples import HOSTILE, hostile_report, report


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
def test_nothing_is_fetched_and_no_script_may_run(language: Language) -> None:
    content = content_of(language, is_hostile=True).decode()
    tags = Page(content.encode()).tags
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


def test_text_that_looks_like_markup_stays_text() -> None:
    found = Page(content_of(is_hostile=True))
    _, off, on = HOSTILE
    for text in (off[:60], "<img src=x onerror=alert(1)> | a | b |", "&amp; <b>on</b>", "7*7", on[:10]):
        assert text in found.text
    assert not any(name.startswith("on") for _, attrs in found.tags for name in attrs)


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


# Markdown


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


@pytest.mark.parametrize("language", Language)
def test_every_section_has_its_heading(language: Language) -> None:
    lines = render_markdown(report(language)).decode().splitlines()
    assert [line[3:] for line in lines if line.startswith("## ")] == [
        escaped(section.title) for section in report(language).sections
    ]

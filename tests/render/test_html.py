"""The HTML report: one file, nothing fetched, and a model's text is never markup."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser

import pytest

from qualab.model.names import Language
from qualab.report.html import render_html
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


def page(language: Language = Language.ENGLISH, *, is_hostile: bool = False) -> Page:
    return Page(content_of(language, is_hostile=is_hostile))


@pytest.mark.parametrize("language", Language)
def test_nothing_is_fetched(language: Language) -> None:
    content = content_of(language, is_hostile=True).decode()
    tags = Page(content.encode()).tags
    links = [value or "" for _, attrs in tags for name, value in attrs.items() if name in ("href", "src", "action")]
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    style = content[content.index("<style>") : content.index("</style>")]
    assert re.findall(r"url\((?!data:)", style) == []
    assert "@import" not in style
    assert {tag for tag, _ in tags}.isdisjoint({"script", "iframe", "object", "embed", "img"})


def test_a_policy_forbids_scripts_and_requests() -> None:
    policy = next(attrs["content"] for _, attrs in page().tags if "http-equiv" in attrs)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "script" not in policy


def test_text_that_looks_like_markup_stays_text() -> None:
    found = page(is_hostile=True)
    _, off, on = HOSTILE
    assert off[:60] in found.text
    assert "<img src=x onerror=alert(1)> | a | b |" in found.text
    assert "&amp; <b>on</b>" in found.text
    assert "7*7" in found.text
    assert not any(name.startswith("on") for _, attrs in found.tags for name in attrs)
    assert on[:10] in found.text


@pytest.mark.parametrize("language", Language)
def test_what_the_report_says_is_there(language: Language) -> None:
    model = report(language)
    found = page(language)
    assert model.headline in found.text
    assert all(section.title in found.text for section in model.sections)
    assert ("html", {"lang": language.value}) in found.tags
    ids = [attrs["id"] for tag, attrs in found.tags if tag == "section" and "id" in attrs]
    assert ids == [section.id for section in model.sections]


def test_its_fonts_are_inside() -> None:
    content = content_of(Language.KOREAN).decode()
    assert content.count("@font-face") >= 2
    assert "data:font/otf;base64," in content


def test_the_same_report_is_the_same_bytes() -> None:
    assert render_html(report(Language.KOREAN)) == content_of(Language.KOREAN)


def test_it_is_made_for_light_dark_and_phones() -> None:
    content = content_of().decode()
    assert "prefers-color-scheme: dark" in content
    assert "width=device-width" in content

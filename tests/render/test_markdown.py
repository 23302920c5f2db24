"""Markdown: a model's text stays in its fence, other text is shown as it is."""

from __future__ import annotations

import pytest

from qualab.model.names import Language
from qualab.report.markdown import escaped, render_markdown
from tests.render.samples import hostile_report, report


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

"""The PDF: read back, the same bytes, small, tagged, its fonts inside, and a model's text is never markup."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from pypdf import PdfReader

from qualab.model.names import Language
from qualab.model.report import Cell, Column, Paragraph, Report, Row, Table
from qualab.report.fonts import shown
from qualab.report.pdf import render_pdf
from tests.render.samples import hostile_report, metrics_of, report, rows_lacking_in

LARGEST = 300 * 1024


@cache
def pdf_of(language: Language, *, is_hostile: bool = False) -> PdfReader:
    model = hostile_report(language) if is_hostile else report(language)
    return PdfReader(io.BytesIO(render_pdf(model)))


def squeezed(text: str) -> str:
    return "".join(text.split())


@cache
def pages_of(language: Language, *, is_hostile: bool = False) -> list[str]:
    return [page.extract_text() for page in pdf_of(language, is_hostile=is_hostile).pages]


def fonts(reader: PdfReader) -> Iterator[Any]:
    for page in reader.pages:
        for font in page["/Resources"].get("/Font", {}).values():
            yield font.get_object()["/DescendantFonts"][0].get_object()


def first_page(model: Report, block: Paragraph | Table) -> Any:
    """Of the report with this block in place of its first section's."""
    section = replace(model.sections[0], blocks=(block,))
    return PdfReader(io.BytesIO(render_pdf(replace(model, sections=(section,))))).pages[0]


@pytest.mark.parametrize("language", Language)
def test_a_report_is_read_back_with_title_language_bookmarks_tags_and_page_numbers(language: Language) -> None:
    reader, model, pages = pdf_of(language), report(language), pages_of(language)
    text = squeezed("".join(pages))
    said = [block.text for section in model.sections for block in section.blocks if isinstance(block, Paragraph)]
    titles = [section.title for section in model.sections]
    assert [one for one in (model.title, model.headline, *titles, *said) if squeezed(one) not in text] == []
    assert reader.metadata is not None
    assert (reader.metadata.title, reader.metadata.creation_date) == (model.title, model.written_at)
    catalog: Any = reader.trailer["/Root"]
    assert (catalog["/Lang"], bool(catalog["/MarkInfo"]["/Marked"])) == (language.value, True)
    assert "/StructTreeRoot" in catalog
    assert b"pdfuaid" in catalog["/Metadata"].get_data()
    assert [str(one["/Title"]) for one in reader.outline if not isinstance(one, list)] == titles
    for number, page in enumerate(pages, start=1):
        assert squeezed(f"{number} {model.labels['of']} {len(pages)}") in squeezed(page)


@pytest.mark.parametrize("language", Language)
def test_34_metrics_fit_into_300_kib_and_are_the_same_bytes_again(language: Language) -> None:
    content = render_pdf(report(language))
    assert len(content) <= LARGEST
    assert render_pdf(report(language)) == content


@pytest.mark.parametrize("language", Language)
def test_it_shows_the_reports_cells_row_by_row_and_a_copied_id_is_the_id(language: Language) -> None:
    assert rows_lacking_in("".join(pages_of(language)), language) == []
    raw = "\n".join(pages_of(language))
    assert "\u200b" not in raw
    short = [row.cells[0].text.strip(" *†") for row in metrics_of(report(language)).rows if len(row.cells[0].text) < 40]
    assert [one for one in short if one not in raw] == []


@pytest.mark.parametrize("language", Language)
def test_every_font_is_noto_and_inside(language: Language) -> None:
    found = list(fonts(pdf_of(language, is_hostile=True)))
    assert {str(font["/BaseFont"]).partition("+")[2][:4] for font in found} == {"Noto"}
    assert all("/FontFile2" in font["/FontDescriptor"] or "/FontFile3" in font["/FontDescriptor"] for font in found)


@pytest.mark.parametrize("language", Language)
def test_signs_and_bold_hangul_have_glyphs(language: Language) -> None:
    signs = "− ≤ ≥ Δ ✓ α ± – “ ” ψ → † · … ▼ ␣ ⏎ 가나다 힣 ㄱ □"
    assert shown(signs) == signs
    assert squeezed(signs) in squeezed(first_page(report(language), Paragraph(text=signs)).extract_text())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        *[([word], word) for word in (f"드래프터{'가' * (n % 7)}수용길이{n}" for n in range(0, 80, 7))],
        (["프롬프트", "온도(temperature)", "부하에서는"], f"{'가' * 47} 프롬프트·온도(temperature)·부하에서는"),
    ],
)
def test_korean_words_are_not_broken(words: list[str], text: str) -> None:
    shown_text = first_page(report(Language.KOREAN), Paragraph(text=" ".join([text] * 20))).extract_text()
    assert [shown_text.count(word) for word in words] == [20] * len(words)


def left_edges(table: Table) -> dict[str, float]:
    """Where each text of a table on paper begins, from the left."""
    found: dict[str, float] = {}

    def note(text: str, page_place: list[float], place: list[float], *_: object) -> None:
        if text.strip():
            found.setdefault(text.strip(), page_place[4] + page_place[0] * place[4])

    first_page(report(Language.ENGLISH), table).extract_text(visitor_text=note)
    return found


@pytest.mark.parametrize("short", ["generation", "log-likelihood", "로그우도"])
def test_a_short_column_has_room_for_its_words_and_a_long_title_stands_on_two_lines(short: str) -> None:
    names = ("task", "items", "few-shot", "asked", "data set", "revision")
    columns = tuple(Column(id=name, title=name, is_number=name in ("items", "few-shot")) for name in names)
    task, dataset = "haerae_standard_nomenclature_gen", "HAERAE-HUB/HAE_RAE_BENCH:standard_nomenclature"
    texts = (task, "40 of 1,319", "5", short, dataset, "local")
    found = left_edges(Table(columns=columns, rows=(Row(cells=tuple(Cell(text=text) for text in texts)),)))
    assert found["data set"] - found["asked"] > sum(8.0 if ord(letter) > 0x1100 else 4.2 for letter in short)
    columns = (Column(id="a", title="metric", is_number=False), Column(id="b", title="discordance observed"))
    found = left_edges(Table(columns=columns, rows=(Row(cells=(Cell(text="m"), Cell(text="0.1 %"))),)))
    assert {"discordance", "observed"} <= found.keys()


def test_text_that_looks_like_markup_stays_text_and_what_has_no_shape_is_named() -> None:
    text = squeezed("".join(pages_of(Language.ENGLISH, is_hostile=True)))
    for hostile in ('#eval("1+1")', "#set page(width: 1pt)", "*bold*", "_it_", "<script>alert", "{{ 7*7 }}", "```"):
        assert squeezed(hostile) in text
    for code in ("202E", "200B", "E000", "12000", "0007"):
        assert f"‹U+{code}›" in text
    assert shown("가 \U00012000 a") == "가 ‹U+12000› a"


@pytest.mark.parametrize(
    "text",
    ["👍🏽", "❤️", "שלום", "مرحبا", "नमस्ते", "e\u0301", "日本語", "\U0001d49c", "x" * 10_000, "\u0300", "ᄀ\u0300"],
)
def test_whatever_a_model_says_a_pdf_is_made(text: str) -> None:
    assert first_page(report(Language.KOREAN), Paragraph(text=text)).extract_text()

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
from qualab.model.report import Cell, Column, Paragraph, ReportModel, Row, Table
from qualab.report import pdf
from qualab.report.fonts import SIGNS, SURE, characters, ordered_files, shown
from qualab.report.pdf import ATTEMPTS, render_pdf, typeset
from tests.render.samples import hostile_report, metrics_of, report

LARGEST = 300 * 1024


@cache
def pdf_of(language: Language, *, is_hostile: bool = False) -> PdfReader:
    model = hostile_report(language) if is_hostile else report(language)
    return PdfReader(io.BytesIO(render_pdf(model)))


def squeezed(text: str) -> str:
    return "".join(text.split())


def text_of(reader: PdfReader) -> str:
    return squeezed("".join(page.extract_text() for page in reader.pages))


def fonts(reader: PdfReader) -> Iterator[Any]:
    for page in reader.pages:
        for font in page["/Resources"].get("/Font", {}).values():
            yield font.get_object()["/DescendantFonts"][0].get_object()


def with_text(model: ReportModel, text: str) -> ReportModel:
    section = replace(model.sections[0], blocks=(Paragraph(text=text),))
    return replace(model, sections=(section, *model.sections[1:]))


@pytest.mark.parametrize("language", Language)
def test_what_the_report_says_can_be_read_back(language: Language) -> None:
    model, text = report(language), text_of(pdf_of(language))
    assert squeezed(model.title) in text
    assert squeezed(model.headline) in text
    for section in model.sections:
        assert squeezed(section.title) in text
        for block in section.blocks:
            if isinstance(block, Paragraph):
                assert squeezed(block.text) in text


@pytest.mark.parametrize("language", Language)
def test_34_metrics_fit_into_300_kib(language: Language) -> None:
    assert len(render_pdf(report(language))) <= LARGEST


def test_the_same_report_is_the_same_bytes() -> None:
    assert render_pdf(report(Language.KOREAN)) == render_pdf(report(Language.KOREAN))


@pytest.mark.parametrize("language", Language)
def test_it_has_a_title_a_language_bookmarks_and_tags(language: Language) -> None:
    reader, model = pdf_of(language), report(language)
    assert reader.metadata is not None
    assert reader.metadata.title == model.title
    assert reader.metadata.creation_date == model.written_at
    catalog: Any = reader.trailer["/Root"]
    assert catalog["/Lang"] == language.value
    assert catalog["/MarkInfo"]["/Marked"]
    assert "/StructTreeRoot" in catalog
    assert [str(one["/Title"]) for one in reader.outline if not isinstance(one, list)] == [
        section.title for section in model.sections
    ]
    assert b"pdfuaid" in catalog["/Metadata"].get_data()


@pytest.mark.parametrize("language", Language)
def test_a_copied_id_is_the_id(language: Language) -> None:
    raw = "\n".join(page.extract_text() for page in pdf_of(language).pages)
    assert "\u200b" not in raw
    for row in metrics_of(report(language)).rows:
        if len(row.cells[0].text) < 40:
            assert row.cells[0].text.strip(" *†") in raw


@pytest.mark.parametrize("language", Language)
def test_pages_are_numbered(language: Language) -> None:
    pages = pdf_of(language).pages
    for number, page in enumerate(pages, start=1):
        assert squeezed(f"{number} {report(language).labels['of']} {len(pages)}") in squeezed(page.extract_text())


@pytest.mark.parametrize("language", Language)
def test_every_font_is_noto_and_inside(language: Language) -> None:
    found = list(fonts(pdf_of(language, is_hostile=True)))
    assert {str(font["/BaseFont"]).partition("+")[2][:8] for font in found} >= {"NotoSans"}
    assert all(str(font["/BaseFont"]).partition("+")[2].startswith("Noto") for font in found)
    assert all("/FontFile2" in font["/FontDescriptor"] or "/FontFile3" in font["/FontDescriptor"] for font in found)


@pytest.mark.parametrize("language", Language)
def test_signs_and_bold_hangul_have_glyphs(language: Language) -> None:
    signs = "− ≤ ≥ Δ ✓ α ± – “ ” ψ → † · … ▼ ␣ ⏎ 가나다 힣 ㄱ"
    reader = PdfReader(io.BytesIO(render_pdf(with_text(report(language), signs))))
    assert squeezed(signs) in text_of(reader)


def test_korean_words_are_not_broken() -> None:
    words = [f"드래프터{'가' * (n % 7)}수용길이{n}" for n in range(80)]
    reader = PdfReader(io.BytesIO(render_pdf(with_text(report(Language.KOREAN), " ".join(words)))))
    assert {word for word in words if word not in reader.pages[0].extract_text()} == set()


def test_a_long_korean_series_breaks_after_its_middle_dots_alone() -> None:
    words = ("프롬프트", "온도(temperature)", "부하에서는")
    series = [f"{'가' * n} {'·'.join(words)}" for n in range(40, 60)]
    reader = PdfReader(io.BytesIO(render_pdf(with_text(report(Language.KOREAN), " ".join(series)))))
    shown = reader.pages[0].extract_text()
    assert [shown.count(word) for word in words] == [len(series)] * len(words)


def lengthened(n: int) -> ReportModel:
    """With n paragraphs more at its end."""
    model = report(Language.KOREAN)
    last = model.sections[-1]
    more = tuple(Paragraph(text=f"문단 {number}") for number in range(n))
    return replace(model, sections=(*model.sections[:-1], replace(last, blocks=(*last.blocks, *more))))


@cache
def nearly_empty_at_its_end() -> ReportModel:
    found = (lengthened(n) for n in range(0, 80, 4))
    return next(model for model in found if not typeset(model, density=1.0).is_last_page_filled)


def test_a_last_page_is_not_left_nearly_empty() -> None:
    model = nearly_empty_at_its_end()
    loose, closer = (PdfReader(io.BytesIO(content)) for content in (typeset(model, density=1.0).pdf, render_pdf(model)))
    assert len(closer.pages) == len(loose.pages) - 1
    assert "문단 3" in closer.pages[-1].extract_text()


def test_where_closer_lines_do_not_help_sign_off_goes_with_the_last_page(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nearly_empty_at_its_end()
    monkeypatch.setattr(pdf, "ATTEMPTS", (ATTEMPTS[0], ATTEMPTS[-1]))
    *_, before, last = PdfReader(io.BytesIO(render_pdf(model))).pages
    title = model.section("signoff").title
    assert last.extract_text().startswith(title)
    assert title not in before.extract_text().splitlines()


def test_a_report_that_fills_its_last_page_is_set_as_it_is() -> None:
    model = lengthened(0)
    loose = typeset(model, density=1.0)
    assert loose.is_last_page_filled
    one, other = (PdfReader(io.BytesIO(content)) for content in (render_pdf(model), loose.pdf))
    assert [page.extract_text() for page in one.pages] == [page.extract_text() for page in other.pages]


def left_edges(table: Table) -> dict[str, float]:
    """Where each text of a table on paper begins, from the left."""
    model = report(Language.ENGLISH)
    section = replace(model.sections[0], blocks=(table,))
    page = PdfReader(io.BytesIO(render_pdf(replace(model, sections=(section,))))).pages[0]
    found: dict[str, float] = {}

    def note(text: str, page_place: list[float], place: list[float], *_: object) -> None:
        if text.strip():
            found.setdefault(text.strip(), page_place[4] + page_place[0] * place[4])

    page.extract_text(visitor_text=note)
    return found


@pytest.mark.parametrize("short", ["generation", "log-likelihood", "로그우도"])
def test_a_short_column_beside_long_ones_has_room_for_its_words(short: str) -> None:
    names = ("task", "items", "few-shot", "asked", "data set", "revision")
    columns = tuple(Column(id=name, title=name, is_number=name in ("items", "few-shot")) for name in names)
    long = (
        "haerae_standard_nomenclature_gen",
        "40 of 1,319",
        "5",
        short,
        "HAERAE-HUB/HAE_RAE_BENCH:standard_nomenclature",
    )
    rows = (Row(cells=tuple(Cell(text=text) for text in (*long, "local"))),)
    found = left_edges(Table(columns=columns, rows=rows))
    assert found["data set"] - found["asked"] > sum(8.0 if ord(letter) > 0x1100 else 4.2 for letter in short)


def test_a_long_title_over_short_numbers_stands_on_two_lines() -> None:
    columns = (Column(id="a", title="metric", is_number=False), Column(id="b", title="discordance observed"))
    found = left_edges(Table(columns=columns, rows=(Row(cells=(Cell(text="m"), Cell(text="0.1 %"))),)))
    assert "discordance" in found
    assert "observed" in found


def test_text_that_looks_like_markup_stays_text() -> None:
    text = text_of(pdf_of(Language.ENGLISH, is_hostile=True))
    for hostile in ('#eval("1+1")', "#set page(width: 1pt)", "*bold*", "_it_", "<script>alert", "{{ 7*7 }}", "```"):
        assert squeezed(hostile) in text


def test_what_has_no_shape_and_no_glyph_is_named() -> None:
    text = text_of(pdf_of(Language.ENGLISH, is_hostile=True))
    for code in ("202E", "200B", "E000", "12000", "0007"):
        assert f"‹U+{code}›" in text


@pytest.mark.parametrize(
    "text",
    ["👍🏽", "❤️", "שלום", "مرحبا", "नमस्ते", "e\u0301", "日本語", "\U0001d49c", "x" * 10_000, "\u0300", "ᄀ\u0300"],
)
def test_whatever_a_model_says_a_pdf_is_made(text: str) -> None:
    assert render_pdf(with_text(report(Language.KOREAN), text)).startswith(b"%PDF")


def test_what_is_taken_for_sure_is_in_the_fonts() -> None:
    known = {code for path in ordered_files() for code in characters(path)}
    sure = {code for first, last in SURE for code in range(first, last + 1)} | {ord(sign) for sign in SIGNS}
    assert {chr(code) for code in sure - known} == set()


def test_a_character_without_a_glyph_is_named_by_its_code() -> None:
    assert shown("가 \U00012000 a") == "가 ‹U+12000› a"
    assert shown("plain 텍스트 ± −") == "plain 텍스트 ± −"

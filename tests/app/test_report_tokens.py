"""The tokens at which texts begin to differ: the same in every form of a report, and what is not known."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from pypdf import PdfReader

from qualab.cli.tables import token_lines
from qualab.model.engine import TokensLack
from qualab.model.names import Language, RequestKind
from qualab.model.plan import Imported
from qualab.model.report import Table
from qualab.report.html import render_html
from qualab.report.markdown import render_json, render_markdown
from qualab.report.pdf import render_pdf
from qualab.report.words import Words
from tests.app.report_texts import english_in
from tests.app.test_report_model import bare, blocks, full, model, said


@pytest.mark.parametrize("language", Language)
def test_tokens_stand_beside_characters_and_say_whose_they_are(language: Language) -> None:
    words = Words(language=language)
    table = next(blocks(model(full(), language), "noise", Table))
    labels = [row.cells[0].text for row in table.rows]
    at = labels.index(words("first token"))
    assert labels[at - 1] == words("first difference")
    assert labels[at + 1 : at + 3] == [words("first token in", task=task) for task in ("gsm8k", "ifeval")]
    assert not any("copa" in label for label in labels), "no text differs there"
    assert [[cell.value for cell in row.cells[1:3]] for row in table.rows[at : at + 3]] == [
        [1234.0, 9.5],
        [None, 77.0],
        [None, None],
    ]
    assert [cell.text for cell in table.rows[at + 2].cells[1:3]] == [
        words("tokens unknown", known="0", total="6"),
        words("tokens the same", known="25", total="29"),
    ]
    who = words("tokens baseline")
    for key in ("tokens how", "tokens lack time"):
        assert words(key, who=who) in said(model(full(), language), "noise")


def test_tokens_of_the_arms_are_shown_without_a_noise_floor() -> None:
    source = full()
    assert source.analysis.tokens is not None
    tokens = replace(source.analysis.tokens, baseline=None, lack=None, tasks=source.analysis.tokens.tasks[:1])
    found = model(replace(source, analysis=replace(source.analysis, noise=None, tokens=tokens)))
    (table, *_) = blocks(found, "noise", Table)
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["first differing token (median)", "10 (25 of 29 pairs)"]
    ]


@pytest.mark.parametrize(
    ("is_failed", "expected"),
    [
        (False, "this run did not tokenize its answers"),
        (True, "the tokenizer of the baseline's engine could not be used"),
    ],
)
def test_tokens_that_are_not_known_are_said(is_failed: bool, expected: str) -> None:
    analysis = full().analysis
    assert analysis.tokens is not None
    unknown = replace(analysis.tokens.candidate, n_tokenized=0, n_same_tokens=0, first_difference=None)
    failed = replace(analysis.tokens, lack=TokensLack.FAILED, baseline=unknown, candidate=unknown, tasks=())
    tokens = failed if is_failed else None
    source = replace(full(), analysis=replace(analysis, tokens=tokens))
    assert expected in said(model(source), "noise")
    assert "tokenized again" not in said(model(source), "noise")
    assert any(expected in line for line in token_lines(source.plan, source.analysis))


def test_the_terminal_shows_the_reports_tokens() -> None:
    source = full()
    lines = list(token_lines(source.plan, source.analysis))
    assert lines[0] == (
        "tokens    first differing token (median): 10 (25 of 29 pairs) between the arms, 1,234 (18 of 18 pairs) "
        "between runs of the baseline"
    )
    assert [line.split(":")[0].split(", ")[1] for line in lines[1:3]] == ["gsm8k", "ifeval"]
    assert "tokenized again by the tokenizer of the baseline's engine" in lines[3]
    assert len(lines) == 5


@pytest.mark.parametrize("language", Language)
def test_imported_answers_and_those_of_earlier_versions_are_said_to_have_no_tokens(language: Language) -> None:
    source, words = bare(), Words(language=language)
    came = replace(source.plan, imported=Imported(baseline="a", candidate="b", joins=(), findings=()))
    imported = replace(source, comparison=replace(source.comparison, plan=came))
    for one, key in ((source, "tokens unseen"), (imported, "tokens imported")):
        assert words(key) in said(model(one, language), "noise")


def test_nothing_is_said_of_tokens_where_nothing_generates() -> None:
    source = bare()
    tasks = tuple(replace(task, kind=RequestKind.LOGLIKELIHOOD) for task in source.plan.tasks)
    plan = replace(source.plan, tasks=tasks)
    assert list(token_lines(plan, source.analysis)) == []


@pytest.mark.parametrize("language", Language)
def test_every_form_of_a_report_shows_the_same_tokens(language: Language) -> None:
    found = model(full(), language)
    (table,) = [one for one in blocks(found, "noise", Table) if len(one.rows) > 5]
    wanted = [cell.text for row in table.rows[3:6] for cell in row.cells[:3]]
    assert len(wanted) == 9
    pdf = " ".join(page.extract_text() for page in PdfReader(io.BytesIO(render_pdf(found))).pages)
    for shown in (render_html(found), render_json(found), render_markdown(found), pdf.encode()):
        text = "".join(shown.decode().split())
        assert [one for one in wanted if "".join(one.split()) not in text] == []
    assert english_in(model(full(), Language.KOREAN)) == []

"""The tokens at which texts begin to differ: the same in every form of a report, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qualab.model.engine import TokensLack
from qualab.model.names import Language, RequestKind
from qualab.model.plan import Imported
from qualab.model.report import Table
from qualab.report.words import Words
from tests.app.test_report_model import bare, blocks, full, model, said


@pytest.mark.parametrize("language", Language)
def test_tokens_stand_beside_characters_and_say_whose_they_are(language: Language) -> None:
    words, found = Words(language=language), model(full(), language)
    table = next(blocks(found, "noise", Table))
    labels = [row.cells[0].text for row in table.rows]
    at = labels.index(words("first token"))
    assert labels[at - 1] == words("first difference")
    assert labels[at + 1 : at + 3] == [words("first token in", task=task) for task in ("gsm8k", "ifeval")]
    assert not any("copa" in label for label in labels), "no text differs there"
    rows = table.rows[at : at + 3]
    values = [[1234.0, 9.5], [None, 77.0], [None, None]]
    assert [[cell.value for cell in row.cells[1:3]] for row in rows] == values
    assert full().analysis.tokens is not None
    ifeval = full().analysis.tokens.tasks[1]
    unknown, same = words("tokens unknown", texts=ifeval.baseline), words("tokens the same", texts=ifeval.candidate)
    assert [cell.text for cell in rows[2].cells[1:3]] == [unknown, same]
    for key in ("tokens how", "tokens lack time"):
        assert words(key, who=words("tokens baseline")) in said(found, "noise")


def test_tokens_of_the_arms_are_shown_without_a_noise_floor() -> None:
    source = full()
    assert source.analysis.tokens is not None
    tokens = replace(source.analysis.tokens, baseline=None, lack=None, tasks=source.analysis.tokens.tasks[:1])
    found = model(replace(source, analysis=replace(source.analysis, noise=None, tokens=tokens)))
    (table, *_) = blocks(found, "noise", Table)
    texts = [[cell.text for cell in row.cells] for row in table.rows]
    assert texts == [["first differing token (median)", "10 (25 of 29 pairs)"]]


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
    source = replace(full(), analysis=replace(analysis, tokens=failed if is_failed else None))
    assert expected in said(model(source), "noise")
    assert "tokenized again" not in said(model(source), "noise")


@pytest.mark.parametrize("language", Language)
def test_imported_answers_and_those_of_earlier_versions_are_said_to_have_no_tokens(language: Language) -> None:
    source, words = bare(), Words(language=language)
    came = replace(source.plan, imported=Imported(baseline="a", candidate="b", joins=(), findings=()))
    tasks = tuple(replace(task, kind=RequestKind.LOGLIKELIHOOD) for task in source.plan.tasks)
    for plan, key in (
        (source.plan, "tokens unseen"),
        (came, "tokens imported"),
        (replace(source.plan, tasks=tasks), ""),  # nothing generates
    ):
        text = said(model(replace(source, comparison=replace(source.comparison, plan=plan)), language), "noise")
        assert [one for one in ("tokens unseen", "tokens imported") if words(one) in text] == ([key] if key else [])

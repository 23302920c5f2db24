"""Reports on made-up comparisons over the five published benchmarks: 34 metrics, flips with answers of any text."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

from benchmarks.made_up import MadeUp, Stored, stored
from qualab.model.comparison import Analysis
from qualab.model.engine import TaskDrafting
from qualab.model.items import Answer
from qualab.model.names import ArmName, Language
from qualab.model.report import Report, Table
from qualab.report.model import report_model
from tests.app.fakes import reply
from tests.fresh_store import copy_of
from tests.store.samples import filled

ENDED = datetime(2026, 3, 1, 23, 5, 7, tzinfo=UTC)
TEXTS = ("So the answer is 12.\nFinal answer: 12", "So the answer is 13.\nFinal answer: 13")
HOSTILE = (
    "same up to here: ",
    '#eval("1+1") #set page(width: 1pt) \\\\ *bold* _it_ $x$ ``` <script>alert("off")</script> {{ 7*7 }} '
    "[a](http://x.y) end",
    "<img src=x onerror=alert(1)> | a | b |\n# heading\n> quote\n&amp; <b>on</b> \u202ereversed\u202c "
    "zero\u200bwidth \x00\x07 \U00012000 👍🏽 ❤️ שלום مرحبا नमस्ते e\u0301 \ue000 日本語 ℝ𝒜 " + "x" * 10_000,
)
"""What both texts begin with, and how each of them goes on."""
DRAFTING = filled(
    TaskDrafting, task="gsm8k", n_answers=79, rounds=1_000, draft_tokens=4_000, accepted_tokens=1_234,
    accepted_share=0.3086, mean_length=2.234, median_length=2.0, p10_length=1.0, zero_share=0.41,
    histogram=(410, 300, 200, 90), request_mean_length=2.5, first_third=2.3, last_third=2.1, break_even_margin=-0.2,
)  # fmt: skip


@cache
def without_answers() -> tuple[Stored, Analysis]:
    made = stored(MadeUp(scale=0.06, changed=0.2))
    analysis = made.analyse()
    made.store.put_analysis(analysis, now=ENDED)
    return made, analysis


@cache
def sample(*, texts: tuple[str, str] = TEXTS) -> tuple[Stored, Analysis]:
    """A comparison in a store with its analysis, and both arms' answers to every generated item."""
    made, analysis = without_answers()
    made = replace(made, store=copy_of(made.store))
    answers = [
        Answer(arm=arm, position=item.position, choice=0, repeat=0, request_hash=b"h" * 16, reply=reply(text))
        for item in made.items
        if item.task == "gsm8k"
        for arm, text in zip(ArmName, texts, strict=True)
    ]
    made.store.add_answers(made.comparison.id, answers)
    return made, analysis


@cache
def report(language: Language = Language.ENGLISH) -> Report:
    made, _ = sample()
    return report_model(made.store, made.comparison.id, language)


@cache
def hostile_report(language: Language = Language.ENGLISH) -> Report:
    shared, off, on = HOSTILE
    made, _ = sample(texts=(shared + off, shared + on))
    return report_model(made.store, made.comparison.id, language)


def metrics_of(model: Report) -> Table:
    """The table of all metrics."""
    table = model.section("metrics").blocks[0]
    assert isinstance(table, Table)
    return table


def squeezed(text: str) -> str:
    """The text without what separates cells or marks them up."""
    return re.sub(r"[\s|*\\]", "", text)


def rows_lacking_in(text: str, language: Language) -> list[str]:
    """Rows of the table of all metrics that a form of the report does not show to the digit."""
    rows = ["".join(squeezed(cell.marked) for cell in row.cells) for row in metrics_of(report(language)).rows]
    return [row for row in rows if row not in squeezed(text)]

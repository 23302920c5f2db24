"""What the pages of an item and of the calculator are made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qualab.model.items import Answer
from qualab.model.names import ArmName, Language, Objective
from qualab.model.plan import DecisionRule
from qualab.planning.calculators import powers
from qualab.report.charts import draw
from qualab.service.api.item_page import Pair, pair
from qualab.service.api.pages import power_figures
from qualab.service.words import Wording
from qualab.stats.sizing import items_needed
from tests.app.fakes import failure, reply

ENGLISH = Wording(language=Language.ENGLISH)
RULE = DecisionRule(margin=0.02, alpha=0.05, power=0.8, objective=Objective.EQUIVALENCE)


def both(off: str | None, on: str | None) -> Pair:
    replies = (failure() if text is None else reply(text) for text in (off, on))
    answers = (
        Answer(arm=arm, position=0, choice=0, repeat=0, request_hash=b"h" * 16, reply=own)
        for arm, own in zip(ArmName, replies, strict=True)
    )
    return pair(0, *answers, ENGLISH)


@pytest.mark.parametrize(
    ("off", "on", "shared", "marks", "difference"),
    [
        ("a b c", "a b d e", "a b ", ("c", "d e"), "The texts differ after 4 characters."),
        ("x", "y", "", ("x", "y"), "The texts differ from the first character on."),
        ("ab", "ac", "a", ("b", "c"), "The texts differ after the first character."),
        ("same", "same", "same", ("", ""), "Both texts are the same."),
        ("a\n b", "a b", "a", ("⏎\n␣b", "␣b"), "The texts differ after the first character."),
        ("é", "e\u0301", "", ("é", "e\u0301"), "The texts differ from the first character on."),
        ("12", "12 apples", "12", ("", "␣apples"), "The texts differ after 2 characters."),
    ],
)
def test_texts_are_cut_where_they_part(off: str, on: str, shared: str, marks: tuple[str, str], difference: str) -> None:
    found = both(off, on)
    assert found.difference == difference
    assert [side.shared for side in found.sides] == [shared, shared]
    assert tuple("".join(text for text, is_own in side.parts if is_own) for side in found.sides) == marks
    assert [side.has_ended for side in found.sides] == [on.startswith(off) and off != on, False]


def test_an_answer_that_is_missing_is_not_an_empty_one() -> None:
    found = both(None, "")
    assert found.difference == "One arm has no text to compare."
    texts = [side.answer.reply.text for side in found.sides if side.answer]
    assert texts == [None, ""]


def test_the_calculator_says_what_the_statistics_say() -> None:
    curve, facts, command = power_figures(1_319, 0.05, 0.0, RULE, ENGLISH)
    figures = {fact.label: fact.text for fact in facts}
    power = powers(n_items=1_319, discordance=0.05, margin=0.02).equivalence_guarded
    assert power is not None
    needed = items_needed(discordance=0.05, margin=0.02, power=0.8, is_guarded=True)
    assert figures["Power with 1,319 items"] == f"{100 * power:.1f} %"
    assert figures["Items needed for this margin"] == f"{needed:,}"
    assert curve.here == (1_319.0, power)
    assert command == "qualab stats power --items 1319 --discordance 0.05 --margin 0.02 --alpha 0.05"
    drawn = draw(curve)
    assert (drawn.count("<polyline"), "1,319 items: 87." in drawn, "style=" in drawn) == (1, True, False)
    points = [tuple(map(float, one.split(","))) for one in drawn.partition('points="')[2].partition('"')[0].split()]
    assert (points[0], points[-1][0]) == ((56.0, 244.0), 540.0)
    one_sided, _, none = power_figures(1_319, 0.05, 0.0, replace(RULE, objective=Objective.NON_INFERIORITY), ENGLISH)
    assert (one_sided.here[1] > power, none) == (True, "")


def test_the_curve_goes_beyond_what_is_needed_or_says_that_it_is_not_reached() -> None:
    curve, _, _ = power_figures(100, 0.05, 0.0, RULE, ENGLISH)
    assert curve.points[-1][1] > 0.8
    assert [x for x, _ in curve.points] == sorted({x for x, _ in curve.points})
    assert (100.0, curve.here[1]) in curve.points
    curve, facts, _ = power_figures(1_319, 0.5, 0.0, replace(RULE, margin=0.0025), ENGLISH)
    assert "more than 200,000" in {fact.text for fact in facts}
    assert "are not reached" in curve.description

"""What pages are made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qualab.model.items import Answer
from qualab.model.names import ArmName, Language, Objective
from qualab.planning.calculators import powers
from qualab.report.charts import draw
from qualab.service.viewing.items import Sides, SideShown, sides_of
from qualab.service.viewing.power import PowerQuery, power_page
from qualab.service.words import Wording
from qualab.stats.sizing import items_needed
from tests.app.fakes import failure, reply

ENGLISH = Wording(language=Language.ENGLISH)
ASKED = PowerQuery(items=1_319, discordance=0.05, margin=0.02, alpha=0.05, power=0.8, objective=Objective.EQUIVALENCE)


def answer(text: str | None, arm: ArmName = ArmName.BASELINE) -> Answer:
    said = failure() if text is None else reply(text)
    return Answer(arm=arm, position=0, choice=0, repeat=0, request_hash=b"h" * 16, reply=said)


def both(off: str | None, on: str | None) -> tuple[Sides, SideShown, SideShown]:
    found = sides_of(0, answer(off), answer(on, ArmName.CANDIDATE), ENGLISH)
    return found, *found.sides  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("off", "on", "shared", "marks", "difference"),
    [
        ("a b c", "a b d e", "a b ", ("c", "d"), "The texts differ after 4 characters."),
        ("x", "y", "", ("x", "y"), "The texts differ from the first character on."),
        ("ab", "ac", "a", ("b", "c"), "The texts differ after the first character."),
        ("same", "same", "same", ("", ""), "Both texts are the same."),
        ("a\n b", "a b", "a", ("⏎\n␣b", "␣b"), "The texts differ after the first character."),
        ("é", "e\u0301", "", ("é", "e\u0301"), "The texts differ from the first character on."),
    ],
)
def test_texts_are_cut_where_they_part(off: str, on: str, shared: str, marks: tuple[str, str], difference: str) -> None:
    found, one, other = both(off, on)
    assert found.difference == difference
    assert (one.shared, other.shared) == (shared, shared)
    assert (one.marked, other.marked) == marks


def test_a_text_that_ends_first_says_so() -> None:
    _, one, other = both("12", "12 apples")
    assert (one.shared, one.marked, one.ends, one.rest) == ("12", "", "end of text", "")
    assert (other.shared, other.marked, other.ends, other.rest) == ("12", "␣apples", "", "")


def test_an_answer_that_is_missing_is_not_an_empty_one() -> None:
    found, one, other = both(None, "")
    assert found.difference == "There is no text to compare in one arm."
    assert (one.nothing, one.error) == ("No answer", "500 broken")
    assert (other.nothing, other.error) == ("(empty)", "")
    absent = sides_of(0, None, answer("x"), ENGLISH).sides[0]
    assert (absent.nothing, absent.facts) == ("No answer", ())


def test_what_was_thought_stands_beside_its_answer() -> None:
    thought = replace(answer("x"), reply=reply("x", reasoning="hm\x1b[31m", reasoning_characters=7))
    off, on = sides_of(0, answer("x"), thought, ENGLISH).sides
    assert (off.reasoning, on.reasoning) == ("", "hm‹U+001B›[31m")
    assert [fact.text for fact in on.facts if fact.label == "reasoning"] == ["7 characters"]
    assert "reasoning" not in {fact.label for fact in off.facts}


def test_the_calculator_says_what_the_statistics_say() -> None:
    page = power_page(ASKED, ENGLISH)
    said = {fact.label: fact.text for fact in page.facts}
    power = powers(n_items=1_319, discordance=0.05, margin=0.02).equivalence_guarded
    assert power is not None
    needed = items_needed(discordance=0.05, margin=0.02, power=0.8, is_guarded=True)
    assert said["Power with 1,319 items"] == f"{100 * power:.1f} %"
    assert said["Items needed for this margin"] == f"{needed:,}"
    assert page.curve.here == (1_319.0, power)
    assert page.command == "qualab stats power --items 1319 --discordance 0.05 --margin 0.02 --alpha 0.05"


def test_the_curve_goes_beyond_what_is_needed() -> None:
    page = power_page(replace(ASKED, items=100), ENGLISH)
    assert page.curve.points[-1][1] > 0.8
    assert [x for x, _ in page.curve.points] == sorted({x for x, _ in page.curve.points})
    assert (100.0, page.curve.here[1]) in page.curve.points


def test_what_cannot_be_proven_is_said() -> None:
    page = power_page(replace(ASKED, discordance=0.5, margin=0.0025), ENGLISH)
    assert "more than 200,000" in {fact.text for fact in page.facts}
    assert "are not reached" in page.curve.description


def test_a_loss_alone_is_ruled_out_more_easily() -> None:
    one_sided = power_page(replace(ASKED, objective=Objective.NON_INFERIORITY), ENGLISH)
    assert one_sided.curve.here[1] > power_page(ASKED, ENGLISH).curve.here[1]
    assert one_sided.command == ""


def test_a_curve_is_drawn_to_scale() -> None:
    drawn = draw(power_page(ASKED, ENGLISH).curve)
    assert drawn.count("<polyline") == 1
    assert "1,319 items: 87." in drawn
    assert "style=" not in drawn
    points = drawn.partition('points="')[2].partition('"')[0].split()
    places = [tuple(map(float, point.split(","))) for point in points]
    assert places[0] == (56.0, 244.0)
    assert places[-1][0] == 540.0
    assert min(y for _, y in places) >= 22.0

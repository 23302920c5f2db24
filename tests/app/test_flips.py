"""Flipped items: which, in what order, and where their answers begin to differ."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from qualab.analysis.flips import Flip, Flips, flips
from qualab.errors import InvalidValue
from qualab.report.terminal import print_flips
from qualab.stats.noise import first_difference
from tests.app.fakes import Bench, reply


async def finished() -> tuple[Bench, str]:
    """Item 3 is lost, item 5 is gained, item 7 is answered otherwise and as wrong as before."""
    off, on = {5: "5.", 7: "7!"}, {3: "three, not 3", 7: "seven and a half"}
    bench = Bench.of(
        20, off=lambda p, s: reply(off.get(int(p[4:]), p[4:])), on=lambda p, s: reply(on.get(int(p[4:]), p[4:]))
    )
    return bench, (await bench.run()).comparison_id


async def test_losses_come_before_gains_with_both_answers() -> None:
    bench, comparison_id = await finished()
    found = flips(bench.store, comparison_id)
    assert (found.n_losses, found.n_gains) == (1, 1)
    assert [(one.item, one.is_loss, one.scores, one.answers) for one in found.shown] == [
        ("sums/3", True, (1.0, 0.0), ("3", "three, not 3")),
        ("sums/5", False, (0.0, 1.0), ("5.", "5")),
    ]
    assert [one.first_difference for one in found.shown] == [0, 1]
    assert found.shown[0].target == "3"


async def test_a_limit_leaves_the_counts_and_an_unknown_task_is_refused_with_those_that_are_there() -> None:
    bench, comparison_id = await finished()
    found = flips(bench.store, comparison_id, limit=1, task="sums")
    assert (found.n_losses, found.n_gains, len(found.shown)) == (1, 1, 1)
    with pytest.raises(InvalidValue, match="There is no task sum") as caught:
        flips(bench.store, comparison_id, task="sum")
    assert "sums" in caught.value.hint


@pytest.mark.parametrize(
    ("answers", "baseline"),
    [
        (("She has 18 dollars", "She has two"), "She has [[18]] dollars"),
        (("She has", "She has two"), "She has[[(end)]]"),
        (("a" * 100 + "b" + "c" * 500, "a" * 100), f"...{'a' * 60}[[b{'c' * 23}]]{'c' * 136}..."),
        (("a b", "ab"), "a[[ ]]b"),
        (("red\x1b[31m \x07\n\u202eevil", "red"), "red[[‹U+001B›[31m]] ‹U+0007›\\n‹U+202E›evil"),
        (("정답은 3번 🧪\té", "정답은 4번"), "정답은 [[3번]] 🧪\\té"),
    ],
)
def test_the_word_at_the_difference_is_marked_on_a_line_that_commands_no_terminal(
    answers: tuple[str, str], baseline: str
) -> None:
    assert f"  baseline : {baseline}" in shown(119, answers=answers).replace("\n", "")


def shown(width: int, *, answers: tuple[str, str] = ("It is 4.\x1b[2J", "It is 5.")) -> str:
    one = Flip(
        item="sums/3",
        repeat=0,
        metric="sums/exact_match,none",
        is_loss=True,
        scores=(1.0, 0.0),
        target="4 [bold]",
        answers=answers,
        first_difference=first_difference(*answers),
    )
    console = Console(width=width, file=io.StringIO(), record=True)
    print_flips(console, Flips(n_losses=3, n_gains=1, shown=(one,)))
    return console.export_text()


def test_answers_stand_one_above_the_other() -> None:
    lines = shown(80).splitlines()
    assert lines[0] == "3 lost, 1 gained by the candidate; 1 shown (--limit)"
    assert "lost  sums/3  exact_match,none: 1 to 0" in lines
    assert "  right: 4 [bold]" in lines
    assert "  baseline : It is [[4.‹U+001B›[2J]]" in lines
    assert "  candidate: It is [[5.]]" in lines


def test_the_same_text_with_another_score_is_said() -> None:
    assert "both: 4 (the same text)" in shown(80, answers=("4", "4"))

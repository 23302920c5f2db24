"""What became of each item, which flipped, and where their answers begin to differ."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from qualab.analysis.flips import Flip, Flips, Outcomes, flips, have_outcomes
from qualab.errors import InvalidValue, RunStopped
from qualab.model.comparison import Comparison
from qualab.model.items import Answer, Change, Item, Outcome, OutcomeFilter, Reply, Score
from qualab.model.names import AnswerStatus, ArmName, MetricKind, RequestKind
from qualab.model.plan import MetricSpec, deciding_metrics
from qualab.model.ports import ComparisonFilter
from qualab.report.flips import find_flips
from qualab.report.terminal import print_flips
from qualab.stats.noise import first_difference
from qualab.store import Store
from tests.app.fakes import Answerer, Bench, FakeTasks, echo_number, failure, metric_spec, reply
from tests.store.samples import BASELINE, CANDIDATE, make_answer, make_choices, make_item


def says(replies: Mapping[int, Reply]) -> Answerer:
    return lambda prompt, seed: replies.get(int(prompt[4:]), echo_number(prompt, seed))


async def finished() -> tuple[Store, Comparison]:
    """Right in both arms but for 3 (lost), 5 (won), 7 (wrong in both, in other words) and 8 (no answer)."""
    off, on = {5: reply("5."), 7: reply("seven")}, {3: reply("three"), 7: reply("seven!"), 8: failure()}
    bench = Bench.of(10, off=says(off), on=says(on))
    return bench.store, bench.store.get((await bench.run()).comparison_id)


def by_doc(store: Store, comparison_id: str, **wanted: Any) -> dict[int, Outcome]:
    return {one.doc_id: one for one in store.outcomes(comparison_id, OutcomeFilter(**wanted)).entries}


async def test_a_finished_run_tells_what_became_of_its_items_and_one_finished_before_gets_the_same() -> None:
    store, comparison = await finished()
    found = by_doc(store, comparison.id)
    changes = {doc_id: one.change for doc_id, one in found.items() if one.change is not Change.SAME}
    assert changes == {3: Change.LOSS, 5: Change.GAIN, 8: Change.UNKNOWN}
    assert (found[3].baseline, found[3].candidate) == (1.0, 0.0)
    assert (found[8].baseline, found[8].candidate) == (1.0, None)
    assert {doc_id for doc_id, one in found.items() if one.different_text} == {3, 5, 7}
    assert [found[doc_id].length for doc_id in (0, 3, 7, 8)] == [1, 5, 6, 1]
    assert {one.task for one in found.values()} == {"sums"}
    store.put_scores(comparison.id, list(store.scores(comparison.id)))
    assert not store.has_outcomes(comparison.id)
    assert have_outcomes(store, comparison)
    assert by_doc(store, comparison.id) == found
    bench = Bench.of(10, on=lambda p, s: failure())
    with pytest.raises(RunStopped):
        await bench.run()
    assert not have_outcomes(bench.store, bench.store.list(ComparisonFilter())[0])


def test_the_primary_metric_decides_else_that_of_a_group_else_the_first() -> None:
    one, other = metric_spec("a", name="one"), metric_spec("a", name="other")
    plain = [replace(spec, is_primary=False) for spec in (one, other)]
    group = metric_spec("all", name="other", kind=MetricKind.GROUP_MEAN, members=("a",))
    assert deciding_metrics(plain) == {"a": plain[0]}
    assert deciding_metrics([plain[0], other]) == {"a": other}
    assert deciding_metrics([one, other]) == {"a": one}
    assert deciding_metrics([group, plain[1], one]) == {"a": one}
    assert deciding_metrics([group, *plain]) == {"a": plain[1]}


class Grouped(FakeTasks):
    """A group whose primary metric is the second of its task."""

    @property
    def metrics(self) -> tuple[MetricSpec, ...]:
        own = [metric_spec("sums", name=name, is_primary=False) for name in ("acc", "f1")]
        return (*own, metric_spec("all", name="f1", kind=MetricKind.GROUP_MEAN, members=("sums",)))

    def score(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> list[dict[str, Any]]:
        """What has an s in it fails the one, what has a full stop the other."""
        texts = [replies[0].text or "" for _, replies in answered]
        return [{"acc,none": float("s" not in text), "f1,none": float("." not in text)} for text in texts]


async def test_terminal_web_rest_and_report_agree_on_what_decides_in_a_group() -> None:
    bench = Bench.of(20, Grouped, on=says({3: reply("3s"), 4: reply("4s"), 5: reply("5.")}))
    comparison, store = bench.store.get((await bench.run()).comparison_id), bench.store
    assert deciding_metrics(comparison.plan.metrics)["sums"].id == "sums/f1,none"
    assert [(one.item, one.metric) for one in flips(store, comparison.id).shown] == [("sums/5", "sums/f1,none")]
    assert list(by_doc(store, comparison.id, flipped=True)) == [5]
    reported = find_flips(store, comparison).shown
    assert [(one.change.metric, one.item.doc_id) for one in reported] == [("f1,none", 5)]


def rows_of(item: Item, answers: Sequence[Answer] = (), scores: Sequence[Score] = (), **changes: Any) -> list[Outcome]:
    outcomes = Outcomes([item, make_choices(1)], [metric_spec(item.task, **changes)])
    for answer in answers:
        outcomes.add_answer(answer)
    for score in scores:
        outcomes.add_score(score)
    return list(outcomes.rows())


def test_where_less_is_better_less_is_a_gain() -> None:
    place = {"position": 0, "repeat": 0}
    scores = [
        Score(arm=arm, **place, metric=metric, value=value)
        for arm, own in {BASELINE: 2.0, CANDIDATE: 1.5}.items()
        for metric, value in ((metric_spec().key, own), ("another", -9.0))
    ]
    answers = [make_answer(0, arm) for arm in ArmName]
    (found,) = rows_of(make_item(0, task="sums"), answers, scores, higher_is_better=False)
    assert (found.change, found.baseline, found.candidate) == (Change.GAIN, 2.0, 1.5)


def test_choices_and_failures_have_no_text_repeats_stand_by_themselves_and_what_nobody_asked_has_no_outcome() -> None:
    (choice,) = rows_of(make_choices(0), [make_answer(0, arm, arm, choice=n) for arm in ArmName for n in range(3)])
    assert (choice.kind, choice.different_text, choice.length) == (RequestKind.LOGLIKELIHOOD, False, 0)
    cut = [AnswerStatus.TRUNCATED, AnswerStatus.TRUNCATED, AnswerStatus.TIMEOUT]
    answers = [make_answer(0, BASELINE, "a", repeat=repeat) for repeat in range(3)]
    answers += [make_answer(0, CANDIDATE, "abc"[n], repeat=n, status=status) for n, status in enumerate(cut)]
    found = [(one.repeat, one.different_text, one.length) for one in rows_of(make_item(0, task="sums"), answers)]
    assert found == [(0, False, 1), (1, True, 1), (2, False, 1)]


async def test_losses_come_before_gains_with_both_answers_up_to_a_limit_and_of_a_task_that_there_is() -> None:
    store, comparison = await finished()
    found = flips(store, comparison.id)
    assert (found.n_losses, found.n_gains) == (1, 1)
    assert [(one.item, one.is_loss, one.scores, one.answers, one.first_difference) for one in found.shown] == [
        ("sums/3", True, (1.0, 0.0), ("3", "three"), 0),
        ("sums/5", False, (0.0, 1.0), ("5.", "5"), 1),
    ]
    assert found.shown[0].target == "3"
    limited = flips(store, comparison.id, limit=1, task="sums")
    assert (limited.n_losses, limited.n_gains, limited.shown) == (1, 1, found.shown[:1])
    with pytest.raises(InvalidValue, match="There is no task sum") as caught:
        flips(store, comparison.id, task="sum")
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


def shown(width: int, *, answers: tuple[str, str]) -> str:
    place = {"item": "sums/3", "repeat": 0, "metric": "sums/exact_match,none", "is_loss": True, "scores": (1.0, 0.0)}
    one = Flip(**place, target="4 [bold]", answers=answers, first_difference=first_difference(*answers))
    console = Console(width=width, file=io.StringIO(), record=True)
    print_flips(console, Flips(n_losses=3, n_gains=1, shown=(one,)))
    return console.export_text()


def test_answers_stand_one_above_the_other_and_a_text_of_both_once() -> None:
    lines = shown(80, answers=("It is 4.\x1b[2J", "It is 5.")).splitlines()
    assert lines[0] == "3 lost, 1 gained by the candidate; 1 shown (--limit)"
    assert {
        "lost  sums/3  exact_match,none: 1 to 0",
        "  right: 4 [bold]",
        "  baseline : It is [[4.‹U+001B›[2J]]",
        "  candidate: It is [[5.]]",
    } <= set(lines)
    assert "both: 4 (the same text)" in shown(80, answers=("4", "4"))

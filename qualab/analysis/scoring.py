"""Scores every stored answer with the harness's own filters and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from numbers import Real
from typing import TYPE_CHECKING, Any

from qualab.analysis.flips import Outcomes
from qualab.analysis.summaries import Summary
from qualab.model.items import Answer, Item, Reply, Score
from qualab.model.names import ArmName
from qualab.model.plan import MetricSpec
from qualab.model.ports import ScoredTasks

if TYPE_CHECKING:
    from qualab.store import Store

CHUNK = 1_000

Answered = tuple[ArmName, Item, int, tuple[Reply, ...]]
"""Arm, item, repeat, and a reply for each of the item's requests."""


def score_answers(
    store: Store, comparison_id: str, tasks: ScoredTasks, items: Sequence[Item], metrics: Sequence[MetricSpec]
) -> Summary:
    """Replaces the comparison's scores by those of all items that are answered whole, and its outcomes by what they
    come to. `items` by position.

    Every answer is read once; the summary counts what went by.
    """
    summary, outcomes = Summary(items), Outcomes(items, metrics)
    scores = _scores(store, comparison_id, tasks, items, seen_by=(summary.add, outcomes.add_answer))
    store.put_scores(comparison_id, outcomes.passing(scores))
    store.put_outcomes(comparison_id, outcomes.rows())
    return summary


def summary_of(store: Store, comparison_id: str, items: Sequence[Item]) -> Summary:
    """How both arms answered, from every stored answer; nothing is scored. `items` by position."""
    summary = Summary(items)
    for arm in ArmName:
        for answer in store.answers(comparison_id, arm=arm):
            summary.add(answer)
    return summary


def scores_between(
    store: Store,
    comparison_id: str,
    tasks: ScoredTasks,
    items: Sequence[Item],
    positions: range,
    *,
    seen_by: Callable[[Answer], None],
) -> Iterator[Score]:
    """The scores of the answers at these positions, in the same order whatever else is stored."""
    for arm in ArmName:
        answers = (one for one in store.answers(comparison_id, arm=arm) if one.position in positions)
        yield from scores_of(_passing(answers, (seen_by,)), tasks, items)


def _scores(
    store: Store,
    comparison_id: str,
    tasks: ScoredTasks,
    items: Sequence[Item],
    *,
    seen_by: Sequence[Callable[[Answer], None]],
) -> Iterator[Score]:
    for arm in ArmName:
        yield from scores_of(_passing(store.answers(comparison_id, arm=arm), seen_by), tasks, items)


def scores_of(answers: Iterator[Answer], tasks: ScoredTasks, items: Sequence[Item]) -> Iterator[Score]:
    """The scores of one arm's answers, which are in order of position. `items` by position."""
    for task, entries in groupby(answered_items(answers, items), key=lambda entry: entry[1].task):
        while chunk := list(islice(entries, CHUNK)):
            values = tasks.score(task, [(item, replies) for _, item, _, replies in chunk])
            for entry, metrics in zip(chunk, values, strict=True):
                yield from _rows(entry, metrics)


def _passing(answers: Iterator[Answer], seen_by: Sequence[Callable[[Answer], None]]) -> Iterator[Answer]:
    for answer in answers:
        for see in seen_by:
            see(answer)
        yield answer


def answered_items(answers: Iterator[Answer], items: Sequence[Item]) -> Iterator[Answered]:
    """Items whose every request has an answer, in order of position; `answers` are one arm's, by position."""
    for (position, arm), rows in groupby(answers, key=lambda answer: (answer.position, answer.arm)):
        by_repeat: dict[int, list[Reply]] = {}
        for row in rows:
            if row.reply.status.is_answer:
                by_repeat.setdefault(row.repeat, []).append(row.reply)
        item = items[position]
        for repeat, replies in sorted(by_repeat.items()):
            if len(replies) == len(item.prompts):
                yield arm, item, repeat, tuple(replies)


def _rows(entry: Answered, metrics: Mapping[str, Any]) -> Iterator[Score]:
    arm, item, repeat, _ = entry
    for metric, raw in metrics.items():
        value, detail = _split(raw)
        yield Score(arm=arm, position=item.position, repeat=repeat, metric=metric, value=value, detail=detail)


def _split(raw: Any) -> tuple[float, tuple[Any, ...] | None]:
    """A harness score as one number, and as what it is made of where it is not one."""
    if isinstance(raw, Real) or hasattr(raw, "item"):
        return float(raw), None
    if isinstance(raw, tuple):
        pair = tuple(_plain(part) for part in raw)
        return float(pair[0] == pair[1]), pair
    parts = tuple(_plain(part) for part in raw)
    return (sum(parts) / len(parts) if parts else 0.0), parts


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def raw_value(score: Score) -> Any:
    """The harness's own score again, as its aggregations take it: a number, a list, or a pair."""
    if score.detail is None:
        return score.value
    return score.detail

"""Scores every stored answer with the harness's own filters and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    """Replace scores and outcomes by those of all complete answers, each read once. `items` by position."""
    summary, outcomes = Summary(items), Outcomes(items, metrics)
    scores = seen_scores(store, comparison_id, tasks, items, summary.add, outcomes.add_answer)
    store.put_scores(comparison_id, outcomes.passing(scores))
    store.put_outcomes(comparison_id, outcomes.rows())
    return summary


def summary_of(store: Store, comparison_id: str, items: Sequence[Item]) -> Summary:
    """Summarize every stored answer without scoring. `items` by position."""
    summary = Summary(items)
    for arm in ArmName:
        for answer in store.answers(comparison_id, arm=arm):
            summary.add(answer)
    return summary


def seen_scores(
    store: Store,
    comparison_id: str,
    tasks: ScoredTasks,
    items: Sequence[Item],
    *seen_by: Callable[[Answer], None],
    positions: range | None = None,
) -> Iterator[Score]:
    """Score the answers at these positions (None: all), whatever else is stored.

    Args:
        seen_by: each is given every answer as it goes by.
    """

    def answers(arm: ArmName) -> Iterator[Answer]:
        for answer in store.answers(comparison_id, arm=arm):
            if positions is None or answer.position in positions:
                for see in seen_by:
                    see(answer)
                yield answer

    for arm in ArmName:
        yield from scores_of(answers(arm), tasks, items)


def scores_of(answers: Iterator[Answer], tasks: ScoredTasks, items: Sequence[Item]) -> Iterator[Score]:
    """Score one arm's answers, ordered by position. `items` by position."""
    for task, entries in groupby(answered_items(answers, items), key=lambda entry: entry[1].task):
        while chunk := list(islice(entries, CHUNK)):
            values = tasks.score(task, [(item, replies) for _, item, _, replies in chunk])
            for (arm, item, repeat, _), metrics in zip(chunk, values, strict=True):
                place: Any = {"arm": arm, "position": item.position, "repeat": repeat}
                for metric, (value, detail) in zip(metrics, map(_split, metrics.values()), strict=True):
                    yield Score(**place, metric=metric, value=value, detail=detail)


def answered_items(answers: Iterator[Answer], items: Sequence[Item]) -> Iterator[Answered]:
    """Yield items whose every request is answered; `answers` are one arm's, ordered by position."""
    for (position, arm), rows in groupby(answers, key=lambda answer: (answer.position, answer.arm)):
        by_repeat: dict[int, list[Reply]] = {}
        for row in rows:
            if row.reply.status.is_answer:
                by_repeat.setdefault(row.repeat, []).append(row.reply)
        item = items[position]
        for repeat, replies in sorted(by_repeat.items()):
            if len(replies) == len(item.prompts):
                yield arm, item, repeat, tuple(replies)


def _split(raw: Any) -> tuple[float, tuple[Any, ...] | None]:
    if isinstance(raw, Real) or hasattr(raw, "item"):
        return float(raw), None
    parts = tuple(part.item() if hasattr(part, "item") else part for part in raw)
    if isinstance(raw, tuple):
        return float(parts[0] == parts[1]), parts
    return (sum(parts) / len(parts) if parts else 0.0), parts


def raw_value(score: Score) -> Any:
    """Return the harness's own score again: a number, a list, or a pair."""
    return score.value if score.detail is None else score.detail

"""What became of each item in both arms, from answers and scores as they go by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from qualab.domain.comparison import Comparison
from qualab.domain.items import Answer, Item, Score
from qualab.domain.names import ArmName, ComparisonStatus, RequestKind
from qualab.domain.outcomes import Change, Outcome
from qualab.domain.plan import MetricSpec, deciding_metrics
from qualab.ports import Registry, Store

_Key = tuple[int, int]
"""Position and repeat."""


class _Text(NamedTuple):
    """What an answer's text leaves behind to be compared with the other arm's."""

    hash: int
    length: int


class Outcomes:
    """Sees both arms' answers and scores, in any order, and tells each item's outcome at the end."""

    def __init__(self, items: Sequence[Item], metrics: Sequence[MetricSpec]) -> None:
        """`items` by position."""
        self._items = items
        self._metrics = deciding_metrics(metrics)
        self._is_generation = [item.kind is RequestKind.GENERATION for item in items]
        self._deciding = [self._metrics[item.task].key if item.task in self._metrics else "" for item in items]
        self._asked: set[_Key] = set()
        self._texts: dict[ArmName, dict[_Key, _Text]] = {arm: {} for arm in ArmName}
        self._values: dict[ArmName, dict[_Key, float]] = {arm: {} for arm in ArmName}

    def add_answer(self, answer: Answer) -> None:
        key, reply = (answer.position, answer.repeat), answer.reply
        self._asked.add(key)
        if self._is_generation[answer.position] and reply.text is not None and reply.status.is_answer:
            self._texts[answer.arm][key] = _Text(hash(reply.text), len(reply.text))

    def add_score(self, score: Score) -> None:
        if score.metric == self._deciding[score.position]:
            self._values[score.arm][score.position, score.repeat] = score.value

    def passing(self, scores: Iterable[Score]) -> Iterator[Score]:
        """The scores as they come, each seen."""
        for score in scores:
            self.add_score(score)
            yield score

    def rows(self) -> Iterator[Outcome]:
        """Of everything that was asked in an arm, in order of (position, repeat)."""
        (texts, other_texts), (values, other_values) = self._texts.values(), self._values.values()
        nothing = _Text(0, 0)
        for key in sorted(self._asked):
            position, repeat = key
            item = self._items[position]
            one, other = texts.get(key), other_texts.get(key)
            baseline, candidate = values.get(key), other_values.get(key)
            yield Outcome(
                position=position,
                repeat=repeat,
                task=item.task,
                doc_id=item.doc_id,
                kind=item.kind,
                change=_change(baseline, candidate, self._metrics.get(item.task)),
                baseline=baseline,
                candidate=candidate,
                different_text=one is not None and other is not None and one != other,
                length=max((one or nothing).length, (other or nothing).length),
            )


def have_outcomes(store: Store, registry: Registry, comparison: Comparison) -> bool:
    """Whether the comparison has outcomes. One that was finished before there were any gets them now."""
    if registry.has_outcomes(comparison.id):
        return True
    if comparison.status is not ComparisonStatus.FINISHED:
        return False
    items = list(store.items(comparison.id))
    store.put_outcomes(comparison.id, outcomes_of(store, comparison, items))
    return bool(items)


def outcomes_of(store: Store, comparison: Comparison, items: Sequence[Item]) -> Iterator[Outcome]:
    """From stored answers and scores, in order of (position, repeat). `items` by position."""
    outcomes = Outcomes(items, comparison.plan.metrics)
    for arm in ArmName:
        for answer in store.answers(comparison.id, arm=arm):
            outcomes.add_answer(answer)
    for score in store.scores(comparison.id):
        outcomes.add_score(score)
    return outcomes.rows()


def _change(baseline: float | None, candidate: float | None, metric: MetricSpec | None) -> Change:
    if baseline is None or candidate is None:
        return Change.UNKNOWN
    if baseline == candidate:
        return Change.SAME
    is_higher_better = metric is None or metric.higher_is_better
    return Change.GAIN if (candidate > baseline) is is_higher_better else Change.LOSS

"""Pairs of answers that differ in score, in text alone, or in what leaked, and where they begin to differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from qualab.analysis.endings import Leaks, LeakTrace, leaks_in
from qualab.errors import InvalidValue
from qualab.model.comparison import Comparison
from qualab.model.engine import PairKind, first_tokens_seen
from qualab.model.items import Answer, Change, Item, Outcome, Score, ScoreFlip
from qualab.model.names import ArmName, ComparisonStatus, LeakKind, RequestKind
from qualab.model.plan import MetricSpec, Plan, deciding_metrics
from qualab.stats.noise import first_difference

if TYPE_CHECKING:
    from qualab.store import Store
    from qualab.store.registry import Registry

Candidate = tuple[MetricSpec, ScoreFlip]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both arms' answers to one item."""

    item: str
    """As "gsm8k/17"."""
    repeat: int
    target: str
    """The right answer, as the task has it."""
    answers: tuple[str, str]
    """Texts; of a log-likelihood item its choices with their log-likelihoods."""
    first_difference: int | None
    """Character (from 0) at which the answers begin to differ; None where they are the same."""
    first_token: int | None = None
    """Token (from 0) at which they do, of the texts tokenized again; None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip(Pair):
    """One answer whose score is another in the candidate."""

    metric: str
    is_loss: bool
    scores: tuple[float, float]
    """The baseline's, the candidate's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPair(Pair):
    """Two generated texts, with how each of them leaks."""

    leaks: tuple[tuple[LeakKind, ...], tuple[LeakKind, ...]]
    """The baseline's, the candidate's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPairs:
    """In the order of tasks and documents; of leaks, those in one arm alone first."""

    n_pairs: int
    shown: tuple[TextPair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    """Losses first, then gains, each in the order of tasks and documents."""

    n_losses: int
    n_gains: int
    shown: tuple[Flip, ...]


def text_pairs(store: Store, comparison_id: str, *, leaks: bool = False, task: str = "", limit: int = 20) -> TextPairs:
    """The generations whose texts differ without a flip; with `leaks` those of which a text leaks.

    Raises InvalidValue for a task that is not there.
    """
    comparison = store.get(comparison_id)
    metrics = _metrics(comparison.plan, task)
    items = {
        item.position: item
        for item in store.items(comparison.id)
        if item.kind is RequestKind.GENERATION and item.task in metrics
    }
    flipped = {
        (one.position, one.repeat)
        for one in store.flips(comparison.id, metrics={spec.key for spec in metrics.values()})
        if one.position in items and metrics[items[one.position].task].key == one.metric
    }
    baseline: dict[tuple[int, int], LeakTrace] = {}
    found = []
    for answer in chain(*(store.answers(comparison.id, arm=arm) for arm in ArmName)):
        place = answer.position, answer.repeat
        if answer.position not in items or not answer.reply.status.is_answer:
            continue
        trace = LeakTrace(answer.reply.text or "", leaks_in(answer.reply, items[answer.position]))
        if answer.arm is ArmName.BASELINE:
            baseline[place] = trace
        elif (other := baseline.pop(place, None)) is not None:
            both = other.beside(trace), trace.beside(other)
            if any(both) if leaks else other.text != trace.text and place not in flipped:
                found.append((place, (other.text, trace.text), both))
    order = {name: number for number, name in enumerate(metrics)}

    def rank(one: tuple[tuple[int, int], object, tuple[Leaks, Leaks]]) -> tuple[bool, int, int, int]:
        (position, repeat), _, (off, on) = one
        item = items[position]
        return leaks and off == on, order[item.task], item.doc_id, repeat

    tokens = _first_tokens(store, comparison.id)
    shown = (
        TextPair(
            item=items[place[0]].id,
            repeat=place[1],
            target=items[place[0]].target,
            answers=texts,
            first_difference=first_difference(*texts),
            first_token=tokens.get(place),
            leaks=(tuple(sorted(both[0])), tuple(sorted(both[1]))),
        )
        for place, texts, both in sorted(found, key=rank)[:limit]
    )
    return TextPairs(n_pairs=len(found), shown=tuple(shown))


def _first_tokens(store: Store, comparison_id: str) -> Mapping[tuple[int, int], int | None]:
    """By position and repeat; empty where texts were not tokenized."""
    seen = first_tokens_seen(store.observations(comparison_id))
    return seen.places(PairKind.ARMS) if seen else {}


def flips(store: Store, comparison_id: str, *, task: str = "", limit: int = 20) -> Flips:
    """The flipped items of each task's deciding metric. Raises InvalidValue for a task that is not there."""
    comparison = store.get(comparison_id)
    metrics = _metrics(comparison.plan, task)
    changed = list(store.flips(comparison.id, metrics={spec.key for spec in metrics.values()}))
    items = {item.position: item for item in store.items(comparison.id, positions={one.position for one in changed})}
    found = [
        (spec, one)
        for one in changed
        if (spec := metrics.get(items[one.position].task)) is not None and spec.key == one.metric
    ]
    order = {name: number for number, name in enumerate(metrics)}

    def rank(candidate: Candidate) -> tuple[bool, int, int, int]:
        spec, one = candidate
        return not _is_loss(candidate), order[spec.task], items[one.position].doc_id, one.repeat

    found.sort(key=rank)
    n_losses = sum(map(_is_loss, found))
    shown = tuple(_with_answers(store, comparison.id, found[:limit], items))
    return Flips(n_losses=n_losses, n_gains=len(found) - n_losses, shown=shown)


def _metrics(plan: Plan, wanted: str) -> dict[str, MetricSpec]:
    """The deciding metric of every task, or of those that are named."""
    groups = {spec.task: spec.members for spec in plan.metrics if spec.members}
    tasks = [task.name for task in plan.tasks]
    if wanted:
        named = [task for task in tasks if task == wanted or task in groups.get(wanted, ())]
        if not named:
            raise InvalidValue(f"There is no task {wanted}", hint=f"There are: {', '.join((*groups, *tasks))}")
        tasks = named
    deciding = deciding_metrics(plan.metrics)
    return {task: deciding[task] for task in tasks if task in deciding}


def _is_loss(candidate: Candidate) -> bool:
    spec, flip = candidate
    return flip.candidate < flip.baseline if spec.higher_is_better else flip.candidate > flip.baseline


def _with_answers(
    store: Store, comparison_id: str, wanted: Sequence[Candidate], items: Mapping[int, Item]
) -> Iterator[Flip]:
    positions = {flip.position for _, flip in wanted}
    answers: dict[tuple[ArmName, int, int], list[Answer]] = {}
    for arm in ArmName:
        for answer in store.answers(comparison_id, arm=arm, positions=positions):
            answers.setdefault((arm, answer.position, answer.repeat), []).append(answer)
    tokens = _first_tokens(store, comparison_id)
    for spec, flip in wanted:
        item = items[flip.position]
        off, on = (_text(item, answers.get((arm, flip.position, flip.repeat), ())) for arm in ArmName)
        yield Flip(
            item=item.id,
            repeat=flip.repeat,
            metric=spec.id,
            is_loss=_is_loss((spec, flip)),
            scores=(flip.baseline, flip.candidate),
            target=item.target,
            answers=(off, on),
            first_difference=first_difference(off, on),
            first_token=tokens.get((flip.position, flip.repeat)),
        )


def _text(item: Item, answers: Sequence[Answer]) -> str:
    if item.kind is RequestKind.GENERATION:
        return next((answer.reply.text or "" for answer in answers), "")
    return ", ".join(_choices(item, answers))


def _choices(item: Item, answers: Sequence[Answer]) -> Iterator[str]:
    for answer in answers:
        value = answer.reply.loglikelihood
        if value is not None:
            yield f"{item.prompts[answer.choice].continuation.strip()} {value:.3f}"


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

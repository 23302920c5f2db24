"""Pairs of answers that differ in score, in text alone, or in what leaked, and where they begin to differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from qualab.analysis.endings import LeakTrace, leaks_in
from qualab.errors import InvalidValue
from qualab.model.comparison import Comparison
from qualab.model.engine import FirstTokensSeen, PairKind, last_seen
from qualab.model.items import Answer, Change, Item, Outcome, Place, Score
from qualab.model.names import ArmName, ComparisonStatus, LeakKind, RequestKind
from qualab.model.plan import MetricSpec, Plan, deciding_metrics
from qualab.stats.noise import first_difference

if TYPE_CHECKING:
    from qualab.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both arms' answers to one item."""

    item: str
    repeat: int
    target: str
    answers: tuple[str, str]
    """Texts; of a log-likelihood item its choices with their log-likelihoods."""
    first_difference: int | None
    """Character (from 0) at which the answers begin to differ; None where they are the same."""
    first_token: int | None = None
    """Token (from 0) at which they do, of the texts tokenized again; None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip(Pair):
    """An answer whose score changed in the candidate."""

    metric: str
    is_loss: bool
    scores: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPair(Pair):
    """Two generated texts with their leaks."""

    leaks: tuple[tuple[LeakKind, ...], tuple[LeakKind, ...]]


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
    """List generations with other texts and no flip, or with `leaks`; InvalidValue for an unknown task."""
    comparison = store.get(comparison_id)
    metrics = _deciding(comparison.plan, task)
    items = {
        item.position: item
        for item in store.items(comparison.id)
        if item.kind is RequestKind.GENERATION and item.task in metrics
    }
    flipped = {
        (flip.position, flip.repeat)
        for flip in store.flips(comparison.id, metrics={spec.key for spec in metrics.values()})
        if flip.position in items and metrics[items[flip.position].task].key == flip.metric
    }
    baseline: dict[Place, LeakTrace] = {}
    listed = []
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
                listed.append((leaks and both[0] == both[1], place, (other.text, trace.text), both))
    order = {name: number for number, name in enumerate(metrics)}
    # those in one arm alone first
    listed.sort(key=lambda entry: (entry[0], order[items[entry[1][0]].task], items[entry[1][0]].doc_id, entry[1][1]))
    tokens = _first_tokens(store, comparison.id)
    shown = (
        TextPair(
            **_pair_facts(items[place[0]], place[1], texts, tokens),
            leaks=(tuple(sorted(both[0])), tuple(sorted(both[1]))),
        )
        for _, place, texts, both in listed[:limit]
    )
    return TextPairs(n_pairs=len(listed), shown=tuple(shown))


def flips(store: Store, comparison_id: str, *, task: str = "", limit: int = 20) -> Flips:
    """List the flips of each task's deciding metric; InvalidValue for an unknown task."""
    comparison = store.get(comparison_id)
    metrics = _deciding(comparison.plan, task)
    changed = list(store.flips(comparison.id, metrics={spec.key for spec in metrics.values()}))
    positions = {change.position for change in changed}
    items = {item.position: item for item in store.items(comparison.id, positions=positions)}
    order = {name: number for number, name in enumerate(metrics)}
    flipped = []
    for change in changed:
        item = items[change.position]
        spec = metrics.get(item.task)
        if spec is not None and spec.key == change.metric:
            is_loss = change_of(change.baseline, change.candidate, spec) is Change.LOSS
            flipped.append(((not is_loss, order[spec.task], item.doc_id, change.repeat), change, item, spec))
    flipped.sort(key=lambda entry: entry[0])
    positions = {change.position for _, change, *_ in flipped[:limit]}
    answers: dict[tuple[ArmName, int, int], list[Answer]] = {}
    for answer in chain(*(store.answers(comparison.id, arm=arm, positions=positions) for arm in ArmName)):
        answers.setdefault((answer.arm, answer.position, answer.repeat), []).append(answer)
    tokens, shown = _first_tokens(store, comparison.id), []
    for (is_gain, *_), change, item, spec in flipped[:limit]:
        off, on = (answer_text(item, answers.get((arm, change.position, change.repeat), ())) for arm in ArmName)
        facts = _pair_facts(item, change.repeat, (off, on), tokens)
        scores = change.baseline, change.candidate
        shown.append(Flip(metric=spec.id, is_loss=not is_gain, scores=scores, **facts))
    n_losses = sum(not is_gain for (is_gain, *_), *_ in flipped)
    return Flips(n_losses=n_losses, n_gains=len(flipped) - n_losses, shown=tuple(shown))


def _pair_facts(
    item: Item, repeat: int, answers: tuple[str, str], tokens: Mapping[Place, int | None]
) -> dict[str, Any]:
    return {
        "item": item.id,
        "repeat": repeat,
        "target": item.target,
        "answers": answers,
        "first_difference": first_difference(*answers),
        "first_token": tokens.get((item.position, repeat)),
    }


def _deciding(plan: Plan, name: str) -> dict[str, MetricSpec]:
    groups = {spec.task: spec.members for spec in plan.metrics if spec.members}
    tasks = [task.name for task in plan.tasks]
    named = [task for task in tasks if not name or task == name or task in groups.get(name, ())]
    if name and not named:
        raise InvalidValue(f"There is no task {name}", hint=f"There are: {', '.join((*groups, *tasks))}")
    deciding = deciding_metrics(plan.metrics)
    return {task: deciding[task] for task in named if task in deciding}


def _first_tokens(store: Store, comparison_id: str) -> dict[Place, int | None]:
    seen = last_seen(store.observations(comparison_id), FirstTokensSeen)
    return dict(seen.places(PairKind.ARMS)) if seen else {}


def answer_text(item: Item, answers: Sequence[Answer]) -> str:
    """Return a generation's text, or each choice with its log-likelihood."""
    if item.kind is RequestKind.GENERATION:
        return next((answer.reply.text or "" for answer in answers), "")
    return ", ".join(
        f"{item.prompts[answer.choice].continuation.strip()} {answer.reply.loglikelihood:.3f}"
        for answer in answers
        if answer.reply.loglikelihood is not None
    )


class Outcomes:
    """Collects both arms' answers and scores, in any order, into each item's outcome. `items` by position."""

    def __init__(self, items: Sequence[Item], metrics: Sequence[MetricSpec]) -> None:
        self._items = items
        self._metrics = deciding_metrics(metrics)
        self._is_generation = [item.kind is RequestKind.GENERATION for item in items]
        self._deciding = [self._metrics[item.task].key if item.task in self._metrics else "" for item in items]
        self._asked: set[Place] = set()
        self._texts: dict[ArmName, dict[Place, tuple[int, int]]] = {arm: {} for arm in ArmName}
        """Hash and length of each answer's text."""
        self._values: dict[ArmName, dict[Place, float]] = {arm: {} for arm in ArmName}

    def add_answer(self, answer: Answer) -> None:
        place, reply = (answer.position, answer.repeat), answer.reply
        self._asked.add(place)
        if self._is_generation[answer.position] and reply.text is not None and reply.status.is_answer:
            self._texts[answer.arm][place] = hash(reply.text), len(reply.text)

    def add_score(self, score: Score) -> None:
        if score.metric == self._deciding[score.position]:
            self._values[score.arm][score.position, score.repeat] = score.value

    def passing(self, scores: Iterable[Score]) -> Iterator[Score]:
        """Add each score, and pass it on."""
        for score in scores:
            self.add_score(score)
            yield score

    def rows(self) -> Iterator[Outcome]:
        """Yield the outcomes in order of (position, repeat)."""
        for place in sorted(self._asked):
            item = self._items[place[0]]
            off, on = (self._texts[arm].get(place) for arm in ArmName)
            baseline, candidate = (self._values[arm].get(place) for arm in ArmName)
            yield Outcome(
                position=place[0],
                repeat=place[1],
                task=item.task,
                doc_id=item.doc_id,
                kind=item.kind,
                change=change_of(baseline, candidate, self._metrics.get(item.task)),
                baseline=baseline,
                candidate=candidate,
                different_text=None not in (off, on) and off != on,
                length=max(text[1] if text else 0 for text in (off, on)),
            )


def change_of(baseline: float | None, candidate: float | None, metric: MetricSpec | None) -> Change:
    """Compare the candidate's score with the baseline's."""
    if baseline is None or candidate is None:
        return Change.UNKNOWN
    if baseline == candidate:
        return Change.SAME
    is_higher_better = metric is None or metric.higher_is_better
    return Change.GAIN if (candidate > baseline) is is_higher_better else Change.LOSS


def have_outcomes(store: Store, comparison: Comparison) -> bool:
    """Check for outcomes; a finished comparison without any, as an import, gets them now."""
    if store.has_outcomes(comparison.id):
        return True
    if comparison.status is not ComparisonStatus.FINISHED:
        return False
    items = list(store.items(comparison.id))
    store.put_outcomes(comparison.id, outcomes_of(store, comparison, items))
    return bool(items)


def outcomes_of(store: Store, comparison: Comparison, items: Sequence[Item]) -> Iterator[Outcome]:
    """Compute outcomes from stored answers and scores. `items` by position."""
    outcomes = Outcomes(items, comparison.plan.metrics)
    for arm in ArmName:
        for answer in store.answers(comparison.id, arm=arm):
            outcomes.add_answer(answer)
    for score in store.scores(comparison.id):
        outcomes.add_score(score)
    return outcomes.rows()

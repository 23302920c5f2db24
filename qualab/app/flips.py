"""Items whose score the candidate changed, with both answers and where they begin to differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from qualab.app.scoring import raw_value
from qualab.domain.items import Answer, Item, Score
from qualab.domain.names import ArmName, RequestKind
from qualab.domain.plan import MetricSpec, Plan
from qualab.errors import InvalidValue
from qualab.ports import Store

Place = tuple[int, int]
"""Position and repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """One answer whose score is another in the candidate."""

    item: str
    """As "gsm8k/17"."""
    repeat: int
    metric: str
    is_loss: bool
    scores: tuple[object, object]
    """The baseline's, the candidate's."""
    target: str
    """The right answer, as the task has it."""
    answers: tuple[str, str]
    """Texts; of a log-likelihood item its choices with their log-likelihoods."""
    first_difference: int | None
    """Character (from 0) at which the answers begin to differ; None where they are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    """Losses first, then gains, each in the order of tasks and documents."""

    n_losses: int
    n_gains: int
    shown: tuple[Flip, ...]


def flips(store: Store, comparison_id: str, *, task: str = "", limit: int = 20) -> Flips:
    """The flipped items of each task's deciding metric. Raises InvalidValue for a task that is not there."""
    comparison = store.get(comparison_id)
    metrics = _metrics(comparison.plan, task)
    flipped = _flipped(store, comparison.id, metrics)
    items = {item.position: item for item in store.items(comparison.id) if item.position in flipped}
    found = [
        (spec, place, scores)
        for position, places in flipped.items()
        for place, scores in places.items()
        if (spec := metrics[items[position].task])
    ]
    order = {name: number for number, name in enumerate(metrics)}
    found.sort(key=lambda one: (not _is_loss(one[0], one[2]), order[one[0].task], items[one[1][0]].doc_id, one[1][1]))
    wanted = found[:limit]
    answers = {arm: _answers(store, comparison.id, arm, {place for _, place, _ in wanted}) for arm in ArmName}
    n_losses = sum(_is_loss(spec, scores) for spec, _, scores in found)
    shown = tuple(_flip(spec, items[place[0]], place[1], scores, answers) for spec, place, scores in wanted)
    return Flips(n_losses=n_losses, n_gains=len(found) - n_losses, shown=shown)


def _metrics(plan: Plan, wanted: str) -> dict[str, MetricSpec]:
    """Each task's metric that is looked at: its own primary, that of its group, else its first."""
    groups = {spec.task: spec.members for spec in plan.metrics if spec.members}
    tasks = [task.name for task in plan.tasks]
    if wanted:
        named = [task for task in tasks if task == wanted or task in groups.get(wanted, ())]
        if not named:
            raise InvalidValue(f"There is no task {wanted}", hint=f"There are: {', '.join((*groups, *tasks))}")
        tasks = named
    return {task: spec for task in tasks if (spec := _deciding(plan, task))}


def _deciding(plan: Plan, task: str) -> MetricSpec | None:
    own = [spec for spec in plan.metrics if spec.task == task]
    keys = {spec.key for spec in plan.primaries if task in spec.members}
    return next((spec for spec in own if spec.is_primary or spec.key in keys), own[0] if own else None)


Flipped = dict[int, dict[Place, tuple[Score, Score]]]


def _flipped(store: Store, comparison_id: str, metrics: Mapping[str, MetricSpec]) -> Flipped:
    """Pairs of scores that differ, by position. Of a position only the metric of its task counts."""
    keys = {spec.key for spec in metrics.values()}
    tasks = {item.position: item.task for item in store.items(comparison_id) if item.task in metrics}
    baseline: dict[Place, Score] = {}
    found: Flipped = {}
    for score in store.scores(comparison_id):
        place = (score.position, score.repeat)
        if score.metric not in keys or _counting(metrics, tasks, score) != score.metric:
            continue
        if score.arm is ArmName.BASELINE:
            baseline[place] = score
        elif place in baseline and raw_value(baseline[place]) != raw_value(score):
            found.setdefault(score.position, {})[place] = (baseline[place], score)
    return found


def _counting(metrics: Mapping[str, MetricSpec], tasks: Mapping[int, str], score: Score) -> str | None:
    """The metric that counts for a score's item; None where its task is not looked at."""
    task = tasks.get(score.position)
    return metrics[task].key if task else None


def _is_loss(spec: MetricSpec, scores: tuple[Score, Score]) -> bool:
    off, on = scores
    return on.value < off.value if spec.higher_is_better else on.value > off.value


def _answers(store: Store, comparison_id: str, arm: ArmName, places: set[Place]) -> dict[Place, list[Answer]]:
    found: dict[Place, list[Answer]] = {}
    for answer in store.answers(comparison_id, arm=arm):
        if (place := (answer.position, answer.repeat)) in places:
            found.setdefault(place, []).append(answer)
    return found


def _flip(
    spec: MetricSpec,
    item: Item,
    repeat: int,
    scores: tuple[Score, Score],
    answers: Mapping[ArmName, Mapping[Place, Sequence[Answer]]],
) -> Flip:
    off, on = (_text(item, answers[arm].get((item.position, repeat), ())) for arm in ArmName)
    return Flip(
        item=item.id,
        repeat=repeat,
        metric=spec.id,
        is_loss=_is_loss(spec, scores),
        scores=(raw_value(scores[0]), raw_value(scores[1])),
        target=item.target,
        answers=(off, on),
        first_difference=first_difference(off, on),
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


def first_difference(one: str, other: str) -> int | None:
    """The first character at which two texts differ; None where they are the same."""
    if one == other:
        return None
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))

"""Which item each entry of the logs is, and its scores in their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qualab.app.importing.entries import Entry
from qualab.app.importing.joining import ALLOWABLE, Kind, Match
from qualab.domain.imported import FindingCode
from qualab.domain.items import Item, Score
from qualab.domain.names import ArmName, MetricKind
from qualab.domain.plan import Plan
from qualab.errors import InvalidValue


@dataclass(slots=True, kw_only=True)
class Place:
    """One item, with a match for each of its repeats."""

    position: int
    task: str
    doc_id: int = 0
    matches: dict[int, Match] = field(default_factory=dict)
    """By repeat."""

    @property
    def first(self) -> Match:
        return self.matches[min(self.matches)]


def place(plan: Plan, joined: Mapping[str, Sequence[Match]]) -> list[Place]:
    """Every item in order of position: task by task, as they stand in the baseline's log."""
    places: list[Place] = []
    for task in plan.tasks:
        own = list(_items(task.name, joined.get(task.name, ()), len(places)))
        for item, doc_id in zip(own, _doc_ids(own), strict=True):
            item.doc_id = doc_id
        places += own
    return places


def _items(task: str, matches: Iterable[Match], start: int) -> Iterator[Place]:
    """Repeats of one document are one item; a document that the data set has twice is two."""
    found: dict[bytes, list[Place]] = {}
    for match in matches:
        entry = match.content
        same = found.setdefault(entry.key, [])
        item = next((one for one in same if entry.repeat not in one.matches), None)
        if item is None:
            item = Place(position=start, task=task)
            start += 1
            same.append(item)
        item.matches[entry.repeat] = match
    yield from sorted((item for same in found.values() for item in same), key=lambda item: item.position)


def _doc_ids(items: Sequence[Place]) -> list[int]:
    """As the logs number the documents, or by position where they do not do so uniquely."""
    logged = [item.first.content.doc_id for item in items]
    known = [number for number in logged if number is not None]
    return known if len(set(known)) == len(items) else list(range(len(items)))


def light_items(plan: Plan, places: Iterable[Place]) -> list[Item]:
    """Items as an analysis needs them: without documents and prompts."""
    kinds = {task.name: task.kind for task in plan.tasks}
    return [
        Item(
            position=one.position,
            task=one.task,
            doc_id=one.doc_id,
            kind=kinds[one.task],
            doc={},
            target="",
            prompts=(),
            cluster=one.first.content.cluster,
        )
        for one in places
    ]


def scores(places: Sequence[Place], allowed: Sequence[FindingCode]) -> Iterator[Score]:
    """In order of arm, position, repeat and metric. What is no pair has none, in either arm."""
    for arm in ArmName:
        for item in places:
            for repeat, match in sorted(item.matches.items()):
                entry = entry_of(match, arm)
                if entry is not None and entry.is_answered and counts(match.kind, allowed):
                    yield from _scores(entry, arm, item.position, repeat)


def counts(kind: Kind, allowed: Sequence[FindingCode]) -> bool:
    """Whether a match's scores are compared: the two are of one question."""
    return kind not in ALLOWABLE or ALLOWABLE[kind] in allowed


def entry_of(match: Match, arm: ArmName) -> Entry | None:
    """One arm's side of a match."""
    return match.baseline if arm is ArmName.BASELINE else match.candidate


def _scores(entry: Entry, arm: ArmName, position: int, repeat: int) -> Iterator[Score]:
    for metric in sorted(entry.scores):
        value, detail = _split(entry.scores[metric])
        yield Score(arm=arm, position=position, repeat=repeat, metric=metric, value=value, detail=detail)


def check_score_bounds(found: Iterable[Score], items: Sequence[Item], plan: Plan) -> None:
    """Raises InvalidValue for a score that its metric cannot have, where a verdict would rest on it."""
    specs = (spec for primary in plan.primaries for spec in plan.members_of(primary))
    bounds = {
        (spec.task, spec.key): (spec.id, *plan.score_bounds_of(spec))
        for spec in specs
        if spec.kind in (MetricKind.BINARY_MEAN, MetricKind.MEAN, MetricKind.LIST_MEAN)
    }
    for score in found:
        item = items[score.position]
        if (item.task, score.metric) not in bounds:
            continue
        metric, low, high = bounds[item.task, score.metric]
        values = (score.value,) if score.detail is None else score.detail
        value = next((one for one in values if not low <= one <= high), None)
        if value is not None:
            raise InvalidValue(
                f"{metric}: item {item.doc_id} has the score {value:g} in the {score.arm}, outside {low:g} to {high:g}",
                hint=f"Divide percent by 100, or say what its scores are bounded by: --score-bounds {item.task}=0:100",
                fields={"score_bounds": f"{metric} has a score of {value:g}"},
            )


def _split(value: Any) -> tuple[float, tuple[Any, ...] | None]:
    """As a run's own scores are kept: of a list its mean, of a pair whether they agree."""
    if isinstance(value, float):
        return value, None
    if all(isinstance(part, (bool, int, float)) for part in value) and not _is_pair(value):
        return (sum(value) / len(value) if value else 0.0), value
    return float(value[0] == value[1]), value


def _is_pair(value: tuple[Any, ...]) -> bool:
    return len(value) == 2 and not all(isinstance(part, bool) for part in value)

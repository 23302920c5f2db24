"""The stored scores of a comparison, and where an answer was expected."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qualab.app.scoring import raw_value
from qualab.domain.canonical import canonical_json
from qualab.domain.comparison import ArmSummary, PairSummary
from qualab.domain.items import Item, Score
from qualab.domain.names import ArmName
from qualab.domain.plan import Plan
from qualab.stats.checks import IntArray

Key = tuple[int, int]
"""Position and repeat."""

Column = dict[Key, Any]
"""One metric's scores in one arm, as the harness gave them."""


@dataclass(slots=True)
class Scores:
    """All scores of a comparison, by task and metric, and the hash of what was read."""

    columns: dict[tuple[str, str, ArmName], Column] = field(default_factory=dict)
    answered: dict[ArmName, set[Key]] = field(default_factory=lambda: {arm: set() for arm in ArmName})
    """Where an arm has any score."""
    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, score: Score, task: str) -> None:
        value, place, key = raw_value(score), (score.position, score.repeat), (task, score.metric, score.arm)
        if key not in self.columns:
            self.columns[key] = {}
        self.columns[key][place] = value
        self.answered[score.arm].add(place)
        self.digest.update(f"{task}\0{score.metric}\0{score.arm.value}\0{place}\0{value!r}\n".encode())

    def column(self, task: str, metric: str, arm: ArmName) -> Column:
        return self.columns.get((task, metric, arm), {})

    def n_changed(self, places: Set[Key]) -> int:
        """Items at these places with another score in the candidate, in whatever metric."""
        changed: set[int] = set()
        for (task, metric, arm), own in self.columns.items():
            if arm is ArmName.BASELINE:
                other = self.column(task, metric, ArmName.CANDIDATE)
                changed |= {key[0] for key in own.keys() & other.keys() & places if own[key] != other[key]}
        return len(changed)


def read_scores(stored: Iterable[Score], items: Sequence[Item]) -> Scores:
    """The stored scores by task and metric. `items` by position."""
    scores = Scores()
    for score in stored:
        scores.add(score, items[score.position].task)
    return scores


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """One task's expected answers, in the order of its documents: the random order of asking leaves no trace."""

    keys: list[Key]
    numbers: IntArray
    """Unique within the comparison."""
    units: IntArray
    """What stands and falls together: the cluster, else the item with its repeats. Unique within the comparison."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """All expected answers."""

    tasks: dict[str, Places]
    n_units: int

    @property
    def n_answers(self) -> int:
        return sum(len(places.keys) for places in self.tasks.values())


def layout_of(plan: Plan, items: Sequence[Item], *, left_out: Set[Key] = frozenset()) -> Layout:
    """Where the plan expects answers, from the items' clusters; without those that are left out."""
    by_task: dict[str, list[Item]] = {task.name: [] for task in plan.tasks}
    for item in items:
        by_task.setdefault(item.task, []).append(item)
    repeats, known, start = plan.sampling.repeats, dict[tuple[str, ...], int](), 0
    tasks: dict[str, Places] = {}
    for task, own in by_task.items():
        own.sort(key=lambda item: item.doc_id)
        codes = [known.setdefault(_unit(item), len(known)) for item in own]
        keys = [(item.position, repeat) for item in own for repeat in range(repeats)]
        kept = np.array([key not in left_out for key in keys], dtype=np.bool_)
        tasks[task] = Places(
            keys=[key for key in keys if key not in left_out],
            numbers=np.arange(start, start + len(own) * repeats, dtype=np.int64)[kept],
            units=np.repeat(np.array(codes, dtype=np.int64), repeats)[kept],
        )
        start += len(own) * repeats
    return Layout(tasks=tasks, n_units=len(known))


def _unit(item: Item) -> tuple[str, ...]:
    return (item.task, "cluster", item.cluster) if item.cluster else (item.task, "item", str(item.doc_id))


def scores_hash(scores: Scores, layout: Layout) -> Any:
    """SHA-256 of the scores as they were read and of where answers were expected; more may be added to it."""
    digest = scores.digest.copy()
    for task, places in layout.tasks.items():
        digest.update(f"{task}\0{places.keys}\0{places.units.tolist()}\n".encode())
    return digest


def input_hash(
    scores: Scores, layout: Layout, arms: Sequence[ArmSummary], pairs: PairSummary, *, more: Sequence[object] = ()
) -> str:
    """SHA-256 of what the answers came to: scores, clusters, statuses, pairs, and `more` that is computed from answers.

    Engines, pins and tokens are left out, so that a resumed run's hash is that of an uninterrupted one.
    """
    digest = scores_hash(scores, layout)
    for value in more:
        if value is not None:
            digest.update(canonical_json(value).encode())
    for arm in arms:
        digest.update(canonical_json(arm.statuses).encode())
    digest.update(canonical_json(pairs).encode())
    return str(digest.hexdigest())

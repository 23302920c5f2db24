"""Imported comparisons: notes for their readers, and lm-eval's aggregates without its tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from qualab.errors import UsageError
from qualab.model.audit import ScoredAnswer
from qualab.model.comparison import Look
from qualab.model.engine import Observation
from qualab.model.items import Answer, Score
from qualab.model.names import ArmName, MetricKind
from qualab.model.plan import FindingCode, Imported, Plan, TaskJoin
from qualab.model.reason import Reason

if TYPE_CHECKING:
    from qualab.store import Store

ALLOWABLE = {
    "prompt_differs": FindingCode.PROMPTS,
    "target_differs": FindingCode.TARGETS,
    "duplicated": FindingCode.DUPLICATES,
    "lost": FindingCode.ROWS,
}
"""Counts of a `TaskJoin` that are pairs all the same where a user allows it."""
LEFT_OVER = {
    "only_baseline": "only-baseline",
    "only_candidate": "only-candidate",
    "prompt_differs": "prompts-differ",
    "target_differs": "targets-differ",
    "duplicated": "duplicated",
    "lost": "lost-rows",
}
"""Counts of a `TaskJoin` that are no pair, and the code of each."""


def import_caveats(imported: Imported) -> Iterator[Reason]:
    """List notes for readers, first those that may void the result."""
    first = [finding for finding in imported.findings if finding.code is FindingCode.SAME_RUN]
    yield from (Reason("finding", {"what": finding.what}) for finding in first)
    yield Reason("runs-unchecked" if imported.is_of_store else "logs-unchecked")
    if imported.plan_hash:
        yield Reason("plan-adopted.changed" if imported.is_rule_changed else "plan-adopted")
    if not imported.plan_hash or imported.is_rule_changed:
        yield Reason("margin-chosen-after-data")
    if imported.leaves_unasked and any(join.only_baseline or join.only_candidate for join in imported.joins):
        yield Reason("unasked-left-out")
    yield from (note for join in imported.joins if (note := _join_note(join, imported.allowed)))
    for finding in (finding for finding in imported.findings if finding not in first):
        yield Reason("finding.allowed" if finding.is_allowed else "finding", {"what": finding.what})


def _join_note(join: TaskJoin, allowed: Sequence[FindingCode]) -> Reason | None:
    counts = {name: count for name in LEFT_OVER if (count := getattr(join, name))}
    if not counts:
        return None
    parts = tuple(Reason(LEFT_OVER[name], {"n": count}) for name, count in counts.items())
    values: dict[str, Any] = {"task": join.task, "n": join.paired, "parts": parts}
    codes = tuple(code.value for name, code in ALLOWABLE.items() if name in counts and code in allowed)
    return Reason("joined.allowed", {**values, "allowed": codes}) if codes else Reason("joined", values)


def aggregate_of(kind: MetricKind, values: Sequence[Any]) -> float | None:
    """Add up scores in document order, as lm-eval does; None without a way to."""
    if kind is MetricKind.LIST_MEAN:
        values = [part for value in values for part in value]
    if kind is MetricKind.OTHER or not values:
        return None
    return _macro_f1(values) if kind is MetricKind.MACRO_F1 else float(sum(values) / len(values))


def _macro_f1(pairs: Sequence[Any]) -> float:
    """Bit by bit what scikit-learn gives lm-eval; `qualab.stats.f1` may differ in the last one."""
    right = Counter(truth for truth, answer in pairs if truth == answer)
    true, given = Counter(truth for truth, _ in pairs), Counter(answer for _, answer in pairs)
    numbers_first = sorted(
        true.keys() | given.keys(), key=lambda label: (True, label) if isinstance(label, str) else (False, label or 0)
    )
    return float(np.mean([2 * right[label] / (true[label] + given[label]) for label in numbers_first]))


def group_mean(values: Mapping[str, float], sizes: Mapping[str, int], *, by_size: bool) -> float:
    """Average a group's members as lm-eval does."""
    weights = {name: sizes[name] if by_size else 1 for name in values}
    return sum([value * weights[name] for name, value in values.items()]) / sum(weights.values())


class ImportedTasks:
    """`ScoredTasks` of an imported comparison."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def aggregate(self, values: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, float]]:
        """Add up means, lists, macro-F1 and groups as lm-eval does; other metrics are left out."""
        totals: dict[str, dict[str, float]] = {}
        for spec in self._plan.metrics:
            if not spec.members:
                value = aggregate_of(spec.kind, values.get(spec.task, {}).get(spec.key, ()))
                if value is not None:
                    totals.setdefault(spec.task, {})[spec.key] = value
        sizes = {task: max((len(column) for column in columns.values()), default=0) for task, columns in values.items()}
        for spec in self._plan.metrics:
            known = {task: totals[task][spec.key] for task in spec.members if spec.key in totals.get(task, {})}
            if known:
                by_size = spec.kind is MetricKind.GROUP_MEAN
                totals.setdefault(spec.task, {})[spec.key] = group_mean(known, sizes, by_size=by_size)
        return totals

    def score(self, *_: object, **__: object) -> NoReturn:
        raise UsageError("This comparison was imported: its tasks are not loaded", hint="Use qualab rescore")


class ScoresAlone:
    """`Stored` with these scores, in order of arm, position, repeat and metric; the rest is the store's, if any."""

    def __init__(self, scores: Sequence[Score], store: Store | None = None) -> None:
        self._scores = scores
        self._store = store

    def scores(self, comparison_id: str) -> Iterator[Score]:
        del comparison_id
        return iter(self._scores)

    def answers(self, comparison_id: str, *, arm: ArmName, run: int = 0) -> Iterator[Answer]:
        return self._store.answers(comparison_id, arm=arm, run=run) if self._store else iter(())

    def looks(self, comparison_id: str) -> Sequence[Look]:
        return self._store.looks(comparison_id) if self._store else ()

    def observations(self, comparison_id: str) -> Sequence[Observation]:
        return self._store.observations(comparison_id) if self._store else ()

    def scored(
        self, comparison_id: str, *, positions: Collection[int] | None = None, with_pieces: bool = False
    ) -> Iterator[ScoredAnswer]:
        stored = self._store.scored(comparison_id, positions=positions, with_pieces=with_pieces) if self._store else ()
        return iter(stored)

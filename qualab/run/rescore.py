"""Scores stored answers again with the tasks that are installed now, and says what changed; nothing is replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qualab.analysis.analyse import analyse
from qualab.analysis.scoring import raw_value, scores_of, summary_of
from qualab.errors import InvalidValue
from qualab.harness.process import LoadedTasks
from qualab.imports.plan import ScoresAlone
from qualab.model.canonical import plan_hash
from qualab.model.comparison import Analysis, Comparison
from qualab.model.items import Item, Score
from qualab.model.names import ArmName, Verdict
from qualab.model.plan import Plan, TaskSpec
from qualab.model.reason import Reason
from qualab.run.compare import marked
from qualab.run.experiment import planned_options
from qualab.run.services import Services

Place = tuple[ArmName, int, int, str]
"""Arm, position, repeat and metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedScore:
    """One score that is another now. None where there is none."""

    item: str
    arm: ArmName
    repeat: int
    metric: str
    before: Any
    now: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """One metric of one task."""

    metric: str
    """Its id."""
    n_scores: int
    """Of both arms, stored or new."""
    n_changed: int
    verdict_before: Verdict | None
    """None where the metric was not there."""
    verdict_now: Verdict | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """What scoring again came to."""

    comparison: Comparison
    tasks_changed: tuple[Reason, ...]
    """Tasks whose configuration, version or data are not those of the plan, each with what differs."""
    metrics: tuple[MetricChange, ...]
    scores: tuple[ChangedScore, ...]
    """In order of arm, item and metric."""
    analysis: Analysis
    """Of the new scores; under the plan with the installed tasks."""
    is_stored: bool


def rescore(
    services: Services, comparison_id: str, *, local: Mapping[str, str] | None = None, store: bool = False
) -> Rescored:
    """Scores every stored answer with the installed tasks. With `store` the new analysis is kept beside the others, as
    one whose plan was made after the data. Raises UnknownTask and DatasetUnavailable where the tasks are not here."""
    comparison = services.store.get(comparison_id)
    stored = services.store.analysis(comparison.id)
    if stored is None:
        raise InvalidValue(
            f"Comparison {comparison.id} is {comparison.status.value}: it has no analysis yet",
            hint=f"Finish it first: qualab resume {comparison.id}",
        )
    tasks = services.harness.load(planned_options(comparison.plan, {**comparison.local, **(local or {})}))
    items = list(services.store.items(comparison.id))
    before = {_place(score): score for score in services.store.scores(comparison.id)}
    found = _scores(services, comparison, tasks, items)
    plan = _with_tasks(comparison.plan, tasks)
    judged = replace(comparison, plan=plan, plan_hash=plan_hash(plan))
    again = ScoresAlone(found, services.store)
    analysis = analyse(again, judged, tasks, items, summary_of(services.store, comparison.id, items))
    differing = tuple(_tasks_changed(comparison.plan, plan))
    if plan != comparison.plan:
        analysis = marked(analysis, Reason("rescored", {"changes": differing}))
        if store:
            services.store.put_analysis(analysis, now=services.clock.now())
    now = {_place(score): score for score in found}
    return Rescored(
        comparison=comparison,
        tasks_changed=differing,
        metrics=tuple(_metric_changes(before, now, items, stored, analysis)),
        scores=tuple(_changed(before, now, items)),
        analysis=analysis,
        is_stored=store and plan != comparison.plan,
    )


def _scores(services: Services, comparison: Comparison, tasks: LoadedTasks, items: Sequence[Item]) -> list[Score]:
    """In the order in which a store gives them. Of an imported comparison only what it compares is scored."""
    compared = _compared(services, comparison) if comparison.plan.imported else None
    found = [
        score
        for arm in ArmName
        for score in scores_of(services.store.answers(comparison.id, arm=arm), tasks, items)
        if compared is None or (score.arm, score.position, score.repeat) in compared
    ]
    return sorted(found, key=_place)


def _compared(services: Services, comparison: Comparison) -> set[tuple[ArmName, int, int]]:
    return {(score.arm, score.position, score.repeat) for score in services.store.scores(comparison.id)}


def _place(score: Score) -> Place:
    return score.arm, score.position, score.repeat, score.metric


def _with_tasks(plan: Plan, tasks: LoadedTasks) -> Plan:
    """The plan with the installed tasks in place of its own."""
    if plan.imported:
        return plan
    now = {task.name: task for task in tasks.tasks}
    return replace(
        plan, tasks=tuple(now.get(task.name, task) for task in plan.tasks), harness_version=tasks.harness_version
    )


def _tasks_changed(before: Plan, now: Plan) -> Iterator[Reason]:
    if before.harness_version != now.harness_version:
        yield Reason("harness-changed", {"before": before.harness_version, "after": now.harness_version})
    for old, new in zip(before.tasks, now.tasks, strict=True):
        if changes := tuple(_differing(old, new)):
            yield Reason("task-changed", {"task": old.name, "changes": changes})


def _differing(old: TaskSpec, new: TaskSpec) -> Iterator[Reason]:
    if old.version != new.version:
        yield Reason("version-changed", {"before": old.version, "after": new.version})
    if old.config_hash != new.config_hash:
        yield Reason("configuration-changed")
    if old.data_hash != new.data_hash:
        yield Reason("documents-changed")
    if replace(old, version=new.version, config_hash=new.config_hash, data_hash=new.data_hash) != new:
        yield Reason("sizes-changed")


Scores = Mapping[Place, Score]


def _metric_changes(
    before: Scores, now: Scores, items: Sequence[Item], stored: Analysis, analysis: Analysis
) -> Iterator[MetricChange]:
    totals: dict[str, list[int]] = {}
    for place in before.keys() | now.keys():
        count = totals.setdefault(f"{items[place[1]].task}/{place[3]}", [0, 0])
        count[0] += 1
        count[1] += _raw(before.get(place)) != _raw(now.get(place))
    old, new = ({row.id: row.verdict for row in one.metrics} for one in (stored, analysis))
    for name in dict.fromkeys((*new, *old, *sorted(totals))):
        n_scores, n_changed = totals.get(name, (0, 0))
        yield MetricChange(
            metric=name,
            n_scores=n_scores,
            n_changed=n_changed,
            verdict_before=old.get(name),
            verdict_now=new.get(name),
        )


def _changed(before: Scores, now: Scores, items: Sequence[Item]) -> Iterator[ChangedScore]:
    for place in sorted(before.keys() | now.keys()):
        old, new = _raw(before.get(place)), _raw(now.get(place))
        if old != new:
            arm, position, repeat, metric = place
            yield ChangedScore(item=items[position].id, arm=arm, repeat=repeat, metric=metric, before=old, now=new)


def _raw(score: Score | None) -> Any:
    """A score as the harness gave it; lists and pairs are equal whatever they are kept in."""
    return None if score is None else raw_value(score)

"""What a plan's items can and cannot prove, before anything is asked of an endpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qualab.app.analysis.looking import harm_alpha
from qualab.app.analysis.samples import members_of
from qualab.app.experiment import Experiment, make_plan
from qualab.app.planning.beliefs import Belief, Given, belief_of, check_given
from qualab.app.planning.figures import Asked, Figures, Named, figures_of
from qualab.app.planning.pilot import Pilot
from qualab.app.planning.words import caveats, unproven
from qualab.domain.names import ArmName, MetricKind, RequestKind
from qualab.domain.plan import Assumptions, MetricSpec, Plan
from qualab.ports import LoadedTasks
from qualab.stats.sizing import joint_power, power_for_joint

_NOT_OFFERED = {
    MetricKind.MEAN: "how much scores other than 0 and 1 differ is known only once there are some",
    MetricKind.LIST_MEAN: "how many scores an answer has is known only once there is one",
    MetricKind.MACRO_F1: "macro-F1 is no mean over items, and its power depends on the labels",
    MetricKind.OTHER: "the task does not declare how this metric comes from its items",
    MetricKind.GROUP_MEAN: "the group mixes metrics of different kinds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplanned:
    """A primary metric that planning has no figures for."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """A frozen plan with what its items can prove."""

    plan: Plan
    metrics: tuple[Figures, ...]
    """Primary metrics, in the plan's order."""
    unplanned: tuple[Unplanned, ...]
    n_items: int
    power_each: float | None
    """What each primary metric needs for all of them to reach the power that is aimed at; None without a metric."""
    joint_power: float | None
    """Product of the powers as planned; None where a primary metric has none."""
    expected_missing: float
    """Share of each arm's answers."""
    n_requests: int
    """Of both arms together, and of the noise floor; early looks may save some."""
    rate: float | None
    """Requests a second."""
    duration_s: float | None
    unproven: tuple[str, ...]
    """What these items cannot prove, a sentence each."""
    caveats: tuple[str, ...]
    """On what the figures rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """How many items, clusters and requests the tasks have."""

    items: Mapping[str, int]
    clusters: Mapping[str, int]
    n_requests: int


def plan_comparison(
    experiment: Experiment,
    tasks: LoadedTasks,
    given: Given,
    pilot: Pilot | None = None,
    *,
    checkpoint_hash: str = "",
) -> Planning:
    """Freezes a plan and says what its items can prove; no endpoint is asked anything. Raises InvalidValue."""
    plan = make_plan(experiment, tasks, checkpoint_hash=checkpoint_hash)
    check_given(given, plan)
    sizes = _sizes(tasks, plan)
    beliefs = {metric.id: _belief(metric, plan, given, pilot, sizes) for metric in plan.primaries}
    unplanned = tuple(
        Unplanned(id=metric.id, reason=f"planning is not offered: {reason}")
        for metric in plan.primaries
        if (reason := _reason_against(metric, plan))
    )
    planned = [metric for metric in plan.primaries if metric.id not in {one.id for one in unplanned}]
    power_each = power_for_joint(n_metrics=len(plan.primaries), power=plan.rule.power) if plan.primaries else None
    figures = tuple(
        figures_of(
            _named(metric, plan),
            _asked(metric, plan, sizes),
            beliefs[metric.id],
            rule=plan.rule_for(metric),
            power_each=power_each or plan.rule.power,
            looks=replace(plan.looks, harm_alpha=harm_alpha(plan, plan.looks)) if plan.looks else None,
            missing=experiment.expected_missing,
        )
        for metric in planned
    )
    joint = joint_power([one.planned_power for one in figures]) if figures and not unplanned else None
    rate = given.rate if given.rate is not None or pilot is None else pilot.rate
    missing = experiment.expected_missing
    plan = replace(plan, assumptions=_assumptions(figures, joint, missing, has_repeats=plan.sampling.repeats > 1))
    return Planning(
        plan=plan,
        metrics=figures,
        unplanned=unplanned,
        n_items=sum(sizes.items.values()),
        power_each=power_each,
        joint_power=joint,
        expected_missing=missing,
        n_requests=sizes.n_requests,
        rate=rate,
        duration_s=sizes.n_requests / rate if rate else None,
        unproven=tuple(unproven(figures, plan.rule, power_each=power_each, joint=joint)),
        caveats=tuple(caveats(figures, plan, pilot, rate_is_given=given.rate is not None)),
    )


def _sizes(tasks: LoadedTasks, plan: Plan) -> _Sizes:
    items: Counter[str] = Counter()
    clusters: dict[str, set[str]] = {}
    n_prompts = n_generations = 0
    for item in tasks.render():
        items[item.task] += 1
        n_prompts += len(item.prompts)
        n_generations += len(item.prompts) if item.kind is RequestKind.GENERATION else 0
        clusters.setdefault(item.task, set()).add(item.cluster or f"item {item.doc_id}")
    noise_runs = plan.noise_floor.runs if plan.noise_floor else 0
    return _Sizes(
        items=items,
        clusters={task: len(found) for task, found in clusters.items()},
        n_requests=(n_prompts * len(ArmName) + n_generations * noise_runs) * plan.sampling.repeats,
    )


def _asked(metric: MetricSpec, plan: Plan, sizes: _Sizes) -> Asked:
    """A group's metric is over the items of all its members."""
    names = {member.task for member in members_of(metric, plan)}
    return Asked(
        n_items=sum(sizes.items[name] for name in names),
        n_clusters=sum(sizes.clusters[name] for name in names),
        repeats=plan.sampling.repeats,
    )


def _belief(metric: MetricSpec, plan: Plan, given: Given, pilot: Pilot | None, sizes: _Sizes) -> Belief:
    asked = _asked(metric, plan, sizes)
    return belief_of(metric, plan, given, pilot, is_clustered=asked.n_clusters < asked.n_items)


def _reason_against(metric: MetricSpec, plan: Plan) -> str:
    """Why a metric has no figures; empty where it has."""
    kinds = {member.kind for member in members_of(metric, plan)}
    if kinds == {MetricKind.BINARY_MEAN}:
        return ""
    return _NOT_OFFERED[next(iter(kinds)) if len(kinds) == 1 else MetricKind.GROUP_MEAN]


def _named(metric: MetricSpec, plan: Plan) -> Named:
    return Named(id=metric.id, name=_name(metric, plan), exercises_drafter=metric.exercises_drafter)


def _name(metric: MetricSpec, plan: Plan) -> str:
    benchmarks = plan.benchmarks_of(metric)
    sharing = [other for other in plan.primaries if plan.benchmarks_of(other) & benchmarks]
    return next(iter(benchmarks)) if len(benchmarks) == 1 and len(sharing) == 1 else metric.id


def _assumptions(figures: Sequence[Figures], joint: float | None, missing: float, *, has_repeats: bool) -> Assumptions:
    return Assumptions(
        discordance={one.id: one.belief.discordance for one in figures},
        design_effect={one.id: one.belief.design_effect for one in figures},
        noise={one.id: one.belief.noise for one in figures} if has_repeats else {},
        joint_power=joint,
        missing=missing,
    )

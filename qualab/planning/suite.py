"""What a plan's items can prove: assumptions, the figures of each primary metric, and what is said of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from qualab.analysis.drafter import lost_interleaving
from qualab.analysis.looks import harm_alpha
from qualab.analysis.ruling import MAX_ITEMS, bounds_of, is_one_sided
from qualab.analysis.samples import MeanSample, layout_of, read_scores, sample_of
from qualab.errors import InvalidValue
from qualab.model.items import Item
from qualab.model.names import ArmName, MetricKind, MissingPolicy, RequestKind
from qualab.model.plan import (
    Assumptions,
    DecisionRule,
    LookPlan,
    MetricSpec,
    Plan,
    check_names,
)
from qualab.model.reason import Reason, of
from qualab.planning.power import (
    EarlyLooks,
    Missing,
    early_looks,
    if_any,
    narrowest_margin,
    power_at_looks,
    sufficient_items,
    verdict_power,
)
from qualab.stats.bounded import bound_cost
from qualab.stats.mean import mean_difference
from qualab.stats.noise import variance_components
from qualab.stats.sizing import (
    discordance_with_repeats,
    joint_power,
    mde,
    mde_beyond_noise,
    power_for_joint,
)

if TYPE_CHECKING:
    from qualab.store import Store

_NEAR = 0.025
"""Powers with looks are simulated, and sizes with looks are right to about two percentage points of them."""


def unproven(
    figures: Sequence[Figures], rule: DecisionRule, *, power_each: float | None, joint: float | None
) -> Iterator[Reason]:
    """Say of each metric whose items have too little power as planned what is lacking, and what would help.

    Nothing where all together have the power that is aimed at, though one has less than its part of it.
    """
    target = power_each or rule.power
    if joint is not None and joint >= rule.power:
        return
    for one in figures:
        if one.items_needed is None or one.asked.n_items < one.items_needed:
            sentences = (*_lacking(one, rule, target), *_what_helps(one))
        elif one.power_looks is not None and one.power_looks < target - _NEAR:
            values = {"power": _at_the_end(one), "with_looks": one.planned_power, "target": round(target, 3)}
            needed = Reason("looks-cost", values)
            if one.looks is not None:
                needed = Reason("looks-cost.items", {**values, "n": one.looks.most_items})
            sentences = (needed,)
        else:
            continue
        yield Reason("unproven", {"name": one.name, "sentences": sentences})


def _at_the_end(one: Figures) -> float:
    return one.power if one.power_missing is None else one.power_missing


def _lacking(one: Figures, rule: DecisionRule, target: float) -> Iterator[Reason]:
    values: dict[str, Any] = {
        "n": one.asked.n_items,
        "goal": Reason("goal.loss" if is_one_sided(rule) else "goal.both", {"margin": one.margin}),
        "discordance": one.belief.discordance,
        "needed": Reason("needed", {"n": one.items_needed})
        if one.items_needed
        else Reason("needed.more", {"most": MAX_ITEMS}),
        "power": round(target, 3),
    }
    if target == rule.power:
        yield Reason("lacking", values)
    else:
        yield Reason("lacking.together", {**values, "joint": rule.power})
    own = Reason("no-margin") if one.provable_margin is None else bounds_of(rule, one.provable_margin)
    yield Reason("has-power", {"power": _at_the_end(one), "proven": own})
    if one.power_looks is not None:
        yield Reason("has-power.looks", {"power": one.power_looks})
    if one.power_missing is not None and one.power >= target:  # missing answers alone take the power
        yield Reason("has-power.whole", {"power": one.power})


def _what_helps(one: Figures) -> Iterator[Reason]:
    if one.items_needed:
        yield Reason("more-items-help", {"n": one.items_needed - one.asked.n_items})
    if one.exercises_drafter and one.asked.repeats == 1:
        at_best = one.items_needed_repeated
        if at_best and at_best <= one.asked.n_items:
            yield Reason("repeats-help", {"repeats": BEST_REPEATS})
        elif at_best:
            yield Reason("repeats-fall-short", {"repeats": BEST_REPEATS, "n": at_best})
        else:
            yield Reason("repeats-are-too-few", {"repeats": BEST_REPEATS})


def caveats(figures: Sequence[Figures], plan: Plan, pilot: Pilot | None, *, rate_is_given: bool) -> Iterator[Reason]:
    """Say what the figures rest on."""
    yield from _of_discordance(figures, pilot)
    yield from _of_missing(figures, plan)
    for one in figures:
        if one.belief.design_effect_source == "not known":
            yield of(one.name, Reason("clusters-unknown", {"n": one.asked.n_items, "n_clusters": one.asked.n_clusters}))
    yield from _of_repeats(figures, plan)
    if len(plan.primaries) > 1:
        tasks = [task for metric in plan.primaries for task in metric.members or (metric.task,)]
        yield Reason("joint-power.shared" if len(set(tasks)) < len(tasks) else "joint-power.independent")
    if plan.looks and is_one_sided(plan.rule):
        yield Reason("looks-unplanned")
    if pilot and pilot.rate and not rate_is_given:
        yield Reason("pilot-rate", {"pilot": pilot.id})
    if quiet := tuple(one.name for one in figures if not one.exercises_drafter):
        yield Reason("no-drafts", {"metrics": quiet})
    if plan.limit is not None:
        yield Reason("limited", {"limit": plan.limit})
    if plan.pins.unpinned:
        yield Reason("unpinned", {"parts": plan.pins.unpinned})
    yield from lost_interleaving(plan)


def _of_discordance(figures: Sequence[Figures], pilot: Pilot | None) -> Iterator[Reason]:
    if any(one.belief.discordance_source.startswith("assumed") for one in figures):
        yield Reason("discordance-assumed" if pilot else "discordance-assumed.no-pilot")
    for one in figures:
        seen = pilot and pilot.metrics.get(one.id)
        if pilot and not seen:
            yield Reason("pilot-lacks", {"pilot": pilot.id, "metric": one.id, "source": one.belief.discordance_source})
        if seen and not seen.n_changed and one.belief.discordance_source.startswith("pilot"):
            most = 1.0 - 0.05 ** (1.0 / seen.n_scores)  # Clopper and Pearson's upper limit, 95 %
            yield Reason("pilot-unchanged", {"metric": one.name, "n": seen.n_scores, "most": most})


def _of_missing(figures: Sequence[Figures], plan: Plan) -> Iterator[Reason]:
    missing = plan.assumptions.missing if plan.assumptions else 0.0
    if figures and not missing:
        yield Reason("none-expected-missing")
    pairs = 1.0 - (1.0 - missing) ** 2
    caps = {one.name: replace(plan.rule, margin=one.margin).missing_cap(is_primary=True) for one in figures}
    if over := tuple(name for name, cap in caps.items() if pairs > cap):
        yield Reason("too-many-expected-missing", {"missing": missing, "metrics": over})


def _of_repeats(figures: Sequence[Figures], plan: Plan) -> Iterator[Reason]:
    if plan.sampling.repeats == 1:
        for one in figures:
            if (floor := one.belief.floor) is not None:
                yield of(one.name, Reason("floor-counts", {"floor": floor}))
        return
    yield Reason("repeats-divide", {"repeats": plan.sampling.repeats})
    if unknown := tuple(one.name for one in figures if one.belief.noise_source == "not known"):
        yield Reason("noise-unknown", {"metrics": unknown})


DEFAULT_DISCORDANCE = 0.05
EVERYWHERE = ""
"""The name under which a value is given for all metrics."""

Shares = Mapping[str, float]
"""Values by benchmark, task or metric id; under EVERYWHERE for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the user says beside the experiment."""

    discordance: Shares = field(default_factory=dict)
    design_effect: Shares = field(default_factory=dict)
    noise: Shares = field(default_factory=dict)
    """Discordance of two runs of the same arm."""
    rate: float | None = None
    """Requests a second, of both arms together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """One metric's assumptions."""

    discordance: float
    discordance_source: str
    design_effect: float
    design_effect_source: str
    noise: float
    """0 where nothing is known of it: repeats then count for nothing."""
    noise_source: str
    floor: float | None
    """Discordance of two runs of the baseline as a pilot measured it; None where none did."""


def check_given(given: Given, plan: Plan) -> None:
    """Check that the plan has the names, and that the values can be."""
    demands = [
        (given.discordance, "discordance", 0.0, 1.0, "a fraction from 0 to 1, as 0.05"),
        (given.noise, "noise", 0.0, 1.0, "a fraction from 0 to 1, as 0.02"),
        (given.design_effect, "design-effect", 1.0, float("inf"), "1 or more"),
    ]
    for values, name, least, most, allowed in demands:
        check_names({key: value for key, value in values.items() if key != EVERYWHERE}, plan, what=name)
        for key, value in values.items():
            if not least <= value <= most:
                raise InvalidValue(
                    f"{name}{f' of {key}' if key else ''} must be {allowed}",
                    hint=f"Given: {value:g}",
                    fields={name.replace("-", "_"): f"must be {allowed}"},
                )
    if given.rate is not None and not given.rate > 0.0:
        allowed = "must be a number of requests a second above 0"
        raise InvalidValue(f"rate {allowed}", hint="Leave --rate out to say nothing", fields={"rate": allowed})


def belief_of(metric: MetricSpec, plan: Plan, given: Given, pilot: Pilot | None, *, is_clustered: bool) -> Belief:
    """Find a metric's assumptions: what is said of it by name, then what the pilot saw, then what is said of all.

    InvalidValue where more of the discordance is said to be noise than there is.
    """
    seen, pilot_source = pilot and pilot.metrics.get(metric.id), f"pilot {pilot.id}" if pilot else ""

    def believed(
        values: Shares, measured: float | None, default: tuple[float, str], source: str = pilot_source
    ) -> tuple[float, str]:
        if (named := plan.named(metric, values)) is not None:
            return named, "assumed"
        if measured is not None:
            return measured, source
        return (values[EVERYWHERE], "assumed") if EVERYWHERE in values else default

    counted = f"{pilot_source}, {seen.n_changed} of {seen.n_scores}" if seen else ""
    default = (DEFAULT_DISCORDANCE, "assumed by default")
    discordance, source = believed(given.discordance, seen.discordance if seen else None, default, counted)
    (effect, effect_source), (noise, noise_source) = (1.0, ""), (0.0, "")
    if is_clustered or plan.named(metric, given.design_effect) is not None:
        measured = seen.design_effect if seen else None
        effect, effect_source = believed(given.design_effect, measured, (1.0, "not known"))
    if plan.sampling.repeats > 1:
        noise, noise_source = believed(given.noise, seen.noise if seen else None, (0.0, "not known"))
    if noise > discordance:
        raise InvalidValue(
            f"The noise of {metric.id} ({noise:g}) is more than its discordance ({discordance:g})",
            hint="Noise is the part of the discordance that two runs of the same arm have too",
        )
    return Belief(
        discordance=discordance,
        discordance_source=source,
        design_effect=effect,
        design_effect_source=effect_source,
        noise=noise,
        noise_source=noise_source,
        floor=seen.floor if seen else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotMetric:
    """One metric's complete pairs in a pilot."""

    n_scores: int
    n_changed: int
    discordance: float
    """Mean square of a pair's difference: the share of changed ones where scores are 0 or 1."""
    design_effect: float | None
    """Of items in clusters, repeats averaged; at least 1. None where fewer than two clusters changed."""
    noise: float | None
    """Variance of the difference within an item, over its repeats; None without repeats."""
    floor: float | None
    """Share of scores that differ between runs of the baseline alone; None without a noise floor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """What planning takes from a stored comparison."""

    id: str
    metrics: Mapping[str, PilotMetric]
    """Metrics that are means, by id."""
    rate: float | None
    """Requests a second, both arms together, without the time in which nothing was asked."""


def pilot_of(store: Store, comparison_id: str) -> Pilot:
    """Read the scores and times of a stored comparison; InvalidValue where nothing is scored yet."""
    comparison = store.get(comparison_id)
    items = list(store.items(comparison.id))
    scores, layout = read_scores(store.scores(comparison.id), items), layout_of(comparison.plan, items)
    if not any(scores.answered.values()):
        raise InvalidValue(
            f"Comparison {comparison.id} has no scores to plan from",
            hint=f"Finish it first: qualab resume {comparison.id}",
        )
    analysis = store.analysis(comparison.id)
    noise = analysis.noise if analysis else None
    floors = {one.metric: one.flip_rate_baseline for one in noise.metrics} if noise else {}
    metrics = {}
    for metric in comparison.plan.metrics:
        sample = sample_of(comparison.plan.members_of(metric), scores, layout, comparison.plan)
        if isinstance(sample, MeanSample):
            complete = sample.under(MissingPolicy.COMPLETE, right=1.0)
            if complete.n_items:
                metrics[metric.id] = _pilot_metric(complete, comparison.plan.sampling.repeats, floors.get(metric.id))
    # the time from the first request to the last, without pauses longer than an attempt may take
    answers = (answer for arm in ArmName for answer in store.answers(comparison.id, arm=arm))
    times = sorted(answer.reply.sent_at.timestamp() for answer in answers)
    longest = comparison.plan.policy.timeout_s
    busy_s = sum(gap for before, after in pairwise(times) if (gap := after - before) <= longest)
    return Pilot(id=comparison.id, metrics=metrics, rate=(len(times) - 1) / busy_s if busy_s > 0.0 else None)


def _pilot_metric(sample: MeanSample, repeats: int, floor: float | None) -> PilotMetric:
    differences = sample.differences
    discordance = float(np.mean(differences**2))
    _, first, codes = np.unique(sample.number // repeats, return_index=True, return_inverse=True)
    counts = np.bincount(codes)
    means, clusters = np.bincount(codes, weights=differences) / counts, sample.unit[first]
    effect = noise = None
    if np.unique(clusters[means != 0.0]).size >= 2:
        effect = if_any(lambda: max(1.0, mean_difference(means, cluster=clusters).design_effect))
    whole = differences[counts[codes] == repeats]  # items all of whose repeats are complete
    if repeats > 1 and whole.size >= 2 * repeats:
        noise = min(variance_components(whole.reshape(-1, repeats)).variance_within, discordance)
    return PilotMetric(
        n_scores=sample.n_items,
        n_changed=int(np.count_nonzero(differences)),
        discordance=discordance,
        design_effect=effect,
        noise=noise,
        floor=floor,
    )


_HAIR = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCounts:
    """A metric's items, clusters and answers an item."""

    n_items: int
    n_clusters: int
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One primary metric. Powers are chances without a true difference; None is "does not exist" or "too many"."""

    id: str
    name: str
    """For a person: the benchmark where it has one primary metric, else the id."""
    exercises_drafter: bool
    asked: ItemCounts
    belief: Belief
    margin: float
    variance: float
    """Of an item's mean difference: what stands in for the discordance. The discordance itself without repeats."""
    effective_items: int
    """Items over the design effect."""
    power: float
    """Of the verdict, with one look at the end and no answer missing: score tests and exact guard."""
    power_missing: float | None
    """The same with the expected missing answers, by simulation; None where none are expected."""
    power_looks: float | None
    """With them and the plan's looks at these items, by simulation. None without looks, for non-inferiority, and above
    10,000 items."""
    provable_margin: float | None
    """Proven with the power that each primary metric needs, like the items needed, expected missing answers counted."""
    mde: float | None
    """Smallest loss found with that power, the discordance fixed; of the two-sided test, not adjusted."""
    mde_beyond_noise: float | None
    """The same where noise is there anyway, a pilot's noise floor or else the discordance, and the loss on top."""
    items_needed: int | None
    """For all primary metrics together to have the power that is aimed at: each of them a higher one."""
    items_needed_alone: int | None
    """For this metric alone to have the power that is aimed at."""
    items_needed_repeated: int | None
    """As `items_needed`, with four answers an item, if all of the discordance were run noise: what repeats can help at
    best."""
    looks: EarlyLooks | None
    """Items with early looks; None where none are planned for, or for non-inferiority, which has no such design."""

    @property
    def planned_power(self) -> float:
        """Of the run as it is planned: with looks and missing answers where there are any."""
        powers = (self.power_looks, self.power_missing, self.power)
        return next(power for power in powers if power is not None)


BEST_REPEATS = 4


def figures_of(
    metric: MetricSpec, plan: Plan, asked: ItemCounts, belief: Belief, *, power_each: float, missing: float
) -> Figures:
    """Compute everything that planning says of one metric.

    `power_each` is what it needs for the joint power; `missing` is the expected share of each arm's answers.
    """
    rule = plan.rule_for(metric)
    expected = Missing(share=missing, lost=rule.missing_lost)
    variance = discordance_with_repeats(discordance=belief.discordance, noise=belief.noise, repeats=asked.repeats)
    effective = max(1, math.floor(asked.n_items / belief.design_effect + _HAIR))
    alpha, target = rule.alpha, rule.power
    n_clusters = asked.n_clusters if asked.n_clusters < asked.n_items or asked.repeats > 1 else None
    clusters_per_item = n_clusters and belief.design_effect * n_clusters / asked.n_items
    cost = (n_clusters and bound_cost(n_clusters=n_clusters, variance=variance / effective, alpha=alpha)) or 0.0

    def needed(discordance: float, power: float) -> int | None:
        n_items = sufficient_items(discordance, power, rule=rule, missing=expected, clusters_per_item=clusters_per_item)
        return None if n_items is None else math.ceil(n_items * belief.design_effect - _HAIR)

    power = partial(
        verdict_power,
        n_items=effective,
        discordance=variance,
        margin=rule.margin,
        alpha=alpha,
        is_one_sided=is_one_sided(rule),
        n_clusters=n_clusters,
    )
    power_looks = early = None
    if plan.looks and not is_one_sided(rule):
        looks = replace(plan.looks, harm_alpha=harm_alpha(plan, plan.looks))
        left = rule.margin - cost
        power_looks = 0.0
        if left > 0.0:
            power_looks = power_at_looks(
                n_items=effective,
                margin=left,
                discordance=variance,
                alpha=alpha,
                harm_alpha=looks.harm_alpha,
                n_looks=looks.n_looks,
                missing=expected,
            )
        if left > expected.shift:
            early = _early_looks(left - expected.shift, expected.worst(variance), alpha, power_each, looks)
    provable = narrowest_margin(effective, variance, power_each, rule=rule, missing=expected)
    floor = variance if belief.floor is None or asked.repeats > 1 else belief.floor
    return Figures(
        id=metric.id,
        name=_name(metric, plan),
        exercises_drafter=metric.exercises_drafter,
        asked=asked,
        belief=belief,
        margin=rule.margin,
        variance=variance,
        effective_items=effective,
        power=power(),
        power_missing=power(missing=expected) if missing else None,
        power_looks=power_looks,
        provable_margin=None if provable is None or provable + cost >= 1.0 else provable + cost,
        mde=if_any(lambda: mde(n_items=effective, discordance=variance, alpha=alpha, power=target)),
        mde_beyond_noise=if_any(lambda: mde_beyond_noise(n_items=effective, noise=floor, alpha=alpha, power=target)),
        items_needed=needed(variance, power_each),
        items_needed_alone=needed(variance, target),
        items_needed_repeated=needed(belief.discordance / BEST_REPEATS, power_each),
        looks=early
        and replace(
            early,
            most_items=math.ceil(early.most_items * belief.design_effect - _HAIR),
            expected_items=early.expected_items and early.expected_items * belief.design_effect,
        ),
    )


@lru_cache(maxsize=32)
def _early_looks(margin: float, discordance: float, alpha: float, power: float, looks: LookPlan) -> EarlyLooks | None:
    """Simulated once for metrics with the same assumptions."""
    return if_any(
        lambda: early_looks(
            margin=margin,
            discordance=discordance,
            alpha=alpha,
            power=power,
            harm_alpha=looks.harm_alpha,
            n_looks=looks.n_looks,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplanned:
    """A primary metric that planning has no figures for."""

    id: str
    reason: Reason


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
    unproven: tuple[Reason, ...]
    """What these items cannot prove."""
    caveats: tuple[Reason, ...]
    """On what the figures rest."""


def plan_comparison(
    plan: Plan, items: Iterable[Item], given: Given, pilot: Pilot | None = None, *, missing: float = 0.0
) -> Planning:
    """Say what a plan's items can prove, and add what was assumed to the plan.

    `missing` is the share of each arm's answers that is expected to be missing.
    """
    check_given(given, plan)
    n_requests, asked = _asked(items, plan)
    power_each = power_for_joint(n_metrics=len(plan.primaries), power=plan.rule.power) if plan.primaries else None
    planned, unplanned = [], []
    for metric in plan.primaries:
        is_clustered = asked[metric.id].n_clusters < asked[metric.id].n_items
        belief = belief_of(metric, plan, given, pilot, is_clustered=is_clustered)
        if reason := _reason_against(metric, plan):
            unplanned.append(Unplanned(id=metric.id, reason=reason))
        else:
            planned.append((metric, belief))
    figures = tuple(
        figures_of(metric, plan, asked[metric.id], belief, power_each=power_each or plan.rule.power, missing=missing)
        for metric, belief in planned
    )
    joint = joint_power([one.planned_power for one in figures]) if figures and not unplanned else None
    rate = given.rate if given.rate is not None or pilot is None else pilot.rate
    assumptions = Assumptions(
        discordance={one.id: one.belief.discordance for one in figures},
        design_effect={one.id: one.belief.design_effect for one in figures},
        noise={one.id: one.belief.noise for one in figures} if plan.sampling.repeats > 1 else {},
        joint_power=joint,
        missing=missing,
    )
    plan = replace(plan, assumptions=assumptions)
    return Planning(
        plan=plan,
        metrics=figures,
        unplanned=tuple(unplanned),
        n_items=sum(task.n_items for task in plan.tasks),
        power_each=power_each,
        joint_power=joint,
        expected_missing=missing,
        n_requests=n_requests,
        rate=rate,
        duration_s=n_requests / rate if rate else None,
        unproven=tuple(unproven(figures, plan.rule, power_each=power_each, joint=joint)),
        caveats=tuple(caveats(figures, plan, pilot, rate_is_given=given.rate is not None)),
    )


def _asked(rendered: Iterable[Item], plan: Plan) -> tuple[int, dict[str, ItemCounts]]:
    """Requests of the whole run; and each primary metric's items, a group's over all its members."""
    n_items: Counter[str] = Counter()
    clusters: dict[str, set[str]] = {}
    n_prompts = n_generations = 0
    for item in rendered:
        n_items[item.task] += 1
        n_prompts += len(item.prompts)
        n_generations += len(item.prompts) if item.kind is RequestKind.GENERATION else 0
        clusters.setdefault(item.task, set()).add(item.cluster or f"item {item.doc_id}")
    noise_runs, repeats = plan.noise_floor.runs if plan.noise_floor else 0, plan.sampling.repeats
    asked = {}
    for metric in plan.primaries:
        tasks = {member.task for member in plan.members_of(metric)}
        asked[metric.id] = ItemCounts(
            n_items=sum(n_items[task] for task in tasks),
            n_clusters=sum(len(clusters.get(task, ())) for task in tasks),
            repeats=repeats,
        )
    return (n_prompts * len(ArmName) + n_generations * noise_runs) * repeats, asked


def _reason_against(metric: MetricSpec, plan: Plan) -> Reason | None:
    """Why a metric has no figures; None where it has."""
    kinds = {member.kind for member in plan.members_of(metric)}
    if kinds == {MetricKind.BINARY_MEAN}:
        return None
    return Reason(f"unplanned.{kinds.pop() if len(kinds) == 1 else MetricKind.GROUP_MEAN}")


def _name(metric: MetricSpec, plan: Plan) -> str:
    benchmarks = plan.benchmarks_of(metric)
    sharing = [other for other in plan.primaries if plan.benchmarks_of(other) & benchmarks]
    return next(iter(benchmarks)) if len(benchmarks) == 1 and len(sharing) == 1 else metric.id

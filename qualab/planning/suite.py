"""Planning of a suite: assumptions, figures of each primary metric, and what the items cannot prove."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from qualab.analysis.drafter import lost_interleaving
from qualab.analysis.looks import harm_alpha
from qualab.analysis.ruling import MAX_ITEMS, bounds_of, is_one_sided
from qualab.analysis.samples import MeanSample, layout_of, read_scores, sample_of
from qualab.errors import InvalidValue
from qualab.model.items import Item
from qualab.model.names import ArmName, MetricKind, MissingPolicy, RequestKind
from qualab.model.plan import Assumptions, DecisionRule, MetricSpec, Plan, check_names
from qualab.model.reason import Reason, of
from qualab.planning.audit import ASSUMED_TOKENS, AuditOutlook, Lengths, audit_outlook
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
from qualab.stats.sizing import discordance_with_repeats, joint_power, mde, mde_beyond_noise, power_for_joint

if TYPE_CHECKING:
    from qualab.store import Store

DEFAULT_DISCORDANCE = 0.05
EVERYWHERE = ""
"""The name under which a value is given for all metrics."""
BEST_REPEATS = 4
_NEAR = 0.025
"""Powers with looks are simulated, and sizes with looks are right to about two percentage points of them."""
_HAIR = 1e-9

Shares = Mapping[str, float]
"""Values by benchmark, task or metric id; under EVERYWHERE for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Assumptions of the user, beside the experiment."""

    discordance: Shares = field(default_factory=dict)
    design_effect: Shares = field(default_factory=dict)
    noise: Shares = field(default_factory=dict)
    """Discordance of two runs of the same arm."""
    rate: float | None = None
    """Requests a second, of both arms together."""

    def check(self, plan: Plan) -> None:
        """Check that the plan has the names, and that the values are possible."""
        for name, values, least, most, allowed in (
            ("discordance", self.discordance, 0.0, 1.0, "a fraction from 0 to 1, as 0.05"),
            ("noise", self.noise, 0.0, 1.0, "a fraction from 0 to 1, as 0.02"),
            ("design-effect", self.design_effect, 1.0, math.inf, "1 or more"),
            ("rate", {} if self.rate is None else {EVERYWHERE: self.rate}, math.ulp(0.0), math.inf, "above 0"),
        ):
            check_names({key: value for key, value in values.items() if key != EVERYWHERE}, plan, what=name)
            for key, value in values.items():
                if not least <= value <= most:
                    text, part = f"must be {allowed}", f" of {key}" if key else ""
                    fields = {name.replace("-", "_"): text}
                    raise InvalidValue(f"{name}{part} {text}", hint=f"Given: {value:g}", fields=fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotMetric:
    """One metric's complete pairs in a pilot."""

    n_scores: int
    n_changed: int
    discordance: float
    """Mean square of a pair's difference: the share of changed ones where scores are 0 or 1."""
    design_effect: float | None
    """Design effect of clusters, repeats averaged; at least 1. None where fewer than two clusters changed."""
    noise: float | None
    """Variance of the difference within an item, over its repeats; None without repeats."""
    floor: float | None
    """Share of scores that differ between runs of the baseline alone; None without a noise floor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """Measurements of a stored comparison that planning uses."""

    id: str
    metrics: Mapping[str, PilotMetric]
    """Metrics that are means, by id."""
    rate: float | None
    """Requests a second, both arms together, without the time in which nothing was asked."""
    lengths: Lengths


def pilot_of(store: Store, comparison_id: str) -> Pilot:
    """Read the scores and times of a stored comparison; InvalidValue where nothing is scored yet."""
    comparison = store.get(comparison_id)
    items, plan = list(store.items(comparison.id)), comparison.plan
    scores, layout = read_scores(store.scores(comparison.id), items), layout_of(plan, items)
    if not any(scores.answered.values()):
        raise InvalidValue(
            f"Comparison {comparison.id} has no scores to plan from",
            hint=f"Finish it first: qualab resume {comparison.id}",
        )
    analysis = store.analysis(comparison.id)
    noise = analysis.noise if analysis else None
    floors = {metric.metric: metric.flip_rate_baseline for metric in noise.metrics} if noise else {}
    metrics = {}
    for metric in plan.metrics:
        sample = sample_of(plan.members_of(metric), scores, layout, plan)
        if isinstance(sample, MeanSample):
            complete = sample.under(MissingPolicy.COMPLETE, right=1.0)
            if complete.n_items:
                metrics[metric.id] = _pilot_metric(complete, plan.sampling.repeats, floors.get(metric.id))
    # the time from the first request to the last, without pauses longer than an attempt may take
    times, lengths = [], defaultdict[str, list[tuple[int, int]]](list)
    for answer in (answer for arm in ArmName for answer in store.answers(comparison.id, arm=arm)):
        times.append(answer.reply.sent_at.timestamp())
        prompt, own = answer.reply.prompt_tokens, answer.reply.completion_tokens
        if prompt is not None and own is not None:
            lengths[items[answer.position].task].append((prompt, own))
    times.sort()
    busy_s = sum(gap for before, after in pairwise(times) if (gap := after - before) <= plan.policy.timeout_s)
    return Pilot(
        id=comparison.id,
        metrics=metrics,
        rate=(len(times) - 1) / busy_s if busy_s > 0.0 and not plan.bank else None,
        lengths={task: (mean(pair[0] for pair in own), mean(pair[1] for pair in own)) for task, own in lengths.items()},
    )


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
        noise=noise if floor is None or noise is not None else min(floor, discordance),
        floor=floor,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    discordance: float
    discordance_source: str
    design_effect: float
    design_effect_source: str
    noise: float
    """0 where nothing is known of it: repeats then count for nothing."""
    noise_source: str
    floor: float | None
    """Discordance of two runs of the baseline as a pilot measured it."""


def is_noise_divided(plan: Plan) -> bool:
    """Tell whether repeats, or several runs of the baseline, divide run noise."""
    return plan.sampling.repeats > 1 or plan.n_baseline_runs > 1


def _belief(metric: MetricSpec, plan: Plan, given: Given, pilot: Pilot | None, *, is_clustered: bool) -> Belief:
    # what is said of a metric by name goes before what the pilot saw, and that before what is said of all
    measured = pilot.metrics.get(metric.id) if pilot else None
    from_pilot = f"pilot {pilot.id}" if pilot else ""

    def believed(name: str, default: tuple[float, str], source: str = from_pilot) -> tuple[float, str]:
        values = getattr(given, name)
        if (named := plan.named(metric, values)) is not None:
            return named, "assumed"
        if measured and (value := getattr(measured, name)) is not None:
            return value, source
        return (values[EVERYWHERE], "assumed") if EVERYWHERE in values else default

    counted = f"{from_pilot}, {measured.n_changed} of {measured.n_scores}" if measured else ""
    discordance, source = believed("discordance", (DEFAULT_DISCORDANCE, "assumed by default"), counted)
    (effect, effect_source), (noise, noise_source) = (1.0, ""), (0.0, "")
    if is_clustered or plan.named(metric, given.design_effect) is not None:
        effect, effect_source = believed("design_effect", (1.0, "not known"))
    if is_noise_divided(plan):
        noise, noise_source = believed("noise", (0.0, "not known"))
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
        floor=measured.floor if measured else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCounts:
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
    """Variance of an item's mean difference: the discordance, less the noise that repeats divide."""
    effective_items: int
    power: float
    """Power of the verdict with one look at the end and no answer missing: score tests and exact guard."""
    power_missing: float | None
    """Power with the expected missing answers, simulated; None where none are expected."""
    power_looks: float | None
    """Power with the plan's looks too, simulated; None without, for non-inferiority, and above 10,000 items."""
    provable_margin: float | None
    """At the power that each primary metric needs, with expected missing answers; so are the items needed."""
    mde: float | None
    """Smallest loss found, the discordance fixed, by the two-sided test without adjustment."""
    mde_beyond_noise: float | None
    """Smallest loss on top of a pilot's noise floor, or else of the discordance."""
    items_needed: int | None
    """For all primary metrics together to have the power that is aimed at: each of them a higher one."""
    items_needed_alone: int | None
    items_needed_repeated: int | None
    """Items needed with four answers an item, if all of the discordance were run noise."""
    looks: EarlyLooks | None
    """Items with early looks; None without, and for non-inferiority, which has no such design."""

    @property
    def power_at_end(self) -> float:
        return self.power if self.power_missing is None else self.power_missing

    @property
    def planned_power(self) -> float:
        return self.power_at_end if self.power_looks is None else self.power_looks


def _figures(
    metric: MetricSpec, plan: Plan, asked: ItemCounts, belief: Belief, *, power_each: float, missing: float
) -> Figures:
    rule, kinds = plan.rule_for(metric), {member.kind for member in plan.members_of(metric)}
    expected = Missing(share=missing, lost=rule.missing_lost)
    variance = discordance_with_repeats(
        discordance=belief.discordance,
        noise=belief.noise,
        repeats=asked.repeats,
        baseline_runs=1 if MetricKind.MACRO_F1 in kinds else plan.n_baseline_runs,
    )
    effective = max(1, math.floor(asked.n_items / belief.design_effect + _HAIR))
    n_clusters = asked.n_clusters if asked.n_clusters < asked.n_items or asked.repeats > 1 else None
    clusters_per_item = n_clusters and belief.design_effect * n_clusters / asked.n_items
    cost = 0.0
    if n_clusters:
        cost = bound_cost(n_clusters=n_clusters, variance=variance / effective, alpha=rule.alpha)

    def needed(discordance: float, power: float) -> int | None:
        n_items = sufficient_items(discordance, power, rule=rule, missing=expected, clusters_per_item=clusters_per_item)
        return None if n_items is None else math.ceil(n_items * belief.design_effect - _HAIR)

    power = partial(
        verdict_power,
        n_items=effective,
        discordance=variance,
        margin=rule.margin,
        alpha=rule.alpha,
        is_one_sided=is_one_sided(rule),
        n_clusters=n_clusters,
    )
    power_looks = early = None
    if plan.looks and not is_one_sided(rule):
        design: Any = {"n_looks": plan.looks.n_looks, "harm_alpha": harm_alpha(plan, plan.looks), "alpha": rule.alpha}
        left, power_looks = rule.margin - cost, 0.0
        if left > 0.0:
            power_looks = power_at_looks(
                n_items=effective, margin=left, discordance=variance, missing=expected, **design
            )
        if left > expected.shift:
            design |= {"margin": left - expected.shift, "discordance": expected.worst(variance), "power": power_each}
            early = if_any(lambda: early_looks(**design))
    if early:
        average = early.expected_items and early.expected_items * belief.design_effect
        most = math.ceil(early.most_items * belief.design_effect - _HAIR)
        early = replace(early, most_items=most, expected_items=average)
    provable = narrowest_margin(effective, variance, power_each, rule=rule, missing=expected)
    floor = variance if belief.floor is None or asked.repeats > 1 else belief.floor
    effect: Any = {"n_items": effective, "alpha": rule.alpha, "power": rule.power}
    benchmarks = plan.benchmarks_of(metric)
    has_own_name = len(benchmarks) == 1 and sum(bool(plan.benchmarks_of(p) & benchmarks) for p in plan.primaries) == 1
    return Figures(
        id=metric.id,
        name=next(iter(benchmarks)) if has_own_name else metric.id,
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
        mde=if_any(lambda: mde(discordance=variance, **effect)),
        mde_beyond_noise=if_any(lambda: mde_beyond_noise(noise=floor, **effect)),
        items_needed=needed(variance, power_each),
        items_needed_alone=needed(variance, rule.power),
        items_needed_repeated=needed(belief.discordance / BEST_REPEATS, power_each),
        looks=early,
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
    """Power of each primary metric for all of them to reach the power that is aimed at; None without a metric."""
    joint_power: float | None
    """Product of the powers as planned; None where a primary metric has none."""
    expected_missing: float
    """Share of each arm's answers."""
    n_requests: int
    """Requests to both arms and the noise floor; early looks may save some."""
    rate: float | None
    """Requests a second."""
    duration_s: float | None
    audit: AuditOutlook | None
    unproven: tuple[Reason, ...]
    caveats: tuple[Reason, ...]


def plan_comparison(
    plan: Plan,
    items: Iterable[Item],
    given: Given,
    pilot: Pilot | None = None,
    *,
    missing: float = 0.0,
    n_candidates: int = 1,
) -> Planning:
    """Compute what a plan's items can prove, and add what was assumed to the plan.

    `missing` is the share of each arm's answers that is expected to be missing; `n_candidates` share a baseline.
    """
    given.check(plan)
    rendered = list(items)
    n_requests, asked = _asked(rendered, plan, n_candidates)
    audit = audit_outlook(rendered, plan, pilot.lengths if pilot else {})
    n_metrics, target = len(plan.primaries), plan.rule.power
    power_each = power_for_joint(n_metrics=n_metrics, power=target) if n_metrics else target
    planned, unplanned = [], []
    for metric in plan.primaries:
        counts = asked[metric.id]
        belief = _belief(metric, plan, given, pilot, is_clustered=counts.n_clusters < counts.n_items)
        kinds = {member.kind for member in plan.members_of(metric)}
        if kinds == {MetricKind.BINARY_MEAN}:
            planned.append((metric, belief))
        else:
            kind = kinds.pop() if len(kinds) == 1 else MetricKind.GROUP_MEAN
            unplanned.append(Unplanned(id=metric.id, reason=Reason(f"unplanned.{kind}")))
    figures = tuple(
        _figures(metric, plan, asked[metric.id], belief, power_each=power_each, missing=missing)
        for metric, belief in planned
    )
    joint = joint_power([metric.planned_power for metric in figures]) if figures and not unplanned else None
    rate = given.rate if given.rate is not None or pilot is None else pilot.rate
    assumptions = Assumptions(
        discordance={metric.id: metric.belief.discordance for metric in figures},
        design_effect={metric.id: metric.belief.design_effect for metric in figures},
        noise={metric.id: metric.belief.noise for metric in figures} if is_noise_divided(plan) else {},
        joint_power=joint,
        missing=missing,
    )
    plan = replace(plan, assumptions=assumptions)
    return Planning(
        plan=plan,
        metrics=figures,
        unplanned=tuple(unplanned),
        n_items=sum(task.n_items for task in plan.tasks),
        power_each=power_each if n_metrics else None,
        joint_power=joint,
        expected_missing=missing,
        n_requests=n_requests,
        rate=rate,
        duration_s=n_requests / rate if rate else None,
        audit=audit,
        unproven=() if joint is not None and joint >= target else tuple(_unproven(figures, plan.rule, power_each)),
        caveats=(*_caveats(figures, plan, pilot, rate_is_given=given.rate is not None), *_audit_caveats(audit)),
    )


def _asked(items: Iterable[Item], plan: Plan, n_candidates: int) -> tuple[int, dict[str, ItemCounts]]:
    # requests of the whole run; and each primary metric's items, a group's over all its members
    n_items: Counter[str] = Counter()
    clusters: dict[str, set[str]] = defaultdict(set)
    n_prompts = n_generations = 0
    for item in items:
        n_items[item.task] += 1
        n_prompts += len(item.prompts)
        n_generations += len(item.prompts) if item.kind is RequestKind.GENERATION else 0
        clusters[item.task].add(item.cluster or f"item {item.doc_id}")
    noise_runs, repeats = plan.noise_floor.runs if plan.noise_floor else 0, plan.sampling.repeats
    tasks = {metric.id: {member.task for member in plan.members_of(metric)} for metric in plan.primaries}
    n_baseline = (n_prompts + n_generations * noise_runs) * repeats
    if plan.bank:
        n_baseline = min(plan.bank.sample, n_generations)
    return n_prompts * repeats * n_candidates + n_baseline, {
        metric: ItemCounts(
            n_items=sum(n_items[task] for task in own),
            n_clusters=sum(len(clusters[task]) for task in own),
            repeats=repeats,
        )
        for metric, own in tasks.items()
    }


def _unproven(figures: Sequence[Figures], rule: DecisionRule, target: float) -> Iterator[Reason]:
    # of each metric whose items have too little power as planned: what is lacking, and what would help
    for metric in figures:
        if metric.items_needed is None or metric.asked.n_items < metric.items_needed:
            sentences = (*_lacking(metric, rule, target), *_what_helps(metric))
        elif metric.power_looks is not None and metric.power_looks < target - _NEAR:
            values: dict[str, Any] = {"power": metric.power_at_end, "with_looks": metric.planned_power}
            values["target"] = round(target, 3)
            most = {"n": metric.looks.most_items} if metric.looks else {}
            sentences = (Reason("looks-cost.items" if most else "looks-cost", values | most),)
        else:
            continue
        yield Reason("unproven", {"name": metric.name, "sentences": sentences})


def _lacking(metric: Figures, rule: DecisionRule, target: float) -> Iterator[Reason]:
    needed = Reason("needed.more", {"most": MAX_ITEMS})
    if metric.items_needed:
        needed = Reason("needed", {"n": metric.items_needed})
    values: dict[str, Any] = {
        "n": metric.asked.n_items,
        "goal": Reason("goal.loss" if is_one_sided(rule) else "goal.both", {"margin": metric.margin}),
        "discordance": metric.belief.discordance,
        "needed": needed,
        "power": round(target, 3),
    }
    together = {} if target == rule.power else {"joint": rule.power}
    yield Reason("lacking.together" if together else "lacking", values | together)
    proven = Reason("no-margin") if metric.provable_margin is None else bounds_of(rule, metric.provable_margin)
    yield Reason("has-power", {"power": metric.power_at_end, "proven": proven})
    if metric.power_looks is not None:
        yield Reason("has-power.looks", {"power": metric.power_looks})
    if metric.power_missing is not None and metric.power >= target:  # missing answers alone take the power
        yield Reason("has-power.whole", {"power": metric.power})


def _what_helps(metric: Figures) -> Iterator[Reason]:
    if metric.items_needed:
        yield Reason("more-items-help", {"n": metric.items_needed - metric.asked.n_items})
    if metric.exercises_drafter and metric.asked.repeats == 1:
        at_best = metric.items_needed_repeated
        if at_best and at_best > metric.asked.n_items:
            yield Reason("repeats-fall-short", {"repeats": BEST_REPEATS, "n": at_best})
        else:
            yield Reason("repeats-help" if at_best else "repeats-are-too-few", {"repeats": BEST_REPEATS})


def _caveats(figures: Sequence[Figures], plan: Plan, pilot: Pilot | None, *, rate_is_given: bool) -> Iterator[Reason]:
    if any(metric.belief.discordance_source.startswith("assumed") for metric in figures):
        yield Reason("discordance-assumed" if pilot else "discordance-assumed.no-pilot")
    if pilot:
        for metric in figures:
            measured, source = pilot.metrics.get(metric.id), metric.belief.discordance_source
            if not measured:
                yield Reason("pilot-lacks", {"pilot": pilot.id, "metric": metric.id, "source": source})
            elif not measured.n_changed and source.startswith("pilot"):
                most = 1.0 - 0.05 ** (1.0 / measured.n_scores)  # Clopper and Pearson's upper limit, 95 %
                yield Reason("pilot-unchanged", {"metric": metric.name, "n": measured.n_scores, "most": most})
    missing = plan.assumptions.missing if plan.assumptions else 0.0
    if figures and not missing:
        yield Reason("none-expected-missing")
    pairs = 1.0 - (1.0 - missing) ** 2
    caps = {metric.name: replace(plan.rule, margin=metric.margin).missing_cap(is_primary=True) for metric in figures}
    if over := tuple(name for name, cap in caps.items() if pairs > cap):
        yield Reason("too-many-expected-missing", {"missing": missing, "metrics": over})
    for metric in figures:
        if metric.belief.design_effect_source == "not known":
            values = {"n": metric.asked.n_items, "n_clusters": metric.asked.n_clusters}
            yield of(metric.name, Reason("clusters-unknown", values))
    if plan.bank:
        yield Reason("bank-saves", {"name": plan.bank.name, "sample": plan.bank.sample, "n_runs": plan.n_baseline_runs})
    if plan.n_baseline_runs > 1:
        discounts = []  # the share of items that the baseline's further runs save
        for metric in figures:
            belief, repeats = metric.belief, metric.asked.repeats
            once = discordance_with_repeats(discordance=belief.discordance, noise=belief.noise, repeats=repeats)
            saved = Reason("discount", {"share": 1.0 - metric.variance / once if once else 0.0})
            discounts.append(of(metric.name, saved))
        yield Reason("baseline-runs-divide", {"n_runs": plan.n_baseline_runs, "discounts": tuple(discounts)})
    if not is_noise_divided(plan):
        for metric in figures:
            if (floor := metric.belief.floor) is not None:
                yield of(metric.name, Reason("floor-counts", {"floor": floor}))
    else:
        if plan.sampling.repeats > 1:
            yield Reason("repeats-divide", {"repeats": plan.sampling.repeats})
        if unknown := tuple(metric.name for metric in figures if metric.belief.noise_source == "not known"):
            yield Reason("noise-unknown", {"metrics": unknown})
    if len(plan.primaries) > 1:
        tasks = [task for metric in plan.primaries for task in metric.members or (metric.task,)]
        yield Reason("joint-power.shared" if len(set(tasks)) < len(tasks) else "joint-power.independent")
    if plan.looks and is_one_sided(plan.rule):
        yield Reason("looks-unplanned")
    if pilot and pilot.rate and not rate_is_given:
        yield Reason("pilot-rate", {"pilot": pilot.id})
    if quiet := tuple(metric.name for metric in figures if not metric.exercises_drafter):
        yield Reason("no-drafts", {"metrics": quiet})
    if plan.limit is not None:
        yield Reason("limited", {"limit": plan.limit})
    if plan.pins.unpinned:
        yield Reason("unpinned", {"parts": plan.pins.unpinned})
    yield from lost_interleaving(plan)


def _audit_caveats(audit: AuditOutlook | None) -> Iterator[Reason]:
    if audit and not audit.n_tokens:
        yield Reason("audit-no-greedy")
    elif audit and not audit.is_enough:
        yield Reason("audit-falls-short", {"n": audit.n_tokens, "needed": audit.n_tokens_needed})
    if audit and audit.n_tokens and audit.is_assumed:
        yield Reason("audit-lengths-assumed", {"tokens": ASSUMED_TOKENS})

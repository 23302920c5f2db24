"""A look at the answers so far: which primary metric has reached a boundary, and whether the run may stop.

A test at a look is the same as without looks, at the level of the boundary there: what is inside an interval of that
level has been proven whichever look it is (repeated confidence intervals: Jennison & Turnbull 1989).

Information is counted in complete pairs. Items are asked in random order, so that the mean so far is the mean of all
with noise of its own: the covariance of two looks' means is the variance of the later, clusters or not. Where items
come in clusters, few of a cluster are there early and the mean is better than the pairs say; looks then move together
more closely than the boundaries assume, which makes these strict, never lax (Slepian 1962).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from qualab.analysis.bounds import Bounds, with_zero
from qualab.analysis.family import sample_bounds, sample_evidence, sample_sides
from qualab.analysis.judge import Judgement, change_inside, policy_result, why_open
from qualab.analysis.missing import lost_pairs, missing_summary
from qualab.analysis.ruling import PROVEN, bounds_of, is_changed, is_one_sided
from qualab.analysis.samples import Layout, Sample, Scores, Streams, Untestable, members_of, missing_of, sample_of
from qualab.model.comparison import Evidence, IntervalOf, Look, LooksTaken, MetricLook, PolicyResult
from qualab.model.items import Item
from qualab.model.names import ArmName, LookDecision, MissingPolicy, Verdict
from qualab.model.plan import DecisionRule, LookPlan, MetricSpec, Plan
from qualab.model.reason import Reason
from qualab.stats.bounded import BoundedMean
from qualab.stats.distributions import normal_quantile, normal_sf
from qualab.stats.looks import sequential_pvalue, spending_boundaries

LEAST_LEVEL = 1e-8
"""Below this level exact tails are not exact enough to stop on."""
LEAST_SHOWN = 1e-12
"""No interval is drawn at a smaller level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookData:
    """The answers so far, and what was decided on fewer of them."""

    plan: Plan
    looks: LookPlan
    scores: Scores
    layout: Layout
    """Of the items asked so far, without answers that both arms lack for the same reason."""
    streams: Streams
    number: int
    before: Sequence[Look]

    @property
    def is_last(self) -> bool:
        return self.number == self.looks.n_looks


def take_look(data: LookData, *, n_items: int, input_hash: str) -> Look:
    """What the answers so far decide. The same answers decide the same."""
    metrics = tuple(_look_at(spec, data) for spec in data.plan.primaries)
    return Look(
        number=data.number,
        n_items=n_items,
        input_hash=input_hash,
        metrics=metrics,
        decision=_of_all([metric.decision for metric in metrics]),
    )


def _of_all(decisions: Sequence[LookDecision]) -> LookDecision:
    """Harm to one metric stops a run; otherwise it goes on until every metric is settled."""
    if LookDecision.HARM in decisions:
        return LookDecision.HARM
    if not decisions or LookDecision.CONTINUE in decisions:
        return LookDecision.CONTINUE
    return LookDecision.IMPROVEMENT if LookDecision.IMPROVEMENT in decisions else LookDecision.PROVEN


def history(metric: str, looks: Sequence[Look]) -> tuple[float, ...]:
    """The fractions of the information at which a metric was looked at: those that brought something new."""
    fractions = [one.fraction for look in looks for one in look.metrics if one.metric == metric]
    return tuple(sorted({fraction for fraction in fractions if fraction > 0.0}))


@lru_cache(maxsize=256)
def boundary_of(fractions: tuple[float, ...], alpha: float) -> float:
    """The boundary at the last of these looks."""
    return float(spending_boundaries(fractions, alpha=alpha)[-1])


def level_of(fractions: tuple[float, ...], alpha: float) -> float:
    """The one-sided level of a test at the last of these looks; alpha where there was none."""
    return normal_sf(boundary_of(fractions, alpha)) if fractions else alpha


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """One metric's tests at the boundaries of this look."""

    bounds: Bounds
    loss: float
    gain: float
    statistic: float | None
    decision: LookDecision


def _look_at(spec: MetricSpec, data: LookData) -> MetricLook:
    members = members_of(spec, data.plan)
    n_asked = sum(len(data.layout.tasks[member.task].keys) for member in members)
    n_pairs = n_asked - missing_of(members, data.scores, data.layout).either
    fractions = history(spec.id, data.before)
    so_far = fractions[-1] if fractions else 0.0
    fraction = 1.0 if data.is_last else max(so_far, n_pairs / _planned(members, data.plan))
    sample = sample_of(members, data.scores, data.layout, data.plan)
    found, last = None, next((one for look in data.before[-1:] for one in look.metrics if one.metric == spec.id), None)
    was_proven = last is not None and last.decision is LookDecision.PROVEN
    if fraction > so_far and n_pairs and not isinstance(sample, Untestable):
        fractions = (*fractions, fraction)
        found = _tested(spec, sample, fractions, data, was_proven=was_proven)
    decision, decided_at = LookDecision.CONTINUE, None
    if last and (found is None or (was_proven and found.decision is not LookDecision.HARM)):
        decision, decided_at = last.decision, last.decided_at
    elif found and found.decision is not LookDecision.CONTINUE:
        decision, decided_at = found.decision, data.number
    return MetricLook(
        metric=spec.id,
        n_pairs=n_pairs,
        fraction=fraction,
        difference=found.bounds.difference if found else None,
        interval=found.bounds.equivalence_interval if found else None,
        statistic=found.statistic if found else None,
        boundary=boundary_of(fractions, data.plan.rule.alpha) if found else None,
        pvalue_loss=found.loss if found else None,
        pvalue_gain=found.gain if found else None,
        harm_boundary=boundary_of(fractions, harm_alpha(data.plan, data.looks)) if found else None,
        pvalue_adjusted=_adjusted(found, fractions, data) if found else None,
        decision=decision,
        decided_at=decided_at,
    )


def _planned(members: Sequence[MetricSpec], plan: Plan) -> int:
    names = {member.task for member in members}
    return max(1, sum(task.n_items for task in plan.tasks if task.name in names) * plan.sampling.repeats)


def harm_alpha(plan: Plan, looks: LookPlan) -> float:
    """Each primary's share of the level of a loss."""
    return looks.harm_alpha / max(1, len(plan.primaries))


def _tested(
    spec: MetricSpec, sample: Sample, fractions: tuple[float, ...], data: LookData, *, was_proven: bool
) -> _Found:
    """The tests at this look's boundaries. A small loss or gain goes on, so that it can be proven inside the margin."""
    rule, name, better = data.plan.rule_for(spec), f"look {data.number} {spec.id}", spec.higher_is_better
    complete = sample.under(MissingPolicy.COMPLETE, right=1.0)
    level = level_of(fractions, rule.alpha)
    at_level = replace(rule, alpha=max(level, LEAST_SHOWN))
    bounds = sample_bounds(complete, at_level, data.streams.rng(name), higher_is_better=better)
    low, high = sample_sides(complete, data.streams.rng(f"{name} sides"))
    loss, gain = (low, high) if better else (high, low)
    is_changed = min(loss, gain) <= level_of(fractions, harm_alpha(data.plan, data.looks))
    is_final = fractions[-1] >= 1.0 and not was_proven
    is_proven = level >= LEAST_LEVEL and _proves(bounds, at_level, spec) and _all_agree(spec, sample, at_level, data)
    decision = LookDecision.CONTINUE
    if is_proven and not (is_changed and rule.strict):
        decision = LookDecision.PROVEN
    elif is_changed and (is_final or rule.strict or abs(bounds.difference) >= rule.margin):
        decision = LookDecision.HARM if loss < gain else LookDecision.IMPROVEMENT
    interval = with_zero(bounds.equivalence_interval, 2.0 * min(loss, gain), at_level.alpha)
    bounds = replace(bounds, equivalence_interval=interval)
    return _Found(bounds=bounds, loss=loss, gain=gain, statistic=_statistic(bounds), decision=decision)


def _proves(bounds: Bounds, rule: DecisionRule, spec: MetricSpec) -> bool:
    policy = MissingPolicy.COMPLETE  # named in the result alone
    return policy_result(policy, bounds, rule, higher_is_better=spec.higher_is_better).is_equivalent


def _all_agree(spec: MetricSpec, sample: Sample, rule: DecisionRule, data: LookData) -> bool:
    """Whether every way of treating the answers that are missing so far proves the objective."""
    better = spec.higher_is_better
    right, name = 1.0 if better else 0.0, f"look {data.number} {spec.id}"
    missing = missing_of(members_of(spec, data.plan), data.scores, data.layout)
    if not missing.either:
        return True
    summary = missing_summary(data.plan, data.scores, data.layout, data.streams.rng(f"look {data.number} missing"))
    n_lost = lost_pairs(data.plan.rule, missing, summary)

    def bounds(policy: MissingPolicy) -> Bounds:
        rng = data.streams.rng(f"{name} {policy}")
        return sample_bounds(sample.under(policy, right=right, n_lost=n_lost), rule, rng, higher_is_better=better)

    return all(_proves(bounds(policy), rule, spec) for policy in MissingPolicy if policy is not MissingPolicy.COMPLETE)


def _statistic(bounds: Bounds) -> float | None:
    """The weaker test as a standard normal quantile; None where there is no p-value to make one of."""
    pvalues = [p for p in (bounds.pvalue_equivalence, bounds.pvalue_equivalence_exact) if p is not None]
    return -normal_quantile(min(max(*pvalues, 1e-300), 1.0 - 1e-15)) if pvalues else None


def _adjusted(found: _Found, fractions: tuple[float, ...], data: LookData) -> float:
    one_sided = sequential_pvalue(min(found.loss, found.gain, 1.0), fractions)
    return min(1.0, 2.0 * one_sided * max(1, len(data.plan.primaries)))


def looks_taken(plan: Plan, looks: Sequence[Look], items: Sequence[Item]) -> LooksTaken | None:
    """How a run with looks went; None where the plan has none. `items` are all that were planned."""
    if plan.looks is None:
        return None
    n_asked = looks[-1].n_items if looks else len(items)
    saved = sum(len(item.requests) for item in items[n_asked:])
    return LooksTaken(
        n_planned=plan.looks.n_looks,
        looks=tuple(looks),
        n_items=n_asked,
        n_items_planned=len(items),
        n_requests_saved=saved * plan.sampling.repeats * len(ArmName),
    )


def rule_at(metric: str, rule: DecisionRule, looks: Sequence[Look]) -> DecisionRule:
    """The rule at the level of the last look's boundary."""
    return replace(rule, alpha=max(LEAST_SHOWN, level_of(history(metric, looks), rule.alpha)))


def evidence_at(
    spec: MetricSpec, complete: Sample, rule: DecisionRule, streams: Streams, looks: Sequence[Look]
) -> Evidence:
    """A primary metric's evidence, its bounds at the levels of the last look's boundaries. Not yet adjusted."""
    name, better = spec.id, spec.higher_is_better
    level = rule_at(name, rule, looks).alpha
    found = sample_evidence(name, complete, rule, streams, higher_is_better=better, level=level)
    outer = max(LEAST_SHOWN, level_of(history(name, looks), rule.alpha / 2.0))
    bounds = sample_bounds(complete, replace(rule, alpha=outer), streams.rng(f"bounds {name}"), higher_is_better=better)
    return replace(
        found,
        interval=_named(with_zero(bounds.equivalence_interval, found.pvalue, outer), 1.0 - rule.alpha),
        equivalence_interval=_named(found.equivalence_interval, 1.0 - 2.0 * rule.alpha),
    )


def _named(interval: IntervalOf | None, confidence_level: float) -> IntervalOf | None:
    """The level that the interval has over all looks together."""
    return interval and replace(interval, confidence_level=confidence_level)


def adjusted_for(name: str, evidence: Evidence, looks: Sequence[Look]) -> Evidence:
    """The same evidence with the p-value over all looks and primaries in place of the family's."""
    found = [one.pvalue_adjusted for one in _of(name, looks) if one.pvalue_adjusted is not None]
    return replace(evidence, pvalue_adjusted=found[-1] if found else 1.0)


def _of(metric: str, looks: Sequence[Look]) -> list[MetricLook]:
    return [one for look in looks for one in look.metrics if one.metric == metric]


def judge_at(
    name: str,
    looks: LooksTaken,
    evidence: Evidence | None,
    policies: Sequence[PolicyResult],
    rule: DecisionRule,
    *,
    higher_is_better: bool,
    missing_cost: Reason | None = None,
    bound: BoundedMean | None = None,
) -> Judgement:
    """A primary metric's verdict: what the looks decided, and nothing else."""
    steps = _of(name, looks.looks)
    if evidence is None or not steps:
        return Verdict.INCONCLUSIVE, Reason("no-pairs")
    last = steps[-1]
    values = {"look": last.decided_at, "n_looks": looks.n_planned}
    if last.decision is LookDecision.HARM:
        return Verdict.REGRESSION, Reason("look.worse", {**values, "p": evidence.pvalue_adjusted})
    if last.decision is LookDecision.IMPROVEMENT:
        return Verdict.IMPROVEMENT, Reason("look.better", {**values, "p": evidence.pvalue_adjusted})
    if last.decision is LookDecision.PROVEN:
        if is_changed(evidence, rule):
            return PROVEN[rule.objective], change_inside(evidence, rule, higher_is_better=higher_is_better)
        code = "look.proven.above" if is_one_sided(rule) else "look.proven.inside"
        return PROVEN[rule.objective], Reason(code, {**values, "bounds": bounds_of(rule)})
    at_level = rule_at(name, rule, looks.looks)
    reason = why_open(
        evidence, policies, at_level, higher_is_better=higher_is_better, missing_cost=missing_cost, bound=bound
    )
    return Verdict.INCONCLUSIVE, reason

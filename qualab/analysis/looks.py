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

from qualab.analysis.evidence import Pairs, is_equivalent, pairs_of, with_zero
from qualab.analysis.judge import NO_PAIRS, Judgement, change_inside, leave_open, policy_results
from qualab.analysis.missing import lost_pairs, missing_summary
from qualab.analysis.ruling import PROVEN, bounds_of, is_changed, is_one_sided
from qualab.analysis.samples import Layout, Sample, Scores, Streams, missing_of, sample_of
from qualab.model.comparison import Evidence, Look, LooksTaken, MetricLook, PolicyResult
from qualab.model.items import Item, n_requests
from qualab.model.names import ArmName, LookDecision, MissingPolicy, Verdict
from qualab.model.plan import LookPlan, MetricRule, MetricSpec, Plan
from qualab.model.reason import Reason
from qualab.stats.distributions import normal_quantile, normal_sf
from qualab.stats.looks import sequential_pvalue, spending_boundaries

LEAST_LEVEL = 1e-8
"""Below this level exact tails are not exact enough to stop on."""
LEAST_SHOWN = 1e-12
"""No interval is drawn at a smaller level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookData:
    """The answers so far, and the looks before."""

    plan: Plan
    looks: LookPlan
    scores: Scores
    layout: Layout
    """Pairs of the items asked so far, without answers that both arms lack for the same reason."""
    streams: Streams
    number: int
    before: Sequence[Look]


def take_look(data: LookData, *, n_items: int, input_hash: str) -> Look:
    """Decide on the answers so far. The same answers decide the same."""
    metrics = tuple(_look_at(spec, data) for spec in data.plan.primaries)
    decisions = [metric.decision for metric in metrics]
    # harm to one metric stops a run; otherwise it goes on until every metric is settled
    order = LookDecision.HARM, LookDecision.CONTINUE, LookDecision.IMPROVEMENT, LookDecision.PROVEN
    decision = next((choice for choice in order if choice in decisions), LookDecision.CONTINUE)
    return Look(number=data.number, n_items=n_items, input_hash=input_hash, metrics=metrics, decision=decision)


def _history(metric: str, looks: Sequence[Look]) -> tuple[float, ...]:
    return tuple(sorted({look.fraction for look in _looks_at(metric, looks) if look.fraction > 0.0}))


def _looks_at(metric: str, looks: Sequence[Look]) -> list[MetricLook]:
    return [own for look in looks for own in look.metrics if own.metric == metric]


@lru_cache(maxsize=256)
def boundary_of(fractions: tuple[float, ...], alpha: float) -> float:
    """Return the boundary at the last of these looks, a standard normal quantile."""
    return float(spending_boundaries(fractions, alpha=alpha)[-1])


def level_of(fractions: tuple[float, ...], alpha: float) -> float:
    """Return the one-sided level of the last of these looks; alpha without one."""
    return normal_sf(boundary_of(fractions, alpha)) if fractions else alpha


def harm_alpha(plan: Plan, looks: LookPlan) -> float:
    """Return the share of each primary, in each candidate's comparison, of the level of a loss."""
    return looks.harm_alpha / (max(1, len(plan.primaries)) * plan.n_candidates)


def _look_at(spec: MetricSpec, data: LookData) -> MetricLook:
    plan, members = data.plan, data.plan.members_of(spec)
    names = {member.task for member in members}
    n_asked = sum(len(data.layout.tasks[member.task].keys) for member in members)
    n_planned = sum(task.n_items for task in plan.tasks if task.name in names) * plan.sampling.repeats
    n_pairs = n_asked - missing_of(members, data.scores, data.layout).either
    fractions = _history(spec.id, data.before)
    so_far = fractions[-1] if fractions else 0.0
    is_last = data.number == data.looks.n_looks
    fraction = 1.0 if is_last else max(so_far, n_pairs / max(1, n_planned))
    last = next(iter(_looks_at(spec.id, data.before[-1:])), None)
    decision, decided_at = (last.decision, last.decided_at) if last else (LookDecision.CONTINUE, None)
    unchanged = MetricLook(metric=spec.id, n_pairs=n_pairs, fraction=fraction, decision=decision, decided_at=decided_at)
    sample = sample_of(members, data.scores, data.layout, plan)
    if fraction > so_far and n_pairs and not isinstance(sample, Reason):
        return _tested(spec, sample, (*fractions, fraction), data, unchanged)
    return unchanged


def _tested(
    spec: MetricSpec, sample: Sample, fractions: tuple[float, ...], data: LookData, unchanged: MetricLook
) -> MetricLook:
    """Test at this look's boundaries. A small change goes on, so that it can be proven inside the margin."""
    rule, name = data.plan.rule_for(spec), f"look {data.number} {spec.id}"
    level, of_harm = level_of(fractions, rule.alpha), harm_alpha(data.plan, data.looks)
    at_level = replace(rule, alpha=max(level, LEAST_SHOWN))
    pairs = pairs_of(sample.under(MissingPolicy.COMPLETE, right=1.0))
    bounds = pairs.bounds(at_level, data.streams.rng(name))
    low, high = pairs.sides(data.streams.rng(f"{name} sides"))
    loss, gain = (low, high) if rule.higher_is_better else (high, low)
    is_changed = min(loss, gain) <= level_of(fractions, of_harm)
    was_proven = unchanged.decision is LookDecision.PROVEN
    is_final = fractions[-1] >= 1.0 and not was_proven
    is_proven = level >= LEAST_LEVEL and is_equivalent(bounds, at_level) and _all_agree(spec, sample, at_level, data)
    decision = LookDecision.CONTINUE
    if is_proven and not (is_changed and rule.strict):
        decision = LookDecision.PROVEN
    elif is_changed and (is_final or rule.strict or abs(bounds.difference) >= rule.margin):
        decision = LookDecision.HARM if loss < gain else LookDecision.IMPROVEMENT
    decided_at = None if decision is LookDecision.CONTINUE else data.number
    if was_proven and decision is not LookDecision.HARM:
        decision, decided_at = unchanged.decision, unchanged.decided_at
    pvalues = [p for p in (bounds.pvalue_equivalence, bounds.pvalue_equivalence_exact) if p is not None]
    one_sided, interval = sequential_pvalue(min(loss, gain, 1.0), fractions), bounds.intervals[0]
    return replace(
        unchanged,
        difference=bounds.difference,
        interval=interval and with_zero(interval, 2.0 * min(loss, gain), at_level.alpha),
        statistic=-normal_quantile(min(max(*pvalues, 1e-300), 1.0 - 1e-15)) if pvalues else None,
        boundary=boundary_of(fractions, rule.alpha),
        pvalue_loss=loss,
        pvalue_gain=gain,
        harm_boundary=boundary_of(fractions, of_harm),
        pvalue_adjusted=min(1.0, 2.0 * one_sided * max(1, len(data.plan.primaries))),
        decision=decision,
        decided_at=decided_at,
    )


def _all_agree(spec: MetricSpec, sample: Sample, rule: MetricRule, data: LookData) -> bool:
    missing = missing_of(data.plan.members_of(spec), data.scores, data.layout)
    if not missing.either:
        return True
    name = f"look {data.number}"
    summary = missing_summary(data.plan, data.scores, data.layout, data.streams.rng(f"{name} missing"))
    n_lost = lost_pairs(data.plan.rule, missing, summary)
    results = policy_results(sample, rule, lambda policy: data.streams.rng(f"{name} {spec.id} {policy}"), n_lost=n_lost)
    return all(result.is_equivalent for result in results)


def looks_taken(plan: Plan, looks: Sequence[Look], items: Sequence[Item]) -> LooksTaken | None:
    """Summarize a run with looks (`items` as planned); None where the plan has none."""
    if plan.looks is None:
        return None
    n_asked = looks[-1].n_items if looks else len(items)
    return LooksTaken(
        n_planned=plan.looks.n_looks,
        looks=tuple(looks),
        n_items=n_asked,
        n_items_planned=len(items),
        n_requests_saved=n_requests(items[n_asked:], plan.sampling) * (1 if plan.bank else len(ArmName)),
    )


def levels_at(metric: str, alpha: float, looks: Sequence[Look]) -> tuple[float, float]:
    """Return the last look's levels of the inner and the outer interval."""
    fractions = _history(metric, looks)
    return max(LEAST_SHOWN, level_of(fractions, alpha)), max(LEAST_SHOWN, level_of(fractions, alpha / 2.0))


def pvalue_at(metric: str, looks: Sequence[Look]) -> float:
    """Return the p-value over all looks and primaries, in place of the family's."""
    pvalues = [look.pvalue_adjusted for look in _looks_at(metric, looks) if look.pvalue_adjusted is not None]
    return pvalues[-1] if pvalues else 1.0


def judge_at(
    looks: LooksTaken,
    metric: str,
    evidence: Evidence | None,
    policies: Sequence[PolicyResult],
    rule: MetricRule,
    *,
    pairs: Pairs | None = None,
    missing_cost: Reason | None = None,
) -> Judgement:
    """Judge a primary metric by what the looks decided. `rule` is the plan's, at its own alpha."""
    steps = _looks_at(metric, looks.looks)
    if evidence is None or not steps:
        return NO_PAIRS._replace(evidence=evidence)
    last = steps[-1]
    values: dict[str, object] = {"look": last.decided_at, "n_looks": looks.n_planned}
    match last.decision:
        case LookDecision.CONTINUE:
            at_level = replace(rule, alpha=levels_at(metric, rule.alpha, looks.looks)[0])
            return leave_open(evidence, policies, at_level, pairs, missing_cost)
        case LookDecision.HARM:
            verdict, reason = Verdict.REGRESSION, Reason("look.worse", {**values, "p": evidence.pvalue_adjusted})
        case LookDecision.IMPROVEMENT:
            verdict, reason = Verdict.IMPROVEMENT, Reason("look.better", {**values, "p": evidence.pvalue_adjusted})
        case LookDecision.PROVEN:
            verdict, code = PROVEN[rule.objective], "above" if is_one_sided(rule) else "inside"
            reason = Reason(f"look.proven.{code}", {**values, "bounds": bounds_of(rule)})
            if is_changed(evidence, rule):
                reason = change_inside(evidence, rule)
    return Judgement(verdict, reason, evidence)

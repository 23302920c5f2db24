"""The final analysis of a run with looks: what its primary metrics get, adjusted for the looks that were taken.

Intervals and p-values are those of the last look: intervals at the level of its boundary (repeated confidence
intervals: Jennison & Turnbull 1989), p-values the level at which it would have stopped the run (Liu & Anderson 2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qualab.app.analysis.bounds import with_zero
from qualab.app.analysis.judge import Judgement, change_inside, why_open
from qualab.app.analysis.looking import LEAST_SHOWN, history, level_of
from qualab.app.analysis.ruling import PROVEN, bounds_of, is_changed, is_one_sided
from qualab.app.analysis.samples import Sample
from qualab.app.analysis.streams import Streams
from qualab.app.analysis.testing import sample_bounds, sample_evidence
from qualab.domain.comparison import (
    Evidence,
    IntervalOf,
    Look,
    LooksTaken,
    MetricLook,
    PolicyResult,
)
from qualab.domain.items import Item
from qualab.domain.names import ArmName, LookDecision, Verdict
from qualab.domain.plan import DecisionRule, MetricSpec, Plan
from qualab.stats.bounded import BoundedMean

NOT_ADJUSTED = (
    "Only the primary metrics are adjusted for the looks: "
    "the others are shown as if the run had been planned to end here."
)


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
    missing_cost: str = "",
    bound: BoundedMean | None = None,
) -> Judgement:
    """A primary metric's verdict: what the looks decided, and nothing else."""
    steps = _of(name, looks.looks)
    if evidence is None or not steps:
        return Verdict.INCONCLUSIVE, "no item was answered by both arms"
    last = steps[-1]
    at = f"look {last.decided_at} of {looks.n_planned}"
    if last.decision is LookDecision.HARM:
        return Verdict.REGRESSION, f"the candidate is worse: {at} crossed the boundary of harm{_adjusted(evidence)}"
    if last.decision is LookDecision.IMPROVEMENT:
        return Verdict.IMPROVEMENT, f"the candidate is better: {at} crossed the boundary{_adjusted(evidence)}"
    if last.decision is LookDecision.PROVEN:
        if is_changed(evidence, rule):
            return PROVEN[rule.objective], change_inside(evidence, rule, higher_is_better=higher_is_better)
        where = "above" if is_one_sided(rule) else "inside"
        return PROVEN[rule.objective], f"proven at {at}: the interval at its boundary lies {where} {bounds_of(rule)}"
    at_level = rule_at(name, rule, looks.looks)
    reason = why_open(
        evidence, policies, at_level, higher_is_better=higher_is_better, missing_cost=missing_cost, bound=bound
    )
    return Verdict.INCONCLUSIVE, reason


def _adjusted(evidence: Evidence) -> str:
    return f" (adjusted p {evidence.pvalue_adjusted:.2g})"

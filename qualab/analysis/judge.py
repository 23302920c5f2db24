"""From evidence to verdicts: one metric's, and the comparison's with its reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from qualab.analysis.endings import odd_endings
from qualab.analysis.evidence import Pairs, is_equivalent, pairs_of, with_items_needed
from qualab.analysis.missing import too_many_missing
from qualab.analysis.ruling import (
    MAX_ITEMS,
    PASSING,
    PROVEN,
    bounds_of,
    changes_inside,
    is_changed,
    is_one_sided,
    is_out_of_reach,
    ruling,
)
from qualab.analysis.samples import Sample
from qualab.model.comparison import (
    ArmSummary,
    Evidence,
    ItemsRange,
    MetricResult,
    PairSummary,
    PolicyResult,
    SuiteEvidence,
)
from qualab.model.engine import Treatment
from qualab.model.names import EvidenceKind, MissingPolicy, Objective, Tier, Verdict
from qualab.model.plan import DecisionRule, MetricRule, Plan
from qualab.model.reason import Reason, of


class Judgement(NamedTuple):
    verdict: Verdict
    reason: Reason
    evidence: Evidence | None = None
    """With the items needed, where the verdict is INCONCLUSIVE."""


WORST_CASES = (MissingPolicy.AGAINST_CANDIDATE, MissingPolicy.AGAINST_BASELINE)
FILLING = (MissingPolicy.WRONG, *WORST_CASES)
"""Ways that put a score in place of a missing one."""
NO_PAIRS = Judgement(Verdict.INCONCLUSIVE, Reason("no-pairs"))


def judge(
    evidence: Evidence | None,
    policies: Sequence[PolicyResult],
    rule: MetricRule,
    pairs: Pairs | None = None,
    missing_cost: Reason | None = None,
) -> Judgement:
    """Judge one metric.

    Args:
        policies: results by way of treating missing answers; empty where none is missing.
        pairs: the evidence's, for the items needed of scores and clusters.
    """
    if evidence is None:
        return NO_PAIRS
    proven = is_equivalent(evidence, rule) and all(policy.is_equivalent for policy in policies)
    verdict = ruling(evidence, rule, is_proven=proven)
    if verdict is Verdict.INCONCLUSIVE:
        return leave_open(evidence, policies, rule, pairs, missing_cost)
    if verdict is not PROVEN[rule.objective]:
        return Judgement(verdict, _changed(evidence, rule, is_proven=proven), evidence)
    reason = change_inside(evidence, rule) if is_changed(evidence, rule) else _proven(evidence, rule)
    return Judgement(verdict, reason, evidence)


def leave_open(
    evidence: Evidence,
    policies: Sequence[PolicyResult],
    rule: MetricRule,
    pairs: Pairs | None = None,
    missing_cost: Reason | None = None,
) -> Judgement:
    """Say what an unproven metric lacks: items, or answers."""
    sized = with_items_needed(evidence, rule, pairs)
    dissent = next((policy for policy in policies if not policy.is_equivalent), None)
    if dissent is None or not is_equivalent(evidence, rule):
        reason = _still_needed(sized, rule)
    elif missing_cost is None:
        reason = Reason("policy-disagrees", {"policy": dissent.policy})
    else:
        reason = Reason("policy-disagrees.cost", {"policy": dissent.policy, "cost": missing_cost})
    return Judgement(Verdict.INCONCLUSIVE, reason, sized)


def change_inside(evidence: Evidence, rule: MetricRule) -> Reason:
    """Word a real loss or gain inside the margin, with its 1 − 2 alpha interval."""
    interval = evidence.equivalence_interval
    assert interval is not None  # nothing is proven without one
    low, high = (interval.low, interval.high) if evidence.difference > 0.0 else (-interval.high, -interval.low)
    values = {"difference": abs(evidence.difference), "low": low, "high": high}
    if (evidence.difference > 0.0) == rule.higher_is_better:
        return Reason("gain.real" if is_one_sided(rule) else "gain.inside", values)
    return Reason("loss.inside", values)


def policy_results(
    sample: Sample,
    rule: MetricRule,
    rng: Callable[[MissingPolicy], np.random.Generator],
    *,
    n_lost: int | None = None,
    policies: Sequence[MissingPolicy] = FILLING,
) -> Iterator[PolicyResult]:
    """Yield what each way of treating missing answers says; `n_lost` None takes all as lost."""
    for policy in policies:
        filled = sample.under(policy, right=1.0 if rule.higher_is_better else 0.0, n_lost=n_lost)
        bounds = pairs_of(filled).bounds(rule, rng(policy))
        yield PolicyResult(
            policy=policy,
            difference=bounds.difference,
            interval=bounds.intervals[0],
            is_equivalent=is_equivalent(bounds, rule),
        )


def _proven(evidence: Evidence, rule: MetricRule) -> Reason:
    code = "proven.above" if is_one_sided(rule) else "proven.inside"
    if evidence.pvalue_equivalence_exact is not None:
        return Reason(f"{code}.exact", {"bounds": bounds_of(rule)})
    return _noted(Reason(code, {"bounds": bounds_of(rule)}), evidence)


def _noted(reason: Reason, evidence: Evidence) -> Reason:
    return Reason("noted", {"reason": reason, "note": evidence.note}) if evidence.note else reason


def _changed(evidence: Evidence, rule: MetricRule, *, is_proven: bool) -> Reason:
    interval, is_rise = evidence.equivalence_interval, evidence.difference > 0.0
    least = 0.0 if interval is None else interval.low if is_rise else -interval.high
    code = "better" if is_rise == rule.higher_is_better else "worse"
    if least > rule.margin:
        return Reason(f"{code}.beyond", {"margin": rule.margin, "p": evidence.pvalue_adjusted})
    return Reason(f"{code}.strict" if is_proven else code, {"p": evidence.pvalue_adjusted})


def _still_needed(evidence: Evidence, rule: MetricRule) -> Reason:
    if evidence.provable_margin is None:
        return Reason("nothing-proven", {"note": evidence.note})
    if evidence.kind is EvidenceKind.CLUSTERS:
        circumstances = Reason("at-design-effect", {"effect": evidence.design_effect})
    else:
        circumstances = Reason("at-discordance" if evidence.kind is EvidenceKind.COUNTS else "at-spread")
    values: dict[str, object] = {
        "proven": _noted(_items_prove(evidence, rule, evidence.provable_margin), evidence),
        "bounds": bounds_of(rule),
        "needed": items_about(evidence.items_needed, evidence.items_needed_range),
        "circumstances": circumstances,
    }
    if evidence.difference == 0.0:
        return Reason("needs", values)
    values["difference"] = evidence.difference
    if is_out_of_reach(evidence, rule):
        return Reason("needs.out-of-reach", values)
    observed = items_about(evidence.items_needed_observed, evidence.items_needed_observed_range)
    return Reason("needs.observed", {**values, "observed": observed})


def items_about(needed: int | None, over: ItemsRange | None) -> Reason:
    """Word a number of items with its range, as "about 1,138 (922 to 1,389)"."""
    if needed is None:
        return Reason("more-than", {"most": MAX_ITEMS})
    if over is None:
        return Reason("about", {"n": needed})
    values = {"n": needed, "low": over.low or 0}
    if over.high is None:
        return Reason("about.open", {**values, "most": MAX_ITEMS})
    return Reason("about.range", {**values, "high": over.high})


def _items_prove(evidence: Evidence, rule: DecisionRule, margin: float) -> Reason:
    code, values = "items-prove", {"n": evidence.n_items}
    if evidence.n_clusters != evidence.n_items:
        code, values = "scores-prove", {**values, "n_clusters": evidence.n_clusters}
    if margin >= 1.0:
        return Reason(f"{code}.nothing", values)
    return Reason(code, {**values, "bounds": bounds_of(rule, margin)})


def conclude(
    plan: Plan,
    rows: Sequence[MetricResult],
    arms: Sequence[ArmSummary],
    pairs: PairSummary,
    *,
    suite: SuiteEvidence | None = None,
    treatment: Treatment | None = None,
    remedy: str = "",
) -> tuple[Verdict, tuple[Reason, ...]]:
    """Return the comparison's verdict with its reasons, the weightiest first."""
    troubles = treatment.troubles if treatment else ()
    broken = [*troubles, *_broken(plan, arms, pairs), *too_many_missing(plan, rows, remedy)]
    if broken and plan.tasks:  # without any nothing was asked
        return Verdict.INVALID, tuple(broken)
    verdict, reasons = _of_rows(plan, rows)
    test = suite.global_test if suite else None
    pvalue = min(1.0, test.pvalue * plan.n_candidates) if test else 1.0
    if test and test.n_metrics > 1 and pvalue <= plan.rule.alpha and test.difference < 0.0:
        values = {"n": test.n_metrics, "loss": -test.difference, "p": pvalue}
        reasons = (*reasons, Reason("worse-everywhere", values))
    return verdict, reasons


def _broken(plan: Plan, arms: Sequence[ArmSummary], pairs: PairSummary) -> Iterator[Reason]:
    if pairs.request_hashes_differ:
        yield Reason("bytes-differ", {"n": pairs.request_hashes_differ})
    if pairs.same_text_other_score:
        yield Reason("scoring-differs", {"n": pairs.same_text_other_score})
    if plan.imported is None:  # a table of scores has no answers
        yield from (Reason("arm-silent", {"arm": arm.arm}) for arm in arms if not arm.n_answers)
    yield from odd_endings(arms, plan, beyond=True)


def _of_rows(plan: Plan, rows: Sequence[MetricResult]) -> tuple[Verdict, tuple[Reason, ...]]:
    objective = plan.rule.objective

    def reasons(of_rows: Iterable[MetricResult]) -> tuple[Reason, ...]:
        return tuple(
            of(row.id, Reason("not-lossless", {"reason": row.reason}))
            if row.verdict is Verdict.IMPROVEMENT and objective is Objective.EQUIVALENCE
            else of(row.id, row.reason)
            for row in of_rows
        )

    def weight(row: MetricResult) -> tuple[bool, float]:
        return not row.is_primary, row.evidence.pvalue_adjusted if row.evidence else 0.0

    if losses := [row for row in rows if row.verdict is Verdict.REGRESSION and row.tier is not Tier.SUPPORTING]:
        return Verdict.REGRESSION, reasons(sorted(losses, key=weight))
    primaries = [row for row in rows if row.is_primary]
    open_rows = [row for row in primaries if row.verdict not in PASSING[objective]]
    if open_rows or not primaries:
        return Verdict.INCONCLUSIVE, reasons(open_rows) or (Reason("no-primary"),)
    return PROVEN[objective], (*reasons(changes_inside(rows, plan.rule)), _all_proven(plan, len(primaries)))


def _all_proven(plan: Plan, n_primaries: int) -> Reason:
    rules = {rule.margin: rule for rule in map(plan.rule_for, plan.primaries)}
    margins = [bounds_of(rule) for rule in rules.values()]
    if len(margins) == 1:
        bounds = margins[0]
    elif len(margins) == 2:
        bounds = Reason("margins", {"margins": tuple(margins)})
    else:
        bounds = Reason("margins.range", {"low": bounds_of(rules[min(rules)]), "high": bounds_of(rules[max(rules)])})
    code = "all-equivalent" if plan.rule.objective is Objective.EQUIVALENCE else "all-non-inferior"
    return Reason(code, {"n": n_primaries, "bounds": bounds})

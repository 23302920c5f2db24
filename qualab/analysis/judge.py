"""From evidence to verdicts: one metric's, and the comparison's with its reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qualab.analysis.bounds import Bounds, is_inside, with_items_needed
from qualab.analysis.endings import ending_troubles
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
from qualab.model.names import EvidenceKind, MissingPolicy, Objective, Verdict
from qualab.model.plan import DecisionRule, Plan
from qualab.model.reason import Reason, of
from qualab.stats.bounded import BoundedMean

Judgement = tuple[Verdict, Reason]


def judge(
    evidence: Evidence | None,
    policies: Sequence[PolicyResult],
    rule: DecisionRule,
    *,
    higher_is_better: bool = True,
    missing_cost: Reason | None = None,
    bound: BoundedMean | None = None,
) -> Judgement:
    """One metric's verdict and why. `policies` are those of missing answers, empty where none is missing.

    `missing_cost` says what they cost; `bound` is of scores that are not 0/1 or in clusters, for the items needed.
    """
    if evidence is None:
        return Verdict.INCONCLUSIVE, Reason("no-pairs")
    proven = is_equivalent(evidence, rule, higher_is_better=higher_is_better)
    proven = proven and all(one.is_equivalent for one in policies)
    verdict = ruling(evidence, rule, is_proven=proven, higher_is_better=higher_is_better)
    if verdict is Verdict.INCONCLUSIVE:
        return verdict, why_open(
            evidence, policies, rule, higher_is_better=higher_is_better, missing_cost=missing_cost, bound=bound
        )
    if verdict is not PROVEN[rule.objective]:
        return verdict, _changed(evidence, rule, is_proven=proven, higher_is_better=higher_is_better)
    if is_changed(evidence, rule):
        return verdict, change_inside(evidence, rule, higher_is_better=higher_is_better)
    return verdict, _proven(evidence, rule)


def why_open(
    evidence: Evidence,
    policies: Sequence[PolicyResult],
    rule: DecisionRule,
    *,
    higher_is_better: bool = True,
    missing_cost: Reason | None = None,
    bound: BoundedMean | None = None,
) -> Reason:
    """What a metric lacks whose objective is not proven: items, or answers."""
    dissent = next((one for one in policies if not one.is_equivalent), None)
    if dissent and is_equivalent(evidence, rule, higher_is_better=higher_is_better):
        if missing_cost is None:
            return Reason("policy-disagrees", {"policy": dissent.policy})
        return Reason("policy-disagrees.cost", {"policy": dissent.policy, "cost": missing_cost})
    return _still_needed(
        with_items_needed(evidence, rule, higher_is_better=higher_is_better, bound=bound),
        rule,
        higher_is_better=higher_is_better,
    )


def change_inside(evidence: Evidence, rule: DecisionRule, *, higher_is_better: bool = True) -> Reason:
    """The real loss or gain of a metric that proves the objective, with its 1 − 2 alpha interval."""
    interval = evidence.equivalence_interval
    assert interval is not None  # nothing is proven without one
    limits = (interval.low, interval.high) if evidence.difference > 0.0 else (-interval.high, -interval.low)
    is_gain = (evidence.difference > 0.0) == higher_is_better
    values = {"difference": abs(evidence.difference), "low": limits[0], "high": limits[1]}
    if is_gain:
        return Reason("gain.real" if is_one_sided(rule) else "gain.inside", values)
    return Reason("loss.inside", values)


def is_equivalent(evidence: Evidence, rule: DecisionRule, *, higher_is_better: bool = True) -> bool:
    """Whether the complete pairs prove the objective: the interval and the exact guard agree."""
    return is_inside(
        evidence.equivalence_interval,
        pvalue=evidence.pvalue_equivalence,
        pvalue_exact=evidence.pvalue_equivalence_exact,
        rule=rule,
        higher_is_better=higher_is_better,
    )


def policy_result(
    policy: MissingPolicy, bounds: Bounds, rule: DecisionRule, *, higher_is_better: bool = True
) -> PolicyResult:
    """What one policy's bounds say."""
    return PolicyResult(
        policy=policy,
        difference=bounds.difference,
        interval=bounds.equivalence_interval,
        is_equivalent=is_inside(
            bounds.equivalence_interval,
            pvalue=bounds.pvalue_equivalence,
            pvalue_exact=bounds.pvalue_equivalence_exact,
            rule=rule,
            higher_is_better=higher_is_better,
        ),
    )


def complete_result(evidence: Evidence) -> PolicyResult:
    """What the complete pairs say, where they are equivalent."""
    return PolicyResult(
        policy=MissingPolicy.COMPLETE,
        difference=evidence.difference,
        interval=evidence.equivalence_interval,
        is_equivalent=True,
    )


def _proven(evidence: Evidence, rule: DecisionRule) -> Reason:
    code = "proven.above" if is_one_sided(rule) else "proven.inside"
    if evidence.pvalue_equivalence_exact is not None:
        return Reason(f"{code}.exact", {"bounds": bounds_of(rule)})
    return _noted(Reason(code, {"bounds": bounds_of(rule)}), evidence)


def _noted(reason: Reason, evidence: Evidence) -> Reason:
    return Reason("noted", {"reason": reason, "note": evidence.note}) if evidence.note else reason


def _changed(evidence: Evidence, rule: DecisionRule, *, is_proven: bool, higher_is_better: bool) -> Reason:
    interval, is_rise = evidence.equivalence_interval, evidence.difference > 0.0
    least = 0.0 if interval is None else interval.low if is_rise else -interval.high
    code = "better" if is_rise == higher_is_better else "worse"
    if least > rule.margin:
        return Reason(f"{code}.beyond", {"margin": rule.margin, "p": evidence.pvalue_adjusted})
    return Reason(f"{code}.strict" if is_proven else code, {"p": evidence.pvalue_adjusted})


def _still_needed(evidence: Evidence, rule: DecisionRule, *, higher_is_better: bool) -> Reason:
    if evidence.provable_margin is None:
        return Reason("nothing-proven", {"note": evidence.note})
    values: dict[str, object] = {
        "proven": _noted(_items_prove(evidence, rule, evidence.provable_margin), evidence),
        "bounds": bounds_of(rule),
        "needed": items_about(evidence.items_needed, evidence.items_needed_range),
        "circumstances": _circumstances(evidence),
    }
    if evidence.difference == 0.0:
        return Reason("needs", values)
    values["difference"] = evidence.difference
    if is_out_of_reach(evidence, rule, higher_is_better=higher_is_better):
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
        code, values = "scores-prove", {"n": evidence.n_items, "n_clusters": evidence.n_clusters}
    if margin >= 1.0:
        return Reason(f"{code}.nothing", values)
    return Reason(code, {**values, "bounds": bounds_of(rule, margin)})


def _circumstances(evidence: Evidence) -> Reason:
    if evidence.kind is EvidenceKind.CLUSTERS:
        return Reason("at-design-effect", {"effect": evidence.design_effect})
    return Reason("at-discordance" if evidence.kind is EvidenceKind.COUNTS else "at-spread")


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
    """The comparison's verdict with its reasons, the weightiest first. `remedy`: the command for missing answers."""
    troubles = treatment.troubles if treatment else ()
    if broken := [*troubles, *_broken(plan, arms, pairs), *too_many_missing(plan, rows, remedy)]:
        return Verdict.INVALID, tuple(broken)
    verdict, reasons = _of_rows(plan, rows)
    return verdict, (*reasons, *_everywhere(plan.rule, suite))


def _of_rows(plan: Plan, rows: Sequence[MetricResult]) -> tuple[Verdict, tuple[Reason, ...]]:
    losses = [row for row in rows if row.verdict is Verdict.REGRESSION]
    if losses:
        return Verdict.REGRESSION, tuple(_open_reason(row, plan.rule.objective) for row in sorted(losses, key=_weight))
    primaries = [row for row in rows if row.is_primary]
    objective = plan.rule.objective
    open_rows = [row for row in primaries if row.verdict not in PASSING[objective]]
    if open_rows or not primaries:
        reasons = tuple(_open_reason(row, objective) for row in open_rows)
        return Verdict.INCONCLUSIVE, reasons or (Reason("no-primary"),)
    changes = (_open_reason(row, objective) for row in changes_inside(rows, plan.rule))
    return PROVEN[objective], (*changes, _all_proven(plan, primaries))


def _all_proven(plan: Plan, primaries: Sequence[MetricResult]) -> Reason:
    rules = {rule.margin: rule for rule in map(plan.rule_for, plan.primaries)}
    bounds = [bounds_of(rule) for rule in rules.values()]
    if len(bounds) == 1:
        said = bounds[0]
    elif len(bounds) == 2:
        said = Reason("margins", {"margins": tuple(bounds)})
    else:
        said = Reason("margins.range", {"low": bounds_of(rules[min(rules)]), "high": bounds_of(rules[max(rules)])})
    code = "all-equivalent" if plan.rule.objective is Objective.EQUIVALENCE else "all-non-inferior"
    return Reason(code, {"n": len(primaries), "bounds": said})


def _weight(row: MetricResult) -> tuple[bool, float]:
    """Primaries first, then the smaller adjusted p."""
    return not row.is_primary, row.evidence.pvalue_adjusted if row.evidence else 0.0


def _everywhere(rule: DecisionRule, suite: SuiteEvidence | None) -> Iterable[Reason]:
    found = suite.global_test if suite else None
    if found and found.n_metrics > 1 and found.pvalue <= rule.alpha and found.difference < 0.0:
        yield Reason("worse-everywhere", {"n": found.n_metrics, "loss": -found.difference, "p": found.pvalue})


def _open_reason(row: MetricResult, objective: Objective) -> Reason:
    if row.verdict is Verdict.IMPROVEMENT and objective is Objective.EQUIVALENCE:
        return of(row.id, Reason("not-lossless", {"reason": row.reason}))
    return of(row.id, row.reason)


def _broken(plan: Plan, arms: Sequence[ArmSummary], pairs: PairSummary) -> Iterable[Reason]:
    if pairs.request_hashes_differ:
        yield Reason("bytes-differ", {"n": pairs.request_hashes_differ})
    if pairs.same_text_other_score:
        yield Reason("scoring-differs", {"n": pairs.same_text_other_score})
    if plan.imported is None:  # a table of scores has no answers
        yield from (Reason("arm-silent", {"arm": arm.arm}) for arm in arms if not arm.n_answers)
    yield from ending_troubles(arms, plan)

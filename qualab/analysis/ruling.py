"""The one rule by which evidence becomes a metric's verdict: in a comparison, and at a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from qualab.model.comparison import Evidence, MetricResult
from qualab.model.names import Objective, Verdict
from qualab.model.plan import DecisionRule
from qualab.model.reason import Reason

PROVEN = {Objective.EQUIVALENCE: Verdict.EQUIVALENT, Objective.NON_INFERIORITY: Verdict.NON_INFERIOR}
"""What a metric is said to be that proves the objective."""
PASSING = {
    Objective.EQUIVALENCE: frozenset({Verdict.EQUIVALENT}),
    Objective.NON_INFERIORITY: frozenset({Verdict.NON_INFERIOR, Verdict.IMPROVEMENT}),
}
"""What every primary metric has to be. An improvement is no equivalence: a lossless drafter improves nothing either."""


MAX_ITEMS = 200_000
"""No number of items beyond is looked for."""


def is_one_sided(rule: DecisionRule) -> bool:
    """Whether a loss alone has to be ruled out."""
    return rule.objective is Objective.NON_INFERIORITY


def bounds_of(rule: DecisionRule, margin: float | None = None) -> Reason:
    """The rule's margin, or one that is proven, as the objective takes it: both sides, or that of a loss."""
    code = "margin.loss" if is_one_sided(rule) else "margin.both"
    if margin is not None:
        return Reason(f"{code}.proven", {"margin": margin})
    return Reason(code, {"margin": rule.margin})


def sides(objective: Objective, *, higher_is_better: bool = True) -> tuple[bool, bool]:
    """Whether the tests against −margin, and against +margin, have to reject."""
    if objective is Objective.EQUIVALENCE:
        return True, True
    return higher_is_better, not higher_is_better


def is_out_of_reach(evidence: Evidence, rule: DecisionRule, *, higher_is_better: bool = True) -> bool:
    """Whether no number of items proves the margin if the observed difference is the true one."""
    lower, upper = sides(rule.objective, higher_is_better=higher_is_better)
    return (lower and evidence.difference <= -rule.margin) or (upper and evidence.difference >= rule.margin)


def is_changed(evidence: Evidence, rule: DecisionRule) -> bool:
    """Whether the adjusted p-value shows a loss or a gain, of whatever size."""
    return evidence.pvalue_adjusted <= rule.alpha and evidence.difference != 0.0


def ruling(evidence: Evidence, rule: DecisionRule, *, is_proven: bool, higher_is_better: bool = True) -> Verdict:
    """A metric's verdict. `is_proven`: intervals, tests and missing-answer policies all prove the objective."""
    changed = is_changed(evidence, rule)
    if is_proven and not (changed and rule.strict):
        return PROVEN[rule.objective]
    if not changed:
        return Verdict.INCONCLUSIVE
    return Verdict.IMPROVEMENT if (evidence.difference > 0.0) == higher_is_better else Verdict.REGRESSION


def changes_inside(rows: Sequence[MetricResult], rule: DecisionRule) -> list[MetricResult]:
    """Metrics that prove the objective with a real loss or gain, the primary ones first. Each is said up front."""
    proven = (row for row in rows if row.verdict is PROVEN[rule.objective] and not row.equals)
    changed = [row for row in proven if row.evidence and is_changed(row.evidence, rule)]
    return sorted(changed, key=lambda row: not row.is_primary)

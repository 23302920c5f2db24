"""The one rule by which evidence becomes a metric's verdict: in a comparison, and at a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qualab.model.comparison import Evidence, MetricResult
from qualab.model.names import Objective, Verdict
from qualab.model.plan import DecisionRule, MetricRule
from qualab.model.reason import Reason, of

PROVEN = {Objective.EQUIVALENCE: Verdict.EQUIVALENT, Objective.NON_INFERIORITY: Verdict.NON_INFERIOR}
"""Verdict of a metric that proves the objective."""
PASSING = {
    Objective.EQUIVALENCE: frozenset({Verdict.EQUIVALENT}),
    Objective.NON_INFERIORITY: frozenset({Verdict.NON_INFERIOR, Verdict.IMPROVEMENT}),
}
"""Verdicts that every primary metric has to have. An improvement is no equivalence: a lossless drafter improves nothing
either."""
MAX_ITEMS = 200_000
"""No number of items beyond is looked for."""


def is_one_sided(rule: DecisionRule) -> bool:
    """Check that a loss alone has to be ruled out."""
    return rule.objective is Objective.NON_INFERIORITY


def bounds_of(rule: DecisionRule, margin: float | None = None) -> Reason:
    """Word the rule's margin, or a proven one, as both sides or as a loss."""
    code = "margin.loss" if is_one_sided(rule) else "margin.both"
    return Reason(code, {"margin": rule.margin}) if margin is None else Reason(f"{code}.proven", {"margin": margin})


def is_out_of_reach(evidence: Evidence, rule: MetricRule) -> bool:
    """Check that no number of items proves the margin at the observed difference."""
    lower, upper = rule.sides
    return (lower and evidence.difference <= -rule.margin) or (upper and evidence.difference >= rule.margin)


def is_changed(evidence: Evidence, rule: DecisionRule) -> bool:
    """Check that the adjusted p-value shows a loss or gain, of whatever size."""
    return evidence.pvalue_adjusted <= rule.alpha and evidence.difference != 0.0


def ruling(evidence: Evidence, rule: MetricRule, *, is_proven: bool) -> Verdict:
    """Return a metric's verdict. `is_proven`: intervals, tests and missing-answer policies all agree."""
    changed = is_changed(evidence, rule)
    if is_proven and not (changed and rule.strict):
        return PROVEN[rule.objective]
    if not changed:
        return Verdict.INCONCLUSIVE
    return Verdict.IMPROVEMENT if (evidence.difference > 0.0) == rule.higher_is_better else Verdict.REGRESSION


def changes_inside(rows: Sequence[MetricResult], rule: DecisionRule) -> list[MetricResult]:
    """List the metrics proven with a real loss or gain, primaries first."""
    proven = (row for row in rows if row.verdict is PROVEN[rule.objective] and not row.equals)
    changed = [row for row in proven if row.evidence and is_changed(row.evidence, rule)]
    return sorted(changed, key=lambda row: not row.is_primary)


def suspicions(rows: Sequence[MetricResult]) -> Iterator[Reason]:
    """Name each primary metric whose values a broken scorer would give."""
    for row in rows:
        if row.is_primary and row.baseline is not None and row.candidate is not None:
            if row.baseline == row.candidate == 0.0:
                yield of(row.id, Reason("suspect.zero"))
            elif row.baseline == row.candidate == 1.0:
                yield of(row.id, Reason("suspect.one"))
            elif row.chance is not None and max(row.baseline, row.candidate) < row.chance:
                yield of(row.id, Reason("suspect.chance", {"chance": row.chance}))

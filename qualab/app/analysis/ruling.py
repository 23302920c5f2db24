"""The one rule by which evidence becomes a metric's verdict: in a comparison, and at a terminal."""

from __future__ import annotations

from qualab.domain.names import Objective, Verdict
from qualab.domain.numbers import points, proven
from qualab.domain.plan import DecisionRule

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


def bounds_of(rule: DecisionRule, margin: float | None = None) -> str:
    """The rule's margin, or one that is proven, as the objective takes it: both sides, or that of a loss."""
    return f"{'−' if is_one_sided(rule) else '±'}{points(rule.margin) if margin is None else proven(margin)}"


def sides(objective: Objective, *, higher_is_better: bool = True) -> tuple[bool, bool]:
    """Whether the tests against −margin, and against +margin, have to reject."""
    if objective is Objective.EQUIVALENCE:
        return True, True
    return higher_is_better, not higher_is_better


def ruling(
    *,
    difference: float,
    high: float | None,
    pvalue: float,
    is_proven: bool,
    margin: float,
    alpha: float,
    objective: Objective,
) -> Verdict:
    """A metric's verdict, where more is better.

    `high` is the upper limit of the 1 − 2 alpha interval, None where there is none; `pvalue` is two-sided, adjusted
    where there are other metrics; `is_proven` says that interval and tests prove the objective.
    """
    if high is not None and high < -margin:
        return Verdict.REGRESSION
    if pvalue <= alpha and difference != 0.0:
        return Verdict.REGRESSION if difference < 0.0 else Verdict.IMPROVEMENT
    return PROVEN[objective] if is_proven else Verdict.INCONCLUSIVE

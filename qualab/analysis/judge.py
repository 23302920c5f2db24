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
from qualab.model.wording import MINUS, count, points, signed
from qualab.stats.bounded import BoundedMean

Judgement = tuple[Verdict, str]


def judge(
    evidence: Evidence | None,
    policies: Sequence[PolicyResult],
    rule: DecisionRule,
    *,
    higher_is_better: bool = True,
    missing_cost: str = "",
    bound: BoundedMean | None = None,
) -> Judgement:
    """One metric's verdict and why. `policies` are those of missing answers, empty where none is missing.

    `missing_cost` says what they cost; `bound` is of scores that are not 0/1 or in clusters, for the items needed.
    """
    if evidence is None:
        return Verdict.INCONCLUSIVE, "no item was answered by both arms"
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
    where = "above" if is_one_sided(rule) else "inside"
    return verdict, f"the interval lies {where} {bounds_of(rule)}{_agreeing(evidence)}"


def why_open(
    evidence: Evidence,
    policies: Sequence[PolicyResult],
    rule: DecisionRule,
    *,
    higher_is_better: bool = True,
    missing_cost: str = "",
    bound: BoundedMean | None = None,
) -> str:
    """What a metric lacks whose objective is not proven: items, or answers."""
    dissent = next((one for one in policies if not one.is_equivalent), None)
    if dissent and is_equivalent(evidence, rule, higher_is_better=higher_is_better):
        cost = f"; {missing_cost}" if missing_cost else ""
        return f"proven over complete pairs, but not with this policy: {dissent.policy}{cost}"
    return _still_needed(
        with_items_needed(evidence, rule, higher_is_better=higher_is_better, bound=bound),
        rule,
        higher_is_better=higher_is_better,
    )


def change_inside(evidence: Evidence, rule: DecisionRule, *, higher_is_better: bool = True) -> str:
    """The real loss or gain of a metric that proves the objective, with its 1 − 2 alpha interval."""
    interval = evidence.equivalence_interval
    assert interval is not None  # nothing is proven without one
    limits = (interval.low, interval.high) if evidence.difference > 0.0 else (-interval.high, -interval.low)
    low, high = (f"{100 * limit:.2f}".replace("-", MINUS) for limit in limits)
    is_gain = (evidence.difference > 0.0) == higher_is_better
    inside = "" if is_gain and is_one_sided(rule) else " and inside the margin"
    what = "gain" if is_gain else "loss"
    return f"a {what} of {points(abs(evidence.difference))} ({low} to {high}) is real{inside}"


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


def _agreeing(evidence: Evidence) -> str:
    if evidence.pvalue_equivalence_exact is not None:
        return " and the exact test agrees"
    return f" ({evidence.note})" if evidence.note else ""


def _changed(evidence: Evidence, rule: DecisionRule, *, is_proven: bool, higher_is_better: bool) -> str:
    interval, is_rise = evidence.equivalence_interval, evidence.difference > 0.0
    least = 0.0 if interval is None else interval.low if is_rise else -interval.high
    more = f" by more than {points(rule.margin)}" if least > rule.margin else ""
    strict = ", inside the margin: the plan is strict" if is_proven else ""
    better = "better" if is_rise == higher_is_better else "worse"
    return f"the candidate is {better}{more} (adjusted p {evidence.pvalue_adjusted:.2g}){strict}"


def _still_needed(evidence: Evidence, rule: DecisionRule, *, higher_is_better: bool) -> str:
    if evidence.provable_margin is None:
        return f"nothing is proven: {evidence.note}"
    prove = "this 1 item proves" if evidence.n_items == 1 else f"these {_what(evidence)} prove"
    proven = f"{prove} {bounds_of(rule, evidence.provable_margin)}"
    note = f" ({evidence.note})" if evidence.note else ""
    if evidence.provable_margin >= 1.0:
        proven = f"{prove} no margin"
    needed = items_text(evidence.items_needed, evidence.items_needed_range)
    said = f"{proven}{note}; {bounds_of(rule)} needs {needed} {_circumstances(evidence)} and no true difference"
    if evidence.difference == 0.0:
        return said
    if is_out_of_reach(evidence, rule, higher_is_better=higher_is_better):
        return f"{said}; more items will not prove it if the difference of {signed(evidence.difference)} pp is real"
    observed = items_text(evidence.items_needed_observed, evidence.items_needed_observed_range)
    return f"{said}, {observed} if the difference of {signed(evidence.difference)} pp is real"


def items_text(needed: int | None, over: ItemsRange | None) -> str:
    """A number of items with its range, as "about 1,138 (922 to 1,389)"."""
    if needed is None:
        return f"more than {count(MAX_ITEMS)}"
    if over is None:
        return f"about {count(needed)}"
    high = f"more than {count(MAX_ITEMS)}" if over.high is None else count(over.high)
    return f"about {count(needed)} ({count(over.low or 0)} to {high})"


def _what(evidence: Evidence) -> str:
    if evidence.n_clusters == evidence.n_items:
        return f"{count(evidence.n_items)} items"
    return f"{count(evidence.n_items)} scores in {count(evidence.n_clusters)} clusters"


def _circumstances(evidence: Evidence) -> str:
    if evidence.kind is EvidenceKind.CLUSTERS:
        return f"scores at this discordance and a design effect of {evidence.design_effect:.2f}"
    return "items at this discordance" if evidence.kind is EvidenceKind.COUNTS else "items at this spread"


def conclude(
    plan: Plan,
    rows: Sequence[MetricResult],
    arms: Sequence[ArmSummary],
    pairs: PairSummary,
    *,
    suite: SuiteEvidence | None = None,
    treatment: Treatment | None = None,
    remedy: str = "",
) -> tuple[Verdict, tuple[str, ...]]:
    """The comparison's verdict with its reasons, the weightiest first. `remedy`: the command for missing answers."""
    troubles = treatment.troubles if treatment else ()
    if broken := [*troubles, *_broken(plan, arms, pairs), *too_many_missing(plan, rows, remedy)]:
        return Verdict.INVALID, tuple(broken)
    verdict, reasons = _of_rows(plan, rows)
    return verdict, (*reasons, *_everywhere(plan.rule, suite))


def _of_rows(plan: Plan, rows: Sequence[MetricResult]) -> tuple[Verdict, tuple[str, ...]]:
    losses = [row for row in rows if row.verdict is Verdict.REGRESSION]
    if losses:
        return Verdict.REGRESSION, tuple(_open_reason(row, plan.rule.objective) for row in sorted(losses, key=_weight))
    primaries = [row for row in rows if row.is_primary]
    objective = plan.rule.objective
    open_rows = [row for row in primaries if row.verdict not in PASSING[objective]]
    if open_rows or not primaries:
        reasons = tuple(_open_reason(row, objective) for row in open_rows)
        return Verdict.INCONCLUSIVE, reasons or ("no primary metric",)
    changes = (_open_reason(row, objective) for row in changes_inside(rows, plan.rule))
    return PROVEN[objective], (*changes, _all_proven(plan, primaries))


def _all_proven(plan: Plan, primaries: Sequence[MetricResult]) -> str:
    rules = [plan.rule_for(metric) for metric in plan.primaries]
    bounds = dict.fromkeys(bounds_of(rule) for rule in rules)
    said = " and ".join(bounds) if len(bounds) < 3 else f"{min(bounds)} to {max(bounds)}"
    those = "the primary metric is" if len(primaries) == 1 else f"all {len(primaries)} primary metrics are"
    if plan.rule.objective is Objective.EQUIVALENCE:
        return f"{those} equivalent within {said}"
    return f"{those} non-inferior: above {said}"


def _weight(row: MetricResult) -> tuple[bool, float]:
    """Primaries first, then the smaller adjusted p."""
    return not row.is_primary, row.evidence.pvalue_adjusted if row.evidence else 0.0


def _everywhere(rule: DecisionRule, suite: SuiteEvidence | None) -> Iterable[str]:
    found = suite.global_test if suite else None
    if found and found.n_metrics > 1 and found.pvalue <= rule.alpha and found.difference < 0.0:
        yield (
            f"over all {found.n_metrics} metrics together the candidate is worse by {points(-found.difference)} on "
            f"average (global test, p {found.pvalue:.2g})"
        )


def _open_reason(row: MetricResult, objective: Objective) -> str:
    if row.verdict is Verdict.IMPROVEMENT and objective is Objective.EQUIVALENCE:
        return f"{row.id}: {row.reason}; a lossless drafter should not improve anything either"
    return f"{row.id}: {row.reason}"


def _broken(plan: Plan, arms: Sequence[ArmSummary], pairs: PairSummary) -> list[str]:
    broken = []
    if pairs.request_hashes_differ:
        broken.append(f"{pairs.request_hashes_differ} requests were not the same bytes in both arms")
    if n := pairs.same_text_other_score:
        those = "1 item has" if n == 1 else f"{n} items have"
        broken.append(
            f"{those} the same answer and another score: the scoring differs, not the drafter (see qualab rescore)"
        )
    if plan.imported is None:  # a table of scores has no answers
        broken += [f"the {arm.arm} answered nothing" for arm in arms if not arm.n_answers]
    broken += ending_troubles(arms, plan)
    return broken

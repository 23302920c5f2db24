"""From stored scores to a verdict: one row a metric, one verdict for the comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from qualab.app.evidence import (
    Outcome,
    Outcomes,
    adjust,
    binary_evidence,
    dissenting_policy,
    is_equivalent,
)
from qualab.app.scoring import raw_value
from qualab.app.summaries import Summary
from qualab.domain.canonical import canonical_json
from qualab.domain.comparison import Analysis, ArmSummary, BinaryEvidence, Comparison, MetricResult, PairSummary
from qualab.domain.items import Item, Score
from qualab.domain.names import ArmName, MetricKind, Verdict
from qualab.domain.plan import DecisionRule, MetricSpec, Plan
from qualab.ports import LoadedTasks, Store

Key = tuple[int, int]
"""Position and repeat."""

Column = dict[Key, Any]
"""One metric's scores in one arm, as the harness gave them."""


@dataclass(slots=True)
class Scores:
    """All scores of a comparison, by task and metric, and the hash of what was read."""

    columns: dict[tuple[str, str, ArmName], Column] = field(default_factory=dict)
    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, score: Score, task: str) -> None:
        key = (task, score.metric, score.arm)
        self.columns.setdefault(key, {})[score.position, score.repeat] = raw_value(score)
        self.digest.update(repr((key, score.position, score.repeat, raw_value(score))).encode())

    def column(self, task: str, metric: str, arm: ArmName) -> Column:
        return self.columns.get((task, metric, arm), {})


def analyse(
    store: Store, comparison: Comparison, tasks: LoadedTasks, items: Sequence[Item], summary: Summary
) -> Analysis:
    """The analysis of what is stored. The same stored rows give the same result. `items` by position."""
    scores = read_scores(store.scores(comparison.id), items)
    arms, pairs = summary.arms, summary.pairs
    values = {arm: _values(scores, comparison.plan, tasks, arm) for arm in ArmName}
    rows = _metric_rows(comparison.plan, scores, _asked(comparison.plan, items), values)
    verdict, reasons = conclude(comparison.plan, rows, arms, pairs)
    return Analysis(
        comparison_id=comparison.id,
        plan_hash=comparison.plan_hash,
        input_hash=_input_hash(scores, arms, pairs),
        verdict=verdict,
        reasons=reasons,
        caveats=_caveats(comparison.plan),
        metrics=rows,
        arms=arms,
        pairs=pairs,
        versions={name: version(name) for name in ("qualab", "lm_eval", "numpy", "scipy")},
    )


def read_scores(stored: Iterable[Score], items: Sequence[Item]) -> Scores:
    """The stored scores by task and metric."""
    scores = Scores()
    for score in stored:
        scores.add(score, items[score.position].task)
    return scores


def _input_hash(scores: Scores, arms: Sequence[ArmSummary], pairs: PairSummary) -> str:
    digest = scores.digest.copy()
    for arm in arms:
        digest.update(canonical_json(arm.statuses).encode())
    digest.update(canonical_json(pairs).encode())
    return str(digest.hexdigest())


def _asked(plan: Plan, items: Sequence[Item]) -> dict[str, list[Key]]:
    asked: dict[str, list[Key]] = {}
    for item in items:
        asked.setdefault(item.task, []).extend((item.position, repeat) for repeat in range(plan.sampling.repeats))
    return asked


def _values(scores: Scores, plan: Plan, tasks: LoadedTasks, arm: ArmName) -> dict[str, dict[str, float]]:
    """The arm's aggregates over complete pairs, by the harness's own aggregation."""
    wanted: dict[str, dict[str, list[Any]]] = {}
    for spec in plan.metrics:
        if spec.kind is MetricKind.GROUP_MEAN:
            continue
        own, other = (scores.column(spec.task, spec.key, one) for one in (arm, _other(arm)))
        # in document order, as lm-eval sums them
        pairs = [value for key, value in sorted(own.items()) if key in other]
        if pairs:
            wanted.setdefault(spec.task, {})[spec.key] = pairs
    return tasks.aggregate(wanted)


def _other(arm: ArmName) -> ArmName:
    return ArmName.CANDIDATE if arm is ArmName.BASELINE else ArmName.BASELINE


def _metric_rows(
    plan: Plan,
    scores: Scores,
    asked: Mapping[str, Sequence[Key]],
    values: Mapping[ArmName, Mapping[str, Mapping[str, float]]],
) -> tuple[MetricResult, ...]:
    outcomes = [_outcomes(spec, plan, scores, asked) for spec in plan.metrics]
    plain = [binary_evidence(found, plan.rule) if found else None for found in outcomes]
    adjusted = iter(adjust([one for one in plain if one]))
    evidence = [next(adjusted) if one else None for one in plain]
    return tuple(
        _row(spec, found, proof, plan, values)
        for spec, found, proof in zip(plan.metrics, outcomes, evidence, strict=True)
    )


def _members(spec: MetricSpec, plan: Plan) -> list[MetricSpec]:
    """The metrics that a row pools: itself, or a group's members that have it."""
    if spec.kind is not MetricKind.GROUP_MEAN:
        return [spec]
    return [other for other in plan.metrics if other.task in spec.members and other.key == spec.key]


def _outcomes(spec: MetricSpec, plan: Plan, scores: Scores, asked: Mapping[str, Sequence[Key]]) -> Outcomes | None:
    """The items' outcomes where the metric is a plain mean of them; None where it is anything else."""
    members = _members(spec, plan)
    if plan.sampling.repeats > 1 or not members or any(m.kind is not MetricKind.BINARY_MEAN for m in members):
        return None
    baseline: list[Outcome] = []
    candidate: list[Outcome] = []
    for member in members:
        off, on = (scores.column(member.task, member.key, arm) for arm in ArmName)
        for key in asked[member.task]:
            baseline.append(_is_right(off.get(key)))
            candidate.append(_is_right(on.get(key)))
    return Outcomes(baseline=tuple(baseline), candidate=tuple(candidate))


def _is_right(value: float | None) -> Outcome:
    return None if value is None else bool(value)


def _row(
    spec: MetricSpec,
    outcomes: Outcomes | None,
    evidence: BinaryEvidence | None,
    plan: Plan,
    values: Mapping[ArmName, Mapping[str, Mapping[str, float]]],
) -> MetricResult:
    baseline, candidate = (values[arm].get(spec.task, {}).get(spec.key) for arm in ArmName)
    n_asked = sum(t.n_items for t in plan.tasks if t.name in {m.task for m in _members(spec, plan)})
    verdict, reason = judge(outcomes, evidence, plan)
    return MetricResult(
        id=spec.id,
        task=spec.task,
        metric=spec.key,
        kind=spec.kind,
        is_primary=spec.is_primary,
        exercises_drafter=spec.exercises_drafter,
        baseline=baseline,
        candidate=candidate,
        n_items=n_asked,
        n_missing=outcomes.n_missing if outcomes else 0,
        verdict=verdict,
        reason=reason,
        evidence=evidence,
    )


def judge(outcomes: Outcomes | None, evidence: BinaryEvidence | None, plan: Plan) -> tuple[Verdict, str]:
    """One metric's verdict and why."""
    rule = plan.rule
    if outcomes is None:
        return Verdict.NOT_TESTED, "no test yet for this kind of metric"
    if evidence is None:
        return Verdict.INCONCLUSIVE, "no item was answered by both arms"
    if found := _one_sided(evidence, rule):
        return found
    if is_equivalent(evidence, rule):
        if policy := dissenting_policy(outcomes, rule):
            return Verdict.INCONCLUSIVE, f"equivalent over complete pairs, but not with this policy: {policy}"
        return Verdict.EQUIVALENT, f"the interval lies inside ±{_pp(rule.margin)} and the exact test agrees"
    return Verdict.INCONCLUSIVE, _still_needed(evidence, rule)


def _one_sided(evidence: BinaryEvidence, rule: DecisionRule) -> tuple[Verdict, str] | None:
    if evidence.equivalence_interval.high < -rule.margin:
        return Verdict.REGRESSION, f"the interval lies below −{_pp(rule.margin)}"
    if evidence.pvalue_adjusted > rule.alpha or evidence.gains == evidence.losses:
        return None
    if evidence.losses > evidence.gains:
        within = ", within the margin" if is_equivalent(evidence, rule) else ""
        return Verdict.REGRESSION, f"the candidate is worse (adjusted p {evidence.pvalue_adjusted:.2g}){within}"
    return Verdict.IMPROVEMENT, f"the candidate is better (adjusted p {evidence.pvalue_adjusted:.2g})"


def _still_needed(evidence: BinaryEvidence, rule: DecisionRule) -> str:
    proven = f"these {evidence.n_items} items prove ±{_pp(evidence.provable_margin)}"
    if evidence.items_needed is None:
        return f"{proven}; no number of items within reach proves ±{_pp(rule.margin)} at this discordance"
    return f"{proven}; ±{_pp(rule.margin)} needs about {evidence.items_needed} items at this discordance"


def _pp(fraction: float) -> str:
    return f"{100 * fraction:.2f} pp"


def conclude(
    plan: Plan, rows: Sequence[MetricResult], arms: Sequence[ArmSummary], pairs: PairSummary
) -> tuple[Verdict, tuple[str, ...]]:
    """The comparison's verdict with its reasons, the weightiest first."""
    if broken := _broken(plan, rows, arms, pairs):
        return Verdict.INVALID, tuple(broken)
    losses = [row for row in rows if row.verdict is Verdict.REGRESSION]
    if losses:
        return Verdict.REGRESSION, tuple(f"{row.id}: {row.reason}" for row in losses)
    primaries = [row for row in rows if row.is_primary]
    open_rows = [row for row in primaries if row.verdict is not Verdict.EQUIVALENT]
    if open_rows or not primaries:
        return Verdict.INCONCLUSIVE, tuple(_open_reason(row) for row in open_rows) or ("no primary metric",)
    margin = _pp(plan.rule.margin)
    return Verdict.EQUIVALENT, (f"all {len(primaries)} primary metrics are equivalent within ±{margin}",)


def _open_reason(row: MetricResult) -> str:
    if row.verdict is Verdict.IMPROVEMENT:
        return f"{row.id}: {row.reason}; a lossless drafter should not improve anything either"
    return f"{row.id}: {row.reason}"


def _broken(plan: Plan, rows: Sequence[MetricResult], arms: Sequence[ArmSummary], pairs: PairSummary) -> list[str]:
    broken = []
    if pairs.request_hashes_differ:
        broken.append(f"{pairs.request_hashes_differ} requests were not the same bytes in both arms")
    broken += [f"the {arm.arm} answered nothing" for arm in arms if not arm.n_answers]
    for row in rows:
        if row.n_items and row.n_missing > plan.rule.max_missing_share * row.n_items:
            broken.append(
                f"{row.id}: {row.n_missing} of {row.n_items} items lack an answer in one arm or both, "
                f"more than the plan allows ({100 * plan.rule.max_missing_share:g} %)"
            )
    return broken


def _caveats(plan: Plan) -> tuple[str, ...]:
    caveats = ["Whether the drafter ran, and that nothing else differs between the arms, was not checked."]
    if plan.is_limited:
        caveats.append(f"Limited to {plan.limit:g} items a task: not for sign-off.")
    if clustered := sorted({task.name for task in plan.tasks if task.cluster_field}):
        caveats.append(f"Items that share a passage or word are counted as independent: {', '.join(clustered)}.")
    if not all(metric.exercises_drafter for metric in plan.metrics):
        caveats.append("Log-likelihood metrics do not exercise a drafter.")
    return tuple(caveats)

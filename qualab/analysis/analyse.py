"""From stored scores to a verdict: one row a metric, one verdict for the comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from qualab.analysis.bounds import with_items_needed
from qualab.analysis.differing import differing
from qualab.analysis.drafter import treatment_of
from qualab.analysis.endings import ending_caveats, leak_reasons, thought_caveats
from qualab.analysis.family import Family, Tested, adjusted, global_test, sample_bounds, sample_evidence, twins
from qualab.analysis.interleaving import lost_interleaving
from qualab.analysis.judge import Judgement, complete_result, conclude, is_equivalent, judge, policy_result
from qualab.analysis.looks import adjusted_for, evidence_at, judge_at, looks_taken, rule_at
from qualab.analysis.means import bounded_mean
from qualab.analysis.missing import lost_pairs, missing_caveats, missing_cost, missing_summary, remedy_of, tipping_point
from qualab.analysis.samples import (
    Layout,
    MeanSample,
    MissingCount,
    Sample,
    Scores,
    Streams,
    Untestable,
    input_hash,
    layout_of,
    members_of,
    missing_of,
    read_scores,
    sample_of,
)
from qualab.analysis.summaries import Summary
from qualab.analysis.suspect import chances_of, suspicions
from qualab.analysis.tokens import first_token_summary
from qualab.imports.findings import import_caveats, stream_source, without_times
from qualab.model.comparison import (
    Analysis,
    Comparison,
    Evidence,
    LooksTaken,
    MetricResult,
    MissingSummary,
    PolicyResult,
    SuiteEvidence,
)
from qualab.model.engine import Observation, pins_seen
from qualab.model.items import Item
from qualab.model.names import ArmName, MetricKind, MissingPolicy, Verdict
from qualab.model.plan import Assumptions, DecisionRule, MetricSpec, Pinning, Plan
from qualab.model.ports import ScoredTasks, Stored
from qualab.model.reason import Reason
from qualab.stats.bounded import BoundedMean

WORST_CASES = (MissingPolicy.AGAINST_CANDIDATE, MissingPolicy.AGAINST_BASELINE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """What every row is made from."""

    plan: Plan
    scores: Scores
    layout: Layout
    """Without the answers that both arms lack for the same reason."""
    whole: Layout
    missing: MissingSummary
    remedy: str
    """The command that asks again for missing answers; empty where none helps."""
    streams: Streams
    values: Mapping[ArmName, Mapping[str, Mapping[str, float]]]
    """Each arm's aggregates by task or group and metric."""
    chances: Mapping[str, float]
    """What guessing gets, by metric id, where it is known."""
    looks: LooksTaken | None

    def rule_of(self, spec: MetricSpec) -> DecisionRule:
        """The plan's rule; of a primary metric with looks, at the level of the last look's boundary."""
        rule = self.plan.rule_for(spec)
        return rule_at(spec.id, rule, self.looks.looks) if self.looks and spec.is_primary else rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A row before it is tested."""

    spec: MetricSpec
    n_items: int
    n_left_out: int
    missing: MissingCount
    sample: Sample | Untestable


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a metric's verdict is made from."""

    evidence: Evidence | None
    policies: tuple[PolicyResult, ...]
    n_lost: int | None
    tipping_point: int | None


def analyse(
    store: Stored, comparison: Comparison, tasks: ScoredTasks, items: Sequence[Item], summary: Summary
) -> Analysis:
    """The analysis of what is stored. The same stored rows give the same result. `items` by position."""
    plan = comparison.plan
    arms = tuple(map(without_times, summary.arms)) if plan.imported else summary.arms
    looks = looks_taken(plan, store.looks(comparison.id), items)
    asked = items[: looks.n_items] if looks else items
    scores, layout = read_scores(store.scores(comparison.id), items), layout_of(plan, asked)
    partial = plan.imported.tasks_with_more_answers if plan.imported else ()
    same = {key for key in summary.same_texts if items[key[0]].task not in partial}
    pairs = replace(summary.pairs, same_text_other_score=scores.n_changed(same))
    unanswered = summary.unanswered
    left_out = {key for key in unanswered.same_in_both if key[0] < len(asked)}
    values = {arm: _values(scores, plan, tasks, layout, arm) for arm in ArmName}
    streams = Streams.of(stream_source(comparison))
    kept = layout_of(plan, asked, left_out=left_out) if left_out else layout
    remedy = remedy_of(comparison, arms)
    job = Job(
        plan=plan,
        scores=scores,
        layout=kept,
        whole=layout,
        missing=missing_summary(plan, scores, kept, streams.rng("missing"), unanswered=unanswered, left_out=left_out),
        remedy=remedy,
        streams=streams,
        values=values,
        chances=chances_of(plan, asked),
        looks=looks,
    )
    rows, suite = _rows_and_suite(job)
    found = differing(store, comparison, tasks, asked, scores=scores, layout=layout)
    seen = store.observations(comparison.id)
    treatment = None if plan.imported else treatment_of(plan, seen, summary.drafted, arms)
    pinning = Pinning.of(plan.pins, pins_seen(seen))
    tokens = None if plan.imported else first_token_summary(seen)
    leaks = summary.leaks.summaries(streams.rng("leaks"), repeats=plan.sampling.repeats)
    notes = treatment.notes if treatment else ()
    verdict, reasons = conclude(plan, rows, arms, pairs, suite=suite, treatment=treatment, remedy=remedy)
    reasons = (*reasons[:1], *leak_reasons(leaks, plan.rule.alpha), *reasons[1:])
    suspect = tuple(suspicions(rows))
    reasons = (*reasons, *suspect) if verdict is Verdict.INVALID else (*suspect, *reasons)
    return Analysis(
        comparison_id=comparison.id,
        plan_hash=comparison.plan_hash,
        input_hash=input_hash(scores, layout, arms, pairs, more=(looks, found.noise, found.repeats)),
        verdict=verdict,
        reasons=reasons,
        caveats=(
            *_caveats(plan, seen),
            *notes,
            *missing_caveats(suite.missing, rows, plan.rule),
            *ending_caveats(arms, plan),
            *thought_caveats(summary.thoughts.summary, plan),
        ),
        metrics=rows,
        suite=suite,
        arms=arms,
        pairs=pairs,
        versions={name: version(name) for name in ("qualab", "lm_eval", "numpy", "scipy")},
        looks=looks,
        treatment=treatment,
        pinning=pinning,
        noise=found.noise,
        repeats=found.repeats,
        data_hash=summary.data_hash,
        tokens=tokens,
        reasoning=summary.thoughts.summary,
        leaks=leaks,
    )


def _values(
    scores: Scores, plan: Plan, tasks: ScoredTasks, layout: Layout, arm: ArmName
) -> dict[str, dict[str, float]]:
    """The arm's aggregates over complete pairs, by the harness's own aggregation."""
    wanted: dict[str, dict[str, list[Any]]] = {}
    for spec in plan.metrics:
        if spec.kind is MetricKind.GROUP_MEAN or spec.task not in layout.tasks:
            continue
        own, other = (scores.column(spec.task, spec.key, one) for one in (arm, _other(arm)))
        # in document order, as lm-eval sums them
        pairs = [own[key] for key in layout.tasks[spec.task].keys if key in own and key in other]
        if pairs:
            wanted.setdefault(spec.task, {})[spec.key] = pairs
    return tasks.aggregate(wanted)


def _other(arm: ArmName) -> ArmName:
    return ArmName.CANDIDATE if arm is ArmName.BASELINE else ArmName.BASELINE


def _rows_and_suite(job: Job) -> tuple[tuple[MetricResult, ...], SuiteEvidence]:
    metrics = [_metric(spec, job) for spec in job.plan.metrics]
    equals, tested = _tested(metrics, job)
    n_units, rng = job.layout.n_units, job.streams.rng
    family = _at_looks(adjusted(tested, n_units, rng("max-t")), job)
    rows = _rows(metrics, equals, family, job)
    planned = job.plan.assumptions
    suite = SuiteEvidence(
        n_family=len(tested),
        n_max_t=family.n_max_t,
        n_resamples=family.n_resamples,
        global_test=global_test(tested, n_units, rng("global")),
        missing=job.missing,
        joint_power=planned.joint_power if planned else None,
        joint_power_reason=_no_joint_power(planned),
        seed=job.streams.seed,
    )
    return rows, suite


def _no_joint_power(planned: Assumptions | None) -> Reason | None:
    if planned is None:
        return Reason("no-assumption")
    return Reason("no-joint-power") if planned.joint_power is None else None


def _at_looks(family: Family, job: Job) -> Family:
    """The family with its primaries' p-values adjusted for the looks instead."""
    if job.looks is None:
        return family
    evidence = {
        spec.id: adjusted_for(spec.id, family.evidence[spec.id], job.looks.looks)
        for spec in job.plan.primaries
        if spec.id in family.evidence
    }
    return replace(family, evidence=family.evidence | evidence)


def _metric(spec: MetricSpec, job: Job) -> Metric:
    members = members_of(spec, job.plan)
    names = {member.task for member in members} or set(spec.members)
    n_answers, n_kept = (
        sum(len(places.keys) for task, places in layout.tasks.items() if task in names)
        for layout in (job.whole, job.layout)
    )
    return Metric(
        spec=spec,
        n_items=n_answers // job.plan.sampling.repeats,
        n_left_out=n_answers - n_kept,
        missing=missing_of(members, job.scores, job.layout),
        sample=sample_of(members, job.scores, job.layout, job.plan),
    )


def _tested(metrics: Sequence[Metric], job: Job) -> tuple[dict[str, str], list[Tested]]:
    """Which metric stands for each, and those that stand for any, with their evidence."""
    equals = twins({one.spec.id: (one.spec, one.sample) for one in metrics if not isinstance(one.sample, Untestable)})
    tested = []
    for metric in metrics:
        if isinstance(metric.sample, Untestable) or equals[metric.spec.id] != metric.spec.id:
            continue
        complete = metric.sample.under(MissingPolicy.COMPLETE, right=1.0)
        if complete.n_items:
            evidence = _evidence(metric.spec, complete, job)
            tested.append(Tested(spec=metric.spec, sample=complete, evidence=evidence))
    return equals, tested


def _evidence(spec: MetricSpec, complete: Sample, job: Job) -> Evidence:
    rule, better = job.plan.rule_for(spec), spec.higher_is_better
    if spec.is_primary and job.looks:
        return evidence_at(spec, complete, rule, job.streams, job.looks.looks)
    return sample_evidence(spec.id, complete, rule, job.streams, higher_is_better=better)


def _rows(metrics: Sequence[Metric], equals: Mapping[str, str], family: Family, job: Job) -> tuple[MetricResult, ...]:
    """The rows in the plan's order. One that has the scores of another shares what is found of them."""
    rules = {metric.spec.id: job.plan.rule_for(metric.spec) for metric in metrics}
    found: dict[str, Found] = {}
    for metric in sorted(metrics, key=lambda one: equals.get(one.spec.id, one.spec.id) != one.spec.id):
        own = metric.spec.id
        other = equals.get(own, own)
        evidence = family.evidence.get(other)
        if other != own and rules[own] == rules[other]:
            found[own] = found[other]
            continue
        if other != own and evidence is not None:
            evidence = _with_margin_of(metric, evidence, job)
        found[own] = _treated(metric, evidence, job)
    return tuple(
        _row(metric, equals.get(metric.spec.id, metric.spec.id), found[metric.spec.id], job) for metric in metrics
    )


def _with_margin_of(metric: Metric, evidence: Evidence, job: Job) -> Evidence:
    """The evidence of a metric with the same scores, under this metric's own margin."""
    assert not isinstance(metric.sample, Untestable)
    own = _evidence(metric.spec, metric.sample.under(MissingPolicy.COMPLETE, right=1.0), job)
    return replace(own, pvalue_adjusted=evidence.pvalue_adjusted, pvalue_holm=evidence.pvalue_holm)


def _row(metric: Metric, stands_for: str, found: Found, job: Job) -> MetricResult:
    """A metric's row; `stands_for` names the metric whose scores it has, itself where there is none."""
    spec, rule = metric.spec, job.plan.rule_for(metric.spec)
    baseline, candidate = (job.values[arm].get(spec.task, {}).get(spec.key) for arm in ArmName)
    row = MetricResult(
        id=spec.id,
        task=spec.task,
        metric=spec.key,
        kind=spec.kind,
        is_primary=spec.is_primary,
        exercises_drafter=spec.exercises_drafter,
        baseline=baseline,
        candidate=candidate,
        n_items=metric.n_items,
        n_missing=metric.missing.either,
        n_missing_baseline=metric.missing.baseline,
        n_missing_candidate=metric.missing.candidate,
        verdict=Verdict.NOT_TESTED,
        reason=Reason("no-pairs"),  # until it is judged
        evidence=found.evidence,
        equals="" if stands_for == spec.id else stands_for,
        policies=found.policies,
        margin=rule.margin,
        n_left_out=metric.n_left_out,
        n_lost=found.n_lost,
        tipping_point=found.tipping_point,
        chance=job.chances.get(spec.id),
    )
    if isinstance(metric.sample, Untestable):
        return replace(row, reason=metric.sample.reason)
    complete = metric.sample.under(MissingPolicy.COMPLETE, right=1.0)
    bound = bounded_mean(complete) if isinstance(complete, MeanSample) and complete.n_items else None
    verdict, reason = _judged(stands_for, row, spec, job, bound)
    evidence = row.evidence
    if evidence and verdict is Verdict.INCONCLUSIVE:
        evidence = with_items_needed(evidence, job.rule_of(spec), higher_is_better=spec.higher_is_better, bound=bound)
    return replace(row, verdict=verdict, reason=reason, evidence=evidence)


def _judged(name: str, row: MetricResult, spec: MetricSpec, job: Job, bound: BoundedMean | None) -> Judgement:
    rule, better = job.plan.rule_for(spec), spec.higher_is_better
    name = spec.id if spec.is_primary else name
    cost = missing_cost(row, job.plan, job.remedy) if row.n_missing else None
    if job.looks and any(one.id == name and job.plan.rule_for(one) == rule for one in job.plan.primaries):
        return judge_at(
            name,
            job.looks,
            row.evidence,
            row.policies,
            rule,
            higher_is_better=better,
            missing_cost=cost,
            bound=bound,
        )
    return judge(row.evidence, row.policies, rule, higher_is_better=better, missing_cost=cost, bound=bound)


def _treated(metric: Metric, evidence: Evidence | None, job: Job) -> Found:
    """What each way of treating missing answers says, where it can change a verdict."""
    sample, rule, better = metric.sample, job.rule_of(metric.spec), metric.spec.higher_is_better
    n_lost = lost_pairs(job.plan.rule, metric.missing, job.missing)
    if (
        not metric.missing.either
        or evidence is None
        or isinstance(sample, Untestable)
        or not is_equivalent(evidence, rule, higher_is_better=better)
    ):
        return Found(evidence=evidence, policies=(), n_lost=n_lost, tipping_point=None)

    def result(policy: MissingPolicy, n_lost: int | None) -> PolicyResult:
        filled = sample.under(policy, right=1.0 if better else 0.0, n_lost=n_lost)
        bounds = sample_bounds(filled, rule, job.streams.rng(f"policy {policy}"), higher_is_better=better)
        return policy_result(policy, bounds, rule, higher_is_better=better)

    def proves(n_lost: int | None) -> bool:
        return all(result(policy, n_lost).is_equivalent for policy in WORST_CASES)

    filled = (result(policy, n_lost) for policy in MissingPolicy if policy is not MissingPolicy.COMPLETE)
    has_tipping_point = isinstance(sample, MeanSample) and not proves(None)  # a bootstrap a step takes too long
    return Found(
        evidence=evidence,
        policies=(complete_result(evidence), *filled),
        n_lost=n_lost,
        tipping_point=tipping_point(proves, metric.missing.either) if has_tipping_point else None,
    )


def _caveats(plan: Plan, seen: Sequence[Observation]) -> Iterator[Reason]:
    if plan.imported:
        yield from import_caveats(plan.imported)
    yield from lost_interleaving(plan, seen)
    if plan.limit is not None:
        yield Reason("limited", {"limit": plan.limit})
    if plan.imported is None and plan.pins.unpinned:
        yield Reason("unpinned", {"parts": plan.pins.unpinned})
    if plan.noise_floor is None:
        yield Reason("no-noise-floor")
    if plan.looks:
        yield Reason("looks-adjusted")
    if not all(metric.exercises_drafter for metric in plan.metrics):
        yield Reason("loglikelihoods")

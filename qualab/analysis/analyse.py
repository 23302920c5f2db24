"""From stored scores to a verdict: one row a metric, one verdict for the comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from qualab.analysis.drafter import lost_interleaving, treatment_of
from qualab.analysis.endings import leak_reasons, odd_endings, thought_caveats
from qualab.analysis.evidence import FamilyMember, Pairs, adjusted, evidence_of, global_test, pairs_of, twins
from qualab.analysis.judge import WORST_CASES, conclude, is_equivalent, judge, policy_results
from qualab.analysis.looks import judge_at, levels_at, looks_taken, pvalue_at
from qualab.analysis.missing import lost_pairs, missing_caveats, missing_cost, missing_summary, remedy_of, tipping_point
from qualab.analysis.noise import differing, first_token_summary
from qualab.analysis.ruling import MetricRule, suspicions
from qualab.analysis.samples import (
    Layout,
    MeanSample,
    MissingCount,
    Sample,
    Scores,
    Streams,
    input_hash,
    layout_of,
    missing_of,
    read_scores,
    sample_of,
)
from qualab.analysis.summaries import Summary
from qualab.imports.findings import import_caveats
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
from qualab.model.names import ArmName, MetricKind, MissingPolicy, RequestKind, Verdict
from qualab.model.plan import MetricSpec, Pinning, Plan
from qualab.model.ports import ScoredTasks, Stored
from qualab.model.reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inputs:
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metric:
    """A row before it is tested."""

    spec: MetricSpec
    rule: MetricRule
    n_items: int
    n_left_out: int
    missing: MissingCount
    sample: Sample | Reason
    """Or why there is none."""
    complete: Sample | None
    """None where no pair is complete."""
    pairs: Pairs | None
    """What tests the complete pairs."""
    looks: LooksTaken | None
    """None where they do not decide this metric."""

    def evidence(self, streams: Streams) -> Evidence | None:
        """Test the complete pairs; not yet adjusted."""
        if self.pairs is None:
            return None
        levels = levels_at(self.spec.id, self.rule.alpha, self.looks.looks) if self.looks else None
        return evidence_of(self.pairs, self.rule, streams, self.spec.id, levels)


def analyse(
    store: Stored, comparison: Comparison, tasks: ScoredTasks, items: Sequence[Item], summary: Summary
) -> Analysis:
    """Analyse what is stored; the same stored rows give the same result.

    Args:
        items: by position.
    """
    plan, imported = comparison.plan, comparison.plan.imported
    arms = summary.arms
    if imported:  # no log tells how long an answer took
        arms = tuple(replace(arm, latency_p50_s=None, latency_p99_s=None) for arm in arms)
    looks = looks_taken(plan, store.looks(comparison.id), items)
    asked = items[: looks.n_items] if looks else items
    scores, layout = read_scores(store.scores(comparison.id), items), layout_of(plan, asked)
    partial = imported.tasks_with_more_answers if imported else ()
    same = {key for key in summary.same_texts if items[key[0]].task not in partial}
    pairs = replace(summary.pairs, same_text_other_score=scores.n_changed(same))
    unanswered = summary.unanswered
    left_out = {key for key in unanswered.same_in_both if key[0] < len(asked)}
    streams = Streams.of(imported.plan_hash if imported and imported.plan_hash else comparison.plan_hash)
    kept = layout_of(plan, asked, left_out=left_out) if left_out else layout
    missing = missing_summary(plan, scores, kept, streams.rng("missing"), unanswered=unanswered, left_out=left_out)
    remedy = remedy_of(comparison, arms)
    inputs = Inputs(
        plan=plan,
        scores=scores,
        layout=kept,
        whole=layout,
        missing=missing,
        remedy=remedy,
        streams=streams,
        values={arm: _values(scores, plan, tasks, layout, arm) for arm in ArmName},
        chances=chances_of(plan, asked),
        looks=looks,
    )
    rows, suite = _rows_and_suite(inputs)
    noise, repeats = differing(store, comparison, tasks, asked, scores=scores, layout=layout)
    seen = store.observations(comparison.id)
    treatment = None if imported else treatment_of(plan, seen, summary.drafted, arms)
    leaks = summary.leaks.summaries(streams.rng("leaks"), repeats=plan.sampling.repeats)
    verdict, reasons = conclude(plan, rows, arms, pairs, suite=suite, treatment=treatment, remedy=remedy)
    reasons = (*reasons[:1], *leak_reasons(leaks, plan.rule.alpha), *reasons[1:])
    suspect = tuple(suspicions(rows))
    return Analysis(
        comparison_id=comparison.id,
        plan_hash=comparison.plan_hash,
        input_hash=input_hash(scores, layout, arms, pairs, more=(looks, noise, repeats)),
        verdict=verdict,
        reasons=(*reasons, *suspect) if verdict is Verdict.INVALID else (*suspect, *reasons),
        caveats=(
            *_caveats(plan, seen),
            *(treatment.notes if treatment else ()),
            *missing_caveats(missing, rows, plan.rule),
            *odd_endings(arms, plan, beyond=False),
            *thought_caveats(summary.thoughts.summary, plan),
        ),
        metrics=rows,
        suite=suite,
        arms=arms,
        pairs=pairs,
        versions={name: version(name) for name in ("qualab", "lm_eval", "numpy", "scipy")},
        looks=looks,
        treatment=treatment,
        pinning=Pinning(is_pinned=not plan.pins.unpinned, unpinned=plan.pins.unpinned, found=pins_seen(seen)),
        noise=noise,
        repeats=repeats,
        data_hash=summary.data_hash,
        tokens=None if imported else first_token_summary(seen),
        reasoning=summary.thoughts.summary,
        leaks=leaks,
    )


def _values(
    scores: Scores, plan: Plan, tasks: ScoredTasks, layout: Layout, arm: ArmName
) -> dict[str, dict[str, float]]:
    """The arm's aggregates over complete pairs, by the harness's own aggregation."""
    columns: dict[str, dict[str, list[Any]]] = {}
    for spec in plan.metrics:
        if spec.kind is MetricKind.GROUP_MEAN or spec.task not in layout.tasks:
            continue
        both = [scores.column(spec.task, spec.key, name) for name in ArmName]
        own = scores.column(spec.task, spec.key, arm)
        # in document order, as lm-eval sums them
        values = [own[key] for key in layout.tasks[spec.task].keys if all(key in column for column in both)]
        if values:
            columns.setdefault(spec.task, {})[spec.key] = values
    return tasks.aggregate(columns)


def chances_of(plan: Plan, items: Iterable[Item]) -> dict[str, float]:
    """Map metric ids to what pure guessing gets, where the choices are declared or can be counted."""
    declared = {task.name: task.n_choices for task in plan.tasks}
    guesses: dict[str, list[float]] = {}
    for item in items:
        n_counted = len(item.prompts) if item.kind is RequestKind.LOGLIKELIHOOD else 0
        n_choices = declared.get(item.task) or n_counted
        guesses.setdefault(item.task, []).append(1.0 / n_choices if n_choices > 1 else 0.0)
    chances = {}
    for spec in plan.metrics:
        members = plan.members_of(spec)
        of_items = [chance for member in members for chance in guesses.get(member.task, [0.0])]
        is_share = all(one.kind is MetricKind.BINARY_MEAN and one.higher_is_better for one in members)
        if is_share and of_items and all(of_items):
            chances[spec.id] = sum(of_items) / len(of_items)
    return chances


def _rows_and_suite(inputs: Inputs) -> tuple[tuple[MetricResult, ...], SuiteEvidence]:
    plan, n_units, rng = inputs.plan, inputs.layout.n_units, inputs.streams.rng
    metrics = {spec.id: _metric(spec, inputs) for spec in plan.metrics}
    samples = ((one.spec, one.sample) for one in metrics.values() if not isinstance(one.sample, Reason))
    representatives = twins(samples)
    family = [
        FamilyMember(spec=one.spec, sample=one.complete, evidence=evidence)
        for name, one in metrics.items()
        if one.complete and representatives[name] is one.spec and (evidence := one.evidence(inputs.streams))
    ]
    by_id, n_resamples = adjusted(family, n_units, rng("max-t"))
    if inputs.looks:
        for spec in plan.primaries:
            if spec.id in by_id:
                pvalue = pvalue_at(spec.id, inputs.looks.looks)
                by_id[spec.id] = replace(by_id[spec.id], pvalue_adjusted=pvalue)
    rows: dict[str, MetricResult] = {}
    # one with the scores of another, and its rule, is judged as that
    for name in sorted(metrics, key=lambda name: name in representatives and representatives[name].id != name):
        metric, first = metrics[name], representatives.get(name)
        of_first = by_id.get(first.id) if first else None
        if first is None or first.id == name:
            rows[name] = _row(metric, of_first, inputs)
        elif metrics[first.id].rule == metric.rule:
            rows[name] = replace(rows[first.id], **_names(metric.spec, inputs), equals=first.id)
        else:
            own = of_first and metric.evidence(inputs.streams)
            if own and of_first:
                own = replace(own, pvalue_adjusted=of_first.pvalue_adjusted, pvalue_holm=of_first.pvalue_holm)
            rows[name] = _row(metric, own, inputs, equals=first.id)
    planned = plan.assumptions
    no_power = Reason("no-assumption") if planned is None else Reason("no-joint-power")
    suite = SuiteEvidence(
        n_family=len(family),
        n_max_t=sum(isinstance(one.sample, MeanSample) for one in family),
        n_resamples=n_resamples,
        global_test=global_test(family, n_units, rng("global")),
        missing=inputs.missing,
        joint_power=planned.joint_power if planned else None,
        joint_power_reason=no_power if planned is None or planned.joint_power is None else None,
        seed=inputs.streams.seed,
    )
    return tuple(rows[name] for name in metrics), suite


def _metric(spec: MetricSpec, inputs: Inputs) -> Metric:
    members = inputs.plan.members_of(spec)
    names = {member.task for member in members} or set(spec.members)
    n_answers, n_kept = (
        sum(len(places.keys) for task, places in layout.tasks.items() if task in names)
        for layout in (inputs.whole, inputs.layout)
    )
    sample = sample_of(members, inputs.scores, inputs.layout, inputs.plan)
    complete = None if isinstance(sample, Reason) else sample.under(MissingPolicy.COMPLETE, right=1.0)
    complete = complete if complete and complete.n_items else None
    return Metric(
        spec=spec,
        rule=MetricRule.of(inputs.plan, spec),
        n_items=n_answers // inputs.plan.sampling.repeats,
        n_left_out=n_answers - n_kept,
        missing=missing_of(members, inputs.scores, inputs.layout),
        sample=sample,
        complete=complete,
        pairs=pairs_of(complete) if complete else None,
        looks=inputs.looks if spec.is_primary else None,
    )


def _row(metric: Metric, evidence: Evidence | None, inputs: Inputs, *, equals: str = "") -> MetricResult:
    """The row of a metric that has this adjusted evidence."""
    row = MetricResult(
        **_names(metric.spec, inputs),
        n_items=metric.n_items,
        n_missing=metric.missing.either,
        n_missing_baseline=metric.missing.baseline,
        n_missing_candidate=metric.missing.candidate,
        verdict=Verdict.NOT_TESTED,
        reason=metric.sample if isinstance(metric.sample, Reason) else Reason("no-pairs"),
        evidence=evidence,
        equals=equals,
        margin=metric.rule.margin,
        n_left_out=metric.n_left_out,
        n_lost=lost_pairs(inputs.plan.rule, metric.missing, inputs.missing),
    )
    if isinstance(metric.sample, Reason):
        return row
    policies, tipping = _policies(metric, metric.sample, evidence, row.n_lost, inputs.streams)
    row = replace(row, policies=policies, tipping_point=tipping)
    cost = missing_cost(row, inputs.plan, inputs.remedy) if row.n_missing else None
    if metric.looks:
        judgement = judge_at(
            metric.looks, row.id, evidence, policies, metric.rule, pairs=metric.pairs, missing_cost=cost
        )
    else:
        judgement = judge(evidence, policies, metric.rule, metric.pairs, cost)
    return replace(row, verdict=judgement.verdict, reason=judgement.reason, evidence=judgement.evidence)


def _names(spec: MetricSpec, inputs: Inputs) -> dict[str, Any]:
    """What a row has of its own that shares the evidence of another."""
    baseline, candidate = (inputs.values[arm].get(spec.task, {}).get(spec.key) for arm in ArmName)
    return {
        "id": spec.id,
        "task": spec.task,
        "metric": spec.key,
        "kind": spec.kind,
        "is_primary": spec.is_primary,
        "exercises_drafter": spec.exercises_drafter,
        "baseline": baseline,
        "candidate": candidate,
        "chance": inputs.chances.get(spec.id),
    }


def _policies(
    metric: Metric, sample: Sample, evidence: Evidence | None, n_lost: int | None, streams: Streams
) -> tuple[tuple[PolicyResult, ...], int | None]:
    """What each way of treating missing answers says, where it can change a verdict, and the tipping point."""
    rule = metric.rule
    if metric.looks:
        rule = replace(rule, alpha=levels_at(metric.spec.id, rule.alpha, metric.looks.looks)[0])
    if not metric.missing.either or evidence is None or not is_equivalent(evidence, rule):
        return (), None
    complete = PolicyResult(
        policy=MissingPolicy.COMPLETE,
        difference=evidence.difference,
        interval=evidence.equivalence_interval,
        is_equivalent=True,
    )

    def proves(n_lost: int | None) -> bool:
        results = policy_results(sample, rule, rng, n_lost=n_lost, policies=WORST_CASES)
        return all(one.is_equivalent for one in results)

    def rng(policy: MissingPolicy) -> Any:
        return streams.rng(f"policy {policy}")

    has_tipping_point = isinstance(sample, MeanSample) and not proves(None)  # a bootstrap a step takes too long
    tipping = tipping_point(proves, metric.missing.either) if has_tipping_point else None
    return (complete, *policy_results(sample, rule, rng, n_lost=n_lost)), tipping


def _caveats(plan: Plan, seen: Sequence[Observation]) -> Iterator[Reason]:
    if plan.imported:
        yield from import_caveats(plan.imported)
    yield from lost_interleaving(plan, seen)
    if plan.is_limited:
        yield Reason("limited", {"limit": plan.limit})
    if plan.imported is None and plan.pins.unpinned:
        yield Reason("unpinned", {"parts": plan.pins.unpinned})
    if plan.noise_floor is None:
        yield Reason("no-noise-floor")
    if plan.looks:
        yield Reason("looks-adjusted")
    if not all(metric.exercises_drafter for metric in plan.metrics):
        yield Reason("loglikelihoods")

"""From stored scores to a verdict: one row a metric, one verdict for the comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from qualab.analysis.audit import audit_caveats, audit_of, with_audit
from qualab.analysis.drafter import lost_interleaving, treatment_of
from qualab.analysis.endings import leak_reasons, odd_endings, thought_caveats
from qualab.analysis.evidence import (
    FamilyMember,
    Pairs,
    adjusted,
    evidence_of,
    global_test,
    is_equivalent,
    over_candidates,
    pairs_of,
    twins,
)
from qualab.analysis.imported import import_caveats
from qualab.analysis.judge import WORST_CASES, conclude, judge, policy_results
from qualab.analysis.looks import judge_at, levels_at, looks_taken, pvalue_at
from qualab.analysis.missing import lost_pairs, missing_caveats, missing_cost, missing_summary, remedy_of, tipping_point
from qualab.analysis.noise import baseline_shifts, differing, first_token_summary, scored_again
from qualab.analysis.replicas import replica_caveats
from qualab.analysis.ruling import suspicions
from qualab.analysis.samples import (
    Layout,
    MeanSample,
    MissingCount,
    Sample,
    Scores,
    Streams,
    baselines_of,
    input_hash,
    layout_of,
    missing_of,
    read_scores,
    sample_of,
)
from qualab.analysis.summaries import Summary
from qualab.model.comparison import (
    Analysis,
    Comparison,
    Evidence,
    LooksTaken,
    MetricResult,
    PolicyResult,
    SuiteEvidence,
)
from qualab.model.engine import BankSeen, Observation, last_seen, pins_seen
from qualab.model.items import Item
from qualab.model.names import ArmName, MetricKind, MissingPolicy, RequestKind, Tier, Verdict
from qualab.model.plan import MetricRule, MetricSpec, Pinning, Plan
from qualab.model.ports import ScoredTasks, Stored
from qualab.model.reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metric:
    """A row before it is tested."""

    spec: MetricSpec
    rule: MetricRule
    n_items: int
    n_left_out: int
    missing: MissingCount
    sample: Sample | Reason
    complete: Sample | None
    pairs: Pairs | None
    looks: LooksTaken | None
    """None where they do not decide this metric."""

    def evidence(self, streams: Streams) -> Evidence | None:
        if self.pairs is None:
            return None
        levels = levels_at(self.spec.id, self.rule.alpha, self.looks.looks) if self.looks else None
        return evidence_of(self.pairs, self.rule, streams, self.spec.id, levels)


def analyse(
    store: Stored, comparison: Comparison, tasks: ScoredTasks, items: Sequence[Item], summary: Summary
) -> Analysis:
    """Analyse what is stored (`items` by position); the same rows give the same analysis."""
    plan, imported = comparison.plan, comparison.plan.imported
    arms = summary.arms
    if imported:  # no log tells how long an answer took
        arms = tuple(replace(arm, latency_p50_s=None, latency_p99_s=None) for arm in arms)
    looks = looks_taken(plan, store.looks(comparison.id), items)
    asked = items[: looks.n_items] if looks else items
    scores, runs = read_scores(store.scores(comparison.id), items), scored_again(store, comparison, tasks, asked)
    if plan.n_baseline_runs > 1:
        scores.again = runs
    partial = imported.tasks_with_more_answers if imported else ()
    same = {key for key in summary.same_texts if items[key[0]].task not in partial}
    pairs = replace(summary.pairs, same_text_other_score=scores.n_changed(same))
    remedy = remedy_of(comparison, arms)
    table = MetricTable(comparison, tasks, asked, scores=scores, summary=summary, looks=looks, remedy=remedy)
    streams, layout = table.streams, table.whole
    rows, suite = table.rows_and_suite()
    noise, repeats = differing(store, comparison, asked, scores=scores, runs=runs, layout=layout)
    seen = store.observations(comparison.id)
    treatment = None if imported else treatment_of(plan, seen, summary.drafted, arms)
    leaks = summary.leaks.summaries(streams.rng("leaks"), repeats=plan.sampling.repeats)
    verdict, reasons = conclude(plan, rows, arms, pairs, suite=suite, treatment=treatment, remedy=remedy)
    if shifts := tuple(baseline_shifts(plan, scores, layout)):
        verdict, reasons = Verdict.INVALID, (*shifts, *(reasons if verdict is Verdict.INVALID else ()))
    reasons = (*reasons[:1], *leak_reasons(leaks, plan.rule.alpha), *reasons[1:])
    audit = None if imported else audit_of(store, comparison, items, streams)
    verdict, reasons = with_audit(verdict, reasons, audit, items)
    suspect = tuple(suspicions(rows))
    return Analysis(
        comparison_id=comparison.id,
        plan_hash=comparison.plan_hash,
        input_hash=input_hash(scores, layout, arms, pairs, more=(looks, noise, repeats, audit)),
        verdict=verdict,
        reasons=(*reasons, *suspect) if verdict is Verdict.INVALID else (*suspect, *reasons),
        caveats=(
            *_caveats(plan, seen),
            *supporting_losses(rows),
            *(treatment.notes if treatment else ()),
            *replica_caveats(plan, seen, arms),
            *missing_caveats(suite.missing, rows, plan.rule),
            *odd_endings(arms, plan, beyond=False),
            *thought_caveats(summary.thoughts.summary, plan),
            *audit_caveats(audit, plan.rule.alpha),
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
        audit=audit,
    )


def _values(
    scores: Scores, plan: Plan, tasks: ScoredTasks, layout: Layout, arm: ArmName
) -> dict[str, dict[str, float]]:
    """Return each metric's value over complete pairs; the mean over the baseline's runs where it has several."""
    tables: list[dict[str, dict[str, float]]] = []
    for number in range(1 + len(scores.again) if arm is ArmName.BASELINE else 1):
        columns: dict[str, dict[str, list[Any]]] = {}
        for spec in plan.metrics:
            if spec.kind is MetricKind.GROUP_MEAN or spec.task not in layout.tasks:
                continue
            baselines, candidate = baselines_of(spec, scores), scores.column(spec.task, spec.key, ArmName.CANDIDATE)
            of_arm = baselines if arm is ArmName.BASELINE else [candidate]
            # in document order, as lm-eval sums them
            keys = [
                key for key in layout.tasks[spec.task].keys if all(key in column for column in (*baselines, candidate))
            ]
            if keys and number < len(of_arm):
                columns.setdefault(spec.task, {})[spec.key] = [of_arm[number][key] for key in keys]
        tables.append(tasks.aggregate(columns))
    values = dict(tables[0])
    for task, metrics in tables[0].items():
        again = [table.get(task, {}) for table in tables]
        runs = {name: [table[name] for table in again if name in table] for name in metrics}
        values[task] = {name: sum(own) / len(own) for name, own in runs.items()}
    return values


def chances_of(plan: Plan, items: Iterable[Item]) -> dict[str, float]:
    """Map metric ids to the score of pure guessing, where the number of choices is known."""
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
        is_share = all(member.kind is MetricKind.BINARY_MEAN and member.higher_is_better for member in members)
        if is_share and of_items and all(of_items):
            chances[spec.id] = sum(of_items) / len(of_items)
    return chances


class MetricTable:
    """Makes the rows of the metrics, and the evidence of all together."""

    def __init__(
        self,
        comparison: Comparison,
        tasks: ScoredTasks,
        asked: Sequence[Item],
        *,
        scores: Scores,
        summary: Summary,
        looks: LooksTaken | None,
        remedy: str,
    ) -> None:
        """`remedy`: the command that asks again for missing answers; empty where none helps."""
        self.plan, self.scores, self.looks, self.remedy = comparison.plan, scores, looks, remedy
        imported = self.plan.imported
        self.streams = Streams.of(imported.plan_hash if imported and imported.plan_hash else comparison.plan_hash)
        left_out = {key for key in summary.unanswered.same_in_both if key[0] < len(asked)}
        self.whole = layout_of(self.plan, asked)
        # without the answers that both arms lack for the same reason
        self.layout = layout_of(self.plan, asked, left_out=left_out) if left_out else self.whole
        self.missing = missing_summary(
            self.plan,
            scores,
            self.layout,
            self.streams.rng("missing"),
            unanswered=summary.unanswered,
            left_out=left_out,
        )
        self.values = {arm: _values(scores, self.plan, tasks, self.whole, arm) for arm in ArmName}
        self.chances = chances_of(self.plan, asked)

    def rows_and_suite(self) -> tuple[tuple[MetricResult, ...], SuiteEvidence]:
        plan, n_units, rng = self.plan, self.layout.n_units, self.streams.rng
        metrics = {spec.id: self._metric(spec) for spec in plan.metrics}
        samples = (
            (metric.spec, metric.sample)
            for metric in metrics.values()
            if not isinstance(metric.sample, Reason) and metric.spec.tier is not Tier.ADVISORY
        )
        representatives = twins(samples)
        family = [
            FamilyMember(spec=metric.spec, sample=metric.complete, evidence=evidence)
            for name, metric in metrics.items()
            if metric.complete
            and representatives.get(name) is metric.spec
            and (evidence := metric.evidence(self.streams))
        ]
        by_id, n_resamples = adjusted(family, n_units, rng("max-t"))
        if self.looks:
            for spec in plan.primaries:
                if spec.id in by_id:
                    pvalue = pvalue_at(spec.id, self.looks.looks)
                    by_id[spec.id] = replace(by_id[spec.id], pvalue_adjusted=pvalue)
        if plan.n_candidates > 1:
            by_id = {name: over_candidates(evidence, plan.n_candidates) for name, evidence in by_id.items()}
        rows: dict[str, MetricResult] = {}
        # one with the scores of another, and its rule, is judged as that
        for name in sorted(metrics, key=lambda name: name in representatives and representatives[name].id != name):
            metric, first = metrics[name], representatives.get(name)
            of_first = by_id.get(first.id) if first else None
            if metric.spec.tier is Tier.ADVISORY:
                row = self._row(metric, None)
                rows[name] = replace(row, verdict=Verdict.NOT_TESTED, reason=Reason("advisory"))
            elif first is None or first.id == name:
                rows[name] = self._row(metric, of_first)
            elif metrics[first.id].rule == metric.rule:
                rows[name] = replace(rows[first.id], **self._names(metric.spec), equals=first.id)
            else:
                own = of_first and metric.evidence(self.streams)
                if own and of_first:
                    own = replace(own, pvalue_adjusted=of_first.pvalue_adjusted, pvalue_holm=of_first.pvalue_holm)
                rows[name] = self._row(metric, own, equals=first.id)
        planned = plan.assumptions
        no_power = Reason("no-assumption") if planned is None else Reason("no-joint-power")
        suite = SuiteEvidence(
            n_family=len(family),
            n_max_t=sum(isinstance(member.sample, MeanSample) for member in family),
            n_resamples=n_resamples,
            global_test=global_test(family, n_units, rng("global")),
            missing=self.missing,
            joint_power=planned.joint_power if planned else None,
            joint_power_reason=no_power if planned is None or planned.joint_power is None else None,
            seed=self.streams.seed,
        )
        return tuple(rows[name] for name in metrics), suite

    def _metric(self, spec: MetricSpec) -> Metric:
        members = self.plan.members_of(spec)
        names = {member.task for member in members} or set(spec.members)
        n_answers, n_kept = (
            sum(len(places.keys) for task, places in layout.tasks.items() if task in names)
            for layout in (self.whole, self.layout)
        )
        sample = sample_of(members, self.scores, self.layout, self.plan)
        complete = None if isinstance(sample, Reason) else sample.under(MissingPolicy.COMPLETE, right=1.0)
        complete = complete if complete and complete.n_items else None
        return Metric(
            spec=spec,
            rule=self.plan.rule_for(spec),
            n_items=n_answers // self.plan.sampling.repeats,
            n_left_out=n_answers - n_kept,
            missing=missing_of(members, self.scores, self.layout),
            sample=sample,
            complete=complete,
            pairs=pairs_of(complete) if complete else None,
            looks=self.looks if spec.is_primary else None,
        )

    def _row(self, metric: Metric, evidence: Evidence | None, *, equals: str = "") -> MetricResult:
        row = MetricResult(
            **self._names(metric.spec),
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
            n_lost=lost_pairs(self.plan.rule, metric.missing, self.missing),
        )
        if isinstance(metric.sample, Reason):
            return row
        policies, tipping = self._policies(metric, metric.sample, evidence, row.n_lost)
        row = replace(row, policies=policies, tipping_point=tipping)
        cost = missing_cost(row, self.plan, self.remedy) if row.n_missing else None
        if metric.looks:
            judgement = judge_at(
                metric.looks, row.id, evidence, policies, metric.rule, pairs=metric.pairs, missing_cost=cost
            )
        else:
            judgement = judge(evidence, policies, metric.rule, metric.pairs, cost)
        return replace(row, verdict=judgement.verdict, reason=judgement.reason, evidence=judgement.evidence)

    def _names(self, spec: MetricSpec) -> dict[str, Any]:
        baseline, candidate = (self.values[arm].get(spec.task, {}).get(spec.key) for arm in ArmName)
        names = ("id", "task", "kind", "is_primary", "exercises_drafter", "tier")
        values: dict[str, Any] = {name: getattr(spec, name) for name in names}
        values |= {"metric": spec.key, "chance": self.chances.get(spec.id)}
        return values | {"baseline": baseline, "candidate": candidate}

    def _policies(
        self, metric: Metric, sample: Sample, evidence: Evidence | None, n_lost: int | None
    ) -> tuple[tuple[PolicyResult, ...], int | None]:
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
            return all(result.is_equivalent for result in results)

        def rng(policy: MissingPolicy) -> Any:
            return self.streams.rng(f"policy {policy}")

        has_tipping_point = isinstance(sample, MeanSample) and not proves(None)  # a bootstrap a step takes too long
        tipping = tipping_point(proves, metric.missing.either) if has_tipping_point else None
        return (complete, *policy_results(sample, rule, rng, n_lost=n_lost)), tipping


def supporting_losses(rows: Sequence[MetricResult]) -> Iterator[Reason]:
    """Warn of each supporting metric that got worse."""
    for row in rows:
        if row.tier is Tier.SUPPORTING and row.verdict is Verdict.REGRESSION:
            yield Reason("supporting-worse", {"name": row.id, "reason": row.reason})


def _caveats(plan: Plan, seen: Sequence[Observation]) -> Iterator[Reason]:
    if plan.imported:
        yield from import_caveats(plan.imported)
    yield from lost_interleaving(plan, seen)
    if bank := last_seen(seen, BankSeen):
        names = ("name", "comparison_id", "n_compared", "n_texts_differ", "n_scores_differ")
        pvalues = {"texts_p": bank.texts_pvalue, "scores_p": bank.scores_pvalue}
        yield Reason("from-bank", {name: getattr(bank, name) for name in names} | pvalues)
    if plan.limit is not None:
        yield Reason("limited", {"limit": plan.limit})
    if plan.imported is None and plan.pins.unpinned:
        yield Reason("unpinned", {"parts": plan.pins.unpinned})
    if plan.noise_floor is None:
        yield Reason("no-noise-floor")
    if plan.looks:
        yield Reason("looks-adjusted")
    if group := plan.group:
        yield Reason("candidates", {"n": len(group.names), "names": group.names, "id": group.id})
    if not all(metric.exercises_drafter for metric in plan.metrics):
        yield Reason("loglikelihoods")

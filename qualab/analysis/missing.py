"""Missing answers: how many a plan allows, what they cost, and whether one arm left out more than the other."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace

import numpy as np

from qualab.analysis.endings import paired_pvalue, rate_pvalue
from qualab.analysis.ruling import bounds_of
from qualab.analysis.samples import Layout, MissingCount, Scores
from qualab.analysis.summaries import Unanswered
from qualab.model.comparison import ArmSummary, Comparison, MetricResult, MissingSummary, StatusMissing
from qualab.model.names import AnswerStatus, ArmName
from qualab.model.plan import DecisionRule, Plan
from qualab.model.reason import Reason, of

_HAIR = 1e-9


def lost_pairs(rule: DecisionRule, missing: MissingCount, summary: MissingSummary) -> int | None:
    """Count the pairs without an answer that the worst cases take as lost; None is all.

    All where the arms' missing shares differ: these answers are not missing at random.
    """
    off, on = missing.either - missing.candidate, missing.either - missing.baseline
    if rule.missing_lost is None or min(summary.pvalue, paired_pvalue(off, on)) <= rule.alpha:
        return None
    return math.ceil(rule.missing_lost * missing.either - _HAIR)


def tipping_point(proves: Callable[[int], bool], most: int) -> int:
    """Find the most pairs that may be lost with the objective still proven, fewer than `most`."""
    return bisect_left(range(1, most), True, key=lambda n_lost: not proves(n_lost))


def remedy_of(comparison: Comparison, arms: Sequence[ArmSummary]) -> str:
    """Return the command that asks again for missing answers; empty where that cannot help."""
    failed = any(AnswerStatus(status).is_failure for arm in arms for status in arm.statuses)
    if not failed or comparison.plan.imported or comparison.plan.looks:
        return ""
    return f"qualab resume {comparison.id} --retry-failed"


def missing_cost(row: MetricResult, plan: Plan, remedy: str) -> Reason:
    """Word what a metric's missing answers cost, and what to do."""
    n_missing, at_worst = row.n_missing, row.n_missing if row.n_lost is None else row.n_lost
    bounds = bounds_of(replace(plan.rule, margin=at_worst / asked_of(row, plan)))
    cost = Reason("missing-cost", {"n": n_missing, "bounds": bounds})
    if row.tipping_point is not None:
        cost = Reason("holds-unless", {"reason": cost, "most": row.tipping_point, "n": n_missing})
    return Reason("remedy", {"reason": cost, "command": remedy}) if remedy else cost


def asked_of(row: MetricResult, plan: Plan) -> int:
    """Return the pairs of answers that a metric's tests expect."""
    return max(1, row.n_items * plan.sampling.repeats - row.n_left_out)


def too_many_missing(plan: Plan, rows: Sequence[MetricResult], remedy: str) -> Iterator[Reason]:
    """Name each metric with more missing pairs than the plan allows."""
    for row in rows:
        n_asked = asked_of(row, plan)
        margin = plan.rule.margin if row.margin is None else row.margin
        cap = replace(plan.rule, margin=margin).missing_cap(is_primary=row.is_primary)
        if row.n_missing > cap * n_asked + _HAIR:
            values = {"n": row.n_missing, "total": n_asked, "share": cap, "cost": missing_cost(row, plan, remedy)}
            yield of(row.id, Reason("too-many-missing", values))


def missing_summary(
    plan: Plan,
    scores: Scores,
    layout: Layout,
    rng: np.random.Generator,
    *,
    unanswered: Unanswered | None = None,
    left_out: Set[tuple[int, int]] = frozenset(),
) -> MissingSummary:
    """Count answers without any score, by arm, and compare the arms. `layout` is without `left_out`."""
    keys = [key for places in layout.tasks.values() for key in places.keys]
    off, on = (np.array([key not in scores.answered[arm] for key in keys], dtype=np.bool_) for arm in ArmName)
    numbers = [places.numbers for places in layout.tasks.values()] or [np.array([], dtype=np.int64)]
    items = np.concatenate(numbers) // plan.sampling.repeats
    return MissingSummary(
        n_asked=off.size,
        baseline_only=int(np.sum(off & ~on)),
        candidate_only=int(np.sum(on & ~off)),
        both=int(np.sum(off & on)),
        pvalue=rate_pvalue(on.astype(np.float64) - off, items, repeats=plan.sampling.repeats, rng=rng),
        left_out=len(left_out),
        by_status=tuple(_by_status(unanswered)) if unanswered else (),
    )


def _by_status(unanswered: Unanswered) -> Iterator[StatusMissing]:
    for status, places in unanswered.by_status.items():
        off, on = places[ArmName.BASELINE], places[ArmName.CANDIDATE]
        only_off, only_on = len(off - on), len(on - off)
        yield StatusMissing(
            status=status.value,
            baseline_only=only_off,
            candidate_only=only_on,
            both=len(off & on),
            pvalue=paired_pvalue(only_off, only_on),
        )


def missing_caveats(found: MissingSummary, rows: Sequence[MetricResult], rule: DecisionRule) -> Iterator[Reason]:
    """Say where the arms differ in what they leave out, what is left out, and what is taken as lost."""
    if found.pvalue <= rule.alpha:
        arm = ArmName.CANDIDATE if found.candidate_only > found.baseline_only else ArmName.BASELINE
        numbers = {"n_baseline": found.baseline_only, "n_candidate": found.candidate_only, "p": found.pvalue}
        yield Reason("left-more", {"arm": arm, **numbers})
    for status in found.by_status:
        pvalue = min(1.0, status.pvalue * len(found.by_status))
        if pvalue <= rule.alpha:
            numbers = {"n_baseline": status.baseline_only, "n_candidate": status.candidate_only, "p": pvalue}
            yield Reason("status-differs", {"status": status.status, **numbers})
    if found.left_out:
        yield Reason("left-out", {"n": found.left_out})
    missing = [row for row in rows if row.n_missing]
    if rule.missing_lost is not None and missing:
        n_whole = sum(row.n_lost is None for row in missing)
        if n_whole < len(missing):
            yield Reason("lost-as-planned", {"share": rule.missing_lost})
        if n_whole:
            yield Reason("all-lost", {"n": n_whole, "total": len(missing)})

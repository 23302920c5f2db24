"""Scored tokens of both arms -> the audit's ruling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np

from qualab.model.audit import (
    GAP_EDGES,
    Audit,
    AuditPart,
    AuditPlan,
    AuditRuling,
    ForeignCount,
    Parting,
    SampledCount,
    ScoredAnswer,
    WorstToken,
)
from qualab.model.names import ArmName, IntervalOf
from qualab.model.reason import Reason
from qualab.stats.audit import (
    Calibration,
    ScoredTokens,
    calibration,
    foreign_tokens,
    rare_tokens,
    tokens_needed,
)
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar
from qualab.stats.interval import ConfidenceInterval

MOST_WORST = 20
CONTEXT = 12
"""Tokens shown before and after a foreign one."""


def audit(
    answers: Sequence[ScoredAnswer], plan: AuditPlan, *, alpha: float, vocabulary: int, rng: np.random.Generator
) -> Audit:
    """Rule on both arms' answers; an arm without any leaves the audit INCONCLUSIVE.

    Two tests share alpha: McNemar's over greedy answers and the count of rare sampled tokens.
    """
    parts = {
        (part, arm): [a for a in answers if (a.part, a.arm) == (part, arm) and a.own]
        for part in AuditPart
        for arm in ArmName
    }
    tokens = {key: scored_tokens(own) for key, own in parts.items() if own}
    greedy = [tokens.get((AuditPart.GREEDY, arm)) for arm in ArmName]
    sampled = [tokens.get((AuditPart.SAMPLED, arm)) for arm in ArmName]
    if greedy[0] is None or greedy[1] is None:
        return Audit(ruling=AuditRuling.INCONCLUSIVE, reason=Reason("audit.nothing-scored"))
    foreign = [_foreign(arm, own, plan, alpha) for arm, own in zip(ArmName, (greedy[0], greedy[1]), strict=True)]
    pvalue = _paired(*(parts[AuditPart.GREEDY, arm] for arm in ArmName), tau=plan.tau)
    counts: tuple[SampledCount, ...] = ()
    top: Calibration | None = None
    if sampled[0] is not None and sampled[1] is not None:
        top = calibration(sampled[0], sampled[1], rng=rng, confidence_level=1.0 - 2.0 * alpha)
        rare = [rare_tokens(own, vocabulary=vocabulary) for own in (sampled[0], sampled[1])]
        counts = tuple(
            SampledCount(
                arm=arm,
                n_answers=own.n_answers,
                n_tokens=own.n_tokens,
                n_rare=count.n_rare,
                pvalue_rare=count.pvalue,
                excess=choice.excess,
                statistic=choice.statistic,
                interval=_interval(choice.interval),
            )
            for arm, own, count, choice in zip(
                ArmName, (sampled[0], sampled[1]), rare, (top.baseline, top.candidate), strict=True
            )
        )
    ruling, reason = _rule(foreign, pvalue, counts, top, plan=plan, alpha=alpha)
    needed = tokens_needed(plan.max_foreign_share, alpha=alpha) - foreign[1].n_tokens
    return Audit(
        ruling=ruling,
        reason=reason,
        foreign=tuple(foreign),
        pvalue_foreign=pvalue,
        partings=tuple(_partings(*(parts[AuditPart.GREEDY, arm] for arm in ArmName), tau=plan.tau)),
        sampled=counts,
        calibration=top.difference if top else None,
        calibration_interval=_interval(top.interval) if top else None,
        tokens_needed=max(needed, 0) if ruling is AuditRuling.INCONCLUSIVE and not foreign[1].n_foreign else None,
        worst=worst_tokens(answers, plan.tau),
    )


def scored_tokens(answers: Sequence[ScoredAnswer]) -> ScoredTokens:
    """Join the answers' tokens, one answer after the other."""
    lengths = [len(answer.own) for answer in answers]
    own, top, ranks = (
        np.concatenate([np.asarray(getattr(answer, name), dtype=kind) for answer in answers])
        for name, kind in (("own", np.float64), ("top", np.float64), ("ranks", np.int64))
    )
    starts = np.cumsum([0, *lengths[:-1]])
    return ScoredTokens(gaps=np.maximum(top - own, 0.0), top=top, ranks=ranks, starts=starts)


def worst_tokens(answers: Sequence[ScoredAnswer], tau: float) -> tuple[WorstToken, ...]:
    """Find the tokens farthest below the choice, the worst of each answer first, those of greedy answers before."""
    worst = []
    for answer in answers:
        gaps = np.subtract(answer.top, answer.own)
        if gaps.size and gaps[index := int(np.argmax(gaps))] > tau:
            worst.append((answer.part is AuditPart.SAMPLED, -float(gaps[index]), answer.position, index, answer))
    worst.sort(key=lambda entry: entry[:4])
    return tuple(
        WorstToken(
            part=answer.part,
            arm=answer.arm,
            position=answer.position,
            task=answer.task,
            index=index,
            gap=-gap,
            rank=answer.ranks[index],
            before="".join(answer.pieces[max(0, index - CONTEXT) : index]),
            token=answer.pieces[index],
            after="".join(answer.pieces[index + 1 : index + 1 + CONTEXT]),
        )
        for _, gap, _, index, answer in worst[:MOST_WORST]
    )


def _foreign(arm: ArmName, tokens: ScoredTokens, plan: AuditPlan, alpha: float) -> ForeignCount:
    counted = foreign_tokens(tokens, tau=plan.tau, alpha=alpha)
    histogram, _ = np.histogram(tokens.gaps, bins=[*GAP_EDGES, np.inf])
    return ForeignCount(
        arm=arm,
        n_answers=counted.n_answers,
        n_tokens=counted.n_tokens,
        n_foreign=counted.n_foreign,
        n_answers_foreign=counted.n_answers_foreign,
        upper_share=counted.upper_share,
        upper_answers_share=counted.upper_answers_share,
        largest_gap=float(tokens.gaps.max()),
        histogram=tuple(histogram.tolist()),
    )


def _paired(baseline: Sequence[ScoredAnswer], candidate: Sequence[ScoredAnswer], *, tau: float) -> float:
    """Exact McNemar over items: a foreign token in one arm's answer only."""
    before, after = (
        {a.position: bool(np.any(np.subtract(a.top, a.own) > tau)) for a in own} for own in (baseline, candidate)
    )
    both = before.keys() & after.keys()
    if not both:
        return 1.0
    gains = sum(after[position] and not before[position] for position in both)
    losses = sum(before[position] and not after[position] for position in both)
    return mcnemar(PairedCounts(n_items=len(both), gains=gains, losses=losses)).pvalue_exact


def _partings(baseline: Sequence[ScoredAnswer], candidate: Sequence[ScoredAnswer], *, tau: float) -> Iterator[Parting]:
    """An answer that is the beginning of the other parts at its end, where no token was chosen: a near-tie."""
    first = {answer.position: answer for answer in baseline}
    tasks: dict[str, list[int]] = {}
    for answer in candidate:
        if own := first.get(answer.position):
            counts = tasks.setdefault(answer.task, [0, 0, 0, 0])
            pairs = zip(own.token_ids, answer.token_ids, strict=False)
            at = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            is_same = own.token_ids == answer.token_ids
            is_foreign = not is_same and at < len(answer.own) and answer.top[at] - answer.own[at] > tau
            counts[0] += 1
            counts[1 if is_same else 3 if is_foreign else 2] += 1
    for task, (n_pairs, n_same, n_near, n_foreign) in sorted(tasks.items()):
        yield Parting(task=task, n_pairs=n_pairs, n_same=n_same, n_near_ties=n_near, n_foreign=n_foreign)


def _rule(
    foreign: Sequence[ForeignCount],
    pvalue: float,
    sampled: Sequence[SampledCount],
    top: Calibration | None,
    *,
    plan: AuditPlan,
    alpha: float,
) -> tuple[AuditRuling, Reason]:
    (before, after), margin = foreign, plan.calibration_margin
    if before.n_foreign > plan.max_foreign_share * before.n_tokens:
        counted = {"n": before.n_foreign, "total": before.n_tokens, "tau": plan.tau}
        return AuditRuling.INVALID, Reason("audit.control-greedy", counted)
    if sampled and top:
        rare_before, rare_after = (count.pvalue_rare for count in sampled)
        if rare_before <= alpha / 2.0 or _is_outside(top.baseline.interval, margin):
            return AuditRuling.INVALID, Reason("audit.control-sampled", {"n": sampled[0].n_rare, "pvalue": rare_before})
        if rare_after <= alpha / 2.0:
            counted = {"n": sampled[1].n_rare, "total": sampled[1].n_tokens, "pvalue": rare_after}
            return AuditRuling.FOREIGN, Reason("audit.rare", counted)
    if pvalue <= alpha / 2.0 and after.n_answers_foreign > before.n_answers_foreign:
        counted = {"n": after.n_foreign, "total": after.n_tokens, "answers": after.n_answers_foreign, "pvalue": pvalue}
        return AuditRuling.FOREIGN, Reason("audit.foreign", counted)
    if top and top.interval:
        limits = {"low": top.interval.low, "high": top.interval.high, "margin": margin}
        if _is_outside(top.interval, margin):
            return AuditRuling.FOREIGN, Reason("audit.calibration", limits)
        if not -margin < top.interval.low <= top.interval.high < margin:
            return AuditRuling.INCONCLUSIVE, Reason("audit.calibration-open", limits)
    elif top:
        return AuditRuling.INCONCLUSIVE, Reason("audit.few-answers", {"n": min(count.n_answers for count in sampled)})
    if after.upper_share > plan.max_foreign_share:
        values = {"share": after.upper_share, "limit": plan.max_foreign_share, "n": after.n_foreign}
        return AuditRuling.INCONCLUSIVE, Reason("audit.few-tokens", values)
    return AuditRuling.CLEAN, Reason("audit.clean", {"share": after.upper_share, "total": after.n_tokens})


def _is_outside(interval: ConfidenceInterval | None, margin: float) -> bool:
    return interval is not None and (interval.low > margin or interval.high < -margin)


def _interval(interval: ConfidenceInterval | None) -> IntervalOf | None:
    if interval is None:
        return None
    return IntervalOf(low=interval.low, high=interval.high, confidence_level=interval.confidence_level)

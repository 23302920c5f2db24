"""Scored tokens of both arms -> the token audit's ruling."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import numpy.typing as npt

from qualab.analysis.samples import Streams
from qualab.analysis.structured import structured_count
from qualab.model.audit import (
    GAP_EDGES,
    TOKEN_BYTES,
    Audit,
    ForeignCount,
    Parting,
    SampledCount,
    ScoredAnswer,
    TaskTokens,
    WorstToken,
)
from qualab.model.comparison import Comparison
from qualab.model.engine import AuditSeen, last_seen
from qualab.model.items import Item
from qualab.model.names import ArmName, AuditPart, AuditRuling, IntervalOf, Verdict
from qualab.model.plan import AuditPlan
from qualab.model.ports import Stored
from qualab.model.reason import Reason
from qualab.stats.audit import (
    Calibration,
    ForeignTokens,
    RareTokens,
    ScoredTokens,
    TopChoice,
    calibration,
    foreign_tokens,
    is_rare,
    rare_tokens,
    tokens_needed,
)
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar
from qualab.stats.interval import ConfidenceInterval

LARGEST_VOCABULARY = 1 << 18
"""Tokens; taken where the engine does not tell: a larger vocabulary makes fewer tokens rare."""
MOST_WORST, MOST_REASONS = 20, 3
CONTEXT = 12
"""Tokens shown before and after a foreign one."""
_TOKEN = np.dtype([("own", "<f4"), ("top", "<f4"), ("rank", "<u4")])
assert _TOKEN.itemsize == TOKEN_BYTES
_GREEDY, _SAMPLED, _STRUCTURED = AuditPart.GREEDY, AuditPart.SAMPLED, AuditPart.STRUCTURED
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmTokens:
    """Scored answers of one part and arm, and which of their tokens are foreign (greedy) or rare (sampled)."""

    part: AuditPart
    arm: ArmName
    answers: Sequence[ScoredAnswer]
    tokens: ScoredTokens
    is_foreign: Bools

    def any_foreign(self) -> dict[int, bool]:
        """Map positions to whether their answer has a foreign token."""
        counts = self.tokens.by_answer(self.is_foreign) > 0
        return {answer.position: any_ for answer, any_ in zip(self.answers, counts.tolist(), strict=True)}


def audit_of(store: Stored, comparison: Comparison, items: Sequence[Item], streams: Streams) -> Audit | None:
    """Rule on what is stored of a comparison's audit; None where neither its plan nor anybody else asked for one."""
    planned, seen = comparison.plan.audit, last_seen(store.observations(comparison.id), AuditSeen)
    if seen is None and planned is None:
        return None
    plan, vocabulary = _limits(comparison, seen)
    empty = Audit(
        ruling=AuditRuling.INCONCLUSIVE,
        reason=Reason("audit.nothing-scored"),
        plan=plan,
        is_planned=planned is not None,
        scoring=seen.scoring if seen else None,
        notes=seen.notes if seen else (),
    )
    answers = [answer for answer in store.scored(comparison.id) if answer.position < len(items)]
    texts = {(a.position, a.arm): a.text for a in answers if a.part is _STRUCTURED and a.status.is_answer}
    asked = sorted({position for position, _ in texts})
    pairs = (
        (items[position], texts.get((position, ArmName.BASELINE)), texts.get((position, ArmName.CANDIDATE)))
        for position in asked
    )
    empty = replace(empty, structured=structured_count(pairs))
    if seen is None:
        return empty
    if seen.scoring is None and seen.lack is None:
        return replace(empty, ruling=AuditRuling.UNOBSERVED, reason=Reason("audit.unobserved"))
    alpha, parts = comparison.plan.rule.alpha, _parts(answers, plan, vocabulary)
    n_not_audited = sum(answer.scores == b"" for answer in answers if answer.part is not _STRUCTURED)
    n_again = sum(answer.is_tokenized_again for answer in answers)
    result = replace(empty, n_not_audited=n_not_audited, n_tokenized_again=n_again)
    greedy, sampled = (
        [parts[part, arm] for arm in ArmName] if all((part, arm) in parts for arm in ArmName) else []
        for part in (_GREEDY, _SAMPLED)
    )
    if not greedy and not sampled:
        return replace(result, reason=Reason("audit.early", {"why": seen.lack}) if seen.lack else result.reason)
    foreign = [foreign_tokens(own.tokens, tau=plan.tau, alpha=alpha) for own in greedy]
    pvalue = _paired(*greedy) if greedy else None
    rare = [rare_tokens(own.tokens, vocabulary=vocabulary) for own in sampled]
    top: Calibration | None = None
    whole = [own for own in map(_as_generated, sampled) if own]
    if len(whole) == 2:
        top = calibration(*whole, rng=streams.rng("audit"), confidence_level=1.0 - 2.0 * alpha)
    ruling, reason = rule(foreign, pvalue, rare, top, plan=plan, alpha=alpha)
    if seen.lack and ruling in (AuditRuling.CLEAN, AuditRuling.INCONCLUSIVE):
        ruling, reason = AuditRuling.INCONCLUSIVE, Reason("audit.early", {"why": seen.lack})
    is_open = bool(foreign) and ruling is AuditRuling.INCONCLUSIVE and not foreign[1].n_foreign
    needed = tokens_needed(plan.max_foreign_share, alpha=alpha) - foreign[1].n_tokens if is_open else 0
    return replace(
        result,
        ruling=ruling,
        reason=reason,
        foreign=tuple(_foreign_count(*pair) for pair in zip(greedy, foreign, strict=True)),
        pvalue_foreign=pvalue,
        tasks=tuple(row for own in parts.values() for row in _by_task(own, items)),
        partings=tuple(_partings(*greedy, items=items, tau=plan.tau)) if greedy else (),
        sampled=tuple(map(_sampled_count, sampled, rare, (top.baseline, top.candidate) if top else (None, None))),
        calibration=top.difference if top else None,
        calibration_interval=_interval(top.interval) if top else None,
        tokens_needed=max(needed, 0) if is_open else None,
        worst=tuple(_worst(store, comparison.id, list(parts.values()), items)),
    )


def scored_parts(
    store: Stored, comparison: Comparison, *, positions: Collection[int] | None = None, with_pieces: bool = False
) -> dict[tuple[AuditPart, ArmName], ArmTokens]:
    """Read scored tokens, and which are foreign, as the audit counts them; of all items, or of some."""
    answers = list(store.scored(comparison.id, positions=positions, with_pieces=with_pieces))
    return _parts(answers, *_limits(comparison, last_seen(store.observations(comparison.id), AuditSeen)))


def _limits(comparison: Comparison, seen: AuditSeen | None) -> tuple[AuditPlan, int]:
    """Return the plan by which tokens are foreign, and the size of the vocabulary."""
    plan = comparison.plan.audit or (seen.plan if seen else AuditPlan())
    return plan, (seen and seen.vocabulary) or LARGEST_VOCABULARY


def with_audit(
    verdict: Verdict, reasons: tuple[Reason, ...], audit: Audit | None, items: Sequence[Item]
) -> tuple[Verdict, tuple[Reason, ...]]:
    """Make a FOREIGN audit a REGRESSION with the worst tokens as reasons; an INVALID comparison stays so."""
    if audit is None or verdict is Verdict.INVALID or audit.ruling is not AuditRuling.FOREIGN:
        return verdict, reasons
    worst = (token for token in audit.worst if token.arm is ArmName.CANDIDATE)
    shown = (
        Reason(
            "audit.worst",
            {name: getattr(token, name) for name in ("token", "before", "after", "choice", "gap", "rank", "arm")}
            | {"item": items[token.position].id},
        )
        for token, _ in zip(worst, range(MOST_REASONS), strict=False)
    )
    own = reasons if verdict is Verdict.REGRESSION else ()
    return Verdict.REGRESSION, (Reason("audit", {"ruling": audit.ruling, "reason": audit.reason}), *shown, *own)


def audit_caveats(audit: Audit | None, alpha: float) -> Iterator[Reason]:
    """Yield what an audit leaves open, and answers that lost their structure."""
    if audit is None:
        return
    if audit.ruling not in (AuditRuling.FOREIGN, AuditRuling.CLEAN):
        yield Reason("audit", {"ruling": audit.ruling, "reason": audit.reason})
    yield from audit.notes
    if not audit.is_planned:
        yield Reason("audit.unplanned")
    if (counted := audit.structured) and counted.pvalue <= alpha and counted.baseline_only > counted.candidate_only:
        values = {"baseline_only": counted.baseline_only, "candidate_only": counted.candidate_only}
        yield Reason("audit.structured", {**values, "n": counted.n_pairs, "pvalue": counted.pvalue})


def rule(
    foreign: Sequence[ForeignTokens],
    pvalue: float | None,
    rare: Sequence[RareTokens],
    top: Calibration | None,
    *,
    plan: AuditPlan,
    alpha: float,
) -> tuple[AuditRuling, Reason]:
    """Rule on the baseline's and the candidate's counts; the two tests share `alpha`.

    `foreign` and `pvalue`, McNemar's, are of greedy answers, empty and None without; `rare` and `top` of sampled ones.
    """
    margin = plan.calibration_margin
    if foreign and (before := foreign[0]).n_foreign > plan.max_foreign_share * before.n_tokens:
        counted = {"n": before.n_foreign, "total": before.n_tokens, "tau": plan.tau}
        return AuditRuling.INVALID, Reason("audit.control-greedy", counted)
    if len(rare) == len(ArmName):
        if rare[0].pvalue <= alpha / 2.0:
            counted = {"n": rare[0].n_rare, "total": rare[0].n_tokens, "pvalue": rare[0].pvalue}
            return AuditRuling.INVALID, Reason("audit.control-sampled", counted)
        own = top.baseline.interval if top else None
        if top and own and _is_outside(own, margin):
            limits = {"low": own.low, "high": own.high}
            values = {"difference": top.baseline.excess, **limits, "margin": margin}
            return AuditRuling.INVALID, Reason("audit.control-calibration", values)
        if rare[1].pvalue <= alpha / 2.0:
            counted = {"n": rare[1].n_rare, "total": rare[1].n_tokens, "pvalue": rare[1].pvalue}
            return AuditRuling.FOREIGN, Reason("audit.rare", counted)
    if pvalue is not None and pvalue <= alpha / 2.0 and foreign[1].n_answers_foreign > foreign[0].n_answers_foreign:
        after = foreign[1]
        counted = {"n": after.n_foreign, "total": after.n_tokens, "answers": after.n_answers_foreign, "pvalue": pvalue}
        return AuditRuling.FOREIGN, Reason("audit.foreign", counted)
    if top and top.interval:
        low, high = top.interval.low, top.interval.high
        limits = {"difference": top.difference, "low": low, "high": high, "margin": margin}
        if _is_outside(top.interval, margin):
            return AuditRuling.FOREIGN, Reason("audit.calibration", limits)
        if not -margin < low <= high < margin:
            needed = ceil(rare[1].n_tokens * ((high - low) / 2.0 / margin) ** 2)  # at no true difference
            return AuditRuling.INCONCLUSIVE, Reason("audit.calibration-open", {**limits, "needed": needed})
    elif top:
        return AuditRuling.INCONCLUSIVE, Reason("audit.few-answers")
    elif plan.sampled_items:
        return AuditRuling.INCONCLUSIVE, Reason("audit.no-ids" if rare else "audit.no-samples")
    if not foreign:
        return AuditRuling.INCONCLUSIVE, Reason("audit.no-greedy")
    if (after := foreign[1]).upper_share > plan.max_foreign_share:
        needed = tokens_needed(plan.max_foreign_share, alpha=alpha) - after.n_tokens
        values = {"share": after.upper_share, "limit": plan.max_foreign_share, "n": after.n_foreign, "needed": needed}
        return AuditRuling.INCONCLUSIVE, Reason("audit.few-tokens", values)
    return AuditRuling.CLEAN, Reason("audit.clean", {"share": after.upper_share, "total": after.n_tokens})


def _is_outside(interval: ConfidenceInterval, margin: float) -> bool:
    return interval.low > margin or interval.high < -margin


def _parts(
    answers: Sequence[ScoredAnswer], plan: AuditPlan, vocabulary: int
) -> dict[tuple[AuditPart, ArmName], ArmTokens]:
    parts: dict[tuple[AuditPart, ArmName], ArmTokens] = {}
    greedy = {
        arm: {answer.position: answer for answer in answers if (answer.part, answer.arm) == (_GREEDY, arm)}
        for arm in ArmName
    }
    for part in (_GREEDY, _SAMPLED):
        for arm, other in zip(ArmName, reversed(ArmName), strict=True):
            own = [answer for answer in answers if (answer.part, answer.arm) == (part, arm) and answer.scores]
            if part is _GREEDY:
                own = [_with_end(answer, greedy[other].get(answer.position)) for answer in own]
            if own:
                tokens = scored_tokens(own)
                gaps_foreign = tokens.gaps > plan.tau
                is_foreign = gaps_foreign if part is _GREEDY else is_rare(tokens, vocabulary=vocabulary)
                parts[part, arm] = ArmTokens(part=part, arm=arm, answers=own, tokens=tokens, is_foreign=is_foreign)
    return parts


def _with_end(answer: ScoredAnswer, other: ScoredAnswer | None) -> ScoredAnswer:
    """Add the end of an answer that stopped where the other arm's went on: a token whose id was not returned.

    Where the other's next token is the model's choice, of probability p, the end has at most 1 − p.
    """
    scores, n_tokens = answer.scores or b"", len(answer.token_ids) // 4
    if other is None or answer.finish_reason == "length" or len(scores) != n_tokens * TOKEN_BYTES:
        return answer
    others = np.frombuffer(other.scores or b"", dtype=_TOKEN)
    goes_on = len(other.token_ids) > len(answer.token_ids) and other.token_ids.startswith(answer.token_ids)
    if not goes_on or len(others) <= n_tokens or others["rank"][n_tokens] != 1:
        return answer
    top = min(float(others["top"][n_tokens]), -1e-9)
    end = np.array([(min(top, np.log(-np.expm1(top))), top, 2)], dtype=_TOKEN)
    return replace(answer, scores=scores + end.tobytes())


def scored_tokens(answers: Sequence[ScoredAnswer]) -> ScoredTokens:
    """Join the answers' tokens, one answer after the other."""
    scores = [answer.scores or b"" for answer in answers]
    tokens = np.frombuffer(b"".join(scores), dtype=_TOKEN)
    lengths = [len(own) // TOKEN_BYTES for own in scores]
    top = tokens["top"].astype(np.float64)
    return ScoredTokens(
        gaps=np.maximum(top - tokens["own"], 0.0),
        top=top,
        ranks=tokens["rank"].astype(np.int64),
        starts=np.cumsum([0, *lengths[:-1]]),
    )


def _paired(baseline: ArmTokens, candidate: ArmTokens) -> float:
    """Exact McNemar over items: a foreign token in one arm's answer only."""
    before, after = baseline.any_foreign(), candidate.any_foreign()
    both = before.keys() & after.keys()
    if not both:
        return 1.0
    gains = sum(after[position] and not before[position] for position in both)
    losses = sum(before[position] and not after[position] for position in both)
    return mcnemar(PairedCounts(n_items=len(both), gains=gains, losses=losses)).pvalue_exact


def _histogram(tokens: ScoredTokens) -> tuple[int, ...]:
    counts, _ = np.histogram(tokens.gaps, bins=[*GAP_EDGES, np.inf])
    return tuple(counts.tolist())


def _foreign_count(own: ArmTokens, counted: ForeignTokens) -> ForeignCount:
    return ForeignCount(
        arm=own.arm,
        n_answers=counted.n_answers,
        n_tokens=counted.n_tokens,
        n_foreign=counted.n_foreign,
        n_answers_foreign=counted.n_answers_foreign,
        upper_share=counted.upper_share,
        upper_answers_share=counted.upper_answers_share,
        largest_gap=float(own.tokens.gaps.max()),
        histogram=_histogram(own.tokens),
    )


def _as_generated(own: ArmTokens) -> ScoredTokens | None:
    """Join the answers whose ids are as generated: without its end an answer seems to shun the choice to end."""
    answers = [answer for answer in own.answers if not answer.is_tokenized_again]
    return scored_tokens(answers) if answers else None


def _sampled_count(own: ArmTokens, rare: RareTokens, top: TopChoice | None) -> SampledCount:
    return SampledCount(
        arm=own.arm,
        n_answers=own.tokens.n_answers,
        n_tokens=rare.n_tokens,
        n_rare=rare.n_rare,
        pvalue_rare=rare.pvalue,
        excess=top.excess if top else None,
        statistic=top.statistic if top else None,
        interval=_interval(top.interval) if top else None,
        largest_gap=float(own.tokens.gaps.max()),
        histogram=_histogram(own.tokens),
    )


def _by_task(own: ArmTokens, items: Sequence[Item]) -> Iterator[TaskTokens]:
    lengths, foreign = own.tokens.by_answer(np.ones(own.tokens.n_tokens)), own.tokens.by_answer(own.is_foreign)
    tasks = np.array([items[answer.position].task for answer in own.answers])
    for task in np.unique(tasks).tolist():
        at = tasks == task
        yield TaskTokens(
            part=own.part,
            arm=own.arm,
            task=task,
            n_answers=int(at.sum()),
            n_tokens=int(lengths[at].sum()),
            n_foreign=int(foreign[at].sum()),
            n_answers_foreign=int(np.count_nonzero(foreign[at])),
        )


def _partings(baseline: ArmTokens, candidate: ArmTokens, *, items: Sequence[Item], tau: float) -> Iterator[Parting]:
    """Count answers of both arms that are the same, and by what the first different token is where they are not."""
    first = {answer.position: answer for answer in baseline.answers}
    tasks: dict[str, dict[str, int]] = {}
    for after in candidate.answers:
        if before := first.get(after.position):
            counts = tasks.setdefault(items[after.position].task, dict.fromkeys(("same", "near", "foreign"), 0))
            if before.token_ids == after.token_ids:
                counts["same"] += 1
                continue
            ids = [np.frombuffer(own.token_ids, dtype="<i4") for own in (before, after)]
            shortest = min(map(len, ids))
            index = next(iter(np.flatnonzero(ids[0][:shortest] != ids[1][:shortest])), shortest)
            scored = [np.frombuffer(own.scores or b"", dtype=_TOKEN)[index : index + 1] for own in (before, after)]
            if gaps := [float(token["top"] - token["own"]) for tokens in scored for token in tokens]:
                counts["foreign" if max(gaps) > tau else "near"] += 1
    for task, counts in sorted(tasks.items()):
        values = {"n_same": counts["same"], "n_near_ties": counts["near"], "n_foreign": counts["foreign"]}
        yield Parting(task=task, n_pairs=sum(counts.values()), **values)


def _worst(
    store: Stored, comparison_id: str, parts: Sequence[ArmTokens], items: Sequence[Item]
) -> Iterator[WorstToken]:
    """Yield the worst foreign token of each answer, the farthest below the model's choice first."""
    worst: list[tuple[float, AuditPart, ArmName, int, int, int]] = []
    for own in parts:
        gaps = np.where(own.is_foreign, own.tokens.gaps, -1.0)
        ends = [*own.tokens.starts[1:].tolist(), gaps.size]
        for answer, start, end in zip(own.answers, own.tokens.starts.tolist(), ends, strict=True):
            index = int(np.argmax(gaps[start:end]))
            if gaps[start + index] >= 0.0:
                rank = int(own.tokens.ranks[start + index])
                worst.append((-float(gaps[start + index]), own.part, own.arm, answer.position, index, rank))
    worst = sorted(worst)[:MOST_WORST]
    read = store.scored(comparison_id, positions={entry[3] for entry in worst}, with_pieces=True) if worst else ()
    pieces = {(answer.part, answer.arm, answer.position): answer.pieces for answer in read}
    for gap, part, arm, position, index, rank in worst:
        own_pieces = pieces[part, arm, position]
        texts = own_pieces.texts if own_pieces else ()
        yield WorstToken(
            part=part,
            arm=arm,
            position=position,
            task=items[position].task,
            doc_id=items[position].doc_id,
            index=index,
            gap=-gap,
            rank=rank,
            before="".join(texts[max(0, index - CONTEXT) : index]),
            token=texts[index] if index < len(texts) else "",
            after="".join(texts[index + 1 : index + 1 + CONTEXT]),
            choice=own_pieces.choices.get(index, "") if own_pieces else "",
        )


def _interval(interval: ConfidenceInterval | None) -> IntervalOf | None:
    if interval is None:
        return None
    return IntervalOf(low=interval.low, high=interval.high, confidence_level=interval.confidence_level)

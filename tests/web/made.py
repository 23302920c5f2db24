"""A finished comparison over the five published benchmarks, with prompts and answers, in any store."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from benchmarks.made_up import MadeUp, stored
from qualab.analysis.audit import audit_of
from qualab.analysis.flips import outcomes_of
from qualab.analysis.samples import Streams
from qualab.model.audit import Audit, ScoredAnswer, TokenPieces, pack_ids
from qualab.model.comparison import Comparison
from qualab.model.engine import AuditSeen, Treatment
from qualab.model.items import Answer, Drafted, Item, Score
from qualab.model.names import AnswerStatus, ArmName, AuditPart, ComparisonStatus, RequestKind, ScoringForm
from qualab.model.plan import AuditPlan, MetricSpec, deciding_metrics
from qualab.store import Store
from tests.api.conftest import OFF, ON
from tests.render.samples import DRAFTING
from tests.store import samples as make
from tests.store.samples import failed, filled

AT = datetime(2026, 3, 1, 21, 40, tzinfo=UTC)
TREATMENT = filled(Treatment, is_observed=True, tasks=(DRAFTING, replace(DRAFTING, task="ifeval")))


def publish(
    store: Store, comparison_id: str, *, label: str, scale: float = 0.12, missing: float = 0.004, loss: float = 0.02
) -> Comparison:
    made_up = MadeUp(scale=scale, changed=0.12, loss=loss, missing={ArmName.CANDIDATE: missing})
    items = [_with_prompts(item) for item in made_up.items()]
    scores = list(made_up.scores(made_up.items()))
    made = stored(made_up, scores=scores)
    times = {"created_at": AT, "started_at": AT + timedelta(minutes=1), "finished_at": AT + timedelta(minutes=42)}
    urls = {"baseline_url": OFF, "candidate_url": ON}
    comparison = replace(made.comparison, id=comparison_id, label=label, **urls, **times)
    store.create(comparison, items)
    store.add_answers(comparison_id, list(_answers(items, scores, comparison.plan.metrics)))
    store.put_scores(comparison_id, scores)
    audit = put_audit(store, comparison, items)
    analysis = replace(made.analyse(), comparison_id=comparison_id, treatment=TREATMENT, audit=audit)
    store.put_analysis(analysis, now=times["finished_at"])
    store.put_outcomes(comparison_id, outcomes_of(store, comparison, items))
    return replace(comparison, status=ComparisonStatus.FINISHED)


def _with_prompts(item: Item) -> Item:
    sample = (make.choices if item.kind is RequestKind.LOGLIKELIHOOD else make.item)(item.position)
    return replace(sample, task=item.task, doc_id=item.doc_id, cluster=item.cluster)


def _answers(items: Sequence[Item], scores: Sequence[Score], metrics: Sequence[MetricSpec]) -> Iterator[Answer]:
    deciding = {task: metric.key for task, metric in deciding_metrics(metrics).items()}
    values = {(one.arm, one.position): one.value for one in scores if one.metric == deciding[items[one.position].task]}
    for item in items:
        for arm in ArmName:
            value = values.get((arm, item.position))
            for request in item.requests:
                yield replace(_answer(item, arm, request.choice, value), choice=request.choice)


def _answer(item: Item, arm: ArmName, choice: int, value: float | None) -> Answer:
    is_drafted = arm is ArmName.CANDIDATE
    if value is None:
        return failed(item.position, AnswerStatus.TIMEOUT, arm)
    if item.kind is RequestKind.LOGLIKELIHOOD:
        loglikelihood = -1.5 - choice - 0.1 * is_drafted
        return make.answer(item.position, arm, None, loglikelihood=loglikelihood, is_greedy=choice == 0)
    text = f"So the result is {item.target if value else 12}."
    drafted = Drafted(draft_tokens=90, accepted_tokens=54) if is_drafted else None
    return make.answer(item.position, arm, text, drafted=drafted)


TOKENS = (" 12", " 0", " 3")
NEAR, FOREIGN, RARE = (0.2, 2, " 13"), (7.25, 312, "<b>"), (49.1, 120_331, "\n")
"""Gap in nats, rank, and the model's choice instead."""
ODD = ("", "\n\n", "<script>alert(3)</script>", "\u202e", " \ud55c", "\ufffd")
"""Texts that tokens may have."""


def put_audit(store: Store, comparison: Comparison, items: Sequence[Item]) -> Audit | None:
    """Store an audit of 40 items: the first has all that there is to be seen, the others nothing."""
    generations = [item.position for item in items if item.kind is RequestKind.GENERATION][:40]
    candidate = {1: NEAR, 2: FOREIGN, **dict.fromkeys(range(3, 9), (0.02, 1, ""))}
    for position in generations:
        is_first = position == generations[0]
        for arm in ArmName:
            own = candidate if is_first and arm is ArmName.CANDIDATE else {}
            texts = (*TOKENS, *ODD) if is_first else TOKENS * 4
            greedy = scored(AuditPart.GREEDY, arm, position, texts, own)
            sampled = scored(AuditPart.SAMPLED, arm, position, texts, {0: (3.0, 5, "")} | ({4: RARE} if own else {}))
            structured = replace(greedy, part=AuditPart.STRUCTURED, scores=b"", pieces=None, text='{"n": 12}')
            store.put_scored(comparison.id, [greedy, sampled, *([structured] if is_first else [])])
    seen = AuditSeen(seen_at=AT, plan=AuditPlan(), scoring=ScoringForm.PROMPT_LOGPROBS, vocabulary=150_000)
    store.add_observation(comparison.id, seen)
    return audit_of(store, comparison, items, Streams.of(comparison.plan_hash))


def scored(
    part: AuditPart, arm: ArmName, position: int, texts: Sequence[str], odd: Mapping[int, tuple[float, int, str]]
) -> ScoredAnswer:
    """Make an answer of these tokens, each the model's choice but for the odd ones, by their index."""
    scores = b""
    for index in range(len(texts)):
        gap, rank, _ = odd.get(index, (0.0, 1, ""))
        scores += struct.pack("<ffI", -0.1 - gap, -0.1, rank)
    return ScoredAnswer(
        part=part,
        arm=arm,
        position=position,
        status=AnswerStatus.OK,
        finish_reason="stop",
        text=None if part is AuditPart.GREEDY else "".join(texts),
        token_ids=pack_ids(range(len(texts))),
        scores=scores,
        pieces=TokenPieces(texts=tuple(texts), choices={index: value[2] for index, value in odd.items() if value[2]}),
    )

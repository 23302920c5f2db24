"""A finished comparison over the five published benchmarks, with prompts and answers, in any store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from benchmarks.made_up import MadeUp, stored
from qualab.analysis.flips import outcomes_of
from qualab.model.comparison import Comparison
from qualab.model.engine import Treatment
from qualab.model.items import Answer, Drafted, Item, Score
from qualab.model.names import AnswerStatus, ArmName, ComparisonStatus, RequestKind
from qualab.model.plan import MetricSpec, deciding_metrics
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
    analysis = replace(made.analyse(), comparison_id=comparison_id, treatment=TREATMENT)
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

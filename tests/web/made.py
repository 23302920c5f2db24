"""A finished comparison over the five published benchmarks, with prompts and answers of any text, in any store."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from benchmarks.made_up import MadeUp, stored
from qualab.analysis.flips import Outcomes
from qualab.model.canonical import body_hash, encode_body
from qualab.model.comparison import Comparison
from qualab.model.engine import TaskDrafting, Treatment
from qualab.model.items import Answer, Drafted, Item, Prompt, Reply, Request, Score
from qualab.model.names import AnswerStatus, Api, ArmName, ComparisonStatus, RequestKind
from qualab.model.plan import MetricSpec, deciding_metrics
from qualab.store import Store

OFF, ON = "http://127.0.0.1:8001/v1", "http://127.0.0.1:8002/v1"
AT = datetime(2026, 3, 1, 21, 40, tzinfo=UTC)
QUESTIONS = (
    "A tram carries 36 people. At the first stop 9 get off and 14 get on. How many people are on the tram?",
    "Minji buys 4 notebooks at 1,500 won and a pen at 800 won. How much does she pay?",
    "한 상자에 사과가 12개 있습니다. 상자 7개에서 사과 15개를 꺼냈다면 몇 개가 남습니까?",
)
STEPS = (
    "First, 36 people are on the tram. Then 9 get off, which leaves 27. ",
    "Each notebook costs 1,500 won, so four of them cost 6,000 won. ",
    "상자 7개에는 사과가 12 × 7 = 84개 있습니다. ",
)
ENDINGS = (
    "At the stop 14 get on: 27 + 14 = 41.\n#### 41",
    "Adding the pen gives 6,800 won.\n#### 6800",
    "84 − 15 = 69입니다.\n#### 69",
)


def publish(
    store: Store, comparison_id: str, *, scale: float, label: str, missing: float = 0.0, loss: float = 0.0
) -> Comparison:
    """Stores it whole: items, answers, scores, outcomes and the analysis."""
    made_up = MadeUp(scale=scale, changed=0.12, loss=loss, missing={ArmName.CANDIDATE: missing})
    items = [_with_prompts(item) for item in made_up.items()]
    scores = list(made_up.scores(made_up.items()))
    made = stored(made_up, scores=scores)
    analysis = made.analyse()
    comparison = replace(
        made.comparison,
        id=comparison_id,
        label=label,
        baseline_url=OFF,
        candidate_url=ON,
        created_at=AT,
        started_at=AT + timedelta(minutes=1),
        finished_at=AT + timedelta(minutes=42),
    )
    store.create(comparison, items)
    answers = list(_answers(items, scores, comparison.plan.metrics))
    for first in range(0, len(answers), 5_000):
        store.add_answers(comparison_id, answers[first : first + 5_000])
    store.put_scores(comparison_id, scores)
    outcomes = Outcomes(items, comparison.plan.metrics)
    for answer in answers:
        outcomes.add_answer(answer)
    for score in scores:
        outcomes.add_score(score)
    store.put_analysis(
        replace(analysis, comparison_id=comparison_id, treatment=TREATMENT), now=AT + timedelta(minutes=42)
    )
    store.put_outcomes(comparison_id, outcomes.rows())
    return replace(comparison, status=ComparisonStatus.FINISHED)


def _with_prompts(item: Item) -> Item:
    if item.kind is RequestKind.LOGLIKELIHOOD:
        choices = ("있다", "없다", "모른다")
        return replace(
            item,
            doc={"query": "다음 낱말의 뜻은?", "choices": list(choices), "gold": item.doc_id % 3},
            target=str(item.doc_id % 3),
            prompts=tuple(Prompt(text="질문: 다음 낱말의 뜻은?\n정답:", continuation=f" {one}") for one in choices),
            requests=tuple(
                Request(
                    choice=place, api=Api.COMPLETIONS, payload={"model": "m", "prompt": [1, 2, place]}, context_tokens=2
                )
                for place in range(3)
            ),
        )
    question = QUESTIONS[item.doc_id % 3]
    text = f"Question: {question}\nAnswer:"
    return replace(
        item,
        doc={"question": question},
        target=ENDINGS[item.doc_id % 3],
        prompts=(Prompt(text=text, gen_kwargs={"until": ["Question:"]}),),
        requests=(Request(choice=0, api=Api.COMPLETIONS, payload={"model": "m", "prompt": text, "max_tokens": 256}),),
    )


def _answers(items: Sequence[Item], scores: Sequence[Score], metrics: Sequence[MetricSpec]) -> Iterator[Answer]:
    deciding = {task: metric.key for task, metric in deciding_metrics(metrics).items()}
    values = {(one.arm, one.position): one.value for one in scores if one.metric == deciding[items[one.position].task]}
    for item in items:
        for arm in ArmName:
            value = values.get((arm, item.position))
            for request in item.requests:
                body = body_hash(encode_body(request.payload, seed=1234))
                reply = _reply(item, arm, request.choice, value)
                yield Answer(
                    arm=arm, position=item.position, choice=request.choice, repeat=0, request_hash=body, reply=reply
                )


def _reply(item: Item, arm: ArmName, choice: int, value: float | None) -> Reply:
    rng = random.Random(f"{item.task}/{item.doc_id}/{choice}/{value}")
    base = Reply(
        status=AnswerStatus.OK,
        text=None,
        loglikelihood=None,
        is_greedy=None,
        finish_reason="stop",
        prompt_tokens=118,
        completion_tokens=rng.randint(20, 90),
        attempts=1,
        latency_s=rng.uniform(0.2, 1.4),
        sent_at=AT,
        system_fingerprint="",
        error="",
    )
    if value is None:
        return replace(base, status=AnswerStatus.TIMEOUT, error="No answer within 600 s", attempts=3, finish_reason="")
    if item.kind is RequestKind.LOGLIKELIHOOD:
        return replace(base, loglikelihood=-rng.uniform(0.5, 9.0), is_greedy=choice == 0)
    ending = ENDINGS[item.doc_id % 3] if value else "So the result is 12.\n#### 12"
    drafted = Drafted(draft_tokens=90, accepted_tokens=54) if arm is ArmName.CANDIDATE else None
    return replace(base, text=f" {STEPS[item.doc_id % 3]}{ending}", drafted=drafted)


def _drafting(task: str, histogram: tuple[int, ...]) -> TaskDrafting:
    rounds = sum(histogram)
    accepted = sum(n * count for n, count in enumerate(histogram))
    return TaskDrafting(
        task=task,
        n_answers=520,
        rounds=rounds,
        draft_tokens=4 * rounds,
        accepted_tokens=accepted,
        accepted_share=accepted / (4 * rounds),
        mean_length=1 + accepted / rounds,
        median_length=3.0,
        p10_length=1.0,
        zero_share=histogram[0] / rounds,
        histogram=histogram,
        request_mean_length=3.1,
        first_third=3.2,
        last_third=3.1,
    )


TREATMENT = Treatment(
    is_observed=True,
    engines=(),
    tasks=(_drafting("gsm8k", (1_210, 1_830, 2_400, 2_950, 3_100)), _drafting("ifeval", (2_900, 1_700, 900, 500, 300))),
    bins=(),
    troubles=(),
    notes=(),
)


def hostile_texts() -> tuple[str, ...]:
    """What a model may answer that must do nothing."""
    return (
        "<script>alert(1)</script>",
        "</pre><img src=x onerror=alert(2)>",
        "\u202egnp.exe\u202c and \x07bell \x00nul \u200bzero",
        "شكرا جزيلا 123 abc",
        "{{ 7*7 }}{% raw %}",
    )

"""Comparisons, items, answers and analyses to store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import MISSING, fields, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from sqlalchemy import update

from qualab.model.canonical import plan_hash
from qualab.model.comparison import (
    Analysis,
    ArmSummary,
    Comparison,
    Evidence,
    GlobalTest,
    IntervalOf,
    Look,
    LooksTaken,
    MetricLook,
    MetricResult,
    MissingSummary,
    PairSummary,
    PolicyResult,
    SignOff,
    SuiteEvidence,
)
from qualab.model.items import Answer, Change, Item, Outcome, Prompt, Reply, Request, Score
from qualab.model.names import (
    AnswerStatus,
    Api,
    ArmName,
    ComparisonStatus,
    LookDecision,
    MetricKind,
    MissingPolicy,
    RequestKind,
    Verdict,
)
from qualab.model.plan import DecisionRule, MetricSpec, Plan, RequestPolicy, SamplingPlan, TaskSpec
from qualab.model.reason import Reason, of
from qualab.model.registry import AuditEntry, Scope, Token
from qualab.store import Store
from qualab.store.tables import comparison

T = TypeVar("T")
NOW = datetime(2026, 3, 4, 5, 6, 7, 123_457, tzinfo=UTC)
BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE
HARD_TEXTS = (
    "",
    " ",
    "42",
    "정답은 3번입니다. 왜냐하면 지문에서 그렇게 말하기 때문이다.",
    "🧪👩‍👩‍👧‍👦 emoji, \u200b zero width",
    "a\x00b\x00\x00",
    "line\r\nbreaks\u2028and\ttabs",
    "café cafe\u0301",
    "x" * 100_000,
    "The ducks lay 16 eggs. She sells 16 - 3 - 4 = 9 of them, which makes 9 * 2 = 18 dollars. #### 18",
)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def filled(type_: type[T], **values: Any) -> T:
    """A dataclass; required fields that are not given are empty: "", 0, None, ()."""
    hints = get_type_hints(type_)
    required = [one.name for one in fields(type_) if one.default is one.default_factory is MISSING]  # type: ignore[arg-type]
    return type_(**{name: _empty(hints[name]) for name in required if name not in values} | values)


def _empty(hint: Any) -> Any:
    kind = get_origin(hint) or hint
    return None if type(None) in get_args(hint) else next(iter(kind)) if issubclass(kind, Enum) else kind()


def make_plan(**changes: Any) -> Plan:
    task = filled(
        TaskSpec, name="gsm8k", benchmark="gsm8k", version="3.0", config_hash="c" * 64, data_hash="d" * 64, n_items=3
    )
    metric = MetricSpec(
        task="gsm8k",
        name="exact_match",
        filter="strict-match",
        kind=MetricKind.BINARY_MEAN,
        is_primary=True,
        exercises_drafter=True,
        members=("a", "b"),
    )
    gen_kwargs: dict[str, object] = {"temperature": 0.1, "until": ["\n\n", "질문:"], "top_k": 40, "nested": {"x": None}}
    plan = filled(
        Plan,
        suite="custom",
        requested=("gsm8k",),
        tasks=(task,),
        metrics=(metric,),
        sampling=SamplingPlan(model="모델/7b", api=Api.CHAT, gen_kwargs=gen_kwargs),
        policy=RequestPolicy(timeout_s=0.1 + 0.2),
        rule=DecisionRule(margin=1 / 3, margins={"gsm8k": 1e-05}),
        harness_version="0.4.13",
    )
    return replace(plan, **changes)


FULL = Reason("stopped.arm-fails", {"arm": "baseline", "why": Reason("stopped.no-answers"), "error": "오류\0"})


def make_comparison(comparison_id: str = "c-1", *, plan: Plan | None = None, **changes: Any) -> Comparison:
    plan = plan or make_plan()
    urls = {"baseline_url": "http://127.0.0.1:1/v1", "candidate_url": "http://127.0.0.1:2/v1"}
    own = {"id": comparison_id, "plan": plan, "plan_hash": plan_hash(plan), "created_at": NOW, **urls}
    return filled(Comparison, **{"status": ComparisonStatus.PLANNED, **own, **changes})


def make_item(position: int, *, task: str = "gsm8k", **changes: Any) -> Item:
    text = f"Question: how many is {position} and {position}?\nAnswer:"
    item = Item(
        position=position,
        task=task,
        doc_id=1_000 - position,
        kind=RequestKind.GENERATION,
        doc={"question": text, "n": position, "답": ["하나", None, True, 0.1], "nested": {"a": {"b": 1.5e-300}}},
        target=f"#### {2 * position}",
        prompts=(Prompt(text=text, gen_kwargs={"until": ["\n"], "temperature": 0.0, "do_sample": False}),),
        requests=(
            Request(choice=0, api=Api.COMPLETIONS, payload={"model": "m", "prompt": text, "max_tokens": 256, "a": 1.0}),
        ),
    )
    return replace(item, **changes)


def make_items(count: int) -> list[Item]:
    return [make_item(position) for position in range(count)]


def make_choices(position: int) -> Item:
    """A log-likelihood item of three choices."""
    return make_item(
        position,
        kind=RequestKind.LOGLIKELIHOOD,
        prompts=tuple(Prompt(text="그는", continuation=f" {choice}") for choice in "가나다"),
        requests=tuple(
            Request(choice=choice, api=Api.COMPLETIONS, payload={"prompt": [1, 2, choice]}, context_tokens=2)
            for choice in range(3)
        ),
        cluster="지문 7",
    )


def make_reply(text: str | None = "18", **changes: Any) -> Reply:
    counts = {"prompt_tokens": 812, "completion_tokens": 97, "attempts": 1, "latency_s": 1.234567}
    said = {"text": text, "finish_reason": "stop", "system_fingerprint": "fp_1", "sent_at": NOW}
    return filled(Reply, **{**said, **counts, **changes})


def make_answer(
    position: int,
    arm: ArmName = BASELINE,
    text: str | None = "18",
    *,
    choice: int = 0,
    repeat: int = 0,
    run: int = 0,
    **changes: Any,
) -> Answer:
    """`changes` are the reply's."""
    return Answer(
        arm=arm,
        position=position,
        choice=choice,
        repeat=repeat,
        request_hash=hashlib.sha256(f"{position}/{choice}/{repeat}".encode()).digest()[:16],
        reply=make_reply(text, **changes),
        run=run,
    )


def failed(position: int, status: AnswerStatus, arm: ArmName = BASELINE) -> Answer:
    return make_answer(position, arm, None, status=status, error="no answer", prompt_tokens=None, finish_reason="")


def make_score(position: int, arm: ArmName = BASELINE, value: float = 1.0, **changes: Any) -> Score:
    score = Score(arm=arm, position=position, repeat=0, metric="exact_match,strict-match", value=value)
    return replace(score, **changes)


def make_look(number: int = 1, **changes: Any) -> Look:
    metric = MetricLook(
        metric="gsm8k/정확도",
        n_pairs=7 * number,
        fraction=0.1 + 0.2,
        difference=-1 / 3,
        interval=IntervalOf(low=-0.1, high=1 / 3, confidence_level=1 - 2e-12),
        statistic=-5e-324,
        boundary=4.6,
        pvalue_loss=1e-300,
        pvalue_gain=1.0,
        harm_boundary=5.2,
        pvalue_adjusted=1e-16,
        decision=LookDecision.HARM,
        decided_at=number,
    )
    nothing = replace(
        metric, interval=None, statistic=None, boundary=None, decision=LookDecision.CONTINUE, decided_at=None
    )
    look = Look(
        number=number, n_items=9 * number, input_hash="i" * 64, metrics=(metric, nothing), decision=LookDecision.HARM
    )
    return replace(look, **changes)


def make_analysis(comparison_id: str = "c-1", verdict: Verdict = Verdict.EQUIVALENT, **changes: Any) -> Analysis:
    interval = IntervalOf(low=-0.1, high=1 / 3, confidence_level=0.95)
    evidence = filled(
        Evidence,
        n_items=3,
        difference=1 / 3,
        interval=interval,
        equivalence_interval=interval,
        pvalue=0.5,
        pvalue_equivalence=5e-324,
        pvalue_equivalence_exact=0.1 + 0.2,
        n_resamples=9_999,
    )
    result = filled(
        MetricResult,
        id="gsm8k/exact_match,strict-match",
        task="gsm8k",
        metric="exact_match,strict-match",
        is_primary=True,
        baseline=2 / 3,
        n_items=3,
        verdict=verdict,
        reason=of("한국어", Reason("no-primary")),
        evidence=evidence,
        policies=(filled(PolicyResult, policy=MissingPolicy.WRONG),),
    )
    analysis = Analysis(
        comparison_id=comparison_id,
        plan_hash=plan_hash(make_plan()),
        input_hash="i" * 64,
        verdict=verdict,
        reasons=(Reason("no-primary"),),
        caveats=(),
        metrics=(result, replace(result, id="other", evidence=None)),
        suite=filled(
            SuiteEvidence,
            global_test=filled(GlobalTest, difference=-1 / 3),
            missing=filled(MissingSummary, n_asked=3, pvalue=1.0),
            joint_power_reason=Reason("no-joint-power"),
            seed=2**48 - 1,
        ),
        arms=tuple(
            filled(ArmSummary, arm=arm, n_requests=3, n_answers=3, statuses={"ok": 3}, latency_p50_s=0.1)
            for arm in ArmName
        ),
        pairs=filled(PairSummary, n_pairs=3, same_text=2),
        versions={"qualab": "0.1", "lm_eval": "0.4.13"},
        looks=filled(LooksTaken, n_planned=5, looks=(make_look(),), n_items=9, n_items_planned=45),
    )
    return replace(analysis, **changes)


def places(answers: Iterable[Answer]) -> list[tuple[int, int, int]]:
    return [(answer.position, answer.choice, answer.repeat) for answer in answers]


REQUEST = {"model": "모델/7b", "limit": 0.5, "tasks": ["gsm8k", None], "nested": {"a": 2**60}}


def ask_for(store: Store, comparison_id: str = "c-1", *, at: datetime = NOW, who: str = "ci", **changes: Any) -> str:
    """Queues a comparison of endpoints of its own."""
    urls = {f"{arm}_url": f"http://{comparison_id}:{port}/v1" for port, arm in enumerate(ArmName, 8001)}
    given = {"request": REQUEST, "model": "모델/7b", "label": "nightly", **urls, **changes}
    entry = make_entry(at=at, who=who, subject=comparison_id)
    return store.submit(comparison_id, given.pop("request"), entry=entry, **given)


def put(store: Store, comparison_id: str, **values: Any) -> None:
    """Changes a comparison's row, as no method of the store does at once."""
    change = update(comparison).where(comparison.c.id == comparison_id)
    with store.writing() as connection:
        connection.execute(change.values(version=comparison.c.version + 1, **values))


def make_entry(action: str = "comparison.create", *, at: datetime = NOW, **changes: Any) -> AuditEntry:
    entry = AuditEntry(at=at, who="ci", action=action, subject="c-1", details={"이유": "because"})
    return replace(entry, **changes)


def make_outcome(position: int, change: Change = Change.SAME, **changes: Any) -> Outcome:
    baseline, candidate = {
        Change.SAME: (1.0, 1.0),
        Change.GAIN: (0.0, 1.0),
        Change.LOSS: (1.0, 1 / 3),
        Change.UNKNOWN: (None, 0.5),
    }[change]
    own = {"position": position, "task": "gsm8k", "doc_id": 1_000 - position, "change": change, "length": 10 * position}
    return filled(Outcome, **{"baseline": baseline, "candidate": candidate, **own, **changes})


def make_signoff(**changes: Any) -> SignOff:
    hashes = {"plan_hash": "p" * 64, "analysis_hash": "a" * 64}
    own = {"comparison_id": "c-1", "signed_by": "김하나", "note": "looked at the flips", "signed_at": NOW}
    return filled(SignOff, **{"verdict": Verdict.EQUIVALENT, **hashes, **own, **changes})


def make_token(token_id: str = "t1", **changes: Any) -> Token:
    digest = hashlib.sha256(token_id.encode()).digest()
    own = {"id": token_id, "name": "ci", "digest": digest, "scope": Scope.RUN, "created_at": NOW}
    return filled(Token, **{**own, "expires_at": after(3_600), **changes})

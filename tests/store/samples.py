"""Comparisons, plans, items, answers, analyses and more to store: `from tests.store import samples as make`."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import MISSING, fields, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from sqlalchemy import update

from qualab.model.audit import ScoredAnswer, TokenPieces, pack_ids
from qualab.model.bank import Bank
from qualab.model.canonical import plan_hash
from qualab.model.comparison import (
    Analysis,
    ArmSummary,
    Comparison,
    Evidence,
    GlobalTest,
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
from qualab.model.engine import Engine, EngineKind
from qualab.model.items import Answer, Change, Item, Outcome, Prompt, Reply, Request, Score
from qualab.model.names import (
    AnswerStatus,
    Api,
    ArmName,
    AuditPart,
    ComparisonStatus,
    IntervalOf,
    LookDecision,
    MetricKind,
    MissingPolicy,
    RequestKind,
    Verdict,
)
from qualab.model.plan import BankNoise, DecisionRule, MetricSpec, Plan, RequestPolicy, SamplingPlan, TaskSpec
from qualab.model.reason import Reason, of
from qualab.model.registry import AuditEntry, Scope, Token
from qualab.store import Store, tables

T = TypeVar("T")
NOW = datetime(2026, 3, 4, 5, 6, 7, 123_457, tzinfo=UTC)
BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE


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


def task(name: str = "gsm8k", **changes: Any) -> TaskSpec:
    own = {"name": name, "benchmark": name, "version": "3.0", "config_hash": "c" * 64, "data_hash": "d" * 64}
    return filled(TaskSpec, **{**own, "n_items": 3, **changes})


def metric(task: str = "gsm8k", **changes: Any) -> MetricSpec:
    own = {"task": task, "name": "exact_match", "filter": "strict-match", "kind": MetricKind.BINARY_MEAN}
    return filled(MetricSpec, **{**own, "is_primary": True, "exercises_drafter": True, **changes})


def plan(**changes: Any) -> Plan:
    gen_kwargs: dict[str, object] = {"temperature": 0.1, "until": ["\n\n", "질문:"], "top_k": 40, "nested": {"x": None}}
    own = {"suite": "custom", "requested": ("gsm8k",), "harness_version": "0.4.13"}
    parts = {
        "tasks": (task(),),
        "metrics": (metric(members=("a", "b")),),
        "sampling": SamplingPlan(model="모델/7b", api=Api.CHAT, gen_kwargs=gen_kwargs),
        "policy": RequestPolicy(timeout_s=0.1 + 0.2),
        "rule": DecisionRule(margin=1 / 3, margins={"gsm8k": 1e-05}),
    }
    return filled(Plan, **{**own, **parts, **changes})


FULL = Reason("stopped.arm-fails", {"arm": "baseline", "why": Reason("stopped.no-answers"), "error": "오류\0"})


def comparison(comparison_id: str = "c-1", **changes: Any) -> Comparison:
    planned = changes.get("plan") or plan()
    urls = {"baseline_url": "http://127.0.0.1:1/v1", "candidate_url": "http://127.0.0.1:2/v1"}
    own = {"id": comparison_id, "plan": planned, "plan_hash": plan_hash(planned), "created_at": NOW, **urls}
    return filled(Comparison, **{"status": ComparisonStatus.PLANNED, **own, **changes})


def item(position: int, *, task: str = "gsm8k", **changes: Any) -> Item:
    text = f"Question: how many is {position} and {position}?\nAnswer:"
    payload = {"model": "m", "prompt": text, "max_tokens": 256, "a": 1.0}
    own = {
        "position": position,
        "task": task,
        "doc_id": 1_000 - position,
        "kind": RequestKind.GENERATION,
        "doc": {"question": text, "n": position, "답": ["하나", None, True, 0.1], "nested": {"a": {"b": 1.5e-300}}},
        "target": f"#### {2 * position}",
        "prompts": (Prompt(text=text, gen_kwargs={"until": ["\n"], "temperature": 0.0, "do_sample": False}),),
        "requests": (Request(choice=0, api=Api.COMPLETIONS, payload=payload),),
    }
    return Item(**own | changes)


def items(count: int) -> list[Item]:
    return [item(position) for position in range(count)]


def choices(position: int) -> Item:
    """A log-likelihood item of three choices."""
    prompts = tuple(Prompt(text="그는", continuation=f" {choice}") for choice in "가나다")
    requests = tuple(
        Request(choice=choice, api=Api.COMPLETIONS, payload={"prompt": [1, 2, choice]}, context_tokens=2)
        for choice in range(3)
    )
    return item(position, kind=RequestKind.LOGLIKELIHOOD, prompts=prompts, requests=requests, cluster="지문 7")


def reply(text: str | None = "18", **changes: Any) -> Reply:
    counts = {"prompt_tokens": 812, "completion_tokens": 97, "attempts": 1, "latency_s": 1.234567}
    said = {"text": text, "finish_reason": "stop", "system_fingerprint": "fp_1", "sent_at": NOW}
    return filled(Reply, **{**said, **counts, **changes})


def answer(position: int, arm: ArmName = BASELINE, text: str | None = "18", **changes: Any) -> Answer:
    """`changes` are the answer's choice, repeat and run, and the reply's."""
    place = {name: changes.pop(name, 0) for name in ("choice", "repeat", "run")}
    digest = hashlib.sha256(f"{position}/{place['choice']}/{place['repeat']}".encode()).digest()[:16]
    return Answer(arm=arm, position=position, request_hash=digest, reply=reply(text, **changes), **place)


def failed(position: int, status: AnswerStatus, arm: ArmName = BASELINE) -> Answer:
    return answer(position, arm, None, status=status, error="no answer", prompt_tokens=None, finish_reason="")


def score(position: int, arm: ArmName = BASELINE, value: float = 1.0, **changes: Any) -> Score:
    own = {"arm": arm, "position": position, "metric": "exact_match,strict-match", "value": value}
    return filled(Score, **own | changes)


def scored(position: int, arm: ArmName = BASELINE, part: AuditPart = AuditPart.GREEDY, **changes: Any) -> ScoredAnswer:
    """Two tokens, the second of them 3 nats below the model's choice."""
    values = {
        "text": None,
        "status": AnswerStatus.OK,
        "finish_reason": "stop",
        "token_ids": pack_ids([7, 8]),
        "scores": struct.pack("<ffIffI", -0.5, -0.5, 1, -4.0, -1.0, 30),
        "pieces": TokenPieces(texts=("The", " cat\0"), choices={1: " dog"}),
    }
    return filled(ScoredAnswer, **{"position": position, "arm": arm, "part": part} | values | changes)


def bank(name: str = "nightly", comparison_id: str = "c-1") -> Bank:
    return Bank(
        name=name,
        comparison_id=comparison_id,
        plan_hash="p",
        model="m",
        n_runs=2,
        banked_at=comparison().created_at,
        engine=Engine(kind=EngineKind.VLLM, config={"a": "b"}),
        tokens="",
        pins=(),
        noise=BankNoise(n_texts=9, n_texts_differ=1, n_scores=9, n_scores_differ=0),
    )


def look(number: int = 1, **changes: Any) -> Look:
    interval = IntervalOf(low=-0.1, high=1 / 3, confidence_level=1 - 2e-12)
    pvalues = {"pvalue_loss": 1e-300, "pvalue_gain": 1.0, "pvalue_adjusted": 1e-16}
    numbers = {"difference": -1 / 3, "statistic": -5e-324, "boundary": 4.6, "harm_boundary": 5.2, **pvalues}
    seen = {"metric": "gsm8k/정확도", "n_pairs": 7 * number, "fraction": 0.1 + 0.2}
    harm = filled(MetricLook, **seen, **numbers, interval=interval, decision=LookDecision.HARM, decided_at=number)
    nothing = filled(MetricLook, **seen, decision=LookDecision.CONTINUE)
    own = {"number": number, "n_items": 9 * number, "input_hash": "i" * 64, "metrics": (harm, nothing)}
    return filled(Look, **{**own, "decision": LookDecision.HARM, **changes})


def analysis(comparison_id: str = "c-1", verdict: Verdict = Verdict.EQUIVALENT, **changes: Any) -> Analysis:
    interval = IntervalOf(low=-0.1, high=1 / 3, confidence_level=0.95)
    numbers = {"difference": 1 / 3, "pvalue": 0.5, "pvalue_equivalence": 5e-324, "pvalue_equivalence_exact": 0.1 + 0.2}
    evidence = filled(Evidence, n_items=3, interval=interval, equivalence_interval=interval, **numbers)
    metric = {"task": "gsm8k", "metric": "exact_match,strict-match", "is_primary": True, "baseline": 2 / 3}
    decided = {"verdict": verdict, "reason": of("한국어", Reason("no-primary"))}
    policies = (filled(PolicyResult, policy=MissingPolicy.WRONG),)
    counts = {"n_requests": 3, "n_answers": 3, "statuses": {"ok": 3}}
    result = filled(MetricResult, n_items=3, evidence=evidence, policies=policies, **metric, **decided)
    own = {
        "comparison_id": comparison_id,
        "plan_hash": plan_hash(plan()),
        "input_hash": "i" * 64,
        "verdict": verdict,
        "reasons": (Reason("no-primary"),),
        "metrics": (replace(result, id=f"gsm8k/{result.metric}"), replace(result, id="other", evidence=None)),
        "suite": filled(
            SuiteEvidence,
            global_test=filled(GlobalTest, difference=-1 / 3),
            missing=filled(MissingSummary, n_asked=3, pvalue=1.0),
            joint_power_reason=Reason("no-joint-power"),
            seed=2**48 - 1,
        ),
        "arms": tuple(filled(ArmSummary, arm=arm, **counts, latency_p50_s=0.1) for arm in ArmName),
        "pairs": filled(PairSummary, n_pairs=3, same_text=2),
        "versions": {"qualab": "0.1", "lm_eval": "0.4.13"},
        "looks": filled(LooksTaken, n_planned=5, looks=(look(),), n_items=9, n_items_planned=45),
    }
    return filled(Analysis, **own | changes)


REQUEST = {"model": "모델/7b", "limit": 0.5, "tasks": ["gsm8k", None], "nested": {"a": 2**60}}


def ask_for(store: Store, comparison_id: str = "c-1", *, at: datetime = NOW, who: str = "ci", **changes: Any) -> str:
    """Queues a comparison of endpoints of its own."""
    urls = {f"{arm}_url": f"http://{comparison_id}:{port}/v1" for port, arm in enumerate(ArmName, 8001)}
    given = {"request": REQUEST, "model": "모델/7b", "label": "nightly", **urls, **changes}
    by = entry(at=at, who=who, subject=comparison_id)
    return store.submit(comparison_id, given.pop("request"), entry=by, **given)


def put(store: Store, comparison_id: str, **values: Any) -> None:
    """Changes a comparison's row, as no method of the store does at once."""
    change = update(tables.comparison).where(tables.comparison.c.id == comparison_id)
    with store.writing() as connection:
        connection.execute(change.values(version=tables.comparison.c.version + 1, **values))


def entry(action: str = "comparison.create", *, at: datetime = NOW, **changes: Any) -> AuditEntry:
    own = {"at": at, "who": "ci", "action": action, "subject": "c-1", "details": {"이유": "because"}}
    return AuditEntry(**own | changes)


def outcome(position: int, change: Change = Change.SAME, **changes: Any) -> Outcome:
    scores = {Change.SAME: (1.0, 1.0), Change.GAIN: (0.0, 1.0), Change.LOSS: (1.0, 1 / 3), Change.UNKNOWN: (None, 0.5)}
    baseline, candidate = scores[change]
    own = {"position": position, "task": "gsm8k", "doc_id": 1_000 - position, "change": change, "length": 10 * position}
    return filled(Outcome, **{"baseline": baseline, "candidate": candidate, **own, **changes})


def signoff(**changes: Any) -> SignOff:
    hashes = {"plan_hash": "p" * 64, "analysis_hash": "a" * 64}
    own = {"comparison_id": "c-1", "signed_by": "김하나", "note": "looked at the flips", "signed_at": NOW}
    return filled(SignOff, **{"verdict": Verdict.EQUIVALENT, **hashes, **own, **changes})


def token(token_id: str = "t1", **changes: Any) -> Token:
    digest = hashlib.sha256(token_id.encode()).digest()
    own = {"id": token_id, "name": "ci", "digest": digest, "scope": Scope.RUN, "created_at": NOW}
    return filled(Token, **{**own, "expires_at": after(3_600), **changes})


make_analysis, make_answer, make_choices, make_comparison = analysis, answer, choices, comparison
make_entry, make_item, make_items, make_plan, make_signoff = entry, item, items, plan, signoff

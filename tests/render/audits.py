"""Made-up token audits of every ruling, with tokens of any text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qualab.model.audit import (
    Audit,
    ForeignCount,
    Parting,
    SampledCount,
    StructuredCount,
    TaskTokens,
    WorstToken,
)
from qualab.model.names import ArmName, AuditPart, AuditRuling, IntervalOf, ScoringForm
from qualab.model.plan import AuditPlan
from qualab.model.reason import Reason

GREEDY, SAMPLED = AuditPart.GREEDY, AuditPart.SAMPLED
BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE
ODD_TOKENS = (
    ("사과는 모두 5", "개", "개입니다. 그래서 안나에게는 5개가 남습니다.\n", "입"),
    ('{"name": "서울", "인구', '":', ' "구백사십만"}', '": '),
    ("the tag ", "<script>", "alert(1)</script> | a | b", "<"),
    ("end of turn", "<|im_end|>", "<|im_start|>user", "."),
    ("a line\n\n", "\n", "\x00\x07 and \u202egnp.exe\u202c", "\x00"),
    ("שלום ", "مرحبا", " नमस्ते 👍🏽", ""),
    ("x" * 120, "=" * 200, "가" * 120, "    "),
    ("", "   ", "", "\ufffd"),
)
"""Before, the token, after, and the model's choice."""


def worst(part: AuditPart = SAMPLED) -> tuple[WorstToken, ...]:
    return tuple(
        WorstToken(
            part=part, arm=CANDIDATE if place else BASELINE, position=17 + place, task="gsm8k", doc_id=67 + place,
            index=40 + place, gap=49.13 - 5.0 * place, rank=31_204 - place,
            before=before, token=token, after=after, choice=choice,
        )
        for place, (before, token, after, choice) in enumerate(ODD_TOKENS)
    )  # fmt: skip


def foreign(arm: ArmName, n: int, *, n_tokens: int = 96_204) -> ForeignCount:
    gaps = (n_tokens - 1_433 - n, 400, 600, 380, 53, n, 0, 0, 0, 0)
    return ForeignCount(
        arm=arm, n_answers=480, n_tokens=n_tokens, n_foreign=n, n_answers_foreign=n, histogram=gaps,
        upper_share=1.0 / 32_113 if not n else (n + 3) / n_tokens, upper_answers_share=0.0062, largest_gap=0.93,
    )  # fmt: skip


def sampled(arm: ArmName, n: int, excess: float) -> SampledCount:
    interval = IntervalOf(low=excess - 0.004, high=excess + 0.004, confidence_level=0.9)
    return SampledCount(
        arm=arm, n_answers=60, n_tokens=2_619, n_rare=n, pvalue_rare=0.0 if n else 1.0, excess=excess, statistic=0.93,
        interval=interval, largest_gap=49.13 if n else 8.2,
        histogram=(1_700 - n, 100, 120, 200, 150, 149, 120, 80, n // 2, n - n // 2),
    )  # fmt: skip


def tasks(part: AuditPart, n: int) -> tuple[TaskTokens, ...]:
    counts = {"gsm8k": (300, 60_204, n), "stress": (180, 36_000, 0)}
    if part is SAMPLED:
        counts = {"gsm8k": (40, 1_700, n), "stress": (20, 919, 0)}
    return tuple(
        TaskTokens(
            part=part, arm=arm, task=task, n_answers=n_answers, n_tokens=n_tokens,
            n_foreign=n_foreign if arm is CANDIDATE else 0,
            n_answers_foreign=min(n_foreign, n_answers - 5) if arm is CANDIDATE else 0,
        )
        for arm in ArmName
        for task, (n_answers, n_tokens, n_foreign) in counts.items()
    )  # fmt: skip


def made_audit(ruling: AuditRuling, code: str, n_foreign: int = 0, /, **values: Any) -> Audit:
    """Greedy answers alone, without sampled ones."""
    return Audit(
        ruling=ruling,
        reason=Reason(f"audit.{code}", values),
        plan=AuditPlan(),
        is_planned=True,
        scoring=ScoringForm.PROMPT_LOGPROBS,
        n_not_audited=3,
        foreign=(foreign(BASELINE, 0), foreign(CANDIDATE, n_foreign)),
        pvalue_foreign=0.0001 if n_foreign else 1.0,
        tasks=tasks(GREEDY, n_foreign),
        partings=(
            Parting(task="gsm8k", n_pairs=300, n_same=271, n_near_ties=29 - n_foreign, n_foreign=n_foreign),
            Parting(task="stress", n_pairs=180, n_same=175, n_near_ties=5, n_foreign=0),
        ),
    )


def with_samples(audit: Audit, n_rare: int = 0, excess: float = 0.001) -> Audit:
    interval = IntervalOf(low=excess - 0.006, high=excess + 0.006, confidence_level=0.9)
    return replace(
        audit,
        tasks=(*audit.tasks, *tasks(SAMPLED, n_rare)),
        sampled=(sampled(BASELINE, 0, 0.0), sampled(CANDIDATE, n_rare, excess)),
        calibration=excess,
        calibration_interval=interval,
        structured=StructuredCount(n_pairs=60, baseline_only=4, candidate_only=1, n_valid=52, pvalue=0.375),
    )


LIMITS = {"low": 0.051, "high": 0.104, "margin": 0.01}
CLEAN = with_samples(made_audit(AuditRuling.CLEAN, "clean", share=1.0 / 32_113, total=96_204))
RARE = replace(
    with_samples(made_audit(AuditRuling.FOREIGN, "rare", n=140, total=2_619, pvalue=0.0), 140, 0.078), worst=worst()
)
FOREIGN = replace(
    made_audit(AuditRuling.FOREIGN, "foreign", 14, n=14, total=96_204, answers=14, pvalue=0.0001), worst=worst(GREEDY)
)
SHARP = with_samples(made_audit(AuditRuling.FOREIGN, "calibration", difference=0.078, **LIMITS), 0, 0.078)
FEW = replace(
    made_audit(AuditRuling.INCONCLUSIVE, "few-tokens", share=0.0031, limit=0.001, n=0, needed=2_018),
    scoring=ScoringForm.TOKEN_BY_TOKEN, tokens_needed=2_018, is_planned=False,
)  # fmt: skip
INVALID = made_audit(AuditRuling.INVALID, "control-greedy", n=120, total=96_157, tau=1.0)
UNOBSERVED = Audit(
    ruling=AuditRuling.UNOBSERVED,
    reason=Reason("audit.unobserved"),
    plan=AuditPlan(),
    is_planned=True,
    scoring=None,
)
AUDITS = {
    "clean": CLEAN, "rare": RARE, "foreign": FOREIGN, "sharp": SHARP, "few": FEW, "invalid": INVALID,
    "unobserved": UNOBSERVED,
}  # fmt: skip

"""A stored comparison and what the analysis found in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from qualab.domain.names import ArmName, ComparisonStatus, MetricKind, Verdict
from qualab.domain.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One plan being carried out, or carried out."""

    id: str
    plan: Plan
    plan_hash: str
    status: ComparisonStatus
    label: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    verdict: Verdict | None
    stop_reason: str
    """Why a run stopped early; empty otherwise."""
    duplicates: int
    """Late answers that were counted and not stored."""
    local: dict[str, str] = field(default_factory=dict)
    """Where this machine found things ("data_dir", "include_path", "tokenizer"): for a resume, not in the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalOf:
    """A confidence interval of a difference, in fractions."""

    low: float
    high: float
    confidence_level: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryEvidence:
    """The paired evidence of one 0/1 metric over its complete pairs."""

    n_items: int
    gains: int
    losses: int
    difference: float
    interval: IntervalOf
    """At 95 % (1 - alpha)."""
    equivalence_interval: IntervalOf
    """At 1 - 2 alpha: inside the margin means equivalent."""
    pvalue: float
    """Mid-p McNemar."""
    pvalue_exact: float
    pvalue_adjusted: float
    """Of the family of tested metrics (Holm)."""
    pvalue_unpaired: float
    """Only for comparison with older reports."""
    pvalue_equivalence: float
    """The larger of the two one-sided score tests."""
    pvalue_equivalence_exact: float
    """The exact unconditional guard."""
    provable_margin: float
    """The smallest margin that these counts would have proven."""
    items_needed: int | None
    """Items that would prove the margin at this discordance with power 0.8; None where none would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricResult:
    """One row of the result table."""

    id: str
    task: str
    metric: str
    kind: MetricKind
    is_primary: bool
    exercises_drafter: bool
    baseline: float | None
    """The arm's value over complete pairs; None where no pair is complete."""
    candidate: float | None
    n_items: int
    n_missing: int
    verdict: Verdict
    reason: str
    """Why, in one sentence for a person."""
    evidence: BinaryEvidence | None
    """None for metrics that are not tested yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSummary:
    """How an arm answered."""

    arm: ArmName
    n_requests: int
    n_answers: int
    statuses: dict[str, int]
    finish_reasons: dict[str, int]
    truncated_share: float | None
    """Of generations that were answered."""
    empty_answers: int
    stop_string_answers: int
    """Answers that hold one of their own stop strings."""
    retries: int
    prompt_tokens: int
    completion_tokens: int
    latency_p50_s: float | None
    latency_p99_s: float | None
    fingerprints: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSummary:
    """How the two arms' answers to the same requests compare, before any scoring."""

    n_pairs: int
    """Generations that both arms answered."""
    same_text: int
    finish_reasons_differ: int
    prompt_tokens_differ: int
    request_hashes_differ: int
    """Must be 0: the arms got other bytes otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What a comparison came to. Recomputable from what is stored; the same inputs give the same bytes."""

    comparison_id: str
    plan_hash: str
    input_hash: str
    """SHA-256 over the stored scores and statuses that went in."""
    verdict: Verdict
    reasons: tuple[str, ...]
    """In order of weight, each one sentence."""
    caveats: tuple[str, ...]
    """What the verdict does not prove, or was not checked."""
    metrics: tuple[MetricResult, ...]
    arms: tuple[ArmSummary, ...]
    pairs: PairSummary
    versions: dict[str, str]

"""A stored comparison and its analysis."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from pydantic import Field

from qualab.model.audit import Audit
from qualab.model.canonical import sha256
from qualab.model.engine import FirstTokenSummary, Treatment
from qualab.model.names import (
    ArmName,
    ComparisonStatus,
    EvidenceKind,
    IntervalOf,
    LeakKind,
    LookDecision,
    MetricKind,
    MissingPolicy,
    Tier,
    Verdict,
)
from qualab.model.plan import Pinning, Plan
from qualab.model.reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    id: str
    plan: Plan
    plan_hash: str
    status: ComparisonStatus
    label: str
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    verdict: Verdict | None = None
    stop_reason: Reason | None = None
    duplicates: int = 0
    baseline_url: str = ""
    candidate_url: str = ""
    local: dict[str, str] = field(default_factory=dict)
    """Where this machine found things, as "data_dir" and "pods": for a resume, not in the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsRange:
    """Pairs needed at the limits of the discordance's interval; None is more than 200,000."""

    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Statistics of one metric's complete pairs; None where this kind of metric has no such value."""

    kind: EvidenceKind
    n_items: int
    """Pairs of scores: one for each item and repeat, and for each entry of a list."""
    n_clusters: int
    """Groups of pairs that stand and fall together; `n_items` where each pair is its own."""
    gains: int
    """Pairs that only the candidate got right (or better: lower where that is better)."""
    losses: int
    n_changed: int
    """Pairs that differ; more than gains + losses where a wrong label became another wrong one."""
    difference: float
    interval: IntervalOf | None
    """At 95 % (1 - alpha)."""
    equivalence_interval: IntervalOf | None
    """At 1 - 2 alpha, the one to show: inside the margin (above -margin) means proven, where the exact guard agrees."""
    pvalue: float
    """Two-sided: mid-p McNemar, sign flips of clusters, or swaps of an item's two answers."""
    pvalue_exact: float | None
    """Exact McNemar, or the sign-flip p-value where every pattern was counted."""
    pvalue_adjusted: float
    """In the family of all metrics: step-down max-T, combined with what it cannot carry."""
    pvalue_holm: float
    pvalue_unpaired: float | None
    pvalue_clustered_mcnemar: float | None
    pvalue_equivalence: float | None
    """From the tests at the margin that the objective takes: the larger of two, or the one against a loss."""
    pvalue_equivalence_exact: float | None
    """The exact unconditional guard of 0/1 scores without clusters, likewise."""
    standard_error: float | None
    degrees_of_freedom: float | None
    design_effect: float
    provable_margin: float | None
    """The smallest margin that these answers would have proven; None where there is no bound."""
    items_needed: int | None
    """Pairs that would prove the margin with the plan's power, at this discordance and no true difference. None where
    the verdict is not INCONCLUSIVE, and where too many or unknown."""
    n_resamples: int
    """Random sign patterns or swaps behind the p-value; 0 where it is exact."""
    note: Reason | None
    pvalue_equivalence_bounded: float | None = None
    """From Gaffke's bound for means of bounded scores, likewise: it decides alone where scores are not 0/1, and has to
    agree where 0/1 scores stand in clusters. None for other kinds."""
    items_needed_range: ItemsRange | None = None
    """Items needed over the 1 - 2 alpha interval of the discordance; None where there is no discordance."""
    items_needed_observed: int | None = None
    """If the observed difference is the true one; None also where that is the margin or more."""
    items_needed_observed_range: ItemsRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    policy: MissingPolicy
    difference: float
    interval: IntervalOf | None
    is_equivalent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricResult:
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
    """Answers (items times repeats) that at least one arm lacks."""
    n_missing_baseline: int
    n_missing_candidate: int
    verdict: Verdict
    reason: Reason
    evidence: Evidence | None
    equals: str = ""
    """The metric that has the same scores on the same items: both are one member of the family."""
    policies: tuple[PolicyResult, ...] = ()
    margin: float | None = None
    n_left_out: int = 0
    """Answers that both arms lack for the same reason: in neither `n_missing` nor any test."""
    tier: Annotated[Tier | None, Field(exclude_if=lambda tier: tier is None)] = None
    n_lost: int | None = None
    """Pairs without an answer that the worst cases take as lost; None takes all."""
    tipping_point: int | None = None
    """Most of the pairs without an answer that may be lost (or gained) with the objective still proven; None where all
    of them may, or where the complete pairs do not prove it."""
    chance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLook:
    metric: str
    n_pairs: int
    fraction: float
    """Information so far: pairs over those that are planned; 1 at the last look."""
    difference: float | None = None
    interval: IntervalOf | None = None
    """At the level of the boundary: a repeated confidence interval."""
    statistic: float | None = None
    """Statistic of the weaker test against ±margin, exact guard included, as a standard normal quantile."""
    boundary: float | None = None
    """Value that the statistic must reach; None where there is nothing new to look at, or no level to spend yet."""
    pvalue_loss: float | None = None
    pvalue_gain: float | None = None
    harm_boundary: float | None = None
    pvalue_adjusted: float | None = None
    decision: LookDecision
    decided_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Decision made when every request up to some position had come back."""

    number: int
    n_items: int
    input_hash: str
    metrics: tuple[MetricLook, ...]
    decision: LookDecision

    def ended_at(self, n_items: int) -> int | None:
        """Items asked where this look ended a run of `n_items` early; None where it did not."""
        return self.n_items if self.decision is not LookDecision.CONTINUE and self.n_items < n_items else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LooksTaken:
    n_planned: int
    looks: tuple[Look, ...]
    n_items: int
    n_items_planned: int
    n_requests_saved: int

    @property
    def stopped_early(self) -> bool:
        return self.n_items < self.n_items_planned


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSummary:
    arm: ArmName
    n_requests: int
    n_answers: int
    statuses: dict[str, int]
    finish_reasons: dict[str, int]
    truncated_share: float | None
    empty_answers: int
    stop_string_answers: int
    retries: int
    prompt_tokens: int
    completion_tokens: int
    latency_p50_s: float | None
    latency_p99_s: float | None
    fingerprints: dict[str, int]
    models: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSummary:
    n_pairs: int
    same_text: int
    finish_reasons_differ: int
    prompt_tokens_differ: int
    request_hashes_differ: int
    """Must be 0: the arms got other bytes otherwise."""
    same_text_other_score: int = 0
    """Items with the same texts and another score in the arms. Must be 0: it is the scoring that differs otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thoughts:
    """Reasoning before the answers in an arm's generations."""

    n_answers: int
    in_text: int
    apart: int
    mean_characters: float | None
    cut: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningSummary:
    baseline: Thoughts
    candidate: Thoughts
    n_pairs: int
    pvalue_length: float
    """Sign test over items: which arm's thoughts are longer. Two-sided, mid-p; 1 where none differs."""
    pvalue_cut: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakSummary:
    kind: LeakKind
    n_pairs: int
    n_baseline: int
    n_candidate: int
    n_both: int
    pvalue: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TextsCompared:
    n_pairs: int
    same_text: int
    changed: int
    first_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OddOneOut:
    """Items on which exactly one of three runs differs: two of the baseline, one of the candidate."""

    n_items: int
    n_odd: int
    n_candidate_odd: int
    """Expected to be a third of `n_odd` where the drafter adds nothing."""
    pvalue: float
    """Exact, one-sided; 1 without an odd item: no evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNoise:
    metric: str
    n_answers: int
    flip_rate_baseline: float | None
    """Share of pairs of the baseline's runs in which a score changes; None where there is no answer to compare."""
    flip_rate_candidate: float | None
    odd: OddOneOut | None
    variance_left: float | None = None
    """Variance of an item's difference with the baseline's runs in the test, as a share of that with one answer.

    None where they are not in the test, and where no item changed.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """Differences between runs of the baseline, beside those of the candidate."""

    n_runs: int
    concurrency: int
    n_asked: int
    n_answered: int
    baseline: TextsCompared | None
    candidate: TextsCompared | None
    odd_texts: OddOneOut | None
    metrics: tuple[MetricNoise, ...]
    note: Reason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatNoise:
    """Differences between repeats of an item within an arm, for a metric that is a mean of 0/1 scores."""

    metric: str
    arm: ArmName
    n_items: int
    n_repeats: int
    flip_rate: float | None
    """Probability that two repeats of an item disagree; None where no item has all its repeats."""
    variance_between: float | None
    variance_within: float | None
    icc: float | None
    """ICC(1), the share of a score's variance that is between items; None where scores do not vary."""
    icc_mean: float | None
    """ICC(k): the same for the mean of an item's repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatSummary:
    metrics: tuple[RepeatNoise, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusMissing:
    status: str
    baseline_only: int
    candidate_only: int
    both: int
    pvalue: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingSummary:
    """Answers (items times repeats) without a score."""

    n_asked: int
    baseline_only: int
    candidate_only: int
    both: int
    pvalue: float
    left_out: int = 0
    """Answers that both arms lack for the same reason, as a prompt longer than the context; not counted above."""
    by_status: tuple[StatusMissing, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalTest:
    """Sign-flip test of the mean difference over the family's metrics: it sees a small loss everywhere."""

    n_metrics: int
    difference: float
    pvalue: float
    n_resamples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteEvidence:
    n_family: int
    n_max_t: int
    """Those of them whose p-values max-T adjusts; the others are not means over items."""
    n_resamples: int
    global_test: GlobalTest | None
    missing: MissingSummary
    joint_power: float | None
    joint_power_reason: Reason | None
    seed: int
    """Every random stream of the analysis derives from it; it derives from the plan's hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Result of a comparison, recomputable from what is stored: the same inputs give the same bytes."""

    comparison_id: str
    plan_hash: str
    input_hash: str
    """SHA-256 over what was answered: scores, clusters, statuses, looks, noise floor and repeats. Not over what was
    seen of engines, so that resuming leaves no trace in it."""
    verdict: Verdict
    reasons: tuple[Reason, ...]
    caveats: tuple[Reason, ...]
    metrics: tuple[MetricResult, ...]
    suite: SuiteEvidence
    arms: tuple[ArmSummary, ...]
    pairs: PairSummary
    versions: dict[str, str]
    looks: LooksTaken | None = None
    treatment: Treatment | None = None
    pinning: Pinning | None = None
    noise: NoiseFloor | None = None
    repeats: RepeatSummary | None = None
    data_hash: str = ""
    tokens: FirstTokenSummary | None = None
    reasoning: ReasoningSummary | None = None
    leaks: tuple[LeakSummary, ...] = ()
    audit: Audit | None = None
    """None where neither the plan nor `qualab audit` asked for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOff:
    comparison_id: str
    plan_hash: str
    analysis_hash: str
    verdict: Verdict
    signed_by: str
    note: str
    override: str
    obstacles: tuple[Reason, ...]
    signed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedAnalysis:
    plan_hash: str
    body: str
    previous: str
    seal: str


def seal_of(body: str, *, previous: str) -> str:
    """Hash an analysis together with the seal before it."""
    return sha256(f"{previous}\n{body}")

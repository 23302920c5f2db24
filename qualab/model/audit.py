"""The token audit: what is planned, what was scored, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qualab.model.comparison import IntervalOf
from qualab.model.names import ArmName
from qualab.model.reason import Reason


class AuditPart(StrEnum):
    GREEDY = "greedy"
    """Answers of the comparison itself."""
    SAMPLED = "sampled"
    """Items asked again at temperature 1."""


class AuditRuling(StrEnum):
    FOREIGN = "FOREIGN"
    CLEAN = "CLEAN"
    INCONCLUSIVE = "INCONCLUSIVE"
    UNOBSERVED = "UNOBSERVED"
    """The engine cannot score a given text."""
    INVALID = "INVALID"
    """The control fails: the baseline's own answers hold foreign tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """How much is audited, and what counts as foreign."""

    tau: float = 1.0
    """Nats below the model's choice from which a greedy token is foreign."""
    max_foreign_share: float = 0.001
    """Share of foreign tokens that CLEAN excludes."""
    calibration_margin: float = 0.01
    """Difference of the arms' excess of top choices that CLEAN excludes."""
    greedy_tokens: int = 100_000
    """Budget of both arms' greedy tokens together."""
    sampled_items: int = 200
    sampled_max_tokens: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswer:
    """One answer of an arm with the baseline's log-probabilities of its tokens."""

    part: AuditPart
    arm: ArmName
    position: int
    task: str
    token_ids: tuple[int, ...]
    own: tuple[float, ...]
    """Log-probability of each token, in nats."""
    top: tuple[float, ...]
    """Log-probability of the most likely token in its place."""
    ranks: tuple[int, ...]
    """Tokens at least as likely as each one."""
    pieces: tuple[str, ...]
    """Text of each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCount:
    """Foreign tokens of an arm's greedy answers."""

    arm: ArmName
    n_answers: int
    n_tokens: int
    n_foreign: int
    n_answers_foreign: int
    upper_share: float
    upper_answers_share: float
    largest_gap: float
    histogram: tuple[int, ...]
    """Tokens by gap, in the bins of `GAP_EDGES`."""


GAP_EDGES = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Lower edges of the histogram's bins, in nats; the first is gap 0 to 0.05, the last has no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledCount:
    """Rare tokens and top choices of an arm's sampled answers."""

    arm: ArmName
    n_answers: int
    n_tokens: int
    n_rare: int
    pvalue_rare: float
    excess: float
    statistic: float | None
    interval: IntervalOf | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where the arms' texts part, in one task."""

    task: str
    n_pairs: int
    n_same: int
    n_near_ties: int
    """The candidate's first different token is within tau of the model's choice."""
    n_foreign: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstToken:
    """A token that the model all but excludes, in its context."""

    part: AuditPart
    arm: ArmName
    position: int
    task: str
    index: int
    """Of the token in its answer, from 0."""
    gap: float
    rank: int
    before: str
    token: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What the token audit came to."""

    ruling: AuditRuling
    reason: Reason
    foreign: tuple[ForeignCount, ...] = ()
    pvalue_foreign: float | None = None
    """Exact McNemar over items: a foreign token in the candidate's answer only, or in the baseline's only."""
    partings: tuple[Parting, ...] = ()
    sampled: tuple[SampledCount, ...] = ()
    calibration: float | None = None
    """Candidate's excess of top choices less the baseline's."""
    calibration_interval: IntervalOf | None = None
    tokens_needed: int | None = None
    worst: tuple[WorstToken, ...] = ()

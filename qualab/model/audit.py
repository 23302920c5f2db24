"""The token audit: what is planned, what was scored, and what came of it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qualab.model.names import AnswerStatus, ArmName, AuditPart, AuditRuling, IntervalOf, ScoringForm
from qualab.model.plan import AuditPlan
from qualab.model.reason import Reason

TOKEN_BYTES = 12
"""Bytes of a scored token: own log-probability and that of the most likely token in its place (float32), rank (uint32).

Little-endian, in nats; the rank is 1 where the token itself is the most likely.
"""

NEUTRAL: Mapping[str, object] = {
    **dict.fromkeys(("min_p", "dynatemp_range", "mirostat", "xtc_probability"), 0),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "dry_multiplier"), 0),
    **dict.fromkeys(("top_p", "typical_p", "repetition_penalty", "repeat_penalty"), 1),
    **dict.fromkeys(("top_k", "top_n_sigma"), -1),
}
"""Settings that change what is drawn, at the values where they do not: an engine's defaults may be others."""
PENALTIES = ("presence_penalty", "frequency_penalty", "dry_multiplier", "repetition_penalty", "repeat_penalty")
CONSTRAINTS = (
    *("response_format", "tools", "structured_outputs", "json_schema", "grammar", "ebnf", "regex", "logit_bias"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "allowed_token_ids", "bad_words", "min_tokens"),
    *("custom_logit_processor", "thinking_token_budget", "use_beam_search", "watermarking"),
)
"""Settings under which tokens are not drawn from the model's own probabilities."""


def is_free(settings: Mapping[str, object]) -> bool:
    """True where the model alone chooses an answer's tokens: nothing else allows or forbids some."""
    return not any(settings.get(name) for name in CONSTRAINTS)


def is_chosen(settings: Mapping[str, object]) -> bool:
    """True where each token is the model's choice: at temperature 0, without penalties."""
    is_penalized = any(settings.get(name, NEUTRAL[name]) != NEUTRAL[name] for name in PENALTIES)
    return not float(str(settings["temperature"] or 0)) and not is_penalized and is_free(settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswer:
    """One answer of an arm with the baseline's log-probabilities of its tokens."""

    part: AuditPart
    arm: ArmName
    position: int
    status: AnswerStatus
    finish_reason: str
    text: str | None
    """Text of a sampled or structured answer; that of a greedy one is in the comparison's own answer."""
    token_ids: bytes
    """Made by `pack_ids`; empty where they are not known."""
    is_tokenized_again: bool = False
    """True where the ids are those of the text, not as the engine generated them: then the end is not among them."""
    scores: bytes | None = None
    """`TOKEN_BYTES` a token, of all of them or the first ones; None where they are to be scored still."""
    pieces: TokenPieces | None = None
    """None where not scored, and where not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPieces:
    """Texts of an answer's scored tokens."""

    texts: tuple[str, ...]
    choices: dict[int, str] = field(default_factory=dict)
    """Text of the model's choice by the token's index, where the token is not the choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """An engine's way to score a given text."""

    form: ScoringForm
    vocabulary: int | None
    """Tokens that the model knows; None where the engine does not tell."""
    most_tokens: int | None = None
    """Most tokens worth asking for, of all answers together; None sets no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """An answer's tokens as the baseline scores them."""

    scores: bytes
    """`TOKEN_BYTES` a token."""
    pieces: TokenPieces


def pack_ids(ids: Sequence[int]) -> bytes:
    """Store token ids as little-endian int32. Raises struct.error for what is no token id."""
    return struct.pack(f"<{len(ids)}i", *ids)


def unpack_ids(packed: bytes) -> tuple[int, ...]:
    """Read `pack_ids` back."""
    return struct.unpack(f"<{len(packed) // 4}i", packed)


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
    excess: float | None
    """How much more often the model's choice is taken than its probability says, a fraction.

    None where no answer's ids are as generated.
    """
    statistic: float | None
    interval: IntervalOf | None
    largest_gap: float
    histogram: tuple[int, ...]
    """Tokens by gap, like a `ForeignCount`'s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTokens:
    """Tokens of one task in one arm and part."""

    part: AuditPart
    arm: ArmName
    task: str
    n_answers: int
    n_tokens: int
    n_foreign: int
    """Greedy: foreign. Sampled: rare."""
    n_answers_foreign: int


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
    doc_id: int
    index: int
    """Place of the token in its answer, from 0."""
    gap: float
    """Nats below the model's choice."""
    rank: int
    before: str
    token: str
    after: str
    choice: str
    """The model's choice in its place; empty where not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredCount:
    """Answers of both arms held against the schema that they were asked in."""

    n_pairs: int
    baseline_only: int
    """Pairs valid in this arm alone."""
    candidate_only: int
    n_valid: int
    """Pairs valid in both arms."""
    pvalue: float
    """Exact McNemar, two-sided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Result of the token audit."""

    ruling: AuditRuling
    reason: Reason
    plan: AuditPlan
    is_planned: bool
    """False where `qualab audit` did it and the comparison's plan had none."""
    scoring: ScoringForm | None
    n_tokenized_again: int = 0
    """Audited answers whose ids are those of their texts, tokenized again."""
    n_not_audited: int = 0
    """Answers whose tokens are not known, or that the engine refused to score."""
    foreign: tuple[ForeignCount, ...] = ()
    pvalue_foreign: float | None = None
    """Exact McNemar over items: a foreign token in the candidate's answer only, or in the baseline's only."""
    tasks: tuple[TaskTokens, ...] = ()
    partings: tuple[Parting, ...] = ()
    sampled: tuple[SampledCount, ...] = ()
    calibration: float | None = None
    """Candidate's excess of top choices less the baseline's."""
    calibration_interval: IntervalOf | None = None
    tokens_needed: int | None = None
    """Tokens without a foreign one that CLEAN still needs; None where none would do."""
    structured: StructuredCount | None = None
    """None where nothing was asked so."""
    worst: tuple[WorstToken, ...] = ()
    notes: tuple[Reason, ...] = ()
    """Parts that the engines do not take."""

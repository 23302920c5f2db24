"""Where generated texts that differ begin to differ, in tokens of the texts tokenized again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PairKind(StrEnum):
    """Whose two answers to the same request are laid side by side."""

    ARMS = "arms"
    """The baseline's and the candidate's."""
    NOISE = "noise"
    """The baseline's own, and that of the noise floor's first run."""


class TokenizedBy(StrEnum):
    """Whose tokenizer made the tokens."""

    BASELINE = "baseline"
    """The baseline's engine."""
    CANDIDATE = "candidate"
    """The candidate's engine, where the baseline's was not there any more."""
    NAMED = "named"
    """The one that `--tokenizer` names."""


class TokensLack(StrEnum):
    """Why texts were left without tokens."""

    FAILED = "failed"
    """Nothing tokenizes, or it refused a text or did not answer."""
    TIME = "time"
    """It would have taken too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """One task's pairs of texts that differ."""

    task: str
    pairs: PairKind
    n_differ: int
    places: tuple[tuple[int, int, int | None], ...]
    """Of those that were tokenized: the item's position, the repeat, and the first token (from 0) that is another; None
    where all tokens are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensCompared:
    """Texts of two runs."""

    n_differ: int
    """Pairs whose texts differ."""
    n_tokenized: int
    """Those of them that were tokenized."""
    n_same_tokens: int
    """Those of these whose tokens are the same."""
    first_difference: float | None
    """Median token (from 0) that is another; None where none is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTokens:
    """One task's texts, compared."""

    task: str
    baseline: TokensCompared | None
    """The baseline's own run against the noise floor's first; None where there is none."""
    candidate: TokensCompared
    """The two arms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenSummary:
    """All tasks' texts, compared."""

    by: TokenizedBy
    lack: TokensLack | None
    baseline: TokensCompared | None
    """The baseline's own run against the noise floor's first; None where there is none."""
    candidate: TokensCompared
    """The two arms."""
    tasks: tuple[TaskTokens, ...]
    """Those that generate, in the plan's order."""

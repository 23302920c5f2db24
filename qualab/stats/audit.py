"""The token audit: would the model itself have chosen these tokens?

The baseline's engine, without a drafter, tells the log-probability of each token of an answer and of the most likely
token in its place, in nats. Answers are the clusters: tokens of one answer stand and fall together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.checks import FloatArray, IntArray, check_share
from qualab.stats.interval import ConfidenceInterval, clopper_pearson

_RARE = 1e-6
"""Tokens this improbable or more so are counted in sampled answers."""
_FEWEST_RESAMPLED = 20
"""Answers; intervals from fewer are too narrow: of 10, one in twenty lies beside the truth and the margin too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTokens:
    """Tokens of several answers, one answer after the other; every answer has at least one."""

    gaps: FloatArray
    """How far each log-probability lies below that of the most likely token, at least 0; or a bound from below."""
    top: FloatArray
    """Log-probability of the most likely token in its place."""
    ranks: IntArray
    """Tokens at least as likely as each one: 1 where it alone is the most likely."""
    starts: IntArray
    """Where each answer's tokens begin: rises from 0."""

    def __post_init__(self) -> None:
        if not self.gaps.size or not self.starts.size:
            raise InsufficientData("no token was scored", hint="Score at least one answer")
        if (
            not self.gaps.shape == self.top.shape == self.ranks.shape
            or self.starts[0] != 0
            or np.any(np.diff(self.starts, append=self.gaps.size) < 1)
        ):
            raise InvalidValue("tokens and answers do not fit together", hint="Give one gap, top and rank a token")
        if not (np.all(np.isfinite(self.top) & (self.top <= 1e-3)) and np.all(self.gaps >= 0.0)):
            raise InvalidValue("log-probabilities must be numbers of at most 0", hint="Give natural logarithms")

    @property
    def n_answers(self) -> int:
        return self.starts.size

    @property
    def n_tokens(self) -> int:
        return self.gaps.size

    def by_answer(self, values: FloatArray | npt.NDArray[np.bool_]) -> FloatArray:
        """Sum values of tokens over each answer."""
        return np.add.reduceat(values.astype(np.float64), self.starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTokens:
    """Tokens that the model would not have chosen, in answers at temperature 0."""

    n_tokens: int
    n_foreign: int
    n_answers: int
    n_answers_foreign: int
    """Answers with at least one."""
    upper_share: float
    """One-sided upper limit of the share of foreign tokens."""
    upper_answers_share: float
    """One-sided upper limit of the share of answers with any."""


def foreign_tokens(tokens: ScoredTokens, *, tau: float = 1.0, alpha: float = 0.05) -> ForeignTokens:
    """Count tokens more than `tau` nats below the model's choice.

    Where none is foreign, the limit of their share is Clopper & Pearson's over tokens; else it is taken over the
    effective number of tokens, n / design effect, as answers are clusters.

    Args:
        alpha: one-sided error of both limits.

    Source: Clopper & Pearson (1934); Korn & Graubard (1998) for clusters.

    >>> likely, first = np.full(100, -0.1), np.ones(100, int)
    >>> tokens = ScoredTokens(gaps=np.zeros(100), top=likely, ranks=first, starts=np.arange(0, 100, 10))
    >>> round(foreign_tokens(tokens).upper_share, 4)
    0.0295
    """
    foreign = tokens.by_answer(tokens.gaps > tau)
    lengths = tokens.by_answer(np.ones(tokens.n_tokens))
    count, with_any = int(foreign.sum()), int(np.count_nonzero(foreign))
    level = 1.0 - 2.0 * check_share(alpha, "alpha")
    effective = tokens.n_tokens / _design_effect(foreign, lengths)
    return ForeignTokens(
        n_tokens=tokens.n_tokens,
        n_foreign=count,
        n_answers=tokens.n_answers,
        n_answers_foreign=with_any,
        upper_share=clopper_pearson(count / tokens.n_tokens * effective, effective, confidence_level=level)[1],
        upper_answers_share=clopper_pearson(with_any, tokens.n_answers, confidence_level=level)[1],
    )


def _design_effect(counts: FloatArray, lengths: FloatArray) -> float:
    n_answers, n_tokens = counts.size, float(lengths.sum())
    share = float(counts.sum()) / n_tokens
    if not 0.0 < share < 1.0 or n_answers == 1:
        return 1.0
    residuals = counts - share * lengths
    variance = n_answers / (n_answers - 1) * float(residuals @ residuals) / n_tokens**2
    return max(1.0, variance / (share * (1.0 - share) / n_tokens))


def tokens_needed(max_share: float, *, alpha: float = 0.05) -> int:
    """Tokens without a foreign one that prove a share below `max_share`: ln(alpha) / ln(1 − max_share).

    >>> tokens_needed(0.001), tokens_needed(0.0001)
    (2995, 29956)
    """
    return math.ceil(math.log(check_share(alpha, "alpha")) / math.log1p(-check_share(max_share, "max_share")))


def provable_share(n_tokens: int, *, alpha: float = 0.05) -> float:
    """Share of foreign tokens that this many tokens without one exclude; InsufficientData for none.

    >>> round(provable_share(2995), 6)
    0.001
    """
    if n_tokens < 1:
        raise InsufficientData("no token can be scored", hint="Give the audit a budget of tokens")
    return float(-math.expm1(math.log(check_share(alpha, "alpha")) / n_tokens))


def is_rare(tokens: ScoredTokens, *, vocabulary: int) -> npt.NDArray[np.bool_]:
    """Mark tokens in whose tail, the tokens no likelier, lies a probability of at most one in a million."""
    if vocabulary < 2:
        raise InvalidValue(f"{vocabulary} tokens are no vocabulary", hint="Give the size of the model's vocabulary")
    return vocabulary * np.exp(tokens.top - tokens.gaps) <= _RARE


@dataclass(frozen=True, slots=True, kw_only=True)
class RareTokens:
    """Sampled tokens that a lossless sampler all but never draws."""

    n_tokens: int
    n_rare: int
    pvalue: float
    """That at least so many are drawn without loss; exact, one-sided, whatever the dependence within an answer."""


def rare_tokens(tokens: ScoredTokens, *, vocabulary: int) -> RareTokens:
    """Count tokens of answers at temperature 1 in whose tail lies a probability of at most one in a million.

    The tail of a token is the probability of all tokens no likelier: at most `vocabulary` times its own. The mass
    outside a list of likely tokens is no use here: as 1 minus a sum of single-precision numbers it is wrong by about
    as much as the 1e-6 in question.

    Source: P(tail <= x | past) <= x for draws from the scored distribution, so that the count is stochastically at most
    Binomial(n_tokens, 1e-6).
    """
    n_rare = int(np.count_nonzero(is_rare(tokens, vocabulary=vocabulary)))
    pvalue = float(scipy.stats.binom.sf(n_rare - 1, tokens.n_tokens, _RARE))
    return RareTokens(n_tokens=tokens.n_tokens, n_rare=n_rare, pvalue=min(1.0, pvalue))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopChoice:
    """How often sampled answers take the most likely token, beyond its probability."""

    excess: float
    """Mean of 1[token is the most likely] − probability of the most likely, a fraction."""
    statistic: float | None
    """Standard normal where the sampler is lossless; None where every choice was certain."""
    interval: ConfidenceInterval | None
    """By resampling whole answers; None for fewer than 20 of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The excess of both arms, and what the candidate adds."""

    baseline: TopChoice
    candidate: TopChoice
    difference: float
    interval: ConfidenceInterval | None
    """None where an arm has none."""


def calibration(
    baseline: ScoredTokens,
    candidate: ScoredTokens,
    *,
    rng: np.random.Generator,
    confidence_level: float = 0.90,
    n_resamples: int = 2_000,
) -> Calibration:
    """Compare how both arms' sampled answers take the most likely token, with bootstrap intervals over answers.

    It shows a sharpened or flattened distribution, as of relaxed acceptance, that no single token shows. Arms are
    resampled apart: sampled answers to the same item are independent.

    Source: the sum of excesses is a martingale under lossless sampling, with variance sum p (1 − p); Efron & Tibshirani
    (1993) for the interval, by percentiles.
    """
    tail = (1.0 - confidence_level) / 2.0

    def interval(excesses: FloatArray, *arms: ScoredTokens) -> ConfidenceInterval | None:
        if min(tokens.n_answers for tokens in arms) < _FEWEST_RESAMPLED:
            return None
        low, high = np.quantile(excesses, (tail, 1.0 - tail)).tolist()
        return ConfidenceInterval(low=low, high=high, confidence_level=confidence_level)

    def one_arm(tokens: ScoredTokens) -> tuple[TopChoice, FloatArray]:
        likely = np.exp(np.minimum(tokens.top, 0.0))
        excess = (tokens.ranks == 1) - likely
        sums, lengths = tokens.by_answer(excess), tokens.by_answer(np.ones(tokens.n_tokens))
        spread = math.sqrt(float(np.sum(likely * (1.0 - likely))))
        draws = (rng.integers(sums.size, size=sums.size) for _ in range(n_resamples))
        resampled = np.array([sums[drawn].sum() / lengths[drawn].sum() for drawn in draws])
        return TopChoice(
            excess=float(excess.mean()),
            statistic=float(excess.sum()) / spread if spread else None,
            interval=interval(resampled, tokens),
        ), resampled

    (before, before_resampled), (after, after_resampled) = one_arm(baseline), one_arm(candidate)
    return Calibration(
        baseline=before,
        candidate=after,
        difference=after.excess - before.excess,
        interval=interval(after_resampled - before_resampled, baseline, candidate),
    )

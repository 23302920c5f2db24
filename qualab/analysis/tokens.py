"""Where texts that differ begin to, in tokens: medians by task, and over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from qualab.model.engine import (
    FirstTokens,
    FirstTokenSummary,
    Observation,
    PairKind,
    TaskTokens,
    TokensCompared,
    first_tokens_seen,
)
from qualab.stats.noise import weighted_median


def first_token_summary(observations: Sequence[Observation]) -> FirstTokenSummary | None:
    """From what was last seen; None where nothing was."""
    seen = first_tokens_seen(observations)
    if seen is None:
        return None
    arms = {one.task: one for one in seen.tasks if one.pairs is PairKind.ARMS}
    noise = {one.task: one for one in seen.tasks if one.pairs is PairKind.NOISE}
    return FirstTokenSummary(
        by=seen.by,
        lack=seen.lack,
        baseline=_compared(list(noise.values())) if noise else None,
        candidate=_compared(list(arms.values())),
        tasks=tuple(
            TaskTokens(
                task=task,
                baseline=_compared([noise[task]]) if task in noise else None,
                candidate=_compared([one]),
            )
            for task, one in arms.items()
        ),
    )


def _compared(tasks: Sequence[FirstTokens]) -> TokensCompared:
    """Over tasks: each pair that was tokenized stands for as many of its task as were left out for it."""
    known = [(token, Fraction(one.n_differ, len(one.places))) for one in tasks for *_, token in one.places]
    different = [(token, weight) for token, weight in known if token is not None]
    tokens, weights = [token for token, _ in different], [weight for _, weight in different]
    return TokensCompared(
        n_differ=sum(one.n_differ for one in tasks),
        n_tokenized=len(known),
        n_same_tokens=len(known) - len(different),
        first_difference=weighted_median(tokens, weights) if tokens else None,
    )

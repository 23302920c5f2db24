"""The token audit's statistics: against two real pairs, against other ways to the same number, and by simulation."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.audit import (
    ScoredTokens,
    calibration,
    foreign_tokens,
    provable_share,
    rare_tokens,
    tokens_needed,
)

VOCABULARY = 1_000


def scored(rows: list[list[list[float]]]) -> ScoredTokens:
    """Answers as the reference files keep them: gap, probability of the top token and rank of each token."""
    gaps, likely, ranks = np.array([token for row in rows for token in row], dtype=float).T
    starts = np.cumsum([0, *map(len, rows[:-1])])
    return ScoredTokens(gaps=gaps, top=np.log(likely), ranks=ranks.astype(int), starts=starts)


def reference_arms() -> list[Any]:
    if "QUALAB_SHARED" not in os.environ:
        return [pytest.param({}, 0, marks=pytest.mark.skip(reason="QUALAB_SHARED names no folder"))]
    return [
        pytest.param(run["arms"][arm], pair["vocabulary"], id=f"{name}-{run['temperature']}-{arm}")
        for name in ("vllm_ngram", "vllm_draft_model")
        for pair in [json.loads(Path(os.environ["QUALAB_SHARED"], "reference", f"token_audit_{name}.json").read_text())]
        for run in pair["runs"]
        for arm in ("baseline", "candidate")
    ]


@pytest.mark.parametrize(("arm", "vocabulary"), reference_arms())
def test_two_real_pairs_come_out_to_the_last_digit(arm: dict[str, Any], vocabulary: int) -> None:
    tokens = scored(arm["data"])
    assert (tokens.n_answers, tokens.n_tokens) == (arm["answers"], arm["tokens"])
    for tau in (0.1, 0.5, 1.0):
        counted = foreign_tokens(tokens, tau=tau)
        assert counted.n_foreign == arm[f"tokens_with_gap_over_{tau}"]
        assert counted.n_answers_foreign == arm[f"answers_with_gap_over_{tau}"]
        if f"upper_95_of_answers_share_over_{tau}" in arm:
            assert counted.upper_answers_share == arm[f"upper_95_of_answers_share_over_{tau}"]
            assert counted.upper_share == arm[f"upper_95_of_tokens_share_over_{tau}"]
    if "top1_z" in arm:
        rare = rare_tokens(tokens, vocabulary=vocabulary)
        assert rare.n_rare == arm["tokens_with_tail_bound_at_most_1e-6"]
        assert rare.pvalue == pytest.approx(arm["p_value_of_that_count"], rel=1e-12)
        top = calibration(tokens, tokens, rng=np.random.default_rng(1)).candidate
        assert top.excess == pytest.approx(arm["top1_excess"], rel=1e-12)
        assert top.statistic == pytest.approx(arm["top1_z"], rel=1e-12)


def greedy(foreign: np.ndarray, *, length: int) -> ScoredTokens:
    """Answers of one length; 1 marks a token 5 nats below the choice."""
    flat = foreign.reshape(-1).astype(float)
    return ScoredTokens(
        gaps=5.0 * flat,
        top=np.full(flat.size, -0.1),
        ranks=1 + flat.astype(int),
        starts=np.arange(0, flat.size, length),
    )


def test_clusters_widen_the_limit_of_the_share_of_foreign_tokens() -> None:
    spread = np.zeros((200, 50))
    spread[:10, 0] = 1
    gathered = np.zeros((200, 50))
    gathered[0, :10] = 1
    assert foreign_tokens(greedy(spread, length=50)).upper_share == pytest.approx(
        scipy.stats.binomtest(10, 10_000).proportion_ci(0.9, "exact").high
    )
    residuals = gathered.sum(axis=1) - 10 / 10_000 * 50
    effect = 200 / 199 * (residuals**2).sum() / 10_000**2 / (0.001 * 0.999 / 10_000)
    assert effect > 9
    expected = scipy.stats.beta.ppf(0.95, 10 / effect + 1, (10_000 - 10) / effect)
    assert foreign_tokens(greedy(gathered, length=50)).upper_share == pytest.approx(expected)


def test_tokens_needed_are_the_fewest_that_prove_the_share() -> None:
    needed = tokens_needed(0.001)
    assert needed == 2_995
    assert provable_share(needed) <= 0.001 < provable_share(needed - 1)
    assert foreign_tokens(greedy(np.zeros((5, 599)), length=599)).upper_share == pytest.approx(provable_share(2_995))


def test_a_token_of_unknown_rank_and_a_certain_choice() -> None:
    certain = ScoredTokens(gaps=np.zeros(20), top=np.zeros(20), ranks=np.ones(20, int), starts=np.arange(20))
    same = calibration(certain, certain, rng=np.random.default_rng(1))
    assert same.candidate.statistic is None
    assert same.candidate.excess == same.difference == 0.0
    few = ScoredTokens(gaps=np.zeros(9), top=np.full(9, -0.5), ranks=np.ones(9, int), starts=np.arange(9))
    assert calibration(certain, few, rng=np.random.default_rng(1)).interval is None


@pytest.mark.parametrize(
    ("gaps", "top", "ranks", "starts", "error"),
    [
        ([], [], [], [], InsufficientData),
        ([0.0], [-0.1], [1], [], InsufficientData),
        ([0.0, 0.0], [-0.1], [1, 1], [0], InvalidValue),
        ([0.0, 0.0], [-0.1, -0.1], [1, 1], [0, 0], InvalidValue),
        ([0.0], [-0.1], [1], [1], InvalidValue),
        ([math.nan], [-0.1], [1], [0], InvalidValue),
        ([-1.0], [-0.1], [1], [0], InvalidValue),
        ([0.0], [0.7], [1], [0], InvalidValue),
        ([0.0], [-math.inf], [1], [0], InvalidValue),
    ],
)
def test_what_is_no_set_of_scored_tokens_is_refused(
    gaps: list[float], top: list[float], ranks: list[int], starts: list[int], error: type[Exception]
) -> None:
    with pytest.raises(error):
        ScoredTokens(
            gaps=np.array(gaps), top=np.array(top), ranks=np.array(ranks, int), starts=np.array(starts, dtype=int)
        )


def test_no_token_proves_nothing() -> None:
    with pytest.raises(InsufficientData):
        provable_share(0)


def sample(
    rng: np.random.Generator, n_answers: int, length: int, *, temperature: float = 1.0, junk_share: float = 0.0
) -> ScoredTokens:
    """Draw answers from known distributions, as by a sampler at a temperature, with junk in some places."""
    n_tokens = n_answers * length
    logits = rng.normal(scale=4.0, size=(n_tokens, 50))
    logp = logits - scipy.special.logsumexp(logits, axis=1, keepdims=True)
    noise = rng.gumbel(size=logp.shape)
    drawn = np.argmax(logp / temperature + noise, axis=1)
    own = logp[np.arange(n_tokens), drawn]
    ranks = (logp >= own[:, None]).sum(axis=1)
    gaps = logp.max(axis=1) - own
    junk = rng.random(n_tokens) < junk_share
    gaps[junk] += 40.0
    return ScoredTokens(gaps=gaps, top=logp.max(axis=1), ranks=ranks, starts=np.arange(0, n_tokens, length))


@pytest.mark.parametrize("n_answers", [200])
def test_a_sharpened_distribution_and_junk_are_seen(n_answers: int) -> None:
    rng = np.random.default_rng(5)
    baseline = sample(rng, n_answers, 100)
    sharpened = calibration(baseline, sample(rng, n_answers, 100, temperature=0.8), rng=rng)
    assert sharpened.interval is not None
    assert sharpened.interval.low > 0.01
    assert rare_tokens(baseline, vocabulary=VOCABULARY).n_rare <= 1
    assert rare_tokens(sample(rng, n_answers, 100, junk_share=0.002), vocabulary=VOCABULARY).pvalue < 1e-6


@pytest.mark.simulation
def test_a_lossless_sampler_is_seldom_called_another() -> None:
    """The count of rare tokens and the intervals of calibration err at most as often as they say."""
    rng = np.random.default_rng(11)
    n_runs, rare, outside, covered = 400, 0, 0, 0
    for _ in range(n_runs):
        baseline, candidate = sample(rng, 60, 40), sample(rng, 60, 40)
        rare += rare_tokens(candidate, vocabulary=50).pvalue <= 0.025
        interval = calibration(baseline, candidate, rng=rng, n_resamples=500).interval
        assert interval is not None
        covered += interval.low <= 0.0 <= interval.high
        outside += interval.low > 0.01 or interval.high < -0.01
    assert rare <= 0.025 * n_runs
    assert covered >= (0.90 - 3 * math.sqrt(0.09 / n_runs)) * n_runs
    assert outside <= 0.05 * n_runs


@pytest.mark.simulation
@pytest.mark.parametrize("burst", [1, 5])
def test_a_share_at_the_limit_is_seldom_called_smaller(burst: int) -> None:
    """Foreign tokens one by one and five in a row: the limit lies below the true share at most as often as it says."""
    rng = np.random.default_rng(13)
    share, n_runs, below = 0.001, 2_000, 0
    for _ in range(n_runs):
        begins = rng.random((400, 100 // burst)) < share
        below += foreign_tokens(greedy(np.repeat(begins, burst, axis=1), length=100)).upper_share < share
    assert below <= (0.05 + 3 * math.sqrt(0.05 * 0.95 / n_runs)) * n_runs

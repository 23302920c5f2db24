"""Do two arms sample their answers from one distribution? A kernel test for answers at a temperature above 0."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.checks import BoolArray, FloatArray, IntArray

Answer = Sequence[Hashable]
"""Tokens, or the characters of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MmdResult:
    """Squared maximum mean discrepancy, averaged over prompts, and its permutation p-value."""

    statistic: float
    """Unbiased, so that it may be below 0."""
    pvalue: float
    n_prompts: int
    n_resamples: int


def mmd_test(
    baseline: Sequence[Sequence[Answer]],
    candidate: Sequence[Sequence[Answer]],
    *,
    length: int = 512,
    n_resamples: int = 999,
    rng: np.random.Generator,
) -> MmdResult:
    """Permutation test of equal answer distributions (Gao, Liang & Guestrin 2024).

    Arm labels are permuted within each prompt. The kernel is the share of positions at which two answers to one
    prompt agree (Hamming), over the first `length` positions, the shorter answer padded. p is 1 where all answers to
    each prompt are the same.

    Args:
        baseline, candidate: for each prompt, the arm's sampled answers: at least two, as many in every prompt.
        length: positions of an answer that are compared.
        n_resamples: random permutations.
        rng: source of the permutations.

    Raises:
        InsufficientData: no prompt, or fewer than two samples of an arm.
        InvalidValue: the arms have different prompts.
    """
    if len(baseline) != len(candidate):
        raise InvalidValue("The arms have different prompts", hint="Give the samples of each prompt in both arms.")
    if not baseline or min(len(samples) for samples in [*baseline, *candidate]) < 2:
        raise InsufficientData("A kernel test needs two samples an arm and prompt", hint="Repeat each prompt.")
    observed, permuted = 0.0, np.zeros(n_resamples)
    for before, after in zip(baseline, candidate, strict=True):
        kernel = _hamming_kernel([*before, *after], length)
        labels = np.arange(len(kernel)) < len(before)
        observed += float(_discrepancies(kernel, labels[None, :])[0])
        shuffled = rng.permuted(np.broadcast_to(labels, (n_resamples, labels.size)), axis=1)
        permuted += _discrepancies(kernel, shuffled)
    extreme = int(np.count_nonzero(permuted >= observed - 1e-9))
    return MmdResult(
        statistic=observed / len(baseline),
        pvalue=(extreme + 1) / (n_resamples + 1),
        n_prompts=len(baseline),
        n_resamples=n_resamples,
    )


def _hamming_kernel(answers: Sequence[Answer], length: int) -> FloatArray:
    """Share of equal positions for each pair of answers; 1 on the diagonal."""
    codes = _padded_codes([answer[:length] for answer in answers])
    if not codes.shape[1]:
        return np.ones((len(codes), len(codes)))
    return np.array([np.mean(codes == row, axis=1) for row in codes])


def _padded_codes(answers: Sequence[Answer]) -> IntArray:
    known: dict[Hashable, int] = {}
    codes = np.zeros((len(answers), max(len(answer) for answer in answers)), dtype=np.int64)
    for row, answer in enumerate(answers):
        codes[row, : len(answer)] = [known.setdefault(element, len(known) + 1) for element in answer]
    return codes


def _discrepancies(kernel: FloatArray, labels: BoolArray) -> FloatArray:
    """Unbiased MMD² (Gretton et al. 2012, equation 3) for each row of arm labels."""
    ours, theirs = labels.astype(np.float64), 1.0 - labels
    m, n = ours[0].sum(), theirs[0].sum()
    products = ours @ kernel
    within_ours = np.einsum("ij,ij->i", products, ours) - m
    across = np.einsum("ij,ij->i", products, theirs)
    within_theirs = np.einsum("ij,ij->i", theirs @ kernel, theirs) - n
    return np.asarray(within_ours / (m * (m - 1)) + within_theirs / (n * (n - 1)) - 2.0 * across / (m * n))

"""Macro-F1 of paired answers: no mean over items, so that items are swapped and drawn instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy

from qualab.errors import InsufficientData
from qualab.stats.checks import BoolArray, FloatArray, IntArray, check_confidence_level
from qualab.stats.distributions import normal_cdf, normal_quantile
from qualab.stats.interval import ConfidenceInterval
from qualab.stats.mean import Labels, cluster_codes, cluster_sums
from qualab.stats.resampling import (
    ResamplingResult,
    distinct_rows,
    in_blocks,
    lattice,
    patterns,
    resampled,
    signed_sums,
)

_TIE = 1e-12
_CELLS = 1 << 17
"""Counts of a block: there are to be blocks enough for two threads."""
_HEIGHT = 16
"""Resamples of a product: so few that the linear-algebra library starts no threads of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledAnswers:
    """The labels that are right and those that each arm gave, item by item, of one task."""

    truth: Sequence[object]
    baseline: Sequence[object]
    candidate: Sequence[object]
    cluster: Labels | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapResult:
    """A difference of scores, its bootstrap standard error and interval."""

    difference: float
    standard_error: float
    interval: ConfidenceInterval


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedAnswers:
    """Both arms' answers as items × features, and a score that is a function of the features' totals."""

    baseline: FloatArray
    candidate: FloatArray
    score: Callable[[FloatArray], FloatArray]
    """From rows of totals over items to one score a row."""
    task: IntArray
    """Number of the task that each item belongs to: resamples keep the tasks' numbers of items."""
    cluster: IntArray | None = None
    """Numbers of items that are swapped and drawn together."""

    @classmethod
    def of(cls, tasks: Sequence[LabelledAnswers]) -> JoinedAnswers:
        """Join the tasks' answers, each with columns of its own. The score is their size-weighted mean macro-F1."""
        parts = [_features(task) for task in tasks]
        sizes, ends = [len(task.truth) for task in tasks], np.cumsum([before.shape[1] for before, _ in parts])

        def score(totals: FloatArray) -> FloatArray:
            scores = [_macro_f1(part) for part in np.split(totals, ends[:-1], axis=1)]
            return np.asarray(np.average(scores, axis=0, weights=sizes), dtype=np.float64)

        return cls(
            baseline=scipy.linalg.block_diag(*(before for before, _ in parts)),
            candidate=scipy.linalg.block_diag(*(after for _, after in parts)),
            score=score,
            task=np.repeat(np.arange(len(parts)), sizes),
            cluster=None if all(task.cluster is None for task in tasks) else _joined_clusters(tasks),
        )

    @property
    def scores(self) -> tuple[float, float]:
        before, after = (self.score(features.sum(axis=0)[None, :]) for features in (self.baseline, self.candidate))
        return float(before[0]), float(after[0])

    def swap_test(self, *, n_resamples: int, rng: np.random.Generator) -> ResamplingResult:
        """Test the difference by swapping answers (Noreen 1989), all ways where at most 16 items or clusters differ."""
        changes = [lattice(column) for column in (self.candidate - self.baseline).T]
        steps = np.column_stack([change.steps for change in changes])
        if self.cluster is not None:
            steps = cluster_sums(steps, self.cluster)
        units = np.array([change.unit for change in changes])
        middle = (self.baseline.sum(axis=0) + self.candidate.sum(axis=0)) / 2.0

        def gap(sums: FloatArray) -> FloatArray:
            half = sums * units / 2.0
            return self.score(middle + half) - self.score(middle - half)

        observed, groups = float(gap(steps.sum(axis=0)[None, :])[0]), patterns(steps)
        gaps = np.abs(gap(signed_sums(groups, n_resamples=n_resamples, rng=rng)))
        if not groups.sizes.size:
            return ResamplingResult(difference=observed, pvalue=1.0, pvalue_whole=1.0, is_exact=True, n_resamples=0)
        weights = np.full(gaps.size, 1.0 / gaps.size) if groups.is_enumerable else None
        return resampled(observed, gaps, abs(observed), _TIE, weights)

    def bootstraps(
        self, *, confidence_levels: Sequence[float], n_resamples: int, rng: np.random.Generator
    ) -> tuple[BootstrapResult, ...]:
        """Bootstrap candidate − baseline (BCa), one result a confidence level, all from the same resamples.

        An item (or cluster) is drawn with both its answers, within its task. InsufficientData where no resample differs
        from another: an interval of no width would claim certainty.

        Source: Efron (1987), equation 2.3, ties with the observed value counting half.
        """
        for level in confidence_levels:
            check_confidence_level(level)
        rows, task, n_features = np.hstack([self.baseline, self.candidate]), self.task, self.baseline.shape[1]
        if self.cluster is not None:
            codes = cluster_codes(task * len(rows) + self.cluster, len(rows))
            rows, task = cluster_sums(rows, codes), task[np.unique(codes, return_index=True)[1]]
        generator = np.random.Generator(np.random.PCG64(20_240_301))
        keys = task + 1j * (rows @ generator.integers(1, 2**31, size=rows.shape[1]).astype(np.float64))
        distinct, sizes = distinct_rows(np.column_stack([task, rows]), keys)
        bounds = [*np.unique(distinct[:, 0], return_index=True)[1].tolist(), len(distinct)]
        rows = distinct[:, 1:]
        total = np.asarray(sizes @ rows, dtype=np.float64)

        def gap(totals: FloatArray) -> FloatArray:
            return self.score(totals[:, n_features:]) - self.score(totals[:, :n_features])

        def draw(rng: np.random.Generator, n_draws: int) -> FloatArray:
            height = -(-n_draws // _HEIGHT) * _HEIGHT
            counts = np.empty((height, len(rows)))
            for start, end in pairwise(bounds):
                n_items = int(sizes[start:end].sum())
                counts[:, start:end] = rng.multinomial(n_items, sizes[start:end] / n_items, size=height)
            totals = counts.reshape(-1, _HEIGHT, len(rows)) @ rows
            return gap(totals.reshape(height, -1)[:n_draws])

        block = _HEIGHT * max(1, _CELLS // (_HEIGHT * len(rows)))
        observed = float(gap(total[None, :])[0])
        values = np.sort(in_blocks(draw, n_resamples=n_resamples, block=block, rng=rng))
        if values[-1] - values[0] <= _TIE:
            raise InsufficientData(
                "No resample differs from another, so that there is no spread to estimate",
                hint="Count the items that changed instead: none of n bounds the share of changes.",
            )
        ties = np.count_nonzero(np.abs(values - observed) <= _TIE)
        below = np.count_nonzero(values < observed - _TIE) + 0.5 * ties
        bias = normal_quantile(min(1.0 - 0.5 / values.size, max(0.5 / values.size, below / values.size)))
        without = gap(total - rows)  # one unit of each distinct row
        influence = np.average(without, weights=sizes) - without
        cubes, squares = float(sizes @ influence**3), float(sizes @ influence**2)
        acceleration = cubes / (6.0 * squares**1.5) if squares > 0.0 else 0.0

        def result(confidence_level: float) -> BootstrapResult:
            tail = (1.0 - confidence_level) / 2.0
            shifted = [bias + normal_quantile(level) for level in (tail, 1.0 - tail)]
            low, high = np.quantile(values, [normal_cdf(bias + z / (1.0 - acceleration * z)) for z in shifted])
            interval = ConfidenceInterval(low=float(low), high=float(high), confidence_level=confidence_level)
            return BootstrapResult(difference=observed, standard_error=float(values.std(ddof=1)), interval=interval)

        return tuple(map(result, confidence_levels))


def _joined_clusters(tasks: Sequence[LabelledAnswers]) -> IntArray:  # numbered over all tasks
    parts, start = [], 0
    for task in tasks:
        parts.append(cluster_codes(task.cluster, len(task.truth)) + start)
        start = int(parts[-1].max()) + 1
    return np.concatenate(parts)


def _features(answers: LabelledAnswers) -> tuple[FloatArray, FloatArray]:
    # for each item of either arm indicators a class: rightly answered, answered, true
    n_items = len(answers.truth)
    codes = cluster_codes([*answers.truth, *answers.baseline, *answers.candidate], 3 * n_items)
    one_hot = np.asarray(codes[:, None] == np.arange(int(codes.max()) + 1), dtype=np.float64)
    truth, baseline, candidate = np.split(one_hot, 3)
    return np.hstack([truth * baseline, baseline, truth]), np.hstack([truth * candidate, candidate, truth])


def _macro_f1(totals: FloatArray) -> FloatArray:
    # scikit-learn's: the mean over classes of 2 tp / (answered + true), without those that occur in neither
    right, answered, true = np.split(totals, 3, axis=1)
    occurring = answered + true
    f1 = np.divide(2.0 * right, occurring, out=np.zeros_like(right), where=occurring > 0.0)
    return np.asarray(f1.sum(axis=1) / np.count_nonzero(occurring > 0.0, axis=1), dtype=np.float64)


def bound_macro_f1(tasks: Sequence[LabelledAnswers], *, confidence_level: float = 0.95) -> ConfidenceInterval:
    """Bound the difference of the tasks' size-weighted mean macro-F1 by the numbers of changed answers.

    A changed answer moves the macro-F1 of K classes by at most 3 / (K n), n the items of the rarest. Items of one
    cluster count as one: a cluster with a change may have changed as a whole. InsufficientData where an answer lies
    outside its task's true labels: a new class lowers macro-F1 at once, however few the answers.
    """
    steepest, not_better, not_worse = 0.0, [], []
    for task in tasks:
        true = Counter(task.truth)
        if not true.keys() >= {*task.baseline, *task.candidate}:
            raise InsufficientData(
                "An answer lies outside the true labels, so that changes do not bound macro-F1",
                hint="Only answers among the labels that occur can be bounded by counting.",
            )
        steepest = max(steepest, 3.0 * len(task.truth) / (len(true) * min(true.values())))
        for truth, before, after in zip(task.truth, task.baseline, task.candidate, strict=True):
            not_better.append(before != after != truth)
            not_worse.append(truth != before != after)
    codes = _joined_clusters(tasks)
    sizes = np.bincount(codes)
    tail = (1.0 - check_confidence_level(confidence_level)) / 2.0

    def limit(changed: BoolArray) -> float:
        n_units = np.unique(codes[changed]).size
        n_others = sizes.size - n_units
        share = float(scipy.special.betaincinv(n_units + 1, n_others, 1.0 - tail)) if n_others > 0 else 1.0
        return min(1.0, steepest * min(1.0, share * float(sizes.max()) * sizes.size / codes.size))

    low, high = (limit(np.array(changed, dtype=np.bool_)) for changed in (not_better, not_worse))
    return ConfidenceInterval(low=-low, high=high, confidence_level=confidence_level)

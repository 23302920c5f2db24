"""Macro-F1 of paired answers: a score that is no mean over items, so that items are swapped and drawn instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.bootstrap import BootstrapResult, paired_bootstraps
from qualab.stats.checks import BoolArray, FloatArray, IntArray, check_confidence_level
from qualab.stats.interval import ConfidenceInterval
from qualab.stats.mean import Labels, cluster_codes
from qualab.stats.resampling import ResamplingResult, swap_test


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledAnswers:
    """The labels that are right and those that each arm gave, item by item, of one task.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: the three are not equally long.
    """

    truth: Sequence[object]
    baseline: Sequence[object]
    candidate: Sequence[object]
    cluster: Labels | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.truth), len(self.baseline), len(self.candidate)}
        lengths |= set() if self.cluster is None else {len(self.cluster)}
        if len(lengths) != 1:
            raise InvalidValue("The arms are not paired", hint="Give one right label and one answer an item and arm.")
        if lengths == {0}:
            raise InsufficientData("There is no item to compare", hint="Compare at least one item.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedAnswers:
    """Tasks side by side, each with columns of its own: what comparison and bootstrap of the same answers share."""

    baseline: FloatArray
    candidate: FloatArray
    task: IntArray
    """Which task each item belongs to."""
    cluster: IntArray | None
    widths: tuple[int, ...]
    weights: Sequence[float] | None

    @classmethod
    def of(cls, tasks: Sequence[LabelledAnswers], weights: Sequence[float] | None) -> JoinedAnswers:
        """Join the tasks' answers. The score is the mean of the tasks' macro-F1, plain or weighted.

        Raises:
            InsufficientData: there is no task.
            InvalidValue: there is not one positive weight a task.
        """
        if not tasks:
            raise InsufficientData("There is no task to compare", hint="Give at least one task.")
        if weights is not None and (len(weights) != len(tasks) or min(weights) <= 0.0):
            raise InvalidValue("Each task needs a positive weight", hint="Give the tasks' numbers of items.")
        parts = [_features(task) for task in tasks]
        return cls(
            baseline=_blocks([before for before, _ in parts]),
            candidate=_blocks([after for _, after in parts]),
            task=np.repeat(np.arange(len(parts)), [len(before) for before, _ in parts]),
            cluster=None if all(task.cluster is None for task in tasks) else joined_clusters(tasks),
            widths=tuple(before.shape[1] for before, _ in parts),
            weights=weights,
        )

    def statistic(self, totals: FloatArray) -> FloatArray:
        """From rows of totals over items to the mean of the tasks' macro-F1."""
        parts = np.split(totals, np.cumsum(self.widths)[:-1], axis=1)
        return np.asarray(
            np.average([_macro_f1(part) for part in parts], axis=0, weights=self.weights), dtype=np.float64
        )

    @property
    def scores(self) -> tuple[float, float]:
        """Macro-F1 of the baseline and of the candidate."""
        before, after = (self.statistic(features.sum(axis=0)[None, :]) for features in (self.baseline, self.candidate))
        return float(before[0]), float(after[0])

    def swap_test(self, *, n_resamples: int, rng: np.random.Generator) -> ResamplingResult:
        """Test the difference by swapping an item's (or cluster's) two answers, two-sided (Noreen 1989)."""
        return swap_test(
            self.baseline, self.candidate, self.statistic, cluster=self.cluster, n_resamples=n_resamples, rng=rng
        )

    def bootstraps(
        self, *, confidence_levels: Sequence[float], n_resamples: int, rng: np.random.Generator
    ) -> tuple[BootstrapResult, ...]:
        """Bootstrap the difference, items (or clusters) drawn within each task: one result a confidence level.

        Raises:
            InsufficientData: no answer changed.
        """
        return paired_bootstraps(
            self.baseline,
            self.candidate,
            self.statistic,
            cluster=self.cluster,
            strata=self.task,
            confidence_levels=confidence_levels,
            n_resamples=n_resamples,
            rng=rng,
        )


def joined_clusters(tasks: Sequence[LabelledAnswers]) -> IntArray:
    """Each item's cluster, numbered over all tasks; an item of a task without clusters is its own."""
    parts, start = [], 0
    for task in tasks:
        codes = cluster_codes(task.cluster, len(task.truth))
        parts.append(codes + start)
        start += int(codes.max()) + 1
    return np.concatenate(parts)


def _blocks(parts: list[FloatArray]) -> FloatArray:
    """The parts along the diagonal, zeros elsewhere."""
    whole = np.zeros((sum(len(part) for part in parts), sum(part.shape[1] for part in parts)))
    row = column = 0
    for part in parts:
        whole[row : row + len(part), column : column + part.shape[1]] = part
        row, column = row + len(part), column + part.shape[1]
    return whole


def _features(answers: LabelledAnswers) -> tuple[FloatArray, FloatArray]:
    """For each item of either arm indicators a class: rightly answered, answered, true."""
    n_items = len(answers.truth)
    codes = cluster_codes([*answers.truth, *answers.baseline, *answers.candidate], 3 * n_items).reshape(3, n_items)
    truth, baseline, candidate = (_one_hot(row, int(codes.max()) + 1) for row in codes)
    return np.hstack([truth * baseline, baseline, truth]), np.hstack([truth * candidate, candidate, truth])


def _one_hot(codes: IntArray, n_classes: int) -> FloatArray:
    return np.asarray(codes[:, None] == np.arange(n_classes), dtype=np.float64)


def _macro_f1(totals: FloatArray) -> FloatArray:
    """From rows of totals (rightly answered, answered, true; a class each) to macro-F1, scikit-learn's numbers.

    The mean over classes of 2 tp / (answered + true); a class that neither occurs nor is answered is left out.
    """
    right, answered, true = np.split(totals, 3, axis=1)
    occurring = answered + true
    f1 = np.divide(2.0 * right, occurring, out=np.zeros_like(right), where=occurring > 0.0)
    n_classes: npt.NDArray[np.int64] = np.count_nonzero(occurring > 0.0, axis=1)
    return np.asarray(f1.sum(axis=1) / n_classes, dtype=np.float64)


def bound_macro_f1(tasks: Sequence[LabelledAnswers], *, confidence_level: float = 0.95) -> ConfidenceInterval:
    """Bound the difference of the tasks' size-weighted mean macro-F1 by the numbers of changed answers.

    Items of one cluster count as one: a cluster with a change may have changed as a whole.

    Raises:
        InsufficientData: there is no task, or an answer lies outside its task's true labels: a new class lowers
            macro-F1 at once, however few the answers.
        InvalidValue: the confidence level is not between 0 and 1.
    """
    if not tasks:
        raise InsufficientData("There is no task to compare", hint="Give at least one task.")
    steepest = max(_steepness(task) for task in tasks)
    worse, better = (np.concatenate(parts) for parts in zip(*map(_changes, tasks), strict=True))
    codes = joined_clusters(tasks)
    sizes = np.bincount(codes)
    tail = (1.0 - check_confidence_level(confidence_level)) / 2.0

    def limit(changed: BoolArray) -> float:
        n_units = np.unique(codes[changed]).size
        n_others = sizes.size - n_units
        share = float(scipy.special.betaincinv(n_units + 1, n_others, 1.0 - tail)) if n_others > 0 else 1.0
        return min(1.0, steepest * min(1.0, share * float(sizes.max()) * sizes.size / codes.size))

    return ConfidenceInterval(low=-limit(worse), high=limit(better), confidence_level=confidence_level)


def _steepness(task: LabelledAnswers) -> float:
    """3 / (K min tau)."""
    true = Counter(task.truth)
    if not true.keys() >= {*task.baseline, *task.candidate}:
        raise InsufficientData(
            "An answer lies outside the true labels, so that changes do not bound macro-F1",
            hint="Only answers among the labels that occur can be bounded by counting.",
        )
    return 3.0 * len(task.truth) / (len(true) * min(true.values()))


def _changes(task: LabelledAnswers) -> tuple[BoolArray, BoolArray]:
    """Which answers changed without getting better, and which without getting worse."""
    rows = zip(task.truth, task.baseline, task.candidate, strict=True)
    changes = [(before != after != truth, truth != before != after) for truth, before, after in rows]
    not_better, not_worse = np.array(changes, dtype=np.bool_).T
    return not_better, not_worse

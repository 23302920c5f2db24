"""A bound on a difference in macro-F1 from the number of changed answers, where too few changed for a bootstrap.

Let K classes be true with shares tau, and let answers stay among these classes. F1 of a class is 2 tp / (a + t), with
a the answers and t the truths. An answer that turned from wrong to right lowers no class. Of the others, a right answer
that turned wrong takes a true positive from one class (at most 2 / t of its F1) and adds a wrong answer to another (at
most 1 / t), and a wrong answer that became another wrong one adds a wrong answer (at most 1 / t): with a + t >= t and
tp <= (a + t) / 2, 2 tp / (a + t) falls by at most (2 u + v) / t when u true positives go and v wrong answers come. So
if a share psi of all answers got worse or moved between wrong classes, macro-F1 falls by at most
3 psi / (K min tau). The same holds with the arms exchanged for the rise.

psi has the exact upper limit of Clopper & Pearson (1934), which also holds where items differ in their chance of change
(Hoeffding 1956).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from qualab.errors import InsufficientData
from qualab.stats.checks import BoolArray, check_confidence_level
from qualab.stats.f1 import LabelledAnswers, joined_clusters
from qualab.stats.interval import ConfidenceInterval


@dataclass(frozen=True, slots=True, kw_only=True)
class F1Bound:
    """What the numbers of changed answers say of a difference in macro-F1. Conservative."""

    n_changed: int
    """Answers that differ."""
    n_worse: int
    """Clusters (or items) with an answer that turned wrong, or from one wrong label to another."""
    n_better: int
    """The same from the candidate to the baseline."""
    interval: ConfidenceInterval
    """The classes' shares taken as those of these items."""


def bound_macro_f1(tasks: Sequence[LabelledAnswers], *, confidence_level: float = 0.95) -> F1Bound:
    """An interval for the size-weighted mean of the tasks' macro-F1, candidate − baseline.

    Items of one cluster count as one: a cluster with a change may have changed as a whole.

    Raises:
        InsufficientData: there is no task, or an answer lies outside its task's true labels: a new class lowers
            macro-F1 at once, however few the answers.
        InvalidValue: the confidence level is not between 0 and 1.
    """
    if not tasks:
        raise InsufficientData("There is no task to compare", hint="Give at least one task.")
    steepest = max(_steepness(task) for task in tasks)
    changed, worse, better = (np.concatenate(parts) for parts in zip(*map(_changes, tasks), strict=True))
    codes = joined_clusters(tasks)
    sizes = np.bincount(codes)
    tail = (1.0 - check_confidence_level(confidence_level)) / 2.0

    def limit(units: int) -> float:
        share = _upper_share(units, sizes.size, tail) * float(sizes.max()) * sizes.size / codes.size
        return min(1.0, steepest * min(1.0, share))

    n_worse, n_better = (int(np.unique(codes[some]).size) for some in (worse, better))
    return F1Bound(
        n_changed=int(changed.sum()),
        n_worse=n_worse,
        n_better=n_better,
        interval=ConfidenceInterval(low=-limit(n_worse), high=limit(n_better), confidence_level=confidence_level),
    )


def _steepness(task: LabelledAnswers) -> float:
    """3 / (K min tau)."""
    true = Counter(task.truth)
    if not true.keys() >= {*task.baseline, *task.candidate}:
        raise InsufficientData(
            "An answer lies outside the true labels, so that changes do not bound macro-F1",
            hint="Only answers among the labels that occur can be bounded by counting.",
        )
    return 3.0 * len(task.truth) / (len(true) * min(true.values()))


def _changes(task: LabelledAnswers) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Which answers differ, which of them got no better, which no worse."""
    rows = zip(task.truth, task.baseline, task.candidate, strict=True)
    found = [(before != after, after == truth, before == truth) for truth, before, after in rows]
    changed, now_right, was_right = np.array(found, dtype=np.bool_).T
    return changed, changed & ~now_right, changed & ~was_right


def _upper_share(count: int, n: int, tail: float) -> float:
    return 1.0 if count >= n else float(scipy.special.betaincinv(count + 1, n - count, 1.0 - tail))

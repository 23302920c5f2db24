"""Each kind of sample to its own analysis."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qualab.analysis.bounds import Bounds
from qualab.analysis.labels import label_bounds, label_evidence, label_sides
from qualab.analysis.means import mean_bounds, mean_evidence, mean_sides
from qualab.analysis.samples import LabelSample, MeanSample, Sample, Streams
from qualab.model.comparison import Evidence, GlobalTest
from qualab.model.names import MetricKind
from qualab.model.plan import DecisionRule, MetricSpec
from qualab.stats.checks import FloatArray
from qualab.stats.resampling import global_sign_flip, holm, max_t


def sample_evidence(
    name: str,
    complete: Sample,
    rule: DecisionRule,
    streams: Streams,
    *,
    higher_is_better: bool = True,
    level: float | None = None,
) -> Evidence:
    """Everything that a metric's complete pairs say. `level`: of the tests at the margin, where it is not alpha."""
    rng = streams.rng(f"test {name}")
    if isinstance(complete, MeanSample):
        return mean_evidence(complete, rule, rng, higher_is_better=higher_is_better, level=level)
    bounds_rng = streams.rng(f"bounds {name}")
    return label_evidence(complete, rule, rng, bounds_rng, higher_is_better=higher_is_better, level=level)


def sample_bounds(
    sample: Sample, rule: DecisionRule, rng: np.random.Generator, *, higher_is_better: bool = True
) -> Bounds:
    """What a sample without a missing score says of the size of the difference."""
    if isinstance(sample, LabelSample):
        return label_bounds(sample, rule, rng)
    return mean_bounds(sample, rule, higher_is_better=higher_is_better)


def sample_sides(complete: Sample, rng: np.random.Generator) -> tuple[float, float]:
    """One-sided p-values of a loss and of a gain in the score, right far out in the tails."""
    return label_sides(complete, rng) if isinstance(complete, LabelSample) else mean_sides(complete)


N_RESAMPLES = 9_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """A metric with its complete pairs."""

    spec: MetricSpec
    sample: Sample
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The different metrics of a comparison, adjusted together."""

    evidence: dict[str, Evidence]
    """By metric id."""
    n_max_t: int
    n_resamples: int


def twins(samples: Mapping[str, tuple[MetricSpec, Sample]]) -> dict[str, str]:
    """For each metric that has the same scores on the same items as others, the one that stands for them.

    A primary stands before others, a task's own metric before a group's, then the earlier row.
    """
    groups: dict[Hashable, list[MetricSpec]] = {}
    for spec, sample in samples.values():
        groups.setdefault((type(sample), sample.identity), []).append(spec)
    found = {}
    for same in groups.values():
        first = min(same, key=lambda spec: (not spec.is_primary, spec.kind is MetricKind.GROUP_MEAN))
        found.update({spec.id: first.id for spec in same})
    return found


def adjusted(tested: Sequence[Tested], n_units: int, rng: np.random.Generator) -> Family:
    """The evidence with the family's p-values: max-T, what it cannot carry by Holm, alpha shared by their numbers.

    A block whose every hypothesis falls passes its share on to the other (Bretz et al. 2009).
    """
    means = [one for one in tested if isinstance(one.sample, MeanSample)]
    others = [one for one in tested if not isinstance(one.sample, MeanSample)]
    table, _ = difference_table(means, n_units)
    found = max_t(table, n_resamples=N_RESAMPLES, rng=rng) if len(means) > 1 else None
    # alone a metric needs no adjustment: its p is its own test's
    first = found.pvalues if found else np.array([one.evidence.pvalue for one in means])
    second = holm([one.evidence.pvalue for one in others])
    pvalues = np.concatenate(_shared(first, second))
    checks = holm([one.evidence.pvalue for one in (*means, *others)])
    evidence = {
        one.spec.id: replace(one.evidence, pvalue_adjusted=max(float(p), one.evidence.pvalue), pvalue_holm=float(check))
        for one, p, check in zip((*means, *others), pvalues, checks, strict=True)
    }
    return Family(evidence=evidence, n_max_t=len(means), n_resamples=found.n_resamples if found else 0)


def _shared(first: FloatArray, second: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Adjusted p-values of two blocks that share alpha by their sizes."""
    total = first.size + second.size

    def weighted(block: FloatArray) -> FloatArray:
        return np.asarray(np.minimum(1.0, block * (total / max(1, block.size))))

    def passed_on(block: FloatArray, other: FloatArray) -> FloatArray:
        return np.asarray(np.minimum(weighted(block), np.maximum(block, weighted(other).max(initial=0.0))))

    return passed_on(first, second), passed_on(second, first)


def difference_table(means: Sequence[Tested], n_units: int) -> tuple[FloatArray, list[int]]:
    """Sums of differences, units × metrics, and each metric's number of scores."""
    samples = [one.sample for one in means if isinstance(one.sample, MeanSample)]
    columns = [
        np.bincount(sample.unit, weights=sample.differences, minlength=n_units).astype(np.float64) for sample in samples
    ]
    table = np.column_stack(columns) if columns else np.zeros((n_units, 0))
    return table, [sample.n_items for sample in samples]


def global_test(tested: Sequence[Tested], n_units: int, rng: np.random.Generator) -> GlobalTest | None:
    """Whether the candidate is worse, or better, on average over the metrics that are means."""
    means = [one for one in tested if isinstance(one.sample, MeanSample)]
    if not means:
        return None
    table, sizes = difference_table(means, n_units)
    signs = np.array([1.0 if one.spec.higher_is_better else -1.0 for one in means])
    found = global_sign_flip(table * signs, n_items=sizes, n_resamples=N_RESAMPLES, rng=rng)
    return GlobalTest(
        n_metrics=len(means), difference=found.difference, pvalue=found.pvalue, n_resamples=found.n_resamples
    )

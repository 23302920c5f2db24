"""Each kind of sample to its own analysis."""

from __future__ import annotations

import numpy as np

from qualab.app.analysis.bounds import Bounds
from qualab.app.analysis.labels import label_bounds, label_evidence, label_sides
from qualab.app.analysis.means import mean_bounds, mean_evidence, mean_sides
from qualab.app.analysis.samples import LabelSample, MeanSample, Sample
from qualab.app.analysis.streams import Streams
from qualab.domain.comparison import Evidence
from qualab.domain.plan import DecisionRule


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

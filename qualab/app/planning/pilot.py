"""What a stored comparison shows of how much two arms' answers differ, and of how fast they come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from qualab.app.analysis.samples import MeanSample, members_of, sample_of
from qualab.app.analysis.scores import layout_of, read_scores
from qualab.domain.comparison import Analysis, Comparison
from qualab.domain.names import ArmName, MissingPolicy
from qualab.errors import InsufficientData, InvalidValue
from qualab.ports import Store
from qualab.stats.checks import FloatArray, IntArray
from qualab.stats.mean import mean_difference
from qualab.stats.noise import variance_components


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotMetric:
    """One metric's complete pairs in a pilot."""

    n_scores: int
    n_changed: int
    discordance: float
    """Mean square of a pair's difference: the share of changed ones where scores are 0 or 1."""
    design_effect: float | None
    """Of items in clusters, repeats averaged; at least 1. None where fewer than two clusters changed."""
    noise: float | None
    """Variance of the difference within an item, over its repeats; None without repeats."""
    floor: float | None
    """Share of scores that differ between runs of the baseline alone; None without a noise floor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """What planning takes from a stored comparison."""

    id: str
    metrics: Mapping[str, PilotMetric]
    """Metrics that are means, by id."""
    rate: float | None
    """Requests a second, both arms together, without the time in which nothing was asked."""


def pilot_of(store: Store, comparison_id: str) -> Pilot:
    """Reads stored scores and times. Raises ComparisonNotFound, and InvalidValue where nothing is scored yet."""
    comparison = store.get(comparison_id)
    items = list(store.items(comparison.id))
    scores, layout = read_scores(store.scores(comparison.id), items), layout_of(comparison.plan, items)
    if not any(scores.answered.values()):
        raise InvalidValue(
            f"Comparison {comparison.id} has no scores to plan from",
            hint=f"Finish it first: qualab resume {comparison.id}",
        )
    found, floors = {}, _floors(store.analysis(comparison.id))
    for metric in comparison.plan.metrics:
        sample = sample_of(members_of(metric, comparison.plan), scores, layout, comparison.plan)
        if isinstance(sample, MeanSample):
            complete = sample.under(MissingPolicy.COMPLETE, right=1.0)
            if complete.n_items:
                found[metric.id] = _metric(complete, comparison.plan.sampling.repeats, floors.get(metric.id))
    return Pilot(id=comparison.id, metrics=found, rate=_rate(store, comparison))


def _floors(analysis: Analysis | None) -> dict[str, float | None]:
    """Flip rates between runs of the baseline, by metric."""
    noise = analysis.noise if analysis else None
    return {one.metric: one.flip_rate_baseline for one in noise.metrics} if noise else {}


def _metric(sample: MeanSample, repeats: int, floor: float | None) -> PilotMetric:
    differences, items = sample.differences, sample.number // repeats
    return PilotMetric(
        n_scores=sample.n_items,
        n_changed=int(np.count_nonzero(differences)),
        discordance=float(np.mean(differences**2)),
        design_effect=_design_effect(differences, items, sample.unit),
        noise=_noise(differences, items, repeats),
        floor=floor,
    )


def _design_effect(differences: FloatArray, items: IntArray, units: IntArray) -> float | None:
    """Of the items' mean differences."""
    _, first, codes = np.unique(items, return_index=True, return_inverse=True)
    means = np.bincount(codes, weights=differences) / np.bincount(codes)
    clusters = units[first]
    if np.unique(clusters[means != 0.0]).size < 2:
        return None
    try:
        return max(1.0, mean_difference(means, cluster=clusters).design_effect)
    except InsufficientData:
        return None


def _noise(differences: FloatArray, items: IntArray, repeats: int) -> float | None:
    """From the items all of whose repeats are complete."""
    _, codes, counts = np.unique(items, return_inverse=True, return_counts=True)
    whole = differences[counts[codes] == repeats]
    if repeats < 2 or whole.size < 2 * repeats:
        return None
    return min(variance_components(whole.reshape(-1, repeats)).variance_within, float(np.mean(differences**2)))


def _rate(store: Store, comparison: Comparison) -> float | None:
    """Over the time from the first request to the last, without pauses longer than an attempt may take."""
    answers = (answer for arm in ArmName for answer in store.answers(comparison.id, arm=arm))
    times = sorted(answer.reply.sent_at.timestamp() for answer in answers)
    longest = comparison.plan.policy.timeout_s
    busy_s = sum(gap for before, after in pairwise(times) if (gap := after - before) <= longest)
    return (len(times) - 1) / busy_s if busy_s > 0.0 else None

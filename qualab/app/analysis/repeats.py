"""What repeats of one item show: how noisy an item is, and whether the arms draw their texts from one distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qualab.app.analysis.samples import members_of
from qualab.app.analysis.scores import Key, Layout, Scores
from qualab.app.analysis.streams import Streams
from qualab.domain.comparison import RepeatNoise, RepeatSummary, SampledTexts
from qualab.domain.names import ArmName, MetricKind
from qualab.domain.plan import MetricSpec, Plan
from qualab.stats.checks import FloatArray
from qualab.stats.mmd import mmd_test
from qualab.stats.noise import flip_rate, variance_components

N_RESAMPLES = 999


def repeat_summary(
    plan: Plan, scores: Scores, layout: Layout, texts: Mapping[ArmName, Mapping[Key, str]], streams: Streams
) -> RepeatSummary | None:
    """None where every item is asked once."""
    if plan.sampling.repeats == 1:
        return None
    rows = [
        _noise_of(spec, arm, _table(spec, arm, plan, scores, layout), plan.sampling.repeats)
        for spec in plan.metrics
        if _is_binary(spec, plan)
        for arm in ArmName
    ]
    baseline, candidate = texts[ArmName.BASELINE], texts[ArmName.CANDIDATE]
    return RepeatSummary(
        metrics=tuple(rows), sampled=sampled_texts(baseline, candidate, plan, streams.rng("mmd candidate"))
    )


def _is_binary(spec: MetricSpec, plan: Plan) -> bool:
    kinds = {member.kind for member in members_of(spec, plan)}
    return kinds == {MetricKind.BINARY_MEAN}


def _table(spec: MetricSpec, arm: ArmName, plan: Plan, scores: Scores, layout: Layout) -> FloatArray:
    """Items with all their repeats × repeats."""
    k = plan.sampling.repeats
    rows: list[list[float]] = []
    for member in members_of(spec, plan):
        column, keys = scores.column(member.task, member.key, arm), layout.tasks[member.task].keys
        items = [keys[start : start + k] for start in range(0, len(keys), k)]
        rows += [[float(column[key]) for key in item] for item in items if all(key in column for key in item)]
    return np.array(rows, dtype=np.float64).reshape(len(rows), k)


def _noise_of(spec: MetricSpec, arm: ArmName, table: FloatArray, repeats: int) -> RepeatNoise:
    n_items = len(table)
    is_binary = bool(np.all((table == 0.0) | (table == 1.0)))
    found = variance_components(table) if n_items > 1 else None
    return RepeatNoise(
        metric=spec.id,
        arm=arm,
        n_items=n_items,
        n_repeats=repeats,
        flip_rate=flip_rate(table) if n_items and is_binary else None,
        variance_between=found.variance_between if found else None,
        variance_within=found.variance_within if found else None,
        icc=found.icc if found else None,
        icc_mean=found.icc_mean if found else None,
    )


def sampled_texts(
    one: Mapping[Key, str], other: Mapping[Key, str], plan: Plan, rng: np.random.Generator
) -> SampledTexts | None:
    """Two runs' texts over the prompts that have all their repeats in both; None where there is none, or one repeat."""
    repeats = range(plan.sampling.repeats)
    positions = sorted({position for position, _ in one.keys() & other.keys()})
    whole = [p for p in positions if all((p, r) in texts for r in repeats for texts in (one, other))]
    if len(repeats) == 1 or not whole:
        return None
    ours, theirs = (_samples(texts, whole, repeats) for texts in (one, other))
    found = mmd_test(ours, theirs, n_resamples=N_RESAMPLES, rng=rng)
    return SampledTexts(
        statistic=found.statistic, pvalue=found.pvalue, n_prompts=found.n_prompts, n_resamples=found.n_resamples
    )


def _samples(texts: Mapping[Key, str], positions: Sequence[int], repeats: range) -> list[list[str]]:
    return [[texts[position, repeat] for repeat in repeats] for position in positions]

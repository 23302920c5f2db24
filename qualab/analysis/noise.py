"""The noise floor: how much runs of the baseline differ by themselves, and whether the candidate differs more.

The first of its runs makes the triples of the excess-discordance test and the pairs of texts; flip rates take all runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from qualab.analysis.samples import Column, Key, Layout, Scores, members_of
from qualab.model.comparison import (
    MetricNoise,
    NoiseFloor,
    OddOneOut,
    RepeatNoise,
    RepeatSummary,
    TextsCompared,
)
from qualab.model.items import Item
from qualab.model.names import ArmName, MetricKind, RequestKind
from qualab.model.plan import MetricSpec, NoisePlan, Plan
from qualab.model.ports import Stored
from qualab.model.reason import Reason
from qualab.stats.checks import FloatArray
from qualab.stats.noise import disagreement, first_difference, flip_rate, odd_ones_out, variance_components

Texts = Mapping[Key, str]
"""Generated texts by position and repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRun:
    """One further run of the baseline."""

    scores: Scores
    texts: Texts
    n_answered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseData:
    """Everything that the noise floor is made from."""

    plan: Plan
    noise: NoisePlan
    layout: Layout
    scores: Scores
    """Of both arms."""
    texts: Mapping[ArmName, Texts]
    runs: Sequence[NoiseRun]
    n_asked: int


def noise_floor(data: NoiseData) -> NoiseFloor:
    """The baseline against itself, beside the candidate."""
    baseline, candidate, again = data.texts[ArmName.BASELINE], data.texts[ArmName.CANDIDATE], data.runs[0].texts
    shared = sorted(baseline.keys() & candidate.keys() & again.keys())
    return NoiseFloor(
        n_runs=data.noise.runs,
        concurrency=data.noise.concurrency,
        n_asked=data.n_asked,
        n_answered=sum(run.n_answered for run in data.runs),
        baseline=_compared(baseline, again, shared),
        candidate=_compared(baseline, candidate, shared),
        odd_texts=_odd(baseline, again, candidate, shared),
        metrics=tuple(_of_metric(spec, data) for spec in data.plan.metrics if _generates(spec, data.plan)),
        note=None if shared else Reason("noise-incomparable"),
    )


def _compared(one: Texts, other: Texts, keys: Sequence[Key]) -> TextsCompared | None:
    if not keys:
        return None
    pairs = [(one[key], other[key]) for key in keys]
    different = [(a, b) for a, b in pairs if a != b]
    places = [place for a, b in different if (place := first_difference(a, b)) is not None]
    return TextsCompared(
        n_pairs=len(pairs),
        same_text=len(pairs) - len(different),
        changed=sum(a.split() != b.split() for a, b in different),
        first_difference=float(median(places)) if places else None,
    )


def _odd(
    one: Mapping[Key, object], again: Mapping[Key, object], candidate: Mapping[Key, object], keys: Sequence[Key]
) -> OddOneOut | None:
    """Items are independent of each other, their repeats are not: the first repeat stands for its item."""
    firsts = [key for key in keys if key[1] == 0]
    if not firsts:
        return None
    found = odd_ones_out(*([repr(run[key]) for key in firsts] for run in (one, again, candidate)))
    return OddOneOut(n_items=len(firsts), n_odd=found.n_odd, n_candidate_odd=found.n_candidate_odd, pvalue=found.pvalue)


def _generates(spec: MetricSpec, plan: Plan) -> bool:
    kinds = {task.name: task.kind for task in plan.tasks}
    members = members_of(spec, plan)
    return bool(members) and all(kinds[member.task] is RequestKind.GENERATION for member in members)


def _of_metric(spec: MetricSpec, data: NoiseData) -> MetricNoise:
    members = members_of(spec, data.plan)
    baseline, candidate = (_column(members, data.scores, arm) for arm in (ArmName.BASELINE, ArmName.CANDIDATE))
    again = [_column(members, run.scores, ArmName.BASELINE) for run in data.runs]
    keys = [
        key
        for member in members
        for key in data.layout.tasks[member.task].keys
        if key in candidate and all(key in column for column in (baseline, *again))
    ]
    runs = [[repr(column[key]) for column in (baseline, *again)] for key in keys]
    arms = [[repr(baseline[key]), repr(candidate[key])] for key in keys]
    return MetricNoise(
        metric=spec.id,
        n_answers=len(keys),
        flip_rate_baseline=disagreement(runs) if keys else None,
        flip_rate_candidate=disagreement(arms) if keys else None,
        odd=_odd(baseline, again[0], candidate, keys),
    )


def _column(members: Sequence[MetricSpec], scores: Scores, arm: ArmName) -> Column:
    return {key: value for member in members for key, value in scores.column(member.task, member.key, arm).items()}


def repeat_summary(plan: Plan, scores: Scores, layout: Layout) -> RepeatSummary | None:
    """None where every item is asked once."""
    if plan.sampling.repeats == 1:
        return None
    rows = [
        _noise_of(spec, arm, _table(spec, arm, plan, scores, layout), plan.sampling.repeats)
        for spec in plan.metrics
        if _is_binary(spec, plan)
        for arm in ArmName
    ]
    return RepeatSummary(metrics=tuple(rows))


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


def generated_texts(
    store: Stored, comparison_id: str, items: Sequence[Item], arm: ArmName, *, run: int = 0
) -> tuple[dict[tuple[int, int], str], int]:
    """Texts by position and repeat, and how many requests of any kind were answered. `items` by position."""
    answered = [one for one in store.answers(comparison_id, arm=arm, run=run) if one.reply.status.is_answer]
    texts = {
        (one.position, one.repeat): one.reply.text or ""
        for one in answered
        if items[one.position].kind is RequestKind.GENERATION
    }
    return texts, len(answered)

"""The noise floor: how much runs of the baseline differ by themselves, and whether the candidate differs more.

The first of its runs makes the triples of the excess-discordance test and the pairs of texts; flip rates take all runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from qualab.app.analysis.repeats import sampled_texts
from qualab.app.analysis.samples import members_of
from qualab.app.analysis.scores import Column, Key, Layout, Scores
from qualab.app.analysis.streams import Streams
from qualab.domain.comparison import MetricNoise, NoiseFloor, OddOneOut, TextsCompared
from qualab.domain.names import ArmName, RequestKind
from qualab.domain.plan import MetricSpec, NoisePlan, Plan
from qualab.stats.noise import disagreement, first_difference, odd_ones_out

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


def noise_floor(data: NoiseData, streams: Streams) -> NoiseFloor:
    """The baseline against itself, beside the candidate."""
    baseline, candidate, again = data.texts[ArmName.BASELINE], data.texts[ArmName.CANDIDATE], data.runs[0].texts
    shared = sorted(baseline.keys() & candidate.keys() & again.keys())
    sampled = sampled_texts(baseline, again, data.plan, streams.rng("mmd noise floor"))
    return NoiseFloor(
        n_runs=data.noise.runs,
        concurrency=data.noise.concurrency,
        n_asked=data.n_asked,
        n_answered=sum(run.n_answered for run in data.runs),
        baseline=_compared(baseline, again, shared),
        candidate=_compared(baseline, candidate, shared),
        odd_texts=_odd(baseline, again, candidate, shared),
        metrics=tuple(_of_metric(spec, data) for spec in data.plan.metrics if _generates(spec, data.plan)),
        sampled=sampled,
        note="" if shared else "no answer was given by both arms and the first of these runs: nothing can be compared",
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

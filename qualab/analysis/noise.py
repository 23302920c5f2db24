"""The noise floor: how much runs of the baseline differ by themselves, and whether the candidate differs more.

The first of its runs makes the triples of the excess-discordance test and the pairs of texts; flip rates take all runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median

import numpy as np

from qualab.analysis.samples import Column, Key, Layout, Scores, read_scores
from qualab.analysis.scoring import scores_of
from qualab.model.comparison import (
    Comparison,
    MetricNoise,
    NoiseFloor,
    OddOneOut,
    RepeatNoise,
    RepeatSummary,
    TextsCompared,
)
from qualab.model.engine import (
    FirstTokens,
    FirstTokenSummary,
    Observation,
    PairKind,
    TaskTokens,
    TokensCompared,
    first_tokens_seen,
)
from qualab.model.items import Item
from qualab.model.names import ArmName, MetricKind, RequestKind
from qualab.model.plan import MetricSpec, NoisePlan, Plan
from qualab.model.ports import ScoredTasks, Stored
from qualab.model.reason import Reason
from qualab.stats.checks import FloatArray
from qualab.stats.noise import (
    disagreement,
    first_difference,
    flip_rate,
    odd_ones_out,
    variance_components,
    weighted_median,
)

Texts = Mapping[Key, str]
"""Generated texts by position and repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRun:
    """One further run of the baseline."""

    scores: Scores
    texts: Texts
    n_answered: int


def differing(
    store: Stored,
    comparison: Comparison,
    tasks: ScoredTasks,
    items: Sequence[Item],
    *,
    scores: Scores,
    layout: Layout,
) -> tuple[NoiseFloor | None, RepeatSummary | None]:
    """Return the noise floor, and what repeats show; None where that was not asked.

    Args:
        items: those that were asked, by position.
    """
    plan, comparison_id = comparison.plan, comparison.id
    repeats = _repeat_summary(plan, scores, layout)
    if plan.noise_floor is None:
        return None, repeats
    runs = []
    for number in range(1, plan.noise_floor.runs + 1):
        texts, n_answered = generated_texts(store, comparison_id, items, ArmName.BASELINE, run=number)
        answers = store.answers(comparison_id, arm=ArmName.BASELINE, run=number)
        own = read_scores(scores_of(answers, tasks, items), items)
        runs.append(NoiseRun(scores=own, texts=texts, n_answered=n_answered))
    arms = {arm: generated_texts(store, comparison_id, items, arm)[0] for arm in ArmName}
    n_asked = sum(len(item.requests) for item in items if item.kind is RequestKind.GENERATION)
    n_asked *= plan.sampling.repeats * plan.noise_floor.runs
    floor = _noise_floor(plan, plan.noise_floor, texts=arms, runs=runs, scores=scores, layout=layout, n_asked=n_asked)
    return floor, repeats


def _noise_floor(
    plan: Plan,
    noise: NoisePlan,
    *,
    texts: Mapping[ArmName, Texts],
    runs: Sequence[NoiseRun],
    scores: Scores,
    layout: Layout,
    n_asked: int,
) -> NoiseFloor:
    baseline, candidate, again = texts[ArmName.BASELINE], texts[ArmName.CANDIDATE], runs[0].texts
    shared = sorted(baseline.keys() & candidate.keys() & again.keys())
    kinds = {task.name: task.kind for task in plan.tasks}
    members = {spec.id: plan.members_of(spec) for spec in plan.metrics}
    return NoiseFloor(
        n_runs=noise.runs,
        concurrency=noise.concurrency,
        n_asked=n_asked,
        n_answered=sum(run.n_answered for run in runs),
        baseline=_compared(baseline, again, shared),
        candidate=_compared(baseline, candidate, shared),
        odd_texts=_odd(baseline, again, candidate, shared),
        metrics=tuple(
            _of_metric(name, pooled, runs, scores, layout)
            for name, pooled in members.items()
            if pooled and all(kinds[member.task] is RequestKind.GENERATION for member in pooled)
        ),
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


def _of_metric(
    name: str, members: Sequence[MetricSpec], runs: Sequence[NoiseRun], scores: Scores, layout: Layout
) -> MetricNoise:
    baseline, candidate = (_column(members, scores, arm) for arm in (ArmName.BASELINE, ArmName.CANDIDATE))
    again = [_column(members, run.scores, ArmName.BASELINE) for run in runs]
    keys = [
        key
        for member in members
        for key in layout.tasks[member.task].keys
        if all(key in column for column in (baseline, candidate, *again))
    ]
    of_runs = [[repr(column[key]) for column in (baseline, *again)] for key in keys]
    of_arms = [[repr(baseline[key]), repr(candidate[key])] for key in keys]
    return MetricNoise(
        metric=name,
        n_answers=len(keys),
        flip_rate_baseline=disagreement(of_runs) if keys else None,
        flip_rate_candidate=disagreement(of_arms) if keys else None,
        odd=_odd(baseline, again[0], candidate, keys),
    )


def _column(members: Sequence[MetricSpec], scores: Scores, arm: ArmName) -> Column:
    return {key: value for member in members for key, value in scores.column(member.task, member.key, arm).items()}


def _repeat_summary(plan: Plan, scores: Scores, layout: Layout) -> RepeatSummary | None:
    """None where every item is asked once."""
    k = plan.sampling.repeats
    if k == 1:
        return None
    rows = []
    for spec in plan.metrics:
        members = plan.members_of(spec)
        if {member.kind for member in members} != {MetricKind.BINARY_MEAN}:
            continue
        for arm in ArmName:
            column = _column(members, scores, arm)
            keys = [key for member in members for key in layout.tasks[member.task].keys]
            items = [keys[start : start + k] for start in range(0, len(keys), k)]
            values = [[float(column[key]) for key in item] for item in items if all(key in column for key in item)]
            rows.append(_noise_of(spec, arm, np.array(values, dtype=np.float64).reshape(len(values), k), k))
    return RepeatSummary(metrics=tuple(rows))


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
    """Return texts by position and repeat, and how many requests of any kind were answered.

    Args:
        items: by position.
    """
    answered = [one for one in store.answers(comparison_id, arm=arm, run=run) if one.reply.status.is_answer]
    texts = {
        (one.position, one.repeat): one.reply.text or ""
        for one in answered
        if items[one.position].kind is RequestKind.GENERATION
    }
    return texts, len(answered)


def first_token_summary(observations: Sequence[Observation]) -> FirstTokenSummary | None:
    """Summarize where texts begin to differ, as last seen; None where nothing was."""
    seen = first_tokens_seen(observations)
    if seen is None:
        return None
    arms = {one.task: one for one in seen.tasks if one.pairs is PairKind.ARMS}
    noise = {one.task: one for one in seen.tasks if one.pairs is PairKind.NOISE}
    return FirstTokenSummary(
        by=seen.by,
        lack=seen.lack,
        baseline=_tokens_compared(list(noise.values())) if noise else None,
        candidate=_tokens_compared(list(arms.values())),
        tasks=tuple(
            TaskTokens(
                task=task,
                baseline=_tokens_compared([noise[task]]) if task in noise else None,
                candidate=_tokens_compared([one]),
            )
            for task, one in arms.items()
        ),
    )


def _tokens_compared(tasks: Sequence[FirstTokens]) -> TokensCompared:
    """Over tasks: each pair that was tokenized stands for as many of its task as were left out for it."""
    known = [(token, Fraction(one.n_differ, len(one.places))) for one in tasks for *_, token in one.places]
    different = [(token, weight) for token, weight in known if token is not None]
    tokens, weights = [token for token, _ in different], [weight for _, weight in different]
    return TokensCompared(
        n_differ=sum(one.n_differ for one in tasks),
        n_tokenized=len(known),
        n_same_tokens=len(known) - len(different),
        first_difference=weighted_median(tokens, weights) if tokens else None,
    )

"""The noise floor: how much runs of the baseline differ by themselves, and whether the candidate differs more.

The first of its runs makes the triples of the excess-discordance test and the pairs of texts; flip rates take all runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from statistics import median

import numpy as np

from qualab.analysis.samples import Column, Layout, Scores, read_scores
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
    FirstTokensSeen,
    FirstTokenSummary,
    Observation,
    PairKind,
    TaskTokens,
    TokensCompared,
    last_seen,
)
from qualab.model.items import Item, Place, generations, n_requests
from qualab.model.names import ArmName, MetricKind, RequestKind
from qualab.model.plan import MetricSpec, Plan
from qualab.model.ports import ScoredTasks, Stored
from qualab.model.reason import Reason, of
from qualab.stats.noise import (
    disagreement,
    excess_discordance,
    first_difference,
    odd_ones_out,
    variance_components,
    weighted_median,
)
from qualab.stats.repeated import RepeatedCounts, is_mean_of, repeated_test
from qualab.stats.resampling import holm

Texts = Mapping[Place, str]
"""Generated texts by position and repeat."""


def scored_again(
    store: Stored, comparison: Comparison, tasks: ScoredTasks, items: Sequence[Item]
) -> tuple[Scores, ...]:
    """Score the baseline's further runs, where planned. `items`: those asked, by position."""
    noise = comparison.plan.noise_floor
    numbers = range(1, noise.runs + 1) if noise else ()
    answers = (store.answers(comparison.id, arm=ArmName.BASELINE, run=number) for number in numbers)
    return tuple(read_scores(scores_of(own, tasks, items), items) for own in answers)


def differing(
    store: Stored,
    comparison: Comparison,
    items: Sequence[Item],
    *,
    scores: Scores,
    runs: Sequence[Scores],
    layout: Layout,
) -> tuple[NoiseFloor | None, RepeatSummary | None]:
    """Return the noise floor and the spread of repeats, where planned. `items`: those asked, by position."""
    plan, noise = comparison.plan, comparison.plan.noise_floor
    repeats = _repeat_summary(plan, scores, layout)
    if noise is None:
        return None, repeats
    numbers = range(1, noise.runs + 1)
    again = [generated_texts(store, comparison.id, items, ArmName.BASELINE, run=number) for number in numbers]
    baseline, candidate = (generated_texts(store, comparison.id, items, arm)[0] for arm in ArmName)
    first = again[0][0]
    shared = sorted(baseline.keys() & candidate.keys() & first.keys())
    generating = {task.name for task in plan.tasks if task.kind is RequestKind.GENERATION}
    pooled = ((spec.id, plan.members_of(spec)) for spec in plan.metrics)
    floor = NoiseFloor(
        n_runs=noise.runs,
        concurrency=noise.concurrency,
        n_asked=n_requests(generations(items), plan.sampling) * noise.runs,
        n_answered=sum(n_own for _, n_own in again),
        baseline=_compared(baseline, first, shared),
        candidate=_compared(baseline, candidate, shared),
        odd_texts=_odd(baseline, first, candidate, shared),
        metrics=tuple(
            _of_metric(name, members, runs, scores, layout)
            for name, members in pooled
            if members and all(member.task in generating for member in members)
        ),
        note=None if shared else Reason("noise-incomparable"),
    )
    return floor, repeats


def baseline_shifts(plan: Plan, scores: Scores, layout: Layout) -> Iterator[Reason]:
    """Yield metrics in which the baseline's runs of one test differ from each other (Holm's adjustment)."""
    pvalues: dict[str, float] = {}
    for spec in plan.metrics if scores.again else ():
        members = plan.members_of(spec)
        columns = [_column(members, own, ArmName.BASELINE) for own in (scores, *scores.again)]
        keys = [key for member in members for key in layout.tasks[member.task].keys]
        rows = [[column[key] for column in columns] for key in keys if all(key in column for column in columns)]
        if not rows or {member.kind for member in members} != {MetricKind.BINARY_MEAN}:
            continue
        table = np.array(rows, dtype=np.float64)
        if is_mean_of(table, 1):
            counts = RepeatedCounts.of(table[:, 1:].mean(axis=1), table[:, 0], n_runs=len(scores.again))
            pvalues[spec.id] = repeated_test(counts).pvalue
    for name, pvalue in zip(pvalues, holm(list(pvalues.values())), strict=True):
        if pvalue <= plan.rule.alpha:
            yield of(name, Reason("baseline-shifted", {"n_runs": len(scores.again) + 1, "p": float(pvalue)}))


def _compared(one: Texts, other: Texts, keys: Sequence[Place]) -> TextsCompared | None:
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
    one: Mapping[Place, object], again: Mapping[Place, object], candidate: Mapping[Place, object], keys: Sequence[Place]
) -> OddOneOut | None:
    """The first repeat stands for its item: repeats are not independent."""
    firsts = [key for key in keys if key[1] == 0]
    if not firsts:
        return None
    n_odd, n_candidate_odd = odd_ones_out(*([repr(run[key]) for key in firsts] for run in (one, again, candidate)))
    pvalue = excess_discordance(n_odd=n_odd, n_candidate_odd=n_candidate_odd)
    return OddOneOut(n_items=len(firsts), n_odd=n_odd, n_candidate_odd=n_candidate_odd, pvalue=pvalue)


def _of_metric(
    name: str, members: Sequence[MetricSpec], runs: Sequence[Scores], scores: Scores, layout: Layout
) -> MetricNoise:
    baseline, candidate = (_column(members, scores, arm) for arm in (ArmName.BASELINE, ArmName.CANDIDATE))
    again = [_column(members, run, ArmName.BASELINE) for run in runs]
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
        variance_left=_variance_left([baseline, *again], candidate, keys) if scores.again else None,
    )


def _variance_left(baselines: Sequence[Column], candidate: Column, keys: Sequence[Place]) -> float | None:
    table = [[own[key] for own in (*baselines, candidate)] for key in keys]
    if not table or not all(isinstance(value, (int, float)) for row in table for value in row):
        return None
    values = np.array(table, dtype=np.float64)
    once, together = (float(np.sum((values[:, -1] - own) ** 2)) for own in (values[:, 0], values[:, :-1].mean(axis=1)))
    return together / once if once else None


def _column(members: Sequence[MetricSpec], scores: Scores, arm: ArmName) -> Column:
    return {key: value for member in members for key, value in scores.column(member.task, member.key, arm).items()}


def _repeat_summary(plan: Plan, scores: Scores, layout: Layout) -> RepeatSummary | None:
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
            table = np.array(values, dtype=np.float64).reshape(len(values), k)
            is_binary = bool(np.all((table == 0.0) | (table == 1.0)))
            components = variance_components(table) if len(table) > 1 else None
            rows.append(
                RepeatNoise(
                    metric=spec.id,
                    arm=arm,
                    n_items=len(table),
                    n_repeats=k,
                    flip_rate=disagreement(values) if values and is_binary else None,
                    variance_between=components.variance_between if components else None,
                    variance_within=components.variance_within if components else None,
                    icc=components.icc if components else None,
                    icc_mean=components.icc_mean if components else None,
                )
            )
    return RepeatSummary(metrics=tuple(rows))


def generated_texts(
    store: Stored, comparison_id: str, items: Sequence[Item], arm: ArmName, *, run: int = 0
) -> tuple[dict[tuple[int, int], str], int]:
    """Return texts by position and repeat, and the number of answers of any kind. `items` by position."""
    answered = [answer for answer in store.answers(comparison_id, arm=arm, run=run) if answer.reply.status.is_answer]
    texts = {
        (answer.position, answer.repeat): answer.reply.text or ""
        for answer in answered
        if items[answer.position].kind is RequestKind.GENERATION
    }
    return texts, len(answered)


def first_token_summary(observations: Sequence[Observation]) -> FirstTokenSummary | None:
    """Summarize where texts begin to differ; None where that was not looked at."""
    seen = last_seen(observations, FirstTokensSeen)
    if seen is None:
        return None
    arms = {task_tokens.task: task_tokens for task_tokens in seen.tasks if task_tokens.pairs is PairKind.ARMS}
    noise = {task_tokens.task: task_tokens for task_tokens in seen.tasks if task_tokens.pairs is PairKind.NOISE}
    return FirstTokenSummary(
        by=seen.by,
        lack=seen.lack,
        baseline=_tokens_compared(list(noise.values())) if noise else None,
        candidate=_tokens_compared(list(arms.values())),
        tasks=tuple(
            TaskTokens(
                task=task,
                baseline=_tokens_compared([noise[task]]) if task in noise else None,
                candidate=_tokens_compared([task_tokens]),
            )
            for task, task_tokens in arms.items()
        ),
    )


def _tokens_compared(tasks: Sequence[FirstTokens]) -> TokensCompared:
    """Each tokenized pair stands for as many of its task as were left out for it."""
    known = [(token, Fraction(task.n_differ, len(task.places))) for task in tasks for *_, token in task.places]
    different = [(token, weight) for token, weight in known if token is not None]
    tokens, weights = [token for token, _ in different], [weight for _, weight in different]
    return TokensCompared(
        n_differ=sum(task.n_differ for task in tasks),
        n_tokenized=len(known),
        n_same_tokens=len(known) - len(different),
        first_difference=weighted_median(tokens, weights) if tokens else None,
    )

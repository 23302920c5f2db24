"""Reads what an analysis of noise needs beyond the stored scores: texts, and the scores of further runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qualab.analysis.noise import NoiseData, NoiseRun, generated_texts, noise_floor, repeat_summary
from qualab.analysis.samples import Layout, Scores, read_scores
from qualab.analysis.scoring import scores_of
from qualab.model.comparison import Comparison, NoiseFloor, RepeatSummary
from qualab.model.items import Item, generations, n_requests
from qualab.model.names import ArmName
from qualab.model.ports import ScoredTasks, Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Differing:
    """How runs of the same arm differ; None where that was not asked."""

    noise: NoiseFloor | None
    repeats: RepeatSummary | None


def differing(
    store: Stored,
    comparison: Comparison,
    tasks: ScoredTasks,
    items: Sequence[Item],
    *,
    scores: Scores,
    layout: Layout,
) -> Differing:
    """The noise floor and what repeats show, from what is stored. `items` are those that were asked, by position."""
    plan, comparison_id = comparison.plan, comparison.id
    repeats = repeat_summary(plan, scores, layout)
    if plan.noise_floor is None:
        return Differing(noise=None, repeats=repeats)
    numbers = range(1, plan.noise_floor.runs + 1)
    data = NoiseData(
        plan=plan,
        noise=plan.noise_floor,
        layout=layout,
        scores=scores,
        texts={arm: generated_texts(store, comparison_id, items, arm)[0] for arm in ArmName},
        runs=[_noise_run(store, comparison_id, tasks, items, number) for number in numbers],
        n_asked=len(numbers) * n_requests(generations(items), plan.sampling),
    )
    return Differing(noise=noise_floor(data), repeats=repeats)


def _noise_run(store: Stored, comparison_id: str, tasks: ScoredTasks, items: Sequence[Item], number: int) -> NoiseRun:
    answers = store.answers(comparison_id, arm=ArmName.BASELINE, run=number)
    texts, n_answered = generated_texts(store, comparison_id, items, ArmName.BASELINE, run=number)
    return NoiseRun(scores=read_scores(scores_of(answers, tasks, items), items), texts=texts, n_answered=n_answered)

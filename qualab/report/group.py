"""Ranks the candidates of a group: quality first, then what their drafters yield, then speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from qualab.errors import ComparisonNotFound
from qualab.model.comparison import Analysis, Comparison
from qualab.model.engine import Treatment
from qualab.model.names import ArmName, ComparisonStatus, Verdict
from qualab.model.reason import Reason
from qualab.model.registry import VERDICTS
from qualab.model.report import Cell, Table
from qualab.report.source import Cells, table, verdict_cell
from qualab.report.words import Words
from qualab.run.prune import as_they_stand

if TYPE_CHECKING:
    from qualab.store import Store

COLUMNS = ("place", "candidate", "verdict", "difference", "length", "zero", "latency", "speed", "comparison")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedCandidate:
    """One candidate; None where something is not known, or not yet."""

    place: int
    """Candidates that nothing tells apart share a place."""
    name: str
    comparison_id: str
    status: ComparisonStatus
    verdict: Verdict | None
    stop_reason: Reason | None
    difference: float | None
    """Of the primary metrics' differences the worst, signed so that a loss is below 0."""
    acceptance_length: float | None
    """Tokens a round yields, over all tasks' rounds."""
    zero_share: float | None
    latency_p50_s: float | None
    speed: float | None
    """The baseline's median latency over the candidate's, both asked in step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedGroup:
    """A group's candidates, the best first."""

    id: str
    model: str
    baseline_url: str
    label: str
    candidates: tuple[RankedCandidate, ...]

    @property
    def is_live(self) -> bool:
        return any(not own.status.has_ended for own in self.candidates)


def ranked_group(store: Store, group_id: str, *, now: datetime) -> RankedGroup:
    """Rank a group's candidates as they stand now. Raises ComparisonNotFound."""
    comparisons = as_they_stand(store, store.group(group_id), now)
    if not comparisons:
        raise ComparisonNotFound(f"There is no group '{group_id}'", hint="`qualab list` shows what there is")
    ranked = sorted(
        (_figures(own, store.analysis(own.id) if own.verdict else None) for own in comparisons),
        key=lambda row: row[0],
    )
    places = [next(place for place, row in enumerate(ranked, start=1) if row[0] == own[0]) for own in ranked]
    first = comparisons[0]
    return RankedGroup(
        id=group_id,
        model=first.plan.sampling.model,
        baseline_url=first.baseline_url,
        label=first.label,
        candidates=tuple(
            RankedCandidate(
                place=place,
                name=own.plan.group.name if own.plan.group else "",
                comparison_id=own.id,
                status=own.status,
                verdict=own.verdict,
                stop_reason=own.stop_reason,
                **figures,
            )
            for place, (_, own, figures) in zip(places, ranked, strict=True)
        ),
    )


def _figures(
    comparison: Comparison, analysis: Analysis | None
) -> tuple[tuple[float, ...], Comparison, dict[str, float | None]]:
    """Compute what candidates are ranked by, and the key that sorts them: smaller is better, unknown last."""
    length, zero = _acceptance(analysis.treatment if analysis else None)
    latency = {arm.arm: arm.latency_p50_s for arm in analysis.arms} if analysis else {}
    before, after = latency.get(ArmName.BASELINE), latency.get(ArmName.CANDIDATE)
    speed = before / after if before and after else None
    better = {spec.id: spec.higher_is_better for spec in comparison.plan.metrics}
    differences = [
        row.evidence.difference * (1.0 if better[row.id] else -1.0)
        for row in (analysis.metrics if analysis else ())
        if row.is_primary and row.evidence
    ]
    quality = float(len(VERDICTS) - VERDICTS.index(comparison.verdict)) if comparison.verdict else math.inf
    key = (
        quality,
        math.inf if length is None else -length,
        math.inf if zero is None else zero,
        math.inf if speed is None else -speed,
    )
    figures = {
        "difference": min(differences, default=None),
        "acceptance_length": length,
        "zero_share": zero,
        "latency_p50_s": after,
        "speed": speed,
    }
    return key, comparison, figures


def _acceptance(treatment: Treatment | None) -> tuple[float | None, float | None]:
    """Join the tasks' lengths and shares of rounds without an accepted token, by their rounds."""
    tasks = [task for task in (treatment.tasks if treatment else ()) if task.rounds]

    def mean(values: Sequence[float | None]) -> float | None:
        known = [(value, task.rounds or 0) for value, task in zip(values, tasks, strict=True) if value is not None]
        total = sum(rounds for _, rounds in known)
        return sum(value * rounds for value, rounds in known) / total if total else None

    return mean([task.mean_length for task in tasks]), mean([task.zero_share for task in tasks])


def group_title(group: RankedGroup, words: Words) -> str:
    """Say what is ranked."""
    return words("group title", n=len(group.candidates), model=group.model)


def group_table(group: RankedGroup, words: Words) -> Table:
    """Lay out one row a candidate, the best first."""

    def cells(own: RankedCandidate) -> Cells:
        status = Cell(text=words(f"status {own.status}"))
        return {
            "place": f"{own.place}",
            "candidate": own.name,
            "verdict": verdict_cell(own.verdict, words) if own.verdict else status,
            "difference": (own.difference, "signed"),
            "length": (own.acceptance_length, "tokens"),
            "zero": (own.zero_share, "share"),
            "latency": (own.latency_p50_s, "seconds"),
            "speed": (own.speed, "times"),
            "comparison": own.comparison_id,
        }

    titles = {"difference": words("worst difference"), "latency": words("latency p50")}
    legends = {name: words(f"legend {name}") for name in ("length", "zero", "speed")}
    legends |= {"difference": words("legend worst difference")}
    return table(
        words,
        COLUMNS,
        [cells(own) for own in group.candidates],
        n_texts=3,
        texts=("comparison",),
        titles=titles,
        legends=legends,
        notes=[words("group note", n=len(group.candidates))],
        dispensable=("latency", "zero", "speed"),
    )

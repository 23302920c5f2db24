"""Ranks the candidates of a group: quality first, then what their drafters yield, then speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from statistics import geometric_mean
from typing import TYPE_CHECKING

from qualab.analysis.speed import chain_of, speed_of
from qualab.errors import ComparisonNotFound
from qualab.model.comparison import Comparison
from qualab.model.names import ArmName, ComparisonStatus, Verdict
from qualab.model.reason import Reason
from qualab.model.registry import VERDICTS
from qualab.model.report import Block, Paragraph, Table
from qualab.model.speed import Chain, Speed, WorkSpeed
from qualab.report.source import Cells, table, verdict_cell
from qualab.report.speed import ratio_cell
from qualab.report.words import Words
from qualab.run.prune import as_they_stand

if TYPE_CHECKING:
    from qualab.store import Store

COLUMNS = ("place", "candidate", "verdict", "difference", "length", "zero", "latency", "speed", "comparison")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedCandidate:
    """One candidate; None where something is not known, or not yet."""

    name: str
    comparison_id: str
    status: ComparisonStatus
    verdict: Verdict | None
    stop_reason: Reason | None
    difference: float | None = None
    """Worst difference of a primary metric, signed so that a loss is below 0."""
    acceptance_length: float | None = None
    """Tokens a round yields, over all tasks' rounds."""
    zero_share: float | None = None
    latency_p50_s: float | None = None
    speed: float | None = None
    """The baseline's median latency over the candidate's, both asked in step."""
    works: tuple[WorkSpeed, ...] = ()
    """Its speed over the baseline's, where `qualab speed` timed them."""

    @property
    def order(self) -> tuple[float, ...]:
        """Sorts candidates: smaller is better, unknown last."""
        quality = -VERDICTS.index(self.verdict) if self.verdict else 1
        timed = geometric_mean(own.ratio.value for own in self.works) if self.works else self.speed
        length, speed = (0.0 if value is None else -value for value in (self.acceptance_length, timed))
        return quality, length, 2.0 if self.zero_share is None else self.zero_share, speed


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedGroup:
    """A group's candidates, the best first."""

    id: str
    model: str
    baseline_url: str
    label: str
    candidates: tuple[RankedCandidate, ...]
    chain: Chain | None = None
    """The arms in the plan's order, where all of them were timed."""


def ranked_group(store: Store, group_id: str, *, now: datetime) -> RankedGroup:
    """Rank a group's candidates as they stand now. Raises ComparisonNotFound."""
    comparisons = as_they_stand(store, store.group(group_id), now)
    if not comparisons:
        raise ComparisonNotFound(f"There is no group '{group_id}'", hint="`qualab list` shows what there is")
    first = comparisons[0]
    seen = {own.plan.group.name: store.observations(own.id) for own in comparisons if own.plan.group}
    names = [name for name in first.plan.group.names if name in seen] if first.plan.group else []
    arms, seed = {ArmName.BASELINE.value: store.observations(first.id), **seen}, first.plan.sampling.seed
    timed = {name: speed_of(own, seed=seed) for name, own in seen.items()}
    candidates = [_candidate(store, own, timed) for own in comparisons]
    return RankedGroup(
        id=group_id,
        model=first.plan.sampling.model,
        baseline_url=first.baseline_url,
        label=first.label,
        candidates=tuple(sorted(candidates, key=lambda own: own.order)),
        chain=chain_of([ArmName.BASELINE.value, *names], arms, seed=seed),
    )


def _candidate(store: Store, comparison: Comparison, timed: Mapping[str, Speed | None]) -> RankedCandidate:
    group, analysis = comparison.plan.group, store.analysis(comparison.id) if comparison.verdict else None
    name = group.name if group else ""
    candidate = RankedCandidate(
        name=name,
        works=speed.works if (speed := timed.get(name)) else (),
        comparison_id=comparison.id,
        status=comparison.status,
        verdict=comparison.verdict,
        stop_reason=comparison.stop_reason,
    )
    if analysis is None:
        return candidate
    tasks = [task for task in (analysis.treatment.tasks if analysis.treatment else ()) if task.rounds]
    latency = {arm.arm: arm.latency_p50_s for arm in analysis.arms}
    before = None if comparison.plan.bank else latency.get(ArmName.BASELINE)  # a bank's was measured at another time
    after = latency.get(ArmName.CANDIDATE)
    signs = {spec.id: 1.0 if spec.higher_is_better else -1.0 for spec in comparison.plan.metrics}
    primaries = [(row.id, row.evidence) for row in analysis.metrics if row.is_primary]
    return replace(
        candidate,
        difference=min((signs[name] * own.difference for name, own in primaries if own), default=None),
        acceptance_length=_mean((task.mean_length, task.rounds) for task in tasks),
        zero_share=_mean((task.zero_share, task.rounds) for task in tasks),
        latency_p50_s=after,
        speed=before / after if before and after else None,
    )


def _mean(weighted: Iterable[tuple[float | None, int | None]]) -> float | None:
    known = [(value, weight) for value, weight in weighted if value is not None and weight]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None


def group_title(group: RankedGroup, words: Words) -> str:
    """Say what is ranked."""
    return words("group title", n=len(group.candidates), model=group.model)


def group_table(group: RankedGroup, words: Words) -> Table:
    """Lay out one row a candidate, the best first."""

    def cells(place: int, own: RankedCandidate) -> Cells:
        status = words(f"status {own.status}")
        return {
            "place": f"{place}",
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
        [cells(place, own) for place, own in enumerate(group.candidates, start=1)],
        n_texts=3,
        texts=("comparison",),
        titles=titles,
        legends=legends,
        notes=[words("group note", n=len(group.candidates))],
        dispensable=("latency", "zero", "speed"),
    )


def speed_tables(group: RankedGroup, words: Words) -> Iterator[Block]:
    """Lay out the candidates' speed by kind of work, and the factors of the arms in their order."""
    works = {own.work: words.name(own.work) for candidate in group.candidates for own in candidate.works}
    if works:
        yield Paragraph(text=words("works timed"), is_muted=True)
        rows: list[Cells] = [
            {"candidate": own.name} | {speed.work.value: ratio_cell(speed.ratio, words) for speed in own.works}
            for own in group.candidates
        ]
        yield table(
            words, ("candidate", *works), rows, titles={work.value: name for work, name in works.items()}, legends={}
        )
    if chain := group.chain:
        names = [words("baseline"), *(step.name for step in chain.steps)]
        pairs = [*pairwise(names), (names[0], names[-1])]
        ratios = [*(step.ratio for step in chain.steps), chain.whole]
        rows = [
            {"step": words("step of", before=before, name=name), "factor": ratio_cell(ratio, words)}
            for (before, name), ratio in zip(pairs, ratios, strict=True)
        ]
        yield Paragraph(text=words("chain how", product=chain.product, agrees=chain.agrees + 1), is_muted=True)
        yield table(words, ("step", "factor"), rows)

"""Hold what a report is made from; make the cells and tables of its sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qualab.model.comparison import Analysis, Comparison, MetricResult, SignOff
from qualab.model.engine import Observation
from qualab.model.items import Answer, Item, ScoreFlip
from qualab.model.names import ArmName, Objective, Verdict
from qualab.model.plan import Plan
from qualab.model.report import NOTHING, TONES, Cell, Column, Row, Table
from qualab.model.speed import Payoff
from qualab.report.words import FORMS, Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """An item whose score in a primary metric differs between the arms, with both answers."""

    item: Item
    change: ScoreFlip
    answers: Sequence[Answer]
    extracted: Sequence[str]
    """Answers that the filters extracted in both arms; empty where the metric's scores do not hold them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryFlips:
    """Flips of a task's deciding metric within one category of its documents."""

    task: str
    category: str
    n_items: int
    losses: int
    gains: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    """The worst flips of all primary metrics: losses where there are any, else gains."""

    are_losses: bool
    n_flips: int
    n_worst: int
    """Losses, or gains."""
    shown: tuple[Flip, ...]
    """For tasks that generate."""
    by_category: tuple[CategoryFlips, ...] = ()


NOT_MEASURED = Payoff(speed=None, capacity=None, limits=None, advice=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Everything about one comparison that a report shows."""

    comparison: Comparison
    analysis: Analysis
    observations: Sequence[Observation] | None = None
    """None where they were not read."""
    by_replica: Mapping[ArmName, Mapping[str, int]] = field(default_factory=dict)
    """Answers of each server of an arm of several, by URL."""
    flips: Flips | None = None
    """None where no scores are stored."""
    signoffs: Sequence[SignOff] = ()
    seal: str = ""
    payoff: Payoff = NOT_MEASURED
    latencies: Mapping[ArmName, Sequence[float]] = field(default_factory=dict)
    """Seconds of each answer, by arm; empty where they were not read."""

    @property
    def is_after_data(self) -> bool:
        """True where the analysis follows a plan that was made after the data."""
        return self.analysis.plan_hash != self.comparison.plan_hash

    @property
    def has_no_tasks(self) -> bool:
        """True where the pair was only timed."""
        return not self.plan.tasks

    @property
    def plan(self) -> Plan:
        return self.comparison.plan

    @property
    def models(self) -> dict[ArmName, str]:
        """Each arm's model, as logs name it where they do."""
        imported = self.plan.imported
        named = (imported.baseline_model, imported.candidate_model) if imported else ("", "")
        return {arm: name or self.plan.sampling.model for arm, name in zip(ArmName, named, strict=True)}

    @property
    def primaries(self) -> list[MetricResult]:
        return [row for row in self.analysis.metrics if row.is_primary]


WEIGHT = {Verdict.REGRESSION: 0, Verdict.INCONCLUSIVE: 1, Verdict.IMPROVEMENT: 2}


def weightiest(source: Source) -> MetricResult | None:
    """Return the primary metric that decides: of the worst verdict the one whose interval reaches furthest down."""
    tested = [row for row in source.primaries if row.evidence]

    def weight(row: MetricResult) -> tuple[int, float]:
        evidence = row.evidence
        assert evidence is not None
        low = evidence.equivalence_interval.low if evidence.equivalence_interval else evidence.difference
        return WEIGHT.get(row.verdict, 3), low / (row.margin or source.plan.rule.margin)

    return min(tested, key=weight, default=None)


Number = tuple[float | None, str]
"""A value and one of the words' forms, as "share"."""
Cells = dict[str, Cell | str | Number | None]
"""One row of a table by column; None, or no cell, for what the row does not have."""


def verdict_cell(verdict: Verdict, words: Words) -> Cell:
    """Name a verdict."""
    return Cell(text=words.name(verdict), tone=TONES[verdict])


def table(
    words: Words,
    names: Sequence[str],
    rows: Iterable[Cells],
    *,
    n_texts: int = 1,
    titles: Mapping[str, str] | None = None,
    legends: Mapping[str, str] | None = None,
    texts: Sequence[str] = (),
    notes: Iterable[str] = (),
    dispensable: Sequence[str] = (),
    is_wide: bool = False,
) -> Table:
    """Lay rows out under columns, without the columns that no row has anything in.

    The first `n_texts` columns and those in `texts` hold texts, the others numbers. Unless given, a column's title and
    note are the words of its name and of "legend NAME".
    """
    cells = [{name: _cell(content, words) for name, content in row.items()} for row in rows]
    filled = [name for name in names if not cells or any(row.get(name, NOTHING) != NOTHING for row in cells)]
    columns = (
        Column(
            id=name,
            title=(titles or {}).get(name) or words(name),
            is_number=name not in (*names[:n_texts], *texts),
            note=words.optional(f"legend {name}") if legends is None else legends.get(name, ""),
        )
        for name in filled
    )
    return Table(
        columns=tuple(columns),
        rows=tuple(Row(cells=tuple(row.get(name, NOTHING) for name in filled)) for row in cells),
        notes=tuple(notes),
        dispensable=tuple(name for name in dispensable if name in filled),
        is_wide=is_wide,
    )


def _cell(content: Cell | str | Number | None, words: Words) -> Cell:
    if isinstance(content, str):
        return Cell(text=content)
    if isinstance(content, tuple):
        value, form = content
        return NOTHING if value is None else Cell(text=words.units(FORMS[form](value)), value=value)
    return content or NOTHING


CHANGED = frozenset({"alpha", "power", "max_missing_share", "missing_lost", "objective", "strict"})
"""Parts of a rule that the first reason of an analysis after the data names where they changed."""


def under_its_plan(comparison: Comparison, analysis: Analysis) -> Comparison:
    """Return the comparison with the plan that the analysis went by, which was made without assumptions."""
    plan, first = comparison.plan, next(iter(analysis.reasons), None)
    changes = first.values["changes"] if first and first.code == "after-data" else ()
    parts: dict[str, Any] = {
        change.values["part"]: change.values["after"] for change in changes if change.code == "changed"
    }
    if "objective" in parts:
        parts["objective"] = Objective(parts["objective"])
    margins = {row.id: row.margin for row in analysis.metrics if row.margin is not None}
    rule = replace(plan.rule, **{part: parts[part] for part in CHANGED & parts.keys()}, margins=margins)
    primaries = {row.id for row in analysis.metrics if row.is_primary}
    metrics = tuple(replace(metric, is_primary=metric.id in primaries) for metric in plan.metrics)
    return replace(comparison, plan=replace(plan, rule=rule, metrics=metrics, assumptions=None))

"""What a report is made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from qualab.model.comparison import Analysis, Comparison, MetricResult, SignOff
from qualab.model.engine import Observation
from qualab.model.items import Answer, Item
from qualab.model.names import ArmName, Language, Objective
from qualab.model.plan import DecisionRule, Plan
from qualab.model.report import Cell, Column, Fact, Facts, Row
from qualab.report.words import CATALOGUES, Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """An item whose score in a primary metric differs between the arms."""

    metric: str
    """The primary metric's id."""
    key: str
    """Of the score, as "exact_match,none"."""
    item: Item
    repeat: int
    baseline_score: float
    candidate_score: float
    baseline: Answer
    candidate: Answer
    extracted: tuple[str, str] | None = None
    """What the filters made of both answers; None where the metric's scores do not hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    """The worst of them. Losses where there are any, else gains."""

    are_losses: bool
    n_flips: int
    """Of all primary metrics."""
    n_shown_kind: int
    """Losses, or gains."""
    shown: tuple[Flip, ...]
    """Of tasks that generate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Everything about one comparison that a report shows."""

    comparison: Comparison
    analysis: Analysis
    observations: Sequence[Observation]
    flips: Flips | None
    """None where no scores are stored."""
    signoffs: Sequence[SignOff] = ()
    """Who accepted the result, in order."""
    seal: str = ""
    """The analysis'; empty where it was stored by a version without seals."""

    @property
    def is_after_data(self) -> bool:
        """Whether the analysis is under a plan that was made after the data."""
        return self.analysis.plan_hash != self.comparison.plan_hash

    @property
    def plan(self) -> Plan:
        return self.comparison.plan

    @property
    def is_of_drafter(self) -> bool:
        """Whether the arms are known to be the same engine without and with a drafter: logs do not tell it."""
        return self.plan.imported is None or self.plan.imported.is_of_drafter

    @property
    def model(self) -> str:
        """The model, or each arm's own where logs tell different ones."""
        return " / ".join(dict.fromkeys(self.models.values()))

    @property
    def models(self) -> dict[ArmName, str]:
        """Each arm's model; of logs as they tell it."""
        one, imported = self.plan.sampling.model, self.plan.imported
        told = (imported.baseline_model, imported.candidate_model) if imported else ("", "")
        return {arm: name or one for arm, name in zip(ArmName, told, strict=True)}

    def key(self, key: str) -> str:
        """The key of a text; of the one that names no drafter where nothing tells of one."""
        neutral = f"{key} of logs"
        return key if self.is_of_drafter or neutral not in CATALOGUES[Language.ENGLISH] else neutral

    @property
    def primaries(self) -> list[MetricResult]:
        return [row for row in self.analysis.metrics if row.is_primary]


def cells(*texts: str | Cell) -> Row:
    """A row of texts, or of cells."""
    return Row(cells=tuple(text if isinstance(text, Cell) else Cell(text=text) for text in texts))


def columns(words: Words, *names: str, n_texts: int = 1) -> tuple[Column, ...]:
    """Columns by their keys; the first `n_texts` hold texts, the others numbers."""
    return tuple(Column(id=name, title=words(name), is_number=place >= n_texts) for place, name in enumerate(names))


def facts(words: Words, pairs: Iterable[tuple[str, str]]) -> Facts:
    """Named facts; those without a text are left out."""
    return Facts(facts=tuple(Fact(label=words(key), text=text) for key, text in pairs if text))


def arms(source: Source, words: Words) -> Iterator[tuple[ArmName, str]]:
    """Both arms with their titles."""
    for arm in ArmName:
        yield arm, words(source.key(f"{arm} arm"))


CHANGED = frozenset({"alpha", "power", "max_missing_share", "missing_lost", "objective", "strict"})
"""Parts of a rule that the first reason of such an analysis names where they changed."""


def under_its_plan(comparison: Comparison, analysis: Analysis) -> Comparison:
    """The comparison as the analysis judged it; its own plan's hash stays. Nothing was planned with that plan."""
    margins = {row.id: row.margin for row in analysis.metrics if row.margin is not None}
    primaries = {row.id for row in analysis.metrics if row.is_primary}
    plan = comparison.plan
    metrics = tuple(replace(one, is_primary=one.id in primaries) for one in plan.metrics)
    rule = replace(_changed(plan.rule, analysis), margins=margins)
    return replace(comparison, plan=replace(plan, rule=rule, metrics=metrics, assumptions=None))


def _changed(rule: DecisionRule, analysis: Analysis) -> DecisionRule:
    first = analysis.reasons[0] if analysis.reasons else None
    if first is None or first.code != "after-data":
        return rule
    parts = {one.values["part"]: one.values["after"] for one in first.values["changes"] if one.code == "changed"}
    changes = {name: Objective(value) if name == "objective" else value for name, value in parts.items()}
    return replace(rule, **{name: value for name, value in changes.items() if name in CHANGED})  # type: ignore[arg-type]

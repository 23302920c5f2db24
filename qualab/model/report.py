"""A report: what every renderer draws, worded and with its numbers written, so that all of them show the same.

Sections hold blocks. A cell that shows a number has the number beside its text, for programs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from qualab.model.comparison import MetricResult
from qualab.model.names import Language, Verdict
from qualab.model.reason import Reason


class Tone(StrEnum):
    """What a verdict means to a reader. Every tone has a mark, so that none is told by colour alone."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "open"
    BROKEN = "broken"
    PLAIN = "plain"


MARKS = {Tone.GOOD: "✓", Tone.BAD: "▼", Tone.OPEN: "?", Tone.BROKEN: "!", Tone.PLAIN: ""}
TONES = {
    Verdict.EQUIVALENT: Tone.GOOD,
    Verdict.NON_INFERIOR: Tone.GOOD,
    Verdict.REGRESSION: Tone.BAD,
    Verdict.IMPROVEMENT: Tone.OPEN,
    Verdict.INCONCLUSIVE: Tone.OPEN,
    Verdict.INVALID: Tone.BROKEN,
    Verdict.NOT_TESTED: Tone.PLAIN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One value of a table, or of a list of facts."""

    text: str
    value: float | None = None
    """The number that the text shows, a fraction where that shows percent; None where it shows none, or several."""
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    id: str
    """The same in every language."""
    title: str
    is_number: bool = True
    """Set to the right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    cells: tuple[Cell, ...]
    is_strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    legend: tuple[str, ...] = ()
    is_wide: bool = False
    """Whether it is set small on paper, and scrolls on a narrow screen."""
    kind: Literal["table"] = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    text: str
    is_muted: bool = False
    """Of less weight, as a note is."""
    kind: Literal["paragraph"] = "paragraph"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    items: tuple[str, ...]
    title: str = ""
    kind: Literal["bullets"] = "bullets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Names with what they stand for."""

    facts: tuple[Fact, ...]
    kind: Literal["facts"] = "facts"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestRow:
    """One metric: its difference between the limits of its interval, and the margin around 0. All in fractions."""

    label: str
    difference: float
    low: float | None
    high: float | None
    """The 1 − 2 alpha interval, which decides; None where there is none."""
    margin_low: float | None
    margin_high: float | None
    """One of them is None where the plan rules out a loss alone."""
    text: str
    """The numbers in words."""
    verdict: Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Differences with their intervals, against the band of the margin."""

    rows: tuple[ForestRow, ...]
    axis: str
    left: str
    """What lies to the left of 0, as "candidate worse"."""
    right: str
    band: str
    description: str
    """For who cannot see it."""
    kind: Literal["forest"] = "forest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    label: str
    count: int
    share: float
    text: str
    """The share in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Shares by a small number, as rounds by accepted tokens."""

    title: str
    bars: tuple[Bar, ...]
    axis: str
    vertical_axis: str
    description: str
    highest: float = 0.0
    """The largest share of those that it is drawn beside, to one scale; 0 where it stands alone."""
    kind: Literal["histogram"] = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Power by number of items, with the place that is asked about."""

    points: tuple[tuple[float, float], ...]
    """(items, power), by items."""
    here: tuple[float, float]
    target: float
    """The power that is aimed at."""
    axis: str
    vertical_axis: str
    here_text: str
    target_text: str
    description: str
    """For who cannot see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One arm's text around the first difference."""

    title: str
    text: str
    """From the first difference on."""
    is_cut: bool
    """Whether more follows."""
    facts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """An item that both arms answered, side by side. Texts are a model's: never markup."""

    title: str
    facts: tuple[Fact, ...]
    shared: str
    """What both texts have in common just before their first difference."""
    is_cut: bool
    """Whether more comes before."""
    baseline: Side
    candidate: Side
    kind: Literal["excerpt"] = "excerpt"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOff:
    """Lines that people fill in."""

    choices: tuple[str, ...]
    fields: tuple[str, ...]
    roles: tuple[str, ...]
    """Each signs on a line of its own."""
    kind: Literal["signoff"] = "signoff"


Chart = Forest | Histogram | Curve
Block = Paragraph | Bullets | Facts | Table | Forest | Histogram | Excerpt | SignOff


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    id: str
    """The same in every language, as "metrics"."""
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportModel:
    """One comparison for people, in one language."""

    comparison_id: str
    plan_hash: str
    language: Language
    title: str
    subtitle: str
    verdict: Cell
    """The verdict's word."""
    headline: str
    """The verdict in one sentence."""
    sections: tuple[Section, ...]
    written_at: datetime
    """When the comparison ended: the report's own date, so that the same data make the same bytes."""
    footer: str
    labels: dict[str, str] = field(default_factory=dict)
    """Words that renderers need, as "page"."""

    def section(self, section_id: str) -> Section:
        """Raises KeyError for a section that the report does not have."""
        return {one.id: one for one in self.sections}[section_id]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """A finished comparison, as a gate shows it."""

    id: str
    label: str
    model: str
    plan_hash: str
    verdict: Verdict
    reasons: tuple[Reason, ...]
    caveats: tuple[Reason, ...]
    metrics: tuple[MetricResult, ...]

    @property
    def primaries(self) -> tuple[MetricResult, ...]:
        return tuple(metric for metric in self.metrics if metric.is_primary)

    @property
    def confidence_level(self) -> float | None:
        """Of the intervals that decide; None where there is none."""
        found = (metric.evidence.equivalence_interval for metric in self.metrics if metric.evidence)
        return next((one.confidence_level for one in found if one), None)

    @property
    def alarms(self) -> tuple[MetricResult, ...]:
        """Other metrics that got worse."""
        worse = (metric for metric in self.metrics if metric.verdict is Verdict.REGRESSION)
        return tuple(metric for metric in worse if not metric.is_primary)

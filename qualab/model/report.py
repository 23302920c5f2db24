"""A report: sections of blocks, worded and with every number written, so that all renderers show the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from qualab.model.audit import Audit
from qualab.model.comparison import MetricResult
from qualab.model.names import Language, Verdict
from qualab.model.reason import Reason


class Tone(StrEnum):
    """Meaning of a verdict to a reader, shown by a mark as well as a colour."""

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
    text: str
    value: float | None = None
    """The number that the text shows, a fraction where that shows percent; None where it shows none, or several."""
    tone: Tone = Tone.PLAIN

    @property
    def marked(self) -> str:
        """The text after its tone's mark."""
        return f"{MARKS[self.tone]} {self.text}" if MARKS[self.tone] else self.text


NOTHING = Cell(text="–")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    id: str
    title: str
    is_number: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    cells: tuple[Cell, ...]
    is_strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    is_wide: bool = False
    is_form: bool = False
    """Empty cells are filled in with a pen."""
    dispensable: tuple[str, ...] = ()
    """Columns that a narrow terminal leaves out, the most dispensable first."""
    kind: Literal["table"] = "table"

    @property
    def legend(self) -> tuple[str, ...]:
        """Notes of the columns, then those of the table."""
        return (*(column.note for column in self.columns if column.note), *self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    text: str
    is_muted: bool = False
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
    verdict: Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Differences with their intervals, against the band of the margin."""

    rows: tuple[ForestRow, ...]
    axis: str
    left: str
    right: str
    band: str
    description: str
    kind: Literal["forest"] = "forest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    label: str
    count: int
    share: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    title: str
    bars: tuple[Bar, ...]
    axis: str
    vertical_axis: str
    description: str
    highest: float = 0.0
    """The largest share of all histograms that share one scale; 0 where it stands alone."""
    kind: Literal["histogram"] = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairHistogram:
    """Counts of both arms in the same bins, on a logarithmic scale."""

    title: str
    edges: tuple[str, ...]
    """Where each bin begins; the last has no end."""
    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    """By arm and bin."""
    axis: str
    vertical_axis: str
    limit: float | None
    """In bins from the first; None where there is none."""
    limit_text: str
    description: str
    kind: Literal["bars"] = "bars"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairBar:
    """One value of both arms, each with its lowest and highest repeat; None where there is none."""

    label: str
    note: str
    values: tuple[float | None, ...]
    ranges: tuple[tuple[float, float] | None, ...]
    text: str
    ratio: Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class PairBars:
    """Bars of both arms, one pair below the other, with the spread of their repeats."""

    rows: tuple[PairBar, ...]
    names: tuple[str, ...]
    axis: str
    description: str
    kind: Literal["pairs"] = "pairs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the way from planned to tested answers, and what did not reach it."""

    title: str
    text: str
    lost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    steps: tuple[Step, ...]
    description: str
    kind: Literal["flow"] = "flow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Items of one metric that changed, as shares of all its items."""

    label: str
    loss: float
    gain: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Losses to the left of 0 and gains to the right, one row a metric."""

    rows: tuple[Split, ...]
    axis: str
    left: str
    right: str
    description: str
    kind: Literal["splits"] = "splits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    points: tuple[tuple[float, float], ...]
    here: tuple[float, float]
    target: float
    axis: str
    vertical_axis: str
    here_text: str
    target_text: str
    description: str
    kind: Literal["curve"] = "curve"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One arm's answer from the first difference on. Texts are a model's: never markup."""

    title: str
    text: str
    is_cut: bool
    facts: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    title: str
    facts: tuple[Fact, ...]
    shared: str
    """The end of what both texts begin with."""
    is_cut: bool
    sides: tuple[Side, ...]
    """The baseline's and the candidate's; none where the texts are the same."""
    kind: Literal["excerpt"] = "excerpt"


Chart = Forest | Histogram | PairHistogram | PairBars | Flow | Splits | Curve
Block = Paragraph | Bullets | Facts | Table | Chart | Excerpt


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    id: str
    title: str
    blocks: tuple[Block, ...]
    is_appendix: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxLine:
    """A line of the box on page one."""

    id: str
    """verdict, ship, size, gain or next."""
    label: str
    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One comparison for people, in one language: what every renderer draws."""

    comparison_id: str
    plan_hash: str
    language: Language
    title: str
    subtitle: str
    verdict: Cell
    box: tuple[BoxLine, ...]
    """What the verdict means, whether to ship, size, gain, and the next command; of those, what there is."""
    sections: tuple[Section, ...]
    written_at: datetime
    """When the comparison ended, so that the same data make the same bytes."""
    footer: str
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """The verdict in a sentence or two."""
        return self.box[0].text

    @property
    def is_grey(self) -> bool:
        """True where charts are greyed: the comparison is INVALID."""
        return self.verdict.tone is Tone.BROKEN

    def section(self, section_id: str) -> Section:
        """Return a section by its id. Raises KeyError."""
        return {section.id: section for section in self.sections}[section_id]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    id: str
    label: str
    model: str
    plan_hash: str
    verdict: Verdict
    reasons: tuple[Reason, ...]
    caveats: tuple[Reason, ...]
    metrics: tuple[MetricResult, ...]
    audit: Audit | None = None
    box: tuple[BoxLine, ...] = ()

    @property
    def primaries(self) -> tuple[MetricResult, ...]:
        return tuple(metric for metric in self.metrics if metric.is_primary)

    @property
    def alarms(self) -> tuple[MetricResult, ...]:
        """Other metrics that got worse."""
        worse = (metric for metric in self.metrics if metric.verdict is Verdict.REGRESSION)
        return tuple(metric for metric in worse if not metric.is_primary)

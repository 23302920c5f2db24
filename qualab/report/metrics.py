"""One row a metric: the table that every format shows, the terminal included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from qualab.model.comparison import Analysis, Evidence, MetricResult, SuiteEvidence
from qualab.model.names import Verdict
from qualab.model.report import TONES, Block, Bullets, Cell, Column, Paragraph, Row, Section, Table
from qualab.model.wording import count, percent, pvalue, score, signed
from qualab.report.words import Words

NOTHING = Cell(text="–")
"""What a metric does not have."""


def metrics_section(analysis: Analysis, words: Words) -> Section:
    """All metrics, and what their rows have no room for."""
    blocks: list[Block] = [metric_table(analysis, words)]
    if notes := tuple(_notes(analysis.metrics, words)):
        blocks.append(Bullets(items=notes))
    if together := together_line(analysis.suite, words):
        blocks.append(Paragraph(text=together))
    return Section(id="metrics", title=words("metrics"), blocks=tuple(blocks))


def metric_table(analysis: Analysis, words: Words) -> Table:
    """One row a metric, in the plan's order."""
    shown = tuple(metric_columns(analysis, words))
    made = [(row, metric_cells(row, words)) for row in analysis.metrics]
    rows = [
        Row(cells=tuple(cells.get(one.id, NOTHING) for one in shown), is_strong=row.is_primary) for row, cells in made
    ]
    legend = [*_legend(analysis, words)]
    if any(NOTHING in row.cells for row in rows):
        legend.append(words("legend nothing"))
    return Table(columns=shown, rows=tuple(rows), legend=tuple(legend), is_wide=True)


def metric_columns(analysis: Analysis, words: Words) -> Iterator[Column]:
    """The table's columns: those that some metric has something in."""
    yield Column(id="metric", title=words("metric"), is_number=False)
    yield Column(id="n", title=words("n"))
    if any(is_clustered(row) for row in analysis.metrics):
        yield Column(id="clusters", title=words("clusters"))
    if any(row.n_missing for row in analysis.metrics):
        yield Column(id="missing", title=words("missing"))
    for name in ("off", "on", "difference"):
        yield Column(id=name, title=words(name))
    yield Column(id="interval", title=_interval_title(analysis, words))
    for name in ("p", "adjusted", "unpaired", "gains"):
        yield Column(id=name, title=words(name))
    yield Column(id="verdict", title=words("verdict column"), is_number=False)


def _interval_title(analysis: Analysis, words: Words) -> str:
    level = interval_level(analysis.metrics)
    return words("interval at", level=level) if level else words("interval")


def interval_level(rows: Iterable[MetricResult]) -> str:
    """The level of the intervals that decide, which are those that are shown; empty without them."""
    found = (row.evidence.equivalence_interval for row in rows if row.evidence)
    levels = {one.confidence_level for one in found if one}
    return percent(levels.pop()) if len(levels) == 1 else ""


def _legend(analysis: Analysis, words: Words) -> Iterator[str]:
    yield words("legend primary")
    yield words("legend interval")
    yield words("legend gains")
    if not all(row.exercises_drafter for row in analysis.metrics):
        yield words("legend drafter")
    yield words("legend adjusted")
    if analysis.looks:
        yield words("legend looks")
    yield words("legend unpaired")


def metric_label(row: MetricResult) -> str:
    """The metric's id with its marks."""
    return f"{'*' if row.is_primary else ' '} {row.id}{'' if row.exercises_drafter else ' †'}"


def verdict_cell(verdict: Verdict, words: Words) -> Cell:
    """The verdict's word."""
    return Cell(text=words(verdict.value), tone=TONES[verdict])


def metric_cells(row: MetricResult, words: Words) -> dict[str, Cell]:
    """A row's cells by column; without those that the metric does not have."""
    cells = {
        "metric": Cell(text=metric_label(row)),
        "n": Cell(text=count(row.n_items), value=row.n_items),
        "missing": Cell(text=count(row.n_missing), value=row.n_missing),
        "off": _score(row.baseline, words),
        "on": _score(row.candidate, words),
        "verdict": verdict_cell(row.verdict, words),
    }
    if row.evidence is not None:
        return cells | _evidence_cells(row.evidence, words)
    arms = [value for value in (row.baseline, row.candidate) if value is not None and 0.0 <= value <= 1.0]
    if len(arms) == 2:  # other values do not differ by percentage points
        cells["difference"] = difference_cell(arms[1] - arms[0])
    return cells


def _evidence_cells(evidence: Evidence, words: Words) -> dict[str, Cell]:
    cells = {
        "n": Cell(text=count(evidence.n_items), value=evidence.n_items),
        "difference": difference_cell(evidence.difference),
        "interval": Cell(text=words("none")),
        "p": pvalue_cell(evidence.pvalue),
        "adjusted": pvalue_cell(evidence.pvalue_adjusted),
        "gains": Cell(text=f"{count(evidence.gains)}/{count(evidence.losses)}"),
    }
    if evidence.n_clusters < evidence.n_items:
        cells["clusters"] = Cell(text=count(evidence.n_clusters), value=evidence.n_clusters)
    if found := evidence.equivalence_interval:
        cells["interval"] = Cell(text=words.interval(found.low, found.high))
    if evidence.pvalue_unpaired is not None:
        cells["unpaired"] = pvalue_cell(evidence.pvalue_unpaired)
    return cells


def is_clustered(row: MetricResult) -> bool:
    """Whether scores stand in fewer clusters than there are scores."""
    return row.evidence is not None and row.evidence.n_clusters < row.evidence.n_items


def difference_cell(difference: float) -> Cell:
    """Percentage points with a sign."""
    return Cell(text=signed(difference), value=difference)


def pvalue_cell(p: float) -> Cell:
    """A p-value."""
    return Cell(text=pvalue(p), value=p)


def _score(value: float | None, words: Words) -> Cell:
    return Cell(text=words("none")) if value is None else Cell(text=score(value), value=value)


def row_notes(rows: Sequence[MetricResult], words: Words) -> Iterator[str]:
    """What a row's cells have no room for."""
    for row in rows:
        if row.equals:
            yield words("same as", metric=row.id, other=row.equals)
        if row.verdict is Verdict.NOT_TESTED:
            yield f"{row.id}: {words.reason(row.reason)}"
        elif row.evidence and row.evidence.note and not row.equals:
            yield f"{row.id}: {words.reason(row.evidence.note)}"


def _notes(rows: Sequence[MetricResult], words: Words) -> Iterator[str]:
    """The same, rows with the same note together."""
    if pairs := [f"{row.id} = {_short(row.equals, row.task)}" for row in rows if row.equals]:
        yield words("same many", pairs=", ".join(pairs))
    by_note: dict[str, list[str]] = {}
    for row in rows:
        note = row.reason if row.verdict is Verdict.NOT_TESTED else row.evidence.note if row.evidence else None
        if note and not row.equals:
            by_note.setdefault(words.reason(note), []).append(row.id)
    yield from (f"{', '.join(ids)}: {note}" for note, ids in by_note.items())


def _short(other: str, task: str) -> str:
    """Another metric's id, without the task where that is the same."""
    return other.removeprefix(f"{task}/")


def together_line(suite: SuiteEvidence, words: Words) -> str:
    """The test over all metrics; empty where there is none, and for one metric, of which it says nothing new."""
    if not (found := suite.global_test) or found.n_metrics < 2:
        return ""
    return words("together", n=found.n_metrics, difference=signed(found.difference), p=pvalue(found.pvalue))

"""The primary metrics as a chart: differences with their intervals, against the margin."""

from __future__ import annotations

from qualab.app.analysis.ruling import is_one_sided, sides
from qualab.app.reporting.metrics import verdict_cell
from qualab.app.reporting.source import Source
from qualab.app.reporting.verdicts import bounds_text
from qualab.app.reporting.words import Words
from qualab.domain.comparison import Evidence, MetricResult
from qualab.domain.names import EvidenceKind
from qualab.domain.numbers import percent, signed
from qualab.domain.report import Block, Forest, ForestRow, Paragraph, Section


def forest_section(source: Source, words: Words) -> Section:
    """How the chart is read, and the chart; or why there is none."""
    rows = tuple(_row(row, row.evidence, source, words) for row in source.primaries if row.evidence is not None)
    blocks: tuple[Block, ...]
    if rows:
        blocks = (Paragraph(text=_how(source, words), is_muted=True), _forest(rows, source, words))
    else:
        blocks = (Paragraph(text=words("no evidence" if source.primaries else "no primaries")),)
    return Section(id="forest", title=words("forest"), blocks=blocks)


def _row(row: MetricResult, evidence: Evidence, source: Source, words: Words) -> ForestRow:
    rule = source.plan.rule
    margin = rule.margin if row.margin is None else row.margin
    better = next(one.higher_is_better for one in source.plan.metrics if one.id == row.id)
    lower, upper = sides(rule.objective, higher_is_better=better)
    interval = evidence.equivalence_interval
    difference = signed(evidence.difference)
    if interval is None:
        text = words("difference alone", difference=difference)
    else:
        limits = words.interval(interval.low, interval.high)
        text = words("difference numbers", difference=difference, interval=limits)
    return ForestRow(
        label=row.id,
        difference=evidence.difference,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        margin_low=-margin if lower else None,
        margin_high=margin if upper else None,
        text=text,
        verdict=verdict_cell(row.verdict, words),
    )


def _forest(rows: tuple[ForestRow, ...], source: Source, words: Words) -> Forest:
    bounds = bounds_text(source.plan)
    are_better = all(metric.higher_is_better for metric in source.plan.primaries)
    said = (words("forest row", label=row.label, numbers=row.text, verdict=row.verdict.text) for row in rows)
    return Forest(
        rows=rows,
        axis=words("forest axis"),
        left=words("worse" if are_better else "lower"),
        right=words("better" if are_better else "higher"),
        band=words("band") if "," in bounds else words("band of", bounds=bounds),
        description="; ".join(said),
    )


def _how(source: Source, words: Words) -> str:
    rule = source.plan.rule
    is_guarded = any(row.evidence and row.evidence.kind is EvidenceKind.COUNTS for row in source.primaries)
    key = "forest how one-sided" if is_one_sided(rule) else "forest how"
    return words(
        key,
        level=percent(1.0 - 2.0 * rule.alpha),
        bounds=bounds_text(source.plan),
        looks=words("over looks" if source.analysis.looks else "no looks"),
        guard=words("guard" if is_guarded else "no guard"),
    )

"""The report's charts as SVG: one drawing for paper and for the web.

Every shape carries its colours as attributes, which paper uses, and a class, by which a page's style sheet may give it
others. Nothing is told by colour alone. Lengths are in the drawing's own units.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from qualab.adapters.render.curve import draw_curve
from qualab.adapters.render.drawing import (
    BAND,
    COLOURS,
    FAINT,
    INK,
    SOFT,
    Scale,
    document,
    line,
    points,
    round_step,
    text_at,
)
from qualab.domain.report import MARKS, Bar, Chart, Curve, Forest, ForestRow, Histogram, Tone

WIDTH = 760.0
LABEL_END, PLOT_START, PLOT_END, TEXT_START = 212.0, 226.0, 520.0, 534.0
ROW, TOP = 40.0, 26.0
BAR_WIDTH, BAR_HEIGHT = 380.0, 200.0
MOST_TICKS = 6


def draw(chart: Chart) -> str:
    """The chart as an SVG document."""
    if isinstance(chart, Curve):
        return draw_curve(chart)
    return _forest(chart) if isinstance(chart, Forest) else _histogram(chart)


def _forest(chart: Forest) -> str:
    scale = _forest_scale(chart)
    bottom = TOP + ROW * len(chart.rows)
    parts = [*_bands(chart, scale), *_axis(chart, scale, bottom)]
    for place, row in enumerate(chart.rows):
        parts += _forest_row(row, scale, TOP + ROW * (place + 0.5))
    return document(WIDTH, bottom + 44.0, chart.description, parts)


def _forest_scale(chart: Forest) -> Scale:
    limits = [value for row in chart.rows for value in (row.low, row.high, row.margin_low, row.margin_high) if value]
    reach = 1.06 * max(map(abs, (*limits, *(row.difference for row in chart.rows), 0.001)))
    return Scale(-reach, reach, PLOT_START, PLOT_END)


def _bands(chart: Forest, scale: Scale) -> Iterator[str]:
    """Each metric's margin, from end to end of its row."""
    for place, row in enumerate(chart.rows):
        low = scale(row.margin_low) if row.margin_low is not None else PLOT_START
        high = scale(row.margin_high) if row.margin_high is not None else PLOT_END
        y = TOP + ROW * place
        yield _band(low, y, high - low, ROW)
        for edge, limit in ((low, row.margin_low), (high, row.margin_high)):
            if limit is not None:
                yield line("edge", (edge, y), (edge, y + ROW), SOFT, 'stroke-dasharray="3 3"')


def _band(x: float, y: float, width: float, height: float) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="band" {place} fill="{BAND}"/>'


def _axis(chart: Forest, scale: Scale, bottom: float) -> Iterator[str]:
    middle = (PLOT_START + PLOT_END) / 2.0
    yield text_at(scale(0.0) - 8.0, TOP - 9.0, f"← {chart.left}", anchor="end")
    yield text_at(scale(0.0) + 8.0, TOP - 9.0, f"{chart.right} →")
    yield line("axis", (scale(0.0), TOP - 4.0), (scale(0.0), bottom), INK)
    yield line("axis", (PLOT_START, bottom), (PLOT_END, bottom), SOFT)
    for tick in _ticks(scale):
        yield line("axis", (scale(tick), bottom), (scale(tick), bottom + 4.0), SOFT)
        yield text_at(scale(tick), bottom + 17.0, points(tick), anchor="middle")
    yield text_at(middle, bottom + 35.0, chart.axis, anchor="middle")
    yield _band(TEXT_START, bottom + 26.0, 14.0, 10.0)
    yield text_at(TEXT_START + 20.0, bottom + 35.0, chart.band)


def _ticks(scale: Scale) -> list[float]:
    """Round numbers, of which 0 is one."""
    step = round_step(2.0 * scale.high / MOST_TICKS)
    n = math.floor(scale.high / step)
    return [step * place for place in range(-n, n + 1)]


def _forest_row(row: ForestRow, scale: Scale, y: float) -> Iterator[str]:
    tone = row.verdict.tone
    task, _, metric = row.label.partition("/")
    yield line("rule", (0.0, y + ROW / 2.0), (WIDTH, y + ROW / 2.0), FAINT, 'stroke-width="0.6"')
    yield text_at(LABEL_END, y - 2.0, task, size=13.0, anchor="end", colour=INK, weight=700)
    yield text_at(LABEL_END, y + 12.0, metric, anchor="end")
    if row.low is not None and row.high is not None:
        yield line(f"tone {tone}", (scale(row.low), y), (scale(row.high), y), COLOURS[tone], 'stroke-width="2.4"')
        for limit in (row.low, row.high):
            yield line(
                f"tone {tone}", (scale(limit), y - 5.0), (scale(limit), y + 5.0), COLOURS[tone], 'stroke-width="1.6"'
            )
    yield _dot(scale(row.difference), y, tone)
    yield text_at(TEXT_START, y - 2.0, row.text, colour=INK)
    yield text_at(
        TEXT_START, y + 12.0, f"{MARKS[tone]} {row.verdict.text}".strip(), colour=COLOURS[tone], weight=700, tone=tone
    )


def _dot(x: float, y: float, tone: Tone) -> str:
    """Full where something is shown, hollow where it is open; a loss points down."""
    colour = COLOURS[tone]
    if tone is Tone.BAD:
        points = f"{x - 6.0:.1f},{y - 5.0:.1f} {x + 6.0:.1f},{y - 5.0:.1f} {x:.1f},{y + 6.5:.1f}"
        return f'<polygon class="tone {tone} full" points="{points}" fill="{colour}"/>'
    if tone is Tone.GOOD:
        return f'<circle class="tone {tone} full" cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="4.6"'
    return f'<circle class="tone {tone} hollow" {place} fill="#ffffff" stroke="{colour}" stroke-width="2"/>'


def _histogram(chart: Histogram) -> str:
    left, right, top, bottom = 46.0, BAR_WIDTH - 8.0, 34.0, BAR_HEIGHT - 44.0
    most = max(chart.highest, *(bar.share for bar in chart.bars))
    step = round_step(most / 4.0)
    height = Scale(0.0, step * math.ceil(most / step - 1e-9), bottom, top)
    slot = (right - left) / len(chart.bars)
    parts = [text_at(left, 16.0, chart.title, size=13.0, colour=INK, weight=700)]
    for number in range(round(height.high / step) + 1):
        y = height(step * number)
        parts.append(line("rule", (left, y), (right, y), FAINT))
        parts.append(text_at(left - 6.0, y + 4.0, points(step * number), anchor="end"))
    for place, bar in enumerate(chart.bars):
        parts += _bar(bar, x=left + slot * place, slot=slot, y=height(bar.share), bottom=bottom, is_first=place == 0)
    parts.append(line("axis", (left, bottom), (right, bottom), SOFT))
    parts.append(text_at((left + right) / 2.0, BAR_HEIGHT - 8.0, chart.axis, anchor="middle"))
    turned = f'transform="rotate(-90 11 {(top + bottom) / 2.0:.1f})"'
    parts.append(text_at(11.0, (top + bottom) / 2.0, chart.vertical_axis, anchor="middle", more=turned))
    return document(BAR_WIDTH, BAR_HEIGHT, chart.description, parts)


def _bar(bar: Bar, *, x: float, slot: float, y: float, bottom: float, is_first: bool) -> Iterator[str]:
    """The first bar, of rounds that accepted nothing, is hollow."""
    width = min(0.72 * slot, 46.0)
    middle = x + slot / 2.0
    colour = COLOURS[Tone.GOOD]
    fill, name = ("#ffffff", "bar nothing") if is_first else (colour, "bar")
    place = f'x="{middle - width / 2.0:.1f}" y="{y:.1f}" width="{width:.1f}" height="{bottom - y:.1f}"'
    yield f'<rect class="{name}" {place} fill="{fill}" stroke="{colour}" stroke-width="1.6"/>'
    yield text_at(middle, y - 4.0, bar.text, size=10.5, anchor="middle", colour=INK)
    yield text_at(middle, bottom + 15.0, bar.label, anchor="middle")

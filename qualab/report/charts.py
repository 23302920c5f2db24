"""What charts are drawn with: a scale, lines, texts and the document around them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from qualab.model.report import MARKS, Bar, Chart, Curve, Forest, ForestRow, Histogram, Tone
from qualab.model.wording import count

FONT = "Noto Sans CJK KR"
INK, SOFT, FAINT, BAND = "#1b1f24", "#57606a", "#d0d7de", "#dfe7ee"
COLOURS = {
    Tone.GOOD: "#005b96",
    Tone.BAD: "#b3390a",
    Tone.OPEN: "#4a4f55",
    Tone.BROKEN: "#7a3e9d",
    Tone.PLAIN: "#4a4f55",
}
"""Told apart by the colour-blind, and by their darkness; marks tell them apart without any colour."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places along the axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not smaller."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= least * (1.0 - 1e-9))


def points(fraction: float) -> str:
    """A tick in percentage points."""
    return f"{100.0 * fraction:.6g}".replace("-", "−")


def document(width: float, height: float, description: str, parts: list[str]) -> str:
    """A whole chart with what it says for who cannot see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="{FONT}" aria-label={quoteattr(description)}>{"".join(parts)}</svg>'
    )


def line(name: str, start: Point, end: Point, colour: str, more: str = "") -> str:
    """A straight line with a class."""
    (x1, y1), (x2, y2) = start, end
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="{name}" {place} stroke="{colour}" {more}/>'


def text_at(
    x: float,
    y: float,
    text: str,
    *,
    size: float = 11.5,
    anchor: str = "start",
    colour: str = SOFT,
    weight: int = 400,
    tone: Tone | None = None,
    more: str = "",
) -> str:
    """A text, escaped."""
    name = f"tone {tone}" if tone else ("ink" if colour == INK else "soft")
    variation = f"font-variation-settings=\"'wght' {weight}\""  # what sets it on paper takes no weight of such fonts
    look = f'font-size="{size:g}" font-weight="{weight}" {variation} text-anchor="{anchor}" fill="{colour}" {more}'
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'


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


CURVE_WIDTH, CURVE_HEIGHT = 560.0, 300.0
LEFT, RIGHT, CURVE_TOP, BOTTOM = 56.0, 540.0, 22.0, 244.0
CURVE_TICKS = 5


def draw_curve(chart: Curve) -> str:
    """The curve, the power that is aimed at, and where one stands on it."""
    across = Scale(0.0, chart.points[-1][0], LEFT, RIGHT)
    up = Scale(0.0, 1.0, BOTTOM, CURVE_TOP)
    parts = [*_grid(chart, across, up), *_target(chart, up), *_curve(chart, across, up), *_here(chart, across, up)]
    return document(CURVE_WIDTH, CURVE_HEIGHT, chart.description, parts)


def _grid(chart: Curve, across: Scale, up: Scale) -> Iterator[str]:
    for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        yield line("rule", (LEFT, up(share)), (RIGHT, up(share)), FAINT)
        yield text_at(LEFT - 8.0, up(share) + 4.0, points(share), anchor="end")
    step = max(1.0, round_step(across.high / CURVE_TICKS))
    for place in range(math.floor(across.high / step + 1e-9) + 1):
        x = across(step * place)
        yield line("axis", (x, BOTTOM), (x, BOTTOM + 4.0), SOFT)
        yield text_at(x, BOTTOM + 18.0, count(round(step * place)), anchor="middle")
    yield line("axis", (LEFT, BOTTOM), (RIGHT, BOTTOM), SOFT)
    yield text_at((LEFT + RIGHT) / 2.0, BOTTOM + 42.0, chart.axis, anchor="middle")
    middle = (CURVE_TOP + BOTTOM) / 2.0
    turned = f'transform="rotate(-90 12 {middle:.1f})"'
    yield text_at(12.0, middle, chart.vertical_axis, anchor="middle", more=turned)


def _target(chart: Curve, up: Scale) -> Iterator[str]:
    y = up(chart.target)
    yield line("edge", (LEFT, y), (RIGHT, y), SOFT, 'stroke-dasharray="5 4"')
    yield text_at(LEFT + 6.0, y - 5.0, chart.target_text)


def _curve(chart: Curve, across: Scale, up: Scale) -> Iterator[str]:
    path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in chart.points)
    colour = COLOURS[Tone.GOOD]
    yield f'<polyline class="curve" points="{path}" fill="none" stroke="{colour}" stroke-width="2.4"/>'


def _here(chart: Curve, across: Scale, up: Scale) -> Iterator[str]:
    """A hollow point below the aim, a full one at or above it."""
    (items, power), colour = chart.here, COLOURS[Tone.GOOD]
    x, y = across(items), up(power)
    name, fill = ("full", colour) if power >= chart.target else ("hollow", "#ffffff")
    yield line("edge", (x, y), (x, BOTTOM), SOFT, 'stroke-dasharray="2 3"')
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="5.5"'
    yield f'<circle class="tone good {name}" {place} fill="{fill}" stroke="{colour}" stroke-width="2"/>'
    is_right = x > (LEFT + RIGHT) / 2.0
    below = min(y + 24.0, BOTTOM - 8.0)
    if abs(below - 4.0 - up(chart.target)) < 12.0:  # not across the line of the aim
        below += 18.0
    yield text_at(
        x + (-12.0 if is_right else 12.0),
        below,
        chart.here_text,
        anchor="end" if is_right else "start",
        size=12.5,
        colour=INK,
        weight=700,
    )

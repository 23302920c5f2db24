"""Charts as SVG, drawn once for paper and the web; every text in them is escaped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from qualab.model.report import Chart, Curve, Flow, Forest, ForestRow, Histogram, PairBars, PairHistogram, Splits, Tone
from qualab.model.wording import count

FONT = "Noto Sans CJK KR"
INK, SOFT, FAINT, BAND, PALE = "#1b1f24", "#57606a", "#d0d7de", "#dfe7ee", "#8c959f"
COLOURS = {
    Tone.GOOD: "#005b96",
    Tone.BAD: "#b3390a",
    Tone.OPEN: "#4a4f55",
    Tone.BROKEN: "#7a3e9d",
    Tone.PLAIN: "#4a4f55",
}
"""Told apart by the colour-blind, and by their darkness; marks tell them apart without any colour."""
ARM_BARS = tuple(
    (name, f'fill="{fill}" stroke="{COLOURS[Tone.GOOD]}" stroke-width="1.2"')
    for name, fill in (("bar nothing", "#ffffff"), ("bar", COLOURS[Tone.GOOD]))
)
"""Class and look of the baseline's bars, and of the candidate's."""

Point = tuple[float, float]
Scale = Callable[[float], float]


def scale(low: float, high: float, start: float, end: float) -> Scale:
    """Map values to places along an axis."""
    return lambda value: start + (value - low) / (high - low) * (end - start)


def round_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not smaller."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= least * (1.0 - 1e-9))


def points(fraction: float) -> str:
    """Write a tick in percentage points."""
    return f"{100.0 * fraction:.6g}".replace("-", "−")


def document(width: float, height: float, description: str, parts: Iterable[str]) -> str:
    """Make a whole chart, with its description for screen readers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="{FONT}" aria-label={quoteattr(description)}>{"".join(parts)}</svg>'
    )


def line(name: str, start: Point, end: Point, colour: str, more: str = "") -> str:
    """Draw a straight line."""
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
    """Write a text, escaped."""
    name = f"tone {tone}" if tone else ("ink" if colour == INK else "soft")
    variation = f"font-variation-settings=\"'wght' {weight}\""  # what sets it on paper takes no weight of such fonts
    look = f'font-size="{size:g}" font-weight="{weight}" {variation} text-anchor="{anchor}" fill="{colour}" {more}'
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'


def upright(x: float, y: float, text: str) -> str:
    """Write the title of a vertical axis."""
    return text_at(x, y, text, anchor="middle", more=f'transform="rotate(-90 {x:g} {y:.1f})"')


def rect(name: str, corner: Point, size: tuple[float, float], look: str) -> str:
    """Draw a rectangle."""
    (x, y), (width, height) = corner, size
    return f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {look}/>'


def draw(chart: Chart, *, is_grey: bool = False, is_narrow: bool = False) -> str:
    """Draw a chart as an SVG document; pale and without colour where what it shows does not count.

    `is_narrow`: a forest for a phone, its texts above and below each line.
    """
    if is_grey:
        drawn = draw(chart, is_narrow=is_narrow)
        for colour in set(COLOURS.values()):
            drawn = drawn.replace(colour, PALE)
        return drawn.replace(INK, PALE)
    if isinstance(chart, Curve):
        return document(560.0, 300.0, chart.description, _curve(chart))
    if isinstance(chart, Forest):
        form = NARROW if is_narrow else FULL
        return document(form.width, TOP + form.row * len(chart.rows) + 44.0, chart.description, _forest(chart, form))
    if isinstance(chart, Flow):
        return document(
            WIDTH, 112.0 if any(step.lost for step in chart.steps) else 68.0, chart.description, _flow(chart)
        )
    if isinstance(chart, Splits):
        return document(WIDTH, TOP + SHORT_ROW * len(chart.rows) + 44.0, chart.description, _splits(chart))
    if isinstance(chart, PairBars):
        return document(WIDTH, TOP + ROW * len(chart.rows) + 44.0, chart.description, _pair_bars(chart))
    bars = _pair_histogram(chart) if isinstance(chart, PairHistogram) else _histogram(chart)
    return document(380.0, 200.0, chart.description, bars)


WIDTH = 760.0
LABEL_END, PLOT_START, PLOT_END, TEXT_START = 212.0, 226.0, 520.0, 534.0
ROW, SHORT_ROW, TOP = 40.0, 24.0, 26.0


class Form(NamedTuple):
    """Measures of a forest: its width, where the plot begins and ends, a row's height, and of its line from the top."""

    width: float
    start: float
    end: float
    row: float
    line: float


FULL = Form(WIDTH, PLOT_START, PLOT_END, ROW, ROW / 2.0)
NARROW = Form(360.0, 8.0, 352.0, 66.0, 32.0)


def _forest(chart: Forest, form: Form) -> Iterator[str]:
    limits = [value for row in chart.rows for value in (row.low, row.high, row.margin_low, row.margin_high) if value]
    reach = 1.06 * max(map(abs, (*limits, *(row.difference for row in chart.rows), 0.001)))
    across, bottom = scale(-reach, reach, form.start, form.end), TOP + form.row * len(chart.rows)
    for place, row in enumerate(chart.rows):
        y = TOP + form.row * place
        low = form.start if row.margin_low is None else across(row.margin_low)
        high = form.end if row.margin_high is None else across(row.margin_high)
        yield rect("band", (low, y), (high - low, form.row), f'fill="{BAND}"')
        for edge, limit in ((low, row.margin_low), (high, row.margin_high)):
            if limit is not None:
                yield line("edge", (edge, y), (edge, y + form.row), SOFT, 'stroke-dasharray="3 3"')
    yield text_at(across(0.0) - 8.0, TOP - 9.0, f"← {chart.left}", anchor="end")
    yield text_at(across(0.0) + 8.0, TOP - 9.0, f"{chart.right} →")
    yield line("axis", (across(0.0), TOP - 4.0), (across(0.0), bottom), INK)
    yield line("axis", (form.start, bottom), (form.end, bottom), SOFT)
    step = round_step(reach / 3.0)
    n_ticks = math.floor(reach / step)
    for tick in (step * place for place in range(-n_ticks, n_ticks + 1)):
        yield line("axis", (across(tick), bottom), (across(tick), bottom + 4.0), SOFT)
        yield text_at(across(tick), bottom + 17.0, points(tick), anchor="middle")
    if form is FULL:
        yield text_at((form.start + form.end) / 2.0, bottom + 35.0, chart.axis, anchor="middle")
    else:
        yield text_at(form.start, bottom + 35.0, chart.axis)
    x = TEXT_START if form is FULL else form.end - 130.0
    yield rect("band", (x, bottom + 26.0), (14.0, 10.0), f'fill="{BAND}"')
    yield text_at(x + 20.0, bottom + 35.0, chart.band)
    for place, row in enumerate(chart.rows):
        yield from _forest_row(row, across, TOP + form.row * place, form)


def _forest_row(row: ForestRow, across: Scale, top: float, form: Form) -> Iterator[str]:
    y = top + form.line
    tone, colour = row.verdict.tone, COLOURS[row.verdict.tone]
    task, _, metric = row.label.partition("/")
    below = top + form.row
    yield line("rule", (0.0, below), (form.width, below), FAINT, 'stroke-width="0.6"')
    if form is FULL:
        yield text_at(LABEL_END, y - 2.0, task, size=13.0, anchor="end", colour=INK, weight=700)
        yield text_at(LABEL_END, y + 12.0, metric, anchor="end")
    else:
        yield text_at(form.start, top + 16.0, task, size=13.0, colour=INK, weight=700)
        yield text_at(form.end, top + 16.0, metric, anchor="end")
    if row.low is not None and row.high is not None:
        low, high = across(row.low), across(row.high)
        yield line(f"tone {tone}", (low, y), (high, y), colour, 'stroke-width="2.4"')
        for limit in (low, high):
            yield line(f"tone {tone}", (limit, y - 5.0), (limit, y + 5.0), colour, 'stroke-width="1.6"')
    x = across(row.difference)
    if tone is Tone.BAD:
        corners = f"{x - 6.0:.1f},{y - 5.0:.1f} {x + 6.0:.1f},{y - 5.0:.1f} {x:.1f},{y + 6.5:.1f}"
        yield f'<polygon class="tone {tone} full" points="{corners}" fill="{colour}"/>'
    else:
        yield _circle(x, y, f"tone {tone}", colour, is_full=tone is Tone.GOOD)
    text, verdict = (
        ((TEXT_START, y - 2.0), (TEXT_START, y + 12.0))
        if form is FULL
        else ((form.start, top + 57.0), (form.end, top + 57.0))
    )
    yield text_at(*text, row.text, colour=INK)
    anchor = "start" if form is FULL else "end"
    yield text_at(*verdict, row.verdict.marked, colour=colour, weight=700, tone=tone, anchor=anchor)


def _circle(x: float, y: float, name: str, colour: str, *, is_full: bool) -> str:
    look = f'class="{name} {"full" if is_full else "hollow"}" cx="{x:.1f}" cy="{y:.1f}" r="4.8"'
    return f'<circle {look} fill="{colour if is_full else "#ffffff"}" stroke="{colour}" stroke-width="2"/>'


def _flow(chart: Flow) -> Iterator[str]:
    slot = WIDTH / len(chart.steps)
    width, middle = slot - 30.0, 34.0
    for place, step in enumerate(chart.steps):
        x = slot * place + 2.0
        look = f'fill="{BAND}" stroke="{SOFT}" stroke-width="1"'
        yield rect("band", (x, 8.0), (width, 52.0), look)
        yield text_at(x + width / 2.0, 28.0, step.title, anchor="middle")
        yield text_at(x + width / 2.0, 48.0, step.text, anchor="middle", size=13.0, colour=INK, weight=700)
        if place:
            yield line("axis", (x - 28.0, middle), (x - 4.0, middle), SOFT)
            corners = f"{x - 10.0:.1f},{middle - 4.0:.1f} {x - 10.0:.1f},{middle + 4.0:.1f} {x - 3.0:.1f},{middle:.1f}"
            yield f'<polygon class="soft" points="{corners}" fill="{SOFT}"/>'
        if step.lost:
            yield line("edge", (x - 15.0, middle), (x - 15.0, 80.0), SOFT, 'stroke-dasharray="3 3"')
            yield text_at(min(x - 15.0, WIDTH - 90.0), 96.0, step.lost, anchor="middle", colour=INK)


def _splits(chart: Splits) -> Iterator[str]:
    reach = 1.1 * max((max(row.loss, row.gain) for row in chart.rows), default=0.0) or 0.01
    across, bottom = scale(-reach, reach, PLOT_START, PLOT_END), TOP + SHORT_ROW * len(chart.rows)
    yield text_at(across(0.0) - 8.0, TOP - 9.0, f"← {chart.left}", anchor="end")
    yield text_at(across(0.0) + 8.0, TOP - 9.0, f"{chart.right} →")
    step = round_step(reach / 3.0)
    for tick in (step * place for place in range(-math.floor(reach / step), math.floor(reach / step) + 1)):
        yield line("rule", (across(tick), TOP), (across(tick), bottom), FAINT)
        yield text_at(across(tick), bottom + 17.0, points(abs(tick)), anchor="middle")
    for place, row in enumerate(chart.rows):
        y, zero = TOP + SHORT_ROW * place, across(0.0)
        yield text_at(LABEL_END, y + 16.0, row.label, anchor="end", colour=INK)
        for start, end, tone in ((across(-row.loss), zero, Tone.BAD), (zero, across(row.gain), Tone.GOOD)):
            if end > start:
                full = tone is Tone.BAD
                look = f'fill="{COLOURS[tone] if full else "#ffffff"}" stroke="{COLOURS[tone]}" stroke-width="1.2"'
                yield rect(f"tone {tone} {'full' if full else 'hollow'}", (start, y + 5.0), (end - start, 14.0), look)
        yield text_at(TEXT_START, y + 16.0, row.text, colour=INK)
    yield line("axis", (across(0.0), TOP - 4.0), (across(0.0), bottom), INK)
    yield line("axis", (PLOT_START, bottom), (PLOT_END, bottom), SOFT)
    yield text_at((PLOT_START + PLOT_END) / 2.0, bottom + 35.0, chart.axis, anchor="middle")


def _histogram(chart: Histogram) -> Iterator[str]:
    left, right, top, bottom = 46.0, 372.0, 34.0, 156.0
    most = max(chart.highest, *(bar.share for bar in chart.bars))
    step = round_step(most / 4.0)
    n_steps = math.ceil(most / step - 1e-9)
    up = scale(0.0, step * n_steps, bottom, top)
    yield text_at(left, 16.0, chart.title, size=13.0, colour=INK, weight=700)
    for tick in (step * place for place in range(n_steps + 1)):
        yield line("rule", (left, up(tick)), (right, up(tick)), FAINT)
        yield text_at(left - 6.0, up(tick) + 4.0, points(tick), anchor="end")
    slot, colour = (right - left) / len(chart.bars), COLOURS[Tone.GOOD]
    for place, bar in enumerate(chart.bars):
        middle, width, y = left + slot * (place + 0.5), min(0.72 * slot, 46.0), up(bar.share)
        name, fill = ("bar", colour) if place else ("bar nothing", "#ffffff")
        look = f'fill="{fill}" stroke="{colour}" stroke-width="1.6"'
        yield rect(name, (middle - width / 2.0, y), (width, bottom - y), look)
        yield text_at(middle, y - 4.0, bar.text, size=10.5, anchor="middle", colour=INK)
        yield text_at(middle, bottom + 15.0, bar.label, anchor="middle")
    yield line("axis", (left, bottom), (right, bottom), SOFT)
    yield text_at((left + right) / 2.0, 192.0, chart.axis, anchor="middle")
    yield upright(11.0, (top + bottom) / 2.0, chart.vertical_axis)


def _pair_histogram(chart: PairHistogram) -> Iterator[str]:
    left, right, top, bottom = 62.0, 372.0, 48.0, 156.0
    n_powers = max(1, math.ceil(math.log10(max(map(max, chart.counts)))))
    up = scale(-0.35, n_powers, bottom, top)  # a single token is seen
    yield text_at(left, 16.0, chart.title, size=13.0, colour=INK, weight=700)
    for (bar, look), name, x in zip(ARM_BARS, chart.names, (left, left + 90.0), strict=True):
        yield rect(bar, (x, 24.0), (10.0, 10.0), look)
        yield text_at(x + 15.0, 33.0, name)
    for power in range(n_powers + 1):
        yield line("rule", (left, up(power)), (right, up(power)), FAINT)
        yield text_at(left - 6.0, up(power) + 4.0, count(10**power), anchor="end")
    slot = (right - left) / len(chart.edges)
    for place, edge in enumerate(chart.edges):
        x = left + slot * place
        for (bar, look), n, start in zip(ARM_BARS, (own[place] for own in chart.counts), (0.1, 0.52), strict=True):
            if n:
                y = up(math.log10(n))
                yield rect(bar, (x + start * slot, y), (0.38 * slot, bottom - y), look)
        yield line("axis", (x, bottom), (x, bottom + 4.0), SOFT)
        yield text_at(x, bottom + 16.0, edge, anchor="middle", size=10.5)
    if chart.limit is not None:
        x = left + slot * chart.limit
        yield line("edge", (x, top - 12.0), (x, bottom), SOFT, 'stroke-dasharray="3 3"')
        yield text_at(x + 4.0, top - 5.0, chart.limit_text)
    yield line("axis", (left, bottom), (right, bottom), SOFT)
    yield text_at((left + right) / 2.0, 192.0, chart.axis, anchor="middle")
    yield upright(11.0, (top + bottom) / 2.0, chart.vertical_axis)


def _pair_bars(chart: PairBars) -> Iterator[str]:
    fastest = (range_[1] for row in chart.rows for range_ in row.ranges if range_)
    most = max((*fastest, *(value or 0.0 for row in chart.rows for value in row.values), 1e-9))
    across, bottom = scale(0.0, 1.04 * most, PLOT_START, PLOT_END), TOP + ROW * len(chart.rows)
    for (name, look), text, x in zip(ARM_BARS, chart.names, (PLOT_START, PLOT_START + 110.0), strict=True):
        yield rect(name, (x, 6.0), (10.0, 10.0), look)
        yield text_at(x + 15.0, 15.0, text)
    step = round_step(most / 4.0)
    for tick in (step * place for place in range(math.floor(1.04 * most / step) + 1)):
        yield line("rule", (across(tick), TOP), (across(tick), bottom), FAINT)
        yield text_at(across(tick), bottom + 17.0, f"{tick:,.6g}", anchor="middle")
    for place, row in enumerate(chart.rows):
        y, tone = TOP + ROW * place, row.ratio.tone
        yield text_at(LABEL_END, y + 18.0, row.label, size=13.0, anchor="end", colour=INK, weight=700)
        yield text_at(LABEL_END, y + 32.0, row.note, anchor="end")
        for (name, look), down, value, range_ in zip(ARM_BARS, (7.0, 21.0), row.values, row.ranges, strict=True):
            if value is not None:
                yield rect(name, (PLOT_START, y + down), (across(value) - PLOT_START, 11.0), look)
            if range_:
                low, high, middle = across(range_[0]), across(range_[1]), y + down + 5.5
                ends = (((x, middle - 3.5), (x, middle + 3.5)) for x in (low, high))
                lines = ((low, middle), (high, middle)), *ends
                yield from (line("halo", *own, "#ffffff", 'stroke-width="3.6"') for own in lines)
                yield from (line("spread", *own, INK, 'stroke-width="1.4"') for own in lines)
        yield text_at(TEXT_START, y + 25.0, row.ratio.marked, colour=COLOURS[tone], weight=700, tone=tone)
    yield line("axis", (PLOT_START, TOP), (PLOT_START, bottom), INK)
    yield line("axis", (PLOT_START, bottom), (PLOT_END, bottom), SOFT)
    yield text_at((PLOT_START + PLOT_END) / 2.0, bottom + 35.0, chart.axis, anchor="middle")


def _curve(chart: Curve) -> Iterator[str]:
    left, right, top, bottom = 56.0, 540.0, 22.0, 244.0
    most = chart.points[-1][0]
    across, up = scale(0.0, most, left, right), scale(0.0, 1.0, bottom, top)
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        yield line("rule", (left, up(tick)), (right, up(tick)), FAINT)
        yield text_at(left - 8.0, up(tick) + 4.0, points(tick), anchor="end")
    step = max(1.0, round_step(most / 5.0))
    for n_items in (step * place for place in range(math.floor(most / step + 1e-9) + 1)):
        yield line("axis", (across(n_items), bottom), (across(n_items), bottom + 4.0), SOFT)
        yield text_at(across(n_items), bottom + 18.0, count(round(n_items)), anchor="middle")
    yield line("axis", (left, bottom), (right, bottom), SOFT)
    yield text_at((left + right) / 2.0, bottom + 42.0, chart.axis, anchor="middle")
    yield upright(12.0, (top + bottom) / 2.0, chart.vertical_axis)
    aim = up(chart.target)
    yield line("edge", (left, aim), (right, aim), SOFT, 'stroke-dasharray="5 4"')
    yield text_at(left + 6.0, aim - 5.0, chart.target_text)
    path, colour = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in chart.points), COLOURS[Tone.GOOD]
    yield f'<polyline class="curve" points="{path}" fill="none" stroke="{colour}" stroke-width="2.4"/>'
    x, y = across(chart.here[0]), up(chart.here[1])
    yield line("edge", (x, y), (x, bottom), SOFT, 'stroke-dasharray="2 3"')
    yield _circle(x, y, "tone good", colour, is_full=chart.here[1] >= chart.target)
    is_right, below = x > (left + right) / 2.0, min(y + 24.0, bottom - 8.0)
    if abs(below - 4.0 - aim) < 12.0:  # not across the line of the aim
        below += 18.0
    place, anchor = (x - 12.0, "end") if is_right else (x + 12.0, "start")
    yield text_at(place, below, chart.here_text, anchor=anchor, size=12.5, colour=INK, weight=700)

"""A curve of power as SVG, in the style of the other charts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from qualab.adapters.render.drawing import (
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
from qualab.domain.numbers import count
from qualab.domain.report import Curve, Tone

WIDTH, HEIGHT = 560.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 540.0, 22.0, 244.0
MOST_TICKS = 5


def draw_curve(chart: Curve) -> str:
    """The curve, the power that is aimed at, and where one stands on it."""
    across = Scale(0.0, chart.points[-1][0], LEFT, RIGHT)
    up = Scale(0.0, 1.0, BOTTOM, TOP)
    parts = [*_grid(chart, across, up), *_target(chart, up), *_curve(chart, across, up), *_here(chart, across, up)]
    return document(WIDTH, HEIGHT, chart.description, parts)


def _grid(chart: Curve, across: Scale, up: Scale) -> Iterator[str]:
    for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        yield line("rule", (LEFT, up(share)), (RIGHT, up(share)), FAINT)
        yield text_at(LEFT - 8.0, up(share) + 4.0, points(share), anchor="end")
    step = max(1.0, round_step(across.high / MOST_TICKS))
    for place in range(math.floor(across.high / step + 1e-9) + 1):
        x = across(step * place)
        yield line("axis", (x, BOTTOM), (x, BOTTOM + 4.0), SOFT)
        yield text_at(x, BOTTOM + 18.0, count(round(step * place)), anchor="middle")
    yield line("axis", (LEFT, BOTTOM), (RIGHT, BOTTOM), SOFT)
    yield text_at((LEFT + RIGHT) / 2.0, BOTTOM + 42.0, chart.axis, anchor="middle")
    middle = (TOP + BOTTOM) / 2.0
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

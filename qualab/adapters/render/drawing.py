"""What charts are drawn with: a scale, lines, texts and the document around them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from qualab.domain.report import Tone

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

"""Charts: numbers where they belong, labelled axes, nothing told by colour alone, text never markup."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from qualab.model.report import (
    Bar,
    Cell,
    Chart,
    Flow,
    Forest,
    ForestRow,
    Histogram,
    PairBar,
    PairBars,
    Split,
    Splits,
    Step,
    Tone,
)
from qualab.report.charts import COLOURS, INK, draw

SVG = "{http://www.w3.org/2000/svg}"
OPEN = Cell(text="INCONCLUSIVE", tone=Tone.OPEN)
TEXTS = {"label": "gsm8k/exact_match,none", "text": "−1.00 (−3.00 to +1.00) pp"}
ROW = ForestRow(**TEXTS, difference=-0.01, low=-0.03, high=0.01, margin_low=-0.02, margin_high=0.02, verdict=OPEN)
FOREST = Forest(
    rows=(ROW,), axis="difference (pp)", left="worse", right="better", band="margin", description="one metric"
)
HISTOGRAM = Histogram(
    title="gsm8k: 10 rounds",
    bars=(Bar(label="0", count=5, share=0.5, text="50.0 %"), Bar(label="1", count=5, share=0.25, text="25.0 %")),
    axis="accepted",
    vertical_axis="share (%)",
    description="rounds",
)


FASTER = PairBar(
    label="copying",
    note="256 tokens",
    values=(20.0, 44.0),
    ranges=((19.0, 21.0), None),
    text="20.0 / 44.0",
    ratio=Cell(text="×2.20", tone=Tone.GOOD),
)
PAIRS = PairBars(rows=(FASTER,), names=("baseline", "candidate"), axis="tokens a second", description="copying: ×2.20")


def parsed(chart: Chart) -> ET.Element:
    return ET.fromstring(draw(chart))


def texts(chart: Chart) -> list[str]:
    return ["".join(one.itertext()) for one in parsed(chart).iter(f"{SVG}text")]


def x_of(pattern: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, draw(FOREST))]


FOREST_TEXTS = ("gsm8k", "exact_match,none", ROW.text, "? INCONCLUSIVE", "difference (pp)", "margin", "← worse")
PAIRS_TEXTS = ("copying", "256 tokens", "baseline", "candidate", "✓ ×2.20", "tokens a second", "0", "20", "40")
HISTOGRAM_TEXTS = ("gsm8k: 10 rounds", "50.0 %", "25.0 %", "accepted", "share (%)", "0", "1")


@pytest.mark.parametrize(
    ("chart", "expected"),
    [(FOREST, (*FOREST_TEXTS, "better →")), (HISTOGRAM, HISTOGRAM_TEXTS), (PAIRS, PAIRS_TEXTS)],
    ids=["forest", "bars", "pairs"],
)
def test_a_chart_says_its_numbers_and_its_axes(chart: Chart, expected: tuple[str, ...]) -> None:
    assert [text for text in expected if text not in texts(chart)] == []
    assert parsed(chart).get("aria-label") == chart.description


def test_the_dot_stands_between_its_limits_if_it_has_any_and_the_band_around_zero() -> None:
    (dot,) = x_of(r'<circle class="tone open hollow" cx="([\d.]+)"')
    limits = x_of(r'<line class="tone open" x1="([\d.]+)"')
    low, high = min(limits), max(limits)
    start, width = re.findall(r'<rect class="band" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', draw(FOREST))[0]
    edges = float(start), float(start) + float(width)
    assert low < dot < high
    assert low < edges[0] < dot < edges[1]
    assert (dot - low) == pytest.approx((high - low) / 2.0, abs=0.2)
    assert (edges[1] - edges[0]) == pytest.approx(high - low, abs=0.2)
    alone = draw(replace(FOREST, rows=(replace(ROW, low=None, high=None),)))
    assert ('class="tone open hollow"' in alone, '<line class="tone open"' in alone) == (True, False)
    assert draw(replace(FOREST, rows=(replace(ROW, margin_high=None),))).count('class="edge"') == 1


def test_tones_differ_in_shape_and_filling() -> None:
    marks = set()
    for tone in (Tone.GOOD, Tone.BAD, Tone.OPEN):
        root = parsed(replace(FOREST, rows=(replace(ROW, verdict=Cell(text="x", tone=tone)),)))
        shapes = [f"{one.tag} {one.get('class', '').replace(tone, '')}" for one in root if one.tag != f"{SVG}text"]
        marks.add(tuple(shapes))
    assert len(marks) == 3


def test_bars_are_as_high_as_their_shares() -> None:
    heights = {one.get("class"): float(one.get("height", "0")) for one in parsed(HISTOGRAM).iter(f"{SVG}rect")}
    assert heights["bar nothing"] == pytest.approx(2.0 * heights["bar"], abs=0.2)


@pytest.mark.parametrize("hostile", ['<script>alert("x")</script>', '"onload="alert(1)', "&amp;"])
def test_text_is_never_markup(hostile: str) -> None:
    chart: Any = replace(FOREST, rows=(replace(ROW, text=hostile, label=f"{hostile}/m"),), description=hostile)
    assert hostile in texts(chart)
    assert parsed(chart).get("aria-label") == hostile
    assert not list(parsed(chart).iter(f"{SVG}script"))


def test_bars_of_a_pair_are_as_long_as_their_values_and_only_known_ones_are_drawn() -> None:
    def widths(chart: PairBars) -> dict[str, float]:
        drawn = re.findall(r'<rect class="(bar(?: nothing)?)" x="226.0" y="[3-9][\d.]+" width="([\d.]+)"', draw(chart))
        return {name: float(width) for name, width in drawn}

    both = widths(PAIRS)
    assert both["bar"] / both["bar nothing"] == pytest.approx(2.2, abs=0.01)
    assert draw(PAIRS).count('class="spread"') == 3  # the baseline's whisker and its ends
    alone = replace(PAIRS, rows=(replace(FASTER, values=(20.0, None), ranges=(None, None)),))
    assert (list(widths(alone)), 'class="spread"' in draw(alone)) == (["bar nothing"], False)


FLOW = Flow(
    steps=(Step(title="asked", text="500"), Step(title="paired", text="497", lost="3 without an <answer>")),
    description="asked 500; paired 497",
)
SPLITS = Splits(
    rows=(
        Split(label="gsm8k", loss=0.02, gain=0.01, text="−2 / +1 of 100"),
        Split(label="b", loss=0, gain=0, text="0"),
    ),
    axis="share",
    left="lost",
    right="gained",
    description="gsm8k: −2 / +1 of 100",
)


def test_a_flow_names_each_step_and_what_did_not_reach_it() -> None:
    assert texts(FLOW) == ["asked", "500", "paired", "497", "3 without an <answer>"]
    assert len(list(parsed(FLOW).iter(f"{SVG}polygon"))) == 1


def test_losses_lie_left_of_zero_and_gains_right_told_apart_without_colour() -> None:
    bars = [one for one in parsed(SPLITS).iter(f"{SVG}rect") if "tone" in one.get("class", "")]
    (loss, gain), (zero,) = bars, [float(x) for x in re.findall(r'x1="([\d.]+)" y1="22.0"', draw(SPLITS))]
    assert float(loss.get("x", 0)) + float(loss.get("width", 0)) == pytest.approx(zero, abs=0.15)
    assert float(gain.get("x", 0)) == pytest.approx(zero, abs=0.15)
    assert float(loss.get("width", 0)) == pytest.approx(2 * float(gain.get("width", 0)), abs=0.2)
    assert ("full" in loss.get("class", ""), "hollow" in gain.get("class", "")) == (True, True)
    assert {"gsm8k", "−2 / +1 of 100", "← lost", "gained →", "share"} <= set(texts(SPLITS))


@pytest.mark.parametrize("chart", [FOREST, HISTOGRAM, PAIRS, FLOW, SPLITS])
def test_a_grey_chart_has_no_colour_and_the_same_texts(chart: Chart) -> None:
    grey = draw(chart, is_grey=True)
    assert [colour for colour in (*COLOURS.values(), INK) if colour in grey] == []
    assert ["".join(one.itertext()) for one in ET.fromstring(grey).iter(f"{SVG}text")] == texts(chart)

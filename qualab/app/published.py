"""A published drafter-off / drafter-on table, recomputed, and what pairing would have given at the same items.

Source of the figures: the published A/B of a 27B model (NVFP4, one B200) with 600 items a benchmark, IFEval 541;
proportions rounded to four decimals, and unpaired z-tests, although the data were paired. 34 metrics were compared; the
smallest p was 0.774.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qualab.app.calculators import PLANNING_POWER, EarlyLooks, early_looks, smallest_effects
from qualab.stats.difference import two_proportion_z
from qualab.stats.sizing import items_needed, smallest_margin
from qualab.stats.unpaired import items_unpaired_equivalence, mde_unpaired, power_unpaired

PAIRED_ITEMS = 600
DISCORDANCES = (0.01, 0.02, 0.05, 0.1, 0.2)
MARGINS = (0.01, 0.02, 0.03)
APART = 0.04
"""A loss that a reader of the table would want to have seen."""
PLANNED_MARGIN = 0.02
PLANNED_POWER = 0.9
PLANNED_DISCORDANCES = (0.02, 0.05, 0.1)
ACCURACIES = (0.5, 0.76)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One benchmark as published: shares right, and the p-value that was printed."""

    metric: str
    n_items: int
    off: float
    on: float
    pvalue: float


PUBLISHED = (
    PublishedRow(metric="GSM8K strict", n_items=600, off=0.5100, on=0.5017, pvalue=0.774),
    PublishedRow(metric="HAERAE", n_items=600, off=0.7617, on=0.7626, pvalue=0.971),
    PublishedRow(metric="KoBEST", n_items=600, off=0.6700, on=0.6715, pvalue=0.956),
    PublishedRow(metric="belebele-ko", n_items=600, off=0.9000, on=0.8983, pvalue=0.922),
    PublishedRow(metric="IFEval prompt-strict", n_items=541, off=0.3087, on=0.3068, pvalue=0.946),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedRow:
    published: PublishedRow
    pvalue: float
    """Of the pooled two-proportion z-test on the published figures."""
    mde80: float
    """Smallest loss that this test sees with a power of 0.8."""
    mde90: float
    power_at_4pp: float
    """That it sees two arms 0.04 apart, around the mean of the published two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRow:
    """What 600 paired items show at one discordance, two-sided 0.05 or 0.05 a side."""

    discordance: float
    mde80: float | None
    """Exact McNemar, the total discordance fixed; None: there is none."""
    mde_beyond_noise80: float | None
    margin80: float | None
    """Narrowest margin proven by the score tests with a power of 0.8."""
    margin90: float | None
    items_for_1pp: int
    """Items for ±0.01 with a power of 0.8; so the next two for ±0.02 and ±0.03."""
    items_for_2pp: int
    items_for_3pp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningRow:
    """Items for ±0.02 with a power of 0.9 at one discordance."""

    discordance: float
    fixed_items: int
    looks: EarlyLooks
    """The same with ten looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpairedPlanningRow:
    """Items an arm for ±0.02 with a power of 0.9 by unpaired tests."""

    accuracy: float
    n_items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    published: tuple[ReproducedRow, ...]
    paired_items: int
    paired: tuple[PairedRow, ...]
    planned_margin: float
    planned_power: float
    planning: tuple[PlanningRow, ...]
    planning_unpaired: tuple[UnpairedPlanningRow, ...]


def reproduce() -> Reproduction:
    """The published table with its p-values recomputed, and what paired tests give: a few seconds of computing."""
    return Reproduction(
        published=tuple(map(reproduce_row, PUBLISHED)),
        paired_items=PAIRED_ITEMS,
        paired=tuple(map(paired_row, DISCORDANCES)),
        planned_margin=PLANNED_MARGIN,
        planned_power=PLANNED_POWER,
        planning=tuple(map(planning_row, PLANNED_DISCORDANCES)),
        planning_unpaired=tuple(map(unpaired_planning_row, ACCURACIES)),
    )


def reproduce_row(row: PublishedRow) -> ReproducedRow:
    """One published row, by the unpaired test that it was made with."""
    n = row.n_items
    found = two_proportion_z(baseline=row.off, candidate=row.on, n_baseline=n, n_candidate=n)
    return ReproducedRow(
        published=row,
        pvalue=found.pvalue,
        mde80=mde_unpaired(n_items=n, baseline=row.off, power=0.8),
        mde90=mde_unpaired(n_items=n, baseline=row.off, power=0.9),
        power_at_4pp=power_unpaired(n_items=n, baseline=(row.off + row.on + APART) / 2.0, difference=-APART),
    )


def paired_row(discordance: float) -> PairedRow:
    """What pairing gives at the published number of items."""
    found = smallest_effects(n_items=PAIRED_ITEMS, discordance=discordance)
    one, two, three = (items_needed(discordance=discordance, margin=margin, power=PLANNING_POWER) for margin in MARGINS)
    return PairedRow(
        discordance=discordance,
        mde80=found.mde,
        mde_beyond_noise80=found.mde_beyond_noise,
        margin80=found.smallest_margin,
        margin90=smallest_margin(n_items=PAIRED_ITEMS, discordance=discordance, power=0.9),
        items_for_1pp=one,
        items_for_2pp=two,
        items_for_3pp=three,
    )


def planning_row(discordance: float) -> PlanningRow:
    """Items for ±2 pp, with and without looks."""
    return PlanningRow(
        discordance=discordance,
        fixed_items=items_needed(discordance=discordance, margin=PLANNED_MARGIN, power=PLANNED_POWER),
        looks=early_looks(discordance=discordance, margin=PLANNED_MARGIN, power=PLANNED_POWER),
    )


def unpaired_planning_row(accuracy: float) -> UnpairedPlanningRow:
    """The same, had the arms not answered the same items."""
    needed = items_unpaired_equivalence(baseline=accuracy, margin=PLANNED_MARGIN, power=PLANNED_POWER)
    return UnpairedPlanningRow(accuracy=accuracy, n_items=math.ceil(needed))

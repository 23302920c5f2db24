"""Small calculators for a person with counts, or with a plan in mind: plain functions that return frozen values.

Differences are candidate − baseline; every share, margin and difference is a fraction. Where an answer does not exist
the value is None, never a number that stands for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from qualab.analysis.evidence import evidence_of, pairs_of_counts, with_zero
from qualab.analysis.judge import is_equivalent, judge
from qualab.analysis.samples import Streams
from qualab.errors import InvalidValue
from qualab.model.comparison import ItemsRange
from qualab.model.names import Verdict
from qualab.model.plan import MetricRule
from qualab.model.reason import Reason
from qualab.planning.power import SEED, EarlyLooks, early_looks, if_any
from qualab.stats.checks import check_alpha, check_items, check_power, check_rates
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import (
    items_unpaired_equivalence,
    mcnemar_sides,
    mcnemar_unconditional,
    mde_unpaired,
    power_unpaired,
    two_proportion_z,
)
from qualab.stats.equivalence import equivalence
from qualab.stats.interval import ConfidenceInterval, newcombe, tango
from qualab.stats.looks import MOST_GUARDED
from qualab.stats.sizing import (
    MAX_ITEMS,
    McNemarMethod,
    discordance_with_repeats,
    items_needed,
    joint_power,
    mde,
    mde_beyond_noise,
    power_equivalence,
    power_for_joint,
    power_mcnemar,
    smallest_margin,
)

PLANNING_POWER = 0.8
"""Of the items needed that go with a test, as in a comparison's analysis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """Everything that the counts of one 0/1 metric say."""

    n_items: int
    gains: int
    losses: int
    both_right: int | None
    margin: float
    alpha: float
    difference: float
    discordance: float
    baseline: float | None
    """Share right; None where the items right in both arms were not given. So is `candidate`."""
    candidate: float | None
    interval: ConfidenceInterval
    """Tango's at the level that was asked for: decides nothing."""
    interval_newcombe: ConfidenceInterval | None
    """As a cross-check, at the same level; None without the items right in both arms."""
    pvalue: float
    """Mid-p McNemar: the one that decides."""
    pvalue_loss: float
    """One-sided mid-p: small where the candidate is worse."""
    pvalue_gain: float
    pvalue_exact: float
    """A cross-check, which decides nothing; so is the next."""
    pvalue_unconditional: float
    pvalue_unpaired: float | None
    """For comparison with older reports only; None without the items right in both arms."""
    equivalence_interval: ConfidenceInterval
    """Tango's at 1 − 2 alpha: the one that decides."""
    pvalue_lower: float
    """Of the score test against −margin."""
    pvalue_upper: float
    """Of the score test against +margin."""
    pvalue_equivalence: float
    """The larger one of the two."""
    pvalue_equivalence_exact: float
    """The larger one of their exact guards."""
    is_equivalent: bool
    """Both p-values of equivalence are at most alpha: within the margin, whatever the verdict says besides."""
    is_strict: bool
    verdict: Verdict
    reason: Reason
    provable_margin: float
    """The smallest margin that these counts prove; 1 where they prove none."""
    items_needed: int | None
    """For the margin at this discordance, no true difference and a power of 0.8; None where the verdict is not
    INCONCLUSIVE, and where more than 200,000 would be."""
    items_needed_range: ItemsRange | None
    """The same over the 1 − 2 alpha interval of the discordance."""
    items_needed_observed: int | None
    """If the observed difference is the true one; None also where that is the margin or more."""
    items_needed_observed_range: ItemsRange | None


def paired_test(
    *,
    gains: int,
    losses: int,
    n_items: int,
    margin: float,
    alpha: float = 0.05,
    confidence_level: float = 0.95,
    both_right: int | None = None,
    is_strict: bool = False,
) -> PairedTest:
    """Test the counts of one metric for a difference and for equivalence within ±margin, as a comparison does."""
    counts = PairedCounts(n_items=n_items, gains=gains, losses=losses, both_right=both_right)
    _check_offered(n_items)
    baseline, candidate = (None, None) if both_right is None else counts.accuracies
    equal = equivalence(counts, margin=margin, alpha=alpha)
    rule = MetricRule(margin=margin, alpha=alpha, power=PLANNING_POWER, strict=is_strict)
    unsized = evidence_of(pairs_of_counts(counts), rule, Streams(seed=SEED), "counts")
    verdict, reason, evidence = judge(unsized, (), rule)
    assert evidence is not None
    exact, outer, inner = evidence.pvalue_exact, tango(counts, confidence_level=confidence_level), equal.interval
    assert exact is not None
    loss, gain = mcnemar_sides(gains, losses)
    return PairedTest(
        n_items=n_items,
        gains=gains,
        losses=losses,
        both_right=both_right,
        margin=margin,
        alpha=alpha,
        difference=counts.difference,
        discordance=counts.discordance,
        baseline=baseline,
        candidate=candidate,
        interval=with_zero(outer, evidence.pvalue, (1.0 - confidence_level) / 2.0),
        interval_newcombe=None if both_right is None else newcombe(counts, confidence_level=confidence_level),
        pvalue=evidence.pvalue,
        pvalue_loss=loss,
        pvalue_gain=gain,
        pvalue_exact=exact,
        pvalue_unconditional=mcnemar_unconditional(counts),
        pvalue_unpaired=None
        if baseline is None or candidate is None
        else two_proportion_z(baseline=baseline, candidate=candidate, n_baseline=n_items, n_candidate=n_items),
        equivalence_interval=with_zero(inner, evidence.pvalue, alpha),
        pvalue_lower=equal.pvalue_lower,
        pvalue_upper=equal.pvalue_upper,
        pvalue_equivalence=equal.pvalue,
        pvalue_equivalence_exact=equal.pvalue_exact,
        is_equivalent=is_equivalent(evidence, rule),
        is_strict=is_strict,
        verdict=verdict,
        reason=reason,
        provable_margin=1.0 if evidence.provable_margin is None else evidence.provable_margin,
        items_needed=evidence.items_needed,
        items_needed_range=evidence.items_needed_range,
        items_needed_observed=evidence.items_needed_observed,
        items_needed_observed_range=evidence.items_needed_observed_range,
    )


def _check_offered(n_items: int) -> None:
    """A terminal waits no minutes, as exact tests of many millions of items take."""
    if check_items(n_items) > MAX_ITEMS:
        raise InvalidValue(
            f"{n_items:,} items are more than the {MAX_ITEMS:,} that exact tests are offered for",
            hint="Divide items and changes by the same number: what fewer items prove, more prove as well.",
        )


def _guarded_power(**design: Any) -> float | None:
    """Of the verdict, guard included; None above 20,000 items, where it takes too long."""
    return power_equivalence(**design, is_guarded=True) if design["n_items"] <= MOST_GUARDED else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Powers:
    """What a number of items is likely to show at an assumed truth: probabilities."""

    n_items: int
    discordance: float
    difference: float
    margin: float
    alpha: float
    n_metrics: int
    equivalence: float
    """That both one-sided score tests prove ±margin."""
    equivalence_guarded: float | None
    """That the exact guard agrees as well: of the verdict; None above 20,000 items, where it takes too long."""
    joint: float
    """That so many independent metrics like this one are all proven, guard included where it was found."""
    power_for_joint: float
    """What each of them would need for a joint power of 0.8."""
    detection: float
    """That mid-p McNemar finds the assumed difference; with a difference of 0, the rate of false alarms."""
    detection_exact: float
    """The same for the exact McNemar test."""
    detection_of_margin: float | None
    """That mid-p McNemar finds a loss as large as the margin that comes on top of the assumed discordance; None where
    the two are more than all items."""


def powers(
    *,
    n_items: int,
    discordance: float,
    margin: float,
    difference: float = 0.0,
    alpha: float = 0.05,
    n_metrics: int = 5,
) -> Powers:
    """Compute what `n_items` are likely to show, exactly, by enumeration."""
    _check_offered(n_items)
    for_joint = power_for_joint(n_metrics=n_metrics, power=PLANNING_POWER)
    design: Any = {
        "n_items": n_items,
        "discordance": discordance,
        "difference": difference,
        "margin": margin,
        "alpha": alpha,
    }
    proven, guarded = power_equivalence(**design), _guarded_power(**design)

    def detected(discordance: float, difference: float, method: McNemarMethod = McNemarMethod.MIDP) -> float:
        return power_mcnemar(
            n_items=n_items, discordance=discordance, difference=difference, alpha=alpha, method=method
        )

    return Powers(
        **design,
        n_metrics=n_metrics,
        equivalence=proven,
        equivalence_guarded=guarded,
        joint=joint_power([proven if guarded is None else guarded] * n_metrics),
        power_for_joint=for_joint,
        detection=detected(discordance, difference),
        detection_exact=detected(discordance, difference, McNemarMethod.EXACT),
        detection_of_margin=None if discordance + margin > 1.0 else detected(discordance + margin, -margin),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestEffects:
    """How small a loss, and how narrow a margin, a number of items can show."""

    n_items: int
    discordance: float
    alpha: float
    power: float
    accuracy: float
    mde: float | None
    """Smallest difference that exact McNemar finds with this power, the discordance fixed; None: there is none."""
    mde_beyond_noise: float | None
    """The same where the discordance is noise and the loss comes on top of it."""
    smallest_margin: float | None
    """Narrowest margin that the two one-sided score tests prove with this power, if there is no true difference."""
    mde_unpaired: float | None
    """Of the unpaired z-test at the assumed accuracy: for comparison with older reports."""


def smallest_effects(
    *, n_items: int, discordance: float, alpha: float = 0.05, power: float = PLANNING_POWER, accuracy: float = 0.5
) -> SmallestEffects:
    """Find the minimal detectable effect in both forms, and the narrowest provable margin."""
    _check_offered(n_items)
    check_rates(discordance=discordance, difference=0.0)
    goal: Any = {"n_items": n_items, "alpha": check_alpha(alpha), "power": check_power(power)}
    return SmallestEffects(
        **goal,
        discordance=discordance,
        accuracy=accuracy,
        mde=if_any(lambda: mde(discordance=discordance, **goal)),
        mde_beyond_noise=if_any(lambda: mde_beyond_noise(noise=discordance, **goal)),
        smallest_margin=if_any(lambda: smallest_margin(discordance=discordance, **goal)),
        mde_unpaired=if_any(lambda: mde_unpaired(baseline=accuracy, **goal)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Items that prove ±margin, if there is no true difference."""

    margin: float
    discordance: float
    alpha: float
    power: float
    n_metrics: int
    n_items: int
    power_guarded: float | None
    """Power of the verdict at these items, the exact guard included; None above 20,000 items."""
    power_each: float
    """What each of `n_metrics` independent metrics needs for this joint power."""
    n_items_joint: int
    """Items of each metric for it."""
    looks: EarlyLooks | None
    """None where one look, at the end, was asked for."""
    repeats: int
    """Answers an item and arm."""
    noise: float | None
    """Discordance of two runs of the same arm; None without repeats. So are the next two."""
    discordance_repeated: float | None
    """Variance of an item's difference with repeats: what stands in for the discordance."""
    n_items_repeated: int | None
    """Items of one metric with repeats."""
    accuracy: float
    n_items_unpaired: int
    """In each arm, had the items not been paired, at this accuracy of both arms."""


def size(
    *,
    margin: float,
    discordance: float,
    alpha: float = 0.05,
    power: float = 0.9,
    n_looks: int = 10,
    n_metrics: int = 5,
    repeats: int = 1,
    noise: float | None = None,
    accuracy: float = 0.5,
) -> Size:
    """Find how many items prove ±margin with this power, with and without early looks, repeats and pairing.

    Repeats come with the noise that they divide.
    """
    if (repeats != 1) != (noise is not None):
        raise InvalidValue(
            "Repeats and the noise that they divide go together",
            hint="Give --repeats of at least 2 and --noise: the discordance of two runs of the same arm.",
        )
    power_each = power_for_joint(n_metrics=n_metrics, power=power)
    goal: Any = {"margin": margin, "alpha": alpha}

    def needed(discordance: float, power: float) -> int:
        return items_needed(discordance=discordance, power=power, is_guarded=True, **goal)

    n_items = needed(discordance, power)
    left = None if noise is None else discordance_with_repeats(discordance=discordance, noise=noise, repeats=repeats)
    unpaired = items_unpaired_equivalence(baseline=accuracy, power=power, **goal)
    return Size(
        **goal,
        discordance=discordance,
        power=power,
        n_metrics=n_metrics,
        n_items=n_items,
        power_guarded=_guarded_power(n_items=n_items, discordance=discordance, **goal),
        power_each=power_each,
        n_items_joint=needed(discordance, power_each),
        looks=None if n_looks == 1 else early_looks(discordance=discordance, power=power, n_looks=n_looks, **goal),
        repeats=repeats,
        noise=noise,
        discordance_repeated=left,
        n_items_repeated=None if left is None else needed(left, power),
        accuracy=accuracy,
        n_items_unpaired=math.ceil(unpaired),
    )


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


def reproduce_row(row: PublishedRow) -> ReproducedRow:
    """Recompute one published row by the unpaired test that it was made with."""
    n = row.n_items
    return ReproducedRow(
        published=row,
        pvalue=two_proportion_z(baseline=row.off, candidate=row.on, n_baseline=n, n_candidate=n),
        mde80=mde_unpaired(n_items=n, baseline=row.off, power=0.8),
        mde90=mde_unpaired(n_items=n, baseline=row.off, power=0.9),
        power_at_4pp=power_unpaired(n_items=n, baseline=(row.off + row.on + APART) / 2.0, difference=-APART),
    )


def _paired_row(discordance: float) -> PairedRow:
    effects = smallest_effects(n_items=PAIRED_ITEMS, discordance=discordance)
    one, two, three = (items_needed(discordance=discordance, margin=margin, power=PLANNING_POWER) for margin in MARGINS)
    return PairedRow(
        discordance=discordance,
        mde80=effects.mde,
        mde_beyond_noise80=effects.mde_beyond_noise,
        margin80=effects.smallest_margin,
        margin90=smallest_margin(n_items=PAIRED_ITEMS, discordance=discordance, power=0.9),
        items_for_1pp=one,
        items_for_2pp=two,
        items_for_3pp=three,
    )


def reproduce() -> Reproduction:
    """Recompute the published table's p-values, and what paired tests give: a few seconds of computing."""
    goal: Any = {"margin": PLANNED_MARGIN, "power": PLANNED_POWER}
    return Reproduction(
        published=tuple(map(reproduce_row, PUBLISHED)),
        paired_items=PAIRED_ITEMS,
        paired=tuple(map(_paired_row, DISCORDANCES)),
        planned_margin=PLANNED_MARGIN,
        planned_power=PLANNED_POWER,
        planning=tuple(
            PlanningRow(
                discordance=discordance,
                fixed_items=items_needed(discordance=discordance, **goal),
                looks=early_looks(discordance=discordance, **goal),
            )
            for discordance in PLANNED_DISCORDANCES
        ),
        planning_unpaired=tuple(
            UnpairedPlanningRow(
                accuracy=accuracy, n_items=math.ceil(items_unpaired_equivalence(baseline=accuracy, **goal))
            )
            for accuracy in ACCURACIES
        ),
    )

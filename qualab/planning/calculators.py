"""Calculators for a person with counts, or with a plan in mind. None is an answer that does not exist."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from qualab.analysis.evidence import evidence_of, is_equivalent, pairs_of_counts, with_zero
from qualab.analysis.judge import judge
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
    two_proportion_z,
)
from qualab.stats.equivalence import equivalence
from qualab.stats.interval import ConfidenceInterval, newcombe, tango
from qualab.stats.looks import MOST_GUARDED
from qualab.stats.sizing import (
    MAX_ITEMS,
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
"""Power of the items needed that go with a test, as in a comparison's analysis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """Tests of one 0/1 metric's counts. Accuracies, and what needs them, are None without `both_right`."""

    difference: float
    discordance: float
    baseline: float | None
    """Share right."""
    candidate: float | None
    interval: ConfidenceInterval
    """Tango's at the level that was asked for: decides nothing."""
    interval_newcombe: ConfidenceInterval | None
    pvalue: float
    """Mid-p McNemar: the one that decides. The exact, unconditional and unpaired ones are cross-checks."""
    pvalue_loss: float
    """One-sided mid-p."""
    pvalue_gain: float
    pvalue_exact: float
    pvalue_unconditional: float
    pvalue_unpaired: float | None
    equivalence_interval: ConfidenceInterval
    """Tango's at 1 − 2 alpha: the one that decides."""
    pvalue_lower: float
    """Score test against −margin."""
    pvalue_upper: float
    pvalue_equivalence: float
    """The larger one of the two."""
    pvalue_equivalence_exact: float
    is_equivalent: bool
    """Both p-values of equivalence are at most alpha, whatever the verdict says besides."""
    verdict: Verdict
    reason: Reason
    provable_margin: float
    """1 where these counts prove none."""
    items_needed: int | None
    """Items for a power of 0.8; like its range and the next two, None unless INCONCLUSIVE."""
    items_needed_range: ItemsRange | None
    items_needed_observed: int | None
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
    assert evidence.pvalue_exact is not None
    loss, gain = mcnemar_sides(gains, losses)
    unpaired = None
    if baseline is not None and candidate is not None:
        unpaired = two_proportion_z(baseline=baseline, candidate=candidate, n_baseline=n_items, n_candidate=n_items)
    return PairedTest(
        difference=counts.difference,
        discordance=counts.discordance,
        baseline=baseline,
        candidate=candidate,
        interval=with_zero(
            tango(counts, confidence_level=confidence_level), evidence.pvalue, (1.0 - confidence_level) / 2.0
        ),
        interval_newcombe=None if both_right is None else newcombe(counts, confidence_level=confidence_level),
        pvalue=evidence.pvalue,
        pvalue_loss=loss,
        pvalue_gain=gain,
        pvalue_exact=evidence.pvalue_exact,
        pvalue_unconditional=mcnemar_unconditional(counts),
        pvalue_unpaired=unpaired,
        equivalence_interval=with_zero(equal.interval, evidence.pvalue, alpha),
        pvalue_lower=equal.pvalue_lower,
        pvalue_upper=equal.pvalue_upper,
        pvalue_equivalence=equal.pvalue,
        pvalue_equivalence_exact=equal.pvalue_exact,
        is_equivalent=is_equivalent(evidence, rule),
        verdict=verdict,
        reason=reason,
        provable_margin=1.0 if evidence.provable_margin is None else evidence.provable_margin,
        items_needed=evidence.items_needed,
        items_needed_range=evidence.items_needed_range,
        items_needed_observed=evidence.items_needed_observed,
        items_needed_observed_range=evidence.items_needed_observed_range,
    )


def _check_offered(n_items: int) -> None:  # exact tests of more items take minutes
    if check_items(n_items) > MAX_ITEMS:
        raise InvalidValue(
            f"{n_items:,} items are more than the {MAX_ITEMS:,} that exact tests are offered for",
            hint="Divide items and changes by the same number: what fewer items prove, more prove as well.",
        )


def _guarded_power(**design: Any) -> float | None:
    return power_equivalence(**design, is_guarded=True) if design["n_items"] <= MOST_GUARDED else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Powers:
    """Probabilities of what a number of items shows at an assumed truth."""

    equivalence: float
    """That both one-sided score tests prove ±margin."""
    equivalence_guarded: float | None
    """That the exact guard agrees as well; None above 20,000 items, where it takes too long."""
    joint: float
    """That so many independent metrics like this one are all proven."""
    power_for_joint: float
    """Power that each of them needs for a joint power of 0.8."""
    detection: float
    """That mid-p McNemar finds the assumed difference; with a difference of 0, the rate of false alarms."""
    detection_exact: float
    detection_of_margin: float | None
    """That mid-p McNemar finds a loss of the margin on top of the discordance; None where they exceed all items."""


def powers(
    *, n_items: int, discordance: float, margin: float, difference: float = 0.0, alpha: float = 0.05, n_metrics: int = 5
) -> Powers:
    """Compute what `n_items` are likely to show, by enumeration."""
    _check_offered(n_items)
    for_joint = power_for_joint(n_metrics=n_metrics, power=PLANNING_POWER)
    design: Any = {"discordance": discordance, "difference": difference, "margin": margin, "alpha": alpha}
    proven, guarded = power_equivalence(n_items=n_items, **design), _guarded_power(n_items=n_items, **design)

    detected = partial(power_mcnemar, n_items=n_items, alpha=alpha)
    beyond: Any = {"discordance": discordance + margin, "difference": -margin}
    return Powers(
        equivalence=proven,
        equivalence_guarded=guarded,
        joint=joint_power([proven if guarded is None else guarded] * n_metrics),
        power_for_joint=for_joint,
        detection=detected(discordance=discordance, difference=difference, is_midp=True),
        detection_exact=detected(discordance=discordance, difference=difference),
        detection_of_margin=None if discordance + margin > 1.0 else detected(**beyond, is_midp=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestEffects:
    """How small a loss, and how narrow a margin, a number of items can show."""

    mde: float | None
    """Smallest difference that exact McNemar finds, the discordance fixed."""
    mde_beyond_noise: float | None
    """Where the discordance is noise and the loss comes on top of it."""
    smallest_margin: float | None
    """Proven by the two one-sided score tests, if there is no true difference."""
    mde_unpaired: float | None
    """Smallest loss of the unpaired z-test: for comparison with older reports."""


def smallest_effects(
    *, n_items: int, discordance: float, alpha: float = 0.05, power: float = PLANNING_POWER, accuracy: float = 0.5
) -> SmallestEffects:
    """Find the minimal detectable effect in both forms, and the narrowest provable margin."""
    _check_offered(n_items)
    check_rates(discordance=discordance, difference=0.0)
    goal: Any = {"n_items": n_items, "alpha": check_alpha(alpha), "power": check_power(power)}
    return SmallestEffects(
        mde=if_any(lambda: mde(discordance=discordance, **goal)),
        mde_beyond_noise=if_any(lambda: mde_beyond_noise(noise=discordance, **goal)),
        smallest_margin=if_any(lambda: smallest_margin(discordance=discordance, **goal)),
        mde_unpaired=if_any(lambda: mde_unpaired(baseline=accuracy, **goal)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Items that prove ±margin, if there is no true difference."""

    n_items: int
    power_guarded: float | None
    """At these items with the exact guard; None above 20,000 items."""
    power_each: float
    """Power that each of `n_metrics` independent metrics needs for this joint power."""
    n_items_joint: int
    """Items of each metric for it."""
    looks: EarlyLooks | None
    """None where one look, at the end, was asked for."""
    discordance_repeated: float | None
    n_items_repeated: int | None
    """Items of one metric with repeats."""
    n_items_unpaired: int
    """In each arm, had the items not been paired."""


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
    """Find how many items prove ±margin with this power, with and without early looks, repeats and pairing."""
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
    return Size(
        n_items=n_items,
        power_guarded=_guarded_power(n_items=n_items, discordance=discordance, **goal),
        power_each=power_each,
        n_items_joint=needed(discordance, power_each),
        looks=None if n_looks == 1 else early_looks(discordance=discordance, power=power, n_looks=n_looks, **goal),
        discordance_repeated=left,
        n_items_repeated=None if left is None else needed(left, power),
        n_items_unpaired=math.ceil(items_unpaired_equivalence(baseline=accuracy, power=power, **goal)),
    )

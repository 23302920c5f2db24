"""Edges of the tests for 0/1 data: each is a decision, none is NaN."""

from __future__ import annotations

import math

import pytest

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar, mcnemar_unconditional, two_proportion_z
from qualab.stats.equivalence import equivalence, provable_margin
from qualab.stats.interval import newcombe, tango
from qualab.stats.resampling import holm
from qualab.stats.sizing import (
    items_needed,
    mde,
    mde_beyond_noise,
    power_equivalence,
    power_mcnemar,
    smallest_margin,
)

NOTHING = PairedCounts(n_items=0, gains=0, losses=0, both_right=0)
UNCHANGED = PairedCounts(n_items=600, gains=0, losses=0, both_right=590)


@pytest.mark.parametrize(
    "call",
    [
        lambda: mcnemar(NOTHING),
        lambda: mcnemar_unconditional(NOTHING),
        lambda: tango(NOTHING),
        lambda: newcombe(NOTHING),
        lambda: equivalence(NOTHING, margin=0.02),
        lambda: provable_margin(NOTHING),
        lambda: power_equivalence(n_items=0, discordance=0.1, margin=0.02),
        lambda: power_mcnemar(n_items=0, discordance=0.1, difference=0.02),
        lambda: two_proportion_z(baseline=0.5, candidate=0.5, n_baseline=0, n_candidate=5),
        lambda: newcombe(PairedCounts(n_items=5, gains=1, losses=1)),
        lambda: mde(n_items=600, discordance=0.01),
        lambda: mde_beyond_noise(n_items=3, noise=0.5),
        lambda: smallest_margin(n_items=1, discordance=0.5),
        lambda: items_needed(discordance=0.05, difference=0.02, margin=0.02),
        lambda: items_needed(discordance=0.5, margin=0.001, max_items=5_000),
    ],
)
def test_no_evidence_is_an_error_and_not_a_number(call: object) -> None:
    with pytest.raises(InsufficientData):
        call()  # type: ignore[operator]


@pytest.mark.parametrize(
    "call",
    [
        lambda: equivalence(UNCHANGED, margin=0.0),
        lambda: equivalence(UNCHANGED, margin=1.0),
        lambda: equivalence(UNCHANGED, margin=math.nan),
        lambda: equivalence(UNCHANGED, margin=2.0),
        lambda: equivalence(UNCHANGED, margin=0.02, alpha=0.5),
        lambda: equivalence(UNCHANGED, margin=0.02, alpha=0.0),
        lambda: provable_margin(UNCHANGED, alpha=0.7),
        lambda: tango(UNCHANGED, confidence_level=1.0),
        lambda: tango(UNCHANGED, confidence_level=95),
        lambda: mcnemar_unconditional(UNCHANGED, gamma=1.0),
        lambda: power_equivalence(n_items=10, discordance=0.1, difference=0.2, margin=0.02),
        lambda: power_equivalence(n_items=10, discordance=1.1, margin=0.02),
        lambda: power_mcnemar(n_items=10, discordance=math.nan, difference=0.0),
        lambda: items_needed(discordance=0.1, margin=0.02, power=1.0),
        lambda: items_needed(discordance=0.1, margin=-0.02),
        lambda: two_proportion_z(baseline=51, candidate=50, n_baseline=600, n_candidate=600),
        lambda: holm([0.1, 1.2]),
        lambda: holm([0.1, math.nan]),
    ],
)
def test_impossible_arguments_are_refused(call: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        call()  # type: ignore[operator]
    assert caught.value.hint


def test_no_discordant_item_is_no_evidence_of_a_difference() -> None:
    result = mcnemar(UNCHANGED)
    assert (result.pvalue, result.pvalue_exact, mcnemar_unconditional(UNCHANGED)) == (1, 1, 1)


def test_no_discordant_item_still_proves_a_margin() -> None:
    assert equivalence(UNCHANGED, margin=0.01).is_equivalent
    assert not equivalence(PairedCounts(n_items=10, gains=0, losses=0), margin=0.1).is_equivalent
    assert provable_margin(PairedCounts(n_items=10, gains=0, losses=0)) > 0.2


def test_no_discordance_gives_a_meaningful_size() -> None:
    assert items_needed(discordance=0.0, margin=0.01) == 268
    assert power_equivalence(n_items=268, discordance=0.0, margin=0.01) == 1.0
    assert power_equivalence(n_items=267, discordance=0.0, margin=0.01) == 0.0


def test_one_item_proves_next_to_nothing() -> None:
    for gains, losses in [(0, 0), (1, 0), (0, 1)]:
        counts = PairedCounts(n_items=1, gains=gains, losses=losses)
        assert mcnemar(counts).pvalue >= 0.5
        assert not equivalence(counts, margin=0.5).is_equivalent
        assert provable_margin(counts) > 0.9


def test_every_item_changed_the_same_way() -> None:
    counts = PairedCounts(n_items=50, gains=50, losses=0, both_right=0)
    assert mcnemar(counts).pvalue_exact == pytest.approx(2 * 0.5**50)
    interval = tango(counts)
    assert interval.high == 1.0
    assert 0.8 < interval.low < 1.0
    assert provable_margin(counts) == 1.0
    assert not equivalence(counts, margin=0.5).is_equivalent


def test_every_item_discordant_without_a_difference() -> None:
    counts = PairedCounts(n_items=50, gains=25, losses=25)
    assert mcnemar(counts).pvalue_exact == 1.0
    assert tango(counts).low == pytest.approx(-tango(counts).high)
    assert 0.25 < tango(counts).high < 0.3


def test_arms_that_are_all_right_or_all_wrong_do_not_differ() -> None:
    assert two_proportion_z(baseline=1.0, candidate=1.0, n_baseline=5, n_candidate=5) == 1.0
    assert two_proportion_z(baseline=0.0, candidate=0.0, n_baseline=5, n_candidate=5) == 1.0


def test_holm_of_no_pvalues_is_empty() -> None:
    assert holm([]).size == 0

"""Sizes, margins and powers that count the exact guard, and those of the test against a loss alone."""

from __future__ import annotations

import pytest

from qualab.errors import InsufficientData
from qualab.stats.counts import PairedCounts
from qualab.stats.equivalence import equivalence, provable_margin
from qualab.stats.sizing import items_needed, power_equivalence, smallest_margin
from tests.stats.reference import non_inferiority


def test_without_a_change_the_guard_needs_149_items_where_the_score_tests_need_133() -> None:
    assert items_needed(discordance=0.0, margin=0.02) == 133
    assert items_needed(discordance=0.0, margin=0.02, is_guarded=True) == 149
    for n_items, is_enough in ((148, False), (149, True)):
        counts = PairedCounts(n_items=n_items, gains=0, losses=0)
        assert equivalence(counts, margin=0.02).is_equivalent is is_enough


@pytest.mark.parametrize(("discordance", "power"), [(0.001, 0.8), (0.003, 0.8), (0.005, 0.9), (0.01, 0.9)])
def test_guarded_sizes_have_their_power_and_the_score_tests_do_not_need_more(discordance: float, power: float) -> None:
    alone = items_needed(discordance=discordance, margin=0.02, power=power)
    guarded = items_needed(discordance=discordance, margin=0.02, power=power, is_guarded=True)
    assert guarded >= alone
    assert power_equivalence(n_items=guarded, discordance=discordance, margin=0.02, is_guarded=True) >= power


@pytest.mark.parametrize(("discordance", "power", "n_items"), [(0.02, 0.9, 655), (0.05, 0.9, 1409), (0.1, 0.9, 2732)])
def test_where_many_changes_are_expected_the_sizes_are_those_of_the_score_tests(
    discordance: float, power: float, n_items: int
) -> None:
    assert items_needed(discordance=discordance, margin=0.02, power=power, is_guarded=True) == n_items
    guarded = power_equivalence(n_items=n_items, discordance=discordance, margin=0.02, is_guarded=True)
    assert power - 0.02 < guarded


def test_a_loss_alone_is_ruled_out_with_fewer_items() -> None:
    truth = {"discordance": 0.05, "margin": 0.02}
    needed = items_needed(**truth, is_one_sided=True)
    assert needed < items_needed(**truth)
    powers = [power_equivalence(n_items=n, **truth, is_one_sided=True) for n in (needed, needed - 1)]
    assert powers[0] >= 0.8 > powers[1]


def test_a_gain_helps_the_test_against_a_loss() -> None:
    truth = {"discordance": 0.05, "margin": 0.02, "is_one_sided": True}
    assert items_needed(**truth, difference=0.03) < items_needed(**truth)  # type: ignore[arg-type]
    with pytest.raises(InsufficientData):
        items_needed(**truth, difference=-0.02)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n_items", "discordance"), [(600, 0.0), (600, 0.005), (100, 0.02), (1, 0.1)])
def test_a_guarded_margin_is_proven_and_a_narrower_one_is_not(n_items: int, discordance: float) -> None:
    margin = smallest_margin(n_items=n_items, discordance=discordance, is_guarded=True)
    assert margin >= smallest_margin(n_items=n_items, discordance=discordance)
    powers = [
        power_equivalence(n_items=n_items, discordance=discordance, margin=at, is_guarded=True)
        for at in (margin, margin - 2e-5)
    ]
    assert powers[0] >= 0.8 > powers[1]


def test_counts_prove_a_loss_bound_from_one_side() -> None:
    counts = PairedCounts(n_items=600, gains=12, losses=7)
    margin = provable_margin(counts, is_one_sided=True)
    assert margin < provable_margin(counts)
    proven, unproven = (non_inferiority(counts, margin=at) for at in (margin, margin - 2e-5))
    assert max(proven.pvalue, proven.pvalue_exact) <= 0.05 < max(unproven.pvalue, unproven.pvalue_exact)
    assert provable_margin(counts.swapped(), is_one_sided=True) == provable_margin(counts)


@pytest.mark.parametrize("margin", [1e-5, 1e-4])
def test_a_margin_that_takes_too_many_items_is_said_soon(margin: float) -> None:
    with pytest.raises(InsufficientData, match="More than 200,000 items"):
        items_needed(discordance=0.05, margin=margin, is_guarded=True, max_items=200_000)

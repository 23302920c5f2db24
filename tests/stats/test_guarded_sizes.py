"""Sizes, margins and powers that count the exact guard, and those of the test against a loss alone."""

from __future__ import annotations

import pytest

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.counts import PairedCounts
from qualab.stats.equivalence import equivalence, non_inferiority, provable_margin
from qualab.stats.sizing import power_equivalence, power_non_inferiority
from qualab.stats.sizing import items_needed, power_to_prove, smallest_margin


@pytest.mark.parametrize(
    ("n_items", "discordance", "margin"),
    [(149, 0.0, 0.02), (261, 0.005, 0.02), (300, 0.02, 0.02), (44, 0.02, 0.1), (1, 0.5, 0.5), (20, 0.3, 0.2)],
)
def test_power_counts_the_guard_as_the_enumeration_does(n_items: int, discordance: float, margin: float) -> None:
    truth = {"n_items": n_items, "discordance": discordance, "margin": margin}
    both = power_equivalence(**truth, is_guarded=True)  # type: ignore[arg-type]
    loss = power_non_inferiority(**truth, is_guarded=True)  # type: ignore[arg-type]
    assert power_to_prove(**truth) == pytest.approx(both, abs=1e-12)  # type: ignore[arg-type]
    assert power_to_prove(**truth, is_one_sided=True) == pytest.approx(loss, abs=1e-12)  # type: ignore[arg-type]


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
    assert power_non_inferiority(n_items=needed, **truth) >= 0.8 > power_non_inferiority(n_items=needed - 1, **truth)


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
    one = provable_margin(counts, is_one_sided=True)
    assert one.margin < provable_margin(counts).margin
    assert non_inferiority(counts, margin=one.margin).is_non_inferior
    assert not non_inferiority(counts, margin=one.margin - 2e-5).is_non_inferior
    assert provable_margin(counts.swapped(), is_one_sided=True).margin == provable_margin(counts).margin


@pytest.mark.parametrize("margin", [1e-5, 1e-4])
def test_a_margin_that_takes_too_many_items_is_said_soon(margin: float) -> None:
    with pytest.raises(InsufficientData, match="More than 200,000 items"):
        items_needed(discordance=0.05, margin=margin, is_guarded=True, max_items=200_000)


@pytest.mark.parametrize("bad", [{"margin": 1.0}, {"discordance": 1.1}, {"alpha": 0.5}])
def test_what_cannot_be_has_no_power(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidValue):
        power_to_prove(**{"n_items": 10, "discordance": 0.1, "margin": 0.1, **bad})  # type: ignore[arg-type]

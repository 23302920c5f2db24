"""Power, sizes, margins and minimal differences: against enumeration, with the exact guard, and at the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qualab.stats import sizing
from qualab.stats.difference import mcnemar
from qualab.stats.equivalence import equivalence
from qualab.stats.interval import tango
from tests.stats.reference import counts_of, is_inside, outcomes, trinomial


@pytest.mark.parametrize(("discordance", "difference"), [(0.3, 0.0), (0.2, -0.1), (1.0, 0.3), (0.1, 0.1)])
def test_power_sums_the_outcomes_that_reject(discordance: float, difference: float) -> None:
    n_items, margin, alpha = 25, 0.3, 0.1
    both = one = mid = exact = 0.0
    for counts in outcomes(n_items):
        weight = trinomial(counts, discordance, difference)
        result, test = equivalence(counts, margin=margin, alpha=alpha), mcnemar(counts)
        both += weight * (result.pvalue <= alpha)
        one += weight * (result.pvalue_lower <= alpha)
        mid += weight * (test.pvalue <= alpha)
        exact += weight * (test.pvalue_exact <= alpha)
    design: Any = {"n_items": n_items, "alpha": alpha, "discordance": discordance, "difference": difference}
    assert sizing.power_equivalence(**design, margin=margin) == pytest.approx(both, abs=1e-8)
    assert sizing.power_equivalence(**design, margin=margin, is_one_sided=True) == pytest.approx(one, abs=1e-8)
    assert sizing.power_mcnemar(**design, is_midp=True) == pytest.approx(mid, abs=1e-8)
    assert sizing.power_mcnemar(**design) == pytest.approx(exact, abs=1e-8)


def test_guarded_power_is_that_of_the_verdict() -> None:
    design: Any = {"margin": 0.2, "alpha": 0.05}
    brute = sum(trinomial(c, 0.2, 0.0) for c in outcomes(40) if equivalence(c, **design).is_equivalent)
    design |= {"n_items": 40, "discordance": 0.2}
    assert sizing.power_equivalence(**design, is_guarded=True) == pytest.approx(brute, abs=1e-8)
    assert sizing.power_equivalence(**design, is_guarded=True) < sizing.power_equivalence(**design)


@settings(max_examples=40)
@given(st.integers(1, 800), st.floats(0.0, 1.0), st.floats(-1.0, 1.0), st.floats(0.003, 0.6))
def test_power_is_a_probability_and_symmetric(n_items: int, discordance: float, part: float, margin: float) -> None:
    here, there = (
        (
            sizing.power_equivalence(n_items=n_items, discordance=discordance, difference=difference, margin=margin),
            sizing.power_mcnemar(n_items=n_items, discordance=discordance, difference=difference),
        )
        for difference in (discordance * part, -discordance * part)
    )
    assert all(0.0 <= power <= 1.0 for power in here)
    assert here == pytest.approx(there, abs=1e-8)


@pytest.mark.parametrize(("n_items", "margin"), [(100, 0.05), (250, 0.03), (600, 0.02), (1319, 0.01)])
def test_guarded_size_never_exceeds_alpha(n_items: int, margin: float) -> None:
    for discordance in np.linspace(max(0.01, margin), 0.3, 25).tolist():
        size = sizing.power_equivalence(
            n_items=n_items, discordance=discordance, margin=margin, difference=-margin, is_guarded=True
        )
        assert size <= 0.05 + 1e-9


@pytest.mark.parametrize(
    ("discordance", "margin", "power", "expected"), [(0.007, 0.0044, 0.8, 3425), (0.01, 0.0042, 0.7, 4305)]
)
def test_items_needed_is_the_smallest_size_at_which_power_stays_for_25_more(
    discordance: float, margin: float, power: float, expected: int
) -> None:
    """Even where it dips below its target once more after that."""
    design: Any = {"discordance": discordance, "margin": margin}
    assert sizing.items_needed(**design, power=power) == expected
    powers = np.array([sizing.power_equivalence(n_items=n, **design) for n in range(expected - 1, expected + 80)])
    assert powers[0] < power
    assert np.all(powers[1:27] >= power)
    assert np.any(powers[27:] < power)


def test_without_a_change_the_guard_needs_149_items_where_the_score_tests_need_133() -> None:
    assert sizing.items_needed(discordance=0.0, margin=0.02) == 133
    assert sizing.items_needed(discordance=0.0, margin=0.02, is_guarded=True) == 149
    for n_items in (132, 133, 148, 149):
        counts = counts_of(n_items, 0, 0)
        assert is_inside(tango(counts, confidence_level=0.9), 0.02) is (n_items >= 133)
        assert equivalence(counts, margin=0.02).is_equivalent is (n_items >= 149)
        assert sizing.power_equivalence(n_items=n_items, discordance=0.0, margin=0.02) == float(n_items >= 133)


@pytest.mark.parametrize(
    ("discordance", "power", "expected"),
    [
        *((0.02, 0.9, 655), (0.05, 0.9, 1409), (0.1, 0.9, 2732)),
        *((0.001, 0.8, None), (0.003, 0.8, None), (0.005, 0.9, None), (0.01, 0.9, None)),
    ],
)
def test_guarded_sizes_have_their_power_and_are_those_of_the_score_tests_where_many_changes_are_expected(
    discordance: float, power: float, expected: int | None
) -> None:
    truth: Any = {"discordance": discordance, "margin": 0.02}
    alone, guarded = (sizing.items_needed(**truth, power=power, is_guarded=is_guarded) for is_guarded in (False, True))
    assert guarded >= alone
    assert expected is None or alone == guarded == expected
    assert sizing.power_equivalence(**truth, n_items=guarded, is_guarded=True) >= power - 0.02 * bool(expected)


def test_a_loss_alone_is_ruled_out_with_fewer_items_and_a_gain_helps() -> None:
    truth: Any = {"discordance": 0.05, "margin": 0.02}
    needed = sizing.items_needed(**truth, is_one_sided=True)
    assert sizing.items_needed(**truth, difference=0.03, is_one_sided=True) < needed < sizing.items_needed(**truth)
    powers = [sizing.power_equivalence(n_items=n, **truth, is_one_sided=True) for n in (needed, needed - 1)]
    assert powers[0] >= 0.8 > powers[1]


@pytest.mark.parametrize(("n_items", "discordance"), [(600, 0.0), (600, 0.005), (100, 0.02), (1, 0.1), (600, 0.05)])
def test_a_smallest_margin_is_proven_and_a_narrower_one_is_not(n_items: int, discordance: float) -> None:
    for is_guarded in (False, n_items * discordance < 10):
        design: Any = {"n_items": n_items, "discordance": discordance, "is_guarded": is_guarded}
        margin = sizing.smallest_margin(**design)
        enough, short = (sizing.power_equivalence(**design, margin=at) for at in (margin, margin - 2e-5))
        assert enough >= 0.8 > short


def test_minimal_differences_are_where_power_reaches_its_target() -> None:
    found, loss = sizing.mde(n_items=600, discordance=0.05), sizing.mde_beyond_noise(n_items=600, noise=0.05)
    for discordance, difference in ((0.05, found), (0.05 + loss, -loss)):
        power = sizing.power_mcnemar(n_items=600, discordance=discordance, difference=difference)
        assert power == pytest.approx(0.8, abs=1e-5)

"""Looks and e-values: levels that are spent once, and evidence that may be watched."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.counts import PairedCounts
from qualab.stats.evidence import best_bet, equivalence_e_values, first_proof, mcnemar_log_e
from qualab.stats.looks import (
    Decision,
    Spending,
    classical_boundaries,
    crossing_probability,
    look,
    sequential_pvalue,
    spending_boundaries,
    spent,
)


@pytest.mark.parametrize("spending", list(Spending))
@pytest.mark.parametrize("fractions", [[1.0], [0.5, 1.0], [0.1 * k for k in range(1, 10)] + [1.0], [0.2, 0.25, 0.9]])
def test_boundaries_spend_exactly_what_they_may(spending: Spending, fractions: list[float]) -> None:
    boundaries = spending_boundaries(fractions, alpha=0.05, spending=spending)
    for k in range(1, len(fractions) + 1):
        crossed = crossing_probability(boundaries[:k], fractions[:k])
        assert crossed == pytest.approx(spent(fractions[k - 1], alpha=0.05, spending=spending), abs=1e-9)


def test_one_look_is_the_fixed_test() -> None:
    assert spending_boundaries([1.0], alpha=0.05)[0] == pytest.approx(scipy.stats.norm.ppf(0.95))
    assert classical_boundaries(1, alpha=0.05)[0] == pytest.approx(scipy.stats.norm.ppf(0.95))


def test_everything_is_spent_at_the_end() -> None:
    for spending in Spending:
        assert spent(1.0, alpha=0.03, spending=spending) == pytest.approx(0.03)
        assert spent(0.0, alpha=0.03, spending=spending) == 0.0


def test_crossing_probability_is_that_of_simulated_walks() -> None:
    fractions = [0.25, 0.5, 0.75, 1.0]
    boundaries = [2.2, 2.1, 2.0, 1.9]
    steps = np.random.default_rng(1).normal(size=(200_000, 4)) * 0.5 + 1.5 * 0.25
    z = np.cumsum(steps, axis=1) / np.sqrt(fractions)
    simulated = np.mean(np.any(z >= boundaries, axis=1))
    assert crossing_probability(boundaries, fractions, drift=1.5) == pytest.approx(simulated, abs=0.004)


@pytest.mark.parametrize("alpha", [0.0001, 0.01, 0.025, 0.05, 0.2])
@pytest.mark.parametrize("fractions", [[1.0], [0.3], [0.2, 0.4, 0.6], [0.25, 0.5, 0.75, 1.0]])
def test_a_p_value_at_the_boundary_has_the_level_of_the_boundary(alpha: float, fractions: list[float]) -> None:
    nominal = scipy.stats.norm.sf(spending_boundaries(fractions, alpha=alpha)[-1])
    assert sequential_pvalue(nominal, fractions) == pytest.approx(alpha, rel=2e-3)


def test_p_values_over_looks_are_no_smaller_and_keep_their_order() -> None:
    nominal = [0.0, 1e-30, 1e-9, 0.001, 0.02, 0.2, 0.45, 0.5, 0.9, 1.0]
    found = [sequential_pvalue(p, [0.4, 1.0]) for p in nominal]
    assert found == sorted(found)
    assert all(after >= min(before, 0.5) for before, after in zip(nominal, found, strict=True))
    assert found[-1] == 0.5
    assert found[0] < 1e-12
    assert sequential_pvalue(0.03, [1.0]) == pytest.approx(0.03, rel=1e-3)


@pytest.mark.parametrize("pvalue", [-0.1, 1.1, math.nan])
def test_what_is_no_p_value_is_refused(pvalue: float) -> None:
    with pytest.raises(InvalidValue):
        sequential_pvalue(pvalue, [0.5, 1.0])


def test_a_look_with_nothing_to_spend_cannot_stop() -> None:
    boundaries = spending_boundaries([0.001, 1.0], alpha=0.05)
    assert boundaries[0] > 30
    assert (
        look(PairedCounts(n_items=600, gains=0, losses=0), margin=0.5, boundary=math.inf).decision is Decision.CONTINUE
    )


@pytest.mark.parametrize("fractions", [[], [0.0, 1.0], [0.5, 0.5], [0.6, 0.5], [0.5, 1.1]])
def test_impossible_looks_are_refused(fractions: list[float]) -> None:
    with pytest.raises(InvalidValue):
        spending_boundaries(fractions)


def test_a_look_judges_both_sides_and_harm() -> None:
    same = PairedCounts(n_items=1000, gains=10, losses=11)
    assert look(same, margin=0.02, boundary=2.0).decision is Decision.EQUIVALENT
    assert look(same, margin=0.02, boundary=5.0).decision is Decision.CONTINUE
    assert look(same, margin=0.02, boundary=5.0).interval.high - look(same, margin=0.02, boundary=2.0).interval.high > 0
    worse = PairedCounts(n_items=300, gains=2, losses=25)
    assert look(worse, margin=0.02, boundary=2.0, harm_boundary=2.5).decision is Decision.HARM
    assert look(worse, margin=0.02, boundary=2.0).decision is Decision.CONTINUE
    assert look(worse.swapped(), margin=0.02, boundary=2.0, harm_boundary=2.5).decision is Decision.CONTINUE
    assert look(worse, margin=0.08, boundary=9.0, harm_boundary=2.5).decision is Decision.CONTINUE  # may be proven yet
    assert look(worse, margin=0.08, boundary=9.0, harm_boundary=2.5, is_last=True).decision is Decision.HARM
    assert look(worse, margin=0.15, boundary=2.0, harm_boundary=2.5, is_last=True).decision is Decision.EQUIVALENT
    with pytest.raises(InsufficientData):
        look(PairedCounts.zero(), margin=0.02, boundary=2.0)


def test_a_look_asks_the_exact_guard() -> None:
    counts = PairedCounts(n_items=44, gains=0, losses=1)
    found = look(counts, margin=0.1, boundary=1.645)
    assert min(found.statistic_lower, found.statistic_upper) >= 1.645
    assert found.decision is Decision.CONTINUE


outcomes = st.lists(st.sampled_from([-1, 0, 0, 0, 1]), min_size=1, max_size=200)


@given(outcomes, st.floats(0.01, 0.3), st.floats(0.05, 0.9))
def test_e_values_of_counts_are_products_over_items(items: list[int], margin: float, bet: float) -> None:
    counts = PairedCounts(n_items=len(items), gains=items.count(1), losses=items.count(-1))
    evidence = equivalence_e_values(counts, margin=margin, bet=bet)
    assert evidence.log_e_lower == pytest.approx(sum(math.log(1 + bet * (x + margin)) for x in items), abs=1e-9)
    assert evidence.log_e_upper == pytest.approx(sum(math.log(1 + bet * (margin - x)) for x in items), abs=1e-9)
    mirrored = equivalence_e_values(counts.swapped(), margin=margin, bet=bet)
    assert mirrored.log_e_lower == pytest.approx(evidence.log_e_upper, abs=1e-9)


@pytest.mark.parametrize(("discordance", "difference"), [(0.02, 0.02), (0.1, 0.02), (0.5, 0.02)])
def test_e_values_expect_nothing_at_the_margin(discordance: float, difference: float) -> None:
    """At a true difference of −margin the e-value's expectation is 1 after each item: that is what makes it safe."""
    gain, loss = (discordance - difference) / 2, (discordance + difference) / 2
    bet = best_bet(discordance=discordance, margin=difference)
    factors = [1 + bet * (x + difference) for x in (1, -1, 0)]
    expected = gain * factors[0] + loss * factors[1] + (1 - discordance) * factors[2]
    assert expected == pytest.approx(1.0)
    assert min(factors) > 0


def test_the_best_bet_grows_fastest() -> None:
    def growth(bet: float) -> float:
        gain, loss, draw = (math.log1p(bet * (x + 0.02)) for x in (1, -1, 0))
        return 0.025 * (gain + loss) + 0.95 * draw

    best = best_bet(discordance=0.05, margin=0.02)
    assert growth(best) > max(growth(best * 0.97), growth(best * 1.03))
    assert best_bet(discordance=0.0, margin=0.02) == pytest.approx(0.5 / 0.98)


def test_first_proof_is_where_both_sides_reach_the_level() -> None:
    items = [0, 0, 1, 0, -1] * 200
    first = first_proof(items, margin=0.1, bet=0.2)
    assert first is not None

    def evidence(n_items: int) -> bool:
        seen = items[:n_items]
        counts = PairedCounts(n_items=n_items, gains=seen.count(1), losses=seen.count(-1))
        return equivalence_e_values(counts, margin=0.1, bet=0.2).is_equivalent(alpha=0.05)

    assert evidence(first)
    assert not any(evidence(n) for n in range(1, first))
    assert first_proof(items[: first - 1], margin=0.1, bet=0.2) is None


def test_impossible_bets_are_refused() -> None:
    counts = PairedCounts(n_items=5, gains=0, losses=0)
    for bet in (0.0, -0.1, 1.1, math.nan):
        with pytest.raises(InvalidValue):
            equivalence_e_values(counts, margin=0.02, bet=bet)
    with pytest.raises(InvalidValue):
        first_proof([2.0], margin=0.02, bet=0.1)
    with pytest.raises(InvalidValue):
        mcnemar_log_e(counts, prior=0.0)


def test_mcnemar_e_value_expects_one_under_the_null() -> None:
    for total in (1, 7, 30):
        expected = sum(
            scipy.stats.binom.pmf(b, total, 0.5)
            * math.exp(mcnemar_log_e(PairedCounts(n_items=total, gains=b, losses=total - b)))
            for b in range(total + 1)
        )
        assert expected == pytest.approx(1.0)
    assert mcnemar_log_e(PairedCounts(n_items=9, gains=0, losses=0)) == 0.0

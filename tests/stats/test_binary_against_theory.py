"""The tests for 0/1 data against their definitions, enumerated outcome by outcome for few items."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from qualab.errors import InvalidValue
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar, mcnemar_sides, mcnemar_unconditional, two_proportion_z
from qualab.stats.equivalence import equivalence, guard_threshold, provable_margin
from qualab.stats.interval import newcombe, score_statistic, tango
from qualab.stats.sizing import (
    McNemarMethod,
    items_needed,
    mde,
    mde_beyond_noise,
    power_equivalence,
    power_mcnemar,
    smallest_margin,
)
from tests.stats.reference import contains, is_inside, non_inferiority


def counts_of(n_items: int, gains: int, losses: int) -> PairedCounts:
    return PairedCounts(n_items=n_items, gains=gains, losses=losses)


def outcomes(n_items: int) -> Iterator[PairedCounts]:
    for gains in range(n_items + 1):
        for losses in range(n_items + 1 - gains):
            yield counts_of(n_items, gains, losses)


def probability(counts: PairedCounts, discordance: float, difference: float) -> float:
    """Trinomial probability, from whole numbers of arrangements."""
    rates = [(discordance + difference) / 2, (discordance - difference) / 2, 1 - discordance]
    cells = [counts.gains, counts.losses, counts.n_items - counts.n_discordant]
    arrangements = math.comb(counts.n_items, counts.n_discordant) * math.comb(counts.n_discordant, counts.gains)
    return arrangements * math.prod(max(rate, 0.0) ** cell for rate, cell in zip(rates, cells, strict=True))


def restricted_likelihood_z(counts: PairedCounts, difference: float) -> float:
    """The score statistic with the nuisance found by maximising the likelihood numerically."""

    def loss(q: float) -> float:
        terms = [(counts.gains, q + difference), (counts.losses, q)]
        terms.append((counts.n_items - counts.n_discordant, 1 - 2 * q - difference))
        return -sum(k * math.log(max(p, 1e-300)) for k, p in terms)

    low, high = max(0.0, -difference), (1 - difference) / 2
    q = scipy.optimize.minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
    variance = counts.n_items * (2 * q + difference * (1 - difference))
    return float((counts.gains - counts.losses - counts.n_items * difference) / math.sqrt(variance))


@pytest.mark.parametrize("difference", [-0.4, -0.1, -0.02, 0.02, 0.1, 0.4])
@pytest.mark.parametrize(("gains", "losses"), [(3, 1), (1, 3), (5, 5), (2, 7), (9, 2)])
def test_score_statistic_uses_the_restricted_maximum_likelihood(gains: int, losses: int, difference: float) -> None:
    counts = counts_of(30, gains, losses)
    z = score_statistic(float(gains), float(losses), n_items=30, difference=difference)
    assert z == pytest.approx(restricted_likelihood_z(counts, difference), abs=1e-5)


@pytest.mark.parametrize("total", range(1, 16))
def test_mcnemar_sums_the_binomial_outcomes_at_most_as_likely(total: int) -> None:
    likelihood = scipy.stats.binom.pmf(np.arange(total + 1), total, 0.5)
    for gains in range(total + 1):
        result = mcnemar(counts_of(40, gains, total - gains))
        as_likely = np.isclose(likelihood, likelihood[gains])
        rarer = (likelihood < likelihood[gains]) & ~as_likely
        assert result.pvalue_exact == pytest.approx(likelihood[rarer | as_likely].sum())
        assert result.pvalue == pytest.approx(likelihood[rarer].sum() + likelihood[as_likely].sum() / 2)


@pytest.mark.parametrize("counts", [counts_of(12, 5, 1), counts_of(15, 0, 4), counts_of(9, 9, 0), counts_of(14, 3, 4)])
def test_unconditional_mcnemar_is_the_supremum_over_all_outcomes(counts: PairedCounts) -> None:
    def statistic(c: PairedCounts) -> float:
        return (c.gains - c.losses) ** 2 / c.n_discordant if c.n_discordant else 0.0

    extreme = [c for c in outcomes(counts.n_items) if statistic(c) >= statistic(counts) - 1e-9]
    brute = max(sum(probability(c, psi, 0.0) for c in extreme) for psi in np.linspace(0.0, 1.0, 401))
    assert brute - 1e-9 <= mcnemar_unconditional(counts) <= brute + 1e-4


@pytest.mark.parametrize("margin", [0.05, 0.15, 0.4])
@pytest.mark.parametrize(
    "counts", [counts_of(12, 0, 0), counts_of(12, 1, 2), counts_of(15, 4, 1), counts_of(10, 0, 10)]
)
def test_guard_is_the_supremum_over_all_outcomes(counts: PairedCounts, margin: float) -> None:
    def statistic(c: PairedCounts) -> float:
        return score_statistic(float(c.gains), float(c.losses), n_items=c.n_items, difference=-margin)

    extreme = [c for c in outcomes(counts.n_items) if statistic(c) >= statistic(counts) - 1e-9]
    psis = np.sin(np.linspace(np.arcsin(np.sqrt(margin)), np.pi / 2, 401)) ** 2
    brute = max(sum(probability(c, max(psi, margin), -margin) for c in extreme) for psi in psis)
    exact = non_inferiority(counts, margin=margin).pvalue_exact
    assert brute - 1e-9 <= exact <= brute + 1e-4


def test_guard_alone_holds_the_level_that_the_score_test_exceeds() -> None:
    counts = counts_of(44, 0, 1)
    result = equivalence(counts, margin=0.1)
    assert result.pvalue == pytest.approx(0.0438, abs=5e-5)
    assert result.pvalue_exact == pytest.approx(0.0571, abs=5e-5)
    assert not result.is_equivalent
    assert is_inside(result.interval, 0.1)


@pytest.mark.parametrize(("discordance", "difference"), [(0.3, 0.0), (0.2, -0.1), (1.0, 0.3), (0.1, 0.1)])
def test_power_sums_the_outcomes_that_reject(discordance: float, difference: float) -> None:
    n_items, margin, alpha = 25, 0.3, 0.1
    truth = {"discordance": discordance, "difference": difference}
    both = one = mid = exact = 0.0
    for counts in outcomes(n_items):
        weight = probability(counts, discordance, difference)
        result = equivalence(counts, margin=margin, alpha=alpha)
        both += weight * (result.pvalue <= alpha)
        one += weight * (result.pvalue_lower <= alpha)
        test = mcnemar(counts)
        mid += weight * (test.pvalue <= alpha)
        exact += weight * (test.pvalue_exact <= alpha)
    design = {"n_items": n_items, "alpha": alpha, **truth}
    assert power_equivalence(**design, margin=margin) == pytest.approx(both, abs=1e-8)
    assert power_equivalence(**design, margin=margin, is_one_sided=True) == pytest.approx(one, abs=1e-8)
    assert power_mcnemar(**design, method=McNemarMethod.MIDP) == pytest.approx(mid, abs=1e-8)
    assert power_mcnemar(**design, method=McNemarMethod.EXACT) == pytest.approx(exact, abs=1e-8)


def test_guarded_power_is_that_of_the_verdict() -> None:
    n_items, margin, alpha = 40, 0.2, 0.05
    brute = sum(
        probability(counts, 0.2, 0.0)
        for counts in outcomes(n_items)
        if equivalence(counts, margin=margin, alpha=alpha).is_equivalent
    )
    design = {"n_items": n_items, "discordance": 0.2, "margin": margin, "alpha": alpha}
    assert power_equivalence(**design, is_guarded=True) == pytest.approx(brute, abs=1e-8)
    assert power_equivalence(**design, is_guarded=True) < power_equivalence(**design)


@pytest.mark.parametrize(("n_items", "margin"), [(100, 0.05), (250, 0.03), (600, 0.02), (1319, 0.01)])
def test_guarded_size_never_exceeds_alpha(n_items: int, margin: float) -> None:
    for discordance in np.linspace(max(0.01, margin), 0.3, 25):
        design = {"n_items": n_items, "discordance": float(discordance), "margin": margin}
        size = power_equivalence(**design, difference=-margin, is_guarded=True)
        assert size <= 0.05 + 1e-9


def test_guard_threshold_is_infinite_where_nothing_can_be_proven() -> None:
    assert guard_threshold(n_items=3, margin=0.02, alpha=0.05) == math.inf
    assert power_equivalence(n_items=3, discordance=0.1, margin=0.02, is_guarded=True) == 0.0


def test_tango_limits_are_where_the_score_test_turns() -> None:
    counts = counts_of(600, 12, 9)
    interval = tango(counts, confidence_level=0.9)
    z = scipy.stats.norm.ppf(0.95)
    assert restricted_likelihood_z(counts, interval.low) == pytest.approx(z, abs=1e-4)
    assert restricted_likelihood_z(counts, interval.high) == pytest.approx(-z, abs=1e-4)


@pytest.mark.parametrize("discordance", [0.02, 0.1, 0.3])
def test_tango_covers_about_as_often_as_it_says(discordance: float) -> None:
    covered = sum(
        probability(counts, discordance, 0.02)
        for counts in outcomes(60)
        if contains(tango(counts, confidence_level=0.9), 0.02)
    )
    assert 0.86 < covered < 0.97


def test_provable_margin_is_where_the_verdict_turns() -> None:
    for counts in (counts_of(600, 12, 9), counts_of(600, 0, 0), counts_of(200, 7, 2)):
        margin = provable_margin(counts)
        assert equivalence(counts, margin=margin).is_equivalent
        assert not equivalence(counts, margin=margin * 0.999 - 1.1e-5).is_equivalent


@pytest.mark.parametrize(("n_items", "by_score", "by_guard"), [(600, 0.0045, 0.0050), (1319, 0.0021, 0.0023)])
def test_margin_that_no_discordant_item_proves(n_items: int, by_score: float, by_guard: float) -> None:
    margin, margin_score = (
        provable_margin(counts_of(n_items, 0, 0)),
        tango(counts_of(n_items, 0, 0), confidence_level=0.9).high,
    )
    z = scipy.stats.norm.ppf(0.95)
    assert margin_score == pytest.approx(z**2 / (n_items + z**2), rel=1e-9)
    assert margin == pytest.approx(1 - 0.05 ** (1 / n_items), abs=1.3e-5)  # no loss in n items at that rate
    assert margin_score == pytest.approx(by_score, abs=6e-5)
    assert margin == pytest.approx(by_guard, abs=6e-5)


def test_items_needed_is_the_smallest_size_at_which_power_stays() -> None:
    design = {"discordance": 0.1, "margin": 0.06}
    needed = items_needed(**design, power=0.7)
    powers = np.array([power_equivalence(n_items=n, **design) for n in range(1, needed + 30)])
    lasting = [n for n in range(1, needed + 3) if np.all(powers[n - 1 : n + 25] >= 0.7)]
    assert lasting[0] == needed


@pytest.mark.parametrize(
    ("discordance", "margin", "power", "expected"), [(0.007, 0.0044, 0.8, 3425), (0.01, 0.0042, 0.7, 4305)]
)
def test_items_needed_are_found_on_a_wide_tooth_of_the_saw(
    discordance: float, margin: float, power: float, expected: int
) -> None:
    """Power holds for 25 more sizes, then dips below its target once more."""
    design = {"discordance": discordance, "margin": margin}
    assert items_needed(**design, power=power) == expected
    powers = np.array([power_equivalence(n_items=n, **design) for n in range(expected - 1, expected + 80)])
    assert powers[0] < power
    assert np.all(powers[1:27] >= power)
    assert np.any(powers[27:] < power)


def test_items_needed_without_discordance_is_where_no_change_proves_the_margin() -> None:
    needed = items_needed(discordance=0.0, margin=0.01)
    assert is_inside(tango(counts_of(needed, 0, 0), confidence_level=0.9), 0.01)
    assert not is_inside(tango(counts_of(needed - 1, 0, 0), confidence_level=0.9), 0.01)


def test_minimal_differences_are_where_power_reaches_its_target() -> None:
    found = mde(n_items=600, discordance=0.05)
    assert power_mcnemar(n_items=600, discordance=0.05, difference=found) == pytest.approx(0.8, abs=1e-5)
    loss = mde_beyond_noise(n_items=600, noise=0.05)
    assert power_mcnemar(n_items=600, discordance=0.05 + loss, difference=-loss) == pytest.approx(0.8, abs=1e-5)
    margin = smallest_margin(n_items=600, discordance=0.05)
    assert power_equivalence(n_items=600, discordance=0.05, margin=margin) >= 0.8
    assert power_equivalence(n_items=600, discordance=0.05, margin=margin - 1e-5) < 0.8


def test_newcombe_limits_stay_within_the_possible() -> None:
    counts = PairedCounts(n_items=10, gains=10, losses=0, both_right=0)
    interval = newcombe(counts)
    assert -1 <= interval.low < interval.high <= 1


def test_unpaired_test_is_the_pooled_z() -> None:
    pvalue = two_proportion_z(baseline=0.51, candidate=301 / 600, n_baseline=600, n_candidate=600)
    table = [[306, 294], [301, 299]]
    assert pvalue == pytest.approx(scipy.stats.chi2_contingency(table, correction=False).pvalue)


@pytest.mark.parametrize(("gains", "losses"), [(0, 0), (3, 9), (9, 3), (0, 40), (5, 5), (1, 0)])
def test_one_sided_mid_p_values_are_binomial_tails_less_half_of_the_observed(gains: int, losses: int) -> None:
    total = gains + losses
    half = scipy.stats.binom.pmf(gains, total, 0.5) / 2 if total else 0.0
    loss, gain = mcnemar_sides(gains, losses)
    assert loss == pytest.approx(scipy.stats.binom.cdf(gains, total, 0.5) - half, rel=1e-11)
    assert gain == pytest.approx(scipy.stats.binom.cdf(losses, total, 0.5) - half, rel=1e-11)
    both = mcnemar(PairedCounts(n_items=total or 1, gains=gains, losses=losses)).pvalue
    assert both == pytest.approx(min(1.0, 2 * min(loss, gain)) if gains != losses else both, rel=1e-11)


def test_one_sided_mid_p_values_of_parts_of_a_count_lie_between_those_of_whole_ones() -> None:
    between = [mcnemar_sides(gains, 8.0)[0] for gains in (2.0, 2.25, 2.5, 2.75, 3.0)]
    assert between == sorted(between)
    assert mcnemar_sides(2.5, 8.5)[0] > mcnemar_sides(5.0, 17.0)[0]
    for wrong in (-0.1, math.nan, math.inf):
        with pytest.raises(InvalidValue):
            mcnemar_sides(wrong, 1.0)

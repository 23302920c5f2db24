"""0/1 outcomes: the tests against their definitions, what must hold whatever the data, and the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qualab.stats.counts import PairedCounts, tally
from qualab.stats.difference import mcnemar, mcnemar_sides, mcnemar_unconditional, two_proportion_z
from qualab.stats.equivalence import equivalence, guard_pvalue, is_accepted, provable_margin
from qualab.stats.interval import newcombe, score_statistic, tango
from tests.stats.reference import counts_of, non_inferiority, outcomes, trinomial

UNCHANGED = PairedCounts(n_items=600, gains=0, losses=0, both_right=590)


@st.composite
def paired_counts(draw: st.DrawFn, max_items: int = 400) -> PairedCounts:
    n_items = draw(st.integers(1, max_items))
    discordant = draw(st.integers(0, n_items))
    gains = draw(st.integers(0, discordant))
    both_right = draw(st.integers(0, n_items - discordant))
    return PairedCounts(n_items=n_items, gains=gains, losses=discordant - gains, both_right=both_right)


margins = st.floats(0.003, 0.6)


@settings(max_examples=60)
@given(paired_counts(), margins)
def test_swapped_arms_mirror_every_result(counts: PairedCounts, margin: float) -> None:
    assert mcnemar(counts) == mcnemar(counts.swapped())
    for method in (tango, newcombe):
        interval, swapped = method(counts), method(counts.swapped())
        assert (interval.low, interval.high) == pytest.approx((-swapped.high, -swapped.low), abs=1e-12)
        assert -1 <= interval.low <= counts.difference <= interval.high <= 1
    here, there = equivalence(counts, margin=margin), equivalence(counts.swapped(), margin=margin)
    assert here.pvalue_lower == pytest.approx(there.pvalue_upper)
    lower, upper = here.pvalue_exact_of(True, False), here.pvalue_exact_of(False, True)
    assert (lower, upper) == tuple(non_inferiority(arms, margin=margin)[1] for arms in (counts, counts.swapped()))
    assert here.pvalue_exact == here.pvalue_exact_of(True, True) == pytest.approx(max(lower, upper), abs=2e-7)
    assert lower == pytest.approx(there.pvalue_exact_of(False, True))
    assert here.is_equivalent == there.is_equivalent


@settings(max_examples=60)
@given(paired_counts(), margins)
def test_pvalues_are_probabilities_and_agree_with_the_interval(counts: PairedCounts, margin: float) -> None:
    result, test = equivalence(counts, margin=margin), mcnemar(counts)
    values = [result.pvalue, result.pvalue_exact, test.pvalue, test.pvalue_exact, mcnemar_unconditional(counts)]
    assert all(0.0 <= value <= 1.0 for value in values)
    assert test.pvalue <= test.pvalue_exact
    farther = max(-result.interval.low, result.interval.high)
    if abs(farther - margin) > 1e-9:
        assert (result.pvalue <= 0.05) == (farther < margin)


@settings(max_examples=40)
@given(paired_counts(max_items=150), margins)
def test_another_gain_never_speaks_for_a_loss_and_a_wider_margin_is_easier(counts: PairedCounts, margin: float) -> None:
    before = non_inferiority(counts, margin=margin)
    assert non_inferiority(counts, margin=margin * 1.5)[0] <= before[0] + 1e-12
    if counts.n_discordant < counts.n_items:
        after = non_inferiority(counts_of(counts.n_items, counts.gains + 1, counts.losses), margin=margin)
        assert after[0] <= before[0] + 1e-12
        assert after[1] <= before[1] + 1e-7


@settings(max_examples=25)
@given(paired_counts())
@example(PairedCounts(n_items=224, gains=0, losses=223, both_right=0))  # its margin is just short of 1
@example(counts_of(600, 12, 9))
@example(counts_of(200, 7, 2))
def test_the_provable_margin_is_where_the_verdict_turns(counts: PairedCounts) -> None:
    margin, interval = provable_margin(counts), tango(counts, confidence_level=0.9)
    assert max(-interval.low, interval.high) <= margin <= 1.0
    if margin < 0.999:
        assert equivalence(counts, margin=margin).is_equivalent
        narrower = margin * 0.999 - 1.1e-5
        assert narrower <= 0.0 or not equivalence(counts, margin=narrower).is_equivalent


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
    z = score_statistic(float(gains), float(losses), n_items=30, difference=difference)
    assert z == pytest.approx(restricted_likelihood_z(counts_of(30, gains, losses), difference), abs=1e-5)


@pytest.mark.parametrize("total", range(1, 16))
def test_mcnemar_sums_the_binomial_outcomes_at_most_as_likely(total: int) -> None:
    likelihood = scipy.stats.binom.pmf(np.arange(total + 1), total, 0.5)
    for gains in range(total + 1):
        result = mcnemar(counts_of(40, gains, total - gains))
        as_likely = np.isclose(likelihood, likelihood[gains])
        rarer = (likelihood < likelihood[gains]) & ~as_likely
        assert result.pvalue_exact == pytest.approx(likelihood[rarer | as_likely].sum())
        assert result.pvalue == pytest.approx(likelihood[rarer].sum() + likelihood[as_likely].sum() / 2)


@pytest.mark.parametrize(("gains", "losses"), [(0, 0), (3, 9), (9, 3), (0, 40), (5, 5), (1, 0)])
def test_one_sided_mid_p_values_are_binomial_tails_less_half_of_the_observed(gains: int, losses: int) -> None:
    total = gains + losses
    half = scipy.stats.binom.pmf(gains, total, 0.5) / 2 if total else 0.0
    tails = [scipy.stats.binom.cdf(count, total, 0.5) - half for count in (gains, losses)]
    assert mcnemar_sides(gains, losses) == pytest.approx(tails, rel=1e-11)
    if gains != losses:
        assert mcnemar(counts_of(total, gains, losses)).pvalue == pytest.approx(2 * min(tails), rel=1e-11)
    between = [mcnemar_sides(count, 8.0)[0] for count in (2.0, 2.25, 2.5, 2.75, 3.0)]  # parts of a count
    assert between == sorted(between)
    assert mcnemar_sides(2.5, 8.5)[0] > mcnemar_sides(5.0, 17.0)[0]


@pytest.mark.parametrize("counts", [counts_of(12, 5, 1), counts_of(15, 0, 4), counts_of(9, 9, 0), counts_of(14, 3, 4)])
def test_unconditional_mcnemar_is_the_supremum_over_all_outcomes(counts: PairedCounts) -> None:
    def statistic(c: PairedCounts) -> float:
        return (c.gains - c.losses) ** 2 / c.n_discordant if c.n_discordant else 0.0

    extreme = [c for c in outcomes(counts.n_items) if statistic(c) >= statistic(counts) - 1e-9]
    brute = max(sum(trinomial(c, psi, 0.0) for c in extreme) for psi in np.linspace(0.0, 1.0, 401))
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
    brute = max(sum(trinomial(c, max(psi, margin), -margin) for c in extreme) for psi in psis)
    assert brute - 1e-9 <= non_inferiority(counts, margin=margin)[1] <= brute + 1e-4


@settings(max_examples=40)
@given(st.integers(1, 300), st.floats(0.002, 0.5), st.floats(0.5, 4.0), st.floats(0.001, 0.3))
@example(600, 0.02, 1.645, 0.05)
def test_a_statistic_is_accepted_where_its_exact_pvalue_is_at_most_alpha(
    n_items: int, margin: float, statistic: float, alpha: float
) -> None:
    exact = guard_pvalue(statistic, n_items=n_items, margin=margin)
    assert is_accepted(statistic, n_items=n_items, margin=margin, alpha=alpha) is (exact <= alpha)


def test_counts_prove_a_loss_bound_from_one_side() -> None:
    counts = counts_of(600, 12, 7)
    margin = provable_margin(counts, is_one_sided=True)
    assert margin < provable_margin(counts)
    proven, unproven = (non_inferiority(counts, margin=at) for at in (margin, margin - 2e-5))
    assert max(proven) <= 0.05 < max(unproven)
    assert provable_margin(counts.swapped(), is_one_sided=True) == provable_margin(counts)


def test_no_discordant_item_shows_no_difference_and_still_proves_a_margin() -> None:
    result = mcnemar(UNCHANGED)
    assert (result.pvalue, result.pvalue_exact, mcnemar_unconditional(UNCHANGED)) == (1, 1, 1)
    for n_items, by_score, by_guard in ((600, 0.0045, 0.0050), (1319, 0.0021, 0.0023)):
        counts = counts_of(n_items, 0, 0)
        margin, margin_score = provable_margin(counts), tango(counts, confidence_level=0.9).high
        z = scipy.stats.norm.ppf(0.95)
        assert margin_score == pytest.approx(z**2 / (n_items + z**2), rel=1e-9)
        assert margin == pytest.approx(1 - 0.05 ** (1 / n_items), abs=1.3e-5)  # no loss in n items at that rate
        assert (margin_score, margin) == pytest.approx((by_score, by_guard), abs=6e-5)
    for share in (0.0, 1.0):  # arms that are all right or all wrong do not differ
        assert two_proportion_z(baseline=share, candidate=share, n_baseline=5, n_candidate=5) == 1.0
    assert equivalence(UNCHANGED, margin=0.01).is_equivalent
    assert not equivalence(counts_of(10, 0, 0), margin=0.1).is_equivalent
    assert provable_margin(counts_of(10, 0, 0)) > 0.2


def test_every_item_changed() -> None:
    assert tally([1, 1, 0, 0, 0, 1], [1, 0, 1, 1, 0, 1]).accuracies == (0.5, pytest.approx(2 / 3))
    counts = PairedCounts(n_items=50, gains=50, losses=0, both_right=0)
    assert mcnemar(counts).pvalue_exact == pytest.approx(2 * 0.5**50)
    assert 0.8 < tango(counts).low < tango(counts).high == 1.0
    assert -1 <= newcombe(counts).low < newcombe(counts).high <= 1
    assert provable_margin(counts) == 1.0
    assert not equivalence(counts, margin=0.5).is_equivalent
    both_ways = counts_of(50, 25, 25)
    assert mcnemar(both_ways).pvalue_exact == 1.0
    assert tango(both_ways).low == pytest.approx(-tango(both_ways).high)
    assert 0.25 < tango(both_ways).high < 0.3

"""What must hold of the tests for 0/1 data whatever the data are."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qualab.stats.counts import PairedCounts, tally
from qualab.stats.difference import mcnemar, mcnemar_unconditional
from qualab.stats.equivalence import equivalence, provable_margin
from qualab.stats.interval import newcombe, tango
from qualab.stats.resampling import holm
from qualab.stats.sizing import power_equivalence, power_mcnemar
from tests.stats.reference import non_inferiority


@st.composite
def paired_counts(draw: st.DrawFn, max_items: int = 400) -> PairedCounts:
    n_items = draw(st.integers(1, max_items))
    discordant = draw(st.integers(0, n_items))
    gains = draw(st.integers(0, discordant))
    both_right = draw(st.integers(0, n_items - discordant))
    return PairedCounts(n_items=n_items, gains=gains, losses=discordant - gains, both_right=both_right)


margins = st.floats(0.003, 0.6)


@given(paired_counts())
def test_swapping_the_arms_keeps_every_two_sided_pvalue(counts: PairedCounts) -> None:
    assert mcnemar(counts) == mcnemar(counts.swapped())


@settings(deadline=None, max_examples=40)
@given(paired_counts())
def test_swapping_the_arms_mirrors_every_interval(counts: PairedCounts) -> None:
    for method in (tango, newcombe):
        interval, swapped = method(counts), method(counts.swapped())
        assert (interval.low, interval.high) == pytest.approx((-swapped.high, -swapped.low), abs=1e-12)
        assert -1 <= interval.low <= counts.difference <= interval.high <= 1


@settings(deadline=None, max_examples=60)
@given(paired_counts(), margins)
def test_swapping_the_arms_swaps_the_two_one_sided_tests(counts: PairedCounts, margin: float) -> None:
    here, there = equivalence(counts, margin=margin), equivalence(counts.swapped(), margin=margin)
    assert here.pvalue_lower == pytest.approx(there.pvalue_upper)
    assert here.pvalue_exact_lower == pytest.approx(there.pvalue_exact_upper)
    assert here.is_equivalent == there.is_equivalent


@settings(deadline=None, max_examples=60)
@given(paired_counts(), margins)
def test_score_tests_agree_with_the_interval(counts: PairedCounts, margin: float) -> None:
    result = equivalence(counts, margin=margin)
    farther = max(-result.interval.low, result.interval.high)
    if abs(farther - margin) > 1e-9:
        assert (result.pvalue <= 0.05) == (farther < margin)


@settings(deadline=None, max_examples=40)
@given(paired_counts(), margins)
def test_pvalues_are_probabilities(counts: PairedCounts, margin: float) -> None:
    result, test = equivalence(counts, margin=margin), mcnemar(counts)
    values = [
        result.pvalue,
        result.pvalue_exact,
        test.pvalue,
        test.pvalue_exact,
        mcnemar_unconditional(counts),
    ]
    assert all(0.0 <= value <= 1.0 for value in values)
    assert test.pvalue <= test.pvalue_exact


@settings(deadline=None, max_examples=40)
@given(paired_counts(max_items=150), margins)
def test_another_gain_never_speaks_for_a_loss(counts: PairedCounts, margin: float) -> None:
    if counts.n_discordant == counts.n_items:
        return
    better = PairedCounts(n_items=counts.n_items, gains=counts.gains + 1, losses=counts.losses)
    before, after = non_inferiority(counts, margin=margin), non_inferiority(better, margin=margin)
    assert after.pvalue <= before.pvalue + 1e-12
    assert after.pvalue_exact <= before.pvalue_exact + 1e-7


@settings(deadline=None, max_examples=40)
@given(paired_counts(), st.floats(0.01, 0.2))
def test_a_wider_margin_is_easier(counts: PairedCounts, margin: float) -> None:
    narrow, wide = equivalence(counts, margin=margin), equivalence(counts, margin=margin * 1.5)
    assert wide.pvalue <= narrow.pvalue + 1e-12


@settings(deadline=None, max_examples=25)
@given(paired_counts())
@example(PairedCounts(n_items=224, gains=0, losses=223, both_right=0))  # its margin is just short of 1
def test_the_provable_margin_is_proven(counts: PairedCounts) -> None:
    margin, interval = provable_margin(counts), tango(counts, confidence_level=0.9)
    assert max(-interval.low, interval.high) <= margin <= 1.0
    if margin < 0.999:
        assert equivalence(counts, margin=margin).is_equivalent


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=40), st.randoms())
def test_the_order_of_items_does_not_matter(rows: list[tuple[int, int]], random: st.random.Random) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert tally(*zip(*rows, strict=True)) == tally(*zip(*shuffled, strict=True))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 800), st.floats(0.0, 1.0), st.floats(-1.0, 1.0), margins)
def test_power_is_a_probability_and_symmetric(n_items: int, discordance: float, part: float, margin: float) -> None:
    truth = {"n_items": n_items, "discordance": discordance}
    difference = discordance * part
    here = power_equivalence(**truth, difference=difference, margin=margin)
    there = power_equivalence(**truth, difference=-difference, margin=margin)
    assert 0.0 <= here <= 1.0
    assert here == pytest.approx(there, abs=1e-8)
    assert power_mcnemar(**truth, difference=difference) == pytest.approx(
        power_mcnemar(**truth, difference=-difference), abs=1e-8
    )


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12))
def test_holm_keeps_the_order_and_never_lowers_a_pvalue(pvalues: list[float]) -> None:
    adjusted = holm(sorted(pvalues))
    assert all(after >= before for before, after in zip(sorted(pvalues), adjusted, strict=True))
    assert list(adjusted) == sorted(adjusted)
    assert sorted(holm(pvalues)) == list(adjusted)

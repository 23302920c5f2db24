"""Looks: levels that are spent once."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from qualab.stats.looks import crossing_probability, sequential_pvalue, spending_boundaries, spent


@pytest.mark.parametrize("fractions", [[1.0], [0.5, 1.0], [0.1 * k for k in range(1, 10)] + [1.0], [0.2, 0.25, 0.9]])
def test_boundaries_spend_exactly_what_they_may(fractions: list[float]) -> None:
    boundaries = spending_boundaries(fractions, alpha=0.05)
    for k in range(1, len(fractions) + 1):
        crossed = crossing_probability(boundaries[:k], fractions[:k])
        assert crossed == pytest.approx(spent(fractions[k - 1], alpha=0.05), abs=1e-9)
    assert spending_boundaries([0.001, 1.0], alpha=0.05)[0] > 30, "with nothing to spend it cannot stop"


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

"""No evidence is an error and not a number, and so are arguments that cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats import sizing
from qualab.stats.acceptance import acceptance, histogram_of_survival
from qualab.stats.bounded import BoundedMean
from qualab.stats.clustered import cluster_cells, clustered_mcnemar
from qualab.stats.counts import PairedCounts, tally
from qualab.stats.difference import mcnemar, mcnemar_unconditional, mde_unpaired, power_unpaired, two_proportion_z
from qualab.stats.equivalence import equivalence, provable_margin
from qualab.stats.f1 import LabelledAnswers, bound_macro_f1
from qualab.stats.interval import newcombe, tango
from qualab.stats.looks import spending_boundaries
from qualab.stats.mean import mean_difference
from qualab.stats.noise import disagreement, variance_components, weighted_median
from qualab.stats.resampling import holm, max_t, sign_flip
from tests.stats.reference import bootstrap_macro_f1, bootstrap_mean, counts_of, rng

NOTHING = PairedCounts(n_items=0, gains=0, losses=0, both_right=0)
UNCHANGED = PairedCounts(n_items=600, gains=0, losses=0, both_right=590)
MEANS = (mean_difference, BoundedMean.of)


def labelled(truth: list[int], answers: list[int]) -> LabelledAnswers:
    return LabelledAnswers(truth=truth, baseline=answers, candidate=answers)


@pytest.mark.parametrize(
    "call",
    [
        *(lambda of=of: of(NOTHING) for of in (mcnemar, mcnemar_unconditional, tango, newcombe, provable_margin)),
        lambda: equivalence(NOTHING, margin=0.02),
        lambda: NOTHING.difference,
        lambda: NOTHING.discordance,
        lambda: two_proportion_z(baseline=0.5, candidate=0.5, n_baseline=0, n_candidate=5),
        lambda: mde_unpaired(n_items=3, baseline=0.2),
        lambda: newcombe(counts_of(5, 1, 1)),
        lambda: counts_of(5, 1, 1).accuracies,
        *(lambda values=values: mean_difference(values) for values in ([0.1], [0.0, 0.0, 0.0], [1.0, 1.0], [])),
        lambda: mean_difference([0.1, 0.2], cluster=["a", "a"]),
        lambda: BoundedMean.of([]),
        lambda: clustered_mcnemar([[3, 1, 0, 1]]),
        lambda: sign_flip([], rng=rng()),
        *(lambda values=values: bootstrap_mean(values, rng=rng()) for values in ([0.0] * 50, [0.25] * 50, [1.0])),
        lambda: bootstrap_macro_f1(labelled([0, 1, 0], [0, 1, 1]), n_resamples=99, rng=rng()),
        lambda: bound_macro_f1([labelled([0, 1], [0, 2])]),  # a label that is never right
        *(lambda runs=runs: disagreement(runs) for runs in ([], [["a"]])),
        *(lambda runs=runs: variance_components(runs) for runs in ([[1, 0]], [[1], [0]])),
        lambda: weighted_median([], []),
        *(lambda histogram=histogram: acceptance(histogram) for histogram in ((), (0, 0))),
        lambda: sizing.power_equivalence(n_items=0, discordance=0.1, margin=0.02),
        lambda: sizing.power_mcnemar(n_items=0, discordance=0.1, difference=0.02),
        lambda: sizing.mde(n_items=600, discordance=0.01),
        lambda: sizing.mde_beyond_noise(n_items=3, noise=0.5),
        lambda: sizing.smallest_margin(n_items=1, discordance=0.5),
        lambda: sizing.items_needed(discordance=0.05, difference=0.02, margin=0.02),
        lambda: sizing.items_needed(discordance=0.05, difference=-0.02, margin=0.02, is_one_sided=True),
        lambda: sizing.items_needed(discordance=0.5, margin=0.001, max_items=5_000),
        lambda: sizing.items_needed(discordance=0.05, margin=1e-5, is_guarded=True),
        lambda: sizing.items_needed(discordance=0.05, margin=1e-4, is_guarded=True, max_items=200_000),
    ],
)
def test_no_evidence_is_an_error_and_not_a_number(call: Callable[[], object]) -> None:
    with pytest.raises(InsufficientData):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: counts_of(-1, 0, 0),
        lambda: PairedCounts(n_items=5, gains=0, losses=0, both_right=-1),
        lambda: tally([1, 0], [1]),
        *(lambda arm=arm: tally(arm, [1, 0]) for arm in ([1, 0.5], [1, np.nan], ["a", "b"], [1, 2])),
        lambda: tally([[1, 0]], [[1, 0]]),
        lambda: equivalence(UNCHANGED, margin=math.nan),
        lambda: equivalence(UNCHANGED, margin=0.02, alpha=0.0),
        lambda: provable_margin(UNCHANGED, alpha=0.7),
        lambda: tango(UNCHANGED, confidence_level=95),
        lambda: two_proportion_z(baseline=51, candidate=50, n_baseline=600, n_candidate=600),
        lambda: power_unpaired(n_items=3, baseline=0.2, difference=-0.3),
        *(lambda of=of: of([0.1, float("nan")]) for of in MEANS),
        *(lambda of=of: of([[0.1], [0.2]]) for of in MEANS),
        *(lambda of=of: of([0.1, 0.2, 0.3], cluster=["a", "b"]) for of in MEANS),
        lambda: BoundedMean.of([0.0, 1.5]),
        lambda: cluster_cells([1, 0.5], [1, 1], cluster=["x", "y"]),
        *(lambda values=values: sign_flip(values, rng=rng()) for values in ([0.5, float("nan")], [[0.5]])),
        *(lambda table=table: max_t(table, rng=rng()) for table in ([1.0, 2.0], [[np.nan]])),
        lambda: max_t([[1.0], [0.0]], cluster=["a"], rng=rng()),
        lambda: holm([0.1, np.nan]),
        lambda: acceptance((3, -1)),
        lambda: histogram_of_survival(3, (2, 3)),
        *(lambda at=at: spending_boundaries(at) for at in ([], [0.0, 1.0], [0.5, 0.5], [0.6, 0.5], [0.5, 1.1])),
    ],
)
def test_impossible_arguments_are_refused_with_a_hint(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue) as caught:
        call()
    assert caught.value.hint

"""The calculators against published and checked figures, and what they say where there is no answer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from qualab.analysis.evidence import with_zero
from qualab.errors import InsufficientData, InvalidValue
from qualab.model.names import Verdict
from qualab.planning.calculators import paired_test, powers, size, smallest_effects
from qualab.planning.power import early_looks
from qualab.stats.difference import (
    mcnemar,
    mcnemar_sides,
    mcnemar_unconditional,
    mde_unpaired,
    power_unpaired,
    two_proportion_z,
)
from qualab.stats.equivalence import provable_margin
from qualab.stats.interval import tango
from qualab.stats.sizing import items_needed, smallest_margin
from tests.stats.reference import counts_of

TOO_MANY = 10_000_000
SHARED = os.environ.get("QUALAB_SHARED")
PROBABLE_MISPRINT = ("KoBEST", "mde90")
"""The reference table has 0.0895 here; the formula that gives its nine other MDEs gives 0.0905."""


@pytest.fixture(scope="module")
def published() -> Any:
    """A published drafter off/on table of five benchmarks, with what unpaired and paired tests make of it."""
    if not SHARED:
        pytest.skip("needs QUALAB_SHARED, the directory with reference/")
    return json.loads((Path(SHARED) / "reference" / "published_ab_table.json").read_text())


def test_counts_give_the_checked_figures() -> None:
    # tango-300-12-9-279, newcombe10-300-12-9-279, mcn-12-9 and score-tost-12-9-600-0.02 of the checked cases (R)
    found = paired_test(gains=12, losses=9, n_items=600, margin=0.02, both_right=300)
    limits = (found.interval.low, found.interval.high, found.interval_newcombe.low)
    assert limits == pytest.approx((-0.0108199871, 0.0214997754, -0.0102752435), abs=1e-7)
    assert (found.pvalue, found.pvalue_exact) == pytest.approx((0.5234670639, 0.6636238098), abs=1e-8)
    assert found.pvalue_unconditional == mcnemar_unconditional(counts_of(600, 12, 9))
    assert found.pvalue_unpaired == two_proportion_z(baseline=0.515, candidate=0.52, n_baseline=600, n_candidate=600)
    assert found.pvalue_equivalence == pytest.approx(0.0356839517, abs=1e-7)
    assert (found.provable_margin, found.verdict) == (provable_margin(counts_of(600, 12, 9)), Verdict.EQUIVALENT)
    assert (found.baseline, found.candidate) == (309 / 600, 312 / 600)
    assert (found.difference, found.discordance) == pytest.approx((0.005, 0.035))


def test_interval_and_p_leave_0_out_together() -> None:
    """Score intervals alone leave 0 out where mid-p does not: 0 gained and 4 lost, 2 and 7, 6 and 15."""
    for gains in (*range(9), 29):
        for losses in (*range(gains, gains + 15), 43, 46):
            counts = counts_of(1000, gains, losses)
            p, loss = mcnemar(counts).pvalue, mcnemar_sides(gains, losses)[0]
            for level in (0.025, 0.05, 0.1):
                interval = with_zero(tango(counts, confidence_level=1.0 - 2.0 * level), p, level)
                assert (interval.high < 0.0) == (loss <= level), (gains, losses)
    found = paired_test(gains=0, losses=4, n_items=80, margin=0.02)
    assert (found.interval.high, found.pvalue) == (0.0, 0.0625)
    assert found.equivalence_interval.high < 0.0 < found.pvalue_loss < 0.05


def test_powers_are_the_checked_ones() -> None:
    # power-tost-600-0.05-0-0.03 and power-mcn-600-0.09-0.03: R and Python enumerations agree
    equal = powers(n_items=600, discordance=0.05, margin=0.03, n_metrics=5)
    assert equal.equivalence == pytest.approx(0.8703355348, abs=1e-6)
    assert 0.8 < equal.equivalence_guarded <= equal.equivalence
    assert equal.joint == pytest.approx(equal.equivalence_guarded**5)
    assert equal.power_for_joint == pytest.approx(0.8**0.2)
    better = powers(n_items=600, discordance=0.09, difference=0.03, margin=0.03)
    on_top = powers(n_items=600, discordance=0.06, margin=0.03).detection_of_margin
    assert better.detection_exact == pytest.approx(0.6519582884, abs=1e-6)
    assert (better.detection, on_top) == pytest.approx((0.6958908749, 0.6958908749), abs=1e-6)
    assert powers(n_items=20, discordance=0.9, margin=0.2).detection_of_margin is None
    many = powers(n_items=20_001, discordance=0.05, margin=0.005, n_metrics=2)
    assert many.equivalence_guarded is None
    assert many.joint == pytest.approx(many.equivalence**2)


def test_sizes_are_the_checked_ones_and_more_metrics_need_more_items_each() -> None:
    found = [size(margin=0.02, discordance=discordance) for discordance in (0.02, 0.05, 0.1)]
    for one, n_items, expected in zip(found, (655, 1409, 2732), (561, 1154, 2219), strict=True):
        assert one.n_items == n_items < one.looks.most_items
        assert one.looks.expected_items == pytest.approx(expected, rel=0.03)
        assert one.looks.power == pytest.approx(0.9, abs=0.02)
    assert (found[0].discordance_repeated, found[0].n_items_repeated) == (None, None)
    unpaired = [size(margin=0.02, discordance=0.02, n_looks=1, accuracy=a).n_items_unpaired for a in (0.5, 0.76)]
    assert unpaired == [13_528, 9_870]  # 2 a (1 - a) (1.644854 + 1.644854)^2 / 0.02^2
    five, one = (size(margin=0.03, discordance=0.05, power=0.8, n_looks=1, n_metrics=n) for n in (5, 1))
    assert (five.n_items, five.looks, one.n_items_joint) == (520, None, 520)
    assert five.power_each == pytest.approx(0.8**0.2)
    at_joint = powers(n_items=five.n_items_joint, discordance=0.05, margin=0.03)
    assert at_joint.equivalence >= five.power_each > 0.8


def test_large_designs_are_not_simulated_and_small_ones_come_to_the_same() -> None:
    large = early_looks(margin=0.008, discordance=0.1, power=0.9, n_looks=5)
    assert large.most_items > 10_000
    assert (large.expected_items, large.power, large.harm) == (None, None, None)
    once = early_looks(margin=0.05, discordance=0.05, n_looks=3)
    early_looks.cache_clear()
    assert early_looks(margin=0.05, discordance=0.05, n_looks=3) == once


PAIRED = {"gains": 1, "losses": 3, "n_items": 7, "margin": 0.02}
SIZE = {"margin": 0.03, "discordance": 0.05, "n_looks": 1}
MDE = {"n_items": 9, "discordance": 0.1}
POWER = MDE | {"margin": 0.02}
IMPOSSIBLE: list[tuple[Callable[..., object], dict[str, float], dict[str, tuple[float, ...]]]] = [
    (paired_test, PAIRED, {"gains": (5, -1), "both_right": (4,), "margin": (0, 1), "n_items": (TOO_MANY,)}),
    (paired_test, PAIRED, {"alpha": (0.5,), "confidence_level": (1.0,)}),
    (powers, POWER, {"n_metrics": (0,), "difference": (0.2,), "n_items": (TOO_MANY,)}),
    (smallest_effects, MDE, {"discordance": (1.5,), "accuracy": (1.5,), "power": (1.0,), "n_items": (TOO_MANY,)}),
    (size, SIZE, {"margin": (0.0,), "n_looks": (0, 51), "n_metrics": (0,), "repeats": (4, 0), "noise": (0.01,)}),
    (size, SIZE | {"repeats": 2}, {"noise": (0.2,)}),
]


@pytest.mark.parametrize(
    ("calculate", "given"),
    [
        (calculate, given | {name: value})
        for calculate, given, changes in IMPOSSIBLE
        for name, values in changes.items()
        for value in values
    ],
)
def test_impossible_arguments_are_refused(calculate: Callable[..., object], given: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="more than the 1,000,000" if given.get("n_items") == TOO_MANY else None):
        calculate(**given)


@pytest.mark.parametrize(
    ("calculate", "given"),
    [
        (paired_test, {"gains": 0, "losses": 0, "n_items": 0, "margin": 0.02}),
        *((powers, POWER | {"n_items": 0}), (smallest_effects, MDE | {"n_items": 0})),
        (size, {"margin": 0.001, "discordance": 0.5}),
    ],
)
def test_what_has_no_answer_is_no_number(calculate: Callable[..., object], given: dict[str, Any]) -> None:
    with pytest.raises(InsufficientData):
        calculate(**given)


def test_unpaired_figures_of_the_published_table(published: Any) -> None:
    for row in published["rows"]:
        n, off, on = row["n"], row["off"], row["on"]
        pvalue = two_proportion_z(baseline=off, candidate=on, n_baseline=n, n_candidate=n)
        assert pvalue == pytest.approx(row["two_proportion_z_p"], abs=5.1e-5)
        power = power_unpaired(n_items=n, baseline=(off + on + 0.04) / 2.0, difference=-0.04)
        assert power == pytest.approx(row["unpaired_power_at_4pp"], abs=0.0051)
        for name, target in (("mde80", 0.8), ("mde90", 0.9)):
            if (row["metric"], name) != PROBABLE_MISPRINT:
                loss = mde_unpaired(n_items=n, baseline=off, power=target)
                assert loss == pytest.approx(row[f"unpaired_{name}"], abs=5.1e-5)


def test_what_pairing_the_published_items_would_have_shown(published: Any) -> None:
    for row in published["paired_at_n_600"]["rows"]:
        design: Any = {"discordance": row["discordance"]}
        found = smallest_effects(n_items=600, **design)
        shown = {"mde80": found.mde, "mde_noise_plus_shift80": found.mde_beyond_noise}
        shown |= {"margin80": found.smallest_margin, "margin90": smallest_margin(n_items=600, power=0.9, **design)}
        for name, value in shown.items():
            assert value == (None if row[name] is None else pytest.approx(row[name], abs=5.1e-5)), name
        needed = [items_needed(margin=margin, power=0.8, **design) for margin in (0.01, 0.02, 0.03)]
        assert needed == list(row["n_for_margin80"].values())


def test_unpaired_figures_by_hand() -> None:
    # 50 % against 40 %, 400 an arm: 45 % pooled, 0.25 and 0.24 their own variances
    z = (0.1 - 1.959964 * sqrt(2 * 0.45 * 0.55 / 400)) / sqrt((0.25 + 0.24) / 400)
    assert z == pytest.approx(0.8872, abs=1e-4)
    # a normal table has 0.8125 at 0.887
    assert power_unpaired(n_items=400, baseline=0.5, difference=-0.1) == pytest.approx(0.8125, abs=1e-4)
    assert power_unpaired(n_items=3, baseline=0.0, difference=0.0) == 0.0
    assert power_unpaired(n_items=3, baseline=1.0, difference=-1.0) == 1.0

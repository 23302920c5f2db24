"""Every checked case of the reference file, at its own tolerance."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, false_discovery_control

from qualab.errors import InsufficientData
from qualab.stats.clustered import clustered_mcnemar
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar, mcnemar_unconditional, two_proportion_z
from qualab.stats.equivalence import equivalence
from qualab.stats.f1 import JoinedAnswers, LabelledAnswers
from qualab.stats.interval import newcombe, tango
from qualab.stats.looks import level_boundaries, spending_boundaries
from qualab.stats.mean import mean_difference
from qualab.stats.noise import excess_discordance, flip_rate, variance_components
from qualab.stats.resampling import holm, max_t, patterns, sign_flip, signed_sums
from qualab.stats.sizing import (
    McNemarMethod,
    items_needed,
    items_wald_equivalence,
    mde,
    mde_beyond_noise,
    power_equivalence,
    power_mcnemar,
    smallest_margin,
)
from tests.stats.reference import (
    classical_boundaries,
    cluster_errors,
    clustered_statistics,
    items_connor,
    items_miettinen,
    items_wald,
    log_e_values,
    mcnemar_berger_boos,
    mcnemar_log_e,
    melded_cdf,
    newcombe_uncorrected,
    non_inferiority,
    power_mcnemar_asymptotic,
    pvalue_within,
    rng,
    roughly_zero,
    wald,
)

SHARED = os.environ.get("QUALAB_SHARED")
NEEDS_SHARED = "needs QUALAB_SHARED, the directory with reference/statistics_cases.json"


def reference(name: str) -> Any:
    return json.loads(Path(str(SHARED), "reference", name).read_text(encoding="utf-8"))


CASES: list[dict[str, Any]] = reference("statistics_cases.json")["cases"] if SHARED else []
Inputs = dict[str, Any]
Found = dict[str, Any]


def counts_of(inputs: Inputs) -> PairedCounts:
    gains = inputs.get("gain_b", inputs.get("b"))
    losses = inputs.get("loss_c", inputs.get("c"))
    if "discordant" in inputs:
        losses = inputs["discordant"] - gains
    if "both_wrong" in inputs:
        right = inputs["both_right"]
        return PairedCounts(
            n_items=right + gains + losses + inputs["both_wrong"], gains=gains, losses=losses, both_right=right
        )
    return PairedCounts(n_items=inputs.get("N", inputs.get("n", gains + losses)), gains=gains, losses=losses)


def check_mcnemar(inputs: Inputs) -> Found:
    counts = counts_of(inputs)
    result, gap = mcnemar(counts), abs(counts.gains - counts.losses)
    return {
        "exact_p": result.pvalue_exact,
        "midp": result.pvalue,
        "asymptotic_p": chi2.sf(gap**2 / max(1, counts.n_discordant), 1),
        "edwards_cc_p": chi2.sf(max(0, gap - 1) ** 2 / max(1, counts.n_discordant), 1),
    }


def check_unconditional(inputs: Inputs) -> Found:
    counts = counts_of(inputs)
    return {
        "p": mcnemar_unconditional(counts),
        "p_berger_boos_gamma_1e4": mcnemar_berger_boos(counts, gamma=1e-4),
    }


def limits(method: Callable[..., Any], inputs: Inputs) -> Found:
    interval = method(counts_of(inputs), confidence_level=inputs["level"])
    return {"lower": interval.low, "upper": interval.high}


def check_newcombe_uncorrected(inputs: Inputs) -> Found:
    assert inputs["level"] == 0.95
    return dict(zip(("lower", "upper"), newcombe_uncorrected(counts_of(inputs)), strict=True))


def check_wald_family(inputs: Inputs) -> Found:
    counts = counts_of(inputs)
    gains, losses, n_items = counts.gains, counts.losses, counts.n_items
    return {
        "wald": wald(gains, losses, n_items),
        "bonett_price": wald(gains + 1, losses + 1, n_items + 2),
        "agresti_min": wald(gains + 0.5, losses + 0.5, n_items + 2),
        "tango": [tango(counts).low, tango(counts).high],
    }


def check_fay_lumbard(inputs: Inputs) -> Found:
    """The published limits are where R's uniroot stopped, up to 3e-5 from the solution."""
    counts = counts_of(inputs)
    return {
        "p": mcnemar(counts).pvalue_exact,
        "lower": roughly_zero(lambda x: melded_cdf(x, counts) - 0.025, -1.0, 1.0),
        "upper": roughly_zero(lambda x: melded_cdf(-x, counts.swapped()) - 0.025, -1.0, 1.0),
    }


def check_tost(inputs: Inputs) -> Found:
    result = equivalence(counts_of(inputs), margin=inputs["margin"])
    return {
        "z_lower": result.statistic_lower,
        "p_lower": result.pvalue_lower,
        "z_upper": result.statistic_upper,
        "p_tost": result.pvalue,
    }


def check_exact_non_inferiority(inputs: Inputs) -> Found:
    result = non_inferiority(counts_of(inputs), margin=inputs["margin"])
    return {"p_exact": result.pvalue_exact, "p_score": result.pvalue}


def truth_of(inputs: Inputs) -> dict[str, Any]:
    return {
        "n_items": inputs["N"],
        "discordance": inputs["psi"],
        "difference": inputs["delta"],
        "alpha": inputs["alpha"],
    }


def check_power_tost(inputs: Inputs) -> Found:
    power = power_equivalence(**truth_of(inputs), margin=inputs["margin"])
    return {"power": power, "size": power}


def check_power_mcnemar(inputs: Inputs) -> Found:
    truth = truth_of(inputs)
    powers = {str(method): power_mcnemar(**truth, method=method) for method in McNemarMethod}
    return {**powers, "asymptotic": power_mcnemar_asymptotic(**truth)}


def check_connor(inputs: Inputs) -> Found:
    gain, loss = inputs["pi_gain"], inputs["pi_loss"]
    real = items_connor(discordance=gain + loss, difference=gain - loss, alpha=inputs["alpha"], power=inputs["power"])
    return {"n": int(np.ceil(real)), "n_real": real}


def check_formulas(inputs: Inputs) -> Found:
    design = {
        "discordance": inputs["psi"],
        "difference": inputs["delta"],
        "alpha": inputs["alpha"],
        "power": inputs["power"],
    }
    return {
        "connor": items_connor(**design),
        "miettinen": items_miettinen(**design),
        "wald": items_wald(**design),
    }


def check_items_needed(inputs: Inputs) -> Found:
    design = {
        "discordance": inputs["psi"],
        "difference": inputs["delta"],
        "margin": inputs["margin"],
        "alpha": inputs["alpha"],
        "power": inputs["power"],
    }
    return {"n": items_needed(**design), "wald_formula": int(np.ceil(items_wald_equivalence(**design)))}


def check_paired(inputs: Inputs) -> Found:
    differences = np.subtract(inputs["on"], inputs["off"])
    found = mean_difference(differences)
    interval = found.interval(confidence_level=0.95)
    return {
        "t": found.statistic,
        "p": found.pvalue,
        "ci95": [interval.low, interval.high],
        "tost_p": {str(margin): pvalue_within(found, margin) for margin in inputs["margin"]},
        "signflip_p": sign_flip(differences, rng=rng()).pvalue_whole,
    }


def check_cluster_errors(inputs: Inputs) -> Found:
    found = mean_difference(inputs["diff"], cluster=inputs["cluster"])
    cr0, cr1 = cluster_errors(inputs["diff"], cluster=inputs["cluster"])
    return {
        "CR0_miller": cr0,
        "CR1_G_over_Gminus1": cr1,
        "CR2": found.standard_error,
        "CR2_satterthwaite_df": found.degrees_of_freedom,
        "CR2_p": found.pvalue,
        "iid_se": found.standard_error_items,
    }


def check_clustered_mcnemar(inputs: Inputs) -> Found:
    cells = inputs["ak_bk_ck_dk"]
    return {"yang2010": clustered_mcnemar(cells).statistic, **clustered_statistics(cells)}


def check_adjustment(inputs: Inputs) -> Found:
    """Only Holm's is the product's."""
    pvalues = inputs["p"]
    return {
        "holm": holm(pvalues),
        "bh": false_discovery_control(pvalues, method="bh"),
        "by": false_discovery_control(pvalues, method="by"),
    }


def check_max_t(inputs: Inputs) -> Found:
    table = np.array(inputs["diff"])
    result = max_t(table, is_midp=False, rng=rng())
    assert result.is_exact
    scales = np.sqrt(np.maximum(1.0, (table**2).sum(axis=0)))
    statistics = np.abs(table.sum(axis=0)) / scales
    largest = np.max(np.abs(signed_sums(patterns(table), n_resamples=1, rng=rng())) / scales, axis=1)
    return {
        "abs_z": statistics,
        "raw_p": [sign_flip(column, rng=rng()).pvalue_whole for column in table.T],
        "single_step": np.mean(largest[:, None] >= statistics - 1e-9, axis=0),
        "step_down": result.pvalues,
    }


def check_randomisation(inputs: Inputs) -> Found:
    answers = LabelledAnswers(truth=inputs["y"], baseline=inputs["off"], candidate=inputs["on"])
    result = JoinedAnswers.of([answers], None).swap_test(n_resamples=1, rng=rng())
    assert result.is_exact
    return {"delta": result.difference, "p_two_sided": result.pvalue_whole}


def check_boundaries(inputs: Inputs) -> Found:
    fractions = [(k + 1) / inputs["looks"] for k in range(inputs["looks"])]
    return {"z": spending_boundaries(fractions, alpha=inputs["alpha"])}


def check_pocock_type_boundaries(inputs: Inputs) -> Found:
    """By levels that are spent about evenly (Lan & DeMets 1983)."""
    fractions = np.arange(1, inputs["looks"] + 1) / inputs["looks"]
    spent = inputs["alpha"] * np.log1p((np.e - 1.0) * fractions)
    return {"z": level_boundaries(fractions.tolist(), np.diff(spent, prepend=0.0))}


def check_classical_boundaries(inputs: Inputs, *, is_flat: bool) -> Found:
    return {"z": classical_boundaries(inputs["looks"], alpha=inputs["alpha"], is_flat=is_flat)}


def check_betting(inputs: Inputs) -> Found:
    evidence = log_e_values(counts_of(inputs), margin=inputs["margin"], bet=inputs["lam"])
    return dict(zip(("log_e_lower", "log_e_upper"), evidence, strict=True))


def check_mcnemar_e(inputs: Inputs) -> Found:
    counts = counts_of(inputs)
    return {
        "log_e_uniform_a1": mcnemar_log_e(counts, prior=1.0),
        "log_e_jeffreys_a05": mcnemar_log_e(counts, prior=0.5),
    }


def check_excess(inputs: Inputs) -> Found:
    result = excess_discordance(n_odd=inputs["items_with_odd"], n_candidate_odd=inputs["on_odd"])
    return {"p_one_sided": result.pvalue}


def check_variance_components(inputs: Inputs) -> Found:
    found = variance_components(inputs["X"])
    return {
        "grand": found.mean,
        "sigma2_within": found.variance_within,
        "sigma2_between": found.variance_between,
        "se": found.standard_error,
        "icc1": found.icc,
        "icc_k": found.icc_mean,
    }


def check_unpaired(inputs: Inputs) -> Found:
    n_baseline, n_candidate = inputs["n1"], inputs["n2"]
    rates = {"baseline": inputs["x1"] / n_baseline, "candidate": inputs["x2"] / n_candidate}
    return {"p": two_proportion_z(**rates, n_baseline=n_baseline, n_candidate=n_candidate)}


def check_published(inputs: Inputs) -> Found:
    rows = inputs["rows"]
    return {"p": [two_proportion_z(baseline=off, candidate=on, n_baseline=n, n_candidate=n) for off, on, n in rows]}


CHECKS: dict[str, Callable[[Inputs], Found]] = {
    "mcnemar": check_mcnemar,
    "mcnemar_unconditional_exact(order=(b-c)^2/(b+c), sup over psi)": check_unconditional,
    "tango_score_ci": lambda inputs: limits(tango, inputs),
    "newcombe_method10_ci": lambda inputs: limits(newcombe, inputs),
    "newcombe_method8_ci": check_newcombe_uncorrected,
    "wald / agresti_min": check_wald_family,
    "tango_score_ci and wald CI, PropCIs convention estimate=(c-b)/n": check_wald_family,
    "fay_lumbard_exact_ci": check_fay_lumbard,
    "tango_score_tost (H0: |Delta|>=margin)": check_tost,
    "unconditional_exact_noninferiority": check_exact_non_inferiority,
    "exact_power_score_tost alpha=.05": check_power_tost,
    "exact_size_score_tost at Delta=-margin": check_power_tost,
    "exact_power_mcnemar two-sided alpha=.05": check_power_mcnemar,
    "connor1987_sample_size two-sided": check_connor,
    "sample size: Connor 1987, Miettinen 1968, unconditional Wald": check_formulas,
    "smallest n with exact score-TOST power >= target and staying there for 25 more n, Delta=0": check_items_needed,
    "paired_t, t-TOST, sign-flip (all 2^12)": check_paired,
    "cluster-robust SE of the mean paired difference": check_cluster_errors,
    "clustered McNemar chi-square": check_clustered_mcnemar,
    "p-value adjustment": check_adjustment,
    "max-T sign-flip over shared items, T=|sum d|/sqrt(sum d^2), full enumeration": check_max_t,
    "approximate randomisation by per-item swap, macro-F1, full enumeration": check_randomisation,
    "Lan-DeMets O'Brien-Fleming-type spending boundaries, one-sided alpha .05, equal looks": check_boundaries,
    "Lan-DeMets Pocock-type spending boundaries, one-sided alpha .05, equal looks": check_pocock_type_boundaries,
    "O'Brien-Fleming boundaries, one-sided alpha .05, equal looks": partial(check_classical_boundaries, is_flat=False),
    "Pocock boundaries, one-sided alpha .05, equal looks": partial(check_classical_boundaries, is_flat=True),
    "McNemar e-value": check_mcnemar_e,
    "equivalence e-process": check_betting,
    "Beta-mixture e-value": check_mcnemar_e,
    "excess discordance": check_excess,
    "k repeated samples": check_variance_components,
    "pooled two-proportion z from counts": check_unpaired,
    "pooled two-proportion z from 4-decimal proportions": check_published,
    "cluster sign-flip (all 2^8)": lambda inputs: {
        "p": sign_flip(inputs["diff"], cluster=inputs["cluster"], rng=rng()).pvalue_whole
    },
    "unbiased A/A flip rate from k samples": lambda inputs: {"flip_rate": flip_rate(inputs["X"])},
}
NOT_NUMBERS = {"note", "published"}
"""Remarks, and the rounded published values of numbers that are given in full beside them."""


def check_for(method: str) -> Callable[[Inputs], Found]:
    exact = CHECKS.get(method)
    return exact if exact else next(check for name, check in CHECKS.items() if method.startswith(name))


def assert_close(found: Any, expected: Any, tolerance: float, where: str) -> None:
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_close(found[key], value, tolerance, f"{where}.{key}")
    else:
        assert found == pytest.approx(np.asarray(expected), abs=tolerance, rel=0.0), where


@pytest.mark.skipif(not SHARED, reason=NEEDS_SHARED)
def test_the_reference_has_all_its_cases() -> None:
    assert len(CASES) == 68
    assert len({case["id"] for case in CASES}) == 68


@pytest.mark.skipif(not SHARED, reason=NEEDS_SHARED)
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_reference_case(case: dict[str, Any]) -> None:
    expected = {key: value for key, value in case["expected"].items() if key not in NOT_NUMBERS}
    assert expected
    # most expected values are printed with ten digits: half of the last one is their own rounding
    tolerance = case["tolerance"] and case["tolerance"] + 5.1e-11
    assert_close(check_for(case["method"])(case["inputs"]), expected, tolerance, case["id"])


@pytest.mark.skipif(not SHARED, reason=NEEDS_SHARED)
def test_published_table_is_reproduced_unpaired() -> None:
    for row in reference("published_ab_table.json")["rows"]:
        pvalue = two_proportion_z(baseline=row["off"], candidate=row["on"], n_baseline=row["n"], n_candidate=row["n"])
        assert pvalue == pytest.approx(row["two_proportion_z_p"], abs=5e-5)
        assert round(pvalue, 3) == pytest.approx(row["published_p"], abs=5.1e-4)


def or_none(call: Callable[[], float]) -> float | None:
    try:
        return call()
    except InsufficientData:
        return None


@pytest.mark.skipif(not SHARED, reason=NEEDS_SHARED)
def test_what_pairing_would_have_given_is_reproduced() -> None:
    rows = reference("published_ab_table.json")["paired_at_n_600"]["rows"]
    assert len(rows) == 5
    for row in rows:
        design = {"n_items": 600, "discordance": row["discordance"]}
        found = {
            "mde80": or_none(lambda design=design: mde(**design)),
            "mde_noise_plus_shift80": mde_beyond_noise(n_items=600, noise=row["discordance"]),
            "margin80": smallest_margin(**design),
            "margin90": smallest_margin(**design, power=0.9),
        }
        for name, value in found.items():
            assert value == pytest.approx(row[name], abs=1e-4), (row["discordance"], name)
        for margin, n_items in row["n_for_margin80"].items():
            assert items_needed(discordance=row["discordance"], margin=float(margin)) == pytest.approx(n_items, abs=1)


@pytest.mark.parametrize(("discordance", "n_items"), [(0.02, 655), (0.05, 1409), (0.1, 2732)])
def test_planning_numbers_of_a_fixed_paired_design(discordance: float, n_items: int) -> None:
    assert items_needed(discordance=discordance, margin=0.02, power=0.9) == pytest.approx(n_items, abs=1)


def test_gsm8k_cannot_prove_one_point_at_five_percent_discordance() -> None:
    assert items_needed(discordance=0.05, margin=0.01) == 4335
    assert power_equivalence(n_items=1319, discordance=0.05, margin=0.01) < 0.3

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

from qualab.stats.clustered import clustered_mcnemar
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar, mcnemar_unconditional, two_proportion_z
from qualab.stats.equivalence import equivalence
from qualab.stats.f1 import JoinedAnswers, LabelledAnswers
from qualab.stats.interval import newcombe, tango
from qualab.stats.looks import level_boundaries, spending_boundaries
from qualab.stats.mean import mean_difference
from qualab.stats.noise import disagreement, excess_discordance, variance_components
from qualab.stats.resampling import holm, max_t, patterns, sign_flip, signed_sums
from qualab.stats.sizing import items_needed, items_wald_equivalence, power_equivalence, power_mcnemar
from tests.stats import reference

SHARED = os.environ.get("QUALAB_SHARED")
CASES: list[dict[str, Any]] = []
if SHARED:
    CASES = json.loads(Path(SHARED, "reference", "statistics_cases.json").read_text(encoding="utf-8"))["cases"]
Inputs = dict[str, Any]
Found = dict[str, Any]


def counts_of(inputs: Inputs) -> PairedCounts:
    gains = inputs.get("gain_b", inputs.get("b"))
    losses = inputs["discordant"] - gains if "discordant" in inputs else inputs.get("loss_c", inputs.get("c"))
    right = inputs.get("both_right")
    if "both_wrong" in inputs:
        n_items = right + gains + losses + inputs["both_wrong"]
        return PairedCounts(n_items=n_items, gains=gains, losses=losses, both_right=right)
    return PairedCounts(n_items=inputs.get("N", inputs.get("n", gains + losses)), gains=gains, losses=losses)


def truth_of(inputs: Inputs, *names: str) -> dict[str, Any]:
    """The assumed truth under the names of the functions."""
    ours = {"N": "n_items", "psi": "discordance", "delta": "difference"}
    return {ours.get(name, name): inputs[name] for name in names}


def limits(inputs: Inputs, method: Callable[..., Any]) -> Found:
    interval = method(counts_of(inputs), confidence_level=inputs["level"])
    return {"lower": interval.low, "upper": interval.high}


def read(found: object, **names: str) -> Found:
    """Attributes under the names of the reference."""
    return {theirs: getattr(found, ours) for theirs, ours in names.items()}


def power(inputs: Inputs) -> float:
    return power_equivalence(**truth_of(inputs, "N", "psi", "delta", "alpha", "margin"))


def check_wald_family(inputs: Inputs) -> Found:
    counts = counts_of(inputs)
    gains, losses, n_items = counts.gains, counts.losses, counts.n_items
    return {
        "wald": reference.wald(gains, losses, n_items),
        "bonett_price": reference.wald(gains + 1, losses + 1, n_items + 2),
        "agresti_min": reference.wald(gains + 0.5, losses + 0.5, n_items + 2),
        "tango": [tango(counts).low, tango(counts).high],
    }


def check_connor(inputs: Inputs) -> Found:
    gain, loss = inputs["pi_gain"], inputs["pi_loss"]
    truth = truth_of(inputs, "alpha", "power") | {"discordance": gain + loss, "difference": gain - loss}
    real = reference.items_connor(**truth)
    return {"n": int(np.ceil(real)), "n_real": real}


def check_paired(inputs: Inputs) -> Found:
    differences = np.subtract(inputs["on"], inputs["off"])
    found = mean_difference(differences)
    interval = found.interval(confidence_level=0.95)
    return {
        "t": found.difference / found.standard_error,
        "p": found.pvalue,
        "ci95": [interval.low, interval.high],
        "tost_p": {str(margin): reference.pvalue_within(found, margin) for margin in inputs["margin"]},
        "signflip_p": sign_flip(differences, rng=reference.rng()).pvalue_whole,
    }


def check_cluster_errors(inputs: Inputs) -> Found:
    found = mean_difference(inputs["diff"], cluster=inputs["cluster"])
    cr0, cr1 = reference.cluster_errors(inputs["diff"], cluster=inputs["cluster"])
    return {
        "CR0_miller": cr0,
        "CR1_G_over_Gminus1": cr1,
        "CR2": found.standard_error,
        "CR2_satterthwaite_df": found.degrees_of_freedom,
        "CR2_p": found.pvalue,
        "iid_se": found.standard_error_items,
    }


def check_max_t(inputs: Inputs) -> Found:
    table = np.array(inputs["diff"])
    result = max_t(table, is_midp=False, rng=reference.rng())
    assert result.n_resamples == 2 ** int(table.any(axis=1).sum())
    scales = np.sqrt(np.maximum(1.0, (table**2).sum(axis=0)))
    statistics = np.abs(table.sum(axis=0)) / scales
    largest = np.max(np.abs(signed_sums(patterns(table), n_resamples=1, rng=reference.rng())) / scales, axis=1)
    return {
        "abs_z": statistics,
        "raw_p": [sign_flip(column, rng=reference.rng()).pvalue_whole for column in table.T],
        "single_step": np.mean(largest[:, None] >= statistics - 1e-9, axis=0),
        "step_down": result.pvalues,
    }


def check_randomisation(inputs: Inputs) -> Found:
    answers = LabelledAnswers(truth=inputs["y"], baseline=inputs["off"], candidate=inputs["on"])
    result = JoinedAnswers.of([answers]).swap_test(n_resamples=1, rng=reference.rng())
    assert result.is_exact
    return {"delta": result.difference, "p_two_sided": result.pvalue_whole}


def check_boundaries(inputs: Inputs, *, kind: str) -> Found:
    n_looks, alpha = inputs["looks"], inputs["alpha"]
    if kind in ("flat", "falling"):
        return {"z": reference.classical_boundaries(n_looks, alpha=alpha, is_flat=kind == "flat")}
    fractions = np.arange(1, n_looks + 1) / n_looks
    if kind == "obrien fleming type":
        return {"z": spending_boundaries(fractions.tolist(), alpha=alpha)}
    spent = alpha * np.log1p((np.e - 1.0) * fractions)  # about evenly (Lan & DeMets 1983)
    return {"z": level_boundaries(fractions.tolist(), np.diff(spent, prepend=0.0))}


def check_variance_components(inputs: Inputs) -> Found:
    found, means = variance_components(inputs["X"]), np.mean(inputs["X"], axis=1)
    return {
        "grand": means.mean(),
        "sigma2_within": found.variance_within,
        "sigma2_between": found.variance_between,
        "se": means.std(ddof=1) / np.sqrt(means.size),
        "icc1": found.icc,
        "icc_k": found.icc_mean,
    }


CHECKS: dict[str, Callable[[Inputs], Found]] = {
    "mcnemar": lambda inputs: read(mcnemar(counts_of(inputs)), exact_p="pvalue_exact", midp="pvalue"),
    "mcnemar_unconditional_exact(order=(b-c)^2/(b+c), sup over psi)": lambda inputs: {
        "p": mcnemar_unconditional(counts_of(inputs))
    },
    "tango_score_ci": partial(limits, method=tango),
    "newcombe_method10_ci": partial(limits, method=newcombe),
    "newcombe_method8_ci": partial(limits, method=reference.newcombe_uncorrected),
    "wald / agresti_min": check_wald_family,
    "tango_score_ci and wald CI, PropCIs convention estimate=(c-b)/n": check_wald_family,
    "fay_lumbard_exact_ci": lambda inputs: {"p": mcnemar(counts_of(inputs)).pvalue_exact},
    "tango_score_tost (H0: |Delta|>=margin)": lambda inputs: read(
        equivalence(counts_of(inputs), margin=inputs["margin"]),
        **{"z_lower": "statistic_lower", "p_lower": "pvalue_lower", "z_upper": "statistic_upper", "p_tost": "pvalue"},
    ),
    "unconditional_exact_noninferiority": lambda inputs: dict(
        zip(("p_score", "p_exact"), reference.non_inferiority(counts_of(inputs), margin=inputs["margin"]), strict=True)
    ),
    "exact_power_score_tost alpha=.05": lambda inputs: {"power": power(inputs)},
    "exact_size_score_tost at Delta=-margin": lambda inputs: {"size": power(inputs)},
    "exact_power_mcnemar two-sided alpha=.05": lambda inputs: {
        name: power_mcnemar(**truth_of(inputs, "N", "psi", "delta", "alpha"), is_midp=name == "midp")
        for name in ("exact", "midp")
    },
    "connor1987_sample_size two-sided": check_connor,
    "sample size: Connor 1987, Miettinen 1968, unconditional Wald": lambda inputs: {
        name: getattr(reference, f"items_{name}")(**truth_of(inputs, "psi", "delta", "alpha", "power"))
        for name in ("connor", "miettinen", "wald")
    },
    "smallest n with exact score-TOST power >= target and staying there for 25 more n, Delta=0": lambda inputs: {
        "n": items_needed(**(design := truth_of(inputs, "psi", "delta", "margin", "alpha", "power"))),
        "wald_formula": int(np.ceil(items_wald_equivalence(**design))),
    },
    "paired_t, t-TOST, sign-flip (all 2^12)": check_paired,
    "cluster-robust SE of the mean paired difference": check_cluster_errors,
    "clustered McNemar chi-square": lambda inputs: {"yang2010": clustered_mcnemar(inputs["ak_bk_ck_dk"])[0]},
    "p-value adjustment": lambda inputs: {"holm": holm(inputs["p"])},
    "max-T sign-flip over shared items, T=|sum d|/sqrt(sum d^2), full enumeration": check_max_t,
    "approximate randomisation by per-item swap, macro-F1, full enumeration": check_randomisation,
    "Lan-DeMets O'Brien-Fleming-type spending": partial(check_boundaries, kind="obrien fleming type"),
    "Lan-DeMets Pocock-type spending": partial(check_boundaries, kind="pocock type"),
    "O'Brien-Fleming boundaries": partial(check_boundaries, kind="falling"),
    "Pocock boundaries": partial(check_boundaries, kind="flat"),
    "equivalence e-process": lambda inputs: dict(
        zip(
            ("log_e_lower", "log_e_upper"),
            reference.log_e_values(counts_of(inputs), margin=inputs["margin"], bet=inputs["lam"]),
            strict=True,
        )
    ),
    "Beta-mixture e-value": lambda inputs: {
        name: reference.mcnemar_log_e(counts_of(inputs), prior=prior)
        for name, prior in (("log_e_uniform_a1", 1.0), ("log_e_jeffreys_a05", 0.5))
    },
    "excess discordance": lambda inputs: {
        "p_one_sided": excess_discordance(n_odd=inputs["items_with_odd"], n_candidate_odd=inputs["on_odd"])
    },
    "k repeated samples": check_variance_components,
    "pooled two-proportion z from counts": lambda inputs: {
        "p": two_proportion_z(
            **{"baseline": inputs["x1"] / inputs["n1"], "candidate": inputs["x2"] / inputs["n2"]},
            **{"n_baseline": inputs["n1"], "n_candidate": inputs["n2"]},
        )
    },
    "pooled two-proportion z from 4-decimal proportions": lambda inputs: {
        "p": [
            two_proportion_z(baseline=off, candidate=on, n_baseline=n, n_candidate=n) for off, on, n in inputs["rows"]
        ]
    },
    "cluster sign-flip (all 2^8)": lambda inputs: {
        "p": sign_flip(inputs["diff"], cluster=inputs["cluster"], rng=reference.rng()).pvalue_whole
    },
    "unbiased A/A flip rate from k samples": lambda inputs: {"flip_rate": disagreement(inputs["X"])},
}
NOT_NUMBERS = {"note", "published"}
"""Remarks, and the rounded published values of numbers that are given in full beside them."""
NOT_OURS = {
    *("asymptotic_p", "edwards_cc_p", "p_berger_boos_gamma_1e4", "asymptotic", "bh", "by"),
    *("durkalski2003", "obuchowski1998", "eliasziw1991", "mcnemar"),
}
"""Methods that the product does not offer, beside one that it does."""


def assert_close(found: Any, expected: Any, tolerance: float, where: str) -> None:
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_close(found[key], value, tolerance, f"{where}.{key}")
    else:
        assert found == pytest.approx(np.asarray(expected), abs=tolerance, rel=0.0), where


@pytest.mark.skipif(not SHARED, reason="needs QUALAB_SHARED, the directory with reference/statistics_cases.json")
def test_the_reference_has_all_its_cases() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES) == 68


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_reference_case(case: dict[str, Any]) -> None:
    method = case["method"]
    skipped = NOT_NUMBERS | NOT_OURS | ({"lower", "upper"} if method == "fay_lumbard_exact_ci" else set())
    expected = {key: value for key, value in case["expected"].items() if key not in skipped}
    check = CHECKS.get(method) or next(check for name, check in CHECKS.items() if method.startswith(name))
    # most expected values are printed with ten digits: half of the last one is their own rounding
    tolerance = case["tolerance"] and case["tolerance"] + 5.1e-11
    assert_close(check(case["inputs"]), expected, tolerance, case["id"])

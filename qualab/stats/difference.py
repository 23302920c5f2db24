"""Tests of no difference: McNemar's on paired 0/1 outcomes, and the unpaired one of older reports."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from qualab.errors import InsufficientData
from qualab.stats.checks import FloatArray, check_alpha, check_items, check_margin, check_power, check_share
from qualab.stats.counts import PairedCounts
from qualab.stats.distributions import (
    binomial_cdfs,
    binomial_weights,
    bisect,
    chi_square_sf,
    likely_totals,
    normal_cdf,
    normal_quantile,
)
from qualab.stats.equivalence import supremum


@dataclass(frozen=True, slots=True, kw_only=True)
class McNemarResult:
    """Two-sided p-values of "gains and losses are equally likely"."""

    pvalue: float
    """Mid-p: the one to show."""
    pvalue_exact: float
    """Exact conditional binomial test: never liberal, rather conservative."""


def mcnemar(counts: PairedCounts) -> McNemarResult:
    """Compute McNemar's conditional p-values (Fagerland, Lydersen & Laake 2013, equations 2 and 4).

    Mid-p is the exact p less half the probability of outcomes as likely as the observed. Without a discordant item
    both are 1: there is no evidence of a difference.

    >>> mcnemar(PairedCounts(n_items=21, gains=1, losses=7))
    McNemarResult(pvalue=0.039062..., pvalue_exact=0.070312...)
    """
    check_items(counts.n_items)
    total, fewer = counts.n_discordant, min(counts.gains, counts.losses)
    if total == 0:
        return McNemarResult(pvalue=1.0, pvalue_exact=1.0)
    log_choose = math.lgamma(total + 1) - math.lgamma(fewer + 1) - math.lgamma(total - fewer + 1)
    observed = math.exp(log_choose + fewer * math.log(0.5) + (total - fewer) * math.log1p(-0.5))
    exact = min(1.0, 2.0 * float(scipy.special.bdtr(fewer, total, 0.5)))
    tied = observed / 2.0 if counts.gains == counts.losses else observed
    return McNemarResult(pvalue=exact - tied, pvalue_exact=exact)


def mcnemar_sides(gains: float, losses: float) -> tuple[float, float]:
    """Compute one-sided mid-p values of a loss and of a gain.

    The smaller one is half of `mcnemar`'s. Counts need not be whole. Without a discordant item both are 1.
    """
    if gains + losses == 0.0:
        return 1.0, 1.0
    total = gains + losses
    logs = math.lgamma(total + 1.0) - math.lgamma(gains + 1.0) - math.lgamma(losses + 1.0) - total * math.log(2.0)
    half = math.exp(logs) / 2.0

    def at_most(few: float, many: float) -> float:
        return 1.0 if many == 0.0 else float(scipy.special.betainc(many, few + 1.0, 0.5))

    return at_most(gains, losses) - half, at_most(losses, gains) - half


def mcnemar_unconditional(counts: PairedCounts) -> float:
    """Compute the two-sided exact unconditional p-value (Suissa & Shuster 1991), to about 1e-7.

    Outcomes are ordered by (b − c)² / (b + c); the p-value is the supremum over the discordance.
    """
    n_items = check_items(counts.n_items)
    gap = abs(counts.gains - counts.losses)
    if gap == 0:
        return 1.0
    every = np.arange(n_items + 1, dtype=np.int64)
    # |2k - m| >= sqrt(statistic * m), with a hair of slack so that the observed outcome itself counts
    fewer = np.floor((every - np.sqrt(gap**2 / counts.n_discordant * every)) / 2.0 + 1e-9).astype(np.int64)
    tails = np.where(every == 0, 0.0, np.minimum(1.0, 2.0 * binomial_cdfs(fewer, every, 0.5)))

    def probability(discordances: FloatArray) -> FloatArray:
        totals = likely_totals(n_items, discordances[0], discordances[-1])
        return binomial_weights(totals, n_items, discordances) @ tails[totals]

    return min(1.0, supremum(probability, low=0.0, n_items=n_items))


def two_proportion_z(*, baseline: float, candidate: float, n_baseline: int, n_candidate: int) -> float:
    """Compute the two-sided p-value of the pooled two-proportion z-test, which ignores the pairing.

    For comparison with older reports alone. 1 where the pooled proportion is 0 or 1: the arms agree on every item.

    >>> round(two_proportion_z(baseline=0.51, candidate=0.5017, n_baseline=600, n_candidate=600), 3)
    0.774
    """
    check_items(min(n_baseline, n_candidate))
    check_share(baseline, "A proportion")
    check_share(candidate, "A proportion")
    pooled = (baseline * n_baseline + candidate * n_candidate) / (n_baseline + n_candidate)
    variance = pooled * (1.0 - pooled) * (1.0 / n_baseline + 1.0 / n_candidate)
    if variance <= 0.0:
        return 1.0
    z = (candidate - baseline) / math.sqrt(variance)
    return chi_square_sf(z * z)


def power_unpaired(*, n_items: int, baseline: float, difference: float, alpha: float = 0.05) -> float:
    """Approximate the power of the pooled z-test, `n_items` in each arm (Fleiss, Levin & Paik 2003, chapter 4).

    The chance of rejecting on the wrong side is left out.
    """
    z = normal_quantile(1.0 - check_alpha(alpha) / 2.0)
    candidate = check_share(baseline + difference, "A share of right answers")
    pooled = (check_share(baseline, "A share of right answers") + candidate) / 2.0
    of_none = math.sqrt(2.0 * pooled * (1.0 - pooled) / check_items(n_items))
    of_arms = math.sqrt((baseline * (1.0 - baseline) + candidate * (1.0 - candidate)) / n_items)
    if of_arms == 0.0:  # both arms constant: seen for certain where they differ, never where they do not
        return float(difference != 0.0)
    return normal_cdf((abs(difference) - z * of_none) / of_arms)


def mde_unpaired(*, n_items: int, baseline: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Find the smallest loss that the pooled two-proportion z-test sees with this power."""
    check_power(power)

    def is_seen(loss: float) -> bool:
        return power_unpaired(n_items=n_items, baseline=baseline, difference=-loss, alpha=alpha) >= power

    if not is_seen(check_share(baseline, "A share of right answers")):
        raise InsufficientData(
            f"{n_items} items an arm find no loss with a power of {power:g} without pairing", hint="Add items."
        )
    return bisect(is_seen, 0.0, baseline)


def items_unpaired_equivalence(*, baseline: float, margin: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Compute the items in each arm at which two one-sided z-tests prove ±margin (Chow, Shao & Wang 2008, 4.2)."""
    z = normal_quantile(1.0 - check_alpha(alpha)) + normal_quantile((1.0 + check_power(power)) / 2.0)
    return 2.0 * check_share(baseline, "A share of right answers") * (1.0 - baseline) * (z / check_margin(margin)) ** 2

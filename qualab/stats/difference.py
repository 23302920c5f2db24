"""Is there a difference? McNemar's tests on paired 0/1 outcomes, and the unpaired test of older reports."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.checks import FloatArray, check_alpha, check_items, check_margin, check_power
from qualab.stats.counts import PairedCounts
from qualab.stats.distributions import (
    binomial_cdf,
    binomial_cdfs,
    binomial_pmf,
    binomial_weights,
    bisect,
    chi_square_sf,
    likely_totals,
    normal_cdf,
    normal_quantile,
)
from qualab.stats.equivalence import supremum
from qualab.stats.interval import clopper_pearson


@dataclass(frozen=True, slots=True, kw_only=True)
class McNemarResult:
    """Two-sided p-values of "gains and losses are equally likely"."""

    pvalue: float
    """Mid-p: the one to show."""
    pvalue_exact: float
    """Exact conditional binomial test: never liberal, rather conservative."""


def mcnemar(counts: PairedCounts) -> McNemarResult:
    """McNemar's test, conditional on the number of discordant items.

    The mid-p value is the exact two-sided p less half the probability of the outcomes as likely as the observed
    (Fagerland, Lydersen & Laake 2013, equations 2 and 4). Without a discordant item every p-value is 1: there is no
    evidence of a difference.

    Raises:
        InsufficientData: there is no item.
    """
    check_items(counts.n_items)
    total, fewer = counts.n_discordant, min(counts.gains, counts.losses)
    if total == 0:
        return McNemarResult(pvalue=1.0, pvalue_exact=1.0)
    observed = binomial_pmf(fewer, total, 0.5)
    exact = min(1.0, 2.0 * binomial_cdf(fewer, total, 0.5))
    tied = observed / 2.0 if counts.gains == counts.losses else observed
    return McNemarResult(pvalue=exact - tied, pvalue_exact=exact)


def mcnemar_sides(gains: float, losses: float) -> tuple[float, float]:
    """One-sided mid-p values of more losses than gains, and of more gains than losses.

    The smaller one is half of `mcnemar`'s p-value. Counts need not be whole (items of clusters over their design
    effect): beta and gamma functions continue the binomial distribution between whole numbers. Without a discordant
    item both are 1.

    Raises:
        InvalidValue: a count is negative or not finite.
    """
    if not (0.0 <= gains < math.inf and 0.0 <= losses < math.inf):
        raise InvalidValue(f"{gains} gains and {losses} losses cannot be", hint="Counts are finite and at least 0.")
    if gains + losses == 0.0:
        return 1.0, 1.0
    total = gains + losses
    logs = math.lgamma(total + 1.0) - math.lgamma(gains + 1.0) - math.lgamma(losses + 1.0) - total * math.log(2.0)
    half = math.exp(logs) / 2.0
    return _at_most(gains, losses) - half, _at_most(losses, gains) - half


def _at_most(few: float, many: float) -> float:
    """Probability of at most `few` of few + many fair coins."""
    return 1.0 if many == 0.0 else float(scipy.special.betainc(many, few + 1.0, 0.5))


def mcnemar_unconditional(counts: PairedCounts, *, gamma: float = 0.0) -> float:
    """Two-sided p-value of the exact unconditional test of no difference (Suissa & Shuster 1991).

    Outcomes are ordered by (b − c)² / (b + c); the p-value is the supremum over the discordance ψ of the probability of
    an outcome at least as extreme. With `gamma` > 0 the supremum is over the 1 − gamma Clopper–Pearson interval of ψ,
    and gamma is added (Berger & Boos 1994). The supremum is right to about 1e-7.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: gamma is not in [0, 1).
    """
    n_items = check_items(counts.n_items)
    if not 0.0 <= gamma < 1.0:
        raise InvalidValue(f"gamma must lie in [0, 1), not {gamma:g}", hint="1e-4 is the usual choice; 0 for none.")
    total, gap = counts.n_discordant, abs(counts.gains - counts.losses)
    if gap == 0:
        return 1.0
    tails = _two_sided_tails(n_items, gap**2 / total)
    low, high = clopper_pearson(total, n_items, confidence_level=1.0 - gamma) if gamma else (0.0, 1.0)

    def probability(discordances: FloatArray) -> FloatArray:
        totals = likely_totals(n_items, discordances[0], discordances[-1])
        return binomial_weights(totals, n_items, discordances) @ tails[totals]

    return min(1.0, supremum(probability, low=low, high=high, n_items=n_items) + gamma)


def _two_sided_tails(n_items: int, statistic: float) -> FloatArray:
    """For each number of discordant items, the probability of a statistic at least this large when θ = 1/2."""
    totals = np.arange(n_items + 1, dtype=np.int64)
    # |2k - m| >= sqrt(statistic * m), with a hair of slack so that the observed outcome itself counts
    fewer = np.floor((totals - np.sqrt(statistic * totals)) / 2.0 + 1e-9).astype(np.int64)
    tails = 2.0 * binomial_cdfs(fewer, totals, 0.5)
    return np.where(totals == 0, 0.0, np.minimum(1.0, tails))


def two_proportion_z(*, baseline: float, candidate: float, n_baseline: int, n_candidate: int) -> float:
    """Two-sided p-value of the pooled two-proportion z-test, which ignores the pairing.

    Shown only as "unpaired, for comparison with older reports". Proportions may be rounded ones, as in a published
    table. Where the pooled proportion is 0 or 1 the arms agree on every item, and p is 1.

    Raises:
        InsufficientData: an arm has no item.
        InvalidValue: a proportion is outside 0..1.
    """
    check_items(min(n_baseline, n_candidate))
    if not (0.0 <= baseline <= 1.0 and 0.0 <= candidate <= 1.0):
        raise InvalidValue("A proportion must lie between 0 and 1", hint="Give fractions, not percent.")
    pooled = (baseline * n_baseline + candidate * n_candidate) / (n_baseline + n_candidate)
    variance = pooled * (1.0 - pooled) * (1.0 / n_baseline + 1.0 / n_candidate)
    if variance <= 0.0:
        return 1.0
    z = (candidate - baseline) / math.sqrt(variance)
    return chi_square_sf(z * z)


def power_unpaired(*, n_items: int, baseline: float, difference: float, alpha: float = 0.05) -> float:
    """Probability that the pooled two-proportion z-test sees a difference, with `n_items` in each arm.

    Normal approximation with the pooled variance under "no difference" and the arms' own otherwise (Fleiss, Levin &
    Paik 2003, chapter 4); the chance of rejecting on the wrong side is left out.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: a proportion is outside 0..1, or alpha is not between 0 and 0.5.
    """
    z = normal_quantile(1.0 - check_alpha(alpha) / 2.0)
    candidate = _proportion(baseline + difference)
    pooled = (_proportion(baseline) + candidate) / 2.0
    of_none = math.sqrt(2.0 * pooled * (1.0 - pooled) / check_items(n_items))
    of_arms = math.sqrt((baseline * (1.0 - baseline) + candidate * (1.0 - candidate)) / n_items)
    if of_arms == 0.0:  # both arms constant: seen for certain where they differ, never where they do not
        return float(difference != 0.0)
    return normal_cdf((abs(difference) - z * of_none) / of_arms)


def mde_unpaired(*, n_items: int, baseline: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """The smallest loss that the pooled two-proportion z-test sees with this power, with `n_items` in each arm.

    Raises:
        InsufficientData: there is no item, or not even a fall to 0 is seen with this power.
        InvalidValue: an argument cannot be.
    """
    check_power(power)

    def is_seen(loss: float) -> bool:
        return power_unpaired(n_items=n_items, baseline=baseline, difference=-loss, alpha=alpha) >= power

    if not is_seen(_proportion(baseline)):
        raise InsufficientData(
            f"{n_items} items an arm find no loss with a power of {power:g} without pairing", hint="Add items."
        )
    return bisect(is_seen, 0.0, baseline)


def items_unpaired_equivalence(*, baseline: float, margin: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Items in each arm at which two one-sided z-tests prove ±margin, both arms at `baseline`, not rounded up.

    2 p (1 − p) (z₁₋α + z₍₁₊power₎/₂)² / margin² (Chow, Shao & Wang 2008, section 4.2).

    Raises:
        InvalidValue: an argument cannot be.
    """
    z = normal_quantile(1.0 - check_alpha(alpha)) + normal_quantile((1.0 + check_power(power)) / 2.0)
    return 2.0 * _proportion(baseline) * (1.0 - baseline) * (z / check_margin(margin)) ** 2


def _proportion(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise InvalidValue(f"A share of right answers must lie between 0 and 1, not {value:g}", hint="Give a fraction.")
    return value

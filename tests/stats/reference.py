"""Methods that only tests need: for cases of the reference file, and as a second way to what the product does.

None of them checks its arguments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import scipy

from qualab.stats.checks import FloatArray
from qualab.stats.counts import PairedCounts
from qualab.stats.distributions import bisect, normal_quantile, normal_sf
from qualab.stats.equivalence import guard_pvalue
from qualab.stats.f1 import BootstrapResult, JoinedAnswers, LabelledAnswers
from qualab.stats.interval import ConfidenceInterval, clopper_pearson, score_statistic
from qualab.stats.looks import crossing_probability
from qualab.stats.mean import Labels, cluster_codes, cluster_sums


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def counts_of(n_items: int, gains: int, losses: int) -> PairedCounts:
    return PairedCounts(n_items=n_items, gains=gains, losses=losses)


def outcomes(n_items: int) -> Iterator[PairedCounts]:
    for gains in range(n_items + 1):
        for losses in range(n_items + 1 - gains):
            yield counts_of(n_items, gains, losses)


def trinomial(counts: PairedCounts, discordance: float, difference: float) -> float:
    """Probability of the counts, from whole numbers of arrangements."""
    rates = [(discordance + difference) / 2, (discordance - difference) / 2, 1 - discordance]
    cells = [counts.gains, counts.losses, counts.n_items - counts.n_discordant]
    arrangements = math.comb(counts.n_items, counts.n_discordant) * math.comb(counts.n_discordant, counts.gains)
    return arrangements * math.prod(max(rate, 0.0) ** cell for rate, cell in zip(rates, cells, strict=True))


class Estimate(Protocol):
    """What gives one-sided p-values at any difference."""

    def pvalue_above(self, difference: float) -> float: ...
    def pvalue_below(self, difference: float) -> float: ...


def pvalue_within(mean: Estimate, margin: float) -> float:
    """Of the two one-sided tests at ±margin."""
    return max(mean.pvalue_above(-margin), mean.pvalue_below(margin))


def contains(interval: ConfidenceInterval, difference: float) -> bool:
    return interval.low <= difference <= interval.high


def is_inside(interval: ConfidenceInterval, margin: float) -> bool:
    return -margin <= interval.low and interval.high <= margin


def wald(gains: float, losses: float, n_items: float) -> list[float]:
    """95 % Wald limits of the paired difference (Fagerland, Lydersen & Laake 2014, section 4.1)."""
    difference = (gains - losses) / n_items
    half = normal_quantile(0.975) * math.sqrt(gains + losses - (gains - losses) ** 2 / n_items) / n_items
    return [difference - half, difference + half]


def newcombe_uncorrected(counts: PairedCounts) -> list[float]:
    """95 % limits of method 8 of Newcombe (1998): method 10 without the continuity correction of the correlation."""
    n_items, z, right = counts.n_items, normal_quantile(0.975), counts.both_right or 0
    wrong = n_items - counts.n_discordant - right
    margins = [right + counts.losses, right + counts.gains, wrong + counts.losses, wrong + counts.gains]
    phi = (right * wrong - counts.gains * counts.losses) / (math.sqrt(math.prod(margins)) or 1.0)
    (low_b, high_b), (low_c, high_c) = (
        scipy.stats.binomtest(k, n_items).proportion_ci(2 * scipy.stats.norm.cdf(z) - 1, method="wilson")
        for k in margins[:2]
    )
    baseline, candidate = counts.accuracies

    def distance(toward: float, away: float) -> float:
        return math.sqrt(max(0.0, toward**2 - 2.0 * phi * toward * away + away**2))

    difference = candidate - baseline
    return [
        difference - distance(candidate - low_c, high_b - baseline),
        difference + distance(high_c - candidate, baseline - low_b),
    ]


def mcnemar_berger_boos(counts: PairedCounts, *, gamma: float) -> float:
    """Unconditional McNemar p-value over a 1 − gamma interval of the discordance, plus gamma (Berger & Boos 1994)."""
    n_items, m = counts.n_items, np.arange(counts.n_items + 1)
    least = (counts.gains - counts.losses) ** 2 / counts.n_discordant
    tails = 2.0 * scipy.stats.binom.cdf(np.floor((m - np.sqrt(least * m)) / 2.0 + 1e-9), m, 0.5)
    tails = np.where(m == 0, 0.0, np.minimum(1.0, tails))
    low, high = clopper_pearson(counts.n_discordant, n_items, confidence_level=1.0 - gamma)
    psis = np.linspace(low, high, 4_001)[:, None]
    return float((scipy.stats.binom.pmf(m, n_items, psis) @ tails).max() + gamma)


def melded_cdf(difference: float, counts: PairedCounts) -> float:
    """Lower melded confidence distribution of the difference (Fay & Lumbard 2021); at 0 a one-sided exact p.

    P((2θ − 1) ψ <= difference) by quadrature over the lower Clopper–Pearson distribution of the share θ of gains, ψ
    from its lower distribution where θ > 1/2, else from its upper one.
    """
    n, m, gains = counts.n_items, counts.n_discordant, counts.gains
    if gains == 0:  # θ may be 0 for all that is known
        below, below_masses, above, above_masses = -np.ones(1), np.ones(1), np.zeros(0), np.zeros(0)
    else:
        points, weights = np.polynomial.legendre.leggauss(128)
        half = float(scipy.special.betainc(gains, m - gains + 1, 0.5))
        below, above = (
            2.0 * scipy.special.betaincinv(gains, m - gains + 1, start + width * (points + 1.0) / 2.0) - 1.0
            for start, width in ((0.0, half), (half, 1.0 - half))
        )
        below_masses, above_masses = half * weights / 2.0, (1.0 - half) * weights / 2.0
    if difference < 0.0:
        share = np.minimum(1.0, difference / np.minimum(below, -1e-300))
        reached = scipy.special.betainc(n - m, m + 1, 1.0 - share) if m < n else (share < 1.0).astype(np.float64)
        return float(below_masses @ reached)
    share = np.minimum(1.0, difference / np.maximum(above, 1e-300))
    reached = scipy.special.betainc(m, n - m + 1, share) if m else np.ones_like(share)
    return float(below_masses.sum() + above_masses @ reached)


def roughly_zero(function: Callable[[float], float], low: float, high: float) -> float:
    """Brent's root finder (1973, chapter 4) with the stopping rule that R's uniroot has by default."""
    tolerance = float(np.finfo(float).eps ** 0.25)
    before, best, other = low, high, low
    values = {x: function(x) for x in (low, high)}
    while True:
        if abs(values[other]) < abs(values[best]):
            before, best, other = best, other, best
        least = 2 * np.finfo(float).eps * abs(best) + tolerance / 2
        step = half = (other - best) / 2
        if abs(half) <= least or values[best] == 0.0:
            return best
        if abs(best - before) >= least and abs(values[before]) > abs(values[best]):
            step = _interpolated(values, before, best, other, least) or half
        before, best = best, best + (step if abs(step) >= least else float(np.copysign(least, step)))
        values[best] = function(best)
        if values[best] * values[other] > 0:
            other = before


def _interpolated(values: dict[float, float], before: float, best: float, other: float, least: float) -> float | None:
    """The secant or inverse quadratic step, where it is short enough to be trusted."""
    ratio = values[best] / values[before]
    if before == other:
        numerator, denominator = (other - best) * ratio, 1 - ratio
    else:
        q, r = values[before] / values[other], values[best] / values[other]
        numerator = ratio * ((other - best) * q * (q - r) - (best - before) * (r - 1))
        denominator = (q - 1) * (r - 1) * (ratio - 1)
    numerator, denominator = (numerator, -denominator) if numerator > 0 else (-numerator, denominator)
    if numerator < 0.75 * (other - best) * denominator - abs(least * denominator) / 2 and numerator < abs(
        (best - before) * denominator / 2
    ):
        return numerator / denominator
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class NonInferiority:
    pvalue: float
    pvalue_exact: float


def non_inferiority(counts: PairedCounts, *, margin: float) -> NonInferiority:
    """The score test against −margin and its exact guard."""
    statistic = score_statistic(float(counts.gains), float(counts.losses), n_items=counts.n_items, difference=-margin)
    exact = guard_pvalue(statistic, n_items=counts.n_items, margin=margin)
    return NonInferiority(pvalue=normal_sf(statistic), pvalue_exact=exact)


def power_mcnemar_asymptotic(*, n_items: int, discordance: float, difference: float, alpha: float) -> float:
    """Power of McNemar's chi-square test, straight from the definition."""
    totals = np.arange(1, n_items + 1)
    fewer = np.floor((totals - normal_quantile(1.0 - alpha / 2.0) * np.sqrt(totals)) / 2.0 + 1e-12)
    gains = scipy.stats.binom(totals, 0.5 + difference / (2.0 * discordance))
    rejected = np.where(fewer >= 0, gains.cdf(fewer) + gains.sf(totals - fewer - 1), 0.0)
    return float(scipy.stats.binom.pmf(totals, n_items, discordance) @ rejected)


def items_wald(*, discordance: float, difference: float, alpha: float, power: float) -> float:
    """Unconditional Wald sample size for McNemar's two-sided test."""
    z = normal_quantile(1.0 - alpha / 2.0) + normal_quantile(power)
    return z**2 * (discordance - difference**2) / difference**2


def items_connor(*, discordance: float, difference: float, alpha: float, power: float) -> float:
    """Sample size of Connor (1987) for McNemar's two-sided test."""
    spread = normal_quantile(power) * math.sqrt(discordance - difference**2)
    return (normal_quantile(1.0 - alpha / 2.0) * math.sqrt(discordance) + spread) ** 2 / difference**2


def items_miettinen(*, discordance: float, difference: float, alpha: float, power: float) -> float:
    """Sample size of Miettinen (1968) for McNemar's two-sided test."""
    spread = normal_quantile(power) * math.sqrt(discordance**2 - difference**2 * (3.0 + discordance) / 4.0)
    return (normal_quantile(1.0 - alpha / 2.0) * discordance + spread) ** 2 / (discordance * difference**2)


def cluster_errors(differences: npt.ArrayLike, *, cluster: Labels) -> tuple[float, float]:
    """CR0 (Miller 2024) and CR1 standard errors of a mean difference."""
    values = np.asarray(differences, dtype=np.float64)
    sums = cluster_sums(values - values.mean(), cluster_codes(cluster, values.size))
    cr0 = math.sqrt(math.fsum(sums**2)) / values.size
    return cr0, cr0 * math.sqrt(sums.size / (sums.size - 1))


def clustered_statistics(cells: npt.ArrayLike) -> dict[str, float]:
    """Other chi-square statistics for clustered pairs, of both right, gains, losses, both wrong, a row a cluster."""
    table = np.asarray(cells, dtype=np.float64)
    sizes, gaps, discordant = table.sum(axis=1), table[:, 1] - table[:, 2], table[:, 1] + table[:, 2]
    naive = float(gaps.sum() ** 2 / discordant.sum())
    return {
        "mcnemar": naive,
        "durkalski2003": float(np.sum(gaps / sizes) ** 2 / np.sum((gaps / sizes) ** 2)),
        "obuchowski1998": float(gaps.sum() ** 2 / (np.sum(gaps**2) * len(table) / (len(table) - 1))),
        "eliasziw1991": naive / _eliasziw_correction(table),
    }


def _eliasziw_correction(table: FloatArray) -> float:
    """Variance inflation of McNemar's statistic by one common intracluster correlation (Eliasziw & Donner 1991)."""
    sizes, discordant = table.sum(axis=1), table[:, 1] + table[:, 2]
    shares = table.sum(axis=0) / sizes.sum()
    affected = int(np.sum(discordant >= 1))
    between = np.mean(np.sum((table - np.outer(sizes, shares)) ** 2, axis=1) / sizes)
    within = np.sum(np.sum(table * (sizes[:, None] - table), axis=1) / sizes) / (len(table) * (sizes.mean() - 1.0))
    correlation = (between - within) / (between + (_typical(sizes, len(table)) - 1.0) * within)
    changed = shares[1] + shares[2]
    typical = _typical(discordant[discordant >= 1], affected)
    coefficient = typical + affected * (discordant.sum() / affected - typical)
    return float(1.0 + (coefficient - 1.0) * correlation / (correlation + changed * (1.0 - correlation)))


def _typical(sizes: FloatArray, groups: int) -> float:
    mean = sizes.mean()
    return float(mean - np.sum((sizes - mean) ** 2) / (groups * (groups - 1) * mean))


def classical_boundaries(n_looks: int, *, alpha: float, is_flat: bool) -> FloatArray:
    """The boundaries of O'Brien & Fleming (1979), c √(K / k), or Pocock (1977), c, one-sided, at equal looks."""
    looks = [(k + 1) / n_looks for k in range(n_looks)]
    form = np.ones(n_looks) if is_flat else 1.0 / np.sqrt(looks)
    return form * bisect(lambda c: crossing_probability(c * form, looks) <= alpha, 1.0, 5.0)


def log_e_values(counts: PairedCounts, *, margin: float, bet: float) -> tuple[float, float]:
    """Betting e-values of equivalence (Waudby-Smith & Ramdas 2024): Π (1 + λ (X + δ)) and Π (1 + λ (δ − X))."""
    win, lose, draw = (math.log1p(bet * (x + margin)) for x in (1.0, -1.0, 0.0))
    unchanged = (counts.n_items - counts.n_discordant) * draw
    return counts.gains * win + counts.losses * lose + unchanged, counts.losses * win + counts.gains * lose + unchanged


def mcnemar_log_e(counts: PairedCounts, *, prior: float) -> float:
    """Log of 2^m B(b + a, c + a) / B(a, a), a Beta(a, a) mixture (Ville 1939; Robbins 1970)."""
    betaln = scipy.special.betaln
    mixture = betaln(counts.gains + prior, counts.losses + prior) - betaln(prior, prior)
    return float(counts.n_discordant * math.log(2.0) + mixture)


def macro_f1(truth: Sequence[object], answers: Sequence[object]) -> float:
    """From the definition: the mean of 2 tp / (true + answered) over the labels that occur in either."""
    right = Counter(label for label, answer in zip(truth, answers, strict=True) if label == answer)
    occurring = Counter(truth) + Counter(answers)
    return sum(2.0 * right[label] / n for label, n in occurring.items()) / len(occurring)


def joined(
    baseline: npt.ArrayLike,
    candidate: npt.ArrayLike,
    score: Callable[[FloatArray], FloatArray],
    *,
    task: npt.ArrayLike | None = None,
    cluster: Labels | None = None,
) -> JoinedAnswers:
    """Features of both arms with any score of their totals."""
    before, after = (np.asarray(arm, dtype=np.float64) for arm in (baseline, candidate))
    return JoinedAnswers(
        baseline=before,
        candidate=after,
        score=score,
        task=np.zeros(len(before), dtype=np.int64) if task is None else np.asarray(task),
        cluster=None if cluster is None else cluster_codes(cluster, len(before)),
    )


def mean_score(totals: FloatArray) -> FloatArray:
    """Of a column of sums and one of counts."""
    return np.asarray(totals[:, 0] / totals[:, 1])


def bootstrap_mean(
    differences: npt.ArrayLike,
    *,
    cluster: Labels | None = None,
    confidence_level: float = 0.95,
    n_resamples: int = 4_999,
    rng: np.random.Generator,
) -> BootstrapResult:
    values = np.asarray(differences, dtype=np.float64)
    ones = np.ones_like(values)
    arms = (np.column_stack([column, ones]) for column in (np.zeros_like(values), values))
    answers = joined(*arms, mean_score, cluster=cluster)
    (result,) = answers.bootstraps(confidence_levels=(confidence_level,), n_resamples=n_resamples, rng=rng)
    return result


def bootstrap_macro_f1(
    *tasks: LabelledAnswers,
    weights: list[float] | None = None,
    confidence_level: float = 0.95,
    n_resamples: int,
    rng: np.random.Generator,
) -> BootstrapResult:
    answers = JoinedAnswers.of(tasks, weights)
    (result,) = answers.bootstraps(confidence_levels=(confidence_level,), n_resamples=n_resamples, rng=rng)
    return result

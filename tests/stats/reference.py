"""Methods that only tests need: for cases of the reference file, and as a second way to what the product does.

None of them checks its arguments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import scipy

from qualab.stats.bounded import BoundedMean
from qualab.stats.checks import FloatArray
from qualab.stats.counts import PairedCounts
from qualab.stats.distributions import bisect, normal_quantile, normal_sf
from qualab.stats.equivalence import guard_pvalue
from qualab.stats.f1 import BootstrapResult, JoinedAnswers, LabelledAnswers
from qualab.stats.interval import ConfidenceInterval, score_statistic
from qualab.stats.looks import crossing_probability
from qualab.stats.mean import Labels, MeanDifference, cluster_codes, cluster_sums


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


def pvalue_within(mean: BoundedMean | MeanDifference, margin: float) -> float:
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


def newcombe_uncorrected(counts: PairedCounts, *, confidence_level: float) -> ConfidenceInterval:
    """Wilson limits of each arm, combined with the phi coefficient as it is (Newcombe 1998, method 8)."""
    n_items, right, difference = counts.n_items, counts.both_right or 0, counts.difference
    wrong, z = n_items - counts.n_discordant - right, normal_quantile(0.5 + confidence_level / 2.0)
    totals = [right + counts.losses, wrong + counts.gains, right + counts.gains, wrong + counts.losses]
    phi = (right * wrong - counts.gains * counts.losses) / math.sqrt(math.prod(totals))

    def distances(share: float) -> tuple[float, float]:
        centre, half = share + z**2 / (2 * n_items), z * math.sqrt(share * (1 - share) + z**2 / (4 * n_items))
        limits = [(centre + sign * half / math.sqrt(n_items)) / (1 + z**2 / n_items) for sign in (-1, 1)]
        return share - limits[0], limits[1] - share

    (below_off, above_off), (below_on, above_on) = map(distances, counts.accuracies)
    down, up = (math.sqrt(a**2 - 2 * phi * a * b + b**2) for a, b in ((below_on, above_off), (above_on, below_off)))
    return ConfidenceInterval(low=difference - down, high=difference + up, confidence_level=confidence_level)


def non_inferiority(counts: PairedCounts, *, margin: float) -> tuple[float, float]:
    """p-values of the score test against −margin and of its exact guard."""
    statistic = score_statistic(float(counts.gains), float(counts.losses), n_items=counts.n_items, difference=-margin)
    return normal_sf(statistic), guard_pvalue(statistic, n_items=counts.n_items, margin=margin)


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
    *tasks: LabelledAnswers, confidence_level: float = 0.95, n_resamples: int, rng: np.random.Generator
) -> BootstrapResult:
    answers = JoinedAnswers.of(tasks)
    (result,) = answers.bootstraps(confidence_levels=(confidence_level,), n_resamples=n_resamples, rng=rng)
    return result

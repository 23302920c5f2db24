"""Stopping early without peeking: group-sequential boundaries, and e-processes that may be watched all the time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import scipy

from qualab.errors import InvalidValue
from qualab.stats.checks import FloatArray, check_alpha, check_items, check_margin, check_rates, finite
from qualab.stats.counts import PairedCounts
from qualab.stats.distributions import binomial_cdf, bisect, falling_root, gauss_legendre, normal_quantile, normal_sf
from qualab.stats.equivalence import equivalence
from qualab.stats.interval import ConfidenceInterval, tango

_NODES = 128
_FAR = 8.5
"""Standard deviations beyond which a density is taken as 0."""


class Spending(StrEnum):
    """How the level of a test is spent over the looks."""

    OBRIEN_FLEMING = "obrien-fleming"
    """Next to nothing early, nearly all at the end."""
    POCOCK = "pocock"
    """About evenly."""


def spent(fraction: float, *, alpha: float, spending: Spending = Spending.OBRIEN_FLEMING) -> float:
    """The one-sided level spent by a fraction of the items (Lan & DeMets 1983)."""
    check_alpha(alpha)
    if fraction <= 0.0:
        return 0.0
    if spending is Spending.POCOCK:
        return alpha * math.log1p((math.e - 1.0) * fraction)
    return 2.0 * normal_sf(normal_quantile(1.0 - alpha / 2.0) / math.sqrt(fraction))


def spending_boundaries(
    fractions: Sequence[float], *, alpha: float = 0.05, spending: Spending = Spending.OBRIEN_FLEMING
) -> FloatArray:
    """One-sided z boundaries at looks after these fractions of the items (Lan & DeMets 1983).

    Found by recursive numerical integration (Armitage, McPherson & Rowe 1969). A boundary is infinite where a look has
    nothing to spend.

    Raises:
        InvalidValue: fractions do not ascend within (0, 1], or alpha is not between 0 and 0.5.
    """
    looks = _checked(fractions)
    levels = np.diff([0.0, *(spent(look, alpha=alpha, spending=spending) for look in looks)])
    walk, boundaries = _Walk.start(), []
    for look, level in zip(looks, levels, strict=True):
        boundaries.append(walk.boundary(look, level))
        walk = walk.after(look, boundaries[-1])
    return np.array(boundaries)


def classical_boundaries(n_looks: int, *, alpha: float = 0.05, shape: Spending = Spending.OBRIEN_FLEMING) -> FloatArray:
    """The boundaries of O'Brien & Fleming (1979), c √(K / k), or Pocock (1977), c, one-sided, at equally spaced looks.

    Raises:
        InvalidValue: there is no look, or alpha is not between 0 and 0.5.
    """
    looks = _checked([(k + 1) / n_looks for k in range(n_looks)])
    check_alpha(alpha)
    form = np.ones(n_looks) if shape is Spending.POCOCK else 1.0 / np.sqrt(looks)

    def excess(constant: float) -> float:
        return crossing_probability(constant * form, looks) - alpha

    low, high = normal_quantile(1.0 - alpha), normal_quantile(1.0 - alpha / n_looks) + 1e-9
    return form * falling_root(excess, low, high, above=excess(low), below=excess(high), tolerance=1e-9)


def crossing_probability(boundaries: npt.ArrayLike, fractions: Sequence[float], *, drift: float = 0.0) -> float:
    """Probability of reaching an upper z boundary at some look; `drift` is the expected z after all items."""
    total, walk = 0.0, _Walk.start(drift)
    for look, boundary in zip(_checked(fractions), finite(boundaries, name="Boundaries").tolist(), strict=True):
        total += walk.exceedance(look, boundary)
        walk = walk.after(look, boundary)
    return total


def _checked(fractions: Sequence[float]) -> list[float]:
    looks = finite(fractions, name="Fractions of the items").tolist()
    if not looks or any(after <= before for before, after in zip([0.0, *looks], looks, strict=False)) or looks[-1] > 1:
        raise InvalidValue(
            "Looks must ascend within (0, 1]", hint="Give the shares of the items after which to look, as 0.5, 1."
        )
    return [float(look) for look in looks]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """A Brownian motion that has not crossed yet: its density over quadrature nodes at its last look."""

    time: float
    nodes: FloatArray
    masses: FloatArray
    """Density times quadrature weight."""
    drift: float

    @classmethod
    def start(cls, drift: float = 0.0) -> _Walk:
        return cls(time=0.0, nodes=np.zeros(1), masses=np.ones(1), drift=drift)

    def exceedance(self, time: float, boundary: float) -> float:
        """Probability of being at or above the z boundary at `time`."""
        step = math.sqrt(time - self.time)
        distances = (boundary * math.sqrt(time) - self.nodes - self.drift * (time - self.time)) / step
        return float(self.masses @ scipy.special.ndtr(-distances))

    def boundary(self, time: float, level: float) -> float:
        """The z boundary that is reached with probability `level` at `time`."""
        if level <= 0.0 or self.exceedance(time, 35.0) > level:
            return math.inf
        return bisect(lambda z: self.exceedance(time, z) <= level, -_FAR, 35.0, n_steps=56)

    def after(self, time: float, boundary: float) -> _Walk:
        """The walks that stayed below the z boundary at `time`."""
        spread, centre = math.sqrt(time), self.drift * time
        low, high = centre - _FAR * spread, min(boundary * spread, centre + _FAR * spread)
        points, weights = gauss_legendre(_NODES)
        nodes = low + (high - low) * (points + 1.0) / 2.0
        step = math.sqrt(time - self.time)
        moves = (nodes[:, None] - self.nodes - self.drift * (time - self.time)) / step
        density = np.exp(-0.5 * moves**2) @ self.masses / (step * math.sqrt(2.0 * math.pi))
        return _Walk(time=time, nodes=nodes, masses=density * weights * (high - low) / 2.0, drift=self.drift)


class Decision(StrEnum):
    CONTINUE = "continue"
    EQUIVALENT = "equivalent"
    HARM = "harm"
    """A plain regression: go no further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookResult:
    """What one look at the counts so far decides."""

    decision: Decision
    statistic_lower: float
    """Score statistic against −margin, to compare with the boundary."""
    statistic_upper: float
    """Minus the score statistic against +margin, to compare with the boundary."""
    pvalue_harm: float
    """One-sided exact conditional p of "the candidate is not worse"."""
    interval: ConfidenceInterval
    """Repeated confidence interval: Tango's at the level of the boundary (Jennison & Turnbull 1989)."""


def look(counts: PairedCounts, *, margin: float, boundary: float, harm_boundary: float = math.inf) -> LookResult:
    """Judge the items so far at one look.

    EQUIVALENT takes both one-sided score statistics at or above `boundary`, and the exact guard at the boundary's
    level; HARM takes an exact one-sided McNemar p at most that of `harm_boundary`. Boundaries come from
    `spending_boundaries`.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: the margin is not between 0 and 1.
    """
    check_items(counts.n_items)
    level = min(max(normal_sf(boundary), 1e-15), 0.499)
    found = equivalence(counts, margin=check_margin(margin), alpha=level)
    statistics = found.statistic_lower, -found.statistic_upper
    pvalue_harm = binomial_cdf(counts.gains, counts.n_discordant, 0.5)
    decision = Decision.CONTINUE
    if math.isfinite(harm_boundary) and pvalue_harm <= normal_sf(harm_boundary):
        decision = Decision.HARM
    elif math.isfinite(boundary) and min(statistics) >= boundary and found.is_equivalent:
        decision = Decision.EQUIVALENT
    return LookResult(
        decision=decision,
        statistic_lower=statistics[0],
        statistic_upper=statistics[1],
        pvalue_harm=pvalue_harm,
        interval=tango(counts, confidence_level=1.0 - 2.0 * level),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EquivalenceEvidence:
    """Logarithms of e-values against either side: equivalence is proven when both reach log(1 / alpha), at any time."""

    log_e_lower: float
    """Against "worse by the margin or more"."""
    log_e_upper: float
    """Against "better by the margin or more"."""

    @property
    def log_e(self) -> float:
        """The smaller of the two."""
        return min(self.log_e_lower, self.log_e_upper)

    def is_equivalent(self, *, alpha: float = 0.05) -> bool:
        """Whether both sides are ruled out at this level; valid however often one looks (Ville's inequality)."""
        return self.log_e >= -math.log(check_alpha(alpha))


def equivalence_e_values(counts: PairedCounts, *, margin: float, bet: float) -> EquivalenceEvidence:
    """Betting e-values of equivalence (Waudby-Smith & Ramdas 2024): Π (1 + λ (X + δ)) and Π (1 + λ (δ − X)).

    X is an item's difference in {−1, 0, 1}. The order of the items does not matter to the product, so counts
    suffice. `bet` is λ, chosen before the data, in (0, 1 / (1 − margin)): see `best_bet`.

    Raises:
        InvalidValue: the bet or the margin cannot be.
    """
    check_margin(margin)
    if not 0.0 < bet < 1.0 / (1.0 - margin):
        raise InvalidValue(
            f"A bet must lie between 0 and 1 / (1 − margin), not {bet:g}",
            hint="Take best_bet() of a pilot's discordance.",
        )
    win, lose, draw = (math.log1p(bet * (x + margin)) for x in (1.0, -1.0, 0.0))
    unchanged = (counts.n_items - counts.n_discordant) * draw
    return EquivalenceEvidence(
        log_e_lower=counts.gains * win + counts.losses * lose + unchanged,
        log_e_upper=counts.losses * win + counts.gains * lose + unchanged,
    )


def best_bet(*, discordance: float, margin: float) -> float:
    """The bet under which the e-values grow fastest at a true difference of 0 and this discordance.

    Never more than half of the largest possible bet: with an untested pilot a single change must not ruin it.

    Raises:
        InvalidValue: discordance or margin cannot be.
    """
    check_rates(discordance=discordance, difference=0.0)
    largest = 0.5 / (1.0 - check_margin(margin))

    def falls(bet: float) -> bool:
        gain, loss, draw = ((x + margin) / (1.0 + bet * (x + margin)) for x in (1.0, -1.0, 0.0))
        return discordance / 2.0 * (gain + loss) + (1.0 - discordance) * draw <= 0.0

    return bisect(falls, 0.0, largest)


def first_proof(differences: npt.ArrayLike, *, margin: float, bet: float, alpha: float = 0.05) -> int | None:
    """After how many items, in the order given, both e-values first reach 1 / alpha; None where they never do.

    Unlike the counts' e-values this looks after every item. Differences are in [−1, 1].

    Raises:
        InvalidValue: differences, bet, margin or alpha cannot be.
    """
    equivalence_e_values(PairedCounts.zero(), margin=margin, bet=bet)
    values = finite(differences, name="Differences")
    if values.ndim != 1 or np.any(np.abs(values) > 1.0):
        raise InvalidValue("Differences must be a flat list within −1 and 1", hint="Scale scores to 0..1 first.")
    lower, upper = (np.cumsum(np.log1p(bet * (sign * values + margin))) for sign in (1.0, -1.0))
    proven = np.flatnonzero(np.minimum(lower, upper) >= -math.log(check_alpha(alpha)))
    return int(proven[0]) + 1 if proven.size else None


def mcnemar_log_e(counts: PairedCounts, *, prior: float = 1.0) -> float:
    """Log e-value against "gains and losses are equally likely": 2^m B(b + a, c + a) / B(a, a), a Beta(a, a) mixture.

    `prior` is a: 1 for a uniform mixture, 0.5 for Jeffreys'. Valid at any time (Ville 1939; Robbins 1970). 0 where
    no item is discordant.

    Raises:
        InvalidValue: the prior is not positive.
    """
    if not prior > 0.0:
        raise InvalidValue(f"A prior must be positive, not {prior:g}", hint="1 is uniform, 0.5 is Jeffreys'.")
    return counts.n_discordant * math.log(2.0) + float(
        scipy.special.betaln(counts.gains + prior, counts.losses + prior) - scipy.special.betaln(prior, prior)
    )

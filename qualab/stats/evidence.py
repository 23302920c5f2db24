"""E-values: evidence that may be watched all the time, and stopped on at any."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from qualab.errors import InvalidValue
from qualab.stats.checks import bisect, check_alpha, check_margin, check_rates, finite
from qualab.stats.counts import PairedCounts


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
